"""An ONNX model against another: the table of compared values, and findings about what loses most, each of them tried."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import warnings
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch

from ortlens.backend.api import OrtBackend
from ortlens.backend.deploy.export import WeightSource
from ortlens.backend.freeze.exporting import export_program
from ortlens.backend.freeze.tracing import Untraceable, program_of
from ortlens.errors import OrtLensError, SessionError, UsageError
from ortlens.lens.onnx_model import graph_records
from ortlens.lens.onnx_model.signature import feed_for
from ortlens.lens.onnx_model.source import source_of
from ortlens.lens.onnx_model.two_models.lockstep import ComparedValue, TwoModels, between
from ortlens.lens.onnx_model.two_models.model_side import ModelSide
from ortlens.trace import records as r
from ortlens.units import counted, percent, times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ortlens.lens.onnx_model.signature import Feed
    from ortlens.lens.onnx_model.source import ModelSource
    from ortlens.lens.verify.compare_values import Tolerances
    from ortlens.trace.recorder import Recorder

RULES = ("call_differs", "float16_overflow", "scale_misfit", "narrow_nodes")
_NARROW = "computed in narrower types"
_TRIED = 12  # parts in whose place the reference's is tried
_WORTH_DB = 1.0  # gain of a further part that is worth naming
_POOR_DB = 30.0  # what 8 bits keep where nothing is wrong
_GOOD_DB = 40.0  # of outputs that are hardly worth a change
_FITS = (0.5, 4.0)  # the range that a scale covers, over that of the values, which is no fault
_LARGEST_FLOAT16 = 65504.0


def reference_source(reference: Any) -> ModelSource | None:
    """Read a reference that is an ONNX model, or an exported program, which becomes one; None for any other."""
    if isinstance(reference, (str, os.PathLike, bytes, onnx.ModelProto)):
        return source_of(reference)
    return _written(reference, "the exported program") if isinstance(reference, torch.export.ExportedProgram) else None


def traced_source(reference: Any, inputs: Sequence[Any]) -> ModelSource | None:
    """Make an ONNX model of a PyTorch module; None where that is no single graph or holds what ONNX cannot say, and for functions."""
    with contextlib.suppress(Untraceable, OrtLensError), warnings.catch_warnings(action="ignore"):
        if isinstance(reference, torch.nn.Module):
            return _written(program_of(reference, tuple(inputs), {}, None)[0], type(reference).__name__)
    return None


def _written(program: torch.export.ExportedProgram, name: str) -> ModelSource:
    folder = tempfile.TemporaryDirectory(prefix="ortlens-reference-", ignore_cleanup_errors=True)
    path = Path(folder.name) / "reference.onnx"
    export_program(program, OrtBackend(), path, WeightSource(None))
    source = replace(source_of(path), name=name)
    weakref.finalize(source, folder.cleanup)
    return source


def verify(  # noqa: PLR0913, PLR0917 - one call site
    model: ModelSource,
    reference: ModelSource,
    outputs: Mapping[str, Any],
    feed: Feed,
    recorder: Recorder,
    tolerances: Tolerances,
    judged: Sequence[r.Numeric] = (),
) -> None:
    """Fill the table of compared values, from the `outputs` of a call with `feed`, and find what loses most.

    Of outputs that were `judged` by PyTorch itself, that stays, unless narrower types compute. Raises `UsageError` if the reference has
    other inputs or outputs, and `SessionError` if one of the models does not run without rewrites.
    """
    with tempfile.TemporaryDirectory(prefix="ortlens-verify-", ignore_cleanup_errors=True) as name:
        ours, theirs = ModelSide(model, Path(name), "model"), ModelSide(reference, Path(name), "reference")
        theirs.feed = feed_for(theirs.inputs, feed, (ours.name, theirs.name))
        ours.feed = {name: value for name, value in feed.items() if value is not None}
        expected = _expected(ours, theirs)
        both = TwoModels(ours, theirs, tolerances)
        values = list(both.compared())
        narrow = any(each.narrow for each in values)
        rows = [_of_output(ours, name, outputs[name], *other, tolerances) for name, other in expected.items()]
        tried = _Tried(both, expected, values if narrow else ())
    lenient = narrow and not tolerances.given
    _record(recorder, reference, [*rows, *values], tried, {row.node: row for row in judged if not lenient}, lenient=lenient)


def _expected(ours: ModelSide, theirs: ModelSide) -> dict[str, tuple[str, np.ndarray[Any, Any]]]:
    """Compute the outputs of the reference, by the names that the examined model has for them."""
    names, others = ours.graph.outputs, theirs.graph.outputs
    if len(names) != len(others):
        raise UsageError(
            f"{ours.name} has {counted(len(names), 'output')} ({', '.join(names)}), and {theirs.name} {len(others)} ({', '.join(others)})"
        )
    others, values = names if set(names) == set(others) else others, theirs.values(others, rewrites=True)
    return {name: (other, theirs.real(other, values[other])) for name, other in zip(names, others, strict=True) if other in values}


class _Tried:
    """What the outputs keep with the reference's parts in place of the worst, one by one, and with all that help."""

    def __init__(self, both: TwoModels, expected: Mapping[str, tuple[str, np.ndarray[Any, Any]]], values: Sequence[ComparedValue]) -> None:
        self._both, self._expected = both, expected
        self._known: dict[frozenset[str], float] = {}  # by the values of the parts
        worst = sorted(
            (each for each in values if each.is_part and (each.own.sqnr_db or 0.0) < math.inf), key=lambda each: each.own.sqnr_db or 0.0
        )
        self.before = self._sqnr_db([]) if worst else math.inf
        alone = {each: self._sqnr_db([each]) for each in worst[:_TRIED]}
        self.alone = {each: gained for each, gained in alone.items() if gained > -math.inf}
        self.kept, self.after = list[ComparedValue](), self.before
        for each in sorted(self.alone, key=lambda each: -self.alone[each]):
            before = both.sources(each)  # of a chain, the first may gain nothing alone
            for chosen in ({each.value}, {each.value, *before}):
                several = [other for other in values if other.is_part and (other.value in chosen or other in self.kept)]
                if self.after < _GOOD_DB and (gained := self._sqnr_db(several)) >= self.after + _WORTH_DB:
                    self.kept, self.after = several, gained
        self.nodes = list(dict.fromkeys(name for each in self.kept for name in both.nodes_of(each)))

    def _sqnr_db(self, kept: Sequence[ComparedValue]) -> float:
        """Return the SQNR of the output that is furthest from the reference; -infinity where ONNX Runtime cannot run such a model."""
        if (known := self._known.get(chosen := frozenset(each.value for each in kept))) is not None:
            return known
        try:
            made = self._both.outputs(kept)
        except SessionError:  # as where the reference has another version of the operator set
            return -math.inf
        self._known[chosen] = min(
            (found for name, (_, value) in self._expected.items() if (found := between(made[name], value).sqnr_db) is not None),
            default=math.inf,
        )
        return self._known[chosen]


def _of_output(  # noqa: PLR0913, PLR0917 - an output, in both models
    ours: ModelSide, name: str, value: Any, other: str, reference: np.ndarray[Any, Any], tolerances: Tolerances
) -> ComparedValue:
    """Compare an output of the session that runs."""
    if not isinstance(value, np.ndarray) or value.shape != reference.shape:
        shapes = " and ".join(str(getattr(each, "shape", type(each).__name__)) for each in (value, reference))
        raise UsageError(f"the output {name!r} has other sizes in both models: {shapes}")
    found = between(ours.real(name, value), reference, tolerances)
    return ComparedValue(value=name, node=name, reference=other, paired=None, is_part=False, inherited=found, own=found)


def _record(  # noqa: PLR0913 - one call site
    recorder: Recorder,
    reference: ModelSource,
    compared: Sequence[ComparedValue],
    tried: _Tried,
    judged: Mapping[str, r.Numeric],
    *,
    lenient: bool,
) -> None:
    """Record what was compared; where narrower types compute, a difference is no fault of its own, if `lenient`."""
    nodes = {node.node: node for node in recorder.records(r.Node)}
    known = [each for each in recorder.records(r.Finding) if each.rule == "call_differs" and judged]
    why = _NARROW if lenient else "the outputs agree" if judged and not known else ""
    wrong = [each for each in compared if not each.inherited.agrees and not why]
    first = next((each for each in wrong if each.paired and not each.own.agrees), None)
    rows = [
        row
        if not each.paired and (row := judged.get(each.node)) is not None
        else r.Numeric(
            partition_id=graph_records.PARTITION if each.paired else None,
            node=each.node,
            onnx_value=each.value,
            scope="value" if each.paired else "call",
            **r.same(each.inherited, "max_abs", "max_rel", "sqnr_db", "cosine"),
            ok=True if each.inherited.agrees else None if why else False,
            why="" if each.inherited.agrees else why,
            is_undecided=bool(why) and not each.inherited.agrees,
            first_divergence=each is first,
            paired=each.paired,
            reference_value=each.reference,
            own_sqnr_db=each.own.sqnr_db if each.paired else None,
            nonfinite="origin" if each.overflows else None,
            note="" if each not in tried.alone else f"with the reference's part in its place, the outputs are at {_db(tried.alone[each])}",
            **({} if (node := nodes.get(each.node)) is None else r.same(node, "file", "line")),
        )
        for each in compared
    ]
    recorder.replace_all(r.Numeric, rows)
    begins = "" if first is None else f"; the first value that differs on its own is {first.value}, of {first.node}"
    differs = [replace(each, evidence=f"{each.evidence}{begins}") for each in known] or _differs(wrong, begins, reference.name)
    recorder.replace_findings(RULES, [*_findings(compared, tried, reference.name), *differs])


def _db(value: float) -> str:
    return f"{value:.1f} dB of SQNR" if math.isfinite(value) else "no difference" if value > 0 else "NaN or infinities"


def _findings(compared: Sequence[ComparedValue], tried: _Tried, reference: str) -> Iterator[r.Finding]:
    overflown = [each for each in compared if each.overflows]
    for each in overflown[:1]:
        limit = f", and float16 holds {_LARGEST_FLOAT16:,.0f} at most" if each.reach > _LARGEST_FLOAT16 else ""
        yield r.Finding(
            rule="float16_overflow",
            subject=each.node,
            severity="error",
            title=f"{each.value} overflows at {each.node}: in {reference} it reaches {each.reach:,.0f}{limit}",
            evidence=f"{counted(len(overflown), 'value')} with infinities where the reference has none",
            hazard="What is computed from it is infinite or NaN where values are kept in float16 between nodes, for inputs such as these.",
            mitigation=f"Keep {each.node} in float32, with the nodes that read it, or scale the values down before it",
        )
    poor = [each for each in compared if each.covers is not None and (each.own.sqnr_db or 0.0) < _POOR_DB]
    misfits = {each.scale: each for each in sorted(poor, key=_own_db, reverse=True) if not _FITS[0] <= (each.covers or 1.0) <= _FITS[1]}
    for each in sorted(misfits.values(), key=_own_db):
        covers = each.covers or 0.0
        yield r.Finding(
            rule="scale_misfit",
            subject=each.scale,
            severity="error",
            title=f"The scale {each.scale} covers {times(covers) if covers > 1 else percent(covers)} of the range of {each.reference}",
            evidence=f"it holds up to {covers * each.reach:.4g}, the values of {reference} reach {each.reach:.4g} with these inputs; "
            f"the value keeps {_db(_own_db(each))}",
            hazard="Values beyond the range are cut off." if covers < 1 else "Few of the 256 steps are used, and each is too wide.",
            mitigation="Quantise the model again, calibrated with inputs such as these",
        )
    if tried.kept:
        said = ", ".join(f"{each.node}: {_db(gained)}" for each, gained in tried.alone.items())
        argument = tried.kept[0].narrow
        yield r.Finding(
            rule="narrow_nodes",
            subject=tried.kept[0].node,
            severity="warning",
            title=f"The outputs are at {_db(tried.before)}, and with parts of {reference} in it at {_db(tried.after)}",
            evidence=f"tried with the reference's part in place of each of the {len(tried.alone)} worst: {said}",
            hazard="These parts lose most of what the narrower types lose.",
            mitigation=f"Leave these nodes as they are in {reference}: pass {argument} to the tool that converts the model",
            settings=(f"{argument} = {json.dumps(tried.nodes)}",),
        )


def _own_db(each: ComparedValue) -> float:
    return each.own.sqnr_db or 0.0


def _differs(wrong: Sequence[ComparedValue], begins: str, reference: str) -> Iterator[r.Finding]:
    """Find outputs that differ where both compute in the same types."""
    outputs = [each for each in wrong if each.paired is None]
    if outputs:
        yield r.Finding(
            rule="call_differs",
            subject="call",
            severity="error",
            title=f"{outputs[0].value} differs from that of {reference} by up to {outputs[0].inherited.max_abs:.1e}{begins}",
            evidence=f"{counted(len(outputs), 'output')} and {len(wrong) - len(outputs):,} inside differ beyond rounding",
            hazard="The models give other results for the same inputs.",
            mitigation="Look at this part of the model that the tool wrote; the rows of `numerics` before it agree",
        )
