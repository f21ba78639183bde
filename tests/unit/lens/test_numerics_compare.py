"""How two values are compared: tolerances, the arbiter, what is not finite, and what PyTorch leaves open."""

import pytest
import torch
import torch.fx

from ortlens.errors import UsageError
from ortlens.lens.verify import compare_values
from ortlens.lens.verify.compare_values import Tolerance, Tolerances, ValueVerdict, compare, judge
from ortlens.lens.verify.excuses import differ_by_ties
from ortlens.lens.verify.float64 import Missing, call_in_double
from ortlens.lens.verify.lockstep import steps

NODE = torch.fx.Graph().placeholder("x")
TOLERANCE = Tolerance(atol=1e-6, rtol=1e-4)


def verdict_on(ort: object, eager: object, double: object = Missing("none"), tolerances: Tolerances | None = None) -> ValueVerdict:
    verdict = ValueVerdict(node="x", scope="value", place=0, line_of=NODE)
    judge(verdict, ort, eager, double, tolerances or Tolerances())
    return verdict


def test_a_small_element_beside_large_ones_is_judged_by_them() -> None:
    eager = torch.tensor([1.0, 1e-6])
    found = compare(torch.tensor([1.0, 2e-6]), eager, None, TOLERANCE)
    assert found.within
    assert found.max_abs == pytest.approx(1e-6, rel=1e-3)
    assert found.max_rel == pytest.approx(1e-6 / 0.7071, rel=1e-3)
    assert not compare(torch.tensor([1.0, 2e-3]), eager, None, TOLERANCE).within


@pytest.mark.parametrize("chunk", [1, 3])
def test_the_size_of_the_pieces_changes_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    eager = torch.randn(5, 7)
    ort, double = eager + torch.randn(5, 7) * 1e-3, eager.double() + torch.randn(5, 7) * 1e-4
    whole = compare(ort, eager, double, TOLERANCE)
    monkeypatch.setattr(compare_values, "_CHUNK", chunk)
    assert compare(ort, eager, double, TOLERANCE).max_abs == whole.max_abs
    assert compare(ort, eager, double, TOLERANCE).ort_error == pytest.approx(whole.ort_error)
    assert whole.closer() == "eager"


def test_the_arbiter_tells_rounding_from_wrong() -> None:
    truth = torch.ones(1000, dtype=torch.float64)
    eager = (truth + torch.randn(1000) * 1e-3).float()
    rounded = (truth + torch.randn(1000) * 2e-3).float()
    excused = verdict_on(rounded, eager, truth)
    assert excused.ok is True
    assert "about as close to the float64 run as PyTorch" in excused.note
    assert verdict_on(rounded * 1.1, eager, truth).ok is False
    assert verdict_on(rounded, eager).ok is False, "without an arbiter there is no excuse"
    assert verdict_on(rounded, eager, truth, Tolerances(rtol=1e-6)).ok is False, "the user's word goes"


def test_the_small_errors_of_a_few_numbers_may_differ_by_chance() -> None:
    """Seen in a dot product of ten million numbers: off by 55 in ONNX Runtime, by 11 in PyTorch, which is off by 190 on another machine."""
    truth = torch.tensor([2_500_000.0], dtype=torch.float64)
    by_chance = verdict_on((truth + 55).float(), (truth - 11).float(), truth)
    assert by_chance.ok is True
    assert "errors of so few numbers differ by chance (55 and 11)" in by_chance.note
    assert verdict_on((truth + 55).float(), (truth - 0.5).float(), truth).ok is False, "100 times PyTorch's error is no chance"
    assert verdict_on((truth + 150).float(), (truth - 11).float(), truth).ok is False, "that far beyond the tolerance, it is looked into"
    several = truth.expand(4)
    assert verdict_on((several + 55).float(), (several - 11).float(), several).ok is False, "four numbers do not differ so by chance"
    assert verdict_on((truth + 55).float(), (truth - 11).float(), truth, Tolerances(rtol=1e-5)).ok is False, "the user's word goes"


T, NONE, ONES = torch.tensor, Missing("none"), torch.ones(100_000, dtype=torch.float64)
NEAR = (ONES + torch.randn(100_000, generator=torch.Generator().manual_seed(0)) * 1e-4).float()
VERDICTS: dict[str, tuple[object, object, object, bool | None]] = {
    "whole numbers beyond doubles": (T([2**53 + 1]), T([2**53]), NONE, False),
    "the same": (T([2**53]), T([2**53]), NONE, True),
    "unsigned": (T([2**64 - 1], dtype=torch.uint64), T([2**64 - 2], dtype=torch.uint64), NONE, False),
    "booleans": (T([True, False]), T([True, True]), NONE, False),
    "doubles that cannot tell large integers apart": (T([2**60 + 1, 7]), T([2**60, 7]), T([2**60, 7]), False),
    "a float64 run that decides as ONNX Runtime did": (T([4]), T([3]), T([4]), True),
    "equal numbers": (3, 3, NONE, True),
    "other numbers": (3, 4, NONE, False),
    "nothing": (torch.empty(0, 3), torch.empty(0, 3), NONE, True),
    "a text": ("a", torch.ones(1), NONE, None),
    "one element that is far off among many": (NEAR + (torch.arange(100_000) == 7) * 0.05, NEAR, ONES, False),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_values_of_every_kind(name: str) -> None:
    ort, eager, double, ok = VERDICTS[name]
    assert verdict_on(ort, eager, double).ok is ok


def test_other_shapes_are_wrong_and_other_dtypes_not_comparable() -> None:
    shapes = verdict_on(torch.ones(2), torch.ones(3))
    assert (shapes.ok, shapes.note) == (False, "shape [2] in ONNX Runtime, [3] in PyTorch")
    dtypes = verdict_on(torch.ones(2).half(), torch.ones(2))
    assert (dtypes.ok, dtypes.note) == (None, "not comparable: float16 in ONNX Runtime, float32 in PyTorch")


def test_nan_and_infinities() -> None:
    inf, nan = torch.inf, torch.nan
    same = verdict_on(torch.tensor([1.0, inf, -inf]), torch.tensor([1.0, inf, -inf]))
    assert (same.ok, same.nonfinite) == (True, "both")
    assert verdict_on(torch.tensor([inf]), torch.tensor([-inf])).ok is False
    one = verdict_on(torch.tensor([1.0, nan]), torch.tensor([1.0, 2.0]))
    assert (one.ok, one.nonfinite) == (False, "ort")
    assert verdict_on(torch.tensor([1.0, 2.0]), torch.tensor([1.0, inf])).nonfinite == "eager"
    throughout = verdict_on(torch.tensor([nan]), torch.tensor([nan]))
    assert (throughout.ok, throughout.nonfinite) == (None, "both")
    partly = verdict_on(torch.tensor([nan, 1.0]), torch.tensor([nan, 1.0]))
    assert (partly.ok, partly.text) == (True, "no float64 run: none; 1 of 2 elements are NaN on both sides and were not compared")
    assert partly.row("p0").max_abs == 0.0


def test_tolerances_by_dtype() -> None:
    given = Tolerances(rtol={torch.float16: 0.5})
    assert given.of(torch.float16) == Tolerance(atol=1e-4, rtol=0.5, given=True)
    assert given.of(torch.float32) == Tolerances().of(torch.float32)
    assert Tolerances().of(torch.int64) == Tolerance(atol=0.0, rtol=0.0)
    for wrong in (-1, float("nan"), True, "1e-3"):
        with pytest.raises(UsageError, match="atol must be a number from 0"):
            Tolerances(atol=wrong)
    with pytest.raises(UsageError, match="is not a dtype"):
        Tolerances(rtol={"float16": 1})


def sorted_places(function: object, *args: object, **kwargs: object) -> torch.fx.Node:
    graph = torch.fx.Graph()
    return graph.call_function(function, (graph.placeholder("x"), *args), kwargs)  # type: ignore[arg-type]  # an overload


def test_ties_are_open_where_no_order_is_promised() -> None:
    aten = torch.ops.aten

    def source(_node: torch.fx.Node) -> torch.Tensor:
        return torch.tensor([1.0, 1.0, 2.0])

    first, second, twice = torch.tensor([0, 1, 2]), torch.tensor([1, 0, 2]), torch.tensor([0, 0, 2])
    plain = sorted_places(aten.sort.default)
    assert differ_by_ties(plain, 1, first, second, source)
    assert not differ_by_ties(plain, 1, first, torch.tensor([0, 2, 1]), source)
    assert not differ_by_ties(plain, 1, first, twice, source)
    assert not differ_by_ties(plain, 1, first, torch.tensor([0, 1, 3]), source)
    assert not differ_by_ties(plain, 0, first, second, source)
    assert not differ_by_ties(sorted_places(aten.sort.stable, stable=True), 1, first, second, source)
    assert differ_by_ties(sorted_places(aten.sort.stable, stable=False), 1, first, second, source)
    assert not differ_by_ties(sorted_places(aten.argmax.default), None, first, second, source)
    in_any_order = sorted_places(aten.topk.default, 2, -1, True, False)  # noqa: FBT003 - as FX holds them
    assert differ_by_ties(in_any_order, 1, torch.tensor([2, 0]), torch.tensor([0, 2]), source)
    assert differ_by_ties(in_any_order, 0, torch.tensor([2.0, 1.0]), torch.tensor([1.0, 2.0]), source)
    assert not differ_by_ties(sorted_places(aten.topk.default, 2), 1, torch.tensor([2, 0]), torch.tensor([0, 2]), source)


def test_steps_run_in_double_precision_and_hold_nothing_longer_than_needed() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.aten._softmax.default(torch.ops.aten.mul.Tensor(x, 2).to(torch.float32), -1, False)  # noqa: FBT003 - its schema
        return made

    module = torch.fx.symbolic_trace(function)
    for node in module.graph.find_nodes(op="call_method"):
        node.op, node.target, node.args = "call_function", torch.ops.aten._to_copy.default, node.args[:1]
        node.kwargs = {"dtype": torch.float32}
    x = torch.rand(2, 3).half()
    made = list(steps(module, [x]))
    assert [step.double.dtype for step in made] == [torch.float64] * 3
    assert made[-1].eager.dtype is torch.float32
    assert all(isinstance(step.ort, Missing) for step in made)
    with pytest.raises(KeyError):
        made[0].read(module.graph.find_nodes(op="placeholder")[0])  # long let go of


def test_what_has_no_run_in_double_precision_says_so() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    bits = graph.call_function(torch.ops.aten.view.dtype, (x, torch.int32))
    assert "bits" in call_in_double(bits, lambda _: torch.ones(2)).reason
    wrong = graph.call_function(torch.ops.aten.index_select.default, (x, 0, x))
    assert "does not run in double precision" in call_in_double(wrong, lambda _: torch.ones(2, dtype=torch.float64)).reason


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_both_parts_of_complex_numbers_are_compared(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    eager = torch.randn(50, dtype=dtype)
    double = eager.to(torch.complex128)
    assert verdict_on(eager * (1 + torch.finfo(dtype).eps), eager, double).ok is True
    assert verdict_on(eager + 0.1j, eager, double).ok is False
    assert verdict_on(eager.conj(), eager, double).ok is False
    assert verdict_on(eager.conj().clone().conj(), eager, double).ok is True
