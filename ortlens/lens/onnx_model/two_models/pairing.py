"""Which value of an ONNX model is which of another that computes the same: quantised, in half precision, or rewritten.

Names are kept by most tools, but not by all, and two exports may give one name to different values. So a value has its partner by name
unless the content of both says otherwise; then by structure, where its producer reads the partners of the same values; and at last by
content, where nothing else is nearly as close. What only carries a value, as a cast or a quantisation, has the partner of that value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ortlens.analysis.index import grouped
from ortlens.backend.basis.node_provenance import captured

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    import onnx

    from ortlens.trace.records import Pairing

    Sketch: TypeAlias = tuple[tuple[int, ...], np.ndarray[Any, Any]]

_CARRIERS = frozenset({"Identity", "Cast", "QuantizeLinear", "DequantizeLinear", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators whose result stands for their first input."""

ACTIVATIONS = frozenset({"Relu", "Clip"})
"""Operators that a quantiser merges into the one before."""

PASSIVE = _CARRIERS | ACTIVATIONS

_SUFFIXES = ("_quantized", "_QuantizeLinear_Output", "_DequantizeLinear_Output", "_QuantizeLinear", "_DequantizeLinear")
_SAME_OPERATOR = {"Gemm": "MatMul", "QGemm": "MatMul", "FusedGemm": "MatMul", "DynamicQuantizeMatMul": "MatMul", "MatMulNBits": "MatMul"}
_SAMPLES = 256  # elements of a value that are looked at
_CLOSE = 0.04  # squared distance, over the squared norm, of values that are the same in different types
_SIMILAR = 0.5  # the same of one that is computed alike, but wrong
_CLOSER = 0.2  # times the distance of another: no accident
_FEW = 16  # elements, in which the closest value says nothing
_HUGE = 1e30  # stands for infinity
_MOST = 1 << 30
_WALK = 64  # nodes between a value and those that it is known to be computed from


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePair:
    """A value of the examined model, and the same value of the reference."""

    value: str
    reference: str
    paired: Pairing
    is_copy: bool = False  # of another value, in another type or shape; so are weights


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

    def dequantised(self, value: str) -> str:
        """Name what a value is read as: its quantised form as numbers, where there is one."""
        stored = (node for node in self.readers.get(value, ()) if node.op_type == "QuantizeLinear")
        read = (node for each in stored for node in self.readers.get(each.output[0], ()) if node.op_type == "DequantizeLinear")
        return next((node.output[0] for node in read), value)

    def is_stored(self, value: str) -> bool:
        """Whether a value is a weight, or a copy of another, that is quantised and only read as numbers."""
        is_copy = value in self.constants or self.root(value) != value
        return is_copy and {node.op_type for node in self.readers.get(value, ())} == {"DequantizeLinear"}

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

    def sources(self, value: str, stops: Container[str], most: int = _MOST) -> frozenset[str]:
        """Find which of `stops` a value is computed from, without passing them; none where that takes more than `most` values."""
        found, passed = self._back_to(stops, value, most)
        return frozenset(found) if len(passed) <= most else frozenset()

    def segment(self, value: str, stops: Container[str]) -> list[onnx.NodeProto]:
        """List the nodes between `stops` and a value that it needs, in the order of the model."""
        passed = self._back_to(stops, value, len(self.values))[1]
        return [node for node in self.nodes if passed.intersection(node.output)]

    def _back_to(self, stops: Container[str], value: str, most: int) -> tuple[set[str], set[str]]:
        found, passed, todo = set[str](), {value}, list(self.read_by(value))
        while todo and len(passed) <= most:
            name = todo.pop()
            if name in stops:
                found.add(name)
            elif name not in self.constants and name not in passed:
                passed.add(name)
                todo += self.read_by(name)
        return found, passed


def sketch(value: np.ndarray[Any, Any], *, is_weight: bool = False) -> Sketch:
    """Take the number of elements, and elements at even distances: the same ones of values that differ in their shapes alone.

    A weight is known by its sizes in any order: a quantiser may transpose it.
    """
    flat = value.reshape(-1)
    places = np.linspace(0, flat.size - 1, min(flat.size, _SAMPLES)).astype(np.int64)
    return tuple(sorted(value.shape)) if is_weight else (flat.size,), np.nan_to_num(
        flat[places].astype(np.float64), posinf=_HUGE, neginf=-_HUGE
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """How far values of one size are from each other: the squared distance over the larger squared norm, 0 for equal ones."""

    rows: dict[str, int]  # values of the examined model
    columns: dict[str, int]  # values of the reference
    gaps: np.ndarray[Any, Any]
    elements: int  # that were looked at


def _table(ours: Sequence[tuple[str, np.ndarray[Any, Any]]], theirs: Sequence[tuple[str, np.ndarray[Any, Any]]]) -> _Table:
    rows, columns = ({name: place for place, (name, _) in enumerate(side)} for side in (ours, theirs))
    a, b = (np.stack([values for _, values in side]) for side in (ours, theirs))
    norms = np.maximum((a * a).sum(1)[:, None], (b * b).sum(1)[None])
    return _Table(rows, columns, np.stack([((values - b) ** 2).sum(1) for values in a]) / np.where(norms == 0, 1, norms), a.shape[1])


class Pairs:
    """Pairs the values of two models of which there are sketches, each of what a value stands for."""

    def __init__(self, model: ModelGraph, reference: ModelGraph, ours: Mapping[str, Sketch], theirs: Mapping[str, Sketch]) -> None:
        """Pair all that have partners."""
        self._model, self._reference = model, reference
        sides = [grouped((size, (name, values)) for name, (size, values) in side.items()) for side in (ours, theirs)]
        self._tables = [_table(sides[0][size], sides[1][size]) for size in sides[0].keys() & sides[1].keys()]
        self._table_of = {name: table for table in self._tables for name in table.rows}
        self._left = [name for name in model.values if name in self._table_of and model.root(name) == name and name not in model.constants]
        self._found: dict[str, tuple[str, Pairing]] = {}  # of values that are no copies
        self._taken: set[str] = set()  # by these
        known = {alias: reference.root(alias) for table in self._tables for alias in table.columns}
        named = {model.root(name): known[alias] for name in reversed(model.values) for alias in reversed(_aliases(name)) if alias in known}
        for table in self._tables:
            self._by_names(table, {name: named[name] for name in self._left if named.get(name) in table.columns and name in table.rows})
        self._by_structure()
        for table in self._tables:
            self._by_content(table)

    def _take(self, value: str, other: str, way: Pairing) -> None:
        self._found[value] = other, way
        self._taken.add(other)

    def _gap(self, value: str, other: str) -> float:
        table = self._table_of[value]
        return float(table.gaps[table.rows[value], table.columns[other]]) if other in table.columns else np.inf

    def _by_names(self, table: _Table, named: Mapping[str, str]) -> None:
        """Pair what has the same name, unless another value is far closer that has no closer namesake of its own."""
        places = {name: (table.rows[name], table.columns[other]) for name, other in named.items()}
        sides = (self._model, table.rows), (self._reference, table.columns)
        own_gaps = [np.array([np.inf if name == graph.root(name) else -np.inf for name in side]) for graph, side in sides]
        for row, column in places.values():
            own_gaps[0][row] = own_gaps[1][column] = table.gaps[row, column]
        for name, (row, column) in places.items():
            limit = min(_CLOSER * table.gaps[row, column], _CLOSE)
            around = (table.gaps[:, column], own_gaps[0]), (table.gaps[row], own_gaps[1])
            if not any(((gaps < limit) & (gaps < own)).any() for gaps, own in around):
                self._take(name, named[name], "name")

    def _by_structure(self) -> None:
        """Pair what is computed from the partners of the same values, with nearly the same content or by the same operator."""
        for value in self._left:
            sources = frozenset(self._found[name][0] for name in self._model.sources(value, self._found, _WALK))
            if value in self._found or not sources:
                continue
            ranked = sorted((self._gap(value, other), other) for other in self._computed_from(sources))
            same = [(gap, other) for gap, other in ranked if self._reference.operator(other) == self._model.operator(value)]
            for gap, other in ranked[:1] if ranked and ranked[0][0] <= _CLOSE else same if len(same) == 1 else ():
                if gap <= _SIMILAR:
                    self._take(value, other, "structure")

    def _computed_from(self, wanted: frozenset[str]) -> Iterator[str]:
        """Yield the values of the reference without a partner that are computed from these, and no other values with a partner."""
        todo, seen = list(wanted), set[str]()
        while todo and len(seen) < _WALK:
            made = {name for node in self._reference.readers.get(todo.pop(0), ()) for name in node.output if name} - seen
            seen |= made
            free = [name for name in made if self._reference.root(name) not in self._taken]
            todo += free
            yield from (name for name in free if self._reference.sources(name, self._taken, _WALK) == wanted)

    def _by_content(self, table: _Table) -> None:
        """Pair what is left and is far closer to one value than to any other, in both directions."""
        free = {name: column for name, column in table.columns.items() if name not in self._taken and table.elements >= _FEW}
        closest: dict[str, list[tuple[float, str]]] = {}
        for value in self._left:
            if value in table.rows and value not in self._found:
                ranked = sorted((table.gaps[table.rows[value], column], other) for other, column in free.items())
                if ranked and ranked[0][0] <= _CLOSE and (len(ranked) == 1 or ranked[0][0] < _CLOSER * ranked[1][0]):
                    closest.setdefault(ranked[0][1], []).append((ranked[0][0], value))
        for other, claims in closest.items():
            self._take(min(claims)[1], other, "content")

    def all(self) -> list[ValuePair]:
        """List the pairs in the order of the examined model, weights at the end; of what is quantised and read as numbers, these alone."""
        weights = (name for name in self._table_of if name in self._model.constants and name.endswith(_SUFFIXES))
        shown = (value for value in dict.fromkeys((*self._model.values, *weights)) if not self._model.is_stored(value))
        found = (self._pair(value) for value in shown if value in self._table_of)
        return [pair for pair in found if pair is not None]

    def _pair(self, value: str) -> ValuePair | None:
        root = self._model.root(value)
        known = [name for name in (*_aliases(value), *_aliases(root)) if name in self._table_of[value].columns]
        if root in self._model.constants:
            return ValuePair(value=value, reference=known[0], paired="name", is_copy=True) if known else None
        given, way = self._found.get(root, ("", "name"))
        if root == value or not given:
            return ValuePair(value=value, reference=given, paired=way) if given else None
        free = [name for node in self._reference.readers.get(given, ()) for name in node.output if name not in self._taken]
        closer = _CLOSER * self._gap(value, given)  # a quantisation may clip as the next operator does, which is gone then
        namesake = next((name for name in known if self._reference.root(name) == given), given)
        other = next((name for name in free if self._gap(value, name) < closer), namesake)
        return ValuePair(value=value, reference=other, paired="name" if other in known else "structure", is_copy=True)


def _aliases(name: str) -> Sequence[str]:
    """List the name, and what it was before a quantiser added to it."""
    return name, *(name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix))
