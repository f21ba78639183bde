"""Kernels that lose digits, or divide by the wrong number."""

from __future__ import annotations

import numpy as np

from ortlens.backend.faults.fault import Fault

_LONG = 1 << 20
_TENTHS = np.full((_LONG, 2), 0.1, np.float32)
_LOW = np.array([-17, -20, -30, -80], np.float32)
_SMALL = np.array([-1e-4, -1e-6, -1e-8], np.float32)
_STAGED, _ACTIVATIONS = "lowering/long_reductions.py", "conversion/functions/activations.py"
_IN_STAGES = "long sums are taken in stages, partly in float64"


def _sigmoid(x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return 1 / (1 + np.exp(-x))


FAULTS = (
    Fault(
        name="long_sum",
        culprit="ReduceSum",
        kind="kernel",
        form="adds float32 numbers one after the other: the error grows with their number",
        first="1.23.0",
        last=None,
        room=_STAGED,
        avoided=_IN_STAGES,
        graph=f"g (float[{_LONG},2] x) => (float[1,2] y) <int64[1] rows = {{0}}> {{ y = ReduceSum(x, rows) }}",
        inputs={"x": _TENTHS},
        expected=lambda: (_TENTHS.sum(0, dtype=np.float64, keepdims=True).astype(np.float32),),
        rtol=1e-4,
    ),
    Fault(
        name="long_mean",
        culprit="ReduceMean",
        kind="kernel",
        form="adds float32 numbers one after the other: the error grows with their number",
        first="1.23.0",
        last=None,
        room=_STAGED,
        avoided=_IN_STAGES,
        graph=f"g (float[{_LONG},2] x) => (float[1,2] y) <int64[1] rows = {{0}}> {{ y = ReduceMean(x, rows) }}",
        inputs={"x": _TENTHS},
        expected=lambda: (np.full((1, 2), 0.1, np.float32),),
        rtol=1e-4,
    ),
    Fault(
        name="long_running_sum",
        culprit="CumSum",
        kind="kernel",
        form="adds float32 numbers one after the other: the error grows with their number",
        first="1.23.0",
        last=None,
        room=_STAGED,
        avoided="long running sums are taken in float64",
        graph=f"g (float[{_LONG},2] x) => (float[{_LONG},2] y) <int64 rows = {{0}}> {{ y = CumSum(x, rows) }}",
        inputs={"x": _TENTHS},
        expected=lambda: (_TENTHS.cumsum(0, dtype=np.float64).astype(np.float32),),
        rtol=1e-4,
    ),
    Fault(
        name="sigmoid_below_minus_17",
        culprit="Sigmoid",
        kind="kernel",
        form="of float32, is twice as large as it should be at -17, and 0 from -18 down",
        first="1.23.0",
        last=None,
        room=_ACTIVATIONS,
        avoided="1 / (1 + exp(-x))",
        graph="g (float[4] x) => (float[4] y) { y = Sigmoid(x) }",
        inputs={"x": _LOW},
        expected=lambda: (_sigmoid(_LOW.astype(np.float64)).astype(np.float32),),
        rtol=1e-4,
    ),
    Fault(
        name="sigmoid_of_float64",
        culprit="Sigmoid",
        kind="kernel",
        form="of float64, loses digits below -15 and is 0 below -37",
        first="1.23.0",
        last=None,
        room=_ACTIVATIONS,
        avoided="1 / (1 + exp(-x))",
        graph="g (double[4] x) => (double[4] y) { y = Sigmoid(x) }",
        inputs={"x": _LOW.astype(np.float64)},
        expected=lambda: (_sigmoid(_LOW.astype(np.float64)),),
        rtol=1e-10,
    ),
    Fault(
        name="elu_of_small_numbers",
        culprit="Elu",
        kind="kernel",
        form="subtracts 1 from exp(x), and so loses the digits of small negative x",
        first="1.23.0",
        last=None,
        room=_ACTIVATIONS,
        avoided="tanh(x / 2) * (exp(x) + 1)",
        graph="g (float[3] x) => (float[3] y) { y = Elu(x) }",
        inputs={"x": _SMALL},
        expected=lambda: (np.expm1(_SMALL),),
        rtol=1e-4,
    ),
    Fault(
        name="selu_of_small_numbers",
        culprit="Selu",
        kind="kernel",
        form="subtracts 1 from exp(x), and so loses the digits of small negative x",
        first="1.23.0",
        last=None,
        room=_ACTIVATIONS,
        avoided="tanh(x / 2) * (exp(x) + 1)",
        graph="g (float[3] x) => (float[3] y) { y = Selu(x) }",
        inputs={"x": _SMALL},
        expected=lambda: (np.expm1(_SMALL) * np.float32(1.0507009873554805 * 1.6732632423543772),),
        rtol=1e-4,
    ),
    Fault(
        name="long_range",
        culprit="Range",
        kind="kernel",
        form="of floats, adds the step again and again: the error grows with the number of steps",
        first="1.23.0",
        last=None,
        room="conversion/functions/creation.py",
        avoided="start + i * step in float64",
        graph="g (float start, float end, float step) => (float[n] y) { y = Range(start, end, step) }",
        inputs={"start": np.array(0, np.float32), "end": np.array(4096, np.float32), "step": np.array(0.1, np.float32)},
        expected=lambda: ((np.arange(40960) * np.float64(np.float32(0.1))).astype(np.float32),),
        rtol=1e-5,
    ),
    Fault(
        name="average_pool_past_the_end",
        culprit="AveragePool",
        kind="kernel",
        form="with ceil_mode and count_include_pad, divides by the whole window where it reaches past the padding (opset 18 and older)",
        first="1.23.0",
        last="1.28.0",
        room="conversion/functions/pooling.py",
        avoided="the padding is written out, and no more is counted",
        graph="""g (float[1,1,4] x) => (float[1,1,2] y) {
  y = AveragePool<kernel_shape = [3], strides = [2], ceil_mode = 1, count_include_pad = 1>(x)
}""",
        inputs={"x": np.array([[[1, 2, 3, 4]]], np.float32)},
        expected=lambda: (np.array([[[2, 3.5]]], np.float32),),
        rtol=1e-6,
    ),
    Fault(
        name="erf_of_nan",
        culprit="Erf",
        kind="kernel",
        form="of NaN, is 1",
        first="1.23.0",
        last="1.26.0",
        room="conversion/functions/arithmetic.py",
        avoided="NaN is put into the result",
        graph="g (float[2] x) => (float[2] y) { y = Erf(x) }",
        inputs={"x": np.array([np.nan, 0], np.float32)},
        expected=lambda: (np.array([np.nan, 0], np.float32),),
    ),
    Fault(
        name="nearest_at_whole_places",
        culprit="Resize",
        kind="kernel",
        form="to the nearest element below: divides by the rounded quotient of the sizes, so that place 60 becomes 59",
        first="1.23.0",
        last=None,
        room="lowering/decompositions.py",
        avoided="a gather, unless every element is repeated",
        graph="""g (float[300] x) => (float[5] y) <int64[1] five = {5}> {
  y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , , five)
}""",
        inputs={"x": np.arange(300, dtype=np.float32)},
        expected=lambda: (np.arange(0, 300, 60, dtype=np.float32),),
    ),
    Fault(
        name="float16_unrounded",
        culprit="Equal",
        kind="kernel",
        form="float16 is computed in float32 and not rounded in between: 2048 + 1, which is 2048 in float16, is compared as 2049",
        first="1.23.0",
        last=None,
        room="conversion/half_rounding.py",
        avoided="two operators that have kernels for float16 keep the rounding",
        graph="""g (float16[2] x, float16[2] z) => (bool[2] y) {
  sums = Add(x, z)
  y = Equal(sums, x)
}""",
        inputs={"x": np.array([2048, 1], np.float16), "z": np.array([1, 0], np.float16)},
        expected=lambda: (np.array([True, True]),),
    ),
)
