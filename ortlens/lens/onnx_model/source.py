"""An ONNX model as it is given: what ONNX Runtime loads, and its structure without the weights."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from ortlens.backend.basis.node_provenance import graphs_of, iter_nodes, subgraphs_of
from ortlens.errors import UsageError
from ortlens.lens.profiling.kernel_records import LARGE, leave_out, size_of
from ortlens.model_file import read_model, refuse_unsafe

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_BYTES = 1 << 62  # bytes that constants may claim: records hold 64 bits
_WIDEST = 8  # bytes of an element whose number takes one byte in a file
_SERIALIZABLE = (1 << 31) - (1 << 20)  # bytes that protobuf can serialise, with some room


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class ModelSource:
    """A model, and how ONNX Runtime gets it."""

    name: str  # file name, or the name of its graph
    path: Path | None = None  # the file; None where the model came as bytes
    data: bytes | None = None  # the bytes; None where there is a file
    structure: onnx.ModelProto | None = None  # without large constants; None where unknown, as in ONNX Runtime's own format
    constant_bytes: int = 0  # size of its constants, external data included
    digest: str | None = None  # SHA-256 of the structure

    @property
    def loadable(self) -> str | bytes | None:
        """What `onnxruntime.InferenceSession` takes; None if neither file nor bytes are known."""
        return str(self.path) if self.path is not None else self.data


def source_of(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> ModelSource:
    """Read a model, which stays as it is; external data stays in its files, and weights are dropped once their sizes are known."""
    if isinstance(model, (str, os.PathLike)):
        return _from_file(Path(model).expanduser())
    if isinstance(model, onnx.ModelProto):
        return _from_proto(model)
    return _from_bytes(bytes(model), "the bytes")


def _from_bytes(data: bytes, what: str) -> ModelSource:
    return _described(_parsed(data, what, None), None, data=data)


def _from_file(path: Path) -> ModelSource:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is no plain file" if path.exists() else "does not exist"
        raise UsageError(f"{path} {what}; explain() takes the path of an ONNX file")
    path = path.absolute()
    if path.suffix == ".ort":
        return ModelSource(name=path.name, path=path)
    return _described(_parsed(path.read_bytes(), str(path), path), path)


def _parsed(data: bytes, what: str, path: Path | None) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:
        raise UsageError(
            f"{what}: not an ONNX model ({type(error).__name__}: {error}); the file is damaged or of another format"
        ) from error
    if not model.HasField("graph") or not model.opset_import:
        raise UsageError(f"{what}: not an ONNX model: it has no graph and names no operator set; the file is damaged or of another format")
    _refuse_unsafe(model, data, what, path)
    return model


def _refuse_unsafe(model: onnx.ModelProto, data: bytes, what: str, path: Path | None) -> None:
    """Refuse a damaged or hostile model. Without a path, its folder is the working directory, as for ONNX Runtime."""
    try:
        refuse_unsafe(read_model(data), path if path is not None else Path.cwd() / "model.onnx")
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{what}: not given to ONNX Runtime: {error}; the file is damaged or hostile") from error
    total = 0
    for tensor in _constants(model):
        size = size_of(tensor)
        total += size
        held = _WIDEST * tensor.ByteSize() if tensor.data_location != onnx.TensorProto.EXTERNAL else _MOST_BYTES
        if size > held or total > _MOST_BYTES or any(dim < 0 for dim in tensor.dims):
            sizes = list(tensor.dims)[:8]
            raise UsageError(f"{what}: the constant {tensor.name!r} has sizes {sizes}, which its data are not; the file is damaged")


def _described(model: onnx.ModelProto, path: Path | None, *, data: bytes | None = None) -> ModelSource:
    what = str(path) if path is not None else "the model"
    constants = _stripped(model, path.parent if path is not None else None)
    if not _is_readable(model):
        raise UsageError(f"{what}: not an ONNX model: one of its texts is not UTF-8; the file is damaged")
    stripped = model.SerializeToString(deterministic=True)
    return ModelSource(
        name=path.name if path is not None else model.graph.name or "an ONNX model",
        path=path,
        data=data,
        structure=onnx.ModelProto.FromString(stripped),  # protobuf frees what was cleared only with the message that was read
        constant_bytes=constants,
        digest=hashlib.sha256(stripped).hexdigest(),
    )


def _from_proto(model: onnx.ModelProto) -> ModelSource:
    if model.ByteSize() < _SERIALIZABLE:
        return _from_bytes(model.SerializeToString(), "the model")
    # Protobuf serialises 2 GiB at most: the weights go into a file of their own. The copy shares nothing with the user's model.
    folder = tempfile.TemporaryDirectory(prefix="ortlens-model-", ignore_cleanup_errors=True)
    path = Path(folder.name) / "model.onnx"
    onnx.save_model(copy.deepcopy(model), path, save_as_external_data=True, location="weights.bin")
    source = _described(_parsed(path.read_bytes(), str(path), path), path)
    weakref.finalize(source, folder.cleanup)  # with the source, or when the interpreter exits
    return source


def _stripped(model: onnx.ModelProto, folder: Path | None) -> int:
    """Leave out the data of large constants and read small external ones; return the bytes of all constants."""
    total = 0
    for tensor in _constants(model):
        size = size_of(tensor)
        total += size
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            if size <= LARGE and folder is not None:
                with contextlib.suppress(Exception):  # a missing or damaged file: ONNX Runtime says so
                    onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
                    tensor.data_location = onnx.TensorProto.DEFAULT
                    del tensor.external_data[:]
        elif size > LARGE:
            leave_out(tensor)
    return total


def _is_readable(message: Any) -> bool:
    """Tell whether all texts are UTF-8: protobuf returns bytes for those that are not."""
    for descriptor, value in message.ListFields():
        items = value if descriptor.is_repeated else (value,)
        if descriptor.type == descriptor.TYPE_STRING and any(isinstance(text, bytes) for text in items):
            return False
        if descriptor.type == descriptor.TYPE_MESSAGE and not all(_is_readable(item) for item in items):
            return False
    return True


def _constants(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in graphs_of(model):
        yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def with_names(structure: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with a name for each node: `Add_3` as in a profile, by operator and place among those that are no `Constant`."""
    made = copy.deepcopy(structure)
    taken = {node.name for node in iter_nodes(made.graph) if node.name}
    given: set[str] = set()
    _name_all(made.graph, taken, given)
    return made


def _name_all(graph: onnx.GraphProto, taken: set[str], given: set[str]) -> None:
    place = 0
    for node in graph.node:
        if not node.name or node.name in given:
            base = node.name or f"{node.op_type}_{place}"
            name, number = base, 1
            while name in given or (name in taken and name != node.name):
                name, number = f"{base}_{number}", number + 1
            node.name = name
        given.add(node.name)
        place += node.op_type != "Constant"
    for node in graph.node:
        for _, body in subgraphs_of(node):
            _name_all(body, taken, given)
