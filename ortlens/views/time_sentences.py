"""Sentences about time: what a call, a generation, a break or a finding takes, how that was found, and how it compares with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.analysis.answers.overview import explain_calls
from ortlens.analysis.generation import generation_of
from ortlens.analysis.ledger import measured_call
from ortlens.analysis.speed import call_pace, is_busy, is_crowded, others_of, spread_of
from ortlens.analysis.timing import call_times
from ortlens.units import counted, percent, size_from_bytes, time_from_ns, times
from ortlens.views.tiles import dropped_words, pace_words, passes_words
from ortlens.views.wording import PART_WORDS, foreign_words, visible

if TYPE_CHECKING:
    from ortlens.analysis.generation import Cache
    from ortlens.analysis.problems.problem import Problem
    from ortlens.analysis.timing import CallTime
    from ortlens.trace.records import Capture, Step

_LEAST_SHARE = 1e-4


def ledger_sentence(capture: Capture) -> str:
    """Say where the wall time of a measured call goes, in percent; empty where none was measured."""
    ledger = measured_call(capture)
    if ledger is None:
        return ""
    words = {**PART_WORDS, "foreign": foreign_words(capture)}
    shares = dict(ledger.share)
    parts = []
    if python := generate_ns(capture):  # in what the ledger books as PyTorch and Python between graphs
        shares["eager"] -= python / ledger.total_ns
        words = {**words, "eager": "PyTorch and Python of the model"}
        parts = [f"{percent(python / ledger.total_ns)} Python of generate"]
    parts += [f"{percent(shares[part])} {name}" for part, name in words.items() if ledger.ns.get(part) and shares[part] >= _LEAST_SHARE]
    called = next((call.function for call in call_times(capture) if set(ledger.graph_ids).intersection(call.graph_ids)), None)
    of = f" ({visible(called)})" if called and len(call_times(capture)) > 1 else ""
    return f"{time_from_ns(ledger.total_ns)}{of}: {', '.join(parts)}"


def against_words(capture: Capture) -> str:
    """Compare a call with one in eager PyTorch; empty where not both were measured."""
    pace = call_pace(capture)
    if pace is None:
        return ""
    if is_crowded(capture):
        return f"eager takes {time_from_ns(pace.eager_ns or 0)}, measured in turns, while threads waited for cores"
    if pace.verdict == "unclear":
        return f"eager takes {time_from_ns(pace.eager_ns or 0)}, but {passes_words(pace)}"
    return f"{pace_words(pace)} eager"


def against_sentence(capture: Capture) -> str:
    """Say the same, with the time of the other call."""
    pace, words = call_pace(capture), against_words(capture)
    if pace is None or is_crowded(capture) or pace.verdict == "unclear":
        return words
    rough = passes_words(pace) if pace.is_rough else ""
    return "; ".join(filter(None, (f"{words}: {time_from_ns(pace.eager_ns or 0)} there, measured in turns", rough, dropped_words(capture))))


def busy_sentence(capture: Capture) -> str:
    """Warn when other processes had the cores, or calls differ so much that other work must have run beside them; else empty."""
    others, spread = others_of(capture), spread_of(capture)
    if others is not None:
        return f"the machine was busy: other processes had {others:.1f} of its cores, and none was idle"
    if spread is None or not is_busy(capture):
        return ""
    return f"the machine was busy: half of the calls took {times(spread)} as long as the shortest, or longer"


def per_call_sentences(capture: Capture) -> list[str]:
    """Return everything that is said about the time of a call, in order; empty when no call was seen."""
    said = (
        ledger_sentence(capture),
        against_sentence(capture),
        busy_sentence(capture),
        *call_sentences(capture),
        made_sentence(capture),
    )
    return [sentence for sentence in said if sentence]


def made_sentence(capture: Capture) -> str:
    """Say how often `explain` called the function; empty where it did so once, or something else called it.

    What the function changes besides its result changed as often.
    """
    compiled, plain = explain_calls(capture)
    if compiled + plain <= 1:
        return ""
    of = f", {plain:,} of them eager" if plain else ""
    of += f", and once on each of {inputs - 1:,} further inputs" if (inputs := capture.figures.explain_inputs) else ""
    return f"explain called it {compiled + plain:,} times to compile and measure{of}; calls=1 calls it once"


def call_sentences(capture: Capture) -> list[str]:
    """Say what a call takes where none was measured as a whole, or of other functions; empty when no call was seen."""
    ledger = measured_call(capture)
    measured = set() if ledger is None else set(ledger.graph_ids)
    return [_call_sentence(call, capture) for call in call_times(capture) if not measured.intersection(call.graph_ids)]


def _call_sentence(call: CallTime, capture: Capture) -> str:
    parts = (
        ("ONNX Runtime", call.ort_ns),
        ("PyTorch operators", call.eager_ns),
        (foreign_words(capture), call.foreign_ns),
    )
    split = " + ".join(f"{time_from_ns(ns)} {name}" for name, ns in parts if ns)
    named = f"{visible(call.function or 'unnamed function')}: " if len(call_times(capture)) > 1 else ""
    return f"{named}{split or '0 ns'} ({average_words(call)}, Python excluded)"


def average_words(call: CallTime) -> str:
    """Say over what a time per call is taken: `median of 20 calls`. Of nodes that PyTorch runs only sums are recorded."""
    what = ("call", "calls") if call.is_call else ("run of compiled code", "runs of compiled code")
    if call.calls == 1:
        return f"measured in one {what[0]}"
    return f"median of {counted(call.calls, *what)}" + ("; PyTorch operators: mean" if call.eager_ns else "")


def generation_sentences(capture: Capture) -> list[str]:
    """Describe how tokens are generated: prefill, decode, the Python around the model, the cache; empty where none was seen."""
    found = generation_of(capture)
    if found is None:
        return []
    said = [*_first_token_sentence(capture), *(_step_sentence(step, capture) for step in found.steps)]
    if not found.steps:
        inside = "ONNX Runtime and PyTorch" if capture.backend == "ortlens" else foreign_words(capture)
        said = [f"{role}: {counted(count, 'call')}, {time_from_ns(mean)} each in {inside}" for role, (count, mean) in found.entries.items()]
        said.append("for tokens per second, and Python around the model, explain `model.generate`")
    return [*said, *([_cache_sentence(found.cache)] if found.cache is not None else [])]


def _first_token_sentence(capture: Capture) -> list[str]:
    """Say how many tokens a second come out of all of it, and when the first does; nothing where that was not measured."""
    first, decode = capture.figures.first_token_ns, next((step for step in capture.steps if step.role == "decode" and step.calls), None)
    if first is None or decode is None:
        return []
    whole, tokens = sum(step.ns for step in capture.steps), decode.tokens * (1 + 1 / decode.calls)  # the first is of the prefill
    said = f"{counted(tokens, 'token')} in {time_from_ns(whole)}, {tokens / max(whole, 1) * 1e9:,.0f} tokens/s"
    return [f"{said}; the first after {time_from_ns(first)}"]


def generate_ns(capture: Capture) -> int:
    """Return ns per call in the Python of `generate`, at most what the ledger has for Python; 0 where nothing was generated."""
    ledger = measured_call(capture)
    python = next((step.ns for step in capture.steps if step.role == "python"), 0)
    return min(python, ledger.ns.get("eager", 0)) if ledger is not None else 0


def _step_sentence(step: Step, capture: Capture) -> str:
    plain = step.uncompiled_ns
    if step.role == "python":
        share = percent(step.ns / max(sum(other.ns for other in capture.steps), 1))
        without = f" (eager {time_from_ns(plain)})" if plain is not None else ""
        return f"Python of generate around the model: {time_from_ns(step.ns)}, {share} of a call{without}"
    many = counted(step.calls, "step") if step.role == "decode" else counted(step.tokens, _unit(step))
    each = f" of {time_from_ns(step.ns / step.calls)}" if step.role == "decode" and step.calls else f" in {time_from_ns(step.ns)}"
    return f"{step.role}: {many}{each}, {_rates(step)}"


def _unit(step: Step) -> str:
    return "position" if step.role == "encode" else "token"  # of a text or of sound


def _rates(step: Step) -> str:
    """Format tokens per second, as compiled and, where it was measured, in eager PyTorch."""
    rate, plain = (f"{step.tokens / max(ns or 0, 1) * 1e9:,.0f}" for ns in (step.ns, step.uncompiled_ns))
    return f"{rate} {_unit(step)}s/s" + (f" (eager {plain})" if step.uncompiled_ns else "")


def _cache_sentence(cache: Cache) -> str:
    whole, new = size_from_bytes(cache.taken_bytes), size_from_bytes(cache.new_bytes)
    if cache.is_growing:
        sizes = "at the sizes compiled for" if cache.node is not None else "in the last step"
        return f"cache: each decode step copies all of it, {whole} {sizes}, to append {new}"
    if cache.is_recomputed:
        return f"state: {whole}, computed anew by each decode step"
    if cache.copied_bytes:
        return f"cache: each decode step copies {size_from_bytes(cache.copied_bytes)} of {whole} to write {new}"
    return f"cache: each decode step writes {new} of {whole} in place, and copies nothing"


def decode_words(capture: Capture) -> str:
    """Say how fast decoding is, with PyTorch's figure if there is one; empty where it was not measured."""
    step = next((step for step in capture.steps if step.role == "decode"), None)
    return "" if step is None else f"decode {_rates(step)}"


def trial_words(row: Any) -> str:  # noqa: ANN401 - of the frame of `ortlens.tune`
    """Say how long a call takes with a setting, and whether its results are PyTorch's; or why that was not measured."""
    if row.status != "ok":
        return str(row.note)
    return f"{row.ratio:.2f} times as long, results {'match PyTorch' if row.verified else 'differ'}"


def gain_words(finding: Problem) -> str:
    """Say what mending something would save per call: `at most 1.20 ms, measured`; empty when nothing is known to be saved."""
    if not finding.gain_ns:
        return NO_MORE if finding.at_most else ""
    return f"{amount_words(finding)}, {_how(is_measured=finding.measured, is_busy=finding.is_busy)}"


NO_MORE = "nothing beyond the gains of other findings"
"""What a finding saves whose part of the call others are about, too."""


def amount_words(finding: Problem) -> str:
    """Format a gain, and how exact it is: `1.20 ms`, `at most 1.20 ms` or `about 1.20 ms`."""
    return f"{'at most ' if finding.at_most else '' if finding.measured else 'about '}{time_from_ns(finding.gain_ns or 0)}"


def saving_words(finding: Problem) -> str:
    """Say what a change would save, in a clause that begins with a semicolon; empty when nothing is known to be saved."""
    if not finding.gain_ns:
        return f"; saves {NO_MORE}" if finding.at_most else ""
    said = f"{'saves' if finding.measured else 'would save'} {amount_words(finding)}"
    return f"; {said} per {finding.per}, {_how(is_measured=finding.measured, is_busy=finding.is_busy)}"


def price_text(price: int | None, own: int, splitting: int = 0, *, form: str = "{} per call", is_busy: bool) -> str:
    """Say what something between graphs costs, or an operator in PyTorch takes; empty where nothing was measured.

    Times are ns, written as in `form`: `own` of the program's own code there, which stays, `splitting` to enter ONNX Runtime again.
    """
    if price is None:
        return ""
    entering = f"; about {time_from_ns(splitting)} to enter ONNX Runtime again" if splitting else ""
    if own and not price:
        how = _how(is_measured=True, is_busy=is_busy)
        return f"nothing for the break itself; {time_from_ns(own)} of PyTorch and Python between the graphs, {how}{entering}"
    if not price:
        return f"no time {_how(is_measured=True, is_busy=is_busy)}{entering}"
    return f"{form.format(time_from_ns(price))}{besides(price, own)}, {_how(is_measured=True, is_busy=is_busy)}{entering}"


def price_of_change(saved: int, *, is_busy: bool) -> str:
    """Say what a change that was timed saves per call, in ns."""
    amount = f"{time_from_ns(saved)} per call" if saved else "no time"
    return f"saves {amount}, {_how(is_measured=True, is_busy=is_busy)} with and without it"


def besides(price: int, own: int) -> str:
    """Name the program's own code between graphs, after a comma, where it takes more than `price`; else empty."""
    return f", besides {time_from_ns(own)} of PyTorch and Python between the graphs" if own > price else ""


def _how(*, is_measured: bool, is_busy: bool) -> str:
    return ("measured" if is_measured else "estimated") + (" on a busy machine" if is_busy else "")
