"""What is compiled for a lens: notes each compilation, while a backend works on it, and lists them as PyTorch's `explain` does."""

from __future__ import annotations

import contextlib
import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens.lens.dynamo.listener import DynamoWatch
from ortlens.lens.environment import boot_fact, chosen_options, rank_figures
from ortlens.lens.generating import bypassed
from ortlens.lens.other_backends import recorded
from ortlens.lens.targets import CompiledTargets
from ortlens.trace import records as r
from ortlens.trace.guard import lens_context, lens_guard
from ortlens.trace.recorder import CURRENT
from ortlens.trace.sources import MAX_CHARS, MAX_FILES, attachment_of, kept_lines, recorded_lines
from ortlens.units import counted
from ortlens.views.html import failure_html, fragment_html
from ortlens.views.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch.fx

    from ortlens.backend.options import OrtBackendOptions
    from ortlens.lens.environment import LensRecorder
    from ortlens.trace.recorder import Recorder
    from ortlens.trace.records import Break


_NOTING = "noting a compilation"


class Compilations:
    """The compilations of one lens."""

    def __init__(self, recorder: LensRecorder, claims: Callable[[object], bool], *, dry_run: bool) -> None:
        """Begin without any; `claims` is as for `DynamoWatch`, and nothing can be called after a dry run."""
        self.recorder = recorder
        self.targets = CompiledTargets(recorder, dry_run=dry_run)
        self.watch = DynamoWatch(recorder, claims)
        self.modules: list[torch.fx.GraphModule] = []  # Dynamo's graphs, and exported programs, in order
        self.originals: dict[str | None, torch.fx.GraphModule] = {}  # Dynamo's graphs by compile id
        self._sources = KeptSources(recorder)

    @contextlib.contextmanager
    def recording(self, graph_module: torch.fx.GraphModule) -> Iterator[str | None]:
        """Record what a backend does with a Dynamo graph inside the block; yield Dynamo's id of the compilation."""
        with (
            CURRENT.recording_into(self.recorder),
            lens_context(self.recorder, _NOTING, lambda: self._noted(graph_module)) as compile_id,
        ):
            yield compile_id

    def elsewhere(
        self, backend: Callable[..., Any], graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """Compile a Dynamo graph with another backend than ours, which also gets `kwargs`, and record it and its calls."""
        with self.recording(graph_module) as compile_id:
            compiled = backend(graph_module, example_inputs, **kwargs)
            with lens_guard(self.recorder, _NOTING):
                return recorded(self.recorder, graph_module, compiled, compile_id, example_inputs)
            return compiled

    @contextlib.contextmanager
    def by_our_backend(self) -> Iterator[None]:
        """Record every graph that our backend compiles inside the block, whichever backend object compiles it."""
        self.recorder.on_graph = self._entered
        with CURRENT.recording_into(self.recorder):
            yield

    @contextlib.contextmanager
    def _entered(self, graph_module: Any, options: OrtBackendOptions) -> Iterator[None]:
        self.note_options(options)
        with self._noted(graph_module):
            yield

    @contextlib.contextmanager
    def _noted(self, graph_module: torch.fx.GraphModule) -> Iterator[str | None]:
        """Note what is being compiled, while it is."""
        self.modules.append(graph_module)
        if place := rank_figures():  # now: the process group may be gone when the capture is taken
            self.recorder.note(**place)
            self.recorder.facts.update(boot_fact())
        target = self.targets.note_compilation()
        with self.watch.backend_at_work() as compile_id:
            self.originals[compile_id] = graph_module
            known = {graph.graph_id for graph in self.recorder.records(r.Graph)}
            nodes = self.recorder.count(r.Node)
            yield compile_id
        self._sources.note((*self.recorder.records(r.Node)[nodes:], *self.recorder.records(r.Break)))
        for graph in self.recorder.records(r.Graph):
            if graph.graph_id not in known:
                self.recorder.amend(r.Graph, graph.graph_id, target=target)

    def note_options(self, options: OrtBackendOptions) -> None:
        """Note what differs from the defaults of our backend."""
        self.recorder.facts.update(chosen_options(options))
        self.recorder.note(option_upcast=tuple(options.upcast))

    def note_break_sources(self) -> None:
        """Keep the lines of all breaks, also of what could not be compiled."""
        self._sources.note(self.recorder.records(r.Break))

    def note_bypassed(self, backend: object) -> None:
        """Report a module compiled by `backend` that was not called, though its methods may have been: they call the module itself."""
        if self.modules or self.recorder.count(r.Break) or self.recorder.count(r.Finding):
            return
        for module in _torch.modules_compiled_by(backend):
            if callable(getattr(module, "generate", None)):
                self.recorder.add(bypassed(module))


class KeptSources:
    """Keeps the user's functions as they were when they ran: a file is attached anew for new lines only."""

    def __init__(self, recorder: Recorder) -> None:
        """Begin without files; they are attached to the recorder."""
        self._recorder = recorder
        self._lines: dict[str, dict[int, str]] = {}

    def note(self, records: Iterable[r.Node | r.Break | r.Fallback]) -> None:
        """Attach what is kept of the files that records name. One that changed since it ran, or is very long, has only these lines."""
        for file, lines in recorded_lines(records).items():
            known = self._lines.setdefault(file, {})
            if known.keys() >= lines.keys() or (not known and len(self._lines) > MAX_FILES):
                continue
            known.update(lines)
            try:
                text = "".join(linecache.getlines(file))
            except ValueError:  # a damaged name is not a file
                continue
            kept = kept_lines(text, known) if len(text) <= MAX_CHARS else []
            if kept:
                self._recorder.attach(*attachment_of(file, kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakReason:
    """One distinct graph break.

    Attributes:
        reason: What stopped the graph.
        user_stack: User frames, outermost first, as `file:line function`.
        graph_break: Always True.
        occurrences: Number of graph boundaries that it causes.
    """

    reason: str
    user_stack: tuple[str, ...]
    graph_break: bool = True
    occurrences: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExplainOutput:
    """Graphs and breaks, printable like PyTorch's own `ExplainOutput`.

    Attributes:
        graphs: The FX graphs that Dynamo made, recompilations included.
        graph_count: How many there are.
        graph_break_count: Boundaries between graphs that a break caused. A recompile is not a break.
        recompile_count: Compilations because a guard failed.
        break_reasons: The distinct breaks.
        op_count: Operations in all graphs.
    """

    graphs: tuple[torch.fx.GraphModule, ...]
    graph_count: int
    graph_break_count: int
    recompile_count: int
    break_reasons: tuple[BreakReason, ...]
    op_count: int

    def __str__(self) -> str:
        """Return the counts and the reasons, one per line."""
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Recompile Count: {self.recompile_count}",
            f"Op Count: {self.op_count}",
            "Break Reasons:",
        ]
        for number, reason in enumerate(self.break_reasons, start=1):
            lines += [f"  Break Reason {number} (x{reason.occurrences}):", f"    Reason: {reason.reason}", "    User Stack:"]
            lines += [f"      {frame}" for frame in reason.user_stack]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Return the counts on one line; the graphs themselves would fill the screen."""
        return f"<ExplainOutput {', '.join(self._counts())}>"

    def _repr_html_(self) -> str:
        """Return the counts and the reasons for a notebook; never raises."""
        try:
            return fragment_html(", ".join(self._counts()), [_table(self.break_reasons)] if self.break_reasons else [])
        except Exception as err:  # noqa: BLE001 - a guard of the lens: looking at an object must not raise
            return failure_html([f"ortlens could not draw this: {type(err).__name__}: {err}", "print() shows it as text."])

    def _counts(self) -> tuple[str, ...]:
        numbers = (self.graph_count, self.graph_break_count, self.recompile_count, self.op_count)
        return tuple(
            counted(number, noun) for number, noun in zip(numbers, ("graph", "graph break", "recompile", "operation"), strict=True)
        )


def _table(reasons: tuple[BreakReason, ...]) -> Table:
    return Table(
        title="Break reasons",
        help="Where PyTorch stopped a graph and started another, and how many boundaries between graphs this caused.",
        source="break_reasons",
        records=reasons,
        columns=(
            Column("reason", lambda item: item.reason),
            Column("where", lambda item: "".join(item.user_stack[-1:])),
            Column("called from", lambda item: "".join(item.user_stack[-2:-1])),
            Column("times", lambda item: f"{item.occurrences:,}", "number"),
        ),
    )


def reason_from_break(record: Break) -> BreakReason:
    """Return the reason and the stack of a break, as PyTorch's tools show it."""
    return BreakReason(reason=record.reason, user_stack=record.user_stack, occurrences=record.occurrences)
