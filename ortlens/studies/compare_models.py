"""`compare_models()`: what quantising, another type, a converter or an optimiser changed: results, times, memory, size, operators."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ortlens._os_errors import clear_os_errors
from ortlens.analysis.answers.check import VerdictRow, limits_from, verdicts_of
from ortlens.backend.basis.options import OrtBackendOptions
from ortlens.errors import UsageError
from ortlens.lens.observing.time_budget import TimeBudget
from ortlens.lens.onnx_model.explain import explain_model
from ortlens.lens.onnx_model.sessions import choice_from, runner_of
from ortlens.lens.onnx_model.signature import feed_for, inputs_from_session, inputs_of
from ortlens.lens.onnx_model.source import source_of
from ortlens.lens.onnx_model.two_models.pairing import ModelGraph
from ortlens.model_file import read_model
from ortlens.studies.engine import LocalSide, measured, start
from ortlens.trace.records import Capture, Numeric, SideResult, column, optional
from ortlens.trace.schema import TABLES, frame_from_records, table_from_record
from ortlens.units import size_from_bytes
from ortlens.views.markup import page_html, write_report
from ortlens.views.rendering import screen_html, screen_text
from ortlens.views.screen import Answer, Screen
from ortlens.views.table import MAX_BYTES, ShownTable, table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import onnx
    import pandas as pd

    from ortlens.analysis.answers.check import Outcome
    from ortlens.lens.onnx_model.source import ModelSource

_MOST_ROUNDS, _ROUNDS_S = 200, 10.0
OperatorChange: TypeAlias = Literal["same", "quantised", "changed", "inserted", "gone"]
_CLOSE = ("sqnr_db", "cosine", "max_abs", "max_rel", "reference_value")
_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast", "Constant", "Identity")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedModel(SideResult):
    """One of two models: its time in turns with the other, its memory and its size."""

    held_bytes: int | None = optional("Heap memory that creating its session took, where the system tells.", unit="bytes", brief=7)
    file_bytes: int = column("Size of the model, with the files that hold its weights.", unit="bytes", brief=9)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedOperators:
    """Operators between values that both models have, and what became of them."""

    reference: str = column("Operators of the reference, as `Conv+Relu`; empty for what only the other model has.", brief=1)
    model: str = column("Those in their place; `QDQ Conv` for operators of floats on dequantised values.", brief=2)
    count: int = column("How often.", brief=3)
    change: OperatorChange = column("What happened to them.", brief=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """What `compare_models` found: the frames `times`, `numerics` and `operators`. A notebook shows it, and `print` writes it as text."""

    models: tuple[ComparedModel, ...]  # both, the reference first
    values: tuple[Numeric, ...]  # outputs, with the scope `call`, then inner values, the worst first
    pairs: tuple[PairedOperators, ...]  # operators, the most frequent first
    notes: tuple[str, ...]  # what is to be known of the inputs, and what could not be compared

    @property
    def times(self) -> pd.DataFrame:
        """A row per model, the reference first, with the columns of `ComparedModel`."""
        return frame_from_records(table_from_record("times", ComparedModel), self.models)

    @property
    def numerics(self) -> pd.DataFrame:
        """The values that were compared, as in the frame `numerics` of a lens: outputs first, then inner values, the worst first."""
        return frame_from_records(TABLES["numerics"], self.values)

    @property
    def operators(self) -> pd.DataFrame:
        """What became of the operators of the reference, with the columns of `PairedOperators`."""
        return frame_from_records(table_from_record("operators", PairedOperators), self.pairs)

    def verdicts(self, *, min_sqnr: float | None = None, max_slowdown: float | None = None) -> tuple[VerdictRow, ...]:
        """Check limits: the least SQNR of an output, and how many times as long a call may take outside the noise."""
        rows = () if min_sqnr is None else verdicts_of(Capture(numerics=self.values), limits_from(min_sqnr=min_sqnr))
        if max_slowdown is None:
            return rows
        allowed, second = limits_from(max_slowdown=max_slowdown)["max_slowdown"], self.models[1]
        ratio = (second.ratio if second.verdict == "slower" else None) or 1.0
        word: Outcome = "unmeasured" if second.verdict == "unmeasured" else "failed" if ratio > allowed else "passed"
        return *rows, VerdictRow(limit="max_slowdown", verdict=word, value=ratio, allowed=allowed, detail=second.note)

    def summary(self, *, width: int = 100) -> str:
        """Say what differs, in tables that are at most `width` characters wide, at least 60."""
        screen = self._screen()
        tables = [f"{each.title}\n{table(each.records, [c.name for c in each.columns], width=width)}" for each in screen.tables]
        return "\n\n".join([screen_text(screen, width=width), *tables])

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write it as one HTML file that opens anywhere; return its absolute path. A file that is no report raises `UsageError`."""
        about: dict[str, Any] = {"fragment": "summary.html", "screen": self._screen(), "max_bytes": MAX_BYTES}
        return write_report(path, page_html("comparison_page.html", about["screen"].title, styles=(), **about))

    def _screen(self) -> Screen:
        first, second = self.models
        outputs = tuple(row for row in self.values if row.scope == "call")
        far = [f"its worst output, {row.node}, is at {row.sqnr_db or 0:.3g} dB of SQNR" for row in outputs if row.sqnr_db != math.inf]
        said = far[0] if far else "its outputs are equal" if outputs else "no output is of a type that can be compared"
        words = {"same": "takes as long, within the noise", "unmeasured": "was not timed"}
        took = words.get(second.verdict, f"takes {second.ratio or 1:.2f}x as long")
        sizes = f"{size_from_bytes(second.file_bytes)}, the reference {size_from_bytes(first.file_bytes)}"
        notes = self.notes + tuple(row.note for row in self.models if row.note)
        answers = ("Verdict", (f"{said}; a call {took}; it has {sizes}",)), ("Note", notes)
        tables = (
            ("Outputs", "numerics", outputs, ("node", *_CLOSE)),
            ("Times, memory, size", "times", self.models, ()),
            ("Operators", "operators", self.pairs, ()),
            ("Inner values, the worst first", "numerics", self.values[len(outputs) :], ("node", "own_sqnr_db", *_CLOSE)),
        )
        return Screen(
            title=f"{first.way}  →  {second.way}",
            answers=tuple(Answer(name=label.lower(), label=label, said=lines) for label, lines in answers if lines),
            tables=tuple(ShownTable(title=title, source=of, records=rows, names=names) for title, of, rows, names in tables if rows),
        )

    def __str__(self) -> str:
        """Return the summary."""
        return self.summary()

    def _repr_html_(self) -> str:
        return screen_html(self._screen())


@clear_os_errors
def compare_models(
    a: str | os.PathLike[str] | bytes | onnx.ModelProto,
    b: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *inputs: Any,  # noqa: ANN401 - what the models take
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    budget_s: float | None = None,
    **named: Any,  # noqa: ANN401 - likewise
) -> ModelComparison:
    """Compare two ONNX models on the same inputs: results value by value, times in turns, memory, size on disk, and operators.

    Inputs and outputs are paired by name, or by place where names differ, and floats are given to `b` in its own type.

    Args:
        a: The reference: a path, bytes or an `onnx.ModelProto`.
        b: What was made from it.
        *inputs: Arrays or tensors in the order of `a`, or one mapping by name; without any, random ones are made.
        options: Options of the backend that apply to ONNX models, such as `preferred_execution_providers`, for both.
        budget_s: Seconds for timing both in turns, 10 by default; ten rounds are made in any case.
        **named: Inputs of `a` by name.

    Returns:
        The comparison, with the frames `times`, `numerics` and `operators`.

    Raises:
        UsageError: A file is missing or no model, inputs are not those of `a`, or `b` takes other inputs.
        SessionError: ONNX Runtime cannot load or run one of them.
    """
    TimeBudget(budget_s, _ROUNDS_S)  # raises now, and begins with the rounds
    choice, sources = choice_from(options), (source_of(a), source_of(b))
    graphs = [source.structure for source in sources]
    if graphs[0] is None or graphs[1] is None:
        raise UsageError("a model in ONNX Runtime's own format cannot be compared: give the ONNX file that it was made from")
    settings = choice.made_options()
    if choice.options is None:  # threads rest between runs, where they would take the cores of the other model's
        settings.add_session_config_entry("session.force_spinning_stop", "1")
    explained = partial(explain_model, options=replace(OrtBackendOptions.from_any(options), ort_session_options=settings), calls=1)
    reference = explained(a)(*inputs, **named)
    lenses: Any = reference, explained(b)(**feed_for(inputs_of(graphs[1]), reference.inputs, (sources[0].name, sources[1].name)))
    lenses[1].verify(a)
    captures = [lens.captured() for lens in lenses]
    given, taken = (capture.environment["onnx_inputs"] for capture in captures)
    notes = [f"the inputs {given} are given as {taken}"] if given != taken else []
    if made := captures[0].environment.get("onnx_inputs_made"):
        notes.append(f"the inputs are {made}; give your own for figures that mean something")
    values = sorted(captures[1].numerics, key=lambda row: (row.scope != "call", -math.inf if row.sqnr_db is None else row.sqnr_db))
    names = [source.name if source.path is None or sources[0].name != sources[1].name else str(source.path) for source in sources]
    makers = [partial(runner_of, lens.session, inputs_from_session(lens.session), lens.inputs) for lens in lenses]
    sides = [LocalSide(name=name, make=make) for name, make in zip(names, makers, strict=True)]
    start(sides)
    rows = measured(sides, most=_MOST_ROUNDS, is_over=TimeBudget(budget_s, _ROUNDS_S).is_over)
    models = []
    for row, source, capture in zip(rows, sources, captures, strict=True):
        session, first = capture.sessions[0], capture.runs[0]
        known = {"max_abs": None, "first_ns": session.create_ns + first.total_ns, "held_bytes": session.held_bytes}
        models.append(ComparedModel(**asdict(row) | known, file_bytes=_file_bytes(source)))
    pairs = _operators((ModelGraph(graphs[0]), ModelGraph(graphs[1])), captures[1].numerics)
    return ModelComparison(models=tuple(models), values=tuple(values), pairs=tuple(pairs), notes=tuple(notes))


def _file_bytes(source: ModelSource) -> int:
    if source.path is None:
        return len(source.data or b"")
    names = read_model(source.path.read_bytes()).locations
    return sum(path.stat().st_size for path in {source.path, *(source.path.parent / name for name in names)})


def _operators(graphs: tuple[ModelGraph, ModelGraph], rows: Sequence[Numeric]) -> Iterator[PairedOperators]:
    """Pair the operators between values that both models have; those that only one has, and conversions of types, are counted."""
    pairs: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row.scope == "call"):
        maker = graphs[1].makers.get(value := row.onnx_value or "")
        value = maker.input[0] if maker is not None and maker.op_type == "DequantizeLinear" else value  # which belongs to what reads it
        pairs.setdefault(row.reference_value or "", value)  # the first, of which others are copies
    left = [Counter(node.op_type for node in graph.nodes) for graph in graphs]
    found: Counter[tuple[str, str, Any]] = Counter()
    for ends in pairs.items():
        segments = map(ModelGraph.segment, graphs, ends, (pairs.keys(), {*pairs.values()}))
        parts = [[node.op_type for node in segment] for segment in segments]
        computing = [[op for op in part if op not in _CONVERSIONS] for part in parts]
        for ops, counts in zip(computing, left, strict=True):
            counts.subtract(ops)
        ours, theirs = map("+".join, computing)
        quantised = {op for op in {*parts[1]} - {*parts[0]} if op.startswith(("Q", "Deq", "Dyn")) or "Integer" in op}
        theirs = f"QDQ {theirs}" if theirs and quantised and quantised.isdisjoint(computing[1]) else theirs or "+".join(parts[1])
        found[ours, theirs, "quantised" if quantised else "same" if ours == theirs else "changed" if computing[1] else "gone"] += bool(ours)
    gone, inserted = +left[0] - +left[1], +left[1] - +left[0]
    found.update({(op, "", "gone"): count for op, count in gone.items()} | {("", op, "inserted"): count for op, count in inserted.items()})
    yield from (
        PairedOperators(reference=a, model=b, count=count, change=change) for (a, b, change), count in found.most_common() if count > 0
    )
