"""Why a part of a graph is slow in ONNX Runtime: the operators that its time goes into, and the node that they come from."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import effort
from ortlens.analysis.index import grouped, summed
from ortlens.units import size_from_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ortlens.trace.records import Capture, Fallback, Kernel, Node

_LOOPS = re.compile(r"Loop|SequenceMap|Sequence(Empty|Insert|At|Construct|Erase)|ConcatFromSequence|SplitToSequence")
_WRITES = re.compile(r"aten\.(index_put|index_copy|index_add|index_fill|masked_scatter|(slice|select|diagonal)_scatter|scatter)")
_WORTH_COPYING = 1 << 18
_MUCH = 0.3
_COPIES = ("Transpose", "Cast")
_MANY_COPIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What takes the time."""

    text: str  # a clause, such as `aten.cumprod.default becomes a Loop, whose body runs once per element`
    remedy: str  # what to change about it; empty where only the operator is known
    node: Node | Fallback | None  # the node that it comes from; None where none stands out
    stays: bool = False  # whether that stays in PyTorch


def cause_of(capture: Capture, nodes: Sequence[Node], session_ids: Iterable[str]) -> Cause:
    """Find what takes the time of some nodes: by their kernels where they were profiled, else by what their model contains."""
    wanted = frozenset(session_ids)
    kernels = [kernel for kernel in capture.kernels if kernel.session_id in wanted]
    return _profiled(nodes, kernels) if kernels else _by_contents(nodes)


def loops(nodes: Iterable[Node]) -> list[Node]:
    """Find the nodes that became loops over single elements: a Loop or sequences, but no Scan, whose steps are whole rows."""
    return [node for node in nodes if any(_LOOPS.fullmatch(op) for op in node.onnx_ops)]


def state_writes(nodes: Iterable[Node], inputs: Iterable[str]) -> list[Node]:
    """Find the nodes that return a changed copy of a large input of the graph, of 256 KiB at least."""
    nodes = list(nodes)
    given = frozenset(inputs)
    given |= {node.node for node in nodes if node.target == "aten.clone.default" and given.intersection(node.inputs)}  # as in training
    return [
        node
        for node in nodes
        if _WRITES.match(node.target)
        and node.inputs
        and node.inputs[0] in given
        and node.is_output
        and not node.in_place
        and (node.output_bytes or 0) >= _WORTH_COPYING
    ]


def loop_text(node: Node) -> str:
    """Describe what a loop does, as a clause."""
    ops = [op for op in node.onnx_ops if _LOOPS.fullmatch(op)]
    loop = next((op for op in ops if not op.startswith("Sequence")), ops[0])
    return f"{node.target} becomes a {loop} over single elements"


def state_text(nodes: Sequence[Node]) -> str:
    """Describe what one or more writes into inputs cost, as a clause."""
    size = size_from_bytes(sum(node.output_bytes or 0 for node in nodes))
    return f"{nodes[0].target} changes a part of a buffer, and all {size} of it are copied"


LOOP_REMEDY = "Write the line with operators that work on whole tensors."
STATE_REMEDY = (
    "Keep the buffer out of the compiled code: return what is new and write it outside, or pass only the part of the buffer that is read."
)


def _profiled(nodes: Sequence[Node], kernels: Sequence[Kernel]) -> Cause:
    total = sum(kernel.total_ns for kernel in kernels) or 1
    by_name = {node.node: node for node in nodes}
    spent = summed((kernel.node, kernel.total_ns) for kernel in kernels)
    most = max(spent, key=lambda name: spent[name])
    node = by_name.get(most or "")
    same = {most}
    if node is not None:  # what repeats, as in layers and unrolled loops, is one cause
        by_target = grouped((by_name[name].target, name) for name in spent if name is not None and name in by_name)
        same = set(max(by_target.values(), key=lambda names: sum(spent[name] for name in names)))
        most = max(same, key=lambda name: spent[name])
        node = by_name[most or ""]
    ns = sum(spent[name] for name in same)
    ops = Counter(summed((kernel.op_type, kernel.total_ns) for kernel in kernels if kernel.node in same))
    named = ", ".join(op for op, _ in ops.most_common(3))
    times = f" at {len(same)} nodes" if len(same) > 1 else ""
    text = (
        f"{ns / total:.0%} of its time in ONNX Runtime goes into {node.target if node else most or 'kernels without an origin'} ({named})"
        f"{times}"
    )
    known = None if node is None or ns < _MUCH * total else _known(node)
    return Cause(text=f"{text}: {known.text}" if known else text, remedy=known.remedy if known else "", node=node)


def _known(node: Node) -> Cause | None:
    if loops([node]):
        return Cause(text=loop_text(node), remedy=LOOP_REMEDY, node=node)
    if state_writes([node], node.inputs):
        return Cause(text=state_text([node]), remedy=STATE_REMEDY, node=node)
    return None


def _by_contents(nodes: Sequence[Node]) -> Cause:
    if looping := loops(nodes):
        return Cause(text=loop_text(looping[0]), remedy=LOOP_REMEDY, node=looping[0])
    made = {node.node for node in nodes}
    if writing := state_writes(nodes, {name for node in nodes for name in node.inputs} - made):
        return Cause(text=state_text(writing), remedy=STATE_REMEDY, node=writing[0])
    scattering = [node for node in nodes if any(op.startswith("Scatter") for op in node.onnx_ops)]
    if scattering:
        worst = max(scattering, key=lambda node: node.bytes or 0)
        return Cause(text=_scatter_text(worst), remedy="", node=worst)
    for op in _COPIES:
        copying = [node for node in nodes if op in node.onnx_ops]
        if len(copying) >= _MANY_COPIES:
            worst = max(copying, key=lambda node: node.bytes or 0)
            return Cause(
                text=f"its model contains {len(copying)} nodes with a {op}, the largest from {worst.target}", remedy="", node=worst
            )
    worst = max(nodes, key=effort)
    size = size_from_bytes(worst.output_bytes or 0)
    text = f"the largest of its operators is {worst.target}, which writes {size}; a profile shows the kernels"
    return Cause(text=text, remedy="", node=worst)


def _scatter_text(node: Node) -> str:
    if "ScatterElements" in node.onnx_ops:
        return f"{node.target} becomes a ScatterElements, which writes number by number"
    return f"{node.target} becomes a Scatter, which copies all {size_from_bytes(node.output_bytes or 0)} of its result first"
