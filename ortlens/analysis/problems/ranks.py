"""Rules about the ranks of one job: what one compiles and the others do not, and who keeps the others waiting."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

from ortlens.analysis.identity import file_name, plain_function
from ortlens.analysis.index import graph_by_session, graphs_by_id, nodes_by_graph, partitions_by_graph, sessions_by_partition
from ortlens.analysis.problems.problem import Problem, rule
from ortlens.units import counted, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping

    from ortlens.trace.records import Break, Capture, Graph, Run


class CompiledFunction(NamedTuple):
    """A compiled function."""

    name: str | None
    file: str | None
    line: int | None


_ENOUGH_STEPS = 10
_LATE_SHARE = 0.2
_LAST_SHARE = 0.7
_SLOWER = 1.5
_SLOWER_SHARE = 0.1
_SLICES_NS = 10_000_000
"""What a rank may wait for a core, where ranks share cores: a few slices of the scheduler, which may favour one of them for long."""
_FEW_OPS = 4
_WAITING = "Ranks wait for each other in every collective, so that the slowest decides; "


@rule(
    name="rank_break",
    looks_for="A graph break on some ranks of a job only.",
    fires="In captures merged of several ranks, where a place breaks the graph on some of them and not on others.",
    hazard=_WAITING + "and ranks that take different branches may call different collectives, which never end.",
)
def rank_break(capture: Capture) -> Iterator[Problem]:
    """Report places that break the graph on some ranks."""
    ranks = capture.figures.ranks
    for (file, line, reason), found in _breaks(capture).items():
        if set(found) == set(ranks):
            continue
        first = min(found.values(), key=lambda item: item.break_id)
        yield rank_break.problem(
            subject=first.break_id,
            title=f"graph break on {_words(found)} only, at {file_name(file or 'unknown file')}:{line}: {reason}",
            evidence=f"{_words(set(ranks) - set(found))} compiled the same function without it"
            + (f"; line: {first.source.strip()}" if first.source else ""),
            mitigation=first.advice or "Let every rank take the same branch, and keep what only one does outside compiled code.",
            file=file,
            line=line,
            gain_ns=first.cost_ns,
        )


@rule(
    name="rank_recompiles",
    looks_for="A function that some ranks of a job recompile and others do not.",
    fires="In captures merged of several ranks, where the number of recompiles of a function differs.",
    hazard="While one rank compiles, all others wait in the next collective; past its timeout, the job ends.",
)
def rank_recompiles(capture: Capture) -> Iterator[Problem]:
    """Report functions with different numbers of recompiles."""
    ranks = capture.figures.ranks
    counts: dict[CompiledFunction, Counter[int]] = defaultdict(Counter)
    for item in capture.recompiles:
        if item.rank is not None:
            counts[CompiledFunction(item.function, item.file, item.line)][item.rank] += 1
    for place, found in counts.items():
        if len({found[rank] for rank in ranks}) == 1:
            continue
        most = max(found.values())
        having = [rank for rank in ranks if found[rank] == most]
        example = next(item for item in capture.recompiles if item.rank in having and (item.function, item.file, item.line) == place)
        yield rank_recompiles.problem(
            place,
            subject=example.compile_id,
            title=f"{place.name or 'a function'} was recompiled {counted(most, 'time')} on {_words(having)}, "
            f"at most {counted(max(found[rank] for rank in ranks if rank not in having), 'time')} on the others",
            evidence=f"guard that failed: {example.guard or example.reason}"[:400],
            mitigation=example.advice or "Give every rank inputs of the same sizes and types, or compile with dynamic=True.",
        )


@rule(
    name="rank_graphs",
    looks_for="A function of which ranks of a job compiled different graphs.",
    fires="In captures merged of several ranks, where the operations of a graph differ, without a break that explains it.",
    hazard=_WAITING + "and ranks that compute different things usually do so by mistake.",
)
def rank_graphs(capture: Capture) -> Iterator[Problem]:
    """Report functions with different graphs."""
    if not (ranks := capture.figures.ranks):
        return
    explained, known = _broken_functions(capture, ranks), _targets(capture)
    told: set[CompiledFunction] = set()  # a backward graph differs where its forward graph does
    for (place, phase), by_rank in _graphs(capture).items():
        if _base(place.name) in explained or place in told:
            continue
        contents = {rank: _operations(known, graphs) for rank, graphs in by_rank.items()}
        if set(by_rank) == set(ranks) and len(set(contents.values())) == 1:
            continue
        told.add(place)
        odd, usual = _odd(ranks, contents)
        graph = by_rank[odd[0]][0] if odd[0] in by_rank else next(iter(by_rank.values()))[0]
        mine, theirs = Counter(dict(contents.get(odd[0], ()))), Counter(dict(contents.get(usual, ())))
        more, fewer = mine - theirs, theirs - mine
        yield rank_graphs.problem(
            place,
            subject=graph.graph_id,
            title=f"{_words(odd)} {'compiles' if len(odd) == 1 else 'compile'} another {phase} graph of {place.name or 'a function'}",
            evidence="; ".join(filter(None, [_ops("more: ", more), _ops("fewer: ", fewer)]))
            or f"{len(by_rank.get(odd[0], ()))} graphs there, {len(by_rank.get(usual, ()))} on rank {usual}",
            mitigation="Compare the ranks' options and the branches that depend on the rank.",
        )


@rule(
    name="rank_sessions",
    looks_for="A graph that ranks of a job run on different execution providers, or in different numbers of sessions.",
    fires="In captures merged of several ranks, where they compiled the same graph.",
    hazard=_WAITING + "sessions for more sizes cost memory and time to create.",
)
def rank_sessions(capture: Capture) -> Iterator[Problem]:
    """Report functions with different sessions."""
    if not (ranks := capture.figures.ranks):
        return
    known, parts, sessions = _targets(capture), partitions_by_graph(capture), sessions_by_partition(capture)
    own = {
        graph_id: [session.providers for part in held for session in sessions.get(part.partition_id, ())]
        for graph_id, held in parts.items()
    }
    for (place, phase), by_rank in _graphs(capture).items():
        if set(by_rank) != set(ranks) or len({_operations(known, graphs) for graphs in by_rank.values()}) > 1:
            continue
        found = {rank: tuple(sorted(name for graph in graphs for name in own.get(graph.graph_id, ()))) for rank, graphs in by_rank.items()}
        if len(set(found.values())) == 1:
            continue
        odd, usual = _odd(ranks, found)
        yield rank_sessions.problem(
            place,
            subject=by_rank[odd[0]][0].graph_id,
            title=f"{_words(odd)} {'runs' if len(odd) == 1 else 'run'} the {phase} graph of {place.name or 'a function'} in other sessions",
            evidence=f"{_providers(found[odd[0]])} there, {_providers(found[usual])} on rank {usual}",
            mitigation="Give every rank the same options and devices, and inputs of the same sizes; or compile with dynamic=True.",
        )


@rule(
    name="straggler",
    looks_for="A rank that keeps the other ranks of a job waiting.",
    fires="In captures merged of several ranks. At 10 steps of training on one machine, in 70 % of which one rank ends its backward graph "
    "last, and behind the others by 20 % of a step; or where its graphs take 1.5 times as long as on the others, and 10 % of a step more. "
    "Where there are more ranks than cores, from 10 ms on.",
    hazard="Ranks wait for each other in every collective, so that the whole job is as slow as its slowest rank.",
)
def straggler(capture: Capture) -> Iterator[Problem]:
    """Report ranks that are late or slow."""
    if len(ranks := capture.figures.ranks) < 2 or not (steps := _steps(capture, ranks)):  # noqa: PLR2004 - two ranks can differ
        return
    period = _period(steps)
    busy = {rank: sum(_quarter(runs[rank]) for runs in steps.values()) for rank in ranks}
    late = _late(capture, steps, ranks)
    cores = capture.figures.cpu_usable  # absent where ranks on several machines differ in it
    share_cores = cores is not None and len(ranks) > cores
    for rank in ranks:
        others = median(busy[other] for other in ranks if other != rank)
        is_slow = busy[rank] > _SLOWER * others and busy[rank] - others > _SLOWER_SHARE * period
        is_late = late.get(rank, 0.0) > _LATE_SHARE * period
        if not is_slow and not is_late:
            continue
        cost = max(late.get(rank, 0.0), busy[rank] - others if is_slow else 0.0)
        if share_cores and cost < _SLICES_NS:
            continue
        yield straggler.problem(
            subject=f"rank {rank}",
            title=f"rank {rank} is {time_from_ns(cost)} behind the other ranks in a step of {time_from_ns(period)}",
            evidence=f"its graphs take {time_from_ns(busy[rank])} per step, those of the other ranks {time_from_ns(others)}"
            + ("" if is_slow else ": the delay is outside compiled code"),
            mitigation="Look for what makes its computations slower: larger or longer inputs, fewer threads, other work on its cores."
            if is_slow
            else "Look at what this rank alone does between steps: loading data, logging, checkpoints.",
            gain_ns=round(cost),
        )


def _breaks(capture: Capture) -> dict[tuple[str | None, int | None, str], dict[int, Break]]:
    """Group the breaks of each place and reason by rank."""
    found: dict[tuple[str | None, int | None, str], dict[int, Break]] = defaultdict(dict)
    for item in capture.breaks:
        if item.rank is not None:
            found[item.file, item.line, item.reason][item.rank] = item
    return found


def _broken_functions(capture: Capture, ranks: tuple[int, ...]) -> set[str | None]:
    """Name the functions whose graphs differ because a break is on some ranks only, or because some recompile."""
    name_of = {graph.compile_id: _base(graph.name) for graph in capture.graphs}
    found: set[str | None] = set()
    for group in _breaks(capture).values():
        if set(group) != set(ranks):
            found |= {_base(item.function) for item in group.values()}
            found |= {name_of.get(compile_id) for item in group.values() for compile_id in item.compile_ids}
    return found


def _base(name: str | None) -> str | None:
    """Find the user's function behind a resume function, also that of a function that was resumed before."""
    while name is not None and (plain := plain_function(name)) != name:
        name = plain
    return name


def _graphs(capture: Capture) -> dict[tuple[CompiledFunction, str], dict[int, list[Graph]]]:
    """Group the first versions of the graphs of each function and phase by rank."""
    found: dict[tuple[CompiledFunction, str], dict[int, list[Graph]]] = defaultdict(lambda: defaultdict(list))
    places = {graph.compile_id: _place(graph) for graph in reversed(capture.graphs) if graph.name is not None}
    for graph in capture.graphs:
        if graph.rank is not None and graph.recompile_of is None:
            found[places.get(graph.compile_id, _place(graph)), graph.phase][graph.rank].append(graph)
    return {key: dict(by_rank) for key, by_rank in found.items()}


def _place(graph: Graph) -> CompiledFunction:
    return CompiledFunction(graph.name, graph.file, graph.line)


def _operations(known: Mapping[str, Counter[str]], graphs: Iterable[Graph]) -> tuple[tuple[str, int], ...]:
    """Count the operators of graphs by name; of another backend than ours, only how many there are."""
    counts: Counter[str] = Counter()
    for graph in graphs:
        counts.update(known.get(graph.graph_id) or {"operations": graph.op_count})
    return tuple(sorted(counts.items()))


def _targets(capture: Capture) -> Mapping[str, Counter[str]]:
    return {graph_id: Counter(node.target for node in nodes) for graph_id, nodes in nodes_by_graph(capture).items()}


def _odd(ranks: tuple[int, ...], values: Mapping[int, Hashable]) -> tuple[list[int], int]:
    """Find the ranks that differ from most, and one of the most."""
    counts = Counter(values.get(rank) for rank in ranks)
    usual = max(counts, key=lambda value: (counts[value], value == values.get(ranks[0])))
    return [rank for rank in ranks if values.get(rank) != usual], next(rank for rank in ranks if values.get(rank) == usual)


def _steps(capture: Capture, ranks: tuple[int, ...]) -> dict[tuple[CompiledFunction, str, str], dict[int, dict[int, Run]]]:
    """Group the runs of each graph that every rank runs by rank and number of the call."""
    graphs, graph_of = graphs_by_id(capture), graph_by_session(capture)
    found: dict[tuple[CompiledFunction, str, str], dict[int, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for run in capture.runs:
        graph = graphs.get(graph_of.get(run.session_id or "") or run.graph_id or "")
        if graph is not None and run.rank is not None:
            local = (run.session_id or graph.graph_id).partition(".")[2]
            found[_place(graph), graph.phase, local][run.rank][run.call] = run
    return {key: dict(by_rank) for key, by_rank in found.items() if set(by_rank) == set(ranks)}


def _period(steps: Mapping[tuple[CompiledFunction, str, str], Mapping[int, Mapping[int, Run]]]) -> float:
    """Compute the time from one call to the next, a median over the graph that is called most."""
    rows = max(steps.values(), key=lambda by_rank: min(map(len, by_rank.values())))
    gaps = [
        later.start_ns - run.start_ns for runs in rows.values() for call, run in runs.items() if (later := runs.get(call + 1)) is not None
    ]
    return median(gaps) if gaps else 0.0


def _quarter(runs: Mapping[int, Run]) -> float:
    """Estimate what a run takes when nothing disturbs it: other work only lengthens it."""
    times = [run.total_ns for run in runs.values()]
    return quantiles(times, n=4)[0] if len(times) > 1 else float(times[0])


def _late(
    capture: Capture, steps: Mapping[tuple[CompiledFunction, str, str], Mapping[int, Mapping[int, Run]]], ranks: tuple[int, ...]
) -> dict[int, float]:
    """Compute how much later than the others each rank ends its last backward graph, in ns; only for ranks that are mostly last.

    Training ranks meet after the backward, so that each step begins anew. Clocks are those of one machine.
    """
    if "boot" not in capture.environment:
        return {}
    ends = [_ends(by_rank) for (_, phase, _), by_rank in steps.items() if phase == "backward"]
    ends = [rows for rows in ends if len(rows) >= _ENOUGH_STEPS]
    if not ends:
        return {}
    rows = max(ends, key=lambda each: median(max(row.values()) for row in each))
    last = Counter(max(row, key=lambda rank: row[rank]) for row in rows)
    return {
        rank: median(row[rank] - median(row[other] for other in ranks if other != rank) for row in rows)
        for rank in ranks
        if last[rank] >= _LAST_SHARE * len(rows)
    }


def _ends(by_rank: Mapping[int, Mapping[int, Run]]) -> list[dict[int, int]]:
    """Find when each rank ended the same call, for the calls that all kept."""
    calls = set.intersection(*(set(runs) for runs in by_rank.values()))
    return [{rank: runs[call].start_ns + runs[call].total_ns for rank, runs in by_rank.items()} for call in sorted(calls)]


def _words(ranks: Iterable[int]) -> str:
    ordered = sorted(ranks)
    return f"rank {ordered[0]}" if len(ordered) == 1 else f"ranks {', '.join(map(str, ordered))}"


def _ops(head: str, counts: Counter[str]) -> str:
    named = [f"{count} {name}" for name, count in counts.most_common(_FEW_OPS)]
    return f"{head}{', '.join(named)}" if named else ""


def _providers(sessions: tuple[tuple[str, ...], ...]) -> str:
    names = " and ".join(dict.fromkeys(", ".join(providers) for providers in sessions))
    return f"{counted(len(sessions), 'session')}{f' on {names}' if names else ''}"
