"""Trace kernels back to their origins: kernel -> ONNX nodes of the original model -> FX nodes.

ONNX Runtime keeps no metadata in its optimised model, but it keeps names. A value that survives the rewrites has its old
name. A node made from others is named after one of them (`node_MatMul/MatMulScaleFusion/`) or after its output
(`relu_nchwc`). So each node of the optimised model is anchored at the producers of the values that it writes, or at the
node that its name contains. A fused node then includes everything between its anchors and values that still exist.

A node that changes no values, such as a Reorder before a convolution, has no origin of its own. It gets the origin of the
value that it copies, marked as inferred.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ortlens.analysis.index import grouped
from ortlens.backend.basis import node_provenance

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import onnx

    from ortlens.trace.records import Confidence

_ALWAYS_INSERTED = frozenset({"ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"})
_COPIES = _ALWAYS_INSERTED | {"Cast", "Transpose", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
"""Operators that ONNX Runtime inserts between nodes; those of the original model are known by name."""
_NAME_ENDS = ("_nchwc", "_transformed", "_nhwc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a node of the optimised model comes from."""

    kernel: str  # its name, as in a profile
    op_type: str
    onnx_nodes: tuple[str, ...] = ()  # nodes of the original model that it computes, in their order there
    onnx_ops: tuple[str, ...] = ()
    node: str | None = None  # FX node that computes its output; None if unknown
    nodes: tuple[str, ...] = ()  # every FX node that it computes
    confidence: Confidence = "none"  # how sure that is
    candidates: tuple[str, ...] = ()  # FX nodes that it may come from, if nothing more exact is known


def origins(
    before: onnx.ModelProto, after: onnx.ModelProto | None, kernels: Mapping[str, str], compute: Sequence[str]
) -> dict[str, Origin]:
    """Trace kernels back through the model as optimised by ONNX Runtime, `after`; return origins by kernel name.

    The model `before` has the labels of `node_provenance.assign_provenance`. `kernels` maps names to operators in the order of their first
    runs. `compute` names the FX nodes of the partition in order; provenance that names none of them, such as an input, is no origin.
    Where a provider cannot write its optimised model, `after` is None, and names alone tell.
    """
    named = {node.name: node for node in node_provenance.iter_nodes(before.graph)}
    places = {name: place for place, name in enumerate(compute)}
    if after is None:
        return {name: _origin_by_name(name, op_type, named, places) for name, op_type in kernels.items()}
    after, found_by_order = _with_names(after, kernels)
    by_name = grouped((origin.kernel, origin) for origin in _GraphPair(before.graph, after.graph, places, named).walk())
    nameless = by_name.pop("", [])
    found = {
        name: _agreed(name, op_type, by_name.get(name) or [origin for origin in nameless if name.startswith(f"{origin.op_type}_")])
        for name, op_type in kernels.items()
    }
    return found | {name: replace(found[name], confidence="inferred") for name in found_by_order if found[name].node is not None}


def _with_names(after: onnx.ModelProto, kernels: Mapping[str, str]) -> tuple[onnx.ModelProto, list[str]]:
    """Name the nameless nodes of the optimised model, if it lists its nodes in the order in which they ran.

    A profile names such a node after its operator and a number that is not in the model. If the model and the profile list all
    named nodes, and the operators of the others, in the same order, they are matched by position.
    """
    names = {node.name for node in after.graph.node if node.name}
    listed = [node.name or node.op_type for node in after.graph.node]
    ran = [(name, name if name in names else op_type) for name, op_type in kernels.items()]
    if "" not in {node.name for node in after.graph.node} or listed != [key for _, key in ran]:
        return after, []
    made = copy.deepcopy(after)
    for node, (name, _) in zip(made.graph.node, ran, strict=True):
        node.name = name
    return made, [name for name in kernels if name not in names]


def _agreed(name: str, op_type: str, found: list[Origin]) -> Origin:
    """Return the origin of a kernel; if several are possible, as for nameless nodes, what they have in common."""
    if len(found) == 1:
        return replace(found[0], kernel=name)
    nodes = {origin.node: None for origin in found}
    known = tuple(node for node in nodes if node is not None)
    if len(known) == len(nodes) == 1:
        return Origin(kernel=name, op_type=op_type, node=known[0], nodes=known, confidence="inferred")
    return Origin(kernel=name, op_type=op_type, candidates=known if len(known) == len(nodes) else ())


def _origin_by_name(name: str, op_type: str, named: Mapping[str, onnx.NodeProto], compute: Mapping[str, int]) -> Origin:
    node = named.get(_known_name(name, named) or "")
    label = None if node is None else node_provenance.provenance_of(node)
    if node is None or label is None or label.node not in compute:
        return Origin(kernel=name, op_type=op_type)
    same = node.name == name and node.op_type == op_type
    confidence = label.confidence if same else "inferred"
    return Origin(
        kernel=name,
        op_type=op_type,
        onnx_nodes=(node.name,),
        onnx_ops=(node.op_type,),
        node=label.node,
        nodes=label.nodes,
        confidence=confidence,
    )


def _known_name(name: str, known: Collection[str]) -> str | None:
    """Find the longest known name that a generated one begins with: `node_Gemm_39` for `fused node_Gemm_39/GemmActivationFusion/`."""
    name = name.removeprefix("fused ")
    while name:
        if name in known:
            return name
        cut = max(name.rfind("/"), name.rfind("_"))
        name = name[: max(cut, 0)]
    return None


@dataclass(slots=True)
class _GraphPair:
    """A graph of the original model and its optimised form; bodies of control flow are further such pairs."""

    before: onnx.GraphProto
    after: onnx.GraphProto
    compute: Mapping[str, int]
    everywhere: Mapping[str, onnx.NodeProto]
    makers: dict[str, onnx.NodeProto] = field(init=False)
    makers_now: dict[str, onnx.NodeProto] = field(init=False)
    readers_now: dict[str, list[onnx.NodeProto]] = field(init=False)
    stands_for: dict[str, str] = field(default_factory=dict)
    anchors: dict[int, list[onnx.NodeProto]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.makers = {value: node for node in self.before.node for value in node.output if value}
        self.makers_now = {value: node for node in self.after.node for value in node.output if value}
        self.readers_now = grouped((value, node) for node in self.after.node for value in node.input)

    def walk(self) -> Iterator[Origin]:
        nodes = list(self.after.node)
        for node in reversed(nodes):  # readers first: they show what a renamed value stands for
            self._anchor(node)
        claimed = {made.name for anchors in self.anchors.values() for made in anchors}
        kept = self.makers_now.keys() | {value.name for value in (*self.after.input, *self.after.initializer)}
        order = {node.name: place for place, node in enumerate(node_provenance.iter_nodes(self.before))}
        inserted = []
        known: dict[str, Origin] = {}
        for node in nodes:
            anchors = self.anchors.get(id(node))
            origin = None
            if anchors:
                taken = sorted(self._taken(anchors, kept, claimed), key=lambda made: order.get(made.name, -1))
                origin = self._origin(node, anchors, taken)
            if origin is None:
                inserted.append(node)
            else:
                known[node.name] = origin
                yield origin
            yield from self._bodies(node)
        for node in inserted:
            yield self._inserted(node, known)

    def _anchor(self, node: onnx.NodeProto) -> None:
        """Find the nodes that a node certainly computes, and what its inputs stand for."""
        values = [self.stands_for.get(value, value) for value in node.output if value]
        makers = list({maker.name: maker for value in values if (maker := self.makers.get(value)) is not None}.values())
        same = self.everywhere.get(node.name)
        if self._is_inserted(node, makers, same):
            source = node.input[0] if node.input else ""
            if source and source not in self.makers and values[0] in self.makers:
                self.stands_for.setdefault(source, values[0])
            return
        anchors = makers or ([same] if same is not None and same.op_type == node.op_type else self._anchored_by_name(node))
        if anchors:
            self.anchors[id(node)] = anchors
        if len(anchors) == 1 and anchors[0].op_type == node.op_type:  # the inputs of an unchanged node stand for its old ones, in order
            for now, then in zip(node.input, anchors[0].input, strict=False):
                if now and now not in self.makers and then in self.makers:
                    self.stands_for.setdefault(now, then)

    def _is_inserted(self, node: onnx.NodeProto, makers: list[onnx.NodeProto], same: onnx.NodeProto | None) -> bool:
        if node.op_type in _ALWAYS_INSERTED:
            return True
        if node.op_type not in _COPIES or (same is not None and same.op_type == node.op_type):
            return False
        # A node with an input of the value's producer replaces the producer by another operator: Cast for CastLike.
        return not any(maker.op_type == node.op_type or set(node.input) & set(maker.input) for maker in makers)

    def _anchored_by_name(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        name = node.name
        for end in _NAME_ENDS:
            stem = name.split(end)[0] if end in name else name
            if stem != name and stem in self.makers:
                return [self.makers[stem]]
        known = _known_name(name, self.everywhere)
        return [] if known is None or node.op_type in _COPIES else [self.everywhere[known]]

    def _taken(self, anchors: list[onnx.NodeProto], kept: Collection[str], claimed: Collection[str]) -> list[onnx.NodeProto]:
        """Collect the anchors and every node before them whose values no longer exist and that no other node computes."""
        found = {node.name: node for node in anchors}
        waiting = list(anchors)
        while waiting:
            node = waiting.pop()
            for value in (*node.input, *node_provenance.captured(node)):
                maker = self.makers.get(value)
                if maker is not None and value not in kept and maker.name not in claimed and maker.name not in found:
                    found[maker.name] = maker
                    waiting.append(maker)
        return list(found.values())

    def _origin(self, node: onnx.NodeProto, anchors: list[onnx.NodeProto], taken: list[onnx.NodeProto]) -> Origin | None:
        known = [label for made in taken if (label := node_provenance.provenance_of(made)).node in self.compute]
        nodes = tuple(sorted({name for label in known for name in label.nodes}, key=lambda name: self.compute.get(name, -1)))
        last = [label for made in anchors if (label := node_provenance.provenance_of(made)).node in self.compute] or known[-1:]
        if not last:
            return None  # it permutes an input, which no FX node computes
        alone = len(taken) == 1 and taken[0].op_type == node.op_type
        sure: Confidence = last[-1].confidence if alone or last[-1].inferred else "fused"
        return Origin(
            kernel=node.name,
            op_type=node.op_type,
            onnx_nodes=tuple(made.name for made in taken),
            onnx_ops=tuple(made.op_type for made in taken),
            node=last[-1].node,
            nodes=nodes,
            confidence=sure,
        )

    def _inserted(self, node: onnx.NodeProto, known: Mapping[str, Origin]) -> Origin:
        """Return the origin of an inserted node: its producer's, else its first consumer's."""
        neighbours = (*self._along(node, known, backwards=True), *self._along(node, known, backwards=False))
        served = next((origin for origin in neighbours if origin.node), None)
        if served is None:
            return Origin(kernel=node.name, op_type=node.op_type)
        return Origin(kernel=node.name, op_type=node.op_type, node=served.node, nodes=(str(served.node),), confidence="inferred")

    def _along(self, node: onnx.NodeProto, known: Mapping[str, Origin], *, backwards: bool) -> Iterator[Origin]:
        """Yield the nearest origins before or after a node, skipping other inserted nodes."""
        waiting, seen = [node], {node.name}
        while waiting:
            for other in self._next_to(waiting.pop(0), backwards=backwards):
                if other.name in known:
                    yield known[other.name]
                elif other.name not in seen:
                    seen.add(other.name)
                    waiting.append(other)

    def _next_to(self, node: onnx.NodeProto, *, backwards: bool) -> list[onnx.NodeProto]:
        if backwards:
            return [self.makers_now[value] for value in node.input if value in self.makers_now]
        return [reader for value in node.output for reader in self.readers_now.get(value, ())]

    def _bodies(self, node: onnx.NodeProto) -> Iterator[Origin]:
        same = self.everywhere.get(node.name)
        bodies = dict(node_provenance.subgraphs_of(same)) if same is not None else {}
        for name, body in node_provenance.subgraphs_of(node):
            if name in bodies:
                yield from _GraphPair(bodies[name], body, self.compute, self.everywhere).walk()
            else:
                yield from (Origin(kernel=inner.name, op_type=inner.op_type) for inner in node_provenance.iter_nodes(body))
