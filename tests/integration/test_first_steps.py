"""What somebody types who has read one example: it works, or one sentence has the line to type."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens import cli


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return super().forward(x) * scale


X = torch.linspace(0, 1, 32).reshape(4, 8)
ASKED: tuple[Callable[[ortlens.Lens], Any], ...] = (
    lambda lens: lens.verify(),
    lambda lens: lens.profile(),
    lambda lens: lens.measure(),
    lambda lens: lens.freeze(),
)


def compiled(x: torch.Tensor) -> ortlens.Lens:
    lens = ortlens.Lens()
    with torch.no_grad():
        torch.compile(Scaled(), backend=lens)(x)
    return lens


@pytest.mark.parametrize("ask", ASKED)
def test_without_arguments_those_of_the_last_call_are_used_if_they_still_exist(ask: Callable[[ortlens.Lens], Any]) -> None:
    for lens in (ortlens.explain(Scaled(), calls=1)(X, scale=2.0), compiled(X)):
        answer = ask(lens)
        assert callable(answer) or len(answer)
    with pytest.raises(ortlens.UsageError, match=r"pass the arguments of the call: `lens\.\w+\(x\)`"):
        ask(compiled(X.clone()))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (lambda: ortlens.explain(Scaled(), X), "ortlens.explain(model)(x)"),  # type: ignore[call-overload]
        (lambda: ortlens.tune(Scaled(), x=X), "ortlens.tune(model)(x)"),  # type: ignore[call-arg]
        (lambda: ortlens.explain(Scaled), "ortlens.explain(Scaled())(x)"),
        (lambda: ortlens.freeze(Scaled()), "ortlens.freeze(model, x)"),
        (lambda: ortlens.Lens().report("run.pdf"), "write run.html"),
        (lambda: ortlens.Lens().links(line=20), "lens.links(line='model.py:20')"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_one_sentence_with_the_line_to_type(typed: Callable[[], Any], said: str) -> None:
    with pytest.raises(ortlens.UsageError) as caught:
        typed()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_that_the_model_refuses_are_its_own_error(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match=r"4x9 and 8x8"):
        ortlens.explain(Scaled())(torch.ones(4, 9))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_the_command_alone_shows_the_help_and_inputs_are_asked_for_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([]) == 0
    assert "explain" in capsys.readouterr().out
    (tmp_path / "twofold.py").write_text("def two(ids, mask): return ids * mask\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "twofold.py:two"]) == 2
    assert "ortlens bench twofold.py:two --input ids=f32[1,8] --input mask=f32[1,8]\n" in capsys.readouterr().err
