"""The identity chain: user line, module, FX node, partition, ONNX node, kernel; walked from any link to all others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.index import graphs_by_id, grouped, sessions_by_id
from ortlens.errors import UsageError
from ortlens.trace.records import Confidence, Phase, column, optional, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ortlens.trace.records import Capture, Graph, Kernel, Node

RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)")
"""What Dynamo calls the rest of a function after a graph break."""

_LINE = re.compile(r"^(?P<file>.+):(?P<line>\d+)$")


def frame_of(compile_id: str | None) -> str:
    """Return the number of the frame that a compilation is one of: `1` of `1/0`."""
    return (compile_id or "").rpartition("/")[0]


def file_name(path: str) -> str:
    """Return a file without its folders, which differ between checkouts and machines."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]


def plain_function(name: str) -> str:
    """Return the user's function behind a resume function of Dynamo: `f` for `torch_dynamo_resume_in_f_at_16`."""
    match = RESUMED.fullmatch(name)
    return match["name"] if match else name


def function_part(name: str) -> str:
    """Return the qualified name of a function, with the line behind which it goes on for a resume function of Dynamo."""
    scope, dot, last = name.rpartition(".")
    match = RESUMED.fullmatch(last)
    return f"{scope}{dot}{match['name']} after line {match['line']}" if match else name


def nodes_of(kernel: Kernel) -> tuple[str, ...]:
    """List the FX nodes that a kernel computes: all of them, the one its time is charged to if only that is known, or none."""
    return kernel.nodes or ((kernel.node,) if kernel.node else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One way through the chain, from a user line to a kernel."""

    file: str | None = optional("File of the user line; a backward node has that of its forward node.")
    line: int | None = optional("Number of the user line.")
    source: str | None = optional("Text of the user line.")
    module: str | None = optional("nn.Module path.")
    line_confidence: Confidence = column("Confidence of the user line: `exact` if PyTorch recorded it with the node, else `none`.")
    graph_id: str = column("Graph of the FX node.")
    phase: Phase | None = optional("Its phase: `inference`, `forward` or `backward`.")
    node: str = column("FX node.")
    target: str = column("Its operator.")
    partition_id: str | None = optional("Partition that runs it; empty where PyTorch runs it.")
    onnx_node: str | None = optional("ONNX node made from it; empty where there is none.")
    onnx_confidence: Confidence = column(
        "Confidence of that link: `exact`, `fused` if a rewrite made it from several nodes, `inferred` from a neighbour, else `none`.",
        default="none",
    )
    session_id: str | None = optional("Session that was profiled; empty if none was, or if none of its kernels belongs to this node.")
    kernel: str | None = optional("Kernel that computes it; empty in the same cases.")
    op_type: str | None = optional("The kernel's operator.")
    provider: str | None = optional("Execution provider that ran the kernel.")
    total_ns: int | None = optional("Time of the kernel, including the other nodes that it computes.", unit="ns")
    share: float | None = optional("Its share of the session's kernel time, 0 to 1.")
    kernel_confidence: Confidence = column(
        "Confidence of the kernel: `exact`, `fused` if it computes several nodes, `inferred`, `none` without one.", default="none"
    )


def links(capture: Capture, **wanted: str | None) -> tuple[Link, ...]:
    """Walk the chain from one link to all others: one row for each way through it that passes everything given, in the order of graphs.

    `wanted` is by kind of link. `line` may be the end of a path, as `model.py:12`; `module` includes what is inside it; `node` may name its
    graph, as `g0:add`.
    """
    tests = [_TESTS[name](value) for name, value in wanted.items() if value is not None]
    return tuple(link for link in _all_links(capture) if all(test(link) for test in tests))


def _line_test(text: str | int) -> Callable[[Link], bool]:
    match = _LINE.match(str(text))
    if match is None:
        number = text if str(text).isdecimal() else 12
        raise UsageError(f"line must be a file and a number, not {text!r}: lens.links(line='model.py:{number}')")
    parts, number = _parts(match["file"]), int(match["line"])
    return lambda link: link.line == number and link.file is not None and _parts(link.file)[-len(parts) :] == parts


def _parts(path: str) -> list[str]:
    return path.replace("\\", "/").split("/")


_TESTS: Mapping[str, Callable[[str], Callable[[Link], bool]]] = {
    "line": _line_test,
    "module": lambda name: lambda link: link.module is not None and f"{link.module}.".startswith(f"{name}."),
    "node": lambda name: lambda link: name in (link.node, f"{link.graph_id}:{link.node}"),
    "partition": lambda name: lambda link: link.partition_id == name,
    "onnx_node": lambda name: lambda link: link.onnx_node == name,
    "kernel": lambda name: lambda link: link.kernel == name,
}


def _all_links(capture: Capture) -> Iterator[Link]:
    graphs = graphs_by_id(capture)
    by_onnx, by_node = _kernels(capture)
    for node in capture.nodes:
        partition, known = node.partition_id or "", dict(zip(node.onnx_nodes, node.onnx_confidences, strict=False))
        linked: set[tuple[str, str]] = set()
        for onnx_node in node.onnx_nodes:
            found = by_onnx.get((partition, onnx_node), ())
            linked.update((kernel.session_id, kernel.kernel) for kernel in found)
            for kernel in found or (None,):
                yield _link(graphs, node, onnx_node, known.get(onnx_node, "exact"), kernel)
        for kernel in by_node.get((partition, node.node), ()):
            if (kernel.session_id, kernel.kernel) not in linked:  # inserted by ONNX Runtime for this node, or known by name only
                linked.add((kernel.session_id, kernel.kernel))
                yield _link(graphs, node, None, "none", kernel)
        if not linked and not node.onnx_nodes:
            yield _link(graphs, node, None, "none", None)


def _kernels(capture: Capture) -> tuple[dict[tuple[str, str], list[Kernel]], dict[tuple[str, str], list[Kernel]]]:
    """Group kernels by partition and ONNX node, and by partition and FX node."""
    sessions = sessions_by_id(capture)
    rows = [(sessions[row.session_id].partition_id if row.session_id in sessions else "", row) for row in capture.kernels]
    by_onnx = grouped(((partition, name), row) for partition, row in rows for name in row.onnx_nodes)
    return by_onnx, grouped(((partition, name), row) for partition, row in rows for name in row.nodes)


def _link(graphs: dict[str, Graph], node: Node, onnx_node: str | None, confidence: str, kernel: Kernel | None) -> Link:
    graph, of_kernel = graphs.get(node.graph_id), {}
    if kernel is not None:
        of_kernel = same(kernel, "session_id", "kernel", "op_type", "provider", "total_ns", "share")
        of_kernel["kernel_confidence"] = kernel.confidence
    return Link(
        line_confidence="none" if node.line is None else "exact",
        phase=None if graph is None else graph.phase,
        onnx_node=onnx_node,
        onnx_confidence=_CONFIDENCES.get(confidence, "none"),
        **same(node, "file", "line", "source", "module", "graph_id", "node", "target", "partition_id"),
        **of_kernel,
    )


_CONFIDENCES: dict[str, Confidence] = {"exact": "exact", "fused": "fused", "inferred": "inferred", "none": "none"}
