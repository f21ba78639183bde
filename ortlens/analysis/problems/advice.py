"""What to change about a graph break, with what was tried, and about a recompile; and the user's line as an advice would have it."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tokenize
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ortlens.analysis.identity import frame_of
from ortlens.analysis.index import grouped, once
from ortlens.analysis.problems.break_rules import CONFIG, advice_by_rule, is_of_backend
from ortlens.analysis.problems.catalogue import Advice, advise
from ortlens.analysis.problems.guards import advice_for_limit, advice_for_recompile
from ortlens.analysis.problems.number_uses import statement_of
from ortlens.trace.records import Break, Recompile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ortlens.trace.records import Capture, Graph


_Item = TypeVar("_Item", Break, Recompile)
_SETTING = re.compile(r"`(torch\._(?:dynamo|functorch|inductor)\.config\.\w+ = \w+)`")
_NUMBERS = ("keep_in_tensor", "use_torch_math")
REPORTING = ("print_outside", "warn_outside", "log_outside")
_BY_TRAITS = ("keep_in_tensor", "mask_with_where", "call_outside", "call_layer_outside", "mark_dynamic", "compile_dynamic", "one_dtype")
"""Kinds of advice that may be others where the traits of a break or recompile are known."""

_OF_BREAKS = ("remove_break_before", "unbreak_caller", "keep_number_in_tensor")
"""Kinds of advice on a recompile that name a graph break."""


class _Adviser:
    """Advises on the graph breaks and recompiles of a capture, when it is read."""

    def __init__(self, capture: Capture) -> None:
        """Look up the graphs that advice depends on."""
        self._by_id = {graph.compile_id: graph for graph in capture.graphs}
        self._is_whole = not capture.breaks
        self._newest = {frame_of(graph.compile_id): graph for graph in capture.graphs}
        self._steps = _training_steps(capture)
        self._varying = grouped((frame_of(row.compile_id), size) for row in capture.recompiles for size in row.varying)
        # Where a backend failed as well, what it needs is needed besides.
        self._failed = {(item.file, item.line): item for item in capture.breaks if is_of_backend(item)}
        self._optimises_only = all("/torch/optim/" in (graph.file or "").replace("\\", "/") for graph in capture.graphs)

    def __call__(self, item: Break | Recompile) -> Advice | None:
        """Return what to change; None where nothing is known.

        Where the facts for it are gone, because the capture was redacted or is an old one, it is what was stored.
        """
        if isinstance(item, Break):
            frame = next((frame for frame in map(frame_of, item.compile_ids) if frame in self._newest), "")
            stopping = self._failed.get((item.file, item.line), item) if item.refused_reason is None else item
            advice, text = advice_for_break(stopping, self._newest.get(frame), self._varying.get(frame, ())), item.source
            if advice is not None and advice.kind == "move_optimiser_step" and self._by_id and self._optimises_only:
                advice = advise("expected_step")
            is_known = item.stop_source is not None or item.refused_reason is not None
            if _function_of(item) in self._steps:
                return advise("compile_forward_alone")
        else:
            varying = self._varying.get(frame_of(item.compile_id), ())
            advice = advice_for_recompile(item, self._by_id.get(item.compile_id), self._by_id.get(item.of_compile_id), varying)
            text, is_known = item.guard, item.traits is not None
            if self._is_whole and advice is not None and advice.kind in _OF_BREAKS:
                return None
        if is_known or not item.advice or (advice is not None and advice.sentence() == item.advice):
            return advice
        if advice is not None and text is not None and advice.kind not in _BY_TRAITS:
            return advice
        return Advice(kind="stored", params={"text": item.advice}, own_settings=item.settings)


def _training_steps(capture: Capture) -> frozenset[tuple[str | None, str]]:
    """Find the functions that are a whole training step: both the gradients and the optimiser break their graph."""
    kinds = grouped((_function_of(item), advice.kind) for item in capture.breaks if (advice := advice_for_break(item)) is not None)
    return frozenset(
        function for function, own in kinds.items() if "move_optimiser_step" in own and not _GRADIENTS.isdisjoint(own) and function[1]
    )


_GRADIENTS = frozenset({"compute_gradients_outside", "return_detached"})


def _function_of(item: Break) -> tuple[str | None, str]:
    """Return file and name of the function that the line of a break is in, which may call what breaks the graph."""
    return item.file, item.function or ""


@once
def advice_of(capture: Capture) -> dict[Break | Recompile, Advice | None]:
    """Advise on each graph break and recompile of a capture."""
    adviser = _Adviser(capture)
    items: tuple[Break | Recompile, ...] = (*capture.breaks, *capture.recompiles)
    return {item: adviser(item) for item in items}


def advised(capture: Capture) -> Capture:
    """Fill in what to change about graph breaks and recompiles, once: a capture that has it is returned, with all that is known of it."""
    if advised not in capture.memo:
        advice = advice_of(capture)
        breaks = tuple(_with_advice(item, advice[item]) for item in capture.breaks)
        made = replace(capture, breaks=breaks, recompiles=tuple(_with_advice(item, advice[item]) for item in capture.recompiles))
        made.memo[advised] = None  # not itself, which would keep it in memory
        capture.memo[advised] = made
    found: Capture | None = capture.memo[advised]
    return capture if found is None else found


def _with_advice(item: _Item, advice: Advice | None) -> _Item:
    return replace(item, advice=None if advice is None else advice.sentence(), settings=() if advice is None else advice.settings)


def settings_of_hint(hint: str) -> tuple[str, ...]:
    """Find the settings that a hint of PyTorch's names."""
    return tuple(dict.fromkeys(_SETTING.findall(hint)))


def advice_for_break(item: Break, graph: Graph | None = None, varying: Collection[str] = ()) -> Advice | None:
    """Advise how to avoid a graph break; None when the texts do not say enough. `graph` is the newest, `varying` sizes of the function."""
    if item.refused_reason is not None:
        return advice_for_limit(item, graph, varying)
    return _as_tried(item, advice_by_rule(item))


def changes_to_try(item: Break) -> tuple[Advice, ...]:
    """List what might avoid a graph break, in the order in which it is to be tried: the line as advised, then single settings."""
    advice = None if item.refused_reason is not None else advice_by_rule(item)
    hinted = [setting for hint in item.hints for setting in settings_of_hint(hint)]
    settings = dict.fromkeys((*(() if advice is None else advice.settings), *hinted))
    apart = tuple(advise("set_config", setting=setting) for setting in settings if setting.startswith(CONFIG))
    return apart if advice is None else (advice, *apart)


def hint_for(item: Break) -> str:
    """Return the first hint of PyTorch's that may help; empty text where there is none, or what it names was tried in vain."""
    failed = set(item.kept_despite)
    helpful = (hint for hint in item.hints if failed.isdisjoint(settings_of_hint(hint)) and "backend compiler repo" not in hint)
    return next(helpful, "")


def _as_tried(item: Break, advice: Advice | None) -> Advice | None:
    """Take out of an advice what failed when it was tried; a setting that was seen to help precedes a rewrite that was not."""
    is_line = advice is not None and advice.kind in item.removed_by[:1] and advice.kind not in REPORTING
    if advice is not None and (is_line or not set(advice.settings).isdisjoint(item.kept_despite)):
        advice = replace(advice, params={name: value for name, value in advice.params.items() if name not in ("setting", "listed")})
    setting = next((line for line in item.removed_by[:1] if line.startswith(CONFIG)), None)
    if setting is not None and (advice is None or advice.kind not in REPORTING):
        return advise("set_config", setting=setting, tried="setting")
    if advice is None:
        return None
    if advice.kind in item.kept_despite:
        return advise("move_line", number=True) if advice.kind in _NUMBERS else None
    if {advice.kind, *advice.settings}.isdisjoint(item.removed_by):
        return advice
    by = "setting" if set(item.removed_by) & set(advice.settings) else "line"
    return replace(advice, params={**advice.params, "tried": by})


_BRANCH = re.compile(r"^(?:el)?if (?P<condition>.+):$")
_CHOICE = re.compile(r"^(?P<head>return |\w+ = )(?P<yes>.+) if (?P<condition>.+) else (?P<no>.+)$")
_MATH = re.compile(r"\bmath\.(?P<name>\w+)\(")
_CLOCK = re.compile(r"\btime\.(?:time|perf_counter|monotonic|process_time)(?:_ns)?\(\)")
_DEEPCOPY = re.compile(r"\bcopy\.deepcopy\((?P<name>[\w.]+)\)")
_WORDED = re.compile(r"\b(?:and|or|not|is|in)\b")
_BY_WHERE = ("choose_with_where", "keep_answer_in_tensor", "mask_with_where")


def line_after(source: str, advice: Advice | None) -> str | None:
    """Rewrite the user's line as advised, with names that say what to fill in; empty to delete it, None where no rule fits."""
    line = source.strip()
    edited = edited_line(line, advice)
    if advice is None or edited is not None:
        return edited
    branch = _BRANCH.match(_without_comment(line)) if advice.kind in _BY_WHERE else None
    if branch is None or not is_one_truth(branch["condition"]) or "jumps" in advice.params:
        return None
    return f"result = torch.where({branch['condition']}, result_if_true, result_if_false)"


def edited_line(line: str, advice: Advice | None) -> str | None:
    """Rewrite a line as advised where that is complete and runs as it is; otherwise as `line_after`."""
    if line == "torch._dynamo.graph_break()":
        return ""
    if advice is None:
        return None
    if advice.kind in _REWRITES:
        return _REWRITES[advice.kind](line, advice)
    choice = _CHOICE.match(_without_comment(line)) if advice.kind in _BY_WHERE else None
    if choice is None or not is_one_truth(choice["condition"]):
        return None
    return f"{choice['head']}torch.where({choice['condition']}, {choice['yes']}, {choice['no']})"


def _without_comment(line: str) -> str:
    tokens = list[tokenize.TokenInfo]()
    with contextlib.suppress(tokenize.TokenError, SyntaxError):  # of a part of a statement; what was read so far stays
        tokens.extend(tokenize.generate_tokens(io.StringIO(line).readline))
    comment = next((token.start[1] for token in tokens if token.type == tokenize.COMMENT), len(line))
    return line[:comment].rstrip()


def is_one_truth(condition: str) -> bool:
    """Tell whether a condition can be computed for a tensor of truths: Python's words for one of them do not work on it."""
    return _WORDED.search(condition) is None


def chosen_name(statement: ast.stmt) -> str | None:
    """Return the only name that an assignment sets; None for another statement."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def line_to_try(line: str, advice: Advice) -> str | None:
    """Rewrite a line as `edited_line` does; what only reports or reads the clock, and is to be moved elsewhere, is left out of a trial."""
    edited = edited_line(line, advice)
    if advice.kind == "read_clock_around" and _CLOCK.search(line):
        return _CLOCK.sub("0.0", line)
    if edited is None and advice.kind in REPORTING and isinstance(statement_of(line), ast.Expr):
        return ""
    return edited


def _without_call(line: str, call: str | None) -> str | None:
    """Leave out what takes a number, `.item()` or `float()`, where the line has it once; what is left may need its parentheses."""
    if call == ".item()":
        return line.replace(call, "") if line.count(call) == 1 else None
    head = (call or "").removesuffix(")")
    if head not in ("float(", "int(") or line.count(head) != 1:
        return None
    before, _, after = line.partition(head)
    return None if before[-1:].isalnum() or before[-1:] in ("_", ".") else f"{before}({after}"


_REWRITES: Mapping[str, Callable[[str, Advice], str | None]] = {
    "use_torch_math": lambda line, _: _MATH.sub(r"torch.\g<name>(", line),
    "clone_tensors": lambda line, _: _DEEPCOPY.sub(r"\g<name>.clone()", line) if _DEEPCOPY.search(line) else None,
    "keep_in_tensor": lambda line, advice: _without_call(line, advice.params.get("call")),
}
