"""The line that changed a weight: by its name, in the files that the call which noticed the change came through.

Only where a single line can have. Nothing is watched for it: the sources are read when a session is made anew, which is rare.
"""

from __future__ import annotations

import ast
import functools
import linecache
import traceback
from typing import TYPE_CHECKING, NamedTuple

from ortlens.backend.basis.provenance import StackFrame, is_model_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class _Assignment(NamedTuple):
    """A line that assigns a weight, or writes to one."""

    line: int
    names: tuple[str, ...]  # the names on the way to it, such as `net layers weight`, of which the last is its own
    is_new: bool  # whether it puts another tensor in its place


def changed_at(weights: Sequence[str], *, is_new: bool) -> StackFrame | None:
    """Find the one line that can have changed these weights, with another tensor, `is_new`, or by writing to it; else None.

    A function that made the call which noticed the change counts before the rest of its file.
    """
    stack = [
        frame
        for frame, line in traceback.walk_stack(None)
        if is_model_code(StackFrame(frame.f_code.co_filename, line, frame.f_code.co_name))
    ]
    files = dict.fromkeys(frame.f_code.co_filename for frame in stack if not frame.f_code.co_filename.startswith("<"))
    found = {
        (file, change.line)
        for file in files
        for change in _changes("".join(linecache.getlines(file)))
        if change.is_new == is_new and any(_fits(change.names, weight.split(".")) for weight in weights)
    }
    codes = [frame.f_code for frame in stack if frame.f_code.co_name != "<module>"]
    running = {(code.co_filename, line) for code in codes for _, _, line in code.co_lines()}
    found = found & running or found
    return StackFrame(*found.pop(), "") if len(found) == 1 else None


def _fits(names: tuple[str, ...], path: list[str]) -> bool:
    """Tell whether a line can be about a weight: it has its own name, and no module on the way that is none of its path."""
    return names[-1] == path[-1] and all(name in path for name in names[1:])


@functools.lru_cache(maxsize=16)
def _changes(source: str) -> tuple[_Assignment, ...]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    made = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__" for inner in ast.walk(node)
    }
    return tuple(change for node in ast.walk(tree) if id(node) not in made for change in _changes_of(node))


def _changes_of(node: ast.AST) -> Iterator[_Assignment]:
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in (item for each in targets for item in (each.elts if isinstance(each, ast.Tuple) else [each])):
            is_new = isinstance(target, ast.Attribute) and target.attr != "data" and not isinstance(node, ast.AugAssign)
            yield from _change(node.lineno, target, is_new=is_new)
    elif isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr.endswith("_") and not called.attr.endswith("__"):
            given = node.args[:1] if _names(called)[-2:-1] == ("init",) else [called.value]  # `nn.init.zeros_(layer.weight)`
            for target in given:
                yield from _change(node.lineno, target, is_new=False)
        named = node.args[1:2] if isinstance(called, ast.Name) and called.id == "setattr" else node.args[:1]
        if named and isinstance(named[0], ast.Constant) and _names(called)[-1:] in _SETTERS:
            owner = node.args[0] if isinstance(called, ast.Name) else called.value if isinstance(called, ast.Attribute) else called
            yield _Assignment(node.lineno, (*(_names(owner) or ("",)), str(named[0].value)), is_new=True)


_SETTERS = (("setattr",), ("register_parameter",), ("register_buffer",))


def _change(line: int, target: ast.expr, *, is_new: bool) -> Iterator[_Assignment]:
    names = _names(target)
    if names and names[-1] == "data":
        names = names[:-1]
    if len(names) > 1:
        yield _Assignment(line, names, is_new)


def _names(node: ast.expr) -> tuple[str, ...]:
    """List the names of an expression such as `net.layers[0].weight`, without indices; empty where it has another form."""
    if isinstance(node, ast.Subscript):
        return _names(node.value)
    if isinstance(node, ast.Attribute):
        inner = _names(node.value)
        return (*inner, node.attr) if inner else ()
    return (node.id,) if isinstance(node, ast.Name) else ()
