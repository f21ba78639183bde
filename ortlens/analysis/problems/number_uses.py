"""What a program does with a number that one of its lines takes out of a tensor.

It decides what to change about the graph break there. With `capture_scalar_outputs`, the number becomes a symbol: a branch on it breaks the
graph as before, and a list that it indexes, or a size that decides how a call is traced, makes compilation fail. Measured with torch 2.13
on 36 programs. So that setting is advised only where the line shows that the number meets nothing but its tensor, or where it was tried.

The number is followed by names: from the line that takes it to the lines of the same function that read the variable it is assigned to.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Use: TypeAlias = Literal["decides", "size", "index", "text", "math"]
"""What a number is for, the first that applies: `decides` what runs, is a `size` or an `index`, becomes `text`, an argument of `math`."""

Passing: TypeAlias = Literal["operand", "setting"]
"""To what a number is passed: an `operand` may be a tensor as well, as the bound of `clamp`; a `setting` is a number, as a slope."""

USES: tuple[Use, ...] = get_args(Use)
LATER: Mapping[Use, str] = {
    "decides": "number_decides",
    "size": "number_becomes_size",
    "index": "number_becomes_index",
    "text": "number_becomes_text",
    "math": "number_becomes_argument",
}
"""Traits of a break: what a line further down does with the number."""

ARGUMENT: Mapping[Use | Passing, str] = {use: f"argument_{use}" for use in (*USES, *get_args(Passing))}
"""Traits of a recompile: what the function does with an argument that is a number."""

_TAKING = frozenset({"item", "int", "float", "bool"})
_SIZED = re.compile(
    r"new_\w+|zeros|ones|empty|full|rand|randn|randint|randperm|eye|arange|linspace|range|view|unflatten|reshape|repeat|repeat_interleave|"
    r"expand|tile|broadcast_to|split|chunk|unfold|narrow|topk|roll|one_hot|pad"
)
_ARITHMETIC = re.compile(r"(?:add|sub|subtract|mul|multiply|div|divide|true_divide)_?")
_OPERANDS = re.compile(r"(?:pow|float_power|clamp|clip|clamp_min|clamp_max|where|masked_fill|lerp|full|eq|ne|lt|le|gt|ge|remainder|fmod)_?")
_OF_TORCH = frozenset({"torch", "nn", "functional", "F"})
_TEXTS = frozenset({"print", "str", "repr", "format"})
_LOGGED = re.compile(r"(?:print|warn|debug|info|warning|error|exception|critical|log)")
_MAX_NAMES = 20


class Flow(NamedTuple):
    """What is read of the function around a line."""

    uses: tuple[Use, ...]  # what the number becomes in a line further down, without what the line itself does with it
    decides_by_size: bool  # whether the program decides by the size, or the elements, of what the line computes
    in_data_loop: bool  # whether the line is in a `while` that ends when tensors computed in it say so
    jumps: bool  # whether the line is an `if` that goes on with another round of its loop, or leaves it


def use_of_number(source: str) -> Use | None:
    """Tell how a line uses the number that it takes out of a tensor.

    None stands for any other use, as in arithmetic, and for a line that is only part of a statement.
    """
    statement = statement_of(source)
    if statement is None:
        return None
    parents = _parents(statement)
    taking = [node for node in ast.walk(statement) if _takes_number(node)]
    if not taking:  # the line leaves it to Python, as `x[:n]` does
        return _implied(statement)
    if any(_name_of(node) == "bool" for node in taking):
        return "decides"
    uses = {use for node in taking for use in _uses_above(node, parents)}
    return next((use for use in USES if use in uses), None)


def only_checks(source: str) -> bool:
    """Tell whether a line only checks values: an `assert`, or an `if` with the first line of its body, a `raise`."""
    statement = statement_of(source)
    return isinstance(statement, ast.Assert) or (isinstance(statement, ast.If) and isinstance(statement.body[0], ast.Raise))


def only_reports(source: str) -> str | None:
    """Return the name of the function where a line only prints, warns or logs, such as `print` or `info`; None for any other."""
    statement = statement_of(source)
    name = _name_of(statement.value) if isinstance(statement, ast.Expr) else None
    return name if name is not None and _LOGGED.fullmatch(name) else None


def takes_number(source: str) -> bool:
    """Tell whether a line takes a number out of a tensor, as far as it shows."""
    statement = statement_of(source)
    return statement is not None and any(map(_takes_number, ast.walk(statement)))


def has_keywords(source: str) -> bool:
    """Tell whether a line calls something with arguments by name."""
    statement = statement_of(source)
    return statement is not None and any(isinstance(node, ast.Call) and node.keywords for node in ast.walk(statement))


def loops_over_list(source: str) -> bool:
    """Tell whether a line is a loop over the elements of a tensor, as `for i in x.tolist():`."""
    statement = statement_of(source)
    return isinstance(statement, ast.For) and any(_name_of(node) == "tolist" for node in ast.walk(statement.iter))


def flow_from(lines: Sequence[str], line: int) -> Flow | None:
    """Read what the function around a line, counted from 1, does with what it computes; None where the function cannot be parsed."""
    found = _function_around(lines, line)
    if found is None:
        return None
    function, at = found
    parents = _parents(function)
    statement = _innermost_statement(function, at)
    if statement is None:
        return None
    loads = [node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    loads.sort(key=lambda node: (node.lineno, node.col_offset))
    made, uses, decides = [(name, statement) for name in _stored(statement)], set[Use](), _decides_by_itself(statement)
    known = {name for name, _ in made}
    while made and len(known) < _MAX_NAMES:
        name, origin = made.pop()
        end = _end_of(name, origin, parents)
        for load in (load for load in loads if load.id == name and load.lineno <= end and _is_read_after(load, origin, parents)):
            uses.update(_uses_above(load, parents))
            decides |= _decides_by(load, parents)
            passed_on = [pair for pair in _passed_on(load, parents) if pair[0] not in known]
            known.update(name for name, _ in passed_on)
            made += passed_on
    jumps = isinstance(statement, ast.If) and any(isinstance(node, ast.Continue | ast.Break) for node in ast.walk(statement))
    return Flow(tuple(use for use in USES if use in uses), decides, _is_in_data_loop(statement, parents), jumps)


def uses_of_argument(lines: Sequence[str], first: int, name: str) -> tuple[Use | Passing, ...]:
    """Read what a function, whose first line is counted from 1, does with a number: an argument, or an attribute such as `self.step`."""
    found = _function_at(lines, first)
    if found is None or not any(isinstance(node, ast.FunctionDef | ast.Lambda) for node in ast.walk(found)):
        around = _function_around(lines, first)  # what follows a break begins in the middle of its function
        found = None if around is None else around[0]
    if found is None:
        return ()
    parents, last = _parents(found), name.rpartition(".")[2]
    named = (node for node in ast.walk(found) if last in (getattr(node, "id", None), getattr(node, "attr", None)))
    loads = [node for node in named if isinstance(getattr(node, "ctx", None), ast.Load) and ast.unparse(node) == name]
    uses: set[Use | Passing] = {use for load in loads for use in _uses_above(load, parents)}
    uses.update(passing for load in loads for passing in _passings(load, parents))
    return tuple(use for use in ARGUMENT if use in uses)


def _passings(load: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[Passing]:
    """Yield to what a statement passes a number as it is, or an exponent."""
    inner, outer = load, parents[load]
    if isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Pow) and inner is outer.right:
        yield "operand"
    if isinstance(outer, ast.keyword):
        inner, outer = outer, parents[outer]
    if isinstance(outer, ast.Call) and inner is not outer.func:
        name, is_factor = _name_of(outer) or "", isinstance(inner, ast.keyword) and inner.arg == "alpha"  # `x.add(y, alpha=by)`
        if _OPERANDS.fullmatch(name):
            yield "operand"
        elif is_factor or (_root(outer.func) in _OF_TORCH and not _ARITHMETIC.fullmatch(name)):  # what others do with it is not known
            yield "setting"


def meets_its_tensor(source: str) -> bool:
    """Tell whether the number is combined with its own tensor, as in `x * x.sum().item()`: nothing else can use it later."""
    statement = statement_of(source)
    pairs = [(node.left, node.right) for node in ast.walk(statement) if isinstance(node, ast.BinOp)] if statement is not None else []
    both_ways = [*pairs, *((right, left) for left, right in pairs)]
    return any(_takes_number(number) and isinstance(other, ast.Name) and other.id == _root(number) for number, other in both_ways)


def statement_of(source: str) -> ast.stmt | None:
    """Parse a line as a statement, the head of a block with an empty body; None for part of a statement."""
    text = source.removeprefix("el") if source.startswith("elif") else source
    return _parsed(text) or _parsed(f"{text}\n    pass")


def calls_of_math(statement: ast.AST) -> list[ast.Attribute]:
    """List the functions of `math` that a statement calls, as `math.exp`."""
    found = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return [node for node in found if isinstance(node.value, ast.Name) and node.value.id == "math"]


def has_index(statement: ast.AST) -> bool:
    """Tell whether a statement indexes something by anything but numbers and slices."""
    indexes = [node.slice for node in ast.walk(statement) if isinstance(node, ast.Subscript)]
    parts = [part for index in indexes for part in (index.elts if isinstance(index, ast.Tuple) else (index,))]
    return any(not isinstance(part, ast.Slice) and not _is_number(part) for part in parts)


def _implied(statement: ast.stmt) -> Use | None:
    if calls_of_math(statement):
        return "math"
    for node in ast.walk(statement):
        if isinstance(node, ast.Slice) and not all(_is_number(bound) for bound in (node.lower, node.upper, node.step) if bound is not None):
            return "size"
        if isinstance(node, ast.Compare | ast.BoolOp | ast.IfExp | ast.If | ast.While):
            return "decides"
        if isinstance(node, ast.Call) and _name_of(node) == "range":
            return "size"
    return "index" if has_index(statement) else None


def _is_number(node: ast.expr) -> bool:
    """Tell whether an expression is a number, as `1` or `-1`."""
    return isinstance(node, ast.Constant | ast.UnaryOp)


def _uses_above(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[Use]:
    """Yield how the statement around a value uses it, outwards, up to a call that makes a tensor of it."""
    for inner, outer in _upwards(node, parents):
        if isinstance(outer, ast.stmt) and not isinstance(outer, ast.If | ast.While | ast.Assert):
            return
        use = _use(inner, outer)
        if use is not None:
            yield use
            return


def _use(inner: ast.AST, outer: ast.AST) -> Use | None:
    """Tell how `outer` uses the value of `inner`, which is one of its parts."""
    if isinstance(outer, ast.BoolOp | ast.Compare) or (
        isinstance(outer, ast.If | ast.While | ast.IfExp | ast.Assert) and inner is outer.test
    ):
        return "decides"
    if isinstance(outer, ast.JoinedStr):
        return "text"
    if isinstance(outer, ast.Slice):
        return "size"
    if isinstance(outer, ast.Subscript) and inner is outer.slice:
        return "index"
    return _use_in_call(outer) if isinstance(outer, ast.Call) and inner is not outer.func else None


def _use_in_call(call: ast.Call) -> Use | None:
    name = _name_of(call) or ""
    if call.func in calls_of_math(call):
        return "math"
    if _SIZED.fullmatch(name):
        return "size"
    return "text" if name in _TEXTS else None


def _decides_by_itself(statement: ast.stmt) -> bool:
    """Tell whether a block decides by a size or by elements in its own head: `for row in x.tolist():`."""
    head = {ast.If: "test", ast.While: "test", ast.For: "iter"}.get(type(statement))
    return head is not None and any(_name_of(node) in {"tolist", "numel", "len"} for node in ast.walk(getattr(statement, head)))


def _decides_by(load: ast.Name, parents: dict[ast.AST, ast.AST]) -> bool:
    """Tell whether a program decides by the size or the elements of a variable where it reads it, as in `if rows.numel():`."""
    for inner, outer in _upwards(load, parents):
        if isinstance(outer, ast.Call) and (
            _name_of(outer) in {"range", "len", "int"} or (inner is outer.func and _name_of(outer) in {"tolist", "item"})
        ):
            return True
        if isinstance(outer, ast.If | ast.While | ast.IfExp | ast.Assert):
            return inner is outer.test
        if isinstance(outer, ast.For | ast.comprehension):
            return inner is outer.iter
    return False


def _passed_on(load: ast.Name, parents: dict[ast.AST, ast.AST]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the variables to which a number is assigned again, by itself or after arithmetic, and where."""
    for _, outer in _upwards(load, parents):
        if isinstance(outer, ast.Assign | ast.AnnAssign | ast.AugAssign):
            yield from ((name, outer) for name in _stored(outer))
            return
        if not isinstance(outer, ast.BinOp | ast.UnaryOp) and _name_of(outer) not in {"int", "float", "min", "max", "round", "abs"}:
            return


def _is_read_after(load: ast.Name, statement: ast.stmt, parents: dict[ast.AST, ast.AST]) -> bool:
    """Tell whether a variable may be read after a statement: behind it, or in the next round of a loop around both."""
    if load.lineno > (statement.end_lineno or statement.lineno) or (isinstance(statement, ast.For) and load.lineno > statement.lineno):
        return True
    loops = [outer for _, outer in _upwards(statement, parents) if isinstance(outer, ast.For | ast.While)]
    return load.lineno < statement.lineno and any(load.lineno >= loop.lineno for loop in loops)


def _end_of(name: str, statement: ast.stmt, parents: dict[ast.AST, ast.AST]) -> float:
    """Find the last line that may read a variable as a statement left it, up to where the same block assigns it anew."""
    block = [body for body in vars(parents[statement]).values() if isinstance(body, list) and statement in body]
    behind = [
        other for body in block for other in body[body.index(statement) + 1 :] if isinstance(other, ast.Assign) and name in _stored(other)
    ]
    return min((other.end_lineno or other.lineno for other in behind), default=float("inf"))


def _is_in_data_loop(statement: ast.stmt, parents: dict[ast.AST, ast.AST]) -> bool:
    """Tell whether a statement is in a `while` whose condition reads what the loop computes by masks or from values of tensors."""
    for loop in (outer for _, outer in _upwards(statement, parents) if isinstance(outer, ast.While)):
        asked = {node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)}
        made = (inner for inner in ast.walk(loop) if isinstance(inner, ast.Assign) and not asked.isdisjoint(_stored(inner)))
        if any(map(_depends_on_data, made)):
            return True
    return False


def _depends_on_data(statement: ast.Assign) -> bool:
    nodes = list(ast.walk(statement.value))
    masked = any(isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Compare) for node in nodes)
    return masked or any(_takes_number(node) or _name_of(node) in {"nonzero", "masked_select", "unique", "any", "all"} for node in nodes)


def _stored(statement: ast.AST) -> Iterator[str]:
    """Yield the variables that a statement assigns, without those of a block inside it."""
    targets = [getattr(statement, "target", None), *getattr(statement, "targets", ())]
    for target in targets:
        if target is not None:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def _upwards(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each node with the one that it is part of, outwards."""
    while node in parents:
        yield node, parents[node]
        node = parents[node]


def _parents(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


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


def _innermost_statement(function: ast.AST, line: int) -> ast.stmt | None:
    """Find the innermost statement on a line."""
    around = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)]
    return max(around, key=lambda node: (node.lineno, -(node.end_lineno or node.lineno)), default=None)


_DEF = re.compile(r"(?P<indent>\s*)(?:async )?def ")


def _function_around(lines: Sequence[str], line: int) -> tuple[ast.AST, int] | None:
    """Parse the innermost function around a line; return it, and the number of the line in its text."""
    if not 0 < line <= len(lines):
        return None
    deep = len(lines[line - 1]) - len(lines[line - 1].lstrip())
    for first in range(line - 1, 0, -1):
        found = _DEF.match(lines[first - 1])
        if found is not None and len(found["indent"]) < deep:
            function = _function_at(lines, first)
            return None if function is None else (function, line - first + 1)
    return None


def _function_at(lines: Sequence[str], first: int) -> ast.AST | None:
    """Parse the function that begins on a line, its decorators included."""
    try:
        block = inspect.getblock([text if text.endswith("\n") else f"{text}\n" for text in lines[first - 1 :]])
    except (SyntaxError, IndentationError, IndexError):
        return None
    return _parsed(textwrap.dedent("".join(block)))


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> ast.stmt | None:
    try:
        return next(iter(ast.parse(text).body), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
