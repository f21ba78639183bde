"""What was measured per ONNX node, as node data for Google's Model Explorer, which colours the nodes of a model by it.

Source: `GraphNodeData` of `model_explorer/node_data_builder.py`, version 0.1.34. Keys are names of ONNX nodes, which are
the ids of nodes in the extension `model-explorer-onnx`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortlens.trace.records import Capture, Kernel

_SHADES = (0.0, "#ffffff"), (0.5, "#f0e442"), (1.0, "#d55e00")


def node_data_from_capture(capture: Capture) -> dict[str, dict[str, Any]]:
    """Collect times and errors of ONNX nodes by file name; empty when nothing was profiled or verified.

    A profiled model has `m0.kernel_time.json` and `m0.share.json`, a verified one `m0.max_abs.json`. The time of a kernel that computes
    several ONNX nodes is split evenly among them.
    """
    files: dict[str, dict[str, Any]] = {}
    for model_id, kernels in _profiled(capture).items():
        total = sum(kernel.mean_ns or 0 for kernel in kernels) or 1
        times: dict[str, float] = {}
        for kernel in kernels:
            for node in kernel.onnx_nodes:
                times[node] = times.get(node, 0.0) + (kernel.mean_ns or 0) / len(kernel.onnx_nodes)
        files[f"{model_id}.kernel_time.json"] = _file("kernel time per run, µs", {node: ns / 1000 for node, ns in times.items()})
        files[f"{model_id}.share.json"] = _file("share of kernel time, %", {node: 100 * ns / total for node, ns in times.items()})
    for model_id, errors in _errors(capture).items():
        files[f"{model_id}.max_abs.json"] = _file("largest difference from PyTorch", errors)
    return {name: data for name, data in files.items() if data["results"]}


def _profiled(capture: Capture) -> dict[str, list[Kernel]]:
    """Group kernels by model; of several profiled sessions of one model, those of the busiest."""
    busiest: dict[str, str] = {}
    seen = {kernel.session_id for kernel in capture.kernels}
    for session in sorted(capture.sessions, key=lambda session: session.total_ns):
        if session.session_id in seen and session.model_id:
            busiest[session.model_id] = session.session_id
    return {model: [kernel for kernel in capture.kernels if kernel.session_id == session] for model, session in sorted(busiest.items())}


def _errors(capture: Capture) -> dict[str, dict[str, float]]:
    """Find by model the largest difference of each FX node's value, at the ONNX node that makes it."""
    model_of = {partition.partition_id: partition for partition in capture.partitions}
    makers = {(node.partition_id, node.node): node.onnx_nodes[-1] for node in capture.nodes if node.onnx_nodes}
    errors: dict[str, dict[str, float]] = {}
    for row in capture.numerics:
        maker, partition = makers.get((row.partition_id, row.node)), model_of.get(row.partition_id or "")
        if maker and partition and partition.model_id and row.max_abs is not None and math.isfinite(row.max_abs):
            known = errors.setdefault(partition.model_id, {})
            known[maker] = max(known.get(maker, 0.0), row.max_abs)
    return errors


def _file(name: str, values: Mapping[str, float]) -> dict[str, Any]:
    return {
        "name": name,
        "results": {node: {"value": value} for node, value in values.items()},
        "gradient": [{"stop": stop, "bgColor": shade} for stop, shade in _SHADES],
    }
