"""Kernels that compute on 64-bit integers with a part of their bits, or through floats."""

from __future__ import annotations

import numpy as np

from ortlens.backend.faults.fault import Fault

_LARGE = np.array([2**31 + 1, -(2**31 + 1), 2**53 + 1, 5], np.int64)
_PART = "compares a part of the bits of 64-bit integers: the larger of 0 and 2^31 + 1 is 0"
_BOUNDS = "conversion/functions/bounds.py"
_REDUCTIONS = "conversion/functions/reductions.py"
_CUBE = np.ones((2, 3, 2), np.int64)
_CUBE[0, 0, 0] = 2**53
_PEAK = np.zeros((2, 3, 2), np.int64)
_PEAK[0, 0, 0] = 2**31 + 1
_MIDDLE = "g (int64[2,3,2] x) => (int64[2,2] y) <int64[1] middle = {{1}}> {{ y = {}<keepdims = 0>(x, middle) }}"


def _unary(name: str, operator: str, avoided: str, right: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Fault:
    return Fault(
        name=name,
        culprit=operator.split("(", maxsplit=1)[0],
        kind="kernel",
        form=_PART,
        first="1.23.0",
        last="1.31.1",
        room=_BOUNDS,
        avoided=avoided,
        graph=f"g (int64[4] x) => (int64[4] y) <int64 zero = {{0}}> {{ y = {operator} }}",
        inputs={"x": _LARGE},
        expected=lambda: (right,),
    )


def _reduction(name: str, operator: str, avoided: str, right: list[list[int]]) -> Fault:
    return Fault(
        name=name,
        culprit=operator,
        kind="kernel",
        form=_PART,
        first="1.23.0",
        last="1.31.1",
        room=_REDUCTIONS,
        avoided=avoided,
        graph=_MIDDLE.format(operator),
        inputs={"x": _PEAK},
        expected=lambda: (np.array(right, np.int64),),
    )


FAULTS = (
    _unary("max_of_int64", "Max(x, zero)", "Greater and Where", np.maximum(_LARGE, 0)),
    _unary("min_of_int64", "Min(x, zero)", "Less and Where", np.minimum(_LARGE, 0)),
    _unary("relu_of_int64", "Relu(x)", "Greater and Where", np.maximum(_LARGE, 0)),
    _unary("clip_of_int64", "Clip(x, zero)", "Greater and Where", np.maximum(_LARGE, 0)),
    _unary("sign_of_int64", "Sign(x)", "two comparisons", np.sign(_LARGE)),
    _reduction("largest_of_int64", "ReduceMax", "TopK", [[2**31 + 1, 0], [0, 0]]),
    _reduction("smallest_of_int64", "ReduceMin", "TopK", [[0, 0], [0, 0]]),
    Fault(
        name="sum_of_int64",
        culprit="ReduceSum",
        kind="kernel",
        form="adds 64-bit integers as floats, which is exact up to 2^53",
        first="1.27.0",
        last=None,
        room=_REDUCTIONS,
        avoided="sums of parts",
        graph=_MIDDLE.format("ReduceSum"),
        inputs={"x": _CUBE},
        expected=lambda: (np.array([[2**53 + 2, 3], [3, 3]], np.int64),),
    ),
    Fault(
        name="product_of_int64",
        culprit="ReduceProd",
        kind="kernel",
        form="multiplies 64-bit integers as floats",
        first="1.27.0",
        last=None,
        room="partitioning/wrong_values.py",
        avoided="stays in PyTorch",
        graph="g (int64[2] x) => (int64[1] y) { y = ReduceProd(x) }",
        inputs={"x": np.array([94906267, 94906269], np.int64)},
        expected=lambda: (np.array([94906267 * 94906269], np.int64),),
    ),
    Fault(
        name="power_of_int64",
        culprit="Pow",
        kind="kernel",
        form="computes powers of integers as floats",
        first="1.23.0",
        last=None,
        room="partitioning/wrong_values.py",
        avoided="small constant exponents become products, others stay in PyTorch",
        graph="g (int64[2] x, int64[2] e) => (int64[2] y) { y = Pow(x, e) }",
        inputs={"x": np.array([3, -3], np.int64), "e": np.array([39, 39], np.int64)},
        expected=lambda: (np.array([3**39, -(3**39)], np.int64),),
    ),
    Fault(
        name="fmod_of_int64",
        culprit="Mod",
        kind="kernel",
        form="with fmod=1, computes the remainder of integers as floats",
        first="1.23.0",
        last="1.31.1",
        room="conversion/functions/quotients.py",
        avoided="x - x / y * y",
        graph="g (int64[2] x, int64[2] e) => (int64[2] y) { y = Mod<fmod = 1>(x, e) }",
        inputs={"x": np.array([2**53 + 1, -(2**53) - 1], np.int64), "e": np.array([2, 2], np.int64)},
        expected=lambda: (np.array([1, -1], np.int64),),
    ),
)
