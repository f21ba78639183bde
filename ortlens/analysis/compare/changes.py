"""What differs between two captures besides times: where operators run, breaks, recompiles, results, findings, versions and options."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ortlens.analysis.coverage import coverage_of, given_up
from ortlens.analysis.identity import file_name
from ortlens.analysis.index import nodes_by_name, sessions_by_id, verdicts_by_value
from ortlens.analysis.problems.catalogue import given_up_title
from ortlens.analysis.problems.stream import findings_of
from ortlens.trace.records import column, optional, same
from ortlens.trace.schema import facts_of
from ortlens.units import percent

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping

    from ortlens.analysis.compare.pairing import Pairing
    from ortlens.trace.records import Break, Capture, Finding, Node, PythonFrame, Recompile, ValueDigest

Kind: TypeAlias = Literal[
    "operator",
    "partition",
    "coverage",
    "break",
    "recompile",
    "function",
    "result",
    "value",
    "finding",
    "version",
    "option",
    "provider",
    "setting",
    "machine",
]
Happened: TypeAlias = Literal["added", "removed", "moved", "changed"]
Effect: TypeAlias = Literal["worse", "better", "neutral"]

_NUMBER = re.compile(r"\d+")
_MACHINE = ("platform", "machine", "cpu_count", "cpu_usable", "cpu_quota", "cpu_bfloat16")
_SETTINGS = ("torch_threads", "dry_run", "planned_for")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that differs between two captures."""

    kind: Kind = column("What differs.")
    change: Happened = column("`added`, `removed`, `moved` between ONNX Runtime and PyTorch, or `changed`.")
    effect: Effect = column(
        "`worse`: new breaks, recompiles, wrong results, errors, operators that moved to PyTorch, and a value that differs beyond "
        "rounding; `better`: the opposite; else `neutral`."
    )
    subject: str = column("Operator, partition, reason, rule, package or option.")
    count: int = column("How often, where it is counted: occurrences of a break, equal recompiles.", default=1)
    before: str | None = optional("In the first capture; empty where it was not there.")
    after: str | None = optional("In the second capture; likewise.")
    module: str | None = optional("nn.Module path of the operator.")
    file: str | None = optional("File of the user line.")
    line: int | None = optional("Number of the user line.")


def changes_of(before: Capture, after: Capture, pairing: Pairing) -> tuple[Change, ...]:
    """List what differs, by kind; nothing for two captures of the same program on the same installation."""
    return (
        *_operators(pairing),
        *_partitions(before, after, pairing),
        *_coverage(before, after),
        *_breaks(before, after),
        *_recompiles(before, after),
        *_functions(before, after),
        *_results(before, after),
        *_values(before, after, pairing),
        *_findings(before, after, pairing),
        *_environment(before, after),
        *_sessions(before, after, pairing),
    )


def _operators(pairing: Pairing) -> Iterator[Change]:
    for pair in pairing.operators:
        if pair.before.supported != pair.after.supported:
            yield _operator("moved", "better" if pair.after.supported else "worse", pair.after, _where(pair.before), _where(pair.after))
    for node in pairing.entered:
        yield _operator("moved" if node.supported else "changed", "better" if node.supported else "neutral", node, _OUTSIDE, _where(node))
    for node in pairing.left:
        yield _operator("moved" if node.supported else "changed", "worse" if node.supported else "neutral", node, _where(node), _OUTSIDE)
    for node in pairing.added:
        yield _operator("added", "neutral", node, None, _where(node))
    for node in pairing.removed:
        yield _operator("removed", "neutral", node, _where(node), None)


_OUTSIDE = "PyTorch: outside of compiled code"


def _operator(change: Happened, effect: Effect, node: Node, before: str | None, after: str | None) -> Change:
    about = same(node, "module", "file", "line")
    return Change(kind="operator", change=change, effect=effect, subject=node.target, before=before, after=after, **about)


def _where(node: Node) -> str:
    return "ONNX Runtime" if node.supported else f"PyTorch: {node.reason or node.reason_code or 'reason not recorded'}"


def _partitions(before: Capture, after: Capture, pairing: Pairing) -> Iterator[Change]:
    first = {node.partition_id for pair in pairing.operators if (node := pair.before).partition_id is not None}
    first |= {node.partition_id for node in (*pairing.left, *pairing.removed) if node.partition_id is not None}
    second = {node.partition_id for pair in pairing.operators if (node := pair.after).partition_id is not None}
    second |= {node.partition_id for node in (*pairing.entered, *pairing.added) if node.partition_id is not None}
    sizes = {partition.partition_id: partition.node_count for partition in before.partitions}
    others = {partition.partition_id: partition.node_count for partition in after.partitions}
    for partition, size in sizes.items():
        partner = pairing.partitions.get(partition)
        if partner is None and partition in first:
            yield Change(kind="partition", change="removed", effect="neutral", subject=partition, before=_operations(size))
        elif partner is not None and others.get(partner, size) != size:
            changed = _operations(others[partner])
            yield Change(kind="partition", change="changed", effect="neutral", subject=partition, before=_operations(size), after=changed)
    for partition, size in others.items():
        if partition in second and partition not in pairing.partitions.values():
            yield Change(kind="partition", change="added", effect="neutral", subject=partition, after=_operations(size))


def _operations(count: int) -> str:
    return f"{count} operation{'' if count == 1 else 's'}"


def _coverage(before: Capture, after: Capture) -> Iterator[Change]:
    of_both = coverage_of(before), coverage_of(after)
    are_counted = all(coverage.operator_count is not None for coverage in of_both)
    first, second = (coverage.share if are_counted else coverage.node_share for coverage in of_both)
    if first is not None and second is not None and first != second:
        effect: Effect = "worse" if second < first else "better"
        was, is_now = percent(first), percent(second)
        yield Change(kind="coverage", change="changed", effect=effect, subject="coverage", before=was, after=is_now)


def _breaks(before: Capture, after: Capture) -> Iterator[Change]:
    def counted(capture: Capture) -> Iterator[tuple[Hashable, Break, str, int]]:
        return ((break_key(item), item, item.reason, item.occurrences) for item in capture.breaks)

    return _recurring("break", counted(before), counted(after))


def _recompiles(before: Capture, after: Capture) -> Iterator[Change]:
    def counted(capture: Capture) -> Iterator[tuple[Hashable, Recompile, str, int]]:
        for item in capture.recompiles:  # sizes and values in a guard differ from run to run
            said = item.guard or item.reason
            yield (item.function, file_name(item.file or ""), _NUMBER.sub("0", said)), item, said, 1

    return _recurring("recompile", counted(before), counted(after))


def _recurring(kind: Kind, *sides: Iterable[tuple[Hashable, Break | Recompile | PythonFrame, str, int]]) -> Iterator[Change]:
    """Compare how often things happened on both sides; each comes by what identifies it, with what it is said to be, and a number."""
    counts: dict[Hashable, list[int]] = defaultdict(lambda: [0, 0])
    latest: dict[Hashable, tuple[Break | Recompile | PythonFrame, str]] = {}
    for side, rows in enumerate(sides):
        for key, item, said, number in rows:
            counts[key][side] += number
            latest[key] = item, said
    for key, (ours, theirs) in counts.items():
        item, said = latest[key]
        if ours != theirs:
            yield Change(
                kind=kind,
                change="added" if not ours else "changed" if theirs else "removed",
                effect="worse" if theirs > ours else "better",
                subject=said,
                count=abs(theirs - ours),
                before=f"{ours}x" if ours else None,
                after=f"{theirs}x" if theirs else None,
                **same(item, "file", "line"),
            )


def break_key(item: Break) -> Hashable:
    """Identify a break by its place without the number of the line, which moves with every edit above."""
    return (item.gb_id or item.reason, file_name(item.file or ""), item.function, item.source)


def _functions(before: Capture, after: Capture) -> Iterator[Change]:
    def counted(capture: Capture) -> Iterator[tuple[Hashable, PythonFrame, str, int]]:
        for frame in given_up(capture):
            yield (frame.frame, file_name(frame.file or "")), frame, given_up_title(frame), 1

    known = before.frames and after.frames  # older captures have none
    return _recurring("function", counted(before), counted(after)) if known else iter(())


def _results(before: Capture, after: Capture) -> Iterator[Change]:
    first, second = _wrong(before), _wrong(after)
    effect: Effect = "neutral"  # where one was not verified
    differs = first != second
    if first is not None and second is not None:
        differs, effect = (first[0] > 0) != (second[0] > 0), "worse" if second[0] else "better"
    if differs:
        words = result_words(before), result_words(after)
        yield Change(kind="result", change="changed", effect=effect, subject="verified values", before=words[0], after=words[1])


def _wrong(capture: Capture) -> tuple[int, int] | None:
    checked = [ok for ok in verdicts_by_value(capture).values() if ok is not None]
    return (checked.count(False), len(checked)) if checked else None


def result_words(capture: Capture) -> str:
    """Say what verifying a capture came to: `0 of 12 beyond tolerance`, or `not verified`."""
    wrong = _wrong(capture)
    return "not verified" if wrong is None else f"{wrong[0]} of {wrong[1]} beyond tolerance"


_ROUNDING = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""By type: how far apart two values may be, relative to their norm, after many steps that each round."""

_FLIPPED = 0.1
"""The same for integers and bools behind a value that was rounded otherwise, such as places in a sorted row; else they must be equal."""

_NOT_KEPT = "not kept; explain it again with keep_values=True (--keep-values) to compare them"


class _Apart(NamedTuple):
    """A value that both captures have digests of, with other bytes."""

    before: ValueDigest
    after: ValueDigest
    is_alike: bool  # whether the same operator computes both, or the graphs return them; else another one is in its place
    distance: float  # an estimate, relative to the larger norm; infinite for other shapes, and for NaN or infinity elsewhere
    is_beyond: bool  # whether that is more than rounding explains


def _values(before: Capture, after: Capture, pairing: Pairing) -> Iterator[Change]:
    """Yield the first value that differs beyond rounding, else the first that differs at all; of calls with other inputs, these."""
    about: dict[str, Any] = {"kind": "value", "change": "changed"}
    if bool(before.values) != bool(after.values):
        kept, missing = ("kept" if capture.values else _NOT_KEPT for capture in (before, after))
        yield Change(**about, effect="neutral", subject="digests", before=kept, after=missing)
        return
    apart = _apart(before, after, pairing)
    given = [pair for pair in apart if pair.is_beyond and pair.before.is_input and pair.before.graph_id == before.values[0].graph_id]
    differs = any(pair.is_alike and pair.is_beyond for pair in apart)
    words = "the inputs differ, so that nothing else was compared" if given else "beyond rounding" if differs else "rounding only"
    names = {(row.graph_id, row.input): row.name for row in after.graph_inputs}
    for pair in given or [pair for pair in apart if pair.is_beyond == differs][:1]:
        of = pair.after.graph_id, pair.after.node
        node, far = nodes_by_name(after).get(of), f", about {pair.distance:.1e} of the norm apart" if pair.distance < math.inf else ""
        yield Change(
            **about,
            effect="worse" if differs and not given else "neutral",
            subject=f"{node.node} ({node.target})" if node else f"input {names.get(of, of[1])}",
            before=_figures(pair.before),
            after=f"{_figures(pair.after)}: {words}{far}",
            **(same(node, "module", "file", "line") if node else {}),
        )


def _apart(before: Capture, after: Capture, pairing: Pairing) -> list[_Apart]:
    """Pair values by their operators, and inputs by their places; operators without a sure partner by what they read, or as results."""
    partners = {
        (pair.before.graph_id, pair.before.node): (pair.after.graph_id, pair.after.node)
        for pair in pairing.operators  # without a module, others share little
        if pair.match in ("exact", "renamed") or pair.before.module or (pair.before.is_output and pair.after.is_output)
    }
    taken, alike = set(partners.values()), set(partners)
    free = {(node.graph_id, node.inputs): node for node in reversed(after.nodes) if (node.graph_id, node.node) not in taken}
    for node in before.nodes:
        of, graph = (node.graph_id, node.node), pairing.graphs.get(node.graph_id, "")
        reads = tuple(partners.get((node.graph_id, name), ("", name))[1] for name in node.inputs)
        if of not in partners and (partner := free.get((graph, reads))) is not None:
            partners[of] = graph, partner.node
            alike |= {of} if partner.target == node.target or (node.is_output and partner.is_output) else set()
    theirs = {(row.graph_id, "" if row.is_input else row.node, row.place, row.is_input): row for row in after.values}
    found: list[_Apart] = []
    inherited = 0.0  # values of float32 behind those of float16 are as wrong
    for row in before.values:
        of = (row.graph_id, row.node)
        graph, name = (pairing.graphs.get(row.graph_id, ""), "") if row.is_input else partners.get(of, ("", ""))
        if (other := theirs.get((graph, name, row.place, row.is_input))) is None:
            continue
        limits = [_ROUNDING.get(side.dtype, 0.0) for side in (row, other)]
        inherited = max(inherited, *limits)
        if same(row, "checksum", "dtype", "shape") != same(other, "checksum", "dtype", "shape"):
            limit = inherited if all(limits) else _FLIPPED if found and not row.is_input else 0.0
            fits = same(row, "shape", "nonfinite") == same(other, "shape", "nonfinite") and len(row.sketch) == len(other.sketch)
            norm = math.sqrt(len(row.sketch) or 1) * (max(row.norm, other.norm) or 1.0)
            far = math.dist(row.sketch, other.sketch) / norm if fits else math.inf
            found.append(_Apart(row, other, row.is_input or of in alike, far, not far <= limit))  # NaN, from a hostile file, is beyond
    return found


def _figures(row: ValueDigest) -> str:
    special = f", {row.nonfinite} NaN or infinite" if row.nonfinite else ""
    return f"{row.dtype}{list(row.shape)} of norm {row.norm:.5g}, {row.low or 0.0:.4g} to {row.high or 0.0:.4g}{special}"


def _findings(before: Capture, after: Capture, pairing: Pairing) -> Iterator[Change]:
    back = _ids(before, after, pairing)
    first = {_finding_key(item, {}): item for item in findings_of(before)}
    second = {_finding_key(item, back): item for item in findings_of(after)}
    for key, item in second.items():
        if key not in first:
            yield _finding(item, "added", "worse" if item.severity == "error" else "neutral")
    for key, item in first.items():
        if key not in second:
            yield _finding(item, "removed", "better" if item.severity == "error" else "neutral")


def _ids(before: Capture, after: Capture, pairing: Pairing) -> dict[str, str]:
    """Map the ids in the second capture of what findings may be about to those in the first."""
    back = {second: first for ids in (pairing.graphs, pairing.partitions, pairing.sessions) for first, second in ids.items()}
    breaks = {break_key(item): item.break_id for item in before.breaks}
    models = {item.partition_id: item.model_id for item in before.models}
    back |= {item.break_id: breaks[key] for item in after.breaks if (key := break_key(item)) in breaks}
    back |= {item.model_id: models[first] for item in after.models if (first := back.get(item.partition_id, "")) in models}
    return back


def _finding_key(item: Finding, back: Mapping[str, str]) -> Hashable:
    subject = item.subject or ""
    return (item.rule, back.get(subject, subject), file_name(item.file or ""))


def _finding(item: Finding, change: Happened, effect: Effect) -> Change:
    before, after = (item.title, None) if change == "removed" else (None, item.title)
    where = same(item, "file", "line")
    return Change(kind="finding", change=change, effect=effect, subject=item.rule, before=before, after=after, **where)


def _environment(before: Capture, after: Capture) -> Iterator[Change]:
    first, second = facts_of(before), facts_of(after)
    for name in sorted({*first, *second}):
        kind = _kind_of(name)
        ours, theirs = first.get(name), second.get(name)
        if kind is not None and ours != theirs and (kind == "option" or (ours is not None and theirs is not None) or kind == "version"):
            subject = name.removeprefix("version_").removeprefix("option_")
            missing = "default" if kind == "option" else None
            yield Change(kind=kind, change="changed", effect="neutral", subject=subject, before=ours or missing, after=theirs or missing)
    if before.backend != after.backend:
        yield Change(kind="setting", change="changed", effect="neutral", subject="backend", before=before.backend, after=after.backend)


def _kind_of(name: str) -> Kind | None:
    """Find the kind of a fact that differs; None for measured ones, as peaks of the machine, which are no difference."""
    if name.startswith("version_") or name == "python":
        return "version"
    if name.startswith("option_"):
        return "option"
    if name in _MACHINE:
        return "machine"
    return "setting" if name in _SETTINGS else None


def _sessions(before: Capture, after: Capture, pairing: Pairing) -> Iterator[Change]:
    """Yield what differs in providers and threads of paired sessions, each difference once."""
    ours, theirs = sessions_by_id(before), sessions_by_id(after)
    seen: dict[tuple[Kind, str], Counter[tuple[str, str]]] = defaultdict(Counter)
    for first, second in pairing.sessions.items():
        left, right = ours[first], theirs[second]
        if left.providers != right.providers:
            seen["provider", "providers"][", ".join(left.providers), ", ".join(right.providers)] += 1
        if left.threads != right.threads:
            seen["setting", "threads of a session"][str(left.threads), str(right.threads)] += 1
    for (kind, subject), values in seen.items():
        for (old, new), count in values.items():
            yield Change(kind=kind, change="changed", effect="neutral", subject=subject, count=count, before=old, after=new)
