"""Which value of an ONNX model is which of another that computes the same: quantised, in half precision, or rewritten.

Names are kept by most tools, but not by all, and two exports may give one name to different values. So a value has its partner by name
unless the content of both says otherwise; then by structure, where its producer reads the partners of the same values; and at last by
content, where nothing else is nearly as close. What only carries a value, as a cast or a quantisation, has the partner of that value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ortlens.analysis.index import grouped
from ortlens.backend.basis.node_provenance import captured

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import onnx

    from ortlens.trace.records import Pairing

    Sketch: TypeAlias = tuple[tuple[int, ...], np.ndarray[Any, Any]]

_CARRIERS = frozenset({"Identity", "Cast", "QuantizeLinear", "DequantizeLinear", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators whose result stands for their first input."""

_SUFFIXES = ("_quantized", "_QuantizeLinear_Output", "_DequantizeLinear_Output", "_QuantizeLinear", "_DequantizeLinear")
_SAME_OPERATOR = {"Gemm": "MatMul", "QGemm": "MatMul", "FusedGemm": "MatMul", "DynamicQuantizeMatMul": "MatMul", "MatMulNBits": "MatMul"}
_SAMPLES = 256  # elements of a value that are looked at
_CLOSE = 0.04  # squared distance, over the squared norm, of values that are the same in different types
_SIMILAR = 0.5  # the same of one that is computed alike, but wrong
_CLOSER = 0.2  # times the distance of another: no accident
_FEW = 16  # elements, in which the closest value says nothing
_HUGE = 1e30  # stands for infinity
_WALK = 64  # nodes between a value and those that it is known to be computed from


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePair:
    """A value of the examined model, and the same value of the reference."""

    value: str
    reference: str
    paired: Pairing
    carries: str = ""  # the value that it is a copy of, in another type


class ModelGraph:
    """The top level of a model, as values and what makes and reads them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Read a model, with or without its weights."""
        self.nodes = [node for node in model.graph.node if node.op_type != "Constant"]
        self.makers = {value: node for node in self.nodes for value in node.output if value}
        self.readers = grouped((value, node) for node in self.nodes for value in (*node.input, *captured(node)) if value)
        held = {tensor.name for tensor in model.graph.initializer}
        self.inputs = [value.name for value in model.graph.input if value.name not in held]
        self.outputs = [value.name for value in model.graph.output]
        self.constants = held | {name for node in model.graph.node if node.op_type == "Constant" for name in node.output}
        for node in self.nodes:
            if node.input and all(name in self.constants for name in (*node.input, *captured(node)) if name):
                self.constants.update(node.output)
        self.values = [*self.inputs, *(name for node in self.nodes for name in node.output if name)]

    def root(self, value: str) -> str:
        """Follow a value through what only carries it."""
        while (node := self.makers.get(value)) is not None and node.op_type in _CARRIERS and value == node.output[0]:
            value = node.input[0]
        return value

    def read_by(self, value: str) -> Iterator[str]:
        """Yield the values that the maker of a value reads."""
        node = self.makers.get(value)
        return iter(()) if node is None else (name for name in (*node.input, *captured(node)) if name)

    def operator(self, value: str) -> str:
        """Name what makes a value, alike for quantised, fused and plain forms."""
        node = self.makers.get(value)
        if node is None:
            return ""
        fused = next((item.s.decode(errors="replace") for item in node.attribute if item.name == "activation" and item.s), "")
        plain = node.op_type.removeprefix("QLinear").removeprefix("Fused").removesuffix("Integer")
        return fused or _SAME_OPERATOR.get(node.op_type, plain)

    def sources(self, value: str, stops: Iterable[str], most: int = 1 << 30) -> frozenset[str] | None:
        """Find which of `stops` a value is computed from, without passing them; None where that takes more than `most` values."""
        found, seen, todo = set(), {value}, list(self.read_by(value))
        while todo:
            name = self.root(todo.pop())
            if name in stops:
                found.add(name)
            elif name not in self.constants and name not in seen:
                seen.add(name)
                todo += self.read_by(name)
            if len(seen) > most:
                return None
        return frozenset(found)

    def segment(self, value: str, stops: Iterable[str]) -> list[onnx.NodeProto]:
        """List the nodes between `stops` and a value that it needs, constants aside, in the order of the model."""
        seen, todo = set(), [value]
        while todo:
            name = todo.pop()
            if name not in seen and name not in self.constants and (name not in stops or name == value):
                seen.add(name)
                todo += self.read_by(name)
        return [node for node in self.nodes if seen.intersection(node.output)]


def sketch(value: np.ndarray[Any, Any], *, is_weight: bool = False) -> Sketch:
    """Take the number of elements, and elements at even distances: the same ones of values that differ in their shapes alone.

    A weight is known by its sizes in any order: a quantiser may transpose it.
    """
    flat = value.reshape(-1)
    places = np.linspace(0, flat.size - 1, min(flat.size, _SAMPLES)).astype(np.int64)
    return tuple(sorted(value.shape)) if is_weight else (flat.size,), np.nan_to_num(
        flat[places].astype(np.float64), posinf=_HUGE, neginf=-_HUGE
    )


@dataclass(slots=True, kw_only=True)
class _Sketches:
    """Sketches of the values of both models, and how far each of one is from each of the other."""

    ours: Mapping[str, Sketch]
    theirs: Mapping[str, Sketch]

    def distance(self, value: str, other: str) -> float:
        """Return the squared distance over the larger squared norm: 0 for equal values, infinite for those of other sizes."""
        (size, a), (size_of_other, b) = self.ours[value], self.theirs[other]
        if size != size_of_other:
            return np.inf
        norm = max(float(a @ a), float(b @ b))
        return 0.0 if norm == 0 else float((a - b) @ (a - b)) / norm


@dataclass(slots=True)
class Pairs:
    """Pairs the values of two models."""

    model: ModelGraph
    reference: ModelGraph
    near: _Sketches
    found: dict[str, tuple[str, Pairing]] = field(default_factory=dict)  # of values that are no copies
    taken: dict[str, str] = field(default_factory=dict)  # the other way round
    named: dict[str, str] = field(default_factory=dict)

    def _take(self, value: str, other: str, way: Pairing) -> None:
        self.found[value] = other, way
        self.taken.setdefault(other, value)

    def _by_names(self) -> None:
        """Pair what has the same name, unless the content says that another value is that one."""
        known = {name: self.reference.root(name) for name in self.near.theirs}
        for name in self.near.ours:
            root = self.model.root(name)
            other = next((known[alias] for alias in _aliases(name) if alias in known), None)
            is_known = other is not None and root in self.near.ours and other in self.near.theirs
            if other is not None and is_known and (name == root or root not in self.named):
                self.named[root] = other
        by_size = grouped((size, name) for name, (size, _) in self.near.theirs.items() if name == self.reference.root(name))
        ours_by_size = grouped((size, name) for name, (size, _) in self.near.ours.items() if name == self.model.root(name))
        namesakes = {other: name for name, other in self.named.items()}
        own = {name: self.near.distance(name, other) for name, other in self.named.items()}
        for name, other in self.named.items():
            if self.near.distance(name, other) == np.inf:
                continue
            limit = min(_CLOSER * own[name], _CLOSE)
            rivals = (each for each in by_size[self.near.ours[name][0]] if each != other)
            better = any(
                (gap := self.near.distance(name, each)) < limit and own.get(namesakes.get(each, ""), np.inf) > gap for each in rivals
            )
            others = (each for each in ours_by_size[self.near.theirs[other][0]] if each != name)
            better = better or any((gap := self.near.distance(each, other)) < limit and own.get(each, np.inf) > gap for each in others)
            if not better:
                self._take(name, other, "name")

    def _by_structure(self) -> None:
        """Pair what is computed from the partners of the same values, by the same operator or with nearly the same content."""
        for value in self.model.values:
            if value in self.found or value not in self.near.ours or self.model.root(value) != value or value in self.model.constants:
                continue
            sources = self.model.sources(value, self.found, _WALK)
            if not sources:
                continue
            wanted = frozenset(self.found[name][0] for name in sources)
            ranked = sorted((self.near.distance(value, other), other) for other in self._computed_from(wanted))
            ranked = [(gap, other) for gap, other in ranked if gap < np.inf]
            same = [(gap, other) for gap, other in ranked if self.reference.operator(other) == self.model.operator(value)]
            if ranked and ranked[0][0] <= _CLOSE:
                self._take(value, ranked[0][1], "structure")
            elif len(same) == 1 and same[0][0] <= _SIMILAR:
                self._take(value, same[0][1], "structure")

    def _computed_from(self, wanted: frozenset[str]) -> Iterator[str]:
        """Yield the values of the reference without a partner that are computed from these, and no other values with a partner."""
        todo, seen = list(wanted), set[str]()
        while todo and len(seen) < _WALK:
            for node in self.reference.readers.get(todo.pop(0), ()):
                for name in node.output:
                    if name in seen or not name:
                        continue
                    seen.add(name)
                    if self.reference.root(name) in self.taken:
                        continue
                    todo.append(name)
                    if name in self.near.theirs and self.reference.sources(name, self.taken, _WALK) == wanted:
                        yield name

    def _by_content(self) -> None:
        """Pair what is left and is far closer to one value than to any other, in both directions."""
        left = [name for name in self.model.values if name in self.near.ours and self.model.root(name) == name and name not in self.found]
        free = grouped((size, name) for name, (size, taken) in self.near.theirs.items() if name not in self.taken and taken.size >= _FEW)
        closest: dict[str, list[tuple[float, str]]] = {}
        for value in left:
            ranked = sorted((self.near.distance(value, other), other) for other in free.get(self.near.ours[value][0], ()))
            if ranked and ranked[0][0] <= _CLOSE and (len(ranked) == 1 or ranked[0][0] < _CLOSER * ranked[1][0]):
                closest.setdefault(ranked[0][1], []).append((ranked[0][0], value))
        for other, claims in closest.items():
            self._take(min(claims)[1], other, "content")

    def pairs(self) -> list[ValuePair]:
        """Pair all values, in the order of the examined model."""
        self._by_names()
        self._by_structure()
        self._by_content()
        weights = (value for value in self.near.ours if value in self.model.constants and value.endswith(_SUFFIXES))
        return [
            pair
            for value in dict.fromkeys((*self.model.values, *weights))
            if value in self.near.ours and (pair := self._pair(value)) is not None
        ]

    def _pair(self, value: str) -> ValuePair | None:
        root = self.model.root(value)
        known = [name for name in (*_aliases(value), *_aliases(root)) if name in self.near.theirs]
        if root in self.model.constants:  # the reference's weight, and not what a quantised one is read as
            is_weight = bool(known) and self.near.distance(value, known[0]) < np.inf
            return ValuePair(value=value, reference=known[0], paired="name", carries=root) if is_weight else None
        given, way = self.found.get(root, ("", "name"))
        if root == value or not given:
            return ValuePair(value=value, reference=given, paired=way) if given else None
        free = [name for node in self.reference.readers.get(given, ()) for name in node.output if name not in self.taken]
        closer = _CLOSER * self.near.distance(value, given)  # a quantisation may clip as the next operator does, which is gone then
        other = next((name for name in free if name in self.near.theirs and self.near.distance(value, name) < closer), given)
        if self.near.distance(value, other) == np.inf:
            return None
        way = "name" if other in known else "structure"
        return ValuePair(value=value, reference=other, paired=way, carries=root)


def _aliases(name: str) -> Sequence[str]:
    """List the name, and what it was before a quantiser added to it."""
    return name, *(name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix))


def paired(
    model: ModelGraph,
    reference: ModelGraph,
    sketches: Mapping[str, Sketch],
    of_reference: Mapping[str, Sketch],
) -> list[ValuePair]:
    """Pair the values of two models of which there are sketches, each of what a value stands for."""
    return Pairs(model, reference, _Sketches(ours=sketches, theirs=of_reference)).pairs()
