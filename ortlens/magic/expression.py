"""What `%ortlens EXPRESSION` compiles, and what it calls it with."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_TAKE = "__ortlens_take__"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCall:
    """A target and its arguments."""

    target: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def call_from_expression(text: str, namespace: dict[str, Any], file: str, line: int) -> TargetCall:
    """Find out what to compile.

    A call, as `model(x)`: `model` is the target, and its arguments are evaluated, once. An argument that computes something with tensors or
    modules, as in `head(body(x))`, belongs to the computation: then, as for any other expression, the whole is compiled, as a function of
    the tensors that it names. Arguments of `model.generate` are evaluated in any case.
    """
    body = _parsed(text).body
    if isinstance(body, ast.Name) and callable(namespace.get(body.id)):
        raise UsageError(f"%ortlens {text.strip()}: this names what can be called; write the call, for example %ortlens {text.strip()}(x)")
    if isinstance(body, ast.Call) and (
        _is_generate(body.func, namespace)
        or not any(_computes(part, namespace) for part in (body.func, *body.args, *(each.value for each in body.keywords)))
    ):
        # The target and the arguments are evaluated with Python's own rules for stars and keywords.
        taking = ast.Call(func=ast.Name(id=_TAKE, ctx=ast.Load()), args=[body.func, *body.args], keywords=body.keywords)
        tree = ast.increment_lineno(ast.fix_missing_locations(ast.Expression(body=taking)), line - 1)
        found: TargetCall = eval(compile(tree, file, "eval"), namespace, {_TAKE: _take})  # noqa: S307 - running the user's expression is the job
        return found
    return _whole(text, namespace, file, line)


def _parsed(text: str) -> ast.Expression:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as err:
        raise UsageError(_no_expression(text, err)) from err
    if any(isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)) for node in ast.walk(tree)):
        raise UsageError(f"%ortlens {text}: an expression cannot await or yield here; in a cell that starts with %%ortlens, `await` works")
    return tree


def _no_expression(text: str, err: SyntaxError) -> str:
    if " -" in text and _is_expression(text[: text.index(" -")]):
        return f"options go before the expression: %ortlens {text[text.index(' -') :].strip()} {text[: text.index(' -')]}"
    name, equals, rest = text.partition("=")
    if equals and name.strip().isidentifier() and _is_expression(rest):
        return f"%ortlens takes an expression: %ortlens -o lens {rest.strip()}; its value is then in lens.result"
    return f"%ortlens {text}: {err.msg}; write one Python expression after the options, for example model(x)"


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return False
    return True


def _is_generate(function: ast.expr, namespace: Mapping[str, Any]) -> bool:
    """Tell whether this is a module's `generate`: as a whole, the expression would compile the Python of it."""
    import torch

    if not isinstance(function, ast.Attribute) or function.attr != "generate" or not isinstance(function.value, ast.Name):
        return False
    return isinstance(namespace.get(function.value.id), torch.nn.Module)


def _computes(part: ast.expr, namespace: Mapping[str, Any]) -> bool:
    """Tell whether a part of a call computes with tensors or modules itself: it has calls or operators, and names such values."""
    works = any(isinstance(node, (ast.Call, ast.BinOp, ast.Compare)) for node in ast.walk(part))
    return works and any(_holds_tensors(namespace.get(node.id)) for node in ast.walk(part) if isinstance(node, ast.Name))


def _holds_tensors(value: object) -> bool:
    import torch

    if isinstance(value, Mapping):
        return any(_holds_tensors(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_tensors(each) for each in value)
    return isinstance(value, (torch.Tensor, torch.nn.Module))


def _take(target: Callable[..., Any], /, *args: object, **kwargs: object) -> TargetCall:
    return TargetCall(target=target, args=args, kwargs=kwargs)


def _whole(text: str, namespace: dict[str, Any], file: str, line: int) -> TargetCall:
    """Make the expression a function of the tensors that it names; other names it looks up where the user has them."""
    names = [name for name in _free_names(text) if name in namespace and _tensors_only(namespace[name])]
    before = "\n" * (line - 1)  # so that line numbers match
    source = f"{before}def expression({', '.join(names)}): return ({text.strip()}\n)"
    made: dict[str, Any] = {}
    exec(compile(source, file, "exec"), namespace, made)  # noqa: S102 - as above
    return TargetCall(target=made["expression"], args=tuple([namespace[name] for name in names]))


def _tensors_only(value: object) -> bool:
    import torch

    parts: Iterable[object] = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return isinstance(value, torch.Tensor) or (type(value) in (dict, list, tuple) and bool(parts) and all(map(_tensors_only, parts)))


def _free_names(text: str) -> list[str]:
    """List the names that an expression looks up outside itself; those of a comprehension or lambda are its own."""
    table = symtable.symtable(text.strip(), "<expression>", "eval")
    names: dict[str, None] = {}
    waiting = [table]
    while waiting:
        scope = waiting.pop()
        waiting += scope.get_children()
        names |= dict.fromkeys(symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global() or scope is table)
    return list(names)
