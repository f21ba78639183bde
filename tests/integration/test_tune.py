"""Options that truly help are found, others are not recommended, and what was not measured is listed as such."""

import re
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn

import ortlens
from ortlens import cli
from ortlens._ort import CPU
from ortlens.analysis.problems.catalogue import option_lines
from ortlens.cli import studies
from ortlens.errors import UsageError
from ortlens.studies import engine
from ortlens.studies import tune as tune_module
from ortlens.studies.engine import LocalSide
from tests.answers import answered


def trying_only(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    every = tune_module._candidates
    monkeypatch.setattr(tune_module, "_candidates", lambda *given: [item for item in every(*given) if item.option in options])


def planted(monkeypatch: pytest.MonkeyPatch, shares: Callable[[str], float]) -> None:
    """Decide how long each way takes, as a share of the options given, of two options: on a busy machine, times decide nothing."""
    trying_only(monkeypatch, "freeze_weights", "preallocate_output")
    monkeypatch.setattr(LocalSide, "round", lambda side: round(100_000 * shares(side.name)))


def test_what_helps_is_chosen_and_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda way: 1.0 if way == "given options" else 0.5)
    model = nn.Linear(8, 4).eval()
    with torch.no_grad():
        options, table = ortlens.tune(model, options={"freeze_weights": False})(torch.randn(2, 8))
    assert options.freeze_weights == "auto"
    chosen = table[table.chosen]
    assert list(chosen.option) == ["freeze_weights", "all"]
    assert chosen.verified.all()
    assert (chosen.ratio == 0.5).all()
    assert table[table.option == "preallocate_output"].verdict.item() == "same", "on top of what was kept"


def test_images_are_tried_with_their_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda way: 0.5 if way in {"channels_last inputs", "ortlens.freeze"} else 1.0)
    with torch.no_grad():
        options, table = ortlens.tune(nn.Conv2d(3, 4, 3).eval())(torch.randn(1, 3, 8, 8))
        _, of_rows = ortlens.tune(nn.Linear(8, 4).eval())(torch.randn(2, 8))
    calls = table[table.option == "call"]
    assert list(calls.value) == ["channels_last inputs", "ortlens.freeze"]
    assert calls.verified.all()
    assert list(calls.note) == ["Pass x.to(memory_format=torch.channels_last).", "Call ortlens.freeze(model, input)."]
    assert not calls.chosen.any()
    assert options == ortlens.OrtBackendOptions()
    assert list(of_rows[of_rows.option == "call"].value) == ["ortlens.freeze"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"same": True}, "Nothing was faster outside the noise; keep the defaults."),
        ({"faster": True}, "Call it. It takes 0.38 times as long. No option was faster outside the noise; keep the defaults."),
        ({"faster": False}, "Nothing with eager's results was faster outside the noise; keep the defaults."),
        ({"unmeasured": None}, "Nothing was measured; keep the defaults."),
    ],
)
def test_the_conclusion_follows_from_the_table(rows: dict[Any, bool | None], said: str) -> None:
    trials = [
        tune_module.Trial(way="w", option="call", value="v", verdict=verdict, verified=verified, ratio=0.38, note="Call it.")
        for verdict, verified in rows.items()
    ]
    assert studies._advice(ortlens.OrtBackendOptions(), trials) == said
    alone = tune_module.Trial(way="w", option="preferred_execution_providers", value=CPU, verdict="slower", ratio=2.0)
    assert studies._advice(ortlens.OrtBackendOptions(), [*trials, alone]).endswith("On the CPU's provider alone it takes 2 times as long.")
    given = ortlens.OrtBackendOptions(preferred_execution_providers=[("Plug", {})])
    assert tune_module._candidates(given, [], 1)[0].value == CPU


def test_what_does_not_hold_in_the_end_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = iter([0.9] * 40)
    planted(monkeypatch, lambda way: next(trial, 1.0) if way == "preallocate_output=True" else 1.0)
    with torch.no_grad():
        options, table = ortlens.tune(nn.Linear(8, 4).eval())(torch.randn(2, 8))
    assert options == ortlens.OrtBackendOptions()
    assert "did not hold when measured again" in set(table.note)


def test_wrong_results_are_never_chosen_and_session_options_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    every = tune_module._candidates
    planted(monkeypatch, lambda way: 1.0 if way == "given options" else 0.5)
    monkeypatch.setattr(engine, "difference", lambda _expected, _found: (1.0, False))
    own = onnxruntime.SessionOptions()
    own.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with torch.no_grad():
        options, table = ortlens.tune(nn.Linear(8, 4).eval(), options={"ort_session_options": own})(torch.randn(2, 8))
    assert options.preallocate_output is False
    assert table[table.option == "preallocate_output"].note.item() == "results differ from eager"
    assert options.ort_session_options is own
    assert table[table.option == "ort_session_options"].note.item().startswith("not tried: ")
    assert not [item for item in every(options, [], 1) if item.option == "ort_session_options"]


def test_the_budget_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.no_grad():
        options, table = ortlens.tune(nn.Linear(8, 4).eval(), budget_s=1e-3)(torch.randn(2, 8))
    assert options == ortlens.OrtBackendOptions()
    assert table.ratio.isna().all()
    assert (set(table.status), {note[:9] for note in table.note.tolist()}) == ({"skipped"}, {"not tried"})
    assert cli.main(["tune", "torch:sin", "--input", "f32[4]", "--budget", "0.001"]) == 0
    assert "keep the defaults" in capsys.readouterr().out
    assert cli.main(["tune", "torch:sin", "--input", "f32[4]", "--budget", "0.001", "--concurrency", "3", "--batch", "8", "2"]) == 0
    assert re.findall(r"For (.*):", capsys.readouterr().out) == [f"batches of {batch} and 3 callers" for batch in (8, 2)]
    assert cli.main(["tune", "torch:sin", "--input", "f32[4]", "--budget", "0.001", "--concurrency", "1", "3", "--json"]) == 0
    assert [row["callers"] for row in answered(capsys.readouterr().out)["rows"]] == [1] * len(table) + [3] * len(table)


@pytest.mark.slow
@pytest.mark.serial
def test_a_real_difference_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights as inputs are transposed in every call; as constants, once."""
    trying_only(monkeypatch, "freeze_weights")
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(2))).eval()
    with torch.no_grad():
        _, table = ortlens.tune(model, options={"freeze_weights": False}, budget_s=60)(torch.randn(1, 1024))
    rows = table[table.option.isin(["freeze_weights", "call"])]
    assert rows.ratio.notna().all()
    assert rows.verified.all()
    assert rows.ratio.min() < 0.9


def breaking(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


@torch.no_grad()
def test_a_setting_of_an_action_is_tried_and_undone() -> None:
    lens = ortlens.explain(breaking)(torch.rand(4))
    line = "torch._dynamo.config.capture_scalar_outputs = True"
    row = next(lens.tune(settings=[line])[1].itertuples())
    assert (row.value, row.status, row.verified) == (line, "ok", True)
    assert torch._dynamo.config.capture_scalar_outputs is False
    (option,) = option_lines(freeze_weights=False)
    assert next(lens.tune(settings=[option])[1].itertuples()).way == "freeze_weights=False"
    for wrong in ("import os", "torch._dynamo.config.x.y.z()", "print(options=open)", "("):
        with pytest.raises(UsageError, match="sets no option"):
            lens.tune(settings=[wrong])
    with pytest.raises(UsageError, match="nothing was compiled"):
        ortlens.Lens().tune(torch.ones(1))
    with pytest.raises(AttributeError, match="'str' object"):
        lens.tune("no tensor")


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="budget_s"):
        ortlens.tune(torch.sin, budget_s=0)
    with pytest.raises(UsageError, match="function or a module"):
        ortlens.tune(3)  # type: ignore[arg-type]  # what is refused
