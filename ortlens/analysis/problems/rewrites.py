"""The user's line as an advice would have it."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tokenize
from typing import TYPE_CHECKING

from ortlens.analysis.problems.advice import REPORTING
from ortlens.analysis.problems.number_uses import statement_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ortlens.analysis.problems.catalogue import Advice

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
    if branch is None or not is_one_truth(branch["condition"]):
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
