"""Rewrites of graphs that change results."""

from __future__ import annotations

import numpy as np

from ortlens.backend.faults.fault import Fault

_DISABLED = "runtime/rewrites.py"
_MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
_ROWS = np.array([[0.5, -1.0, 2.0, 0.25], [1.5, 3.0, -0.5, 1.0]], np.float32)
_WEIGHT = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
_NORMS = ("LayerNormFusion", "LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion")
_NORMALISE = """<
  float[4,2] w = {1,2,3,4,5,6,7,8}, float[2] scale = {2,3}, float[2] one = {1,1}, float[2] zero = {0,0}, int64[3] folded = {1,2,2}
> {
  product = MatMul(x, w)
  moved = %s
  y = BatchNormalization<epsilon = 0.0>(moved, scale, one, zero, one)
}"""


def _normalised(moved: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    scale = np.array([2, 3], np.float32).reshape(1, 2, *(1,) * (moved.ndim - 2))
    right: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = moved * scale + np.float32(1)
    return right


FAULTS = (
    Fault(
        name="matrix_transposed_times_vector",
        culprit="MatmulTransposeFusion",
        kind="rewrite",
        form="a Transpose feeds a MatMul whose other operand has one dimension",
        room="conversion/functions/products.py",
        avoided="products with a vector become products of two matrices",
        graph="""g (float[3,4] w, float[3] v) => (float[4] y) {
  turned = Transpose(w)
  y = MatMul(turned, v)
}""",
        inputs={"w": _MATRIX, "v": np.array([1, 2, 3], np.float32)},
        expected=lambda: (_MATRIX.T @ np.array([1, 2, 3], np.float32),),
    ),
    Fault(
        name="transposed_product_of_nothing",
        culprit="MatmulTransposeFusion",
        kind="rewrite",
        form="a Transpose feeds a MatMul over nothing, whose result is then not written, or of a batch of no matrices with a matrix",
        last="1.31.1",
        room="partitioning/wrong_functions.py",
        avoided="products with nothing to sum over and batches of none stay in PyTorch",
        graph="""g (float[0,2,3] a, float[2,1] b) => (float[0,3,1] y) {
  turned = Transpose<perm = [0, 2, 1]>(a)
  y = MatMul(turned, b)
}""",
        inputs={"a": np.zeros((0, 2, 3), np.float32), "b": np.zeros((2, 1), np.float32)},
        expected=lambda: (np.zeros((0, 3, 1), np.float32),),
        raises=True,
    ),
    Fault(
        name="float64_product_scaled",
        culprit="MatMulScaleFusion",
        kind="rewrite",
        form="a product of float64 is multiplied or divided by a constant, which the rewrite keeps as a float32",
        first="1.26.0",
        last="1.31.1",
        room=_DISABLED,
        avoided="disabled for models with float64",
        graph="""g (double[2,2] a, double[2,2] b) => (double[2,2] y) <double tenth = {0.1}> {
  product = MatMul(a, b)
  y = Mul(product, tenth)
}""",
        inputs={"a": np.eye(2), "b": np.eye(2)},
        expected=lambda: (np.eye(2) * 0.1,),
        rtol=1e-12,
    ),
    Fault(
        name="padded_before_max_pool",
        culprit="Pad_Fusion",
        kind="rewrite",
        form="a Pad with zeros feeds a MaxPool, which pads with minus infinity",
        last="1.31.1",
        room=_DISABLED,
        avoided="always disabled",
        graph="""g (float[1,1,2,2] x) => (float[1,1,3,3] y) <int64[8] pads = {0,0,1,1,0,0,1,1}> {
  padded = Pad(x, pads)
  y = MaxPool<kernel_shape = [2,2]>(padded)
}""",
        inputs={"x": np.full((1, 1, 2, 2), -1, np.float32)},
        expected=lambda: (np.array([[[[0, 0, 0], [0, -1, 0], [0, 0, 0]]]], np.float32),),
    ),
    Fault(
        name="integer_quotient_times",
        culprit="DivMulFusion",
        kind="rewrite",
        form="of integers, the constant 1 is divided by x, and y multiplied by the quotient; the rewrite divides y by x",
        room=_DISABLED,
        avoided="always disabled",
        graph="""g (int64[3] x, int64[3] z) => (int64[3] y) <int64 one = {1}> {
  quotient = Div(one, x)
  y = Mul(quotient, z)
}""",
        inputs={"x": np.array([1, 2, 3], np.int64), "z": np.array([5, 6, 7], np.int64)},
        expected=lambda: (np.array([5, 0, 0], np.int64),),
    ),
    Fault(
        name="expanded_to_nothing",
        culprit="ExpandElimination",
        kind="rewrite",
        form="a dimension of size 1 is expanded to size 0; the rewrite drops the Expand",
        room=_DISABLED,
        avoided="disabled where an Expand may make a size 0",
        graph="""g (float[1,3] x) => (float[n,3] y) <int64[2] sizes = {0,3}> {
  negative = Neg(x)
  nothing = Expand(negative, sizes)
  y = Neg(nothing)
}""",
        inputs={"x": np.ones((1, 3), np.float32)},
        expected=lambda: (np.ones((0, 3), np.float32),),
    ),
    Fault(
        name="layer_norm_epsilon",
        culprit="LayerNormFusion",
        kind="rewrite",
        form="the epsilon of a layer normalisation is an input of the model; the rewrite takes 1e-5 for it",
        last="1.31.1",
        room=_DISABLED,
        avoided="disabled where an epsilon is not a constant",
        relatives=_NORMS[1:],
        graph="""g (float[2,4] x, float eps) => (float[2,4] y) <
  float[4] w = {1,1,1,1}, float[4] b = {0,0,0,0}, float two = {2}, int64[1] last = {-1}
> {
  mean = ReduceMean(x, last)
  away = Sub(x, mean)
  square = Pow(away, two)
  spread = ReduceMean(square, last)
  above = Add(spread, eps)
  root = Sqrt(above)
  scaled = Div(away, root)
  weighted = Mul(scaled, w)
  y = Add(weighted, b)
}""",
        inputs={"x": _ROWS, "eps": np.array(1, np.float32)},
        expected=lambda: ((_ROWS - _ROWS.mean(-1, keepdims=True)) / np.sqrt(_ROWS.var(-1, keepdims=True) + np.float32(1)),),
        rtol=1e-4,
    ),
    Fault(
        name="rms_norm_epsilon",
        culprit="SimplifiedLayerNormFusion",
        kind="rewrite",
        form="the epsilon of a root mean square normalisation is an input of the model; the rewrite takes 1e-5 for it",
        last="1.31.1",
        room=_DISABLED,
        avoided="disabled where an epsilon is not a constant",
        graph="""g (float[2,4] x, float eps) => (float[2,4] y) <float[4] w = {1,1,1,1}, float two = {2}, int64[1] last = {-1}> {
  square = Pow(x, two)
  mean = ReduceMean(square, last)
  above = Add(mean, eps)
  root = Sqrt(above)
  scaled = Div(x, root)
  y = Mul(scaled, w)
}""",
        inputs={"x": _ROWS, "eps": np.array(1, np.float32)},
        expected=lambda: (_ROWS / np.sqrt((_ROWS * _ROWS).mean(-1, keepdims=True) + np.float32(1)),),
        rtol=1e-4,
    ),
    Fault(
        name="rms_norm_scale_larger",
        culprit="SimplifiedLayerNormFusion",
        kind="rewrite",
        form="a root mean square normalisation over one element has a scale of several; the run of the fused operator fails",
        room=_DISABLED,
        avoided="disabled where a scale or a bias is larger than what is normalised",
        issue="microsoft/onnxruntime#31980",
        raises=True,
        graph="""g (float[2,1] x) => (float[2,4] y) <float[4] w = {1,2,3,4}, float two = {2}, float eps = {1.0}, int64[1] last = {-1}> {
  square = Pow(x, two)
  mean = ReduceMean(square, last)
  above = Add(mean, eps)
  root = Sqrt(above)
  scaled = Div(x, root)
  y = Mul(scaled, w)
}""",
        inputs={"x": _ROWS[:, :1]},
        expected=lambda: (_ROWS[:, :1] / np.sqrt(_ROWS[:, :1] ** 2 + np.float32(1)) * np.arange(1, 5, dtype=np.float32),),
        rtol=1e-4,
    ),
    Fault(
        name="layer_norm_scale_larger",
        culprit="LayerNormFusion",
        kind="rewrite",
        form="what is normalised has one dimension and its scale two; the rewrite makes an invalid model",
        room=_DISABLED,
        avoided="disabled where a scale or a bias is larger than what is normalised",
        relatives=_NORMS[1:],
        raises=True,
        graph="""g (float[4] x) => (float[2,4] y) <
  float[2,4] w = {1,2,3,4,5,6,7,8}, float[4] b = {0,0,0,0}, float two = {2}, float eps = {1.0}, int64[1] last = {-1}
> {
  mean = ReduceMean(x, last)
  away = Sub(x, mean)
  square = Pow(away, two)
  spread = ReduceMean(square, last)
  above = Add(spread, eps)
  root = Sqrt(above)
  scaled = Div(away, root)
  weighted = Mul(scaled, w)
  y = Add(weighted, b)
}""",
        inputs={"x": _ROWS[0]},
        expected=lambda: ((_ROWS[0] - _ROWS[0].mean()) / np.sqrt(_ROWS[0].var() + np.float32(1)) * _WEIGHT.reshape(2, 4),),
        rtol=1e-4,
    ),
    Fault(
        name="product_transposed_before_batch_norm",
        culprit="MatMul_BatchNormalization_Fusion",
        kind="rewrite",
        form="a product of matrices is transposed, then normalised: the factors of the channels go to the other dimension",
        last="1.31.1",
        room=_DISABLED,
        avoided="disabled where something moves dimensions before a batch normalisation",
        graph="g (float[2,4] x) => (float[2,2] y) " + _NORMALISE % "Transpose(product)",
        inputs={"x": _ROWS},
        expected=lambda: (_normalised((_ROWS @ _WEIGHT).T),),
        rtol=1e-5,
    ),
    Fault(
        name="product_folded_before_batch_norm",
        culprit="MatMul_BatchNormalization_Fusion",
        kind="rewrite",
        form="a product of matrices is reshaped, then normalised: the factors of the channels go to the last dimension",
        last="1.31.1",
        room=_DISABLED,
        avoided="disabled where something moves dimensions before a batch normalisation",
        graph="g (float[2,4] x) => (float[1,2,2] y) " + _NORMALISE % "Reshape(product, folded)",
        inputs={"x": _ROWS},
        expected=lambda: (_normalised((_ROWS @ _WEIGHT).reshape(1, 2, 2)),),
        rtol=1e-5,
    ),
)
