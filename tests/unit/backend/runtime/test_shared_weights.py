"""Which weights a session may read in torch's memory."""

from __future__ import annotations

import onnx
import pytest

from ortlens.backend.runtime.weights import shareable

FACTOR = "a = MatMul(x, w)"
MODELS: dict[str, tuple[str, set[str]]] = {
    "factors of products": (f"{FACTOR} y = Gemm<transB=1>(v, a)", {"w", "v"}),
    "also added": (f"{FACTOR} y = Add(a, w)", set()),
    "also the third operand of a product": (f"{FACTOR} y = Gemm(a, v, w)", {"v"}),
    "also transposed": (f"{FACTOR} y = Transpose(w)", set()),
    "also joined": (f"{FACTOR} y = Concat<axis=0>(a, w)", set()),
    "also in an operator of others": (f"{FACTOR} y = com.example.MatMul(a, w)", set()),
    "also in a graph inside a node": (
        f"{FACTOR} y = If<then_branch = t () => (b) {{b = Identity(w)}}, else_branch = e () => (b) {{b = Identity(w)}}>(c)",
        set(),
    ),
    "also an output": ("y = MatMul(x, w) u = Identity(y)", set()),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_only_products_read_can_be_shared(name: str) -> None:
    nodes, expected = MODELS[name]
    outputs = "float[4,4] y, float[4,4] w" if "output" in name else "float[4,4] y"
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18, "com.example" : 1]> g (float[4,4] x, bool c) => ({outputs})
        <float[1,1] w = {{0}}, float[1,1] v = {{0}}> {{ {nodes} }}"""
    )
    for weight in model.graph.initializer:
        weight.dims[:], weight.float_data[:] = [4, 4], [0.0] * 16
    assert shareable(model) == expected
