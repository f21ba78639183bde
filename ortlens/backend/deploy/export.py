"""Export a graph as an ONNX model to deploy: with the user's names and the weights, and runnable without ortlens."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir
import onnx_ir.tensor_adapters
import torch
import torch.fx

from ortlens import _torch
from ortlens.backend.conversion import converter, dtypes
from ortlens.backend.conversion.optimize import optimize_model
from ortlens.backend.deploy.checkpoints import StoredWeight, open_weights, stored_tensor
from ortlens.backend.memory_order import inverse_order
from ortlens.errors import ConversionError, UsageError
from ortlens.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ortlens.backend.graph import CompiledGraph

_MAX_LISTED = 8
_INLINE_BYTES = 1 << 30  # protobuf's limit is 2 GiB; above half of it the weights are written to a second file


def export_graph(  # noqa: PLR0913 - what is known about a model, each by name
    graph: CompiledGraph,
    path: str | os.PathLike[str],
    weights: object = None,
    aliases: Sequence[frozenset[str]] = (),
    arguments: Sequence[str] = (),
    *,
    inline_bytes: int | None = None,
) -> pathlib.Path:
    """Write the deployable model of a graph that runs as one partition; nothing is left behind if that fails.

    `weights` is a source for `open_weights`, or None for the graph's own; `aliases` name tied weights, `arguments` the inputs that Dynamo
    only numbers. Above `inline_bytes` of weights, 1 GiB by default, a second file, `{name}.data`, is written beside the model.
    """
    graph = graph.for_deployment()
    _require_cover(graph)
    target = pathlib.Path(path).absolute()
    if not target.parent.is_dir():
        raise UsageError(f"cannot write {target}: there is no folder {target.parent}")
    stored = _stored_weights(graph, weights, aliases)
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.runners[0].model)  # to name a constant names it in the proto that holds its data
    model = ir.from_proto(proto)
    _derive_sizes(graph, model)
    with _torch.quiet():
        model = optimize_model(model)  # before the weights are placed: the passes would read every one of them
    _place_weights(graph, model, stored, aliases)
    _name_boundary(graph, model, arguments)
    _keep_pads(model)
    try:
        _save(model, target, _INLINE_BYTES if inline_bytes is None else inline_bytes)
    except OSError as error:
        raise UsageError(f"the model cannot be written to {target}: {error.strerror or error}; what was there is untouched") from error
    return target


def _require_cover(graph: CompiledGraph) -> None:
    if graph.lowered.phase != "inference":
        raise UsageError("the graph was compiled for training; compile it under torch.no_grad() to export it")
    left = {**graph.left_in_torch(), **graph.numbers_from_torch()}
    if left or len(graph.runners) != 1:
        listed = _listed([f"{name}: {reason}" for name, reason in left.items()])
        count = f"{len(left)} node{'s stay' if len(left) != 1 else ' stays'}"
        raise UsageError(f"only a graph that runs entirely in ONNX Runtime can be exported; {count} in PyTorch: {listed}")


def _stored_weights(graph: CompiledGraph, weights: object, aliases: Sequence[frozenset[str]]) -> dict[str, StoredWeight]:
    """Map the FX name of each weight input to the weight; the error lists all mismatches."""
    wanted = graph.weight_inputs()  # FX name -> (outer name, fake or real tensor)
    if weights is None:
        missing = [outer for outer, tensor in wanted.values() if _torch.is_fake(tensor) or tensor is None]
        if missing:
            raise UsageError(f"the model has no data for {_listed(missing)}; name a checkpoint with weights=")
        return {name: stored_tensor(tensor, "the model") for name, (_, tensor) in wanted.items()}
    given = open_weights(weights)
    found = {name: _look_up(outer, given, aliases) for name, (outer, _) in wanted.items()}
    problems = [*_misfits(wanted, found), *_extras(wanted, given, aliases)]
    if problems:
        raise UsageError(f"the weights do not fit the model: {_listed(problems)}")
    return {name: weight for name, weight in found.items() if weight is not None}


def _look_up(outer: str, given: Mapping[str, StoredWeight], aliases: Sequence[frozenset[str]]) -> StoredWeight | None:
    names = [outer, *sorted(_names_of(outer, aliases))]
    return next((given[name] for name in names if name in given), None)


def _names_of(outer: str, aliases: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return all names of a weight, including this one."""
    return next((names for names in aliases if outer in names), frozenset({outer}))


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


def _extras(wanted: Mapping[str, tuple[str, Any]], given: Mapping[str, StoredWeight], aliases: Sequence[frozenset[str]]) -> list[str]:
    known = {outer for outer, _ in wanted.values()} | {name for group in aliases for name in group}
    return [f"{name} in {given[name].origin} is not in the model" for name in given if name not in known]


def _listed(items: Sequence[str]) -> str:
    left_out = len(items) - _MAX_LISTED
    return "; ".join(items[:_MAX_LISTED]) + (f"; and {left_out} more" if left_out > 0 else "")


def _place_weights(graph: CompiledGraph, model: ir.Model, stored: Mapping[str, StoredWeight], aliases: Sequence[frozenset[str]]) -> None:
    """Turn weight inputs into initializers; tied weights share one."""
    outer_names = {name: outer for name, (outer, _) in graph.weight_inputs().items()}
    placed: dict[frozenset[str], ir.Value] = {}
    for value in list(model.graph.inputs):
        weight = stored.get(str(value.name))
        if weight is None or weight.dtype is None:
            continue
        model.graph.inputs.remove(value)
        outer = outer_names[str(value.name)]
        group = _names_of(outer, aliases)
        if group in placed:
            ir.convenience.replace_all_uses_with(value, placed[group])
            continue
        value.name = outer
        value.const_value = _lazy(outer, weight)
        model.graph.initializers[outer] = value
        placed[group] = value


def _lazy(name: str, weight: StoredWeight) -> ir.LazyTensor:
    dtype = weight.dtype or torch.float32
    return ir.LazyTensor(
        lambda: ir.tensor_adapters.TorchTensor(weight.load().detach().cpu().contiguous(), name=name),
        dtype=ir.DataType(dtypes.element_types()[dtype].onnx),
        shape=ir.Shape(weight.shape),
        name=name,
    )


def _derive_sizes(graph: CompiledGraph, model: ir.Model) -> None:
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


def _name_boundary(graph: CompiledGraph, model: ir.Model, arguments: Sequence[str]) -> None:
    """Give inputs and outputs the user's names and order, and outputs their logical shape, whatever their memory layout."""
    outer = {node.name: name for node, name in zip(graph.placeholders(), graph.outer_input_names(), strict=True)}
    partition = graph.runners[0].partition
    made = dict(
        zip(
            (node.name for node in partition.outputs),
            zip(model.graph.outputs, graph.runners[0].factory.permutations, strict=True),
            strict=True,
        )
    )
    inputs = {str(value.name): value for value in model.graph.inputs}
    order = graph.output_nodes()
    names = graph.lowered.output_names or tuple(f"output_{place}" for place in range(len(order)))
    model.graph.outputs.clear()
    constants = [value for name, value in model.graph.initializers.items() if name not in outer.values()]
    for value in [*constants, *(value for node in model.graph for value in node.outputs)]:
        value.name = f"{value.name}:inner"  # names of inner values must not collide with the user's
    for node, name in zip(order, _unique_names(names, outer.values()), strict=True):
        if not isinstance(node, torch.fx.Node):
            continue  # a constant, which PyTorch returns and a model cannot
        if node.name not in made and node.name not in inputs:
            raise UsageError(f"{name} is a size computed in Python, which a model cannot return; return a tensor instead")
        value, permutation = made[node.name] if node.name in made else (inputs[node.name], None)
        model.graph.outputs.append(_output(model, value, name, permutation, node.meta["val"]))
    numbered = {f"args.{place}": name for place, name in enumerate(arguments)}
    for name, value in inputs.items():
        value.name = numbered.get(outer[name], outer[name])


def _unique_names(names: Sequence[str], taken: Iterable[str]) -> list[str]:
    """Make output names unique: a function may return an input, or one value twice."""
    used, made = set(taken), []
    for name in names:
        number, unique = 1, name
        while unique in used:
            unique, number = f"{name}.{number}", number + 1
        used.add(unique)
        made.append(unique)
    return made


def _output(model: ir.Model, value: ir.Value, name: str, permutation: tuple[int, ...] | None, meta: Any) -> ir.Value:
    inverse = None if permutation is None else inverse_order(permutation)
    attributes = [] if inverse is None else [ir.AttrInt64s("perm", inverse)]
    node = ir.Node("", "Identity" if inverse is None else "Transpose", [value], attributes, num_outputs=1, name=f"{name}/out")
    node.outputs[0].name = name
    converter.set_type(node.outputs[0], meta)
    model.graph.append(node)
    return node.outputs[0]


def _keep_pads(model: ir.Model) -> None:
    """Stop ONNX Runtime from fusing a Pad with zeros into a MaxPool, which pads with -inf: it skips a MaxPool with indices."""
    for node in model.graph:
        source = node.inputs[0].producer() if node.op_type == "MaxPool" and node.inputs[0] is not None else None
        if source is not None and source.op_type == "Pad" and len(node.outputs) == 1:
            node.resize_outputs(2)
            node.outputs[1].name = f"{node.outputs[0].name}:indices"


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
    """Move a model and its data into place; if that fails, restore the old ones.

    An old model that has data goes first, so that a kill leaves no model beside data that are not its own.
    """
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
    """Tell whether an existing model stores weights in a file of this name."""
    if not target.is_file():
        return False
    try:
        model = onnx.load(str(target), load_external_data=False)
    except Exception:  # noqa: BLE001 - whatever the file is, it is not a model with external data
        return False
    return any(entry.key == "location" and entry.value == name for tensor in model.graph.initializer for entry in tensor.external_data)
