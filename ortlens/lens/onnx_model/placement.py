"""On which execution provider each node runs, and why it is not the preferred one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.backend.conversion.node_provenance import iter_nodes
from ortlens.backend.runtime import _ort
from ortlens.lens.onnx_model.graph_records import GRAPH
from ortlens.lens.onnx_model.shapes import values_of
from ortlens.lens.onnx_model.source import opset_of
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx
    import onnxruntime

    from ortlens.lens.onnx_model.shapes import Value
    from ortlens.trace.recorder import Recorder

_ORT_NAMES = {"float32": "float", "float64": "double"}


def ask(options: onnxruntime.SessionOptions) -> None:
    """Have a session record where it places each node. The options are changed for good, so they must not be the user's own."""
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")


def record(recorder: Recorder, session: onnxruntime.InferenceSession, structure: onnx.ModelProto | None) -> None:
    """Record the execution provider of each node, as far as the session tells."""
    providers = session.get_providers()
    if structure is None or not providers:
        return
    if len(providers) == 1:
        assigned = {node.name: providers[0] for node in iter_nodes(structure.graph)}
    else:
        assigned = _ort.assigned_providers(session)
    amend(recorder, assigned, providers[0], structure)


def from_kernels(recorder: Recorder, session: onnxruntime.InferenceSession, structure: onnx.ModelProto | None) -> None:
    """Fill in the providers of nodes that ONNX Runtime fused, from the kernels that compute them."""
    if structure is None or len(session.get_providers()) == 1:
        return
    unknown = {node.node for node in recorder.records(r.Node) if node.provider is None}
    found = {name: kernel.provider for kernel in recorder.records(r.Kernel) for name in kernel.onnx_nodes if kernel.provider}
    amend(recorder, {name: found[name] for name in unknown if name in found}, session.get_providers()[0], structure)


def amend(recorder: Recorder, assigned: Mapping[str, str], preferred: str, structure: onnx.ModelProto) -> None:
    """Record the provider of nodes, and why those elsewhere are not on the preferred one."""
    strayed = any(provider != preferred for provider in assigned.values())
    values = values_of(structure).by_name if strayed else {}
    by_name = {node.name: node for node in iter_nodes(structure.graph)}
    for name, provider in assigned.items():
        changes: dict[str, Any] = {"provider": provider}
        if provider != preferred and name in by_name:
            changes["reason"] = _why_not(by_name[name], preferred, values, opset_of(structure) or 1)
        recorder.amend(r.Node, (GRAPH, name), **changes)


def _why_not(node: onnx.NodeProto, preferred: str, values: Mapping[str, Value], opset: int) -> str:
    if node.domain not in ("", "ai.onnx"):
        return f"{preferred} does not take {node.domain}::{node.op_type}"
    types = _ort.kernel_types(preferred, node.op_type, opset)
    if not types:
        return f"{preferred} did not take it; this build of ONNX Runtime does not list its kernels"
    read = {_ORT_NAMES.get(value.dtype, value.dtype) for name in node.input if (value := values.get(name)) is not None and value.dtype}
    known = frozenset().union(*types.values())
    if strange := sorted(read - known):
        return f"{preferred} has kernels of {node.op_type}, but not for {', '.join(strange)}"
    return f"{preferred} has a kernel of {node.op_type}: ONNX Runtime left it on the CPU, as it does with computations of shapes"
