"""What a lens and a loaded capture have in common: frames, summary, saving, and how they look in a notebook."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens._os_errors import clear_os_errors, with_clear_os_errors
from ortlens._shell import in_notebook
from ortlens._versions import require
from ortlens.analysis.answers.check import VerdictRow, limits_from, verdicts_of
from ortlens.analysis.answers.overview import compilation_count, key_figures
from ortlens.analysis.coverage import coverage_of, is_dry_run, own_recompiles
from ortlens.analysis.identity import Link, links
from ortlens.analysis.memory import MemoryRow, memory
from ortlens.analysis.onnx_model import Fusion, fusions, is_onnx_model
from ortlens.analysis.problems.advice import advised
from ortlens.analysis.roofline import Roof, roofs
from ortlens.analysis.whatif import Candidate, PlannedPartition, partitions_if, ranking
from ortlens.errors import CheckFailed, OptionalDependencyError, UsageError
from ortlens.trace import store
from ortlens.trace.records import Capture
from ortlens.trace.schema import (
    SHOWN_TABLES,
    frame_from_records,
    records_from_frame,
    table_by_name,
    table_from_record,
    text_frame,
)
from ortlens.units import counted, percent
from ortlens.views.actions import records_of
from ortlens.views.comparison import Comparison
from ortlens.views.exporting import exported
from ortlens.views.flame_files import FlameGraph
from ortlens.views.markup import checked_target, write_report
from ortlens.views.netron import netron_view
from ortlens.views.rendering import mimebundle, summary
from ortlens.views.report import report_page
from ortlens.views.selection import Selectable
from ortlens.views.table import shown_columns
from ortlens.views.verdict_text import failure_text
from ortlens.views.wording import LENS, SAVED, clipped

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    import pandas as pd

    from ortlens.views.netron import NetronView
    from ortlens.views.widget import Explorer
    from ortlens.views.wording import Hints


class _Frame:
    """A table of a capture as a frame, under the table's name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, view: CaptureView | None, owner: type) -> pd.DataFrame:
        if view is None:
            return self  # type: ignore[return-value]  # of the class, for help()
        return frame_from_records(SHOWN_TABLES[self._name], records_of(view.captured(), self._name))


@with_clear_os_errors
class CaptureView(ABC):
    """Frames and views over a capture. Subclasses say where the capture comes from."""

    hints: Hints = LENS
    """Words for what to type where something was not recorded, whoever looks at this."""

    @abstractmethod
    def captured(self) -> Capture:
        """Take a snapshot of everything recorded so far.

        Returns:
            The capture; cheap, and never changed afterwards.
        """

    graphs = _Frame()
    """FX graphs that Dynamo handed to the backend, one row per graph and phase."""

    breaks = _Frame()
    """Graph breaks, one row per distinct place."""

    recompiles = _Frame()
    """Second compilations of the same code, with the guard that failed."""

    frames = _Frame()
    """Python functions that were compiled, given up or skipped, with the operators that they run outside of graphs."""

    call_lines = _Frame()
    """Lines that run operators in a call, in all and outside of graphs."""

    graph_inputs = _Frame()
    """Arguments, parameters and buffers that graphs take, with how the values of weights are distributed."""

    nodes = _Frame()
    """FX nodes after decomposition, with where they run and the user line that made them."""

    partitions = _Frame()
    """Sets of nodes that became one ONNX model each."""

    fallbacks = _Frame()
    """Nodes that stay in PyTorch, with the reason."""

    models = _Frame()
    """ONNX models of the partitions."""

    sessions = _Frame()
    """ONNX Runtime sessions with the statistics of their calls."""

    placements = _Frame()
    """What each execution provider runs of each session, in how many pieces, and why not the rest."""

    runs = _Frame()
    """The latest calls one by one, split into bind, run and output."""

    kernels = _Frame()
    """Nodes that ONNX Runtime really executed, after its own fusions."""

    numerics = _Frame()
    """Values compared between ONNX Runtime and PyTorch."""

    values = _Frame()
    """Digests of the values of a call, by which `compare` finds the first that differs; `explain(keep_values=True)` records them."""

    findings = _Frame()
    """What ortlens reports, with evidence: what was recorded, and what the rules find in the records; the most expensive first."""

    actions = _Frame()
    """What to do, one row per cause, the most useful first: breaks, operators in PyTorch, recompiles and findings."""

    ledger = _Frame()
    """Where the wall time of a call went."""

    steps = _Frame()
    """What prefill, decode and the Python around the model take in a call of `generate`."""

    def brief(self, frame: str | pd.DataFrame) -> pd.DataFrame:
        """Show the columns of a frame that matter most, in units that people read, as `ortlens show` chooses them.

        Args:
            frame: Name of a frame, as `kernels`, `findings` or `actions`, or such a frame, sorted and filtered as you like.

        Returns:
            Texts, as `12.3 µs`, `26.7 %` or `1.0e-06`; `place` is file and line. Columns that hold nothing are left out. Without rows,
            a cell says so, and what would record them.

        Raises:
            UsageError: There is no frame of this name; the message lists those there are.

        Example:
            >>> import torch, ortlens
            >>> lens = ortlens.explain(torch.sin, calls=1)(torch.ones(2))
            >>> lens.brief(lens.nodes).target.tolist()
            ['aten.sin.default']
        """
        records = records_of(self.captured(), table_by_name(frame).name) if isinstance(frame, str) else records_from_frame(frame)
        if not records and isinstance(frame, str):
            return text_frame({frame: [self.hints.for_empty(frame)]})
        return text_frame({column.head: column.cells for column in shown_columns(records)})

    def summary(self) -> str:
        """Summarise in a few lines how the model runs in ONNX Runtime.

        Returns:
            The text; see `ortlens.views.rendering.summary` for its options.
        """
        return summary(self.captured(), hints=self.hints)

    def links(  # noqa: PLR0913 - as `ortlens.analysis.identity.links`
        self,
        line: str | None = None,
        *,
        module: str | None = None,
        node: str | None = None,
        partition: str | None = None,
        onnx_node: str | None = None,
        kernel: str | None = None,
    ) -> pd.DataFrame:
        """Walk the identity chain from any link to all others: user line, module, FX node, partition, ONNX node, kernel.

        Args:
            line: User line as `model.py:12`; the end of a path is enough.
            module: nn.Module path as `layers.0`, with what is inside it.
            node: FX node, as `addmm` or, in one graph, `g0:addmm`.
            partition: Id of a partition.
            onnx_node: Name of an ONNX node.
            kernel: Name of a kernel; a live lens has kernels after `profile`.

        Returns:
            A row for each way through the chain that passes all that is given, with the confidence of each link; empty when none does.

        Raises:
            UsageError: `line` is not of the form `file:number`.
        """
        found = links(self.captured(), line=line, module=module, node=node, partition=partition, onnx_node=onnx_node, kernel=kernel)
        return frame_from_records(table_from_record("links", Link), found)

    def fusions(self) -> pd.DataFrame:
        """List what ONNX Runtime's rewrites changed in the profiled models.

        Returns:
            A row per node that was fused, changed, inserted or removed; unchanged nodes have none. Empty before `profile`.
        """
        return frame_from_records(table_from_record("fusions", Fusion), fusions(self.captured()))

    def memory(self) -> pd.DataFrame:
        """Measure the memory of the model, and list which weights PyTorch and ONNX Runtime both hold.

        Returns:
            Per graph one row for all of it, then one per partition and session: weights, activations at their peak, and, after
            `profile`, what ONNX Runtime's allocator really held. Empty without partitions.
        """
        return frame_from_records(table_from_record("memory", MemoryRow), memory(self.captured()))

    def roofline(self) -> pd.DataFrame:
        """Hold each profiled kernel of the CPU against the most that this machine reached: operations and bytes per second.

        Returns:
            A row per kernel: its operations, bytes, both per second, and which share of its limit it reached. Empty before `profile`, and
            where no kernel takes 50 µs and no session's kernels 1 ms: the peaks are not measured for less.
        """
        return frame_from_records(table_from_record("roofline", Roof), roofs(self.captured()))

    def what_if(self, *ops: object) -> pd.DataFrame:
        """Predict what supporting operators would change; nothing is run.

        Args:
            *ops: Operators that stay in PyTorch, as in `fallbacks.target`; `aten.median` stands for all its overloads.

        Returns:
            With operators, the partitions as they would be if these were supported, a row each. Without, the operators that stay,
            ranked by what supporting each would save; empty when none stays. The cut uses the same code as compilation; estimates
            say how they were made.

        Raises:
            UsageError: No node of such an operator stays in PyTorch; the message lists those that do.
        """
        capture = self.captured()
        if ops:
            return frame_from_records(table_from_record("what_if", PlannedPartition), partitions_if(capture, ops))
        return frame_from_records(table_from_record("what_if", Candidate), ranking(capture))

    def compare(self, other: CaptureView | Capture | str | os.PathLike[str]) -> Comparison:
        """Compare this capture with a later one of the same program, aligned by module path, target and structure.

        Args:
            other: What it became: a lens, a loaded capture, or the path of a saved one. This one is the baseline.

        Returns:
            The frames `times`, `changes` and `operators`, and a summary. Times differ only where they do outside the noise of the
            calls, and beyond what a busier machine explains.

        Raises:
            UsageError: A capture has no graphs, they are of different models, or `other` is no capture.
            CaptureError: The file cannot be read.

        Example:
            >>> import torch, ortlens
            >>> before, after = (ortlens.explain(torch.sin, calls=1)(torch.ones(2)) for _ in range(2))
            >>> before.compare(after).is_worse
            False
        """
        return Comparison(self.captured(), capture_from(other))

    def check(  # noqa: PLR0913 - the limits
        self,
        *,
        max_breaks: int | None = None,
        max_recompiles: int | None = None,
        max_skipped: int | None = None,
        min_coverage: float | None = None,
        max_abs_err: float | None = None,
        min_sqnr: float | None = None,
        baseline: CaptureView | Capture | str | os.PathLike[str] | None = None,
        max_slowdown: float | None = None,
        provider: str | None = None,
        max_pieces: int | None = None,
    ) -> pd.DataFrame:
        """Check this capture against limits and a baseline. What was asked for and not measured does not pass.

        Args:
            max_breaks: Distinct graph breaks at most.
            max_recompiles: Recompiles at most.
            max_skipped: Functions at most that run operators without being compiled, such as those that PyTorch gave up.
            min_coverage: Least share of the operators of a call in ONNX Runtime, 0 to 1.
            max_abs_err: Largest absolute difference from PyTorch at most, over all rows of `numerics`.
            min_sqnr: Least SQNR of an output in dB, after `verify` against another ONNX model.
            baseline: An earlier capture of the same program: breaks, recompiles, operators, coverage, results, errors and times must
                not be worse.
            max_slowdown: With a baseline, how many times as long a call or a partition may take: 1.2, or 0.2 for what is added. Only
                what is slower outside the noise counts.
            provider: An execution provider, such as `"CoreML"`: `min_coverage` is then its least share of the nodes in `placements`.
            max_pieces: Pieces at most in which that provider runs, over all sessions.

        Returns:
            A row per limit with its verdict, the value and what is allowed.

        Raises:
            CheckFailed: A limit does not hold; the message has a line for each: the value, what is allowed, what to do.
            UsageError: Nothing is asked, a limit is no number that makes sense, or the baseline is of another model.

        Example:
            >>> import torch, ortlens
            >>> lens = ortlens.explain(torch.sin, calls=1)(torch.ones(2))
            >>> lens.check(max_breaks=0, min_coverage=0.9).verdict.tolist()
            ['passed', 'passed']
        """
        limits = limits_from(
            max_breaks=max_breaks,
            max_recompiles=max_recompiles,
            max_skipped=max_skipped,
            min_coverage=min_coverage,
            max_abs_err=max_abs_err,
            min_sqnr=min_sqnr,
            max_slowdown=max_slowdown,
            max_pieces=max_pieces,
        )
        rows = verdicts_of(self.captured(), limits, None if baseline is None else capture_from(baseline), provider=provider)
        if not all(row.holds for row in rows):
            raise CheckFailed(failure_text(rows))
        return frame_from_records(table_from_record("verdicts", VerdictRow), rows)

    def show(
        self, table: object = None, /, *, selected: str | None = None, tab: str | None = None, graph: str | None = None
    ) -> Explorer | StaticSummary | None:
        """Open the interactive explorer, as the last expression of a notebook's cell; inside a function or a loop, `display(lens.show())`.

        It shows a snapshot; call it again to see what was recorded later.

        Args:
            table: Refused with the line that shows a table or opens a tab.
            selected: Id of the initial selection: `partition:p0`, `node:g0/addmm`, `input:g0/arg0_1`, `break:b0`, `line:model.py:12`.
            tab: The initial panel: `overview`, `actions`, `flame`, `graph`, `tables`, `timeline`, `source`, `breaks`, `findings`,
                `numerics` or `onnx`.
            graph: The initial graph; by default all of them.

        Returns:
            The widget, whose `selected`, `tab` and `graph` are shared with the browser both ways. Without the packages for widgets, a
            static summary that says which are missing. Outside notebooks None: a line is printed that says what to do there.

        Raises:
            UsageError: `selected`, `tab` or `graph` names nothing in the capture; the message lists what exists.
        """
        if table is not None:
            raise UsageError(f"show() opens the explorer: `lens.brief({table!r})` shows a table, `lens.show(tab={table!r})` opens a tab")
        attempt = getattr(self, "tune", None)  # of a live lens
        return shown(self.captured(), self.hints, attempt, selected=selected, tab=tab, graph=graph)

    def netron(self, partition_id: str, *, optimized: bool = False) -> NetronView:
        """Show the ONNX model of a partition in Netron, inside the notebook: no server, no network, no dialog.

        Args:
            partition_id: Id of the partition, as in `.partitions`, or of its model, as in `.models`.
            optimized: The model as ONNX Runtime runs it, after its own rewrites, in place of the one that it was given; known
                after `profile`.

        Returns:
            What a notebook draws, without the values of weights. Elsewhere its `save("m0.html")` writes one file for any browser.

        Raises:
            UsageError: There is no such partition or model, or it was not profiled and `optimized` is set; the message lists what exists.
            CaptureError: The capture does not hold the model, as one that was redacted, or holds a damaged one.
            OptionalDependencyError: Netron is not installed; the message says how to get it.
        """
        return netron_view(self.captured(), partition_id, optimized=optimized)

    def flame(self) -> FlameGraph:
        """Draw the time of one call as a flame graph: graphs, modules, operators and kernels, each as wide as its time.

        Returns:
            A picture, which a notebook shows; `save("flame.svg")` writes it for a page or an issue. The explorer has the same to zoom into.

        Raises:
            UsageError: No call was recorded, as in a dry run.
        """
        return FlameGraph(self.captured())

    def report(self, path: str | os.PathLike[str], title: str | None = None, *, redact: bool = False, models: bool = True) -> Path:
        """Write one self-contained HTML file: the explorer, and the same as text and tables, which need no JavaScript.

        It loads nothing, so that it can be mailed, kept, and opened offline.

        Args:
            path: The file; an existing report is replaced.
            title: Its title; by default the name of the capture.
            redact: Shorten paths to file names, and leave source text, values in guards and messages, and ONNX models out, to show
                it to strangers.
            models: Put the ONNX models, without their weights, into it as far as they fit.

        Returns:
            The absolute path of the file.

        Raises:
            UsageError: It cannot be written there, or the file exists and is not a report. Nothing is changed then.

        Example:
            >>> import tempfile, ortlens
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ortlens.Lens().report(f"{folder}/run.html").name
            'run.html'
        """
        checked_target(path)  # before the work
        hints = SAVED if self.hints.place == "lens" else self.hints  # the page outlives the lens
        return write_report(path, report_page(self.captured(), title=title, redact=redact, models=models, hints=hints))

    def export(
        self,
        folder: str | os.PathLike[str],
        format: str = "csv",  # noqa: A002 - the name that pandas and torch use
        *,
        tables: Sequence[str] = (),
        replace: bool = False,
    ) -> list[Path]:
        """Write files that other tools read.

        Args:
            folder: Where they go; made if it is missing.
            format: `csv` or `json`: a file per table, and the ONNX models; `trace`: `trace.json` for ui.perfetto.dev and speedscope.app.
            tables: Only these tables, as `("runs", "sessions")`.
            replace: Whether files that are there may be replaced.

        Returns:
            The files.

        Raises:
            UsageError: A name is unknown, there is nothing to write, a file is there already, or cannot be written.

        Example:
            >>> import tempfile, ortlens
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     (path,) = ortlens.Lens().export(folder, tables=["graphs"])
            >>> path.name
            'graphs.csv'
        """
        return exported(self.captured(), Path(folder).expanduser(), format, tables=tables, replace=replace)

    def figures(self) -> dict[str, float]:
        """Take the key figures, for a logger: counts, coverage, and times in nanoseconds.

        Returns:
            Numbers by name, such as `breaks`, `coverage`, `call_ns`, `speedup`, `max_abs`; what was not measured has no entry.

        Example:
            >>> import ortlens
            >>> ortlens.Lens().figures()["breaks"]
            0
        """
        return key_figures(self.captured())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the capture to a file that `ortlens.load` reads back, without torch or ONNX Runtime.

        Args:
            path: The file, as `run.ortlens`.

        Returns:
            The absolute path of the file.

        Raises:
            CaptureError: It cannot be written there; what was there before is untouched.
        """
        return store.save(self.captured(), path)

    def __repr__(self) -> str:
        """Return the essentials on one line; never raises."""
        kind = type(self).__name__
        try:
            return f"<{kind} {_essentials(self.captured())}>"
        except Exception as err:  # noqa: BLE001 - a guard of the lens: looking at an object must not raise
            return f"<{kind}: cannot be drawn ({type(err).__name__}: {clipped(str(err), 200)})>"

    def _repr_html_(self) -> str:
        """Return the summary for a notebook; never raises."""
        return mimebundle(self.captured, self.hints)["text/html"]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the summary as text and HTML; never raises. The arguments are ignored, since IPython filters the result."""
        return mimebundle(self.captured, self.hints)


class SavedCapture(CaptureView):
    """A capture that was saved earlier, here or on another machine."""

    hints = SAVED

    def __init__(self, capture: Capture) -> None:
        """Wrap a capture.

        Args:
            capture: The capture.
        """
        self._capture = capture

    def captured(self) -> Capture:
        """The capture as it was saved.

        Returns:
            The same object every time.
        """
        return self._capture


@clear_os_errors
def load(path: str | os.PathLike[str]) -> SavedCapture:
    """Open a saved capture. Needs neither torch nor ONNX Runtime, and runs nothing that the file holds.

    Args:
        path: A file that `save` wrote.

    Returns:
        The capture with its frames and views.

    Raises:
        CaptureError: The file is missing, damaged, or not a capture.
    """
    return SavedCapture(advised(store.load(path)))


def capture_from(source: CaptureView | Capture | str | os.PathLike[str]) -> Capture:
    """Read a capture from a lens, a loaded capture, a capture, or the path of a saved one."""
    if isinstance(source, CaptureView):
        return source.captured()
    if isinstance(source, Capture):
        return source
    if isinstance(source, str | PathLike):
        return advised(store.load(source))
    raise UsageError(f"expected a lens, a capture or the path of a saved one, not {type(source).__name__}")


def _essentials(capture: Capture) -> str:
    if is_onnx_model(capture):
        what = "session" if capture.environment["onnx_model"] == "session" else "ONNX model"
        did = "dry run" if is_dry_run(capture) else counted(sum(session.calls for session in capture.sessions), "call")
        return f"{clipped(capture.name, 40)!r}: {what} of {counted(len(capture.nodes), 'node')}, {did}"
    coverage = coverage_of(capture)  # not the whole overview: one line should not ask every rule for its findings
    share, of = coverage.share, " of the compiled code" if coverage.is_partial_view else ""
    facts = [
        counted(compilation_count(capture), "graph"),
        counted(len(capture.breaks), "graph break"),
        counted(len(own_recompiles(capture)), "recompile"),
        f"backend {clipped(capture.backend, 40)}" if share is None else f"{percent(share)}{of} in ONNX Runtime",
    ]
    facts += ["dry run"] if is_dry_run(capture) else []
    return (f"{clipped(capture.name, 40)!r}: " if capture.name else "") + ", ".join(facts)


_ELSEWHERE = (
    "The explorer needs a notebook (JupyterLab, Notebook 7 or VS Code). Here, lens.report('run.html') writes it as one HTML file, "
    "and print(lens.summary()) prints the essentials."
)
_HINT_STYLE = "margin:4px 0;opacity:.8"


class StaticSummary:
    """What `show()` returns in a notebook without widgets: the summary as HTML, and what is missing."""

    def __init__(self, capture: Capture, hint: str, hints: Hints) -> None:
        """Keep what is shown; `hint` is one line that says what is missing."""
        self.hint = hint
        self._bundle = mimebundle(lambda: capture, hints)

    def __repr__(self) -> str:
        """Return the hint."""
        return f"<StaticSummary: {self.hint}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the summary with the hint as text and HTML. The arguments are ignored, since IPython filters the result."""
        html = f'{self._bundle["text/html"]}<p style="{_HINT_STYLE}">{escape(self.hint)}</p>'
        return {"text/plain": f"{self._bundle['text/plain']}\n\n{self.hint}", "text/html": html}


def shown(
    capture: Capture, hints: Hints, attempt: Callable[..., Any] | None = None, **beginning: str | None
) -> Explorer | StaticSummary | None:
    """Open the explorer, or a static summary where widgets are missing; outside notebooks, print a line and return None."""
    marimo = sys.modules.get("marimo")  # which has no shell
    if not in_notebook() and (marimo is None or not marimo.running_in_notebook()):
        Selectable(capture).checked(**beginning)
        print(_ELSEWHERE)  # noqa: T201 - what the user asked to see
        return None
    try:
        for package in ("ipywidgets", "anywidget"):
            require(package, "The interactive explorer")
    except OptionalDependencyError as err:
        Selectable(capture).checked(**beginning)
        return StaticSummary(capture, str(err), hints)
    from ortlens.views.widget import Explorer

    return Explorer(capture, hints, attempt, **beginning)
