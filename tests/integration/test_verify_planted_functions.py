"""Wrong ONNX functions, planted family by family: `verify` names each as the cause, with the user's line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
from onnxscript import opset18
from torch.nn import functional

from tests.integration.planting import Planted, check_clean, check_reported, verified, with_wrong_function

if TYPE_CHECKING:
    from collections.abc import Callable

Value: TypeAlias = Any  # of ONNX Script
op: Any = opset18
_aten = torch.ops.aten

# These run in every test run, the others carry the marker `slow`.
ALWAYS = ("activation: NaN dropped", "arithmetic: overflow", "just above rounding")

# ------------------------------------------------------------------------------------------------- activations


def gelu(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x)  # the line


def sigmoid_approximated(x: Value, approximate: str = "none") -> Value:
    del approximate
    return op.Mul(x, op.Sigmoid(op.Mul(x, op.Constant(value_float=1.702))))


def leaky(x: torch.Tensor) -> torch.Tensor:
    return functional.leaky_relu(x, 0.2)  # the line


def leaky_by_default(x: Value, negative_slope: float = 0.01) -> Value:
    del negative_slope
    return op.LeakyRelu(x, alpha=0.01)


def rectified(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 1  # the line


def dropping_nan(x: Value) -> Value:
    return op.Where(op.IsNaN(x), op.CastLike(op.Constant(value_float=0.0), x), op.Relu(x))


# -------------------------------------------------------------------------------------------------- arithmetic


def floored(x: torch.Tensor) -> torch.Tensor:
    return torch.div(x, 3, rounding_mode="floor")  # the line


def truncated(x: Value, y: Value, rounding_mode: str | None = None) -> Value:
    del rounding_mode
    return op.Div(x, op.CastLike(y, x))


def left_over(x: torch.Tensor) -> torch.Tensor:
    return torch.remainder(x, 3)  # the line


def left_over_of_c(x: Value, y: Value) -> Value:
    return op.Mod(x, op.CastLike(y, x), fmod=1)


def distant(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.atan2(y, x)  # the line


def half_plane(y: Value, x: Value) -> Value:
    return op.Atan(op.Div(y, x))


def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(x, y)  # the line


def overflowing_sum(x: Value, y: Value) -> Value:
    return op.Log(op.Add(op.Exp(x), op.Exp(y)))


# ---------------------------------------------------------------------------------------------------- indexing


def chosen(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, rows)  # the line


def one_further(x: Value, dim: int, index: Value) -> Value:
    return op.Gather(x, op.Add(index, op.Constant(value_ints=[1])), axis=dim)


def gathered(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return x.gather(1, places)  # the line


def along_the_other(x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:  # noqa: FBT001, FBT002 - the schema's
    del sparse_grad
    return op.GatherElements(x, index, axis=1 - dim)


def accumulated(x: torch.Tensor, rows: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    return x.index_put((rows,), more, accumulate=True)  # the line


def last_write_wins(x: Value, indices: Any, values: Value, accumulate: bool = False) -> Value:  # noqa: FBT001, FBT002, ANN401 - same
    del accumulate
    return op.ScatterND(x, op.Unsqueeze(indices[0], op.Constant(value_ints=[1])), values)


def looked_up(weight: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return functional.embedding(places, weight)  # the line


def clipped_lookup(weight: Value, indices: Value, *_: object, **__: object) -> Value:
    return op.Gather(weight, op.Min(indices, op.Constant(value_int=2)))


# -------------------------------------------------------------------------------------------------- reductions


def deviation(x: torch.Tensor) -> torch.Tensor:
    return x.var(1)  # the line


def uncorrected(x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Value:  # noqa: ANN401 - same
    del dim, correction, keepdim
    centred = op.Sub(x, op.ReduceMean(x, op.Constant(value_ints=[1])))
    return op.ReduceMean(op.Mul(centred, centred), op.Constant(value_ints=[1]), keepdims=0)


def largest(x: torch.Tensor) -> torch.Tensor:
    return x.amax(1)  # the line


def smallest(x: Value, dim: Any = (), keepdim: bool = False) -> Value:  # noqa: FBT001, FBT002, ANN401 - same
    return op.ReduceMin(x, op.Constant(value_ints=list(dim)), keepdims=int(keepdim))


def first_largest(x: torch.Tensor) -> torch.Tensor:
    return x.argmax(1)  # the line


def last_largest(x: Value, dim: int | None = None, keepdim: bool = False) -> Value:  # noqa: FBT001, FBT002 - same
    return op.ArgMax(x, axis=dim, keepdims=int(keepdim), select_last_index=1)


def running(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(1)  # the line


def running_before(x: Value, dim: int, dtype: int | None = None) -> Value:
    del dtype
    return op.CumSum(x, op.Constant(value_int=dim), exclusive=1)


def any_of(x: torch.Tensor) -> torch.Tensor:
    return (x > 0.5).any(1)  # the line


def all_of(x: Value, dim: int, keepdim: bool = False) -> Value:  # noqa: FBT001, FBT002 - same
    return op.Cast(op.ReduceMin(op.Cast(x, to=6), op.Constant(value_ints=[dim]), keepdims=int(keepdim)), to=9)


# ----------------------------------------------------------------------------------------------- normalisation


def shares(x: torch.Tensor) -> torch.Tensor:
    return functional.softmax(x, 0)  # the line


def shares_of_rows(x: Value, dim: int, half_to_float: bool) -> Value:  # noqa: FBT001 - same
    del dim, half_to_float
    return op.Softmax(x, axis=1)


def layer_normalised(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (8,), eps=0.1)  # the line


def with_the_usual_epsilon(x: Value, shape: Any, weight: Value, bias: Value, eps: float) -> Value:  # noqa: ANN401 - same
    del shape, weight, bias, eps
    ones = op.ConstantOfShape(op.Shape(x, start=-1), value=_tensor(1.0))
    return op.LayerNormalization(x, ones, axis=-1, epsilon=1e-5)


def group_normalised(x: torch.Tensor) -> torch.Tensor:
    return functional.group_norm(x, 2)  # the line


def by_channel(x: Value, weight: Value, bias: Value, *sizes: Any) -> Value:  # noqa: ANN401 - same
    del weight, bias, sizes
    ones = op.Constant(value_floats=[1.0] * 4)
    normalised = op.InstanceNormalization(x, ones, op.Constant(value_floats=[0.0] * 4))
    mean = op.ReduceMean(op.Reshape(x, op.Constant(value_ints=[1, 2, -1])), op.Constant(value_ints=[2]), keepdims=0)
    return normalised, mean, mean


# ----------------------------------------------------------------------------------------- pools, convolutions


def pooled(x: torch.Tensor) -> torch.Tensor:
    return functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False)  # the line


def counting_pads(x: Value, kernel: Any, stride: Any = (), padding: Any = 0, *_: object) -> Value:  # noqa: ANN401 - same
    return op.AveragePool(x, kernel_shape=kernel, strides=stride, pads=[*padding, *padding], count_include_pad=1)


def convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, weight, padding=1)  # the line


def flipped(x: Value, weight: Value, bias: Value, stride: Any, padding: Any, *_: object) -> Value:  # noqa: ANN401 - same
    del bias
    return op.Conv(x, op.Transpose(weight, perm=[0, 1, 3, 2]), strides=stride, pads=[*padding, *padding])


# ------------------------------------------------------------------------------------------- attention, resize


def attending(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, scale=0.5)  # the line


def unscaled(x: Value, y: Value) -> Value:
    return op.Mul(op.MatMul(x, y), op.Constant(value_float=1.5))


def enlarged(x: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(x, size=(5, 7))  # the line


def one_column_left(x: Value, indices: Any) -> Value:  # noqa: ANN401 - same
    rows, columns = (op.Reshape(index, op.Constant(value_ints=[-1])) for index in indices[2:])
    left = op.Max(op.Sub(columns, op.Constant(value_int=1)), op.Constant(value_int=0))
    return op.Gather(op.Gather(x, rows, axis=2), left, axis=3)


# ------------------------------------------------------------------------------------------ ordering, creation


def descending(x: torch.Tensor) -> torch.Tensor:
    return x.sort(1, descending=True).values  # the line


def ascending(x: Value, dim: int = -1, descending: bool = False, **_: object) -> Value:  # noqa: FBT001, FBT002 - same
    del descending
    return op.TopK(x, op.Shape(x, start=dim, end=dim + 1), axis=dim, largest=0)


def best_two(x: torch.Tensor) -> torch.Tensor:
    return x.topk(2, largest=False).values  # the line


def largest_two(x: Value, k: int, dim: int = -1, largest: bool = True, *_: object) -> Value:  # noqa: FBT001, FBT002 - same
    del largest
    return op.TopK(x, op.Constant(value_ints=[k]), axis=dim, largest=1)


def triangle(x: torch.Tensor) -> torch.Tensor:
    return torch.tril(x, -1)  # the line


def main_triangle(x: Value, diagonal: int = 0) -> Value:
    del diagonal
    return op.Trilu(x, upper=0)


def filled(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, 2.5) + x.sin()  # the line


def filled_whole(x: Value, value: float, **_: object) -> Value:
    return op.Expand(op.Constant(value_float=float(math.floor(value))), op.Shape(x))


# ------------------------------------------------------------------------------------------------ dtypes, masks


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int64)  # the line


def nearest(x: Value, **_: object) -> Value:
    return op.Cast(op.Round(x), to=7)


def true(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bool)  # the line


def true_from_one(x: Value, **_: object) -> Value:
    return op.Cast(op.Cast(x, to=7), to=9)


def selected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0.5, x, y)  # the line


def other_way_round(condition: Value, x: Value, y: Value) -> Value:
    return op.Where(condition, y, x)


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(mask, 7.0) * 2  # the line


def unmasked(x: Value, mask: Value, value: float) -> Value:
    return op.Where(mask, x, op.Constant(value_float=value))


def bounded(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(0.2, 0.6)  # the line


def bounded_below(x: Value, low: Any = None, high: Any = None) -> Value:  # noqa: ANN401 - same
    del high
    return op.Max(x, op.Constant(value_float=low))


def decoded(x: torch.Tensor) -> torch.Tensor:
    return torch.sign(x)  # the line


def sign_of_nan(x: Value) -> Value:
    return op.Where(op.IsInf(x), op.CastLike(op.Constant(value_float=0.0), x), op.Sign(x))


# ------------------------------------------------------------------------------------------- one of a million


def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin()  # the line


def off_in_one(x: Value) -> Value:
    place = op.Constant(value_ints=[777_777])
    return op.ScatterElements(op.Sin(x), place, op.Constant(value_floats=[0.8421]), axis=0)


def off_by_three_millionths(x: Value) -> Value:
    return op.Mul(op.Sin(x), op.Constant(value_float=1.00003))


def off_by_a_rounding(x: Value) -> Value:
    return op.Mul(op.Sin(x), op.Constant(value_float=1.0000002))


def _tensor(value: float) -> Any:  # noqa: ANN401 - a protocol buffer
    from onnx import TensorProto, helper

    return helper.make_tensor("value", TensorProto.FLOAT, [1], [value])


# ---------------------------------------------------------------------------------------------------- the table


def plain(*shape: int) -> Callable[[], tuple[torch.Tensor]]:
    return lambda: (torch.randn(*shape),)


def twice(*shape: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randn(*shape), torch.randn(*shape))


def whole_numbers(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def with_special(value: float) -> Callable[[], tuple[torch.Tensor]]:
    return lambda: (torch.tensor([0.5, -1.0, value, 2.0]),)


TABLE: dict[str, tuple[Callable[..., Any], object, Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "activation: approximated": (gelu, _aten.gelu.default, sigmoid_approximated, plain(3, 4)),
    "activation: slope ignored": (leaky, _aten.leaky_relu.default, leaky_by_default, plain(3, 4)),
    "activation: NaN dropped": (rectified, _aten.relu.default, dropping_nan, with_special(math.nan)),
    "arithmetic: truncated": (floored, _aten.div.Tensor_mode, truncated, lambda: (whole_numbers(-4, -3, 1, 5),)),
    "arithmetic: sign of a remainder": (left_over, _aten.remainder.Scalar, left_over_of_c, lambda: (whole_numbers(-4, -3, 1, 5),)),
    "arithmetic: half plane": (distant, _aten.atan2.default, half_plane, twice(8)),
    "arithmetic: overflow": (joined, _aten.logaddexp.default, overflowing_sum, lambda: (torch.full((3,), 100.0), torch.ones(3))),
    "indexing: off by one": (chosen, _aten.index_select.default, one_further, lambda: (torch.rand(4, 2), whole_numbers(2, 0))),
    "indexing: other dimension": (
        gathered,
        _aten.gather.default,
        along_the_other,
        lambda: (torch.rand(3, 3), whole_numbers(2, 0, 1).expand(3, 3)),
    ),
    "indexing: not accumulated": (
        accumulated,
        _aten.index_put.default,
        last_write_wins,
        lambda: (torch.rand(3, 2), whole_numbers(1, 1), torch.rand(2, 2)),
    ),
    "indexing: clipped": (looked_up, _aten.embedding.default, clipped_lookup, lambda: (torch.rand(5, 2), whole_numbers(0, 4))),
    "reduction: uncorrected": (deviation, _aten.var.correction, uncorrected, plain(3, 5)),
    "reduction: least for most": (largest, _aten.amax.default, smallest, plain(3, 5)),
    "reduction: last of equals": (first_largest, _aten.argmax.default, last_largest, lambda: (torch.ones(2, 3),)),
    "reduction: exclusive": (running, _aten.cumsum.default, running_before, plain(3, 5)),
    "reduction: all for any": (any_of, _aten.any.dim, all_of, plain(3, 5)),
    "normalisation: other dimension": (shares, _aten._softmax.default, shares_of_rows, plain(3, 5)),
    "normalisation: epsilon ignored": (layer_normalised, _aten.native_layer_norm.default, with_the_usual_epsilon, plain(3, 8)),
    "normalisation: groups ignored": (group_normalised, _aten.native_group_norm.default, by_channel, plain(1, 4, 3, 3)),
    "pooling: pads counted": (pooled, _aten.avg_pool2d.default, counting_pads, plain(1, 2, 6, 6)),
    "convolution: transposed window": (
        convolved,
        _aten.convolution.default,
        flipped,
        lambda: (torch.rand(1, 2, 5, 5), torch.rand(3, 2, 3, 3)),
    ),
    "attention: product": (attending, _aten.bmm.default, unscaled, lambda: tuple(torch.rand(1, 2, 4, 8) for _ in range(3))),
    "resize: one column off": (enlarged, _aten._unsafe_index.Tensor, one_column_left, plain(1, 2, 3, 4)),
    "ordering: ascending": (descending, _aten.sort.default, ascending, plain(3, 5)),
    "ordering: largest": (best_two, _aten.topk.default, largest_two, plain(3, 5)),
    "creation: diagonal ignored": (triangle, _aten.tril.default, main_triangle, plain(3, 3)),
    "creation: number cut": (filled, _aten.full_like.default, filled_whole, plain(3)),
    "dtype: rounded": (whole, _aten._to_copy.default, nearest, lambda: (torch.tensor([0.7, 1.2, -1.6]),)),
    "dtype: fractions are false": (true, _aten._to_copy.default, true_from_one, lambda: (torch.tensor([0.7, 1.2, 0.0]),)),
    "mask: exchanged": (selected, _aten.where.self, other_way_round, twice(3, 4)),
    "mask: inverted": (masked, _aten.masked_fill.Scalar, unmasked, lambda: (torch.rand(4), torch.tensor([True, False, True, True]))),
    "mask: one bound": (bounded, _aten.clamp.default, bounded_below, plain(3, 4)),
    "infinity: sign lost": (decoded, _aten.sign.default, sign_of_nan, with_special(math.inf)),
    "one element of a million": (wave, _aten.sin.default, off_in_one, lambda: (torch.rand(1_000_000),)),
    "just above rounding": (wave, _aten.sin.default, off_by_three_millionths, plain(64)),
}

FUNCTIONS: dict[str, Planted] = {name: with_wrong_function(*planted) for name, planted in TABLE.items()}


@pytest.mark.parametrize("name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in FUNCTIONS])
def test_a_wrong_onnx_function_is_reported_with_its_scope_and_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_reported(FUNCTIONS[name], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_the_fault_nothing_differs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_clean(FUNCTIONS[name], monkeypatch)


def test_a_fault_below_rounding_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = with_wrong_function(wave, _aten.sin.default, off_by_a_rounding, plain(64))
    lens, numerics = verified(planted, monkeypatch)
    assert numerics.ok.all()
    assert lens.findings[lens.findings.severity == "error"].empty
