"""Parses Dynamo's texts about graph breaks and recompiles into plain data, and looks up values that they omit.

Source: `format_graph_break_message` in `torch/_dynamo/exc.py`, `log_graph_break` in `torch/_dynamo/symbolic_convert.py` and
`get_guard_fail_reason` in `torch/_dynamo/guards.py`, torch 2.13. The texts are written for people and change between
versions: a field that is not found stays None, and the first line is always kept as the reason. They contain the value that a guard
expected, but often not the actual one: that is read from the frame in which the guard failed.
"""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import re
import types
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from ortlens.analysis.identity import plain_function
from ortlens.analysis.problems.number_uses import Flow, flow_from
from ortlens.backend.basis.provenance import StackFrame

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ortlens.trace.records import FrameCause

_AT = re.compile(r"^Graph break in user code at (?P<file>.+):(?P<line>\d+)$", re.MULTILINE)
_GB_ID = re.compile(r"/gb/gb(?P<number>\d{4,})")
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
_EXPLANATION = re.compile(
    r"^(?P<indent> *)Explanation: (?P<text>.*?)(?=\n *Hint: |\n *Developer debug context: |\n\n|\Z)", re.MULTILINE | re.DOTALL
)
_HINT = re.compile(r"^ *Hint: (?P<text>.*?)(?=\n *Hint: |\n *Developer debug context: |\n\n|\Z)", re.MULTILINE | re.DOTALL)
_RECURRENT = re.compile(r"when calling `(?P<name>[^`]+)`. Reason: Dynamo does not support RNN")
_CONTEXT = re.compile(r"^ *Developer debug context: (?P<text>.*)$", re.MULTILINE)
_COMPILE_ID = re.compile(r"(?P<id>(?:!\d+/)?\d+/\d+): ")
_TENSOR = re.compile(
    r"(?P<subject>tensor '.+?' .*?mismatch(?: at index \d+)?)\. [Ee]xpected (?P<expected>.+?)(?:, actual (?P<actual>.+))?$"
)
_KIND = re.compile(r"expected type of '(?P<name>.+)' to be (?P<expected>[^,]+?),? (?:' )?but found (?P<actual>.+)$")
_IDENTITY = re.compile(r"(?P<check>___check_(?:obj|type)_id)\((?P<of>[^,]+?)(?:, \d+)?\)")
_EQUAL = re.compile(r"(?P<subject>.+?) [=!]= (?P<expected>.+)$")
_SIZES = re.compile(r"[\w.\[\]'\"]+\.size\(\)\[\d+\]")
_CLASS = re.compile(r"type=<class '(?P<name>[^']+)'>")
_REQUIRES_GRAD = re.compile(r"requires_grad=(?P<flag>\w+)(?:\. .*)?")
_WHAT_WAS_TRACED = re.compile(r"Encountered graph break when attempting to trace .*:$")  # the reason follows on a line of its own
_IF = re.compile(r"(?:el)?if\b.*:\s*(?:#.*)?$")
_IN_LOOP = "graph break in loop"  # torch/_dynamo/symbolic_convert.py: `raise_loop_graph_break`
_USER_CODE = ("User code traceback:", "The graph break occurred in the following user code:")
_PYTHON_TRACEBACK = "\nTraceback (most recent call last):"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakText:
    """Dynamo's report of one graph break."""

    reason: str  # what stopped the graph, in one line
    gb_id: str | None  # id in PyTorch's registry, such as `GB0025`, if the text links to it
    explanation: str | None
    hints: tuple[str, ...]
    file: str | None  # of the user line
    line: int | None
    function: str | None
    frames: tuple[StackFrame, ...]  # the user's, outermost first
    context: str = ""  # what Dynamo met, in its developers' words; empty where it does not say
    recurrent: str = ""  # place of the recurrent layer that it refuses, as `L['self']._modules['gru']`; empty before torch 2.15

    def statement(self) -> str | None:
        """Read the user line; of an `if` with the first line of its body, which shows whether it only raises an error."""
        head = line_text(self.file, self.line)
        if self.line is None or head is None or not _IF.match(head):
            return head
        body = next((text for after in range(1, 4) if (text := line_text(self.file, self.line + after))), "pass")
        return f"{head}\n    {body}"

    def flow(self) -> Flow | None:
        """Read what the function around the user line does with what the line computes; None if it cannot be read."""
        return flow_from(lines_of(self.file), self.line) if self.file is not None and self.line is not None else None


def lines_of(file: str) -> list[str]:
    """Read the lines of a program; none if it cannot be read."""
    try:
        return linecache.getlines(file)
    except ValueError:  # a damaged name, such as one with a NUL character, is not a file
        return []


def line_text(file: str | None, line: int | None) -> str | None:
    """Read a line of a program, without the space around it; None if it is empty or cannot be read."""
    lines = lines_of(file) if file is not None and line is not None and line > 0 else []
    return "".join(lines[(line or 0) - 1 :][:1]).strip() or None


def is_break(text: str) -> bool:
    """Tell whether a `dynamo_graph_break_reason` artifact reports a graph break, and not an exception that leads to one."""
    return not text.startswith("WON'T CONVERT") and ("raph break" in text or _EXPLANATION.search(text) is not None)


def break_from_text(text: str) -> BreakText:
    """Parse Dynamo's message about a graph break, the payload of a `dynamo_graph_break_reason` artifact."""
    message, _, trace = text.partition(_PYTHON_TRACEBACK)
    frames = _user_frames(message)
    found = trace if _EXPLANATION.search(trace) and not _EXPLANATION.search(message) else message
    explanation = _EXPLANATION.search(found)
    gb_id, context, recurrent = _GB_ID.search(found), _CONTEXT.search(found), _RECURRENT.search(found)
    file, line = _place(message, frames)
    return BreakText(
        reason=_reason(found, explanation),
        gb_id=f"GB{gb_id['number']}" if gb_id else None,
        explanation=_one_line(explanation["text"]) if explanation else None,
        hints=tuple(_one_line(match["text"]) for match in _HINT.finditer(found)),
        file=file,
        line=line,
        function=frames[-1].function if frames else None,
        frames=tuple(frames),
        context=context["text"].strip() if context else "",
        recurrent=recurrent["name"] if recurrent else "",
    )


def cause_of_failure(text: str) -> FrameCause:
    """Read from the error of a compilation why Dynamo could not keep what it had compiled of the function before the graph break."""
    return "limit" if "recompile_limit" in text else "loop" if _IN_LOOP in text else "position"


def _user_frames(message: str) -> list[StackFrame]:
    for heading in _USER_CODE:
        _, found, code = message.partition(heading)
        if found:
            return [StackFrame(m["file"], int(m["line"]), plain_function(m["function"])) for m in _FRAME.finditer(code)]
    return []


def _place(message: str, frames: list[StackFrame]) -> tuple[str | None, int | None]:
    at = _AT.search(message)
    if at:
        return at["file"], int(at["line"])
    return frames[-1][:2] if frames else (None, None)


def _reason(text: str, explanation: re.Match[str] | None) -> str:
    """Find the line above the explanation, which names the kind of break; else the first informative line."""
    if explanation:
        above = text[: explanation.start()].rstrip().splitlines()
        if above:
            return _said(above[-1])
    for line in text.splitlines():
        said = _said(line)
        if said and not _AT.match(line) and not _WHAT_WAS_TRACED.match(said):
            return said
    return "Dynamo gave no reason"


def _said(line: str) -> str:
    """Strip a line of the prefixes of Dynamo and Python."""
    return line.rsplit("Unsupported: ", 1)[-1].removeprefix("Graph Break Reason: ").strip()


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class RecompileText:
    """Dynamo's report of one recompile."""

    of_compile_id: str | None  # the newest compilation whose guard failed; None if the text does not name it
    guard: str | None  # the subject of that guard
    reason: str  # the full text, one line per earlier compilation
    values: tuple[str, ...] = ()  # what the guard expected, in the order of the compilations, then the actual value; as far as known


class _Guard(NamedTuple):
    """A failed guard."""

    subject: str  # what it checks, the same for every value: `n`, `len(xs)`, `tensor 'x' size mismatch at index 0`
    expected: str | None = None  # the expected value; None if the text does not contain it
    actual: str | None = None  # likewise


Look: TypeAlias = Callable[..., "str | None"]
"""Looks up an expression where a guard failed: its value as text, or its class with `kind=True`; None if it cannot be found."""


def recompile_from_text(text: str, ours: Collection[str] | None = None, look: Look | None = None) -> RecompileText | None:
    """Parse a `recompile_reasons` artifact: one text, or a JSON list, newest first; None if no guard of `ours` (None: all) failed.

    Dynamo compares with every earlier compilation of the same code, including those by other backends. `look` finds actual values, which
    the text often omits.
    """
    failed = [(_COMPILE_ID.match(reason), reason) for reason in _reasons(text) if "BACKEND_MATCH" not in reason]
    failed = [(match, reason) for match, reason in failed if ours is None or match is None or match["id"] in ours]
    if not failed:
        return None
    lines = [(reason[match.end() :] if match else reason).strip().partition("\n")[0] for match, reason in failed]
    match, _ = failed[0]
    return RecompileText(
        of_compile_id=match["id"] if match else None,
        guard=_guard(lines[0]),
        reason="\n".join(reason for _, reason in failed),
        values=_values(lines, look),
    )


def _values(lines: list[str], look: Look | None) -> tuple[str, ...]:
    """List what this guard expected in each compilation, oldest first, then the actual value; unknown values are omitted."""
    newest = _guard_from_line(lines[0])
    alike = [guard for guard in map(_guard_from_line, lines) if guard.subject == newest.subject]
    actual = newest.actual
    if actual is None and look is not None:
        of_type = _IDENTITY.match(newest.subject)
        actual = look(of_type["of"], kind=True) if of_type else look(newest.subject, kind=False)
    expected = [guard.expected for guard in reversed(alike)]
    sizes = [f"{size} = {seen}" for size in _SIZES.findall(newest.subject) if look is not None and (seen := look(size, kind=False))]
    known: list[str | None] = [*sizes] or [*expected, actual]
    return tuple(dict.fromkeys(value for value in known if value is not None))


def _guard_from_line(line: str) -> _Guard:
    """Parse one failed guard, without its compile id; if its form is unknown, the whole guard is the subject."""
    if tensor := _TENSOR.match(line):
        if flag := _REQUIRES_GRAD.fullmatch(tensor["expected"]):  # the text contains one side; the other is its opposite
            wanted = flag["flag"] not in ("0", "False")
            return _Guard(tensor["subject"], f"requires_grad={wanted}", f"requires_grad={not wanted}")
        return _Guard(tensor["subject"], tensor["expected"], tensor["actual"])
    if kind := _KIND.match(line):
        return _Guard(f"type of '{kind['name']}'", kind["expected"], kind["actual"])
    guard = _guard(line)
    if identity := _IDENTITY.match(guard):
        held = _CLASS.search(guard)
        return _Guard(f"{identity['check']}({identity['of']})", f"<class '{held['name'].rpartition('.')[2]}'>" if held else None)
    equal = None if _SIZES.search(guard) else _EQUAL.match(guard)
    return _Guard(equal["subject"], equal["expected"]) if equal else _Guard(guard)


def _reasons(text: str) -> list[str]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = text
    return [str(item) for item in parsed] if isinstance(parsed, list) else [str(parsed)]


def _guard(line: str) -> str:
    return line.partition(". expected ")[0].partition("  # ")[0].strip()


_LONGEST = 60
_CONTAINERS = (dict, OrderedDict, list, tuple)
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


def value_of(expression: str, scope: Mapping[str, Any]) -> Any:
    """Look up the object that a name of Dynamo stands for, such as `L['self']._modules['gru']`; raise LookupError if it is not found.

    It takes a few plain steps: names, stored attributes, items of builtin containers, `len` and sizes of tensors. No code of the user's
    runs: no property, no method and no `__getattr__`.
    """
    try:
        return _look_up(ast.parse(expression.strip(), mode="eval").body, scope)
    except (SyntaxError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise LookupError(expression) from error


def value_text(expression: str, scope: Mapping[str, Any], *, kind: bool = False) -> str | None:
    """Look up a guard's expression in a frame's locals (globals under `G`): its value or, with `kind`, its class; None if not found."""
    try:
        value = value_of(expression, scope)
    except LookupError:
        return None
    is_plain = not kind and (type(value) in _PLAIN or isinstance(value, _PLAIN[-2:]))
    text = repr(value) if is_plain else f"<class '{type(value).__name__}'>"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _look_up(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return scope[node.id]
    if isinstance(node, ast.Attribute):
        return _stored(_look_up(node.value, scope), node.attr)
    if isinstance(node, ast.Subscript):
        return _item(_look_up(node.value, scope), ast.literal_eval(node.slice))
    if isinstance(node, ast.Call):
        return _called(node, scope)
    raise LookupError(ast.dump(node))


def _stored(owner: Any, name: str) -> Any:
    """Read a stored attribute without running code of the object."""
    held = inspect.getattr_static(owner, name)
    if isinstance(held, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        return held.__get__(owner)  # a slot, or a field of a builtin such as `__code__`
    if hasattr(type(held), "__get__") and not isinstance(held, types.FunctionType):
        raise LookupError(name)  # a property or another descriptor, which would run code
    return held


def _item(owner: Any, key: Any) -> Any:
    if type(owner) not in _CONTAINERS and not isinstance(owner, torch.Size):
        raise LookupError(type(owner).__name__)
    return owner[key]


def _called(node: ast.Call, scope: Mapping[str, Any]) -> Any:
    """Evaluate the calls in guards: `len(...)`, `x.size()`, and the keys of a dict."""
    function = node.func
    name = function.id if isinstance(function, ast.Name) else f".{function.attr}" if isinstance(function, ast.Attribute) else ""
    if name == ".size" and not node.args and isinstance(function, ast.Attribute):
        tensor = _look_up(function.value, scope)
        if isinstance(tensor, torch.Tensor):
            return torch.Tensor.size(tensor)
    if name in ("len", "list", ".keys") and len(node.args) == 1:
        held = _look_up(node.args[0], scope)
        if type(held) in (_CONTAINERS if name != ".keys" else (dict,)):
            return len(held) if name == "len" else list(held)
    raise LookupError(ast.dump(function))
