"""Records of a partition, its ONNX model and its sessions."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING

from ortlens.backend.lowering import provenance
from ortlens.backend.memory_order import is_contiguous, memory_order
from ortlens.backend.partitioning.support import NodeKind, kind_of
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx
    import torch.fx

    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.backend.runtime.session_info import SessionInfo

_WORTH_REPORTING = 1 << 16
"""Bytes; a smaller copy costs less than the call itself."""


def partition_record(graph_id: str, partition_id: str, model_id: str, runner: PartitionRunner) -> r.Partition:
    """Make the record of a partition; weights count as `weight_bytes`, not as `input_bytes`."""
    partition, weights = runner.partition, runner.weight_nodes()
    return r.Partition(
        partition_id=partition_id,
        graph_id=graph_id,
        node_count=sum(1 for node in partition.nodes if kind_of(node) is NodeKind.COMPUTE),
        input_count=len(partition.inputs),
        output_count=len(partition.outputs),
        input_bytes=sum(_bytes_of(node) for node in partition.inputs if node not in weights),
        output_bytes=sum(_bytes_of(node) for node in partition.outputs),
        weight_bytes=sum(_bytes_of(node) for node in weights),
        flops=sum(provenance.node_flops(node) for node in partition.nodes),
        model_id=model_id,
    )


def model_record(partition_id: str, model_id: str, path: str, runner: PartitionRunner, data: bytes) -> r.Model:
    """Make the record of a partition's ONNX model; `path` is its place in a saved capture."""
    graph = runner.model.graph
    ops = Counter(node.op_type if not node.domain else f"{node.domain}::{node.op_type}" for node in graph.node)
    return r.Model(
        model_id=model_id,
        partition_id=partition_id,
        path=path,
        opset=next((entry.version for entry in runner.model.opset_import if entry.domain == ""), None),
        node_count=len(graph.node),
        ops=tuple(f"{op}:{count}" for op, count in ops.most_common()),
        initializer_bytes=embedded_bytes(runner.model),
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        cached=runner.cached,
    )


def embedded_bytes(model: onnx.ModelProto) -> int:
    """Count the bytes of a model's initializers; frozen weights, which stay outside the model, do not count."""
    return sum(tensor.ByteSize() for tensor in model.graph.initializer)


def frozen_bytes(info: SessionInfo) -> int:
    """Count the bytes of the weights that a session holds as constants."""
    return sum(weight.contiguous.nbytes for weight in info.frozen)


def session_record(  # noqa: PLR0913 - ids and figures, each a column
    session_id: str,
    partition_id: str,
    model_id: str,
    info: SessionInfo,
    *,
    signature: str,
    table_bytes: int,
    weights_change: r.WeightsChange | None,
) -> r.Session:
    """Make the record of a session.

    `table_bytes` are of weights that are inputs because they are only looked up; `weights_change` is recorded if it is the cause.
    """
    return r.Session(
        session_id=session_id,
        partition_id=partition_id,
        model_id=model_id,
        providers=info.providers,
        input_signature=signature,
        create_ns=info.create_ns,
        held_bytes=info.held_bytes,
        cause=info.cause,
        weights_change=weights_change if info.cause == "weights" else None,
        frozen_bytes=frozen_bytes(info),
        copied_bytes=info.copied_bytes,
        shareable_bytes=info.shareable_bytes,
        integer_bytes=sum(weight.integer_bytes for weight in info.frozen),
        table_bytes=table_bytes,
        threads=info.threads.count,
        spinning=info.threads.spinning,
        threads_reason=info.threads.reason,
    )


def layout_copies(partition_id: str, runner: PartitionRunner) -> Iterator[r.Finding]:
    """Yield a finding for each input that every call copies, at some cost, because of its memory layout."""
    for node in runner.partition.inputs:
        if node not in runner.weight_nodes() and _bytes_of(node) >= _WORTH_REPORTING and not _is_dense(node):
            yield _layout_copy(partition_id, node)


def _is_dense(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return is_contiguous(value) or memory_order(value) is not None


def _layout_copy(partition_id: str, node: torch.fx.Node) -> r.Finding:
    value = node.meta["val"]
    line = next((found for reader in (node, *node.users) if (found := provenance.user_line(reader)).file), provenance.user_line(node))
    return r.Finding(
        rule="layout_copy",
        subject=f"{partition_id}:{node.name}",
        severity="info",
        title=f"{partition_id} copies its input {node.name} in every call: {_bytes_of(node):,} bytes",
        file=line.file,
        line=line.line,
        evidence=f"shape {provenance.shape_text(value)}, strides {tuple(value.stride())}; the copy is part of bind_ns",
        hazard="ONNX Runtime accepts dense tensors only; the copy costs about as much as reading and writing the tensor.",
        mitigation="Pass a contiguous tensor, or make it contiguous once where it is created.",
    )


def _bytes_of(node: torch.fx.Node) -> int:
    return provenance.tensor_bytes(node.meta.get("val"))
