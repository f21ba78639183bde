from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from ortlens.backend import weights


def scaling_model(kind: int = TensorProto.FLOAT, size: int = 3) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Where", ["mask", "x", "w"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("mask", TensorProto.BOOL, [size]),
            helper.make_tensor_value_info("x", kind, [size]),
            helper.make_tensor_value_info("w", kind, [size]),
        ],
        [helper.make_tensor_value_info("y", kind, [size])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def frozen(name: str, tensor: torch.Tensor) -> weights.FrozenWeight:
    note = weights.freeze(name, tensor)
    assert note is not None
    return note


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_frozen_inputs_become_constants_with_their_values(inline: bool, transposed: bool) -> None:  # noqa: FBT001 - parameters
    weight = torch.rand(3, 2).t()[1] if transposed else torch.rand(3)
    mask = torch.tensor([True, False, False])
    notes = [frozen("w", weight), frozen("mask", mask)]
    model = scaling_model()
    before = model.SerializeToString()
    made = weights.with_frozen(model, notes, inline=inline)
    assert model.SerializeToString() == before
    assert [value.name for value in made.graph.input] == ["x"]
    options = onnxruntime.SessionOptions()
    if not inline:
        options.add_external_initializers(*weights.ort_values(notes))
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": np.ones(3, dtype=np.float32)})
    torch.testing.assert_close(torch.from_numpy(result), torch.where(mask, torch.ones(3), weight))


def test_the_bytes_stay_outside_the_model_unless_asked_for() -> None:
    note = frozen("w", torch.rand(5000))
    outside, inside = (weights.with_frozen(scaling_model(size=5000), [note], inline=inline) for inline in (False, True))
    assert len(outside.SerializeToString()) < 1000
    assert len(inside.SerializeToString()) > 20_000


def test_no_elements() -> None:
    for inline in (True, False):
        made = weights.with_frozen(scaling_model(size=0), [frozen("w", torch.empty(0))], inline=inline)
        assert list(made.graph.initializer[0].dims) == [0]


def test_a_note_holds_identity_version_and_address() -> None:
    weight = torch.nn.Parameter(torch.rand(3, 4))
    note = frozen("w", weight)
    assert note.tensor is weight
    assert note.contiguous.data_ptr() == note.pointer == weight.data_ptr()
    with torch.no_grad():
        weight.add_(1)
    assert weight._version == note.version + 1


def test_what_cannot_be_watched_is_not_frozen() -> None:
    with torch.inference_mode():
        unversioned = torch.rand(3)
    assert [
        weights.freeze("w", value) for value in (unversioned, 3, None, torch.rand(2, 2).to_sparse(), torch.empty(2, device="meta"))
    ] == [None] * 5
