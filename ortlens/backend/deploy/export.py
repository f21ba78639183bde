"""Export a graph as an ONNX model to deploy: with the user's names and the weights, and runnable without ortlens."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
import onnx_ir as ir
import onnx_ir.tensor_adapters
import torch

from ortlens import _torch
from ortlens._shell import progress
from ortlens._versions import require
from ortlens.backend.basis import dtypes
from ortlens.backend.basis.error_text import short_text
from ortlens.backend.basis.memory_order import inverse_order
from ortlens.backend.conversion import converter
from ortlens.backend.conversion.optimize import optimize_model
from ortlens.backend.deploy.conditions import ConditionWriter, condition_text
from ortlens.backend.deploy.plain_forms import write_plain_forms
from ortlens.errors import ConversionError, OrtLensError, UsageError

if sys.platform == "win32":
    from pathlib import WindowsPath as _Path
else:
    from pathlib import PosixPath as _Path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ortlens.backend.graph import PlannedGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """A weight that is loaded on demand."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None  # its element type; None if torch has no counterpart to the file's
    load: Callable[[], torch.Tensor]  # returns the tensor
    origin: str  # where it comes from, for messages


def open_weights(source: object) -> dict[str, StoredWeight]:
    """List the weights of a checkpoint by name, without reading the tensors.

    A source is a `.safetensors` file, a `*.index.json` of a sharded one, a torch checkpoint (`.pt`, `.pth`, `.bin`), a folder with one of
    these, a mapping of names to tensors, or a sequence of sources, of which later ones override earlier ones.
    """
    if isinstance(source, Mapping):
        return {str(name): stored_tensor(tensor, f"the mapping given for {name}") for name, tensor in source.items()}
    if isinstance(source, (list, tuple)):
        merged: dict[str, StoredWeight] = {}
        for part in source:
            merged.update(open_weights(part))
        return merged
    path = _checkpoint_in(pathlib.Path(str(source)))
    try:
        return dict(_read(path))
    except OrtLensError:
        raise
    except Exception as error:
        said = next(iter(str(error).splitlines()), "")[:300]
        raise UsageError(f"cannot read weights from {path}: {type(error).__name__}: {said}") from error


def _checkpoint_in(path: pathlib.Path) -> pathlib.Path:
    if path.is_dir():
        for pattern in ("*.safetensors.index.json", "*.safetensors", "*.bin.index.json", "*.bin", "*.pt", "*.pth"):
            found = sorted(path.glob(pattern))
            if found:
                return found[0]
        raise UsageError(f"the folder {path} contains no checkpoint (.safetensors, .bin, .pt, .pth or an index of them)")
    if not path.is_file():
        raise UsageError(f"there is no checkpoint {path}")
    return path


def _read(path: pathlib.Path) -> Iterator[tuple[str, StoredWeight]]:
    if path.name.endswith(".index.json"):
        index = json.loads(path.read_text(encoding="utf-8"))
        for shard in sorted(set(index["weight_map"].values())):
            yield from _read(path.parent / pathlib.PurePosixPath(shard).name)  # a shard outside the index's folder is not read
    elif path.suffix == ".safetensors":
        yield from _read_safetensors(path)
    else:
        yield from _read_torch(path)


def _read_safetensors(path: pathlib.Path) -> Iterator[tuple[str, StoredWeight]]:
    safetensors = require("safetensors", "Reading a .safetensors file")

    def loader(name: str) -> Callable[[], torch.Tensor]:
        def load() -> torch.Tensor:
            with safetensors.safe_open(str(path), framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
                return tensor

        return load

    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            entries = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118 - not a mapping
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    known = {element.short.upper(): dtype for dtype, element in dtypes.ELEMENT_TYPES.items()}
    for name, entry in entries:
        dtype = known.get(entry.get_dtype())
        yield name, StoredWeight(shape=tuple(entry.get_shape()), dtype=dtype, load=loader(name), origin=path.name)


def _read_torch(path: pathlib.Path) -> Iterator[tuple[str, StoredWeight]]:
    """Read a torch checkpoint through a memory map; only tensors are unpickled."""
    try:
        content: Any = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except RuntimeError:  # written by torch before 1.6: not a zip file, so it cannot be mapped
        content = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping):
        raise TypeError(f"it contains a {type(content).__name__}, not a mapping of names to tensors")
    for name, tensor in content.items():
        if isinstance(tensor, torch.Tensor):
            yield str(name), stored_tensor(tensor, path.name)


def stored_tensor(tensor: Any, origin: str) -> StoredWeight:
    """Wrap a tensor that is already loaded; raise `UsageError` for anything else, with `origin` in the message."""
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{origin} is a {type(tensor).__name__}, not a tensor")
    return StoredWeight(shape=tuple(tensor.shape), dtype=tensor.dtype, load=lambda: tensor, origin=origin)


_MAX_LISTED = 8
_INLINE_BYTES = 1 << 30  # protobuf's limit is 2 GiB; above half of it the weights are written to a second file


class ExportedTensor(NamedTuple):
    """An input or output of an exported model.

    Attributes:
        name: Its name in the file.
        dtype: Its element type, as `float32`.
        shape: A number for each size that is fixed, a name or an expression of names for each that varies.
        path: Where it is in the call of the function, as `parts['mask']` or `result['logits']`; the name of a buffer for state.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    path: str


class ExportedModel(_Path):
    """The file of an exported model: a path that also has the signature.

    Attributes:
        inputs: What the model takes, in order: the tensors among the arguments, then the state that it updates.
        outputs: What it returns, in order: the results, then the new values of state and of arguments that are written to.
        conditions: What else holds for the sizes, as Python; a run of the model fails where one does not.

    Example:
        >>> import tempfile, torch, ortlens
        >>> with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        ...     model = ortlens.explain(torch.nn.Linear(4, 2), calls=1)(torch.ones(3, 4)).export_onnx(f"{folder}/model.onnx")
        >>> model.inputs
        (ExportedTensor(name='input', dtype='float32', shape=(3, 4), path='input'),)
    """

    inputs: tuple[ExportedTensor, ...] = ()
    outputs: tuple[ExportedTensor, ...] = ()
    conditions: tuple[str, ...] = ()

    def with_segments(self, *segments: str | os.PathLike[str]) -> pathlib.Path:
        """Make the paths that are derived from this one, which are plain ones.

        Args:
            *segments: Parts of a path.

        Returns:
            The path.
        """
        return pathlib.Path(*segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """What is known of a model's signature beside its graph."""

    size_names: Mapping[str, str] = field(default_factory=dict)  # symbol of a size -> its name in the model
    paths: Mapping[str, str] = field(default_factory=dict)  # name of an input or output -> where it is in a call; by default the name
    arguments: Sequence[str] = ()  # names of the inputs that conditions refer to by place
    conditions: Sequence[Any] = ()  # in the form of `deploy.conditions`
    numbers: Mapping[str, Any] = field(default_factory=dict)  # node of a result that is a number -> how it is computed, in that form
    order: Sequence[str] = ()  # names of inputs in the order of the function's parameters; others come last
    has_loader: bool = False  # whether a loader checks all conditions, also those of which ONNX has no form


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Where the weights of a model are from."""

    given: object = None  # for `open_weights`; None: the graph's own
    aliases: Sequence[frozenset[str]] = ()  # names of tied weights

    def names_of(self, name: str) -> frozenset[str]:
        """Return all names of a weight."""
        return next((names for names in self.aliases if name in names), frozenset({name}))


def export_graph(
    graph: PlannedGraph,
    path: str | os.PathLike[str],
    weights: WeightSource,
    *,
    boundary: Boundary,
    inline_bytes: int | None = None,
) -> ExportedModel:
    """Write the deployable model of a graph that runs as one partition; nothing is left behind if that fails.

    Above `inline_bytes` of weights, 1 GiB by default, a second file, `{name}.data`, is written beside the model.
    """
    graph = graph.for_deployment()
    _require_cover(graph)
    target = pathlib.Path(path).absolute()
    if not target.parent.is_dir():
        raise UsageError(f"cannot write {target}: there is no folder {target.parent}")
    stored = _stored_weights(graph, weights)
    model = _model_of(graph)
    _complete_inputs(graph, model)
    _derive_sizes(graph, model)
    with _torch.quiet():
        model = optimize_model(model)  # before the weights are placed: the passes would read every one of them
    inputs = {str(value.name): value for value in model.graph.inputs}
    nodes, outer = graph.placeholders(), graph.outer_input_names()
    arguments = {name: inputs.get(node.name) for name, node in zip(outer, nodes, strict=True)}
    writer = ConditionWriter(model, [arguments.get(name) for name in boundary.arguments])
    weights_by_node = _place_weights(graph, model, stored, weights)
    _name_boundary(graph, model, weights_by_node, lambda node: writer.number(boundary.numbers[node.name]))
    places = {name: place for place, name in enumerate(boundary.order)}
    ordered = sorted(model.graph.inputs, key=lambda value: places.get(str(value.name), len(places)))
    model.graph.inputs.clear()
    model.graph.inputs.extend(ordered)
    write_plain_forms(model)
    _name_sizes(model, boundary.size_names)
    conditions = tuple(condition_text(condition, boundary.arguments) for condition in boundary.conditions)
    for condition, text in zip(boundary.conditions, conditions, strict=True):
        writer.add(condition, text, needed=not boundary.has_loader)
    writer.close()
    try:
        _save(model, target, _INLINE_BYTES if inline_bytes is None else inline_bytes)
    except OSError as error:
        raise UsageError(f"the model cannot be written to {target}: {error.strerror or error}; what was there is untouched") from error
    made = ExportedModel(target)
    made.inputs, made.outputs = (_listed_tensors(values, boundary.paths) for values in (model.graph.inputs, model.graph.outputs))
    made.conditions = conditions
    return made


def _listed_tensors(values: Sequence[ir.Value], paths: Mapping[str, str]) -> tuple[ExportedTensor, ...]:
    return tuple(
        ExportedTensor(
            name=str(value.name),
            dtype="" if value.dtype is None else value.dtype.numpy().name,
            shape=tuple(size if isinstance(size, int) else str(size.value) for size in value.shape or ()),
            path=paths.get(str(value.name), str(value.name)),
        )
        for value in values
    )


def _name_sizes(model: ir.Model, names: Mapping[str, str]) -> None:
    """Put the user's names of sizes in the place of PyTorch's symbols."""
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    for value in values:
        for dim, size in enumerate(value.shape or ()):
            if isinstance(size, ir.SymbolicDim) and size.value is not None and value.shape is not None:
                value.shape[dim] = _WORD.sub(lambda word: names.get(word[0], word[0]), size.value)


_WORD = re.compile(r"[A-Za-z_]\w*")


def _require_cover(graph: PlannedGraph) -> None:
    if graph.lowered.phase != "inference":
        raise UsageError("the graph was compiled for training; compile it under torch.no_grad() to export it")
    if graph.failure is not None:
        raise UsageError(f"the graph cannot be converted as a whole: {short_text(graph.failure)}") from graph.failure
    left = {**graph.left_in_torch(), **graph.numbers_from_torch()}
    if len(graph.runners) > 1 and not left:
        raise UsageError(f"only a graph of one partition can be exported; this one has {len(graph.runners)}")
    if left:
        listed = _listed([f"{name}: {reason}" for name, reason in left.items()])
        count = f"{len(left)} node{'s stay' if len(left) != 1 else ' stays'}"
        raise UsageError(f"only a graph that runs entirely in ONNX Runtime can be exported; {count} in PyTorch: {listed}")


def _model_of(graph: PlannedGraph) -> ir.Model:
    """Copy the model of the only partition; a graph that computes nothing has an empty one."""
    if not graph.runners:
        chosen = graph.context.options.export_options
        version = (chosen and chosen.opset_version) or graph.context.registry.opset_version
        return ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": version}, name="partition_0"), ir_version=10)
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.runners[0].model)  # to name a constant names it in the proto that holds its data
    return ir.from_proto(proto)


def _complete_inputs(graph: PlannedGraph, model: ir.Model) -> None:
    """Add the arguments that nothing computes with, and what is only returned; arguments come first, in their order."""
    given = {str(value.name): value for value in model.graph.inputs}
    nodes, returned = graph.placeholders(), set(graph.output_nodes())
    arguments = graph.lowered.arguments
    order = [*arguments, *(place for place in range(len(nodes)) if place not in set(arguments))]
    model.graph.inputs.clear()
    for place in order:
        node = nodes[place]
        if node.name in given:
            model.graph.inputs.append(given[node.name])
        elif (place in arguments or node in returned) and _is_value(node.meta["val"]):
            model.graph.inputs.append(ir.Value(name=node.name))
            converter.set_type(model.graph.inputs[-1], node.meta["val"])


def _is_value(meta: Any) -> bool:
    return isinstance(meta, torch.Tensor) or _torch.is_symbolic(meta)


def _stored_weights(graph: PlannedGraph, weights: WeightSource) -> dict[str, StoredWeight]:
    """Map the FX name of each weight input to the weight; the error lists all mismatches."""
    wanted = graph.weight_inputs()  # FX name -> (outer name, fake or real tensor)
    if weights.given is None:
        missing = [outer for outer, tensor in wanted.values() if _torch.is_fake(tensor) or tensor is None]
        if missing:
            raise UsageError(f"the model has no data for {_listed(missing)}; name a checkpoint with weights=")
        return {name: stored_tensor(tensor, "the model") for name, (_, tensor) in wanted.items()}
    given, found = open_weights(weights.given), dict[str, StoredWeight | None]()
    for name, (outer, _) in wanted.items():
        found[name] = next((given[other] for other in (outer, *sorted(weights.names_of(outer))) if other in given), None)
    known = {outer for outer, _ in wanted.values()}.union(*weights.aliases)
    extras = [f"{name} in {weight.origin} is not in the model" for name, weight in given.items() if name not in known]
    problems = [*_misfits(wanted, found), *extras]
    if problems:
        raise UsageError(f"the weights do not fit the model: {_listed(problems)}")
    return {name: weight for name, weight in found.items() if weight is not None}


def _misfits(wanted: Mapping[str, tuple[str, Any]], found: Mapping[str, StoredWeight | None]) -> list[str]:
    problems = []
    for name, (outer, tensor) in wanted.items():
        weight = found[name]
        if weight is None:
            problems.append(f"{outer} is missing")
        elif weight.shape != tuple(tensor.shape):
            problems.append(f"{outer} has shape {list(weight.shape)} in {weight.origin}, the model takes {list(tensor.shape)}")
        elif weight.dtype != tensor.dtype:
            problems.append(f"{outer} is {weight.dtype} in {weight.origin}, the model takes {tensor.dtype}")
    return problems


def _listed(items: Sequence[str]) -> str:
    left_out = len(items) - _MAX_LISTED
    return "; ".join(items[:_MAX_LISTED]) + (f"; and {left_out} more" if left_out > 0 else "")


def _place_weights(graph: PlannedGraph, model: ir.Model, stored: Mapping[str, StoredWeight], weights: WeightSource) -> dict[str, ir.Value]:
    """Turn weight inputs into initializers, and return them by the names of their nodes; tied weights share one."""
    outer_names = {name: outer for name, (outer, _) in graph.weight_inputs().items()}
    placed: dict[frozenset[str], ir.Value] = {}
    by_node: dict[str, ir.Value] = {}
    for value in list(model.graph.inputs):
        node_name = str(value.name)
        weight = stored.get(node_name)
        if weight is None or weight.dtype is None:
            continue
        model.graph.inputs.remove(value)
        outer = outer_names[node_name]
        group = weights.names_of(outer)
        if group in placed:
            by_node[node_name] = placed[group]
            ir.convenience.replace_all_uses_with(value, placed[group])
            continue
        value.name = outer
        value.const_value = _lazy(outer, weight)
        model.graph.initializers[outer] = value
        placed[group] = by_node[node_name] = value
    return by_node


def _lazy(name: str, weight: StoredWeight) -> ir.LazyTensor:
    dtype = weight.dtype or torch.float32
    return ir.LazyTensor(
        lambda: ir.tensor_adapters.TorchTensor(weight.load().detach().cpu().contiguous(), name=name),
        dtype=ir.DataType(dtypes.ELEMENT_TYPES[dtype].onnx),
        shape=ir.Shape(weight.shape),
        name=name,
    )


def _derive_sizes(graph: PlannedGraph, model: ir.Model) -> None:
    """Compute each size that Dynamo passes as an input from its tensor: a deployed model takes tensors only."""
    by_symbol: dict[str, tuple[str, int]] = {}
    nodes = {node.name: node for node in graph.placeholders()}
    for value in model.graph.inputs:
        meta = nodes[str(value.name)].meta["val"]
        for dim, size in enumerate(meta.shape if isinstance(meta, torch.Tensor) else ()):
            by_symbol.setdefault(_torch.expression_of(size), (str(value.name), dim))
    for value in list(model.graph.inputs):
        meta = nodes[str(value.name)].meta["val"]
        source = None if isinstance(meta, torch.Tensor) else by_symbol.get(_torch.expression_of(meta))
        if source is not None:
            _replace_by_size(model, value, *source)


def takes_numbers(graph: PlannedGraph) -> bool:
    """Tell whether a graph takes a number that is no size of an input."""
    metas = [node.meta["val"] for node in graph.placeholders()]
    sizes = {_torch.expression_of(size) for meta in metas if isinstance(meta, torch.Tensor) for size in meta.shape}
    return any(_torch.is_symbolic(meta) and _torch.expression_of(meta) not in sizes for meta in metas if not isinstance(meta, torch.Tensor))


def _replace_by_size(model: ir.Model, value: ir.Value, tensor_name: str, dim: int) -> None:
    tensor = next(entry for entry in model.graph.inputs if entry.name == tensor_name)
    attributes = [ir.AttrInt64("start", dim), ir.AttrInt64("end", dim + 1)]
    shape = ir.Node("", "Shape", [tensor], attributes, num_outputs=1, name=f"{value.name}/Shape")
    scalar = ir.Node("", "Squeeze", [shape.outputs[0]], [], num_outputs=1, name=f"{value.name}/Squeeze")
    for node in reversed((shape, scalar)):
        model.graph.insert_before(model.graph[0], node)
    scalar.outputs[0].type, scalar.outputs[0].shape = value.type, value.shape
    model.graph.inputs.remove(value)
    ir.convenience.replace_all_uses_with(value, scalar.outputs[0])


def _name_boundary(
    graph: PlannedGraph, model: ir.Model, weights: Mapping[str, ir.Value], number_of: Callable[[torch.fx.Node], ir.Value]
) -> None:
    """Give inputs and outputs the user's names and order, and outputs their logical shape, whatever their memory layout."""
    outer = {node.name: name for node, name in zip(graph.placeholders(), graph.outer_input_names(), strict=True)}
    inputs = {str(value.name): value for value in model.graph.inputs}
    values: dict[str, tuple[ir.Value, tuple[int, ...] | None]] = {name: (value, None) for name, value in {**inputs, **weights}.items()}
    for runner in graph.runners:
        made = zip(runner.partition.outputs, model.graph.outputs, runner.factory.permutations, strict=True)
        values |= {node.name: (value, permutation) for node, value, permutation in made}
    nodes, names = graph.output_nodes(), graph.lowered.output_names
    model.graph.outputs.clear()
    constants = [value for name, value in model.graph.initializers.items() if name not in outer.values()]
    for value in [*constants, *(value for node in model.graph for value in node.outputs)]:
        value.name = f"{value.name}:inner"  # names of inner values must not collide with the user's
    updates = graph.lowered.updates
    for place in sorted(range(len(nodes)), key=lambda place: place in updates):
        node, name = nodes[place], names[place]
        if not isinstance(node, torch.fx.Node):
            continue  # a constant, which PyTorch returns and a model cannot
        try:
            value, permutation = values[node.name] if node.name in values else (number_of(node), None)
        except (KeyError, NotImplementedError) as error:
            raise UsageError(f"{name} is a number computed in Python, of which ONNX has no form; return a tensor instead") from error
        model.graph.outputs.append(_output(model, value, permutation, name, node.meta["val"]))
    for name, value in inputs.items():
        value.name = outer[name]
    taken = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    for name in [name for name in model.graph.initializers if name in taken]:
        weight = model.graph.initializers.pop(name)
        weight.name = f"{name}:weight"
        model.graph.initializers[weight.name] = weight


def _output(model: ir.Model, value: ir.Value, permutation: tuple[int, ...] | None, name: str, meta: Any) -> ir.Value:
    inverse = None if permutation is None else inverse_order(permutation)
    attributes = [] if inverse is None else [ir.AttrInt64s("perm", inverse)]
    node = ir.Node("", "Identity" if inverse is None else "Transpose", [value], attributes, num_outputs=1, name=f"{name}/out")
    node.outputs[0].name = name
    converter.set_type(node.outputs[0], meta)
    model.graph.append(node)
    return node.outputs[0]


def _save(model: ir.Model, target: pathlib.Path, inline_bytes: int) -> None:
    """Write to a temporary folder, check, then move into place, so that the target is never half written."""
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    data = target.with_suffix(".data") if size > inline_bytes else None
    folder = pathlib.Path(tempfile.mkdtemp(prefix=".ortlens-", dir=target.parent))
    try:
        with progress("writing weights", len(model.graph.initializers), "weight") as step:
            ir.save(model, folder / target.name, external_data=None if data is None else data.name, callback=lambda *_: step(1))
        try:
            onnx.checker.check_model(str(folder / target.name))
        except onnx.checker.ValidationError as error:
            raise ConversionError(f"the exported model does not pass onnx.checker: {error}") from error
        _move(folder, target, data)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: pathlib.Path, target: pathlib.Path, data: pathlib.Path | None) -> None:
    """Move a model and its data into place, an old one with data aside first; if that fails, restore the old ones."""
    old = target.with_suffix(".data")
    ours = old.exists() and _refers_to(target, old.name)
    if data is not None and old.exists() and not ours:
        raise UsageError(f"{old} already exists and does not belong to an earlier {target.name}; move it, or export under another name")
    aside = folder / "old"
    aside.mkdir()
    moves = [(target, aside / target.name), (old, aside / old.name)] if ours else []
    moves += [] if data is None else [(folder / data.name, data)]
    done = []
    try:
        for source, place in moves:
            source.rename(place)
            done.append((source, place))
        os.replace(folder / target.name, target)  # noqa: PTH105 - replaces, on every platform
    except BaseException:
        for source, place in reversed(done):
            place.rename(source)
        raise


def _refers_to(target: pathlib.Path, name: str) -> bool:
    if not target.is_file():
        return False
    try:
        model = onnx.load(str(target), load_external_data=False)
    except Exception:  # noqa: BLE001 - whatever the file is, it is not a model with external data
        return False
    return any(entry.key == "location" and entry.value == name for tensor in model.graph.initializer for entry in tensor.external_data)
