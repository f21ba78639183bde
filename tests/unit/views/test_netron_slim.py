"""Weights taken out of models on the wire, held against the onnx package."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from ortlens.model_file import BYTES, FIXED32, FIXED64, VARINT, WireError, fields
from ortlens.views.slim_model import KEPT_TENSOR_BYTES, field_bytes, slim_model
from tests.onnx_models import everything
from tests.recorded import recorded


def tensors(model: onnx.ModelProto) -> list[TensorProto]:
    found: list[TensorProto] = []

    def walk(message: object) -> None:
        for descriptor, value in message.ListFields():  # type: ignore[attr-defined]
            for item in value if descriptor.is_repeated else [value]:
                if isinstance(item, TensorProto):
                    found.append(item)
                elif descriptor.message_type is not None:
                    walk(item)

    walk(model)
    return found


# ---- the wire ----


def test_fields_are_those_that_protobuf_reads() -> None:
    written = field_bytes(1, 0) + field_bytes(2, 300) + field_bytes(3, b"text") + b"\x21" + bytes(8) + b"\x2d" + bytes(4)
    assert [(field.number, field.kind, field.value) for field in fields(written)] == [
        (1, VARINT, 0),
        (2, VARINT, 300),
        (3, BYTES, b"text"),
        (4, FIXED64, bytes(8)),
        (5, FIXED32, bytes(4)),
    ]
    assert b"".join(field.raw for field in fields(written)) == written


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**20))
@settings(max_examples=50)
def test_numbers_of_any_size_come_back(value: int, number: int) -> None:
    assert [(field.number, field.value) for field in fields(field_bytes(number, value))] == [(number, value)]


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (b"\x0a\x05abc", "5 bytes expected, 3 left"),
        (b"\x08", "ends inside a number"),
        (b"\xff" * 12, "more than 10 bytes"),
        (b"\x0b\x00", "type 3"),
    ],
)
def test_damage_is_told(damaged: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        list(fields(damaged))


# ---- weights taken out ----


def test_large_tensors_become_references_wherever_they_are() -> None:
    before = onnx.load_from_string(everything())
    after = onnx.load_from_string(slim_model(everything()).data)
    held, slim = tensors(before), tensors(after)
    assert {tensor.name for tensor in held} == {"large", "small", "nested", "attribute", "in a function"}
    assert [(one.name, one.dims, one.data_type) for one in slim] == [(one.name, one.dims, one.data_type) for one in held]
    for tensor, whole in zip(slim, held, strict=True):
        if tensor.name == "small":
            assert tensor == whole
        else:
            assert (tensor.data_location, tensor.raw_data) == (TensorProto.EXTERNAL, b"")
            assert [entry.value for entry in tensor.external_data] == ["(left out by ortlens)"]


def test_the_rest_of_a_model_stays_as_it_was() -> None:
    converted = recorded("models").attachments["models/m0.onnx"]  # without weights inside
    assert onnx.load_from_string(slim_model(converted).data) == onnx.load_from_string(converted)
    before, after = onnx.load_from_string(everything()), onnx.load_from_string(slim_model(everything()).data)
    for tensor in (*tensors(before), *tensors(after)):
        name = tensor.name
        tensor.Clear()
        tensor.name = name
    assert after == before


def test_what_a_model_is_made_of_is_counted() -> None:
    slim = slim_model(everything())
    assert slim.node_count == 6  # those in both branches and in the function too
    assert slim.operators == {("ai.onnx", "Constant"), ("ai.onnx", "If"), ("com.microsoft", "Gelu"), ("ai.onnx", "Relu")}
    assert slim.opsets == (("ai.onnx", 18), ("com.microsoft", 1))
    assert slim.left_out_tensors == 5
    assert len(slim.data) < 2000 < KEPT_TENSOR_BYTES * 8


CUT = [everything()[:-cut] for cut in (1, 10, 200, 2000)]


@pytest.mark.parametrize("data", [*CUT, b"", b"PK\x03\x04zip", b"\x08\x0a", b'{"json": 1}', bytes(64)])
def test_other_files_and_parts_of_models_are_no_models(data: bytes) -> None:
    with pytest.raises(WireError):
        slim_model(data)


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_any_bytes_give_a_model_or_a_sentence(data: bytes) -> None:
    try:
        made = slim_model(data)
    except WireError:
        return
    assert list(fields(made.data))


def test_graphs_in_graphs_in_graphs_end() -> None:
    graph = b""
    for _ in range(40):  # by hand: protobuf itself refuses to go so deep
        branch = field_bytes(6, graph)
        graph = field_bytes(1, field_bytes(5, branch))
    with pytest.raises(WireError, match="nested deeper"):
        slim_model(field_bytes(7, graph))
