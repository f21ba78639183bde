"""Records of FX nodes, partitions, models and sessions, and findings about failures after which the results are still correct.

The line that changed a weight is found by its name, in the files that the call which noticed the change came through; only where a single
line can have. Nothing is watched for it: the sources are read when a session is made anew, which is rare.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from ortlens import _torch
from ortlens.analysis.problems.catalogue import remedy
from ortlens.backend.basis import node_provenance, provenance
from ortlens.backend.basis.memory_order import is_dense
from ortlens.backend.basis.provenance import StackFrame, is_model_code
from ortlens.backend.lowering.buffer_writes import written_before
from ortlens.backend.partitioning.plan import NodeKind, Verdict, kind_of, writes
from ortlens.backend.runtime import devices
from ortlens.backend.runtime.session import signature_text
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import onnx

    from ortlens.backend.partitioning.plan import Plan
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.backend.runtime.session import SessionInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The ids of a partition in the records."""

    graph_id: str
    partition_id: str  # its own id
    model_id: str  # the id of its ONNX model
    session_id: str | None = None  # the id of its latest session; None before the first call


Origins: TypeAlias = dict[str, dict[str, tuple[str, r.Confidence]]]
"""FX node name -> name of each ONNX node made from it -> its operator, and how certain its origin is."""

_KINDS: dict[NodeKind, r.NodeKind] = {NodeKind.COMPUTE: "compute", NodeKind.SIZE: "size", NodeKind.EFFECT: "effect"}


def node_record(  # noqa: PLR0913 - ids and facts, each a column
    graph_id: str, plan: Plan, node: torch.fx.Node, *, partition_id: str | None, origins: Origins, in_place: bool = False
) -> r.Node:
    """Make the record of a node with a verdict; items of tuples have none. With `in_place`, a session writes its result over an input."""
    line, module = provenance.user_line(node), provenance.module_path(node)
    verdict, inside, value = plan.verdicts[node], plan.in_partition(node), node.meta.get("val")
    items, onnx_nodes = _items_of(node), origins.get(node.name, {}) if inside else {}
    counted = kind_of(node) is NodeKind.COMPUTE
    return r.Node(
        graph_id=graph_id,
        node=node.name,
        target=provenance.target_name(node),
        kind=_KINDS[kind_of(node)],
        inputs=_read_by(node),
        module=module.path,
        module_type=module.type,
        **line._asdict(),
        dtype=provenance.dtype_text(value),
        shape=provenance.shape_text(value),
        partition_id=partition_id,
        supported=inside or verdict.supported,
        reason_code=verdict.code,
        reason=verdict.reason,
        flops=provenance.node_flops(node) if counted else 0,
        bytes=provenance.node_bytes(node) if counted else 0,
        output_bytes=provenance.tensor_bytes(value) if counted else 0,
        is_output=_is_returned(node),
        mutates=writes(node),
        onnx_nodes=tuple(onnx_nodes),
        onnx_confidences=tuple(confidence for _, confidence in onnx_nodes.values()),
        onnx_ops=tuple(op for op, _ in onnx_nodes.values()),
        items=tuple(item.name for item in items),
        item_sizes=tuple(provenance.tensor_bytes(item.meta.get("val")) for item in items),
        item_outputs=tuple(item.name for item in items if any(user.op == "output" for user in item.users)),
        item_inputs=tuple(source.name for source in node.all_input_nodes if kind_of(source) is NodeKind.TUPLE),
        in_place=in_place,
        roaming=node in plan.hoisted_sizes,
    )


def input_record(graph_id: str, node: torch.fx.Node, name: str) -> r.GraphInput:
    """Make the record of an input with its name in the program."""
    value = node.meta.get("val")
    return r.GraphInput(
        graph_id=graph_id, input=node.name, name=name, dtype=provenance.dtype_text(value), shape=provenance.shape_text(value)
    )


def spread_of(weight: torch.Tensor) -> dict[str, Any]:
    """Return how the values of a weight are distributed, as fields of its record; nothing where few are finite and real.

    A capture holds no weight: of few values, a histogram would be nearly all of them, and its bounds are in two digits.
    """
    some = weight.reshape(-1)[:: -(-weight.numel() // _LOOKED_AT) | 1]  # odd: else it meets few columns
    values = np.empty(0) if some.is_complex() else some.double().cpu().numpy()
    values = values[np.isfinite(values)]
    if values.size < _FEWEST_VALUES:
        return {}
    low, high = float(values.min()), float(values.max())
    places = (values / 2 - low / 2) / ((high / 2 - low / 2) or 1.0) * _INTERVALS  # by halves: no difference is infinite then
    counts = np.bincount(np.minimum(places.astype(int), _INTERVALS - 1), minlength=_INTERVALS)
    return {"low": float(f"{low:.1e}"), "high": float(f"{high:.1e}"), "histogram": tuple(counts.tolist())}


def fallback_record(graph_id: str, node: torch.fx.Node, verdict: Verdict) -> r.Fallback:
    """Make the record of a node that stays in PyTorch."""
    line = provenance.user_line(node)
    return r.Fallback(
        graph_id=graph_id,
        node=node.name,
        target=provenance.target_name(node),
        reason_code=verdict.code or "policy",
        reason=verdict.reason or "",
        cause=verdict.cause,
        exception=verdict.exception,
        **line._asdict(),
    )


def is_fallback(plan: Plan, node: torch.fx.Node) -> bool:
    """Tell whether PyTorch computes a tensor or a check; size computations between partitions do not count: they cost nothing."""
    return kind_of(node) in (NodeKind.COMPUTE, NodeKind.EFFECT) and not plan.in_partition(node)


def is_dynamic(value: Any) -> bool:
    """Tell whether a value of a graph has a symbolic size, or is a symbolic number itself."""
    if _torch.is_symbolic(value):
        return True
    return any(not isinstance(size, int) for tensor in provenance.tensors_in(value) for size in tensor.shape)


def onnx_origins(models: Iterable[onnx.ModelProto]) -> Origins:
    """Map FX node names to the ONNX nodes made from them, with operator and confidence, also in the bodies of control flow."""
    names: Origins = {}
    for model in models:
        for node in node_provenance.iter_nodes(model.graph):
            origin = node_provenance.provenance_of(node)
            for fx_name in origin.nodes:
                names.setdefault(fx_name, {})[node.name] = (node.op_type, origin.confidence)
    return names


def _read_by(node: torch.fx.Node) -> tuple[str, ...]:
    """Name the nodes that a node reads, or whose writes it reads; the maker for an item of a tuple, and no constants."""
    names: dict[str, None] = {}
    for source in (*node.all_input_nodes, *written_before(node)):
        maker = source
        while kind_of(maker) is NodeKind.TUPLE and maker.all_input_nodes:
            maker = maker.all_input_nodes[0]
        if maker.op != "get_attr":
            names[maker.name] = None
    return tuple(names)


def _items_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    items = [user for user in node.users if kind_of(user) is NodeKind.TUPLE]
    return [found for item in items for found in (item, *_items_of(item))]


def _is_returned(node: torch.fx.Node) -> bool:
    return any(user.op == "output" or (kind_of(user) is NodeKind.TUPLE and _is_returned(user)) for user in node.users)


_LOOKED_AT, _FEWEST_VALUES, _INTERVALS = 8192, 64, 16  # values of a weight, spread evenly
_WORTH_REPORTING = 1 << 16  # bytes; a smaller copy costs less than the call itself


def partition_record(identity: Identity, runner: PartitionRunner) -> r.Partition:
    """Make the record of a partition; weights count as `weight_bytes`, not as `input_bytes`."""
    partition, weights = runner.partition, runner.factory.weight_nodes()
    return r.Partition(
        **r.same(identity, "partition_id", "graph_id", "model_id"),
        node_count=sum(1 for node in partition.nodes if kind_of(node) is NodeKind.COMPUTE),
        input_count=len(partition.inputs),
        output_count=len(partition.outputs),
        input_bytes=sum(_bytes_of(node) for node in partition.inputs if node not in weights),
        output_bytes=sum(_bytes_of(node) for node in partition.outputs),
        weight_bytes=sum(_bytes_of(node) for node in weights),
        flops=sum(provenance.node_flops(node) for node in partition.nodes),
    )


def model_record(identity: Identity, path: str, runner: PartitionRunner, data: bytes) -> r.Model:
    """Make the record of a partition's ONNX model; `path` is its place in a saved capture."""
    return r.Model(
        **r.same(identity, "model_id", "partition_id"),
        path=path,
        **node_provenance.structure_of(runner.model),
        initializer_bytes=embedded_bytes(runner.model),
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        cached=runner.factory.cached,
    )


def embedded_bytes(model: onnx.ModelProto) -> int:
    """Count the bytes of a model's initializers; frozen weights, which stay outside the model, do not count."""
    return sum(tensor.ByteSize() for tensor in model.graph.initializer)


def frozen_bytes(info: SessionInfo) -> int:
    """Count the bytes of the weights that a session holds as constants."""
    return sum(weight.contiguous.nbytes for weight in info.frozen)


def session_record(session_id: str, identity: Identity, runner: PartitionRunner, info: SessionInfo, change: Mapping[str, Any]) -> r.Session:
    """Make the record of a session; `change` says what ended the one before."""
    return r.Session(
        session_id=session_id,
        **r.same(identity, "partition_id", "model_id"),
        **r.same(info, "providers", "create_ns", "held_bytes", "cause", "copied_bytes", "shareable_bytes"),
        input_signature=signature_text(info, runner.partition),
        frozen_bytes=frozen_bytes(info),
        integer_bytes=sum(weight.integer_bytes for weight in info.frozen),
        table_bytes=runner.weights.table_bytes,
        threads=info.threads.count,
        spinning=info.threads.spinning,
        threads_reason=info.threads.reason,
        **change,
    )


def layout_copies(partition_id: str, runner: PartitionRunner) -> Iterator[r.Finding]:
    """Yield a finding for each input that every call copies, at some cost, because of its memory layout."""
    for node in runner.partition.inputs:
        if node not in runner.factory.weight_nodes() and _bytes_of(node) >= _WORTH_REPORTING and not is_dense(node.meta.get("val")):
            yield _layout_copy(partition_id, node)


def _layout_copy(partition_id: str, node: torch.fx.Node) -> r.Finding:
    value = node.meta["val"]
    line = next((found for reader in (node, *node.users) if (found := provenance.user_line(reader)).file), provenance.user_line(node))
    return r.Finding(
        rule="layout_copy",
        subject=f"{partition_id}:{node.name}",
        severity="info",
        title=f"{partition_id} copies its input {node.name} in every call: {_bytes_of(node):,} bytes",
        **r.same(line, "file", "line"),
        evidence=f"shape {provenance.shape_text(value)}, strides {tuple(value.stride())}; the copy is part of bind_ns",
        hazard="ONNX Runtime accepts dense tensors only; the copy costs about as much as reading and writing the tensor.",
        mitigation="Pass a contiguous tensor, or make it contiguous once where it is created.",
    )


def device_copies(partition_id: str, runner: PartitionRunner) -> Iterator[r.Finding]:
    """Yield a finding if every call copies tensors of a device to the CPU, and results back; weights that a session holds stay there."""
    held = {weight.name for weight in runner.weights.frozen}
    given = zip(runner.factory.input_names(), runner.partition.inputs, strict=True)
    values = [node.meta["val"] for node in (*(node for name, node in given if name not in held), *runner.partition.outputs)]
    copied = [value for value in values if isinstance(value, torch.Tensor) and devices.kind_of(value.device).is_copied]
    if copied:
        kind, size = copied[0].device.type, sum(map(provenance.tensor_bytes, copied))
        yield r.Finding(
            rule="device_copy",
            subject=partition_id,
            severity="warning",
            title=f"{partition_id} computes tensors on {kind} on the CPU: every call copies {size:,} bytes, there and back",
            evidence="ONNX Runtime has no binding for their memory; copies, and waits for the device, are part of bind_ns and output_ns",
            hazard="The device has nothing to do while the CPU computes, and each waits for the other.",
            mitigation="Move the model and its inputs to the CPU, or leave what is faster on the device uncompiled.",
        )


def _bytes_of(node: torch.fx.Node) -> int:
    return provenance.tensor_bytes(node.meta.get("val"))


_RAISING = remedy('Set on_error="raise" to see the full traceback of the failure.', on_error="raise")
_WENT_BACK = ("PyTorch computes the result, which is correct; the model is slower than it could be.", _RAISING)
_CONSEQUENCES = {
    "lowering_failed": (
        "The results are correct; operators that ONNX has no form for stay in PyTorch undivided, so less may run in ONNX Runtime.",
        _RAISING,
    ),
    "optimiser_failed": (
        "The model runs in ONNX Runtime as it was converted; it may be larger and slower than it could be.",
        remedy("No action is needed.", "A newer onnxscript may optimise it."),
    ),
    "cache_failed": (
        "The model runs; the next process converts it again.",
        remedy("Check that cache_dir names a folder that can be written."),
    ),
    "dump_failed": ("The model runs; the file was not written.", remedy("Check that dump_path names a folder that can be written.")),
    "provider_unavailable": ("The model does not run.", remedy("Name a provider that is installed; `ortlens doctor` lists them.")),
}
"""The hazard and the mitigation of each rule; `_WENT_BACK` for the others."""


def failure_finding(rule: str, title: str, error: Exception) -> r.Finding:
    """Return the finding about a failure."""
    hazard, todo = _CONSEQUENCES.get(rule, _WENT_BACK)
    return r.Finding(
        rule=rule,
        severity="warning",
        title=title,
        evidence=f"{type(error).__name__}: {error}"[:2000],
        hazard=hazard,
        **todo,
    )


class _Assignment(NamedTuple):
    """A line that assigns a weight, or writes to one."""

    line: int
    names: tuple[str, ...]  # the names on the way to it, such as `net layers weight`, of which the last is its own
    is_new: bool  # whether it puts another tensor in its place


def changed_at(weights: Sequence[str], *, is_new: bool) -> StackFrame | None:
    """Find the one line that can have changed these weights, with another tensor, `is_new`, or by writing to it; else None.

    A function that made the call which noticed the change counts before the rest of its file.
    """
    stack = [
        frame
        for frame, line in traceback.walk_stack(None)
        if is_model_code(StackFrame(frame.f_code.co_filename, line, frame.f_code.co_name))
    ]
    files = dict.fromkeys(frame.f_code.co_filename for frame in stack if not frame.f_code.co_filename.startswith("<"))
    found = {
        (file, change.line)
        for file in files
        for change in _changes("".join(linecache.getlines(file)))
        if change.is_new == is_new and any(_fits(change.names, weight.split(".")) for weight in weights)
    }
    codes = [frame.f_code for frame in stack if frame.f_code.co_name != "<module>"]
    running = {(code.co_filename, line) for code in codes for _, _, line in code.co_lines()}
    found = found & running or found
    return StackFrame(*found.pop(), "") if len(found) == 1 else None


def _fits(names: tuple[str, ...], path: list[str]) -> bool:
    """Tell whether a line can be about a weight: it has its own name, and no module on the way that is none of its path."""
    return names[-1] == path[-1] and all(name in path for name in names[1:])


@functools.lru_cache(maxsize=16)
def _changes(source: str) -> tuple[_Assignment, ...]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    made = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__" for inner in ast.walk(node)
    }
    return tuple(change for node in ast.walk(tree) if id(node) not in made for change in _changes_of(node))


def _changes_of(node: ast.AST) -> Iterator[_Assignment]:
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in (item for each in targets for item in (each.elts if isinstance(each, ast.Tuple) else [each])):
            is_new = isinstance(target, ast.Attribute) and target.attr != "data" and not isinstance(node, ast.AugAssign)
            yield from _change(node.lineno, target, is_new=is_new)
    elif isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr.endswith("_") and not called.attr.endswith("__"):
            given = node.args[:1] if _names(called)[-2:-1] == ("init",) else [called.value]  # `nn.init.zeros_(layer.weight)`
            for target in given:
                yield from _change(node.lineno, target, is_new=False)
        named = node.args[1:2] if isinstance(called, ast.Name) and called.id == "setattr" else node.args[:1]
        if named and isinstance(named[0], ast.Constant) and _names(called)[-1:] in _SETTERS:
            owner = node.args[0] if isinstance(called, ast.Name) else called.value if isinstance(called, ast.Attribute) else called
            yield _Assignment(node.lineno, (*(_names(owner) or ("",)), str(named[0].value)), is_new=True)


_SETTERS = (("setattr",), ("register_parameter",), ("register_buffer",))


def _change(line: int, target: ast.expr, *, is_new: bool) -> Iterator[_Assignment]:
    names = _names(target)
    if names and names[-1] == "data":
        names = names[:-1]
    if len(names) > 1:
        yield _Assignment(line, names, is_new)


def _names(node: ast.expr) -> tuple[str, ...]:
    """List the names of an expression such as `net.layers[0].weight`, without indices; empty where it has another form."""
    if isinstance(node, ast.Subscript):
        return _names(node.value)
    if isinstance(node, ast.Attribute):
        inner = _names(node.value)
        return (*inner, node.attr) if inner else ()
    return (node.id,) if isinstance(node, ast.Name) else ()
