"""The captures of the ranks of one job, merged into one."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from ortlens.errors import UsageError
from ortlens.trace.records import Capture, Figures, Graph, column, optional
from ortlens.trace.schema import TABLES, facts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OWN = frozenset(("graph_id", "compile_id", "recompile_of", "of_compile_id", "break_id", "partition_id", "model_id", "session_id"))
_OWN_LISTS = frozenset(("compile_ids", "graph_ids"))
_MODELS = "models/"
_LABEL = re.compile(r" rank\d+(-\d+)?$")
_FEWEST = 2


def merged(captures: Sequence[Capture]) -> Capture:
    """Merge the captures of the ranks of one job; if none recorded its rank, their positions count.

    Ids begin with the rank, as `r1.g0`. Facts and figures that differ are in the environment once per rank, as `rank1_host`.
    """
    ranks = _numbered(captures)
    ordered = sorted(zip(ranks, captures, strict=True), key=lambda pair: pair[0])
    parts = [_of_rank(capture, rank) for rank, capture in ordered]
    figures = _common([capture.figures for capture in captures])
    shown = facts_of(Capture(figures=figures))
    facts = _facts({rank: facts_of(capture) for rank, capture in ordered})
    names = list(dict.fromkeys(_LABEL.sub("", capture.name) for capture in captures if capture.name))
    return Capture(
        name=f"{', '.join(names)} ({len(ranks)} ranks)".strip(),
        backend=", ".join(dict.fromkeys(capture.backend for _, capture in ordered)),
        created=max(capture.created for capture in captures),
        environment={name: text for name, text in facts.items() if name not in shown},
        figures=replace(figures, rank=None, ranks=tuple(sorted(ranks))),
        attachments={name: data for part in parts for name, data in part.attachments.items()},
        **{name: tuple(record for part in parts for record in getattr(part, name)) for name in TABLES},
    )


def _numbered(captures: Sequence[Capture]) -> list[int]:
    if len(captures) < _FEWEST:
        raise UsageError(f"merging needs the captures of two ranks or more, not {len(captures)}")
    if any(capture.figures.ranks for capture in captures):
        raise UsageError("one of the captures is merged already; merge the captures of the ranks themselves")
    recorded = [capture.figures.rank for capture in captures]
    ranks = [rank for rank in recorded if rank is not None]
    if not ranks:
        return list(range(len(captures)))
    if len(ranks) < len(captures):
        known = ", ".join("none" if rank is None else str(rank) for rank in recorded)
        raise UsageError(f"some captures recorded their rank and some did not: {known}")
    twice = next((rank for rank in ranks if ranks.count(rank) > 1), None)
    if twice is not None:
        raise UsageError(f"two captures are of rank {twice}: name one capture per rank, of one run")
    return ranks


def _of_rank(capture: Capture, rank: int) -> Capture:
    """Make the ids and names of a capture unique among the ranks."""
    records = [record for name in TABLES for record in getattr(capture, name)]
    ids = {getattr(record, item.name) for record in records for item in fields(record) if item.name in _OWN} - {None}
    tables: dict[str, Any] = {name: tuple(_record(record, rank, ids) for record in getattr(capture, name)) for name in TABLES}
    return replace(capture, attachments={_attachment(name, rank): data for name, data in capture.attachments.items()}, **tables)


def _record(record: Any, rank: int, ids: set[str]) -> Any:  # noqa: ANN401 - a record of any table
    changes: dict[str, Any] = {"rank": rank}
    for item in fields(record):
        value = getattr(record, item.name)
        if item.name in _OWN and value is not None:
            changes[item.name] = _named(value, rank)
        elif item.name in _OWN_LISTS:
            changes[item.name] = tuple(_named(each, rank) for each in value)
        elif item.name == "subject" and value in ids:
            changes["subject"] = _named(value, rank)
        elif item.name == "path" and value is not None:
            changes["path"] = _attachment(value, rank)
    if isinstance(record, Graph) and record.phase != "backward":  # calls of one function on several ranks must not be added up
        changes["target"] = f"{record.target or record.name or 'call'} on rank {rank}"
    return replace(record, **changes)


def _named(value: str, rank: int) -> str:
    return f"r{rank}.{value}"


def _attachment(name: str, rank: int) -> str:
    return f"{_MODELS}{_named(name.removeprefix(_MODELS), rank)}" if name.startswith(_MODELS) else name


def _common(figures: Sequence[Figures]) -> Figures:
    """Keep the figures that are the same on every rank."""
    first, *others = figures
    names = [item.name for item in fields(Figures)]
    return Figures(**{name: getattr(first, name) for name in names if all(getattr(one, name) == getattr(first, name) for one in others)})


def _facts(by_rank: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in dict.fromkeys(name for facts in by_rank.values() for name in facts):
        values = {rank: facts[name] for rank, facts in by_rank.items() if name in facts}
        if name == "rank":
            continue
        if len(values) == len(by_rank) and len(set(values.values())) == 1:
            found[name] = next(iter(values.values()))
        else:
            found |= {f"rank{rank}_{name}": value for rank, value in values.items()}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank of a merged capture."""

    rank: int = column("The rank.")
    graphs: int = column("Graphs that it compiled, recompiles included.")
    breaks: int = column("Distinct graph breaks.")
    recompiles: int = column("Recompiles.")
    partitions: int = column("Partitions.")
    sessions: int = column("Sessions of ONNX Runtime.")
    runs: int = column("Calls of these sessions, or of graphs of another backend.")
    run_ns: int | None = optional("Time of such a call, the median; empty without calls.", unit="ns")
    compile_ns: int = column("All compilations together.", unit="ns", default=0)


def rank_rows(capture: Capture) -> list[RankRow]:
    """Compute the key figures of each rank; empty for a capture that was not merged."""
    return [_row(capture, rank) for rank in capture.figures.ranks]


def _row(capture: Capture, rank: int) -> RankRow:
    own: dict[str, Any] = {name: [record for record in getattr(capture, name) if record.rank == rank] for name in TABLES}
    times = [run.total_ns for run in own["runs"]]
    return RankRow(
        rank=rank,
        **{name: len(own[name]) for name in ("graphs", "breaks", "recompiles", "partitions", "sessions")},
        runs=sum(session.calls for session in own["sessions"]) or len(times),
        run_ns=round(median(times)) if times else None,
        compile_ns=sum(graph.compile_ns or 0 for graph in own["graphs"]),
    )
