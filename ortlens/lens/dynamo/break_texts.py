"""Dynamo's texts about graph breaks and recompiles, taken apart. Pure text in, plain data out.

Source: `format_graph_break_message` in `torch/_dynamo/exc.py`, `log_graph_break` in `torch/_dynamo/symbolic_convert.py` and
`get_guard_fail_reason` in `torch/_dynamo/guards.py`, torch 2.13. The texts are made for people and change between
versions: what is not found stays None, and the first line is always kept as the reason.
"""

from __future__ import annotations

import json
import linecache
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

_AT = re.compile(r"^Graph break in user code at (?P<file>.+):(?P<line>\d+)$", re.MULTILINE)
_GB_ID = re.compile(r"/gb/gb(?P<number>\d{4,})")
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
_EXPLANATION = re.compile(
    r"^(?P<indent> *)Explanation: (?P<text>.*?)(?=\n *Hint: |\n *Developer debug context: |\n\n|\Z)", re.MULTILINE | re.DOTALL
)
_HINT = re.compile(r"^ *Hint: (?P<text>.*?)(?=\n *Hint: |\n *Developer debug context: |\n\n|\Z)", re.MULTILINE | re.DOTALL)
_COMPILE_ID = re.compile(r"(?P<id>(?:!\d+/)?\d+/\d+): ")
_RESUME = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_\d+$")
_WHOLE_FRAME = re.compile(r"Graph break: |WON'T CONVERT ")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Unsupported|Interrupt)\b: \S")
_TENSOR = re.compile(
    r"(?P<subject>tensor '.+?' .*?mismatch(?: at index \d+)?)\. [Ee]xpected (?P<expected>.+?)(?:, actual (?P<actual>.+))?$"
)
_KIND = re.compile(r"expected type of '(?P<name>.+)' to be (?P<expected>[^,]+?),? (?:' )?but found (?P<actual>.+)$")
_IDENTITY = re.compile(r"(?P<check>___check_(?:obj|type)_id)\((?P<of>[^,]+?)(?:, \d+)?\)")
_EQUAL = re.compile(r"(?P<subject>.+?) [=!]= (?P<expected>.+)$")
_SIZES = re.compile(r"[\w.\[\]'\"]+\.size\(\)\[\d+\]")
_CLASS = re.compile(r"type=<class '(?P<name>[^']+)'>")
_REQUIRES_GRAD = re.compile(r"requires_grad=(?P<flag>\w+)")
_USER_CODE = ("User code traceback:", "The graph break occurred in the following user code:")
_PYTHON_TRACEBACK = "\nTraceback (most recent call last):"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakText:
    """What Dynamo said about one graph break.

    Attributes:
        reason: What stopped the graph, in one line.
        gb_id: Id in PyTorch's registry, as `GB0025`, when the text has a link to it.
        explanation: PyTorch's explanation.
        hints: PyTorch's hints.
        file: File of the user line.
        line: Number of that line.
        function: Function that the line is in.
        user_stack: User frames, outermost first, as `file:line function`.
    """

    reason: str
    gb_id: str | None
    explanation: str | None
    hints: tuple[str, ...]
    file: str | None
    line: int | None
    function: str | None
    user_stack: tuple[str, ...]

    def source(self) -> str | None:
        """Text of the user line, when the file can be read."""
        if self.file is None or self.line is None:
            return None
        try:
            return linecache.getline(self.file, self.line).strip() or None
        except ValueError:  # a damaged name, as one with a NUL in it, names no file
            return None


def is_break(text: str) -> bool:
    """Whether a text tells of a graph break, and not of an exception that leads to one.

    Args:
        text: Payload of a `dynamo_graph_break_reason` artifact.

    Returns:
        True for texts that say so, or that explain.
    """
    return "raph break" in text or "WON'T CONVERT" in text or _EXPLANATION.search(text) is not None


def break_from_text(text: str) -> BreakText:
    """Take Dynamo's message about a graph break apart.

    Args:
        text: Payload of a `dynamo_graph_break_reason` artifact.

    Returns:
        Its parts.
    """
    message, _, trace = text.partition(_PYTHON_TRACEBACK)
    frames = _user_frames(message)
    told = trace if _EXPLANATION.search(trace) and not _EXPLANATION.search(message) else message
    explanation = _EXPLANATION.search(told)
    gb_id = _GB_ID.search(told)
    file, line = _place(message, frames)
    return BreakText(
        reason=_raised(trace) if explanation is None and _WHOLE_FRAME.match(message) else _reason(told, explanation),
        gb_id=f"GB{gb_id['number']}" if gb_id else None,
        explanation=_one_line(explanation["text"]) if explanation else None,
        hints=tuple(_one_line(match["text"]) for match in _HINT.finditer(told)),
        file=file,
        line=line,
        function=plain_function(frames[-1][2]) if frames else None,
        user_stack=tuple(f"{frame_file}:{frame_line} {plain_function(name)}" for frame_file, frame_line, name in frames),
    )


def _user_frames(message: str) -> list[tuple[str, int, str]]:
    for heading in _USER_CODE:
        _, found, code = message.partition(heading)
        if found:
            return [(m["file"], int(m["line"]), m["function"]) for m in _FRAME.finditer(code)]
    return []


def _place(message: str, frames: list[tuple[str, int, str]]) -> tuple[str | None, int | None]:
    at = _AT.search(message)
    if at:
        return at["file"], int(at["line"])
    return (frames[-1][0], frames[-1][1]) if frames else (None, None)


def _reason(text: str, explanation: re.Match[str] | None) -> str:
    """The line above the explanation, which names the kind of break; else the first line that says something."""
    if explanation:
        above = text[: explanation.start()].rstrip().splitlines()
        if above:
            return _said(above[-1])
    for line in text.splitlines():
        said = _said(line)
        if said and not _AT.match(line):
            return said
    return "Dynamo gave no reason"


def _said(line: str) -> str:
    """A line without what Dynamo and Python put in front of it."""
    return line.rsplit("Unsupported: ", 1)[-1].removeprefix("Graph Break Reason: ").strip()


def _raised(trace: str) -> str:
    """The exception at the end of a traceback: where a whole frame is skipped, torch 2.9 says nothing else."""
    raised = [line for line in trace.splitlines() if _EXCEPTION.match(line)]
    return _said(raised[-1]) if raised else "Dynamo gave no reason"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def plain_function(name: str) -> str:
    """The user's function behind one that Dynamo made to resume after a break.

    Args:
        name: Name of a code object.

    Returns:
        `f` for `torch_dynamo_resume_in_f_at_16`, any other name as it is.
    """
    match = _RESUME.match(name)
    return match["function"] if match else name


@dataclass(frozen=True, slots=True, kw_only=True)
class RecompileText:
    """What Dynamo said about one recompile.

    Attributes:
        of_compile_id: The compilation whose guard failed, the newest of them; None when the text does not say.
        guard: What was guarded there.
        reason: The full text, one line per earlier compilation.
        values: What the guard expected, in the order of the compilations, and what came last; as far as the text tells them.
    """

    of_compile_id: str | None
    guard: str | None
    reason: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A guard that failed, taken apart.

    Attributes:
        subject: What it is about, the same for every value: `n`, `len(xs)`, `tensor 'x' size mismatch at index 0`.
        expected: What it asked for; None when the text does not say.
        actual: What came; None likewise.
    """

    subject: str
    expected: str | None = None
    actual: str | None = None


class Look(Protocol):
    """Looks up what an expression stands for where a guard failed; None when that cannot be told."""

    def __call__(self, expression: str, *, kind: bool) -> str | None:
        """Give the value as text, or its class when `kind` is said."""


def recompile_from_text(text: str, ours: Collection[str] | None = None, look: Look | None = None) -> RecompileText | None:
    """Take Dynamo's reasons for a recompile apart.

    Dynamo compares with every earlier compilation of the same code, also with those by other backends.

    Args:
        text: Payload of a `recompile_reasons` artifact: one text, or a JSON list with the newest compilation first.
        ours: Ids of the compilations to look at; all when None.
        look: Gives the values that came, which the text often leaves out.

    Returns:
        Its parts, or None when no guard of these compilations failed.
    """
    told = [(_COMPILE_ID.match(reason), reason) for reason in _reasons(text) if "BACKEND_MATCH" not in reason]
    told = [(match, reason) for match, reason in told if ours is None or match is None or match["id"] in ours]
    if not told:
        return None
    lines = [_first_line(reason[match.end() :] if match else reason) for match, reason in told]
    match, _ = told[0]
    return RecompileText(
        of_compile_id=match["id"] if match else None,
        guard=_guard(lines[0]),
        reason="\n".join(reason for _, reason in told),
        values=_values(lines, look),
    )


def _values(lines: list[str], look: Look | None) -> tuple[str, ...]:
    """What the newest guard and its like before it expected, oldest first, then what came; without what is not known."""
    newest = guard_from_line(lines[0])
    alike = [guard for guard in map(guard_from_line, lines) if guard.subject == newest.subject]
    actual = newest.actual
    if actual is None and look is not None:
        of_type = _IDENTITY.match(newest.subject)
        actual = look(of_type["of"], kind=True) if of_type else look(newest.subject, kind=False)
    expected = [guard.expected for guard in reversed(alike)]
    sizes = [f"{size} = {seen}" for size in _SIZES.findall(newest.subject) if look is not None and (seen := look(size, kind=False))]
    known: list[str | None] = [*sizes] or [*expected, actual]
    return tuple(dict.fromkeys(value for value in known if value is not None))


def guard_from_line(line: str) -> Guard:
    """Take one failed guard apart.

    Args:
        line: One line of Dynamo's text, without the compile id.

    Returns:
        Its parts; all of the guard as the subject when its form is not known.
    """
    tensor = _TENSOR.match(line)
    if tensor:
        return Guard(subject=tensor["subject"], **_both(tensor["expected"], tensor["actual"]))
    kind = _KIND.match(line)
    if kind:
        return Guard(subject=f"type of '{kind['name']}'", expected=kind["expected"], actual=kind["actual"])
    guard = _guard(line)
    identity = _IDENTITY.match(guard)
    if identity:
        return Guard(subject=f"{identity['check']}({identity['of']})", expected=_class_of(guard))
    equal = _EQUAL.match(guard)
    if equal and not _SIZES.search(guard):
        return Guard(subject=equal["subject"], expected=equal["expected"])
    return Guard(subject=guard)


def _both(expected: str, actual: str | None) -> dict[str, str | None]:
    """The two sides; of `requires_grad` the text tells one, and the other is its opposite."""
    flag = _REQUIRES_GRAD.fullmatch(expected)
    if flag:
        wanted = flag["flag"] not in ("0", "False")
        return {"expected": f"requires_grad={wanted}", "actual": f"requires_grad={not wanted}"}
    return {"expected": expected, "actual": actual}


def _class_of(guard: str) -> str | None:
    found = _CLASS.search(guard)
    return f"<class '{found['name'].rpartition('.')[2]}'>" if found else None


def _reasons(text: str) -> list[str]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = text
    return [str(item) for item in parsed] if isinstance(parsed, list) else [str(parsed)]


def _first_line(reason: str) -> str:
    return reason.strip().splitlines()[0] if reason.strip() else reason


def _guard(line: str) -> str:
    return line.partition(". expected ")[0].partition("  # ")[0].strip()
