"""Two ONNX models that compute the same, value by value: how far apart each value that both have is, and what each part adds to that.

Both run without rewrites. Each part of the examined model, from the values that have partners to the next, runs once more on the
reference's own values: that difference is its own, and the rest of it is inherited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch

from ortlens.backend.basis.node_provenance import used_nodes
from ortlens.lens.onnx_model.two_models.model_side import is_quantised
from ortlens.lens.onnx_model.two_models.pairing import ACTIVATIONS, PASSIVE, Pairs, sketch
from ortlens.lens.verify.compare_values import Tolerances, compare

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from ortlens.lens.onnx_model.two_models.model_side import ModelSide, Scale
    from ortlens.lens.onnx_model.two_models.pairing import ValuePair
    from ortlens.trace.records import Pairing

_GROUP = 256  # values that are computed at a time
_DEFAULTS = Tolerances()
_NUMBERS = "//numbers"  # at the end of a value's name: as the reference computes it
_EIGHT_BITS = ("int8", "uint8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far a value is from another: elements that are not finite on both sides are left out of the sums."""

    max_abs: float
    max_rel: float | None
    sqnr_db: float | None  # infinite for equal values, the other way where one alone is not finite; None where the reference alone is zero
    cosine: float | None
    agrees: bool  # within the tolerance of the narrower of both types


def between(value: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], tolerances: Tolerances = _DEFAULTS) -> Distance:
    """Compare two values of one shape."""
    ours, theirs = (torch.from_numpy(np.array(each)) for each in (value, reference))  # copies: others may be read only
    narrower = min(ours.dtype, theirs.dtype, key=lambda each: each.itemsize)
    found = compare(ours.to(theirs.dtype), theirs, None, tolerances.of(narrower))
    a, b = value.astype(np.float64).reshape(-1), reference.astype(np.float64).reshape(-1)
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    signal, size, noise = float(b @ b), float(a @ a), float((a - b) @ (a - b))
    return Distance(
        max_abs=found.max_abs,
        max_rel=found.max_rel,
        sqnr_db=-math.inf if found.clashes else math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else None,
        cosine=float(a @ b) / math.sqrt(signal * size) if signal and size else None,
        agrees=found.agrees,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedValue:
    """A value, its partner, and how far apart they are."""

    value: str
    node: str  # that computes it
    reference: str
    paired: Pairing | None
    is_part: bool  # whether a part of the model ends here: it is no constant, and no copy of another value in another type
    inherited: Distance
    own: Distance
    narrow: str = ""  # where its part computes in narrower types than the reference's, the argument that keeps a converter from its nodes
    reach: float = 0.0  # largest magnitude of the reference's value
    scale: str = ""  # the name of its scale, if it has one
    covers: float | None = None  # the range that its scale covers, over that of the reference's value
    overflows: bool = False  # whether its part makes infinities of finite values


class TwoModels:
    """The examined model and its reference on the same inputs."""

    def __init__(self, model: ModelSide, reference: ModelSide, tolerances: Tolerances) -> None:
        """Pair the values of both."""
        self._model, self._reference, self._tolerances = model, reference, tolerances
        sketches = [
            {
                name: sketch(side.real(name, value), is_weight=side.graph.root(name) in side.graph.constants)
                for names in _groups(side.graph.values)
                for name, value in side.values(names).items()
                if side.is_number(name)
            }
            | {name: sketch(value, is_weight=True) for name, value in side.weights()}
            for side in (model, reference)
        ]
        self._pairs = Pairs(model.graph, reference.graph, *sketches).all()
        self._partner = {pair.value: pair.reference for pair in self._pairs if not pair.is_copy}

    def compared(self) -> Iterator[ComparedValue]:
        """Compare each value that is computed, in the order of the examined model."""
        for group in _groups([pair for pair in self._pairs if pair.value not in self._model.feed]):
            before = {pair: self._model.graph.sources(pair.value, self._partner) for pair in group}
            known = sorted({name for names in before.values() for name in names})
            theirs = self._reference.values([*(pair.reference for pair in group), *(self._partner[name] for name in known)])
            theirs = {name: self._reference.real(name, value) for name, value in theirs.items()}
            given = {name: self._model.stored(name, theirs[self._partner[name]]) for name in known}
            names = [pair.value for pair in group]
            inherited, own = self._model.values(names), self._model.values(names, given)
            for pair in group:
                yield self._compare(pair, theirs[pair.reference], inherited[pair.value], own[pair.value])

    def _compare(self, pair: ValuePair, reference: np.ndarray, inherited: np.ndarray, own: np.ndarray) -> ComparedValue:
        model = self._model
        reference = (
            reference.T
            if reference.shape != inherited.shape and reference.shape == inherited.shape[::-1]
            else reference.reshape(inherited.shape)
        )
        distances = [between(model.real(pair.value, value), reference, self._tolerances) for value in (inherited, own)]
        maker = model.graph.makers.get(pair.value) or model.graph.readers[pair.value][0]
        narrower = inherited.dtype.itemsize < self._reference.dtypes.get(pair.reference, inherited.dtype).itemsize
        held = maker.input[0] if maker.op_type == "DequantizeLinear" and pair.value in maker.output else pair.value
        quantised = any(_is_narrow(node) for node in model.graph.segment(pair.value, self._partner))
        scale = model.scale_of(held)
        dtype = model.dtypes.get(held)
        return ComparedValue(
            value=pair.value,
            node=maker.name,
            reference=pair.reference,
            paired=pair.paired,
            is_part=pair.value in self._partner,
            inherited=distances[0],
            own=distances[1],
            narrow="nodes_to_exclude" if quantised else "node_block_list" if narrower else "",
            reach=float(np.max(np.abs(reference.astype(np.float64)), initial=0.0)),
            scale=scale.names[0] if scale is not None else "",
            covers=_covered(scale, dtype, reference) if scale is not None and dtype is not None and dtype.name in _EIGHT_BITS else None,
            overflows=bool(np.isinf(own.astype(np.float64)).any() and np.isfinite(reference).all()) if own.dtype.kind == "f" else False,
        )

    def outputs(self, kept: Sequence[ComparedValue] = ()) -> dict[str, np.ndarray[Any, Any]]:
        """Compute the outputs of the examined model, with the reference's part in place of each that computes one of these values.

        The model is made as by a quantiser that leaves nodes out: they pass numbers to each other and to the outputs, and read what is
        quantised for others as these do. ONNX Runtime then rewrites it as it would that one.
        """
        model, own = self._model, {each.value: self._activated(each.reference) for each in kept}
        others = frozenset[str]().union(*(model.graph.sources(value, self._partner) for value in self._partner.keys() - own.keys()))
        ends = {name: root for name in model.graph.outputs if (root := model.graph.root(name)) in own and root != name}
        nodes: list[onnx.NodeProto] = []
        for node in model.nodes():
            for value in own.keys() & node.output:
                nodes += self._part(value, own, others)
            nodes += [onnx.helper.make_node("Identity", [f"{ends[name]}{_NUMBERS}"], [name]) for name in ends.keys() & node.output]
            node.output[:] = [f"{name}//own" if name in own or name in ends else name for name in node.output]
            nodes.append(node)
        made = model.outputs(nodes, self._reference)
        return {name: value if name in ends else model.real(name, value) for name, value in made.items()}

    def _part(self, value: str, own: Mapping[str, str], others: Container[str]) -> list[onnx.NodeProto]:
        """Copy the reference's nodes that compute a value from the values that the examined model has before it."""
        model, reference = self._model, self._reference
        names, nodes = dict[str, str](), list[onnx.NodeProto]()
        for source in model.graph.sources(value, self._partner):
            partner, name = self._partner[source], f"{value}{_NUMBERS}/{source}"
            is_alone = source not in others and (source in own or source not in model.graph.makers)
            read = source if is_alone else model.graph.dequantised(source)
            if is_alone and source in own:
                name = f"{source}{_NUMBERS}"
            else:
                nodes += model.conversion(read, name, reference, partner)
            names |= dict.fromkeys([partner] if read == source not in own else [partner, self._activated(partner)], name)
        wanted = {own[value]}
        for node in used_nodes([each for each in reference.nodes() if not names.keys() & each.output], wanted):
            node.input[:] = [names.get(name) or reference.name_elsewhere(name, value) for name in node.input]
            node.output[:] = [reference.name_elsewhere(name, value) for name in node.output]
            node.name = reference.name_elsewhere(node.name, value)
            nodes.append(node)
        nodes.append(onnx.helper.make_node("Identity", [reference.name_elsewhere(own[value], value)], [f"{value}{_NUMBERS}"]))
        return [*nodes, *model.conversion(value, f"{value}{_NUMBERS}", reference, own[value], back=True)]

    def sources(self, compared: ComparedValue) -> frozenset[str]:
        """Name the values that the part of a value reads."""
        return self._model.graph.sources(compared.value, self._partner)

    def nodes_of(self, compared: ComparedValue) -> list[str]:
        """Name the reference's nodes that compute a value, but for what a quantiser takes as a part of the nodes before."""
        found: list[onnx.NodeProto] = []
        for node in self._reference.graph.segment(self._activated(compared.reference), set(self._partner.values()) - {compared.reference}):
            made = {name for each in found for name in each.output}
            if node.op_type not in PASSIVE or made.intersection(node.input):
                found.append(node)
        return [node.name for node in found]

    def _activated(self, reference: str) -> str:
        """Name what a quantiser computes with a value of the reference: an activation after it, unless the examined model has both."""
        readers = self._reference.graph.readers.get(reference, ())
        ends = [node.output[0] for node in readers if node.op_type in ACTIVATIONS and node.output[0] not in self._partner.values()]
        return ends[0] if len(ends) == len(readers) == 1 else reference


def _groups(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[start : start + _GROUP] for start in range(0, len(items), _GROUP))


def _is_narrow(node: onnx.NodeProto) -> bool:
    return is_quantised(node) or node.op_type.endswith("Integer") or node.op_type == "MatMulNBits"


def _covered(scale: Scale, dtype: np.dtype[Any], reference: np.ndarray[Any, Any]) -> float | None:
    """Return the range that a scale covers over that of the values: that of both signs if it is too wide, or of one if it is too narrow."""
    ratios = []
    for covered, values in zip(scale.reach(dtype), (-reference, reference), strict=True):
        apart = tuple(axis for axis in range(values.ndim) if covered.ndim != values.ndim or covered.shape[axis] == 1)
        largest = values.max(axis=apart, keepdims=covered.ndim == values.ndim, initial=0.0)
        if (largest > 0).any():
            ratios.append(float(np.median(np.broadcast_to(covered, largest.shape)[largest > 0] / largest[largest > 0])))
    return min(max(ratios), max(min(ratios), 1.0)) if ratios else None
