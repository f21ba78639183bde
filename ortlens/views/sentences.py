"""Sentences that the text and the HTML view share, so that both say the same."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ortlens.analysis.timing import own_code_ns, price_of
from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.wording import PART_WORDS, REASON_WORDS, REMEDY_WORDS, guard, place, visible

if TYPE_CHECKING:
    from ortlens.analysis.first_look import Look
    from ortlens.analysis.generation import Cache
    from ortlens.analysis.numbers import Numbers
    from ortlens.analysis.overview import FallbackGroup, Overview
    from ortlens.analysis.timing import CallTime
    from ortlens.trace.records import Break, Finding, Step, StepRole

_TWO_DIGITS = 10
_ALIKE = 1.1  # on an idle machine the medians of two runs of one program differ by less
_QUOTED = 120  # characters of an exception that are looked for in a reason


def title(overview: Overview) -> str:
    """What is this about?

    Args:
        overview: The overview of a capture.

    Returns:
        The name of the capture, when it has one, and the backend.
    """
    name = f"{visible(overview.name)}: " if overview.name else ""
    return f"{name}torch.compile with backend {visible(overview.backend)}{', dry run' if overview.is_dry_run else ''}"


def coverage_sentence(overview: Overview) -> str:
    """Is the model in ONNX Runtime, and how much of it?

    Args:
        overview: The overview of a capture.

    Returns:
        One sentence without a full stop.
    """
    coverage = overview.coverage
    nodes, share = counted(coverage.node_count, "compute node"), percent(coverage.share or 0.0)
    if coverage.verdict in ("part", "compiled", "whole"):
        return _how_much(overview, nodes, share)
    if coverage.verdict == "empty":
        if coverage.is_cut_short:
            return f"unknown: {_dry_run_end(overview)}, before the first graph was complete"
        unable = "nothing: PyTorch could not compile the function, and ran it as it is"
        return unable if coverage.break_count else "nothing was compiled while the lens was recording"
    return {
        "foreign": f"nothing: the backend is {visible(overview.backend)}; ortlens only recorded it",
        "no_compute": "nothing to run: the graphs hold no compute nodes",
        "none": f"nothing: PyTorch runs {'the only compute node' if coverage.node_count == 1 else f'all {nodes}'}",
    }[coverage.verdict]


def _how_much(overview: Overview, nodes: str, share: str) -> str:
    coverage = overview.coverage
    one = coverage.node_count == 1
    if coverage.verdict == "whole":
        return f"everything: {nodes if one else f'all {nodes}'} ({share})"
    if coverage.verdict == "compiled":
        part = "the only compute node" if one else f"all {nodes}"
    else:
        part = f"{coverage.ort_node_count:,} of {nodes}"
    outside = f" of the compiled code; {outside_sentence(overview)}" if coverage.is_partial_view else ""
    return f"{part} ({share}){outside}"


def outside_sentence(overview: Overview) -> str:
    """What is not in the compiled code that the coverage counts?

    Args:
        overview: The overview of a capture.

    Returns:
        One sentence without a full stop, with the share of time where a call was measured; empty if nothing is known to be outside.
    """
    coverage, parts = overview.coverage, []
    if coverage.is_cut_short:
        parts.append(f"{_dry_run_end(overview)}, and what follows is unknown")
    elif coverage.break_count:
        parts.append(f"{counted(coverage.break_count, 'graph break leaves', 'graph breaks leave')} code outside it")
    share = time_share(overview)
    if parts and share is not None:
        parts.append(f"{percent(share)} of a call's time is in ONNX Runtime")
    return "; ".join(parts)


def _dry_run_end(overview: Overview) -> str:
    end = next((finding for finding in overview.findings if finding.rule == "dry_run_ended"), None)
    at = f" at {place(end.file, end.line)}" if end is not None and end.file else ""
    return f"the dry run ended{at}, where the model needs the values of a tensor"


def dry_run_sentence(overview: Overview) -> str:
    """What must be said first where nothing was run.

    Args:
        overview: The overview of a capture.

    Returns:
        One sentence without a full stop; empty where something was run.
    """
    if not overview.is_dry_run:
        return ""
    end = f"; {_dry_run_end(overview)}, and what follows is unknown" if overview.coverage.is_cut_short else ""
    return f"a dry run with fake tensors: nothing was run, and what ONNX Runtime would run is a plan{end}"


def against_sentence(overview: Overview) -> str:
    """How does a call compare with one without torch.compile?

    Args:
        overview: The overview of a capture.

    Returns:
        One sentence without a full stop; empty where not both were measured.
    """
    ledger, plain = overview.ledger, overview.uncompiled_ns
    if ledger is None or not ledger.is_measured or plain is None:
        return ""
    ratio = ledger.total_ns / plain
    if 1 / _ALIKE <= ratio <= _ALIKE:
        said = "about as long as without torch.compile"
    else:
        said = f"{_times(1 / ratio)} as fast as" if ratio < 1 else f"{_times(ratio)} as long as"
        said += " without torch.compile"
    return f"{said}: {time_from_ns(plain)} there, measured in turns"


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < _TWO_DIGITS else f"{ratio:,.0f} times"


def time_share(overview: Overview) -> float | None:
    """The share of ONNX Runtime in the wall time of a call.

    Args:
        overview: The overview of a capture.

    Returns:
        The share, 0 to 1; None where no call was measured.
    """
    ledger = overview.ledger
    return ledger.share.get("run", 0.0) if ledger is not None and ledger.is_measured else None


def partitions_sentence(overview: Overview) -> str:
    """How many partitions are there, in how many graphs?

    Args:
        overview: The overview of a capture with at least one graph.

    Returns:
        A phrase to follow "Partitions:". Other versions of recompiled graphs are not counted, but mentioned.
    """
    current = [row for row in overview.graphs if row.is_current]
    apart = ", forward and backward counted separately" if any(row.graph.phase == "backward" for row in current) else ""
    roles = [role for role in ("encode", "prefill", "decode") if any(row.graph.role == role for row in current)]
    apart += f", {', '.join(roles[:-1])} and {roles[-1]}" if len(roles) > 1 else f", {roles[0]}" if roles else ""
    graphs = counted(len(current), "graph") + apart + _other_versions([row.graph.role for row in overview.graphs if not row.is_current])
    count = overview.coverage.partition_count
    return f"{count:,}, in {graphs}{_whole(overview)}" if count else f"none, in {graphs}"


def _other_versions(replaced: list[StepRole | None]) -> str:
    if not replaced:
        return ""
    roles = f" of {' and '.join(dict.fromkeys(map(str, replaced)))}" if None not in replaced else ""
    return f" (and {counted(len(replaced), 'other version')}{roles}, see recompiles)"


def recompiles_by_role(overview: Overview) -> Counter[StepRole | None]:
    """How often was code compiled again?

    Args:
        overview: The overview of a capture.

    Returns:
        Recompiles by role, None outside a generation. Compiling decode after prefill is not among them.
    """
    roles = {row.graph.compile_id: row.graph.role for row in overview.graphs}
    pairs = [(roles.get(item.compile_id), roles.get(item.of_compile_id)) for item in overview.recompiles]
    return Counter(role for role, of_role in pairs if role is None or role == of_role)


def recompiles_sentence(overview: Overview) -> str:
    """The same in words.

    Args:
        overview: The overview of a capture.

    Returns:
        `2 recompiles`, or `1 recompile of decode`; empty without any.
    """
    counts = recompiles_by_role(overview).items()
    return " and ".join(counted(count, "recompile") + (f" of {role}" if role else "") for role, count in counts)


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
    call = [call_sentence(numbers)] if numbers.call is not None else []
    if not numbers.compared and not numbers.unchecked and call:
        return call[0]
    what = (
        counted(numbers.compared, "operator on its own", "operators one by one") if numbers.per_op else counted(numbers.compared, "value")
    )
    parts = [*call, f"{what} of {counted(numbers.partitions, 'partition')} compared with PyTorch"]
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


def call_sentence(numbers: Numbers) -> str:
    """Does the call as a whole give what PyTorch gives?

    Args:
        numbers: The verdict on the numbers, with one on the call.

    Returns:
        A phrase without a full stop.
    """
    call = numbers.call
    if call is None:
        return ""
    if call.wrong:
        first = call.wrong[0]
        more = f" and {counted(len(call.wrong) - 1, 'more part')} of the call" if len(call.wrong) > 1 else ""
        where = f" ({place(first.file, first.line)})" if first.file else ""
        return f"{visible(first.node)}{more} {'differ' if more else 'differs'} from PyTorch's{where}"
    if not call.right:
        return f"the call as a whole was not compared ({visible(call.note)})"
    return "the call gives what PyTorch gives" if not call.unchecked else "the call gives what PyTorch gives, as far as compared"


def wrong_sentence(numbers: Numbers | None) -> str:
    """What the first screen says in red.

    Args:
        numbers: The verdict on the numbers; None when nothing was compared.

    Returns:
        What differs, and where it comes from; empty when the call as a whole does not differ.
    """
    if numbers is None or numbers.call is None or not numbers.call.wrong:
        return ""
    if numbers.first is not None:
        inside = f"the first wrong value inside is {visible(numbers.first.node)} ({place(numbers.first.file, numbers.first.line)})"
    elif numbers.compared:
        inside = "no value inside a partition differs, so the fault is in the code around the partitions"
    else:
        inside = "no value inside a partition was compared"
    return f"{call_sentence(numbers)}; {inside}"


def reason_words(group: FallbackGroup) -> str:
    """Why does this stay in PyTorch?

    Args:
        group: Nodes that stay.

    Returns:
        The recorded reason, or the meaning of its code where none was recorded.
    """
    return visible(group.reason) or REASON_WORDS[group.reason_code]


def finding_sentence(finding: Finding, *, is_busy: bool) -> str:
    """What was found, and what mending it would save.

    Args:
        finding: A finding.
        is_busy: Whether other work ran beside the calls, as in `Overview.is_busy`.

    Returns:
        One sentence without a full stop.
    """
    return visible(finding.title) + _saving_words(finding.gain_ns, is_measured=finding.measured, is_busy=is_busy)


def _saving_words(gain_ns: int | None, *, is_measured: bool, is_busy: bool) -> str:
    if not gain_ns:
        return ""
    gain = time_from_ns(gain_ns)
    said = f"saves {gain}" if is_measured else f"would save about {gain}"
    return f"; {said} per call, {_how(is_measured=is_measured, is_busy=is_busy)}"


def gain_words(finding: Finding, *, is_busy: bool) -> str:
    """What mending something would save per call.

    Args:
        finding: A finding.
        is_busy: Whether other work ran beside the calls, as in `Overview.is_busy`.

    Returns:
        `1.20 ms, measured`, or `about 1.20 ms, estimated`, with `on a busy machine` where it was; empty when nothing is known to be saved.
    """
    if not finding.gain_ns:
        return ""
    about = "" if finding.measured else "about "
    return f"{about}{time_from_ns(finding.gain_ns)}, {_how(is_measured=finding.measured, is_busy=is_busy)}"


def _how(*, is_measured: bool, is_busy: bool) -> str:
    return ("measured" if is_measured else "estimated") + (" on a busy machine" if is_busy else "")


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
    shares = dict(ledger.share)
    parts = []
    if python := generate_ns(overview):  # in what the ledger books as PyTorch and Python between graphs
        shares["eager"] -= python / ledger.total_ns
        words = {**words, "eager": "PyTorch and Python of the model"}
        parts = [f"{percent(python / ledger.total_ns)} Python of generate"]
    parts += [f"{percent(shares[part])} {name}" for part, name in words.items() if ledger.ns.get(part)]
    called = next((call.function for call in overview.calls if set(ledger.graph_ids).intersection(call.graph_ids)), None)
    of = f" ({visible(called)})" if called and len(overview.calls) > 1 else ""
    return f"{time_from_ns(ledger.total_ns)}{of}: {', '.join(parts)}"


def generation_sentences(overview: Overview) -> list[str]:
    """How does the generation of tokens go?

    Args:
        overview: The overview of a capture.

    Returns:
        Sentences without full stops: prefill, decode, the Python around the model, the cache; empty where none was seen.
    """
    found = overview.generation
    if found is None:
        return []
    said = [_step_sentence(step, overview) for step in found.steps]
    if not found.steps:
        inside = "ONNX Runtime and PyTorch" if overview.backend == "ortlens" else f"graphs of {visible(overview.backend)}"
        said = [f"{role}: {counted(count, 'call')}, {time_from_ns(mean)} each in {inside}" for role, (count, mean) in found.entries.items()]
        said.append("for tokens per second, and Python around the model: ortlens.explain(model.generate)(**inputs)")
    return [*said, *([_cache_sentence(found.cache)] if found.cache is not None else [])]


def generate_ns(overview: Overview) -> int:
    """How long is a call in the Python of `generate`, around the model?

    Args:
        overview: The overview of a capture.

    Returns:
        Nanoseconds per call, not more than the ledger has for Python; 0 where nothing was generated.
    """
    ledger, steps = overview.ledger, overview.generation.steps if overview.generation is not None else ()
    python = next((step.ns for step in steps if step.role == "python"), 0)
    return min(python, ledger.ns.get("eager", 0)) if ledger is not None and ledger.is_measured else 0


def _step_sentence(step: Step, overview: Overview) -> str:
    plain, steps = step.uncompiled_ns, overview.generation.steps if overview.generation is not None else ()
    if step.role == "python":
        share = percent(step.ns / max(sum(other.ns for other in steps), 1))
        without = f" ({time_from_ns(plain)} without torch.compile)" if plain is not None else ""
        return f"Python of generate around the model: {time_from_ns(step.ns)}, {share} of a call{without}"
    many = counted(round(step.calls), "step") if step.role == "decode" else counted(round(step.tokens), "token")
    each = f" of {time_from_ns(step.ns / step.calls)}" if step.role == "decode" and step.calls else f" in {time_from_ns(step.ns)}"
    return f"{step.role}: {many}{each}, {_rates(step)}"


def _rates(step: Step) -> str:
    """Tokens per second, as compiled and, where it was measured, without torch.compile."""
    plain = f" ({_rate(step.tokens, step.uncompiled_ns)} without torch.compile)" if step.uncompiled_ns else ""
    return f"{_rate(step.tokens, step.ns)} tokens/s{plain}"


def _rate(tokens: float, ns: int) -> str:
    return f"{tokens / max(ns, 1) * 1e9:,.0f}"


def _cache_sentence(cache: Cache) -> str:
    whole, new = size_from_bytes(cache.taken_bytes), size_from_bytes(cache.new_bytes)
    if cache.is_growing:
        return f"cache: each decode step copies all of it, {whole} at the sizes compiled for, to append {new}"
    if cache.is_recomputed:
        return f"state: {whole}, computed anew by each decode step"
    if cache.copied_bytes:
        return f"cache: each decode step copies {size_from_bytes(cache.copied_bytes)} of {whole} to write {new}"
    return f"cache: each decode step writes {new} of {whole} in place, and copies nothing"


def decode_words(overview: Overview) -> str:
    """How fast is decoding?

    Args:
        overview: The overview of a capture.

    Returns:
        `decode 1,200 tokens/s`, with PyTorch's figure if there is one; empty where it was not measured.
    """
    steps = overview.generation.steps if overview.generation is not None else ()
    step = next((step for step in steps if step.role == "decode"), None)
    if step is None:
        return ""
    return f"decode {_rates(step)}"


def busy_sentence(overview: Overview) -> str:
    """Can the times be trusted?

    Args:
        overview: The overview of a capture.

    Returns:
        One sentence without a full stop when the measured calls differ so much that other work must have run beside them; else empty.
    """
    if overview.spread is None or not overview.is_busy:
        return ""
    return f"the machine was busy: half of the calls took {overview.spread:.1f} times as long as the shortest, or longer"


def call_sentences(overview: Overview) -> list[str]:
    """What does a call take, where no call was measured as a whole, or of functions besides the measured one?

    Args:
        overview: The overview of a capture.

    Returns:
        One sentence without a full stop per function; its name is in it if there are several. Empty when no call was seen.
    """
    ledger = overview.ledger
    measured = set(ledger.graph_ids if ledger is not None and ledger.is_measured else ())
    return [_call_sentence(call, overview) for call in overview.calls if not measured.intersection(call.graph_ids)]


def _call_sentence(call: CallTime, overview: Overview) -> str:
    parts = (
        ("ONNX Runtime", call.ort_ns),
        ("PyTorch operators", call.eager_ns),
        (f"graphs of {visible(overview.backend)}", call.foreign_ns),
    )
    split = " + ".join(f"{time_from_ns(ns)} {name}" for name, ns in parts if ns)
    named = f"{visible(call.function or 'unnamed function')}: " if len(overview.calls) > 1 else ""
    return f"{named}{split or '0 ns'} ({average_words(call)}, Python excluded)"


def average_words(call: CallTime) -> str:
    """Over what a time per call is taken?

    Args:
        call: The time of a call, by the logs.

    Returns:
        `median of 20 calls`; of nodes that PyTorch runs only sums are recorded, and then it says so.
    """
    if call.calls == 1:
        return "measured in one call"
    return f"median of {call.calls:,} calls" + ("; PyTorch operators: mean" if call.eager_ns else "")


def price_words(item: Break, *, is_busy: bool) -> str:
    """What does a graph break cost?

    Args:
        item: The break.
        is_busy: Whether other work ran beside the calls, as in `Overview.is_busy`.

    Returns:
        Its overhead per call and, if it is more than that, the time of Python between the graphs; empty where none was measured.
    """
    return _price_words(price_of(item), own_code_ns(item), is_busy=is_busy)


def _price_words(price: int | None, own: int, splitting: int = 0, *, is_busy: bool) -> str:
    if price is None:
        return ""
    more = f", besides {time_from_ns(own)} of Python between the graphs" if own > price else ""
    entering = f"; about {time_from_ns(splitting)} to enter ONNX Runtime again" if splitting else ""
    return f"{time_from_ns(price)} per call{more}, {_how(is_measured=True, is_busy=is_busy)}{entering}"


def exception_words(group: FallbackGroup) -> str:
    """What was raised when this was converted or handed to ONNX Runtime?

    Args:
        group: Nodes that stay.

    Returns:
        Class and message of the innermost cause on one line; empty where nothing was raised, or where the reason already includes it.
    """
    lines = [line for line in (group.exception or "").splitlines() if line.strip()]
    if "has no kernel of" in group.reason:  # the message says the same, less plainly
        return ""
    return "" if not lines or lines[-1].strip()[:_QUOTED] in group.reason else f"raised {visible(lines[-1].strip())}"


def look_sentence(look: Look) -> str:
    """What to look at, and what it would change.

    Args:
        look: The thing to look at.

    Returns:
        One sentence without a full stop.
    """
    where = place(look.file, look.line, look.module)
    price = _price_words(look.ns_per_call, look.own_code_ns, look.splitting_ns, is_busy=look.is_busy)
    cost = f" ({price})" if price else ""
    if look.subject in ("finding", "slower", "rule"):
        saving = _saving_words(look.ns_per_call, is_measured=look.is_measured, is_busy=look.is_busy)
        return (f"{where}: " if look.file else "") + visible(look.what) + saving + (f"; {_advice(look)}" if look.advice else "")
    if look.subject == "break":
        return f"{where}: {_advice(look) or 'remove the graph break, or rewrite the line as the reason suggests'}{cost}"
    if look.reason_code is not None:
        remedy = REMEDY_WORDS[look.reason_code].format(visible(look.what))
        if look.subject == "nothing_runs":
            at = f"{where}: " if look.file or look.module else ""
            return f"{at}nothing runs in ONNX Runtime: {remedy}; otherwise leave the function uncompiled"
        return f"{where}: {remedy}{cost}"
    return f"{where}: {_advice(look) or f'avoid the recompile: keep `{guard(look.what)}` true on every call'}"


def _advice(look: Look) -> str:
    return visible(look.advice[:1].lower() + look.advice[1:]) if look.advice else ""
