"""The rewrites of ONNX Runtime that are disabled for a model, by what they would do to its results."""

import pytest
from onnx import parser, shape_inference

from ortlens.backend.runtime.rewrites import unwanted_rewrites

_NORM = "batch = BatchNormalization(moved, one, one, one, one)\n y = Identity(batch)"
_SCORES = "s = Constant<value=float {0.5}>()\n a = MatMul(x, k)\n b = Mul(a, s)\n"
_RMS = "l = Constant<value=int64[1] {-1}>()\n s = Mul(x, x)\n m = ReduceMean(s, l)\n a = Add(m, one)\n root = Sqrt(a)\n q = Div(x, root)\n"
_NORMS = {"LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion"}
MODELS = {
    "a float64 input": ("double[2] x", "y = Identity(x)", {"MatMulScaleFusion"}),
    "a conversion to float64": ("float[2] x", "y = Cast<to=11>(x)", {"MatMulScaleFusion"}),
    "a float64 constant": ("float[2] x", "y = Constant<value=double[2] {1, 2}>()", {"MatMulScaleFusion"}),
    "a float64 constant in a branch": (
        "bool x",
        "y = If<then_branch = a () => (double p) {p = Constant<value=double {1}>()}, else_branch = b () => (bool q) {q = Not(x)}>(x)",
        {"MatMulScaleFusion"},
    ),
    "float32": ("float[2] x", "y = Cast<to=1>(x)", set()),
    "an expansion to sizes that are no constant": ("float[1] x", "size = Shape(x)\n y = Expand(x, size)", {"ExpandElimination"}),
    "a product that is normalised": ("float[2,1] moved", _NORM, set()),
    "a product that is transposed, then normalised": (
        "float[1,2] x",
        f"moved = Transpose(x)\n {_NORM}",
        {"MatMul_BatchNormalization_Fusion"},
    ),
    "the scores of a single row": ("float[8,1,4] x, float[8,4,9] k", f"{_SCORES} y = Add(b, b)", {"MatMulScaleFusion"}),
    "the scores of several rows": ("float[8,2,4] x, float[8,4,9] k", f"{_SCORES} y = Add(b, b)", set()),
    "a single row that nothing scales": ("float[8,1,4] x, float[8,4,9] k", "y = MatMul(x, k)", set()),
    "a normalisation with a scale of its size": ("float[2,4] x", f"{_RMS} z = Mul(q, four)\n y = Identity(z)", set()),
    "a normalisation of one element with a scale of four": ("float[2,1] x", f"{_RMS} z = Mul(q, four)\n y = Identity(z)", _NORMS),
    "a normalisation of one row with a scale of several rows": (
        "float[4] x, float[3,4] w",
        f"{_RMS} z = Mul(q, w)\n y = Identity(z)",
        _NORMS,
    ),
    "a normalisation whose bias is larger": (
        "float[1,4] x, float[2,4] b",
        f"{_RMS} w = Mul(q, four)\n z = Add(w, b)\n y = Identity(z)",
        _NORMS,
    ),
    "a normalisation with a reciprocal": (
        "float[2,4] x",
        f"{_RMS} o = Reciprocal(root)\n p = Mul(x, o)\n z = Mul(p, four)\n y = Identity(z)",
        set(),
    ),
    "an addition of 0.0": ("float[4] x", "y = Add(x, zero)", {"NoopElimination"}),
    "an addition of -0.0, and a product with 0.0": ("float[4] x", "z = Add(x, minus_zero)\n y = Mul(z, zero)", set()),
    "a subtraction of -0.0": ("float[4] x", "y = Sub(x, minus_zero)", {"NoopElimination"}),
    "a normalisation whose epsilon comes first": (
        "float[2,4] x",
        f"{_RMS.replace('Add(m, one)', 'Add(one, m)')} y = Mul(q, four)",
        _NORMS,
    ),
    "a batch that is moved, then converted, and multiplied": (
        "float[1,4,8] x, double[8,2] w",
        "t = Transpose<perm = [1, 0, 2]>(x)\n c = Cast<to = 11>(t)\n y = MatMul(c, w)",
        {"MatMulScaleFusion", "MatmulTransposeFusion"},
    ),
    "a batch of float16 that is moved and multiplied": (
        "float16[1,4,8] x, float16[4,8,2] w",
        "t = Transpose<perm = [1, 0, 2]>(x)\n y = MatMul(t, w)",
        {"MatmulTransposeFusion"},
    ),
    "a matrix that is transposed, then converted, and multiplied": (
        "float16[4,8] x, float[4,2] w",
        "t = Transpose<perm = [1, 0]>(x)\n c = Cast<to = 1>(t)\n y = MatMul(c, w)",
        set(),
    ),
    "a single row of a scaled query": (
        "float[8,1,4] x, float[8,4,9] k",
        "s = Constant<value=float {0.5}>()\n q = Mul(x, s)\n a = MatMul(q, k)\n y = Add(a, a)",
        {"MatMulScaleFusion"},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_disabled_follows_from_the_model(name: str) -> None:
    given, nodes, expected = MODELS[name]
    constants = "<float[1] one = {1}, float[4] four = {1,2,3,4}, float zero = {0}, float minus_zero = {-0.0}>"
    text = f'<ir_version: 9, opset_import: ["" : 18]>\n g ({given}) => (float[n] y) {constants} {{ {nodes} }}'
    model = shape_inference.infer_shapes(parser.parse_model(text))
    found = set(unwanted_rewrites(model, [("CPUExecutionProvider", {})]))
    assert found - {"Pad_Fusion", "DivMulFusion", "SkipLayerNormFusion"} == expected
