"""The register: every known fault of ONNX Runtime, and the versions in which each was looked for.

`python -m tests.faults --versions` measures the ranges; tests hold the register against the version that is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx


Outcome: TypeAlias = Literal["wrong", "right", "refused"]
"""What a version makes of a fault's model; `refused` when it raises, unless that is the fault."""

_ANSWER = """
import sys
from ortlens.backend.faults.register import FAULTS
next(fault for fault in FAULTS if fault.name == sys.argv[1]).answer(without=sys.argv[2:])
"""
_RAISED = 1  # exit status of Python after an exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault."""

    name: str  # unique
    culprit: str  # the optimizer of ONNX Runtime, as `disabled_optimizers` names it, or the ONNX operator whose kernel is wrong
    form: str  # when it happens
    avoided: tuple[str, str] | tuple[()]  # the file below `ortlens/backend` that avoids it, and how; empty if nothing does
    graph: str  # the graph of a model that shows it, in ONNX's text format
    inputs: Mapping[str, np.ndarray[Any, Any]]  # the inputs of the model, by name
    expected: Callable[[], Sequence[np.ndarray[Any, Any]]]  # the right outputs, in order
    kind: Literal["rewrite", "kernel"] = "kernel"  # what the culprit is
    first: str = "1.23.0"  # the oldest supported version in which it was seen
    last: str | None = None  # the newest one; None if the newest measured version has it, too
    issue: str = ""  # of ONNX Runtime, such as `microsoft/onnxruntime#1`; empty if none is known
    rtol: float = 0.0  # relative error that is allowed per element; 0 compares exactly, NaN with NaN
    opset: int = 18  # of the model
    relatives: tuple[str, ...] = ()  # optimizers that do the same as the culprit, in other versions or when it is disabled
    crashes: bool = False  # whether the wrong outcome is that the process ends; a version that raises instead does not have the fault
    raises: bool = False  # whether the wrong outcome is an exception

    def covers(self, version: str) -> bool:
        """Tell whether a version is in the range in which the fault was seen; one newer than all measured counts as the newest."""
        number = version_number(version)
        return version_number(self.first) <= number and (self.last is None or number <= version_number(self.last))

    def text(self) -> str:
        """Write the model in ONNX's text format, for `onnx.parser.parse_model`."""
        return f'<ir_version: 9, opset_import: ["" : {self.opset}]>\n{self.graph}'

    def model(self) -> onnx.ModelProto:
        """Parse the model."""
        from onnx import parser

        return parser.parse_model(self.text())

    def answer(self, *, without: Sequence[str] = ()) -> list[np.ndarray[Any, Any]]:
        """Run the model in the installed onnxruntime, with the optimizers in `without` disabled."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            self.model().SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,
            disabled_optimizers=list(without),
        )
        found: list[np.ndarray[Any, Any]] = session.run(None, dict(self.inputs))
        return found

    def outcome(self, *, without: Sequence[str] = ()) -> Outcome:
        """Tell what the installed onnxruntime makes of the model, with the optimizers in `without` disabled."""
        if self.ends_process(without=without):
            return "wrong"
        try:
            found = self.answer(without=without)
        except Exception:  # noqa: BLE001 - a version may raise whatever it likes; that is an outcome
            return "wrong" if self.raises else "refused"
        pairs = zip(found, self.expected(), strict=True)
        return "right" if all(self._agree(got, want) for got, want in pairs) else "wrong"

    def ends_process(self, *, without: Sequence[str] = ()) -> bool:
        """Tell whether running the model, in another process, ends it; False, without a run, for a fault that does not crash."""
        if not self.crashes:
            return False
        command = [sys.executable, "-c", _ANSWER, self.name, *without]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(command, env=environment, capture_output=True, check=False)  # noqa: S603 - Python with our own text
        return ended.returncode not in (0, _RAISED)

    def _agree(self, got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> bool:
        if got.shape != want.shape or got.dtype != want.dtype:
            return False
        if self.rtol:
            return np.allclose(got, want, rtol=self.rtol, atol=0, equal_nan=True)
        return np.array_equal(got, want, equal_nan=got.dtype.kind == "f")


def version_number(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version such as `1.32.0.dev20261101`."""
    parts = version.split("+", maxsplit=1)[0].split(".")[:3]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


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


_REWRITES = (
    Fault(
        name="matrix_transposed_times_vector",
        culprit="MatmulTransposeFusion",
        form="a Transpose feeds a MatMul whose other operand has one dimension",
        avoided=("conversion/functions/layers.py", "products with a vector become products of two matrices"),
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
        form="a Transpose feeds a MatMul over nothing, whose result is then not written, or of a batch of no matrices with a matrix",
        last="1.31.1",
        avoided=("partitioning/wrong_functions.py", "products with nothing to sum over and batches of none stay in PyTorch"),
        graph="""g (float[0,2,3] a, float[2,1] b) => (float[0,3,1] y) {
  turned = Transpose<perm = [0, 2, 1]>(a)
  y = MatMul(turned, b)
}""",
        inputs={"a": np.zeros((0, 2, 3), np.float32), "b": np.zeros((2, 1), np.float32)},
        expected=lambda: (np.zeros((0, 3, 1), np.float32),),
        raises=True,
    ),
    Fault(
        name="moved_batch_cast",
        culprit="MatmulTransposeFusion",
        form="a MatMul by a matrix reads a Cast, or one added for float16, of a Transpose of the first dimension: the process ends",
        avoided=(_DISABLED, "disabled for models with such a product"),
        graph="""g (float[1,2,4] x, double[4,2] w) => (double[2,1,2] y) {
  moved = Transpose<perm = [1, 0, 2]>(x)
  wide = Cast<to = 11>(moved)
  y = MatMul(wide, w)
}""",
        inputs={"x": _ROWS.reshape(1, 2, 4), "w": _WEIGHT.astype(np.float64)},
        expected=lambda: ((_ROWS.astype(np.float64) @ _WEIGHT).reshape(2, 1, 2),),
        rtol=1e-12,
        crashes=True,
    ),
    Fault(
        name="float64_product_scaled",
        culprit="MatMulScaleFusion",
        form="a product of float64 is multiplied or divided by a constant, which the rewrite keeps as a float32",
        first="1.26.0",
        last="1.31.1",
        avoided=(_DISABLED, "disabled for models with float64"),
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
        form="a Pad with zeros feeds a MaxPool, which pads with minus infinity",
        last="1.31.1",
        avoided=(_DISABLED, "always disabled"),
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
        form="of integers, the constant 1 is divided by x, and y multiplied by the quotient; the rewrite divides y by x",
        avoided=(_DISABLED, "always disabled"),
        graph="""g (int64[3] x, int64[3] z) => (int64[3] y) <int64 one = {1}> {
  quotient = Div(one, x)
  y = Mul(quotient, z)
}""",
        inputs={"x": np.array([1, 2, 3], np.int64), "z": np.array([5, 6, 7], np.int64)},
        expected=lambda: (np.array([5, 0, 0], np.int64),),
    ),
    Fault(
        name="quotient_times_identity",
        culprit="DivMulFusion",
        form="the constant 1 is divided by x, and the quotient multiplied by what an Identity passes on, which the rewrite loses",
        avoided=(_DISABLED, "always disabled"),
        raises=True,
        graph="""g (float[2] x, float[2] z) => (float[2] y) <float one = {1}> {
  same = Identity(z)
  quotient = Div(one, x)
  y = Mul(quotient, same)
}""",
        inputs={"x": np.array([1, 2], np.float32), "z": np.array([5, 6], np.float32)},
        expected=lambda: (np.array([5, 3], np.float32),),
    ),
    Fault(
        name="zero_added",
        culprit="NoopElimination",
        form="0.0 is added, which makes 0.0 of -0.0; the rewrite drops the Add",
        avoided=(_DISABLED, "disabled for models with an Add of a single 0.0, or of a weight of one element"),
        graph="""g (float[2] x) => (float[2] y) <float zero = {0}> {
  negative = Neg(x)
  sum = Add(negative, zero)
  y = Reciprocal(sum)
}""",
        inputs={"x": np.array([0, 2], np.float32)},
        expected=lambda: (np.array([np.inf, -0.5], np.float32),),
    ),
    Fault(
        name="minus_zero_subtracted",
        culprit="NoopElimination",
        form="-0.0 is subtracted, which makes 0.0 of -0.0; the rewrite drops the Sub",
        avoided=(_DISABLED, "disabled for models with a Sub of a single -0.0, or of a weight of one element"),
        graph="""g (float[2] x) => (float[2] y) <float zero = {-0.0}> {
  negative = Neg(x)
  difference = Sub(negative, zero)
  y = Reciprocal(difference)
}""",
        inputs={"x": np.array([0, 2], np.float32)},
        expected=lambda: (np.array([np.inf, -0.5], np.float32),),
    ),
    Fault(
        name="expanded_to_nothing",
        culprit="ExpandElimination",
        form="a dimension of size 1 is expanded to size 0; the rewrite drops the Expand",
        avoided=(_DISABLED, "disabled where an Expand may make a size 0"),
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
        form="the epsilon of a layer normalisation is an input of the model; the rewrite takes 1e-5 for it",
        last="1.31.1",
        avoided=(_DISABLED, "disabled where an epsilon is not a constant"),
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
        form="the epsilon of a root mean square normalisation is an input of the model; the rewrite takes 1e-5 for it",
        last="1.31.1",
        avoided=(_DISABLED, "disabled where an epsilon is not a constant"),
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
        name="layer_norm_epsilon_first",
        culprit="LayerNormFusion",
        form="the epsilon of a layer normalisation is the first operand of its Add; the rewrite takes 1e-5 for it",
        last="1.31.1",
        avoided=(_DISABLED, "disabled where an epsilon is the first operand"),
        relatives=_NORMS[1:],
        graph="""g (float[2,4] x) => (float[2,4] y) <
  float[4] w = {1,1,1,1}, float[4] b = {0,0,0,0}, float two = {2}, float eps = {1.0}, int64[1] last = {-1}
> {
  mean = ReduceMean(x, last)
  away = Sub(x, mean)
  square = Pow(away, two)
  spread = ReduceMean(square, last)
  above = Add(eps, spread)
  root = Sqrt(above)
  scaled = Div(away, root)
  weighted = Mul(scaled, w)
  y = Add(weighted, b)
}""",
        inputs={"x": _ROWS},
        expected=lambda: ((_ROWS - _ROWS.mean(-1, keepdims=True)) / np.sqrt(_ROWS.var(-1, keepdims=True) + np.float32(1)),),
        rtol=1e-4,
    ),
    Fault(
        name="rms_norm_of_float64",
        culprit="SimplifiedLayerNormFusion",
        form="a root mean square normalisation is of float64; the rewrite takes 1e-5 for its epsilon",
        last="1.31.1",
        avoided=(_DISABLED, "disabled where an epsilon is not a float32"),
        graph="""g (double[2,4] x) => (double[2,4] y) <
  double[4] w = {1,1,1,1}, double two = {2}, double eps = {1.0}, int64[1] last = {-1}
> {
  square = Pow(x, two)
  mean = ReduceMean(square, last)
  above = Add(mean, eps)
  root = Sqrt(above)
  scaled = Div(x, root)
  y = Mul(scaled, w)
}""",
        inputs={"x": _ROWS.astype(np.float64)},
        expected=lambda: (_ROWS / np.sqrt((_ROWS.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1),),
        rtol=1e-6,
    ),
    Fault(
        name="rms_norm_scale_larger",
        culprit="SimplifiedLayerNormFusion",
        form="a root mean square normalisation over one element has a scale of several; the run of the fused operator fails",
        avoided=(_DISABLED, "disabled where a scale or a bias is larger than what is normalised"),
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
        form="what is normalised has one dimension and its scale two; the rewrite makes an invalid model",
        avoided=(_DISABLED, "disabled where a scale or a bias is larger than what is normalised"),
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
        form="a product of matrices is transposed, then normalised: the factors of the channels go to the other dimension",
        last="1.31.1",
        avoided=(_DISABLED, "disabled where something moves dimensions before a batch normalisation"),
        graph="g (float[2,4] x) => (float[2,2] y) " + _NORMALISE % "Transpose(product)",
        inputs={"x": _ROWS},
        expected=lambda: (_normalised((_ROWS @ _WEIGHT).T),),
        rtol=1e-5,
    ),
    Fault(
        name="product_folded_before_batch_norm",
        culprit="MatMul_BatchNormalization_Fusion",
        form="a product of matrices is reshaped, then normalised: the factors of the channels go to the last dimension",
        last="1.31.1",
        avoided=(_DISABLED, "disabled where something moves dimensions before a batch normalisation"),
        graph="g (float[2,4] x) => (float[1,2,2] y) " + _NORMALISE % "Reshape(product, folded)",
        inputs={"x": _ROWS},
        expected=lambda: (_normalised((_ROWS @ _WEIGHT).reshape(1, 2, 2)),),
        rtol=1e-5,
    ),
)


_LARGE = np.array([2**31 + 1, -(2**31 + 1), 2**53 + 1, 5], np.int64)
_BOUNDS = "conversion/functions/activations.py"
_REDUCTIONS = "conversion/functions/reductions.py"
_CUBE = np.ones((2, 3, 2), np.int64)
_CUBE[0, 0, 0] = 2**53
_PEAK = np.zeros((2, 3, 2), np.int64)
_PEAK[0, 0, 0] = 2**31 + 1
_MIDDLE = "g (int64[2,3,2] x) => (int64[2,2] y) <int64[1] middle = {{1}}> {{ y = {}<keepdims = 0>(x, middle) }}"


def _partly(name: str, form: str, avoided: tuple[str, str], right: Any) -> Fault:
    """Describe an operator, of four numbers or named for a reduction over the middle of a cube, that compares a part of the bits."""
    cube = "(" not in form
    graph = _MIDDLE.format(form) if cube else f"g (int64[4] x) => (int64[4] y) <int64 zero = {{0}}> {{ y = {form} }}"
    return Fault(
        name=name,
        culprit=form.partition("(")[0],
        form="compares a part of the bits of 64-bit integers: the larger of 0 and 2^31 + 1 is 0",
        last="1.31.1",
        avoided=avoided,
        graph=graph,
        inputs={"x": _PEAK if cube else _LARGE},
        expected=lambda: (np.array(right, np.int64),),
    )


_NAN, _INF = np.nan, np.inf
_ROW = np.array([1, _NAN, 3, 2], np.float32)
_ORDERING = "conversion/functions/ordering.py"
_MARKED = "the places of NaN are computed beside and put into the result"
_LONG = 1 << 20
_TENTHS = np.full((_LONG, 2), 0.1, np.float32)
_LOW = np.array([-17, -20, -30, -80], np.float32)
_SMALL = np.array([-1e-4, -1e-6, -1e-8], np.float32)
_STAGED, _ACTIVATIONS = "lowering/reductions.py", "conversion/functions/activations.py"
_IN_STAGES = "long sums are taken in stages, partly in float64"


def _sigmoid(x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return 1 / (1 + np.exp(-x))


_KERNELS = (
    _partly("max_of_int64", "Max(x, zero)", (_BOUNDS, "Greater and Where"), np.maximum(_LARGE, 0)),
    _partly("min_of_int64", "Min(x, zero)", (_BOUNDS, "Less and Where"), np.minimum(_LARGE, 0)),
    _partly("relu_of_int64", "Relu(x)", (_BOUNDS, "Greater and Where"), np.maximum(_LARGE, 0)),
    _partly("clip_of_int64", "Clip(x, zero)", (_BOUNDS, "Greater and Where"), np.maximum(_LARGE, 0)),
    _partly("sign_of_int64", "Sign(x)", (_BOUNDS, "two comparisons"), np.sign(_LARGE)),
    _partly("largest_of_int64", "ReduceMax", (_REDUCTIONS, "TopK"), [[2**31 + 1, 0], [0, 0]]),
    _partly("smallest_of_int64", "ReduceMin", (_REDUCTIONS, "TopK"), [[0, 0], [0, 0]]),
    Fault(
        name="sum_of_int64",
        culprit="ReduceSum",
        form="adds 64-bit integers as floats, which is exact up to 2^53",
        first="1.27.0",
        avoided=(_REDUCTIONS, "sums of parts"),
        graph=_MIDDLE.format("ReduceSum"),
        inputs={"x": _CUBE},
        expected=lambda: (np.array([[2**53 + 2, 3], [3, 3]], np.int64),),
    ),
    Fault(
        name="product_of_int64",
        culprit="ReduceProd",
        form="multiplies 64-bit integers as floats",
        first="1.27.0",
        avoided=("partitioning/wrong_functions.py", "stays in PyTorch"),
        graph="g (int64[2] x) => (int64[1] y) { y = ReduceProd(x) }",
        inputs={"x": np.array([94906267, 94906269], np.int64)},
        expected=lambda: (np.array([94906267 * 94906269], np.int64),),
    ),
    Fault(
        name="power_of_int64",
        culprit="Pow",
        form="computes powers of integers as floats",
        avoided=("partitioning/wrong_functions.py", "small constant exponents become products, others stay in PyTorch"),
        graph="g (int64[2] x, int64[2] e) => (int64[2] y) { y = Pow(x, e) }",
        inputs={"x": np.array([3, -3], np.int64), "e": np.array([39, 39], np.int64)},
        expected=lambda: (np.array([3**39, -(3**39)], np.int64),),
    ),
    Fault(
        name="fmod_of_int64",
        culprit="Mod",
        form="with fmod=1, computes the remainder of integers as floats",
        last="1.31.1",
        avoided=("conversion/functions/quotients.py", "x - x / y * y"),
        graph="g (int64[2] x, int64[2] e) => (int64[2] y) { y = Mod<fmod = 1>(x, e) }",
        inputs={"x": np.array([2**53 + 1, -(2**53) - 1], np.int64), "e": np.array([2, 2], np.int64)},
        expected=lambda: (np.array([1, -1], np.int64),),
    ),
    Fault(
        name="clip_of_infinity",
        culprit="Clip",
        form="with one bound only, infinity on the other side becomes the largest finite number",
        avoided=("conversion/functions/activations.py", "Max or Min, unless both bounds are known"),
        graph="g (float[2] x) => (float[2] y) <float zero = {0}> { y = Clip(x, zero) }",
        inputs={"x": np.array([_INF, -_INF], np.float32)},
        expected=lambda: (np.array([_INF, 0], np.float32),),
    ),
    Fault(
        name="largest_with_nan",
        culprit="ReduceMax",
        form="drops NaN at most places",
        avoided=(_REDUCTIONS, _MARKED),
        graph="g (float[4] x) => (float[1] y) { y = ReduceMax(x) }",
        inputs={"x": _ROW},
        expected=lambda: (np.array([_NAN], np.float32),),
    ),
    Fault(
        name="smallest_with_nan",
        culprit="ReduceMin",
        form="drops NaN at most places",
        avoided=(_REDUCTIONS, _MARKED),
        graph="g (float[4] x) => (float[1] y) { y = ReduceMin(x) }",
        inputs={"x": _ROW},
        expected=lambda: (np.array([_NAN], np.float32),),
    ),
    Fault(
        name="top_with_nan",
        culprit="TopK",
        form="compares NaN as processors do, so that no order comes out",
        last="1.31.1",
        avoided=(_ORDERING, "a key of a wider type, in which NaN is a large number; float64 stays in PyTorch"),
        graph="g (float[4] x) => (float[4] y, int64[4] places) <int64[1] four = {4}> { y, places = TopK(x, four) }",
        inputs={"x": _ROW},
        expected=lambda: (np.array([_NAN, 3, 2, 1], np.float32), np.array([1, 2, 3, 0], np.int64)),
    ),
    Fault(
        name="place_of_nan",
        culprit="ArgMax",
        form="ignores NaN, as ArgMin does",
        first="1.32.0",
        avoided=(_ORDERING, _MARKED),
        graph="g (float[4] x) => (int64[1] y) { y = ArgMax(x) }",
        inputs={"x": _ROW},
        expected=lambda: (np.array([1], np.int64),),
    ),
    Fault(
        name="max_pool_of_nan",
        culprit="MaxPool",
        form="drops NaN at some places of the window",
        avoided=("conversion/functions/pooling.py", _MARKED),
        graph="g (float[1,1,4] x) => (float[1,1,3] y) { y = MaxPool<kernel_shape = [2]>(x) }",
        inputs={"x": _ROW.reshape(1, 1, 4)},
        expected=lambda: (np.array([[[_NAN, _NAN, 3]]], np.float32),),
    ),
    Fault(
        name="max_pool_of_minus_infinity",
        culprit="MaxPool",
        form="of minus infinities alone, gives the lowest finite number",
        avoided=("conversion/functions/pooling.py", "their places are computed beside and put into the result"),
        graph="g (float[1,1,4] x) => (float[1,1,3] y) { y = MaxPool<kernel_shape = [2]>(x) }",
        inputs={"x": np.array([[[-_INF, -_INF, 3, -_INF]]], np.float32)},
        expected=lambda: (np.array([[[-_INF, 3, 3]]], np.float32),),
    ),
    Fault(
        name="scattered_extremes_with_nan",
        culprit="ScatterElements",
        form="with reduction max or min, drops NaN at some places",
        avoided=("conversion/functions/indexing.py", _MARKED),
        graph='g (float[2] x, int64[3] i, float[3] u) => (float[2] y) { y = ScatterElements<reduction = "max">(x, i, u) }',
        inputs={"x": np.ones(2, np.float32), "i": np.zeros(3, np.int64), "u": np.array([_NAN, 3, 2], np.float32)},
        expected=lambda: (np.array([_NAN, 1], np.float32),),
    ),
    Fault(
        name="log_softmax_of_nan",
        culprit="LogSoftmax",
        form="of float64, only the place of NaN is NaN, and the other numbers are positive",
        avoided=(_REDUCTIONS, "written out for float64"),
        graph="g (double[1,3] x) => (double[1,3] y) { y = LogSoftmax(x) }",
        inputs={"x": np.array([[1, _NAN, 2]])},
        expected=lambda: (np.full((1, 3), _NAN),),
    ),
    Fault(
        name="log_sum_exp_of_minus_infinity",
        culprit="ReduceLogSumExp",
        form="of minus infinities alone, gives NaN",
        last="1.26.0",
        avoided=(_REDUCTIONS, "written out"),
        graph="g (float[2] x) => (float[1] y) { y = ReduceLogSumExp(x) }",
        inputs={"x": np.full(2, -_INF, np.float32)},
        expected=lambda: (np.array([-_INF], np.float32),),
    ),
    Fault(
        name="mean_of_nothing",
        culprit="ReduceMean",
        form="is 0 for no elements, where 0 / 0 is NaN",
        avoided=(_REDUCTIONS, "a quotient of sum and count"),
        graph="g (float[n,3] x) => (float[1,3] y) <int64[1] rows = {0}> { y = ReduceMean(x, rows) }",
        inputs={"x": np.zeros((0, 3), np.float32)},
        expected=lambda: (np.full((1, 3), _NAN, np.float32),),
    ),
    Fault(
        name="gemm_over_nothing",
        culprit="Gemm",
        form="with nothing to sum over, does not multiply the addend by beta",
        last="1.31.1",
        avoided=("conversion/functions/layers.py", "written out, unless the sizes are known"),
        graph="g (float[2,k] a, float[k,3] b, float[2,3] c) => (float[2,3] y) { y = Gemm<beta = 2.0>(a, b, c) }",
        inputs={"a": np.zeros((2, 0), np.float32), "b": np.zeros((0, 3), np.float32), "c": np.ones((2, 3), np.float32)},
        expected=lambda: (np.full((2, 3), 2, np.float32),),
    ),
    Fault(
        name="instance_norm_of_nothing",
        culprit="InstanceNormalization",
        form="reads the first number of a channel without elements: if another operator computed it, the process ends",
        avoided=("partitioning/wrong_functions.py", "stays in PyTorch"),
        graph="""g (float[1,2,n] x, float[2] w, float[2] b) => (float[1,2,n] y) {
  twice = Add(x, x)
  y = InstanceNormalization(twice, w, b)
}""",
        inputs={"x": np.zeros((1, 2, 0), np.float32), "w": np.ones(2, np.float32), "b": np.zeros(2, np.float32)},
        expected=lambda: (np.zeros((1, 2, 0), np.float32),),
        crashes=True,
    ),
    Fault(
        name="split_of_nothing",
        culprit="SplitToSequence",
        form="into chunks of size 0, of a dimension of size 0: the process ends when the session is created",
        last="1.31.1",
        avoided=("lowering/decompositions.py", "split by a list of sizes"),
        graph="""g (float[0,4] x) => (float[0,4] y) <int64 none = {0}> {
  chunks = SplitToSequence<axis = 0>(x, none)
  y = SequenceAt(chunks, none)
}""",
        inputs={"x": np.zeros((0, 4), np.float32)},
        expected=lambda: (np.zeros((0, 4), np.float32),),
        crashes=True,
    ),
    Fault(
        name="long_sum",
        culprit="ReduceSum",
        form="adds float32 numbers one after the other: the error grows with their number",
        avoided=(_STAGED, _IN_STAGES),
        graph=f"g (float[{_LONG},2] x) => (float[1,2] y) <int64[1] rows = {{0}}> {{ y = ReduceSum(x, rows) }}",
        inputs={"x": _TENTHS},
        expected=lambda: (_TENTHS.sum(0, dtype=np.float64, keepdims=True).astype(np.float32),),
        rtol=1e-4,
    ),
    Fault(
        name="long_mean",
        culprit="ReduceMean",
        form="adds float32 numbers one after the other: the error grows with their number",
        avoided=(_STAGED, _IN_STAGES),
        graph=f"g (float[{_LONG},2] x) => (float[1,2] y) <int64[1] rows = {{0}}> {{ y = ReduceMean(x, rows) }}",
        inputs={"x": _TENTHS},
        expected=lambda: (np.full((1, 2), 0.1, np.float32),),
        rtol=1e-4,
    ),
    Fault(
        name="long_running_sum",
        culprit="CumSum",
        form="adds float32 numbers one after the other: the error grows with their number",
        avoided=(_STAGED, "long running sums are taken in float64"),
        graph=f"g (float[{_LONG},2] x) => (float[{_LONG},2] y) <int64 rows = {{0}}> {{ y = CumSum(x, rows) }}",
        inputs={"x": _TENTHS},
        expected=lambda: (_TENTHS.cumsum(0, dtype=np.float64).astype(np.float32),),
        rtol=1e-4,
    ),
    Fault(
        name="sigmoid_below_minus_17",
        culprit="Sigmoid",
        form="of float32, is twice as large as it should be at -17, and 0 from -18 down",
        avoided=(_ACTIVATIONS, "1 / (1 + exp(-x))"),
        graph="g (float[4] x) => (float[4] y) { y = Sigmoid(x) }",
        inputs={"x": _LOW},
        expected=lambda: (_sigmoid(_LOW.astype(np.float64)).astype(np.float32),),
        rtol=1e-4,
    ),
    Fault(
        name="sigmoid_of_float64",
        culprit="Sigmoid",
        form="of float64, loses digits below -15 and is 0 below -37",
        avoided=(_ACTIVATIONS, "1 / (1 + exp(-x))"),
        graph="g (double[4] x) => (double[4] y) { y = Sigmoid(x) }",
        inputs={"x": _LOW.astype(np.float64)},
        expected=lambda: (_sigmoid(_LOW.astype(np.float64)),),
        rtol=1e-10,
    ),
    Fault(
        name="tanh_beyond_one",
        culprit="Tanh",
        form="of float32, is up to 1.0000002 between 8 and 9, so that `atanh` and the square root of 1 - tanh(x) ** 2 are NaN",
        avoided=(_ACTIVATIONS, "limited to 1 by Clip"),
        graph="g (float[1001] x) => (bool[1001] y) <float one = {1}> { t = Tanh(x) size = Abs(t) y = Greater(size, one) }",
        inputs={"x": np.linspace(8, 9, 1001, dtype=np.float32)},
        expected=lambda: (np.zeros(1001, np.bool_),),
    ),
    Fault(
        name="elu_of_small_numbers",
        culprit="Elu",
        form="subtracts 1 from exp(x), and so loses the digits of small negative x",
        avoided=(_ACTIVATIONS, "tanh(x / 2) * (exp(x) + 1)"),
        graph="g (float[3] x) => (float[3] y) { y = Elu(x) }",
        inputs={"x": _SMALL},
        expected=lambda: (np.expm1(_SMALL),),
        rtol=1e-4,
    ),
    Fault(
        name="selu_of_small_numbers",
        culprit="Selu",
        form="subtracts 1 from exp(x), and so loses the digits of small negative x",
        avoided=(_ACTIVATIONS, "tanh(x / 2) * (exp(x) + 1)"),
        graph="g (float[3] x) => (float[3] y) { y = Selu(x) }",
        inputs={"x": _SMALL},
        expected=lambda: (np.expm1(_SMALL) * np.float32(1.0507009873554805 * 1.6732632423543772),),
        rtol=1e-4,
    ),
    Fault(
        name="long_range",
        culprit="Range",
        form="of floats, adds the step again and again: the error grows with the number of steps",
        avoided=("conversion/functions/shapes.py", "start + i * step in float64"),
        graph="g (float start, float end, float step) => (float[n] y) { y = Range(start, end, step) }",
        inputs={"start": np.array(0, np.float32), "end": np.array(4096, np.float32), "step": np.array(0.1, np.float32)},
        expected=lambda: ((np.arange(40960) * np.float64(np.float32(0.1))).astype(np.float32),),
        rtol=1e-5,
    ),
    Fault(
        name="average_pool_past_the_end",
        culprit="AveragePool",
        form="with ceil_mode and count_include_pad, divides by the whole window where it reaches past the padding (opset 18 and older)",
        last="1.28.0",
        avoided=("conversion/functions/pooling.py", "the padding is written out, and no more is counted"),
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
        form="of NaN, is 1",
        last="1.26.0",
        avoided=("conversion/functions/arithmetic.py", "NaN is put into the result"),
        graph="g (float[2] x) => (float[2] y) { y = Erf(x) }",
        inputs={"x": np.array([np.nan, 0], np.float32)},
        expected=lambda: (np.array([np.nan, 0], np.float32),),
    ),
    Fault(
        name="nearest_at_whole_places",
        culprit="Resize",
        form="to the nearest element below: divides by the rounded quotient of the sizes, so that place 60 becomes 59",
        avoided=("lowering/whole_operators.py", "a gather, unless every element is repeated"),
        graph="""g (float[300] x) => (float[5] y) <int64[1] five = {5}> {
  y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , , five)
}""",
        inputs={"x": np.arange(300, dtype=np.float32)},
        expected=lambda: (np.arange(0, 300, 60, dtype=np.float32),),
    ),
    Fault(
        name="float16_unrounded",
        culprit="Equal",
        form="float16 is computed in float32 and not rounded in between: 2048 + 1, which is 2048 in float16, is compared as 2049",
        avoided=("conversion/optimize.py", "two operators that have kernels for float16 keep the rounding"),
        graph="""g (float16[2] x, float16[2] z) => (bool[2] y) {
  sums = Add(x, z)
  y = Equal(sums, x)
}""",
        inputs={"x": np.array([2048, 1], np.float16), "z": np.array([1, 0], np.float16)},
        expected=lambda: (np.array([True, True]),),
    ),
)


FAULTS: tuple[Fault, ...] = (*(replace(fault, kind="rewrite") for fault in _REWRITES), *_KERNELS)

MEASURED = (
    *("1.23.0", "1.23.1", "1.23.2", "1.24.1", "1.24.2", "1.24.3", "1.24.4", "1.25.0", "1.25.1"),
    *("1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.0", "1.31.1", "1.32.0"),
)
"""The versions of onnxruntime in which every fault was looked for, on x86-64, in order."""


def faults_of(version: str) -> tuple[Fault, ...]:
    """Return the known faults of a version of onnxruntime; one newer than all measured ones counts as the newest."""
    return tuple(fault for fault in FAULTS if fault.covers(version))


def is_measured(version: str) -> bool:
    """Tell whether the faults were looked for in this version of onnxruntime, or in an older and a newer one."""
    return version_number(MEASURED[0]) <= version_number(version) <= version_number(MEASURED[-1])
