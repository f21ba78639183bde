"""`verify` and `profile` keep to their time, tick nothing that they left out, and say where PyTorch compiled nothing."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch

import ortlens
from ortlens.analysis.answers.verdict import correct_verdict, numbers_of
from ortlens.errors import UsageError
from ortlens.job.request import Request, new_lens
from ortlens.job.request import explained as request_explained
from ortlens.lens.lens import Lens
from ortlens.lens.observing.time_budget import TimeBudget
from tests.integration.planting import rewriting
from tests.integration.test_verify_calls import Mixed

OVER = 1e-9
"""Seconds that are over before anything was compared."""


class Split(Mixed):
    """Two partitions with an operator of PyTorch between them, which draws nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.before(x).relu()
        return self.after(torch.special.bessel_j0(hidden)).tanh()  # type: ignore[no-any-return]


def explained(target: Callable[..., Any], *args: torch.Tensor) -> Lens:
    with torch.no_grad():
        lens: Lens = ortlens.explain(target, calls=2)(*args)
    return lens


def over_after(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over when it was asked for so often."""
    asked = iter(range(10**6))
    monkeypatch.setattr(TimeBudget, "is_over", lambda _self: next(asked) >= looks)


def correct(lens: Lens) -> str:
    capture = lens.captured()
    return correct_verdict(capture)


def test_time_that_is_over_at_once_leaves_the_call_and_says_so() -> None:
    x = torch.randn(2, 4)
    lens = explained(Split().eval(), x)
    with torch.no_grad():
        numerics = lens.verify(x, budget_s=OVER)
    inside = numerics[numerics.scope != "call"]
    assert set(inside.partition_id) == {"p0", "p1"}
    assert inside.ok.isna().all()
    assert inside.left_out.all()
    assert numerics[numerics.scope == "call"].ok.all(), "the call as a whole is compared all the same"
    assert correct(lens) == "partly"
    said = " ".join(lens.summary().split())
    assert "not compared (not compared: the time of 1e-09 s was over)" in said
    assert "all within tolerance" not in said
    with torch.no_grad():
        assert lens.verify(x).ok.all(), "with time there is nothing left to say"
    assert correct(lens) == "verified"
    assert "the time of" not in lens.summary()


@pytest.mark.parametrize("per_op", [False, True])
def test_a_partial_answer_is_the_beginning_of_the_whole_one(per_op: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 - parametrised
    x = torch.randn(2, 4)
    lens = explained(torch.nn.Sequential(*(torch.nn.Linear(4, 4), torch.nn.Sigmoid()) * 4).eval(), x)
    with torch.no_grad():
        whole = lens.verify(x, per_op=per_op)
        over_after(4, monkeypatch)
        part = lens.verify(x, per_op=per_op)
    keys = ["partition_id", "node", "scope"]
    assert part[keys].equals(whole[keys]), "what was left out is listed"
    rows = part[part.scope != "call"]
    assert 0 < rows.ok.notna().sum() < len(rows)
    assert rows[rows.ok.isna()].left_out.all()
    assert not rows[rows.scope == "output"].ok.notna().any(), "the output is computed last"
    assert correct(lens) == "partly"
    numbers = numbers_of(lens.captured())
    assert numbers is not None
    assert numbers.left_out == rows.ok.isna().sum()


def test_calls_of_a_partition_that_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.compile(backend=(lens := ortlens.Lens()))
    def layer(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin()

    times = 12

    def loop(x: torch.Tensor) -> torch.Tensor:
        for _ in range(times):
            x = layer(x)
        return x

    with torch.no_grad():
        layer(torch.rand(3))
        lens._targets.callables[0] = lens._targets.callables[0]._replace(function=loop, compiled=loop)
        rows = lens.verify(torch.rand(3))
        assert list(rows.node) == ["mul", "sin", "sin", "result"], "one set of rows"
        assert "calls 9 to 12 of this partition were not compared" in rows.note.iloc[-2]
        times = 3
        assert not any("calls" in note for note in lens.verify(torch.rand(3)).note)
        over_after(4, monkeypatch)
        rows = lens.verify(torch.rand(3))
    output = rows[rows.scope == "output"]
    assert output.ok.item(), "of the call that was compared"
    assert output.note.item().startswith("2 of 3 calls of this partition were not compared: the time of")
    assert correct(lens) == "partly"


def test_what_is_wrong_stays_wrong_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def negated(model: ir.Model) -> None:
        node = next(node for node in model.graph if node.op_type == "Relu")
        node.op_type = "Abs"

    rewriting(negated)(monkeypatch)
    x = -torch.rand(8)
    lens = explained(lambda t: torch.relu(t), x)  # noqa: PLW0108 - a function of its own
    with torch.no_grad():
        numerics = lens.verify(x, budget_s=OVER)
    (call,) = numerics[numerics.node == "result"].itertuples()
    assert call.ok is False or not call.ok
    (finding,) = [row for row in lens.captured().findings if row.rule == "call_differs"]
    assert "was not looked for: the time was over" in finding.evidence
    assert "budget_s" in finding.mitigation
    assert correct(lens) == "differs"
    with torch.no_grad():
        lens.verify(x)
    assert {"call_differs", "fusion_changes_numbers"} <= {row.rule for row in lens.captured().findings}


def test_partitions_without_a_profile_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4)
    lens = explained(Split().eval(), x)
    with torch.no_grad():
        kernels = lens.profile(x, budget_s=OVER)
    assert kernels.session_id.nunique() == 1, "the first one is profiled in any case"
    assert set(kernels.calls) == {1}
    (finding,) = [row for row in lens.captured().findings if row.rule == "profile_cut_short"]
    assert finding.subject == "p1"
    assert finding.title == "1 of 2 partitions were not profiled: the time of 1e-09 s was over"
    assert finding.title in " ".join(lens.findings.title)
    with torch.no_grad():
        assert lens.profile(x).session_id.nunique() == 2
    assert "profile_cut_short" not in set(lens.findings.rule)
    monkeypatch.setattr(TimeBudget, "is_over", lambda self: self.budget_s < math.inf)
    with torch.no_grad():
        assert set(lens.profile(x, repeat=3).calls) == {3}, "a number that was asked for has no limit"


def test_what_is_no_time_and_an_onnx_model_keeps_to_its_time(tmp_path: Path) -> None:
    x = torch.ones(3)
    lens = explained(torch.sin, x)
    of_file = ortlens.explain(str(lens.export_onnx(tmp_path / "model.onnx")), calls=1)()
    assert set(of_file.profile(budget_s=OVER).calls) == {1}
    wrong: tuple[Any, ...] = (0, -1, True, "60", math.nan)
    for study in (lens.verify, lens.profile, lambda _, budget_s: of_file.profile(budget_s=budget_s)):
        for value in wrong:
            with pytest.raises(UsageError, match="budget_s must be a number of seconds above 0"):
                study(x, budget_s=value)


class Tagger(torch.nn.Module):
    """Dynamo leaves a module that calls an LSTM uncompiled."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.layer(x)[0]
        return h


def test_profile_and_verify_say_that_pytorch_ran_the_function() -> None:
    x = torch.ones(1, 2, 4)
    lens = ortlens.explain(Tagger(), calls=1)(x)
    for asked in (lens.profile, lens.verify):
        with pytest.raises(ortlens.UsageError, match="PyTorch could not trace the function and ran it as it is"):
            asked(x)


@pytest.mark.parametrize("target", [Tagger(), torch.special.bessel_j0], ids=["nothing is compiled", "nothing runs in ONNX Runtime"])
def test_a_request_to_look_closer_goes_on(target: torch.nn.Module) -> None:
    request = Request(profile=True, verify=True, calls=1)
    lens = new_lens(request, "target")
    request_explained(request, lens, target, ((torch.ones(1, 2, 4),), {}))
    assert "Look first at" in lens.summary()
    assert lens.kernels.empty


def test_what_only_verify_called_has_no_time_per_call() -> None:
    model, x = torch.nn.Conv2d(1, 2, 3), torch.rand(1, 1, 8, 8)
    lens = ortlens.explain(model)(x)
    lens.verify(x)
    (row,) = lens.fallbacks[lens.fallbacks.target == "aten.convolution_backward.default"].to_dict("records")
    assert (row["calls"], row["total_ns"]) == (0, 0)
    assert "convolution_backward" not in lens.summary().partition("Look first at")[2]
