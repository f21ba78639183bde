"""Where the values of two sides begin to differ, and the smallest part of a model that still shows it."""

from __future__ import annotations

import bisect
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import onnx
import torch

from ortlens.backend.basis.node_provenance import captured, part_of, used_nodes, with_outputs
from ortlens.lens.verify.compare_values import Tolerances, compare
from ortlens.studies.bisect_run import read_values, save, write_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_GROUP = 128  # values that a model returns at a time
FUSED = "only where earlier values are not returned: fused"
_STEPS = (0, 1, 2, 3, 5, 8, 13, 21, 34)  # back from a node to what it is fused with; each takes a run of both sides
KINDS = ("rounding", "differs", "fails")  # the worst last
Kind: TypeAlias = Literal["rounding", "differs", "fails"]
Pair: TypeAlias = "Callable[[tuple[str, str], tuple[str, str]], tuple[Mapping[str, str], Mapping[str, str]]]"
"""Runs a model, with its inputs, on each of two sides; returns the files of their values, or an `error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value that differs."""

    kind: Kind  # within the tolerance of its dtype, or not; or the other side has no value
    value: str
    node: str = ""  # that computes it
    op_type: str = ""
    line: str = ""  # of the user's program, if it is known
    max_abs: float | None = None  # None for other shapes or types
    max_rel: float | None = None
    note: str = ""  # what differs besides numbers, or how it was found


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestModel:
    """The smallest model that was found, its inputs, and what the base makes of them."""

    model: str
    inputs: str
    expected: str
    nodes: int
    right: Literal["base", "other", "both", "neither"] | None  # by the reference implementation of ONNX; None if it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Where a difference begins."""

    first: Difference
    other_bits_from: str | None
    cut: SmallestModel | None


def worst(pairs: Sequence[tuple[str, str]]) -> Difference | None:
    """Compare files of values, and return the worst difference, beyond rounding first."""
    found = [each for base, other in pairs for each in differences(read_values(base), read_values(other))]
    return max(found, key=lambda each: (KINDS.index(each.kind), each.max_rel or 0.0, each.max_abs or 0.0), default=None)


def differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """List the values that are not the same to the bit, of those that both have."""
    found = (_difference(name, base[name], other[name]) for name in base if name in other)
    return [each for each in found if each is not None]


def _difference(name: str, base: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> Difference | None:
    if base.shape != other.shape or base.dtype != other.dtype:
        shapes = [f"{value.dtype}{list(value.shape)}" for value in (base, other)]
        return Difference(kind="differs", value=name, note=f"{shapes[1]} instead of {shapes[0]}")
    if base.tobytes() == other.tobytes():
        return None
    ours, theirs = (torch.from_numpy(np.ascontiguousarray(value)) for value in (other, base))
    result = compare(ours, theirs, None, Tolerances().of(theirs.dtype))
    note = "NaN or infinite on one side only" if result.clashes else ""
    kind: Kind = "rounding" if result.agrees else "differs"
    return Difference(kind=kind, value=name, max_abs=result.max_abs, max_rel=result.max_rel, note=note)


class Search:
    """Looks for the first value that differs as much as `kind` says, in one model on two sides, whose parts of the program are given."""

    def __init__(self, ours: Mapping[str, Any], theirs: Mapping[str, Any], pair: Pair, kind: str, folder: Path) -> None:
        """Load the models."""
        self._feeds, self._pair, self._kind, self._folder = (ours["feed"], theirs["feed"]), pair, kind, folder
        self._lines: Mapping[str, str] = ours["lines"]
        same = ours["model"] == theirs["model"]
        self._model = onnx.load(ours["model"])
        self._models = (self._model, self._model if same else onnx.load(theirs["model"]))
        computed = [name for node in self._model.graph.node if node.op_type != "Constant" for name in node.output if name]
        there = {name for node in self._models[1].graph.node for name in node.output}
        self._names = [name for name in computed if name in there]
        self._constants = {tensor.name for tensor in self._model.graph.initializer}  # which a cut has as they are
        self._known: dict[str, Any] = read_values(self._feeds[0])  # values of the base so far
        self._count = 0
        self._other_bits_from: str | None = None

    def trace(self, *, wants_cut: bool) -> Traced | None:
        """Find the value; None if none differs so, as where the difference lies elsewhere."""
        found = self._at_the_end() if self._kind == "fails" else self._among_all() or self._at_the_end()
        if found is None:
            return None
        node = self._maker_of(found.value)
        first = replace(found, node=node.name, op_type=node.op_type, line=self._lines.get(node.name, ""))
        return Traced(first=first, other_bits_from=self._other_bits_from, cut=self._cut_at(node, found.value) if wants_cut else None)

    def _maker_of(self, value: str) -> onnx.NodeProto:
        node: onnx.NodeProto = next(node for node in self._model.graph.node if value in node.output)
        return node

    def _among_all(self) -> Difference | None:
        """Compare all values of the model, in groups. What fusions change does not show: a returned value is not fused away."""
        for start in range(0, len(self._names), _GROUP):
            found = self._with_outputs(self._names[start : start + _GROUP], keep=True)
            if found and self._other_bits_from is None:
                self._other_bits_from = self._maker_of(found[0].value).name
            if hit := next((each for each in found if self._counts(each)), None):
                return hit
        return None

    def _at_the_end(self) -> Difference | None:
        """Search for the shortest beginning of the model whose last value differs, by halving; None where not even nothing can run."""
        if self._kind == "fails" and self._hit(None) is not None:
            return None
        ends = [value.name for value in self._model.graph.output if value.name in self._names]
        end = next((name for name in ends if self._hit(name) is not None), None)
        if end is None:
            return None
        before = self._names[: self._names.index(end)]
        place = bisect.bisect_left(before, x=True, key=lambda name: self._hit(name) is not None)
        hit = self._hit([*before, end][place])
        return hit if hit is None or self._kind == "fails" else replace(hit, note=hit.note or FUSED)

    def _hit(self, name: str | None) -> Difference | None:
        """Compare one value of a model that ends there, or of one that only returns a constant."""
        return next(filter(self._counts, self._with_outputs([] if name is None else [name])), None)

    def _counts(self, found: Difference) -> bool:
        return KINDS.index(found.kind) >= KINDS.index(self._kind)

    def _with_outputs(self, names: Sequence[str], *, keep: bool = False) -> list[Difference]:
        models = [(self._written(_ending_in(model, names)), feed) for model, feed in zip(self._models, self._feeds, strict=True)]
        base, other = self._pair(*models)
        if "error" in base:
            return []
        values = read_values(base["first"])
        if keep:
            self._known |= values
        if "error" in other:
            return [] if keep else [Difference(kind="fails", value=next(iter(names), ""), note=other["error"])]
        return differences({name: values[name] for name in names if name in values}, read_values(other["first"]))

    def _written(self, model: onnx.ModelProto) -> str:
        self._count += 1
        return save(model, self._folder / f"search{self._count}.onnx")

    def _cut_at(self, node: onnx.NodeProto, value: str) -> SmallestModel | None:
        """Find the fewest steps back from a node that still differ on the base's values, and write that part of the model."""
        for nodes in _grown(self._model.graph.node, node):
            inputs = _read_by(nodes) - self._constants
            if missing := sorted(inputs - self._known.keys()):
                self._with_outputs(missing, keep=True)
            if not inputs <= self._known.keys():
                return None
            feed = {name: self._known[name] for name in sorted(inputs)}
            model = self._written(part_of(self._model, nodes, feed, [value]))
            given = write_values(feed, self._folder / f"search{self._count}-inputs.npz")
            base, other = self._pair((model, given), (model, given))
            if "error" in base:
                return None
            results = read_values(base["first"]), None if "error" in other else read_values(other["first"])
            if results[1] is None or any(map(self._counts, differences(results[0], results[1]))):
                return SmallestModel(
                    model=model, inputs=given, expected=base["first"], nodes=len(nodes), right=_right(model, feed, *results)
                )
        return None


def _ending_in(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Copy a model with these outputs alone, and the nodes that they need; without any, it returns a constant."""
    made = with_outputs(model, names)
    nodes = used_nodes(list(made.graph.node), set(names))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    if not names:
        made.graph.node.append(onnx.helper.make_node("Constant", [], ["nothing"], value_float=0.0))
        made.graph.output.append(onnx.helper.make_tensor_value_info("nothing", onnx.TensorProto.FLOAT, []))
    return made


def _grown(nodes: Sequence[onnx.NodeProto], last: onnx.NodeProto) -> Iterator[list[onnx.NodeProto]]:
    """Yield a node, then with what it reads, and so on; every set in the order of the model."""
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    places = {place for place, node in enumerate(nodes) if node is last or node == last}
    steps = 0
    while True:
        chosen = [nodes[place] for place in sorted(places)]
        before = {makers[name] for name in _read_by(chosen) if name in makers}
        if not before or steps in _STEPS:
            yield chosen
        if not before:
            return
        places |= before
        steps += 1


def _read_by(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    made = {name for node in nodes for name in node.output}
    return {name for node in nodes for name in (*node.input, *captured(node)) if name} - made


def _right(model: str, feed: Mapping[str, Any], base: Mapping[str, Any], other: Mapping[str, Any] | None) -> Any:  # noqa: ANN401 - a literal of `Cut.right`
    """Ask the reference implementation of ONNX which side is right."""
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as infinity - infinity, which it then returns as NaN
            (expected,) = ReferenceEvaluator(model).run(None, dict(feed))
    except Exception:  # noqa: BLE001 - it lacks the operator, or its types
        return None
    (name,) = base
    agree = [
        side is not None and all(each.kind == "rounding" for each in differences({name: np.asarray(expected)}, side))
        for side in (base, other)
    ]
    return {(True, True): "both", (True, False): "base", (False, True): "other", (False, False): "neither"}[agree[0], agree[1]]
