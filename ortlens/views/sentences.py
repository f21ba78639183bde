"""Sentences that the text and the HTML view share, so that both say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.analysis.answers.overview import explain_calls, graph_rows
from ortlens.analysis.answers.verdict import is_wholly_compared, numbers_of, ort_share, recompiles_by_role
from ortlens.analysis.coverage import coverage_of, is_dry_run, own_recompiles
from ortlens.analysis.onnx_model import SLOW_START_NS, onnx_facts
from ortlens.analysis.placement import provider_shares, short_name
from ortlens.analysis.problems.stream import findings_of
from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.tiles import differences_words, dry_run_end
from ortlens.views.time_sentences import against_words, decode_words, price_of_change, price_text, saving_words
from ortlens.views.wording import REASON_WORDS, guard, place, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.analysis.answers.verdict import NumericsSummary
    from ortlens.analysis.costs import FallbackGroup
    from ortlens.analysis.onnx_model import OnnxFacts
    from ortlens.analysis.problems.problem import Problem
    from ortlens.trace.records import Capture


def title(capture: Capture) -> str:
    """Name the capture, when it has a name, and the backend; of an ONNX model say that it is one, with ONNX Runtime's version."""
    dry = ", dry run" if is_dry_run(capture) else ""
    if (facts := onnx_facts(capture)) is not None:
        what = "running session" if facts.is_watched else "ONNX model"
        with_what = f" in onnxruntime {visible(facts.runtime)}" if facts.runtime else ""
        return f"{visible(capture.name)}: {what}{with_what}{dry}"
    name = f"{visible(capture.name)}: " if capture.name else ""
    return f"{name}torch.compile with backend {visible(capture.backend)}{dry}"


def coverage_sentence(capture: Capture, nothing: str = "nothing") -> str:
    """Say whether the model is in ONNX Runtime, and how much of it, without a full stop."""
    coverage = coverage_of(capture)
    nodes, share = counted(coverage.part[1], "operator"), percent(coverage.share or 0.0)
    if coverage.verdict in ("part", "compiled", "whole"):
        return _how_much(capture, nodes, share)
    if coverage.verdict == "empty":
        if coverage.is_cut_short:
            return f"unknown: {_dry_run_end(capture)}, before the first graph was complete"
        unable = f"{nothing}: PyTorch could not compile the function, and ran it as it is"
        if coverage.break_count:
            return unable
        explained = any(explain_calls(capture))
        return f"{nothing}: PyTorch compiled no code of the function" if explained else "nothing was compiled while the lens was recording"
    return {
        "foreign": f"{nothing}: the backend is {visible(capture.backend)}; ortlens only recorded it",
        "no_compute": "nothing to run: the graphs hold no operators",
        "none": f"{nothing}: PyTorch runs {'the only operator' if coverage.part[1] == 1 else f'all {nodes}'}",
    }[coverage.verdict]


def empty_sentence(capture: Capture) -> str:
    """Say what to do where nothing was compiled and no graph break is known."""
    called, remedy = "call the compiled function while the lens is recording; ", "`torch.compiler.reset()` clears that"
    if any(explain_calls(capture)):
        called, remedy = "", "call `torch.compiler.reset()`, then explain again"
    return (
        f"{called}a function without operators of PyTorch compiles to nothing, and so does code on which PyTorch gave up earlier in this "
        f"process: {remedy}"
    )


def _how_much(capture: Capture, nodes: str, share: str) -> str:
    coverage = coverage_of(capture)
    in_ort, whole = coverage.part
    if coverage.verdict == "whole":
        return f"everything: {nodes if whole == 1 else f'all {nodes}'} ({share})"
    part = f"{in_ort:,} of {nodes}" if coverage.verdict == "part" else "the only operator" if whole == 1 else f"all {nodes}"
    of = " of the compiled code" if coverage.is_partial_view else ""
    outside = outside_sentence(capture)
    return f"{part} ({share}){of}{'; ' if outside else ''}{outside}"


def outside_sentence(capture: Capture) -> str:
    """Say what is not in the compiled code that the coverage counts, with its share of time where a call was measured.

    Empty if nothing is known to be outside.
    """
    coverage, parts = coverage_of(capture), []
    if coverage.is_cut_short:
        parts.append(f"{_dry_run_end(capture)}, and what follows is unknown")
    elif coverage.operator_count is not None:
        left = coverage.operator_count - coverage.compiled_operator_count
        parts += [f"PyTorch runs {left:,} outside of compiled code"] if left else []
    elif coverage.break_count:
        parts.append(f"{counted(coverage.break_count, 'graph break leaves', 'graph breaks leave')} code outside it")
    if coverage.foreign_graph_count:
        parts.append(f"{counted(coverage.foreign_graph_count, 'graph runs', 'graphs run')} in another backend")
    share = ort_share(capture)
    if parts and share is not None:
        parts.append(f"{percent(share)} of a call's time is in ONNX Runtime")
    return "; ".join(parts)


def _dry_run_end(capture: Capture) -> str:
    return f"the dry run ended{dry_run_end(capture)}, where the model needs the values of a tensor"


def dry_run_sentence(capture: Capture) -> str:
    """Say what must be said first where nothing was run, to follow "Dry run"; empty where something was run."""
    if not is_dry_run(capture):
        return ""
    rules = next(
        (f"; {visible(each.title)}. {visible(each.hazard).rstrip('.')}" for each in capture.findings if each.rule == "provider_rules"), ""
    )
    if onnx_facts(capture) is not None:
        return f"of a model that was read, its types and shapes inferred; nothing was run{rules}"
    end = f"; {_dry_run_end(capture)}, and what follows is unknown" if coverage_of(capture).is_cut_short else ""
    planned = f", planned for {' and '.join(map(visible, capture.figures.planned_for))}" if capture.figures.planned_for else ""
    without = "".join(f"; {_WITHOUT_GPU[name]}" for name in capture.figures.planned_without if name in _WITHOUT_GPU)
    return f"with fake tensors{planned}: nothing was run, and what ONNX Runtime would run is a plan{without}{end}{rules}"


_WITHOUT_GPU = {
    "gradients": "inference only, as there is no GPU here",
    "attention": "on a GPU, PyTorch may choose another operator for attention",
}


def verdict_sentence(capture: Capture) -> str:
    """Sum the whole capture up in one sentence without a full stop."""
    coverage = coverage_of(capture)
    if onnx_facts(capture) is not None:
        return _onnx_verdict(capture)
    if coverage.verdict in ("empty", "foreign", "no_compute", "none"):
        said = coverage_sentence(capture, nothing="nothing runs in ONNX Runtime")
        pace = against_words(capture) if coverage.verdict == "none" else ""
        return f"{said}, {pace}" if pace else said
    partitions, numbers = counted(coverage.partition_count, "partition"), numbers_of(capture)
    counted_code = "the compiled code" if coverage.is_partial_view else "the model"
    runs = "would run" if is_dry_run(capture) else "runs"
    facts = [f"{percent(coverage.share or 0.0)} of {counted_code} {runs} in ONNX Runtime", f"in {partitions}"]
    facts += [f"none of it on {visible(short_name(first.provider))}" for first in provider_shares(capture)[:1] if not first.nodes]
    facts += [counted(len(capture.breaks), "graph break")] if capture.breaks else ["no graph break"]
    share = ort_share(capture)
    in_ort = f"{percent(share)} of a call's time in ONNX Runtime" if coverage.is_partial_view and share is not None else ""
    facts += filter(None, (against_words(capture), decode_words(capture), in_ort, recompiles_sentence(capture)))
    slower = [finding for finding in findings_of(capture) if finding.rule == "slower_than_torch" and finding.severity == "warning"]
    facts += [f"{time_from_ns(sum(finding.gain_ns or 0 for finding in slower))} of a call lost where PyTorch is faster"] if slower else []
    facts += _numbers(capture, numbers)
    cut = f", cut short{dry_run_end(capture)}; until there" if coverage.is_cut_short else ""
    dry = f"dry run{cut}: " if is_dry_run(capture) else ""
    said = dry + ", ".join([" ".join(facts[:2]), *facts[2:]])
    return f"wrong results: {call_sentence(numbers)}; {said}" if numbers is not None and wrong_sentence(numbers) else said


def _onnx_verdict(capture: Capture) -> str:
    numbers = numbers_of(capture)
    answers = [text for label, text in onnx_answers(capture) if label in ("Model", "Runs on", "Time per call")]
    said = "; ".join(filter(None, (*answers, decode_words(capture))))
    said = f"dry run: {said}" if is_dry_run(capture) else said
    if wrong := wrong_sentence(numbers):
        return f"wrong results: {wrong}; {said}"
    return "; ".join([said, *_numbers(capture, numbers)])


def _numbers(capture: Capture, numbers: NumericsSummary | None) -> list[str]:
    """Say whether the numbers of the partitions that run now are right; what was never compared must not pass for right."""
    if numbers is None or wrong_sentence(numbers):
        return []
    if numbers.wrong:
        return [f"{counted(numbers.wrong, 'value')} out of tolerance"]
    if not numbers.right_in_all:
        return []
    if undecided_sentence(numbers):
        return ["results differ without a verdict"]
    return [f"results match {visible(numbers.against)}{'' if is_wholly_compared(capture, numbers) else ' where compared'}"]


def partitions_sentence(capture: Capture) -> str:
    """Say how many partitions there are, in how many graphs, to follow "Partitions:".

    Other versions of recompiled graphs are not counted, but mentioned.
    """
    current = [row for row in graph_rows(capture) if row.is_current]
    apart = ", forward and backward counted separately" if any(row.graph.phase == "backward" for row in current) else ""
    roles = [role for role in ("encode", "prefill", "decode") if any(row.graph.role == role for row in current)]
    apart += f", {', '.join(roles[:-1])} and {roles[-1]}" if len(roles) > 1 else f", {roles[0]}" if roles else ""
    graphs = counted(coverage_of(capture).graph_count or len(current), "graph") + apart + _other_versions(capture)
    count = coverage_of(capture).partition_count
    return f"{count:,}, in {graphs}{_whole(capture)}" if count else f"none, in {graphs}"


def _other_versions(capture: Capture) -> str:
    replaced = [row.graph.role for row in graph_rows(capture) if not row.is_current and not row.graph.only_verified]
    if not replaced:
        return ""
    roles = f" of {' and '.join(dict.fromkeys(map(str, replaced)))}" if None not in replaced else ""
    return f" (and {counted(len(replaced), 'other version')}{roles}{', see recompiles' if own_recompiles(capture) else ''})"


def recompiles_sentence(capture: Capture) -> str:
    """Say how often code was compiled again: `2 recompiles`, or `1 recompile of decode`; empty without any."""
    counts = recompiles_by_role(capture).items()
    return " and ".join(counted(count, "recompile") + (f" of {role}" if role else "") for role, count in counts)


def _whole(capture: Capture) -> str:
    coverage = coverage_of(capture)
    if not coverage.whole_graph_count:
        return ""
    if coverage.whole_graph_count < coverage.graph_count:
        return f"; {counted(coverage.whole_graph_count, 'graph runs', 'graphs run')} as a single partition"
    return "; it covers the whole graph" if coverage.graph_count == 1 else "; each covers a whole graph"


def numbers_sentence(numbers: NumericsSummary) -> str:
    """Say whether the numbers are those of PyTorch: how many were compared, what is wrong first, what was not compared and why."""
    call = [call_sentence(numbers)] if numbers.call is not None else []
    if not numbers.compared and not numbers.unchecked and call:
        return call[0]
    what = (
        counted(numbers.compared, "operator on its own", "operators one by one") if numbers.per_op else counted(numbers.compared, "value")
    )
    of_call = numbers.call.right + len(numbers.call.wrong) if numbers.call is not None else 0  # the tiles count them, too
    besides = f"{counted(of_call, 'value')} of the call and " if of_call else ""
    parts = [*call, f"{besides}{what} of {counted(numbers.partitions, 'partition')} compared with {visible(numbers.against)}"]
    if numbers.wrong:
        first = numbers.first
        where = "" if first is None else f", first at {visible(first.node)} ({place(first.file, first.line)})"
        parts.append(f"{numbers.wrong:,} out of tolerance{where}")
    elif numbers.compared:
        but = f" but {numbers.beyond:,}, for the reason in `numerics.note`" if numbers.beyond else ""
        parts.append(f"all within tolerance{but}" if numbers.is_right else _NONE_INSIDE)
    if numbers.origins:
        parts.append(f"NaN or Inf first appears at {visible(numbers.origins[0].node)}")
    if numbers.unchecked:
        why, is_open, count = numbers.unchecked[0]
        others = sum(more for *_, more in numbers.unchecked[1:])
        parts.append(f"{count:,} {_without_verdict(why, is_open=is_open)}" + (f" and {others:,} for other reasons" if others else ""))
    if numbers.eager_nodes:
        parts.append(f"{counted(numbers.eager_nodes, 'node')} in PyTorch, not compared")
    if numbers.compared and not numbers.wrong and numbers.largest is not None:
        parts.append(f"the largest differences are {differences_words(numbers.largest)}")
    return "; ".join(parts)


_NONE_INSIDE = "no value inside a partition differs"


def call_sentence(numbers: NumericsSummary) -> str:
    """Say whether the call as a whole gives what PyTorch, or another model, gives; `numbers` must have a verdict on it."""
    call, against = numbers.call, visible(numbers.against)
    if call is None:
        return ""
    if call.wrong:
        first = call.wrong[0]
        more = f" and {counted(len(call.wrong) - 1, 'more part')} of the call" if len(call.wrong) > 1 else ""
        where = f" ({place(first.file, first.line)})" if first.file else ""
        return f"{visible(first.node)}{more} {'differ' if more else 'differs'} from {against}'s{where}"
    if not call.right:
        ratio = "" if call.sqnr_db is None else f", an SQNR of {call.sqnr_db:.1f} dB"
        how = f"differs from {against}'s by up to {call.undecided:.1e}{ratio}" if call.undecided else "was compared"
        if call.is_open:
            return f"the call as a whole {how}, {_without_verdict(call.why, is_open=True)}"
        return f"the call as a whole was not compared ({visible(call.why)})"
    return f"the call gives what {against} gives{', as far as compared' if call.unchecked else ''}"


def _without_verdict(why: str, *, is_open: bool) -> str:
    """Tell apart values that differ where PyTorch leaves the answer open, which were compared, and those that were not."""
    return f"{'without a verdict' if is_open else 'not compared'} ({visible(why)})"


def undecided_sentence(numbers: NumericsSummary | None) -> str:
    """Say how much the results differ where nobody can say whether they are wrong, and why; empty elsewhere."""
    return call_sentence(numbers) if numbers is not None and numbers.is_undecided else ""


def wrong_sentence(numbers: NumericsSummary | None) -> str:
    """Say what differs, and where it comes from, in red on the first screen; empty when the call as a whole does not differ."""
    if numbers is None or numbers.call is None or not numbers.call.wrong:
        return ""
    if numbers.first is not None:
        inside = f"the first wrong value inside is {visible(numbers.first.node)} ({place(numbers.first.file, numbers.first.line)})"
    elif numbers.wrong:
        inside = f"{counted(numbers.wrong, 'value')} inside {'differs' if numbers.wrong == 1 else 'differ'}, too"
    elif numbers.compared:
        inside = f"{_NONE_INSIDE}, so the fault is in the code around the partitions"
    else:
        inside = "no value inside a partition was compared"
    return f"{call_sentence(numbers)}; {inside}"


def reason_words(group: FallbackGroup) -> str:
    """Say why this stays in PyTorch: the recorded reason, or the meaning of its code where none was recorded."""
    return visible(group.reason) or REASON_WORDS[group.reason_code]


def finding_sentence(finding: Problem) -> str:
    """Say what was found, and what mending it would save."""
    return visible(finding.title) + saving_words(finding)


def problem_sentence(item: Problem) -> str:
    """Say what to look at, and what it would change."""
    at = f"{where}: " if (where := problem_place(item)) else ""
    if item.kind == "break" and item.gain_ns is not None:
        price = price_of_change(item.gain_ns, is_busy=item.is_busy)
    else:
        price = _price(item)
        if item.kind == "break" and item.cost_ns:  # of which the change that removes it may take some itself
            price = f"the break costs {price}"
    cost = f" ({price})" if price else ""
    saving = saving_words(item)
    todo = visible(item.first_step[:1].lower() + item.first_step[1:])
    if item.index is not None:
        return (at if item.file else "") + visible(item.title) + saving + (f"; {todo}" if todo else "")
    if item.kind == "break":
        at += f"{visible(item.title)}; " if "function" in item.traits else ""
        return f"{at}{todo or 'remove the graph break, or rewrite the line as the reason suggests'}{cost}"
    if item.reason_code is not None:
        is_kept = item.advice is not None and item.advice.kind == "policy"  # for a reason, which says more
        todo = visible(item.hazard) if is_kept and item.hazard else todo
        if item.kind == "nothing_runs":
            return f"{at}nothing runs in ONNX Runtime: {todo}; {'so' if is_kept else 'otherwise'} leave the function uncompiled{saving}"
        return f"{at}{todo}{cost}"
    spent = (
        f" ({counted(item.count, 'recompile')}, {time_from_ns(item.recompile_ns)} in all)" if item.recompile_ns and item.count > 1 else ""
    )
    return f"{at}{todo or f'avoid the recompile: keep what `{guard(item.title)}` checks the same'}{spent}"


def _price(item: Problem) -> str:
    takes = "takes " if item.kind == "fallback" else ""  # which is no gain: it would take something elsewhere, too
    splitting = 0 if item.advice is not None and "cost" in item.advice.params else item.splitting_ns  # which names it
    return price_text(item.cost_ns, item.own_code_ns, splitting, form=f"{takes}{{}} per {item.per}", is_busy=item.is_busy)


def consequence_sentences(item: Problem) -> list[str]:
    """Say what else has the cause of a problem, and what to do about it; what nothing can be done about is left out."""
    return [_consequence(each) for each in item.consequences if each.first_step]


def _consequence(item: Problem) -> str:
    todo = visible(item.first_step[:1].lower() + item.first_step[1:])
    if item.kind == "slower":  # that the same is faster in PyTorch was measured
        return f"or {todo}{saving_words(item)}; {visible(item.title)}"
    if item.kind == "fallback":
        price = _price(item)
        return f"also: {visible(item.title)} stays in PyTorch{f' ({price})' if price else ''}; {todo}"
    return f"also: {finding_sentence(item)}; {todo}"


def problem_place(item: Problem) -> str:
    """Say where a problem is: `model.py:12 and 3 other lines` that need the same change, or a module; empty if unknown."""
    at = place(item.file, item.line, item.module) if item.file or item.module else ""
    return f"{at} and {counted(item.other_lines, 'other line')}" if at and item.other_lines else at


MAX_PROBLEMS = 3
"""Problems on a first screen."""

_OPS = 4  # operators of an ONNX model that a sentence names
_GIGA = 1e9


def onnx_answers(capture: Capture) -> Iterator[tuple[str, str]]:
    """Yield labels and sentences about an ONNX model, without full stops, in order; what is not known is left out."""
    facts = onnx_facts(capture)
    if facts is None:
        return
    yield "Model", _model(facts)
    if facts.inputs:
        yield "Inputs", visible(facts.inputs) + (f" ({visible(facts.inputs_made)})" if facts.inputs_made else "")
    if facts.providers or capture.placements:
        yield "Runs on", _placement(facts, providers_sentence(capture)) if facts.providers else providers_sentence(capture)
    if facts.optimized_node_count is not None:
        yield "Optimiser", _optimiser(facts)
    if facts.p50_ns is not None:
        yield "Time per call", _call(facts)
    if facts.kernel_shares:
        left = facts.kernel_shares[_OPS:]
        rest = f" of the kernel time, {counted(len(left), 'more operator')} {percent(sum(share for _, share in left))}" if left else ""
        yield "Kernels", ", ".join(f"{visible(op)} {percent(share)}" for op, share in facts.kernel_shares[:_OPS]) + rest
    if facts.create_ns is not None:
        held = f"; {size_from_bytes(facts.held_bytes)} of heap" if facts.held_bytes else ""
        parts = ", ".join(f"{name} {percent(ns / sum(facts.start.values()))}" for name, ns in facts.start.items())
        yield "Load time", f"{time_from_ns(facts.create_ns)}{held}{f': {parts}' if parts and facts.create_ns >= SLOW_START_NS else ''}"


def _model(facts: OnnxFacts) -> str:
    if not facts.node_count and facts.opset is None:
        return "its structure is not known: neither its file nor its bytes are at hand"
    ops = ", ".join(f"{count:,} {visible(op)}" for op, count in facts.ops[:_OPS])
    more = f" and {counted(len(facts.ops) - _OPS, 'more operator')}" if len(facts.ops) > _OPS else ""
    parts = [f"{counted(facts.node_count, 'node')}{f': {ops}{more}' if ops else ''}"]
    parts += [f"{size_from_bytes(facts.weight_bytes)} of weights"] if facts.weight_bytes else []
    parts += [f"operator set {facts.opset}"] if facts.opset is not None else []
    parts += [f"made by {visible(facts.producer)}"] if facts.producer not in ("", "not recorded") else []
    return "; ".join(parts)


def providers_sentence(capture: Capture) -> str:
    """Say what each execution provider runs: `ggml: 11 of 12 nodes in 1 piece; CPU: 1 (Asinh)`; nothing for the CPU alone."""
    shares = provider_shares(capture)
    whole = sum(share.nodes for share in shares)
    said = []
    for share in shares:
        name, ops = visible(short_name(share.provider)), ", ".join(visible(op) for op, _ in share.ops[:_OPS])
        if share is shares[0]:
            pieces = f" in {counted(share.pieces, 'piece')}" if share.nodes else ""
            said.append(f"{name}: {share.nodes:,} of {counted(whole, 'node')}{pieces}")
        elif share.nodes:
            more = " and others" if len(share.ops) > _OPS else ""
            said.append(f"{name}: {share.nodes:,}{f' ({ops}{more})' if ops and shares[0].nodes else ''}")
    return "; ".join(said)


def _placement(facts: OnnxFacts, providers: str) -> str:
    first = facts.providers[0]
    threads = (
        "" if facts.threads is None else f"; {counted(facts.threads, 'thread')}" if facts.threads else "; one thread per physical core"
    )
    if len(facts.providers) == 1:
        return f"{visible(first)}, all nodes{threads}"
    counts = ", ".join(f"{counted(count, 'node')} on {visible(provider)}" for provider, count in facts.placed)  # of a session not of ours
    said = providers or counts or f"{', '.join(map(visible, facts.providers))}; which node runs where is known after profile()"
    why = f"; {visible(facts.strayed[0][0])} ({counted(facts.strayed[0][1], 'node')})" if facts.strayed else ""
    copies = f"; {counted(facts.copies, 'copy', 'copies')} between providers" if facts.copies else ""
    return f"{said}{why}{copies}{threads}"


def _optimiser(facts: OnnxFacts) -> str:
    words = {"fused": "fused", "changed": "replaced by another operator", "inserted": "inserted", "gone": "removed or folded"}
    done = ", ".join(f"{facts.changes[kind]:,} {word}" for kind, word in words.items() if facts.changes.get(kind))
    return f"{counted(facts.node_count, 'node')} became {facts.optimized_node_count:,}" + (f": {done}" if done else "")


def _call(facts: OnnxFacts) -> str:
    taken = time_from_ns(facts.p50_ns or 0)
    how = "one call" if facts.calls == 1 else f"median of {facts.calls:,} calls"
    rate = facts.flops / facts.p50_ns if facts.p50_ns else 0.0  # operations per ns are giga per second
    speed = f"; {facts.flops / _GIGA:.3g} GFLOP, {rate:.3g} GFLOP/s" if facts.flops >= _GIGA / 1000 else ""
    return f"{taken} ({how}{speed})"
