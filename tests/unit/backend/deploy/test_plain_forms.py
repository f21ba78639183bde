"""A deployed model gives PyTorch's answer in a session without any options, at every level of optimisation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import parser, shape_inference

import ortlens
from ortlens.backend.deploy import plain_forms
from ortlens.backend.deploy.plain_forms import write_plain_forms
from tests.faults.register import FAULTS
from tests.faults.test_register import BY_NAME, PROGRAMS

LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")
BY_CONVERSION = ("matrix_transposed_times_vector", "transposed_product_of_nothing")  # of which no such model is made
REWRITES = [fault.name for fault in FAULTS if fault.kind == "rewrite" and fault.name not in BY_CONVERSION]
IN_PYTORCH = ("transposed_product_of_nothing", "product_of_int64", "power_of_int64", "gemm_over_nothing", "instance_norm_of_nothing")
SIBLINGS = {
    "a zero that ONNX Runtime computes": (
        "g (float[2] x) => (float[2] y) <float low = {-1000}> { n = Neg(x) z = Exp(low) s = Add(z, n) y = Reciprocal(s) }"
    ),
    "a batch of float16 that is moved": (
        "g (float16[1,2,4] x, float16[4,2] w) => (float16[2,1,2] y) { t = Transpose<perm = [1,0,2]>(x) y = MatMul(t, w) }"
    ),
    "integers that are moved and converted": (
        "g (int64[2,2,2] x, float[2,2] w) => (float[2,2,2] y) { t = Transpose<perm = [1,2,0]>(x) c = Cast<to = 1>(t) y = MatMul(c, w) }"
    ),
    "a product of float64 with a scaled factor": (
        "g (double[2,2] x) => (double[2,2] y) <double t = {0.1}> { s = Mul(x, t) y = MatMul(s, x) }"
    ),
    "a padded pool behind a conversion": (
        "g (double[1,1,2,2] x) => (float[1,1,3,3] y) <int64[8] pads = {0,0,1,1,0,0,1,1}> "
        "{ p = Pad(x, pads) c = Cast<to = 1>(p) y = MaxPool<kernel_shape = [2,2], pads = [0,0,0,0]>(c) }"
    ),
    "a root mean square whose epsilon comes first": (
        "g (float[2,4] x) => (float[2,4] y) <float eps = {1.0}, float[4] w = {1,2,3,4}, int64[1] last = {-1}> "
        "{ s = Mul(x, x) m = ReduceMean(s, last) a = Add(eps, m) root = Sqrt(a) q = Div(x, root) y = Mul(q, w) }"
    ),
    "an expansion to nothing of fewer dimensions": (
        "g (float[2,1,3] x) => (float[2,n,3] y) <int64[2] to = {0,3}> { e = Expand(x, to) y = Neg(e) }"
    ),
}


def written(model: onnx.ModelProto) -> bytes:
    made = ir.from_proto(shape_inference.infer_shapes(model))
    write_plain_forms(made)
    proto = ir.to_proto(made)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def answers(model: bytes | str, feed: Mapping[str, Any], level: str) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    found: list[Any] = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, dict(feed))
    return found


def agree(found: list[Any], wanted: list[Any], rtol: float) -> bool:
    pairs = list(zip(found, wanted, strict=True))
    return all(one.shape == other.shape and np.allclose(one, other, rtol=rtol, atol=0, equal_nan=True) for one, other in pairs)


@pytest.mark.parametrize("name", REWRITES)
def test_the_model_of_a_known_fault_is_right_at_every_level(name: str) -> None:
    fault = BY_NAME[name]
    model = written(fault.model())
    with np.errstate(all="ignore"):
        assert [level for level in LEVELS if not agree(answers(model, fault.inputs, level), fault.right(), fault.rtol)] == []


@pytest.mark.parametrize("name", SIBLINGS)
def test_so_are_its_siblings(name: str) -> None:
    plain = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{SIBLINGS[name]}')
    kinds = {value.name: (numpy_type(value), [dim.dim_value for dim in value.type.tensor_type.shape.dim]) for value in plain.graph.input}
    feed = {key: (np.arange(np.prod(sizes)).reshape(sizes) % 5 - 2).astype(kind) for key, (kind, sizes) in kinds.items()}
    wanted, model = answers(plain.SerializeToString(), feed, "DISABLE_ALL"), written(plain)
    rtol = 1e-12 if wanted[0].dtype == np.float64 else 1e-5
    assert [level for level in LEVELS if not agree(answers(model, feed, level), wanted, rtol)] == []


def numpy_type(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


@torch.no_grad()
@pytest.mark.parametrize("road", ["exported", "saved"])
def test_the_programs_of_the_register_are_deployed_right(road: str, tmp_path: Path) -> None:
    """All in one model; a node that ONNX Runtime computes wrongly stays in PyTorch, and refuses the export."""
    names = [name for name in PROGRAMS if name not in IN_PYTORCH]
    values = [torch.from_numpy(value.copy()) for name in names for value in BY_NAME[name].inputs.values()]
    given = {f"k{place:03}": value for place, value in enumerate(values)}

    def all_of_them(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        rest, found = iter(tensors.values()), []
        for name in names:
            made = PROGRAMS[name](*(next(rest) for _ in BY_NAME[name].inputs))
            found += [each.clone() for each in (made if isinstance(made, tuple) else (made,))]
        return found

    if road == "exported":
        path: Path = ortlens.explain(all_of_them, calls=1)(given).export_onnx(tmp_path / "all.onnx")
    else:
        path = ortlens.freeze(all_of_them, given).save(tmp_path / "all") / "model.onnx"
    taken = [value.name for value in onnx.load(str(path), load_external_data=False).graph.input]
    feed = {name: next(value.numpy() for key, value in given.items() if key in name) for name in taken}
    wanted = [value.numpy() for value in all_of_them(given)]
    wanted_of = [name for name in names for _ in range(2 if name in ("top_with_nan", "place_of_nan") else 1)]
    for level in LEVELS:
        with np.errstate(all="ignore"):
            found = answers(str(path), feed, level)
        pairs = zip(wanted_of, found, wanted, strict=True)
        wrong = [name for name, one, other in pairs if not agree([one], [other], BY_NAME[name].rtol)]
        assert wrong == [], level


@torch.no_grad()
def test_without_its_form_a_planted_one_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(plain_forms._FORMS, "Add")
    x = torch.from_numpy(BY_NAME["zero_added"].inputs["x"])
    path = ortlens.explain(PROGRAMS["zero_added"], calls=1)(x).export_onnx(tmp_path / "zero.onnx")
    assert [float(answers(str(path), {"x": x.numpy()}, level)[0][0]) for level in LEVELS] == [np.inf, *[-np.inf] * 3]


def test_usual_layers_keep_their_operators() -> None:
    text = """g (float[n,4] x) => (float[n,4] y) <float[4,4] w, float[4] b, float eps = {0.00001}, int64[1] last = {-1}> {
  p = MatMul(x, w) h = Add(p, b) s = Mul(h, h) m = ReduceMean(s, last) a = Add(m, eps) root = Sqrt(a)
  q = Div(h, root) z = Mul(q, b) y = Add(z, b)
}"""
    model = ir.from_proto(shape_inference.infer_shapes(parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')))
    before = [node.op_type for node in model.graph]
    write_plain_forms(model)
    assert [node.op_type for node in model.graph] == before
