"""Sentences that the text and the HTML view share, so that both say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.units import counted, percent, time_from_ns
from ortlens.views.wording import PART_WORDS, REASON_WORDS, REMEDY_WORDS, guard, place, visible

if TYPE_CHECKING:
    from ortlens.analysis.first_look import Look
    from ortlens.analysis.numbers import Numbers
    from ortlens.analysis.overview import FallbackGroup, Overview
    from ortlens.trace.records import Finding

_QUOTED = 120  # characters of an exception that are looked for in a reason


def title(overview: Overview) -> str:
    """What is this about?

    Args:
        overview: The overview of a capture.

    Returns:
        The name of the capture, when it has one, and the backend.
    """
    name = f"{visible(overview.name)}: " if overview.name else ""
    return f"{name}torch.compile with backend {visible(overview.backend)}"


def coverage_sentence(overview: Overview) -> str:
    """Is the model in ONNX Runtime, and how much of it?

    Args:
        overview: The overview of a capture.

    Returns:
        One sentence without a full stop.
    """
    coverage = overview.coverage
    nodes = counted(coverage.node_count, "compute node")
    if coverage.verdict == "empty":
        return "nothing was compiled while the lens was recording"
    if coverage.verdict == "foreign":
        return f"nothing: the backend is {visible(overview.backend)}; ortlens only recorded it"
    if coverage.verdict == "no_compute":
        return "nothing to run: the graphs hold no compute nodes"
    if coverage.verdict == "none":
        return f"nothing: PyTorch runs {'the only compute node' if coverage.node_count == 1 else f'all {nodes}'}"
    share = percent(coverage.share or 0.0)
    if coverage.verdict == "whole":
        return f"everything: {nodes if coverage.node_count == 1 else f'all {nodes}'} ({share})"
    return f"{coverage.ort_node_count:,} of {nodes} ({share})"


def partitions_sentence(overview: Overview) -> str:
    """How many partitions are there, in how many graphs?

    Args:
        overview: The overview of a capture with at least one graph.

    Returns:
        A phrase to follow "Partitions:". Earlier versions of recompiled graphs are not counted, but mentioned.
    """
    current = [row for row in overview.graphs if row.is_current]
    apart = ", forward and backward counted separately" if any(row.graph.phase == "backward" for row in current) else ""
    graphs = counted(len(current), "graph") + apart + _earlier(len(overview.graphs) - len(current))
    count = overview.coverage.partition_count
    return f"{count:,}, in {graphs}{_whole(overview)}" if count else f"none, in {graphs}"


def _earlier(versions: int) -> str:
    return f" (and {counted(versions, 'earlier version')}, see recompiles)" if versions else ""


def _whole(overview: Overview) -> str:
    coverage = overview.coverage
    if not coverage.whole_graph_count:
        return ""
    if coverage.whole_graph_count < coverage.graph_count:
        return f"; {counted(coverage.whole_graph_count, 'graph runs', 'graphs run')} as a single partition"
    return "; it covers the whole graph" if coverage.graph_count == 1 else "; each covers a whole graph"


def numbers_sentence(numbers: Numbers) -> str:
    """Are the numbers those of PyTorch?

    Args:
        numbers: The verdict on them.

    Returns:
        One sentence without a full stop: how many were compared, what is wrong first, and what was not compared and why.
    """
    what = (
        counted(numbers.compared, "operator on its own", "operators one by one") if numbers.per_op else counted(numbers.compared, "value")
    )
    parts = [f"{what} of {counted(numbers.partitions, 'partition')} compared with PyTorch"]
    if numbers.first is not None:
        where = place(numbers.first.file, numbers.first.line)
        parts.append(f"{numbers.wrong:,} out of tolerance, first at {visible(numbers.first.node)} ({where})")
    elif numbers.compared:
        parts.append("all within tolerance")
    if numbers.origins:
        parts.append(f"NaN or Inf first appears at {visible(numbers.origins[0].node)}")
    if numbers.unchecked:
        reason, count = numbers.unchecked[0]
        others = sum(more for _, more in numbers.unchecked[1:])
        parts.append(f"{count:,} not compared ({visible(reason)})" + (f" and {others:,} for other reasons" if others else ""))
    if numbers.eager_nodes:
        parts.append(f"{counted(numbers.eager_nodes, 'node')} in PyTorch need no comparison")
    return "; ".join(parts)


def reason_words(group: FallbackGroup) -> str:
    """Why does this stay in PyTorch?

    Args:
        group: Nodes that stay.

    Returns:
        The recorded reason, or the meaning of its code where none was recorded.
    """
    return visible(group.reason) or REASON_WORDS[group.reason_code]


def finding_sentence(finding: Finding) -> str:
    """What was found, and what mending it would save.

    Args:
        finding: A finding.

    Returns:
        One sentence without a full stop.
    """
    said = visible(finding.title)
    if not finding.gain_ns:
        return said
    gain = time_from_ns(finding.gain_ns)
    return f"{said} (saves {gain} per call, measured)" if finding.measured else f"{said} (would save about {gain} per call, estimated)"


def gain_words(finding: Finding) -> str:
    """What mending something would save per call.

    Args:
        finding: A finding.

    Returns:
        `1.20 ms, measured`, or `about 1.20 ms`; empty when nothing is known to be saved.
    """
    if not finding.gain_ns:
        return ""
    gain = time_from_ns(finding.gain_ns)
    return f"{gain}, measured" if finding.measured else f"about {gain}"


def ledger_sentence(overview: Overview) -> str:
    """Where does the wall time of a call go?

    Args:
        overview: The overview of a capture.

    Returns:
        One sentence without a full stop, with the parts of a measured call in percent; empty where none was measured.
    """
    ledger = overview.ledger
    if ledger is None or not ledger.is_measured:
        return ""
    words = PART_WORDS if overview.backend == "ortlens" else {**PART_WORDS, "run": f"graphs of {visible(overview.backend)}"}
    parts = [f"{percent(ledger.share[part])} {name}" for part, name in words.items() if ledger.ns.get(part)]
    return f"{time_from_ns(ledger.total_ns)}: {', '.join(parts)}"


def exception_words(group: FallbackGroup) -> str:
    """What was raised when this was converted or handed to ONNX Runtime?

    Args:
        group: Nodes that stay.

    Returns:
        Class and message of the innermost cause on one line; empty where nothing was raised, or where the reason already includes it.
    """
    lines = [line for line in (group.exception or "").splitlines() if line.strip()]
    return "" if not lines or lines[-1].strip()[:_QUOTED] in group.reason else f"raised {visible(lines[-1].strip())}"


def look_sentence(look: Look) -> str:
    """What to look at, and what it would change.

    Args:
        look: The thing to look at.

    Returns:
        One sentence without a full stop.
    """
    where = place(look.file, look.line, look.module)
    cost = "" if look.ns_per_call is None else f" ({time_from_ns(look.ns_per_call)} per call)"
    if look.subject in ("finding", "rule"):
        return (f"{where}: " if look.file else "") + visible(look.what)
    if look.subject == "break":
        return f"{where}: {_advice(look) or 'remove the graph break, or rewrite the line as the reason suggests'}{cost}"
    if look.reason_code is not None:
        rest = " (nothing else runs in ONNX Runtime either)" if look.subject == "nothing_runs" else cost
        return f"{where}: {REMEDY_WORDS[look.reason_code].format(visible(look.what))}{rest}"
    return f"{where}: {_advice(look) or f'avoid the recompile: keep `{guard(look.what)}` true on every call'}"


def _advice(look: Look) -> str:
    return visible(look.advice[:1].lower() + look.advice[1:]) if look.advice else ""
