"""One call as a flame graph: graphs, modules, operators and kernels, each as wide as its time, and what lies around them.

Widths are those of the ledger; kernels have the time that the profile gave them. What PyTorch runs, binding, guards and graph breaks are
frames of their own, so that the frames of the first row add up to the call.

Graphs are recorded as they are compiled. A version that was compiled later is entered where the first one was, and a measured call shows
the order itself.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ortlens.analysis.costs import runs_per_call
from ortlens.analysis.coverage import current_ids, is_backward_of, place_key
from ortlens.analysis.index import graph_by_session, grouped, summed
from ortlens.analysis.ledger import ledger_from_logs, measured_call, time_base, totals_of
from ortlens.analysis.timing import PHASES, call_times, compile_total_ns, fallback_ns
from ortlens.views.wording import PHASE_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ortlens.trace.records import Capture, Graph, Node

_Around: TypeAlias = Literal["bind", "foreign", "output", "residual"]
FrameKind: TypeAlias = Literal[
    "call", "graph", "module", "ort", "torch", "kernel", "session", _Around, "guards", "between", "break", "phase"
]
KINDS: tuple[FrameKind, ...] = get_args(FrameKind)  # codes of the kinds in the packed data are places in this
_AROUND: tuple[_Around, ...] = get_args(_Around)


COMPILE_PHASES = (*PHASES, "other")


@dataclass(slots=True, kw_only=True)
class Frame:
    """One frame."""

    kind: FrameKind  # what it is: `ort` and `torch` are operators by where they run, `session` a session whose kernels are not known
    ref: int = -1  # row of its record in the table of its kind; of a phase, its place in `COMPILE_PHASES`; -1 without one
    path: str = ""  # path of a module; empty elsewhere
    ns: float = 0.0  # time per call of the model, as recorded; of a phase, time of compiling
    # what is drawn for it, in ns: kernels of a profile, and operators with a clock of their own, are narrowed where they add up to more
    # than the ledger has, so that the frames inside a graph fill it at most
    width: float = 0.0
    children: list[Frame] = field(default_factory=list)  # inside it, in the order in which a call meets them


@dataclass(frozen=True, slots=True, kw_only=True)
class Flame:
    """The flame graph of a capture."""

    root: Frame  # the call
    is_measured: bool  # whether a call was measured as a whole; else what lies around sessions and operators is not in it
    has_kernels: bool  # whether kernels were measured, so that operators in ONNX Runtime have a time
    base: str  # what its times are per: `call` or `run`, see `ledger.time_base`, or, of several functions, `call of each function`


def flame_of(capture: Capture, *, max_rows: int = 50_000) -> Flame:
    """Make the flame graph of a capture from at most `max_rows` rows per table; `root.ns` is 0 where no call is known."""
    maker = _Maker(capture, max_rows)
    return Flame(root=maker.root(), is_measured=maker.is_measured, has_kernels=bool(capture.kernels), base=base_of(capture))


def base_of(capture: Capture) -> str:
    """Say what the times of the flame graph are per: of functions that nobody measured together, the sum is of a call of each."""
    return time_base(capture) + (" of each function" if len(call_times(capture)) > 1 and measured_call(capture) is None else "")


def packed_flame(flame: Flame) -> dict[str, Any]:
    """Pack the frames as columns, in depth-first order.

    `kind` has places in `kinds`, `ns` and `width` whole nanoseconds, `paths` the modules in their order. Without `width`, it is `ns`.
    """
    rows = list(_walked(flame.root))
    widths = [_whole(frame.width) for _, frame in rows]
    times = [_whole(frame.ns) for _, frame in rows]
    return ({} if widths == times else {"width": widths}) | {
        "kinds": list(KINDS),
        "phases": [PHASE_WORDS[phase] for phase in COMPILE_PHASES],
        "depth": [depth for depth, _ in rows],
        "kind": [KINDS.index(frame.kind) for _, frame in rows],
        "ref": [frame.ref for _, frame in rows],
        "ns": times,
        "paths": [frame.path for _, frame in rows if frame.kind == "module"],
        "is_measured": flame.is_measured,
        "has_kernels": flame.has_kernels,
        "base": flame.base,
    }


def _whole(number: float) -> int:
    return round(number) if math.isfinite(number) else 0  # a damaged file may have anything


def _walked(root: Frame) -> Iterator[tuple[int, Frame]]:
    waiting = [(0, root)]
    while waiting:
        at, frame = waiting.pop()
        yield at, frame
        waiting += [(at + 1, child) for child in reversed(frame.children)]


class _Maker:
    """The records by what they belong to, and the frames made from them."""

    def __init__(self, capture: Capture, max_rows: int) -> None:
        self._capture, self._max = capture, max_rows
        rows = capture.ledger or ledger_from_logs(capture)
        totals = totals_of(rows)
        self.is_measured = totals is not None and totals.is_measured
        self._total = totals.total_ns if totals is not None else 0
        self._parts = {graph_id: summed(own) for graph_id, own in grouped((row.graph_id, (row.part, row.ns)) for row in rows).items()}
        self._eager = fallback_ns(capture)
        self._eager_of = summed((graph_id, ns) for (graph_id, _), ns in self._eager.items())
        nodes, sessions = enumerate(capture.nodes[: self._max]), enumerate(capture.sessions[: self._max])
        self._nodes = grouped((node.graph_id, (row, node)) for row, node in nodes if node.kind != "size")
        self._sessions_of = grouped((graph_by_session(capture)[session.session_id], (row, session)) for row, session in sessions)
        self._runs = runs_per_call(capture)
        self._profiled = {kernel.session_id for kernel in capture.kernels}
        self._kernels = self._kernels_by_node()

    def root(self) -> Frame:
        capture = self._capture
        current = current_ids(capture)
        root = Frame(kind="call")
        ahead, behind = breaks_ahead(capture)
        places = {graph.graph_id: row for row, graph in enumerate(capture.graphs[: self._max])}
        for graph in graphs_in_call_order(capture):
            if (row := places.get(graph.graph_id)) is not None:
                root.children += self._breaks(ahead.get(graph.graph_id, ()))
                shown = graph.graph_id in self._parts or graph.graph_id in current
                root.children.append(self._graph(row, graph, is_shown=shown))
        root.children += self._breaks(behind)
        root.children += self._around([child for child in root.children if child.kind != "graph"])
        root.ns = float(self._total)
        root.width = sum(child.width for child in root.children)
        left = compile_total_ns(capture) - sum(phase.ns for child in root.children for phase in child.children if phase.kind == "phase")
        if left > 0:
            root.children.append(Frame(kind="phase", ref=len(PHASES), ns=float(left)))
        return root

    def _kernels_by_node(self) -> dict[str, dict[str | None, list[Frame]]]:
        """Group kernels by graph and node; those that no node is charged with stand under None."""
        graphs = graph_by_session(self._capture)
        names = {graph_id: {node.node for _, node in nodes} for graph_id, nodes in self._nodes.items()}
        found: defaultdict[str, defaultdict[str | None, list[Frame]]] = defaultdict(lambda: defaultdict(list))
        for row, kernel in enumerate(self._capture.kernels[: self._max]):
            ns = (kernel.mean_ns or 0) * self._runs.get(kernel.session_id, 1.0)
            graph_id = graphs.get(kernel.session_id, "")
            node = kernel.node if kernel.node in names.get(graph_id, ()) else None
            found[graph_id][node].append(Frame(kind="kernel", ref=row, ns=ns))
        return {graph_id: dict(nodes) for graph_id, nodes in found.items()}

    def _breaks(self, rows: Iterable[int]) -> list[Frame]:
        """Make frames of the breaks that were measured: Dynamo's part, named by what the break costs, and the program's own code there."""
        found: list[Frame] = []
        for row in rows if self.is_measured else ():
            item = self._capture.breaks[row]
            found.append(Frame(kind="break", ref=row, ns=float(item.cost_ns or 0), width=float(item.overhead_ns or 0)))
            found.append(Frame(kind="between", ref=row, ns=float(item.between_ns or 0), width=float(item.between_ns or 0)))
        return [frame for frame in found if frame.ref < self._max and frame.width]

    def _around(self, breaks: Sequence[Frame]) -> list[Frame]:
        """Make frames of what lies around graphs and is no break: entering compiled code, and Python that only the ledger times."""
        if not self.is_measured:
            return []
        guards = sum(float(parts.get("guards", 0)) for parts in self._parts.values())
        between = sum(parts.get("eager", 0) - self._clocked(graph_id) for graph_id, parts in self._parts.items())
        room, drawn = guards + between, sum(frame.width for frame in breaks)
        for frame in breaks:  # medians, which need not add up to the means of the ledger
            frame.width *= min(1.0, room / drawn)
        guards -= sum(frame.width for frame in breaks if frame.kind == "break")
        between -= sum(frame.width for frame in breaks if frame.kind == "between")
        if between < 0 or guards < 0:
            guards, between = max(guards + between, 0.0), 0.0
        around = (Frame(kind="guards", ns=guards, width=guards), Frame(kind="between", ns=between, width=between))
        return [frame for frame in around if frame.ns > 0]

    def _clocked(self, graph_id: str) -> float:
        """Return the time of the operators that PyTorch runs in a graph, as far as the ledger has it."""
        clocked = self._eager_of.get(graph_id, 0.0)
        return min(clocked, float(self._parts[graph_id].get("eager", 0))) if self.is_measured else clocked

    def _graph(self, row: int, graph: Graph, *, is_shown: bool) -> Frame:
        parts = self._parts.get(graph.graph_id, {})
        phases = [(getattr(graph, f"{phase}_ns") or 0) for phase in PHASES]
        rest = max((graph.compile_ns or 0) - sum(phases), 0) if graph.compile_ns is not None else 0
        compiling = [Frame(kind="phase", ref=at, ns=float(ns)) for at, ns in enumerate([*phases, rest]) if ns]
        inside = self._inside(graph) if is_shown else []
        # What a device does is spread over the run of the host and the waiting behind it.
        run, known = float(parts.get("run", 0) + parts.get("wait", 0)), sum(_ort_ns(child) for child in inside)
        clocked = self._eager_of.get(graph.graph_id, 0.0) if parts else 0.0
        kept = self._clocked(graph.graph_id) if parts else 0.0
        factors = {"ort": min(1.0, run / known) if known else 1.0, "torch": kept / clocked if clocked else 1.0}
        for child in inside:
            _drawn(child, factors | {"kernel": factors["ort"]})
        inside += self._sessions(graph, run - known) if run > known else []
        bind, *behind = [Frame(kind=kind, ns=float(parts.get(kind, 0))) for kind in _AROUND]
        around = [frame for frame in (bind, *inside, *behind, *compiling) if frame.ns or frame.children or frame.kind not in _AROUND]
        whole = sum(parts.get(kind, 0) for kind in _AROUND) + run + kept
        for frame in around:
            frame.width = frame.width or frame.ns
        return Frame(kind="graph", ref=row, ns=float(whole), width=float(whole), children=around)

    def _sessions(self, graph: Graph, left: float) -> list[Frame]:
        """Share what the known kernels leave among the sessions of a graph whose kernels are not known, by their medians."""
        own = [(row, item) for row, item in self._sessions_of.get(graph.graph_id, []) if item.session_id not in self._profiled]
        weights = [(item.p50_ns or 0) * self._runs[item.session_id] for _, item in own]
        whole = sum(weights)
        if not whole:  # the time between kernels
            return [] if self._profiled or not left else [Frame(kind="session", ns=left)]
        return [Frame(kind="session", ref=row, ns=left * weight / whole) for (row, _), weight in zip(own, weights, strict=True) if weight]

    def _inside(self, graph: Graph) -> list[Frame]:
        """Make frames of the modules, operators and kernels of a graph, each module where its first operator is."""
        top = Frame(kind="graph")
        modules: dict[str, Frame] = {"": top}
        for row, node in self._nodes.get(graph.graph_id, []):
            _module(modules, node.module or "").children.append(self._operator(row, node))
        top.children += self._kernels.get(graph.graph_id, {}).get(None, []) if graph.graph_id in self._parts else []
        for child in top.children:
            _summed(child)
        return [_short(child) for child in top.children]

    def _operator(self, row: int, node: Node) -> Frame:
        if node.partition_id is None:
            return Frame(
                kind="torch", ref=row, ns=self._eager.get((node.graph_id, node.node), 0.0) if node.graph_id in self._parts else 0.0
            )
        kernels = self._kernels.get(node.graph_id, {}).get(node.node, []) if node.graph_id in self._parts else []
        return Frame(kind="ort", ref=row, ns=sum(kernel.ns for kernel in kernels), children=kernels)


def _module(modules: dict[str, Frame], path: str) -> Frame:
    """Find the frame of a module, which is made with those around it when it is first met."""
    if path not in modules:
        modules[path] = made = Frame(kind="module", path=path)
        _module(modules, path.rpartition(".")[0]).children.append(made)
    return modules[path]


def _summed(frame: Frame) -> float:
    if frame.kind == "module":
        frame.ns = sum(_summed(child) for child in frame.children)
    return frame.ns


def _short(frame: Frame) -> Frame:
    """Leave out modules that hold nothing but one other; changes the children in place."""
    while frame.kind == "module" and len(frame.children) == 1 and frame.children[0].kind == "module":
        frame = frame.children[0]
    frame.children = [_short(child) for child in frame.children]
    return frame


def _ort_ns(frame: Frame) -> float:
    if frame.kind in ("ort", "kernel"):
        return frame.ns
    return sum(_ort_ns(child) for child in frame.children)


def _drawn(frame: Frame, factors: Mapping[str, float]) -> float:
    """Set the widths to what the ledger says, since a profile and single clocks need not add up to that; return this one's."""
    inside = sum(_drawn(child, factors) for child in frame.children)
    frame.width = inside if frame.kind == "module" else frame.ns * factors.get(frame.kind, 1.0)
    return frame.width


_FRAME = re.compile(r"(.*?)(\d{1,9})/[^/]*\Z", re.DOTALL | re.ASCII)


def graphs_in_call_order(capture: Capture) -> tuple[Graph, ...]:
    """Sort all graphs as a call enters them; those of the measured call are in its order.

    Versions of one graph stand together, in the place of the first.
    """
    first: dict[tuple[object, ...], int] = {}
    for row, graph in enumerate(capture.graphs):
        first.setdefault(place_key(graph), row)
    ordered = sorted(range(len(capture.graphs)), key=lambda row: (first[place_key(capture.graphs[row])], row))
    graphs = [capture.graphs[row] for row in ordered]
    place = {graph_id: at for at, graph_id in enumerate(_measured(capture))}
    called = iter(sorted((graph for graph in graphs if graph.graph_id in place), key=lambda graph: place[graph.graph_id]))
    return tuple(next(called) if graph.graph_id in place else graph for graph in graphs)


def current_in_call_order(capture: Capture) -> tuple[Graph, ...]:
    """Sort the newest versions of all graphs, and replaced ones that the measured call entered, as a call enters them."""
    known = current_ids(capture).union(_measured(capture))
    return tuple(graph for graph in graphs_in_call_order(capture) if graph.graph_id in known)


def _measured(capture: Capture) -> tuple[str, ...]:
    """Return the graphs of the measured call in its order; a ledger that was made from logs has none."""
    call = measured_call(capture)
    return () if call is None else call.graph_ids


def breaks_ahead(capture: Capture) -> tuple[Mapping[str, Sequence[int]], Sequence[int]]:
    """Find the rows of the breaks that a call meets before each graph, in their order, each once, and those behind the last graph.

    Dynamo numbers the frames of a call as it first meets them, so the breaks before a graph are those of the frames since the graph before
    it; the last of them is the one that the time there is booked on.
    """
    rows = list(enumerate(capture.breaks))
    ended = grouped((compile_id, row) for row, item in rows for compile_id in item.compile_ids)
    waiting = grouped((group, (number, row)) for row, item in rows for group, number in sorted(map(_frame, item.compile_ids))[:1])
    for frames in waiting.values():
        frames.sort(reverse=True)  # the next one last, where it is taken
    ahead: dict[str, list[int]] = {}
    met: set[int] = set()
    before: Graph | None = None
    for graph in current_in_call_order(capture):
        if graph.phase == "backward":
            found = ended.get(graph.compile_id or "", []) if is_backward_of(graph, before) else []
        else:
            found = _taken(waiting, *_frame(graph.compile_id))
        if found := [row for row in found if row not in met]:
            ahead[graph.graph_id] = found
            met.update(found)
        before = graph
    return ahead, [row for row in range(len(capture.breaks)) if row not in met]


def _taken(waiting: Mapping[str, list[tuple[int, int]]], group: str, number: int) -> list[int]:
    """Take the breaks of earlier frames out of `waiting`."""
    rows, found = waiting.get(group, []), []
    while rows and rows[-1][0] < number:
        found.append(rows.pop()[1])
    return found


def _frame(compile_id: str | None) -> tuple[str, int]:
    """Split a compile id into the number of its frame and what counts it: Dynamo, or a compiled autograd."""
    found = _FRAME.match(compile_id or "")
    return (found[1], int(found[2])) if found else (compile_id or "", -1)
