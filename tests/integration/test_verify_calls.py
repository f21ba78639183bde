"""What `verify` does to the observed program: nothing; what it takes; and what it says where it cannot compare."""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
import pytest
import torch
from functorch.experimental import control_flow  # type: ignore[import-untyped]
from onnxscript import opset18
from torch._higher_order_ops import scan
from torch.utils.checkpoint import checkpoint

import ortlens
from ortlens.backend.api import OrtBackend
from ortlens.lens.verify import call_state, partition_check


class Mixed(torch.nn.Module):
    """A partition, an operator that stays in PyTorch and draws random numbers, and another partition."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.before(x).relu()
        return self.after(hidden + torch.rand_like(hidden)).relu()  # type: ignore[no-any-return]


def test_nothing_that_was_recorded_or_that_runs_changes() -> None:
    model, x = Mixed().eval(), torch.rand(2, 4)
    backend = OrtBackend()
    lens = ortlens.Lens(backend)
    with torch.no_grad():
        fast = torch.compile(model, backend=lens)
        fast(x)
        frames, random = (lens.runs, lens.sessions, lens.fallbacks), torch.get_rng_state()
        counts = backend.execution_count, len(lens.graphs)
        numerics = lens.verify(x)
        assert all(before.equals(after) for before, after in zip(frames, [lens.runs, lens.sessions, lens.fallbacks], strict=True))
        assert torch.equal(random, torch.get_rng_state())
        assert counts == (backend.execution_count, len(lens.graphs))
        assert torch.is_grad_enabled() is False
        assert numerics.partition_id.nunique() == 2
        assert numerics.ok.all()
        assert set(numerics.node).isdisjoint(lens.fallbacks.node), "what PyTorch runs is PyTorch itself"
        torch.manual_seed(0)
        result = fast(x)
        torch.manual_seed(0)
        torch.testing.assert_close(result, model(x))


class Breaking(torch.nn.Module):
    """A layer with a graph break, and a transposition in it that the model that runs no longer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.inner(x))
        torch._dynamo.graph_break()
        return x * 2


def test_modules_that_share_code_are_compared_each_with_its_own_weights() -> None:
    model, lens = torch.nn.Sequential(Breaking(), Breaking(), Breaking()).eval(), ortlens.Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        for rows in (5, 7, 7, 7, 7):
            compiled(torch.rand(rows, 8))
        numerics = lens.verify(torch.rand(7, 8))
        assert not numerics.empty
        assert numerics.ok.notna().all(), numerics[["node", "note"]].to_string()
        assert numerics.ok.all()


def test_forward_and_backward_are_compared_and_a_backward_that_does_not_run_is_unchecked() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)), torch.rand(3, 4)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        return loss

    lens = ortlens.Lens()
    fast = torch.compile(step, backend=lens)

    def train(x: torch.Tensor) -> None:
        fast(x).backward()

    train(x)
    lens._targets.callables[0] = lens._targets.callables[0]._replace(function=train, compiled=train)
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    numerics = lens.verify(x)
    phases = lens.partitions.set_index("partition_id").graph_id.map(lens.graphs.set_index("graph_id").phase)
    assert set(numerics.partition_id.dropna().map(phases)) == {"forward", "backward"}
    assert numerics.ok.all()
    written = {f"grad of model.{name} after the call" for name, _ in model.named_parameters()}
    assert written <= set(numerics[numerics.scope == "call"].node)
    assert all(torch.equal(parameter.grad, before) for parameter, before in zip(model.parameters(), gradients, strict=True))  # type: ignore[arg-type]

    lens._targets.callables[0] = lens._targets.callables[0]._replace(
        function=lambda x: fast(x).detach(), compiled=lambda x: fast(x).detach()
    )
    numerics = lens.verify(x)
    backward = numerics[numerics.partition_id.map(phases) == "backward"]
    assert not backward.empty
    assert backward.ok.isna().all()
    assert set(backward.note) == {"the backward did not run in this call"}


@torch.no_grad()
def test_later_weights_and_sizes_are_compared_as_they_are() -> None:
    lens = ortlens.explain(lambda x: (x * x.shape[0]).reshape(-1).cumsum(0), dynamic=True, calls=1)(torch.rand(3, 4))
    for size in (3, 7):
        assert lens.verify(torch.rand(size, 4)).ok.all()
        assert lens.verify(torch.rand(size, 4), per_op=True).ok.all()
    model = torch.nn.Linear(4, 4)
    lens = ortlens.explain(model, calls=1)(torch.rand(2, 4))
    assert lens.verify(torch.rand(2, 4)).partition_id.dropna().unique().tolist() == ["p0"]
    model.weight.mul_(3)
    assert lens.verify(torch.rand(2, 4)).ok.all()
    numerics = lens.verify(torch.rand(2, 3, 4))
    assert numerics.partition_id.dropna().unique().tolist() == ["p1"], "the call compiled anew"
    assert numerics.ok.all()


def test_inputs_that_are_written_to_are_compared_as_they_were_and_put_back() -> None:
    def written(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x.add_(1)
        return y.cos() + x

    with torch.no_grad():
        lens = ortlens.explain(written, calls=1)(torch.zeros(3))
        x = torch.rand(3)
        before = x.clone()
        numerics = lens.verify(x)
        assert torch.equal(x, before)
        assert numerics.ok.all()
        assert list(numerics[numerics.scope == "call"].node) == ["result", "x after the call"]


def test_tolerances_of_the_user_are_taken_at_their_word() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(512, 512), torch.randn(64, 512)
    with torch.no_grad():
        lens = ortlens.explain(lambda x: (x @ weight).exp().sum(-1), calls=1)(x)
        assert lens.verify(x).ok.all()
        strict = lens.verify(x, atol=0, rtol=0)
        assert (strict.ok == False).any()  # noqa: E712 - a column with gaps
        assert strict.rtol.unique().tolist() == [0.0]
        assert lens.verify(x, atol={torch.float32: 1e38}).ok.all()
        for wrong in ({"atol": -1}, {"rtol": "small"}, {"rtol": {"float32": 1}}):
            with pytest.raises(ortlens.UsageError, match=r"atol|rtol"):
                lens.verify(x, **wrong)


def test_arguments_of_the_same_name_are_told_apart_or_refused() -> None:
    def near(x: torch.Tensor, rtol: float = 0.5) -> torch.Tensor:
        return x * rtol

    x = torch.rand(3)
    with torch.no_grad():
        lens = ortlens.explain(near, calls=1)(x, 0.25)
        assert lens.verify(x, 0.25).ok.all()
        with pytest.raises(ortlens.UsageError, match="argument 'rtol' too"):
            lens.verify(x, rtol=0.25)
        lens = ortlens.explain(lambda x, budget_s: x * budget_s, calls=1)(x, budget_s=0.5)
        assert lens.verify(x, 0.5).ok.all()
        with pytest.raises(ortlens.UsageError, match="takes an argument 'budget_s' too"):
            lens.verify(x, budget_s=0.5)


def test_what_cannot_be_verified_says_why() -> None:
    x = torch.rand(3)
    with pytest.raises(ortlens.UsageError, match="nothing was compiled"):
        ortlens.Lens().verify(x)
    with pytest.raises(ortlens.UsageError, match="wraps 'eager'"):
        ortlens.explain(torch.sin, backend="eager", calls=1)(x).verify(x)
    with pytest.raises(ortlens.UsageError, match="dry run"):
        ortlens.explain(torch.sin, dry_run=True)(x).verify(x)


def test_a_partition_that_went_back_to_pytorch_is_not_called_right() -> None:
    x = torch.rand(3)
    with torch.no_grad():
        lens = ortlens.explain(lambda x: x.sort()[0], calls=1)(x)
        (runner,) = lens._targets.graphs()[0].of.runners
        for _ in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runner.failed((x,), RuntimeError("planted"))
        numerics = lens.verify(x)
    inside = numerics[numerics.scope != "call"]
    assert (list(inside.node), list(inside.ok.isna())) == (["sort"], [True])
    assert list(inside.note) == ["PyTorch runs this partition, because ONNX Runtime failed on it; see findings"]


def test_a_failure_of_the_comparison_is_a_finding_the_call_goes_on_and_is_not_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(partition_check, "judge", broken)
    x, seen = torch.rand(3), []
    with torch.no_grad():
        lens = ortlens.Lens()
        fast = torch.compile(lambda x: x.sin() * 2, backend=lens)
        fast(x)
        target = lens._targets.callables[0]
        lens._targets.callables[0] = target._replace(
            function=None, compiled=lambda x: seen.append(fast(x))
        )  # to see what the user would get
        with pytest.warns(RuntimeWarning, match="failed while comparing numbers"):
            numerics = lens.verify(x)
    torch.testing.assert_close(seen, [x.sin() * 2])
    assert numerics.ok.isna().all()
    assert "planted" in numerics.note.iloc[0]
    assert "lens_failed" in set(lens.findings.rule)
    with torch.no_grad():
        lens = ortlens.explain(doubled_sine, calls=1, options={"custom_translation_table": {torch.ops.aten.sin.default: cosine}})(x)
        with pytest.warns(RuntimeWarning, match="failed while comparing numbers"):
            numerics = lens.verify(x)
    assert list(numerics[numerics.scope == "call"].ok) == [False]


def test_verifying_again_replaces_rows_and_findings() -> None:
    def root(x: torch.Tensor) -> torch.Tensor:
        return x.sqrt() * 2

    with torch.no_grad():
        lens = ortlens.explain(root, calls=1)(torch.rand(3))
        lens.verify(-torch.ones(3))
        assert "nonfinite_origin" in set(lens.findings.rule)
        numerics = lens.verify(torch.rand(3))
        assert lens.findings.empty
        assert list(numerics.node) == ["sqrt", "mul", "mul", "result"]
        numerics = lens.verify(torch.rand(3), per_op=True)
    assert list(zip(numerics.node, numerics.scope, strict=True)) == [("sqrt", "op"), ("mul", "op"), ("result", "call")]
    assert numerics.ok.all()


def doubled_sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def halved_cosine(x: torch.Tensor) -> torch.Tensor:
    return x.cos() / 2


def of_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


@torch.no_grad()
def test_each_function_that_was_compiled_for_the_arguments_is_compared_as_a_whole() -> None:
    lens = ortlens.Lens()
    first, second, third = (torch.compile(function, backend=lens) for function in (doubled_sine, halved_cosine, of_two))
    x, y = torch.rand(3, 4), torch.rand(4, 2)
    first(x), second(x), third(x, y)
    numerics = lens.verify(x)
    call = numerics[numerics.scope == "call"]
    assert dict(zip(call.node, call.ok.isna(), strict=True)) == {
        "doubled_sine: result": False,
        "halved_cosine: result": False,
        "of_two: result": True,
    }
    assert "compiled for other arguments" in call.note.iloc[-1]
    assert numerics.partition_id.dropna().unique().tolist() == ["p0", "p1"]
    numerics = lens.verify(x, y)
    assert numerics.partition_id.dropna().unique().tolist() == ["p2"]
    assert numerics[numerics.node == "of_two: result"].ok.all()
    assert len(lens.graphs) == 3, "no function is compiled for arguments that are not its own"

    lens, weight = ortlens.Lens(), torch.rand(4, 4)

    def fixed(x: torch.Tensor) -> torch.Tensor:
        return x @ weight

    for function in (doubled_sine, fixed):
        torch.compile(function, backend=lens)(torch.rand(3, 4))
    numerics = lens.verify(torch.rand(3, 5))
    call = numerics[numerics.scope == "call"].set_index("node")
    assert call.ok["doubled_sine: result"] == True  # noqa: E712 - a column with gaps
    assert call.ok.isna()["fixed: result"], "it raises in both ways"
    assert "PyTorch raises RuntimeError" in call.note["fixed: result"]


@torch.no_grad()
def test_weights_that_are_too_large_to_copy_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_state, "_MAX_COPIED_BYTES", 60)
    model = torch.nn.Linear(4, 4)
    lens = ortlens.explain(model, calls=1)(torch.rand(2, 4))
    numerics = lens.verify(torch.rand(2, 4))
    row = numerics[numerics.node == "weights"]
    assert list(row.scope) == ["call"]
    assert row.ok.isna().all()
    assert "of weights were not copied" in row.note.iloc[0]
    assert numerics[numerics.node != "weights"].ok.all()


def controlled(x: torch.Tensor) -> tuple[object, ...]:
    branched = torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos(), (x,))
    mapped = control_flow.map(lambda row: row.sin() * 2, x.reshape(2, 2))
    return branched, mapped, *scan(lambda carry, row: (carry + row, carry * row), torch.zeros(()), x)


def checkpointed(x: torch.Tensor) -> object:
    return checkpoint(lambda y: y.sin().exp(), x, use_reentrant=True)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # PyTorch's own, while it compiles the body of `map`
@pytest.mark.parametrize("function", [controlled, checkpointed])
def test_control_flow_is_compared_with_its_gradients(function: Callable[..., object]) -> None:
    """PyTorch compiles the bodies itself when they are called uncompiled, or their gradients raise; a checkpoint may need `backward()`."""
    x = torch.rand(4, requires_grad=True)
    lens = ortlens.explain(function, calls=1)(x)
    runs = lens.runs
    numerics = lens.verify(x)
    assert lens.runs.equals(runs), "the backward that verify ran is no call of the user's"
    assert x.grad is None
    call = numerics[numerics.scope == "call"]
    assert set(call.ok) == {True}
    assert {"result", "gradient of x"} <= {name.partition("[")[0] for name in call.node}
    assert "lens_failed" not in set(lens.findings.rule)


@torch.no_grad()
def test_what_differs_from_itself_has_no_verdict() -> None:
    answers = iter([1.0] * 4 + [2.0])  # in two compiled calls and one of the function itself the same

    @torch.compiler.disable
    def noise() -> torch.Tensor:
        return torch.tensor(next(answers))

    lens = ortlens.explain(lambda x: x.sin() + noise(), calls=1)(torch.rand(3))
    numerics = lens.verify(torch.rand(3))
    result = numerics[numerics.scope == "call"]
    assert pd.isna(result.ok.item())
    assert "differ between two calls" in result.note.item()
    assert "call_differs" not in set(lens.findings.rule)


class Counting(torch.nn.Module):
    """Has a counter, which goes on with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.sin() * self.calls


@torch.no_grad()
def test_what_differs_by_a_counter_has_no_verdict() -> None:
    numerics = ortlens.explain(Counting(), calls=1)(torch.rand(3)).verify(torch.rand(3))
    (result,) = numerics[numerics.scope == "call"].to_dict("records")
    assert pd.isna(result["ok"])
    assert "differ between two calls" in result["note"]


@torch.no_grad()
def test_an_error_that_the_function_itself_raises_too_is_raised() -> None:
    def picked(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return table[index] * 2

    lens = ortlens.explain(picked, calls=1)(torch.rand(4), torch.tensor([1]))
    before = lens.verify(torch.rand(4), torch.tensor([2]))
    with pytest.raises(IndexError):
        lens.verify(torch.rand(4), torch.tensor([9]))
    assert lens.numerics.equals(before)


def cosine(x: Any) -> Any:  # noqa: ANN401 - values of ONNX Script
    return opset18.Cos(x)


@torch.no_grad()
def test_a_difference_from_another_thread_is_not_put_down_to_the_boundary() -> None:
    lens = ortlens.Lens(options={"custom_translation_table": {torch.ops.aten.sin.default: cosine}})
    fast = torch.compile(doubled_sine, backend=lens)

    def elsewhere(x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.no_grad()(fast), x).result()

    x = torch.rand(3)
    fast(x)
    lens._targets.callables[0] = lens._targets.callables[0]._replace(function=doubled_sine, compiled=elsewhere)
    numerics = lens.verify(x)
    assert list(numerics.ok) == [False]
    (finding,) = lens.findings[lens.findings.rule == "call_differs"].to_dict("records")
    assert "Where it comes from is unknown" in finding["evidence"]


@pytest.mark.parametrize("method", ["verify", "profile", "measure"])
def test_a_wrong_shape_is_one_sentence(method: str) -> None:
    lens = ortlens.explain(torch.nn.Sequential(torch.nn.Linear(8, 8)), calls=1)(torch.ones(2, 8))
    said = r"^the model refuses input of shape \[2, 5\]: mat1 and mat2 .*\(2x5 and 8x8\); it was explained with input of shape \[2, 8\]$"
    with pytest.raises(ortlens.UsageError, match=said) as raised:
        getattr(lens, method)(torch.ones(2, 5))
    assert "fake tensor" in str(raised.value.__cause__)
