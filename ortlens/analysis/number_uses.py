"""What a line of a program does with a number that it takes out of a tensor.

It decides what to change about the graph break there. With `capture_scalar_outputs`, the number becomes a symbol: a branch on it breaks the
graph as before, and a list that it indexes, or a size that decides how a call is traced, makes compilation fail. Measured with torch 2.13
on 36 programs. So that setting is advised only where the line shows that the number meets nothing but its tensor.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Use: TypeAlias = Literal["decides", "index", "size", "text"]

_TAKING = frozenset({"item", "int", "float", "bool"})
_SIZED = frozenset(
    {"range", "zeros", "ones", "empty", "full", "arange", "view", "reshape", "repeat", "expand", "split", "chunk", "narrow", "topk", "roll"}
)


def use_of_number(source: str) -> Use | None:
    """Tell how a line uses the number that it takes out of a tensor.

    None stands for any other use, as in arithmetic, and for a line that is only part of a statement.
    """
    statement = _statement(source)
    if statement is None:
        return None
    parents = {child: node for node in ast.walk(statement) for child in ast.iter_child_nodes(node)}
    taking = [node for node in ast.walk(statement) if _takes_number(node)]
    if not taking:  # the line leaves it to Python, as `x[:n]` does
        return _implied(statement)
    for node in taking:
        if _name_of(node) == "bool":
            return "decides"
        for inner, outer in _upwards(node, parents):
            use = _use(inner, outer)
            if use is not None:
                return use
    return None


def only_checks(source: str) -> bool:
    """Tell whether a line only checks values: an `assert`, or an `if` with the first line of its body, a `raise`."""
    statement = _statement(source)
    return isinstance(statement, ast.Assert) or (isinstance(statement, ast.If) and isinstance(statement.body[0], ast.Raise))


def decides_by_size(source: str, following: str) -> bool:
    """Tell whether a program decides by the size or the elements of what a line computes.

    An example is `if rows.numel():` behind `rows = mask.nonzero()`.
    """
    statement = _statement(source)
    if statement is None:
        return False
    made = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if any(word in source for word in (".tolist(", ".numel()", "len(")) and isinstance(statement, (ast.If, ast.While, ast.For)):
        return True
    return any(
        re.search(rf"\b(?:if\b|while\b|in\b|range\(|len\(|int\()[^:#]*\b{name}\b|\b{name}\.(?:tolist|item)\(", line)
        for name in made
        for line in following.splitlines()
        if not line.lstrip().startswith("#")
    )


def becomes_size(source: str, following: str) -> bool:
    """Tell whether the number that a line takes out of a tensor becomes a size further down.

    An example is `ids = torch.arange(most)` behind `most = x.item()`.
    """
    statement = _statement(source)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
        return False
    name = statement.targets[0].id
    as_size = re.compile(rf"\b(?:{'|'.join(sorted(_SIZED))})\([^#]*\b{name}\b|\[[^\]#]*(?::\s*{name}\b|\b{name}\s*:)")
    return any(as_size.search(line) for line in following.splitlines())


def meets_its_tensor(source: str) -> bool:
    """Tell whether the number is combined with its own tensor, as in `x * x.sum().item()`: nothing else can use it later."""
    statement = _statement(source)
    pairs = [(node.left, node.right) for node in ast.walk(statement) if isinstance(node, ast.BinOp)] if statement is not None else []
    both_ways = [*pairs, *((right, left) for left, right in pairs)]
    return any(_takes_number(number) and isinstance(other, ast.Name) and other.id == _root(number) for number, other in both_ways)


def _implied(statement: ast.stmt) -> Use | None:
    for node in ast.walk(statement):
        if isinstance(node, ast.Slice):
            return "size"
        if isinstance(node, ast.Compare | ast.BoolOp | ast.IfExp | ast.If | ast.While):
            return "decides"
        if isinstance(node, ast.Call) and _name_of(node) == "range":
            return "size"
    return "index" if any(isinstance(node, ast.Subscript) for node in ast.walk(statement)) else None


def _use(inner: ast.AST, outer: ast.AST) -> Use | None:
    """Tell how `outer` uses the value of `inner`, which is one of its parts."""
    if isinstance(outer, ast.BoolOp | ast.Compare) or (isinstance(outer, ast.If | ast.While | ast.IfExp) and inner is outer.test):
        return "decides"
    if isinstance(outer, ast.JoinedStr):
        return "text"
    if isinstance(outer, ast.Slice) or (isinstance(outer, ast.Call) and inner is not outer.func and _name_of(outer) in _SIZED):
        return "size"
    return "index" if isinstance(outer, ast.Subscript) and inner is outer.slice else None


def _upwards(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each node with the one that it is part of, outwards."""
    while node in parents:
        yield node, parents[node]
        node = parents[node]


def _takes_number(node: ast.AST) -> bool:
    return _name_of(node) in _TAKING


def _name_of(node: ast.AST) -> str | None:
    """Return the name of the function or method that a call calls."""
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else None


def _root(node: ast.AST) -> str | None:
    """Find the name at which a chain of calls and attributes starts: `x` of `float(x.sum())`."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if not node.args:
                return None
            node = node.args[0]
        else:
            node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _statement(source: str) -> ast.stmt | None:
    """Parse a line as a statement, the head of a block with an empty body; None for part of a statement."""
    text = source.removeprefix("el") if source.startswith("elif") else source
    return _parsed(text) or _parsed(f"{text}\n    pass")


def _parsed(text: str) -> ast.stmt | None:
    try:
        return next(iter(ast.parse(text).body), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
