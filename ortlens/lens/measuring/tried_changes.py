"""Tries what would avoid a graph break: the call is traced again with the change, and never run.

A setting is set for the trace alone, and a line is changed in a copy of the function. The call stops at its first break, so that one break
after the other is tried, each with what removed those before it. What could not be tried is left as advice that was not.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import logging
import re
import textwrap
import time
import types
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ortlens import _torch
from ortlens._shell import display_name
from ortlens.analysis.advice import changes_to_try
from ortlens.analysis.index import grouped
from ortlens.analysis.recommendations import edited_line
from ortlens.lens.dynamo.break_texts import lines_of
from ortlens.lens.dynamo.listener import DynamoWatch
from ortlens.trace import records as r
from ortlens.trace.recorder import CURRENT, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ortlens.analysis.catalogue import Advice

_BUDGET_NS = 1_000_000_000
_SHARE = 0.5  # of the time that the graphs took to compile, where that is more than two seconds: a trace of theirs takes as long
_PRIVATE = re.compile(r"\b__[a-z]\w*?(?<!__)\b")
"""A name that a class changes, as `self.__x`."""

_NAMES = {"print": print, "warnings": warnings, "logging": logging}


class Place(NamedTuple):
    """A line of the program."""

    file: str | None
    line: int | None


class Outcome(NamedTuple):
    """What one trace met."""

    places: tuple[Place, ...]  # of its breaks
    compiles: bool  # whether nothing failed, and what was compiled serves other values of its tensors too


class Edit(NamedTuple):
    """One line changed in a function."""

    function: Any  # a function of Python; its type would be read as that of a method
    line: int  # in its file
    text: str  # empty to delete it


@dataclass(frozen=True, slots=True)
class Change:
    """What differs in a trace: settings of `torch._dynamo.config`, and edited functions."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()

    def and_then(self, other: Change) -> Change:
        """Make this change and another one."""
        return Change({**self.settings, **other.settings}, (*self.edits, *other.edits))


@dataclass(slots=True, kw_only=True)
class Trials:
    """Tries changes for one target."""

    recorder: Recorder
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    backend: Callable[[torch.fx.GraphModule, Any], Callable[..., Any]]  # compiles without a session
    _deadline: int = 0

    def run(self) -> None:
        """Try what might remove each break, in the order in which the call meets them, and amend the breaks."""
        function = _function_of(self.target)
        if function is None:
            return
        spent = sum(graph.compile_ns or 0 for graph in self.recorder.records(r.Graph))
        self._deadline = time.perf_counter_ns() + max(_BUDGET_NS, round(_SHARE * spent))
        known = grouped((Place(item.file, item.line), item) for item in self.recorder.records(r.Break))
        change, done = Change(), set[Place]()
        outcome = self._traced(function, change)
        while outcome is not None and outcome.places and outcome.places[0] in known and outcome.places[0] not in done:
            place = outcome.places[0]
            done.add(place)
            outcome, change = self._first_that_helps(function, known, place, change)

    def _first_that_helps(
        self, function: Callable[..., Any], known: Mapping[Place, list[r.Break]], place: Place, before: Change
    ) -> tuple[Outcome | None, Change]:
        """Try the changes for a line until one removes its breaks, and others than those known do not come; None where none does."""
        failed: list[str] = []
        for item, advice in ((found, advice) for found in known[place] for advice in changes_to_try(found)):
            change = self._change(advice, item)
            name = advice.settings[0] if advice.kind == "set_config" else advice.kind
            if change is None or name in failed or time.perf_counter_ns() > self._deadline:
                continue
            outcome = self._traced(function, before.and_then(change))
            if outcome is None:
                continue
            if outcome.compiles and place not in outcome.places and known.keys() >= set(outcome.places[:1]):
                self._note(known[place], removed_by=(name,), kept_despite=tuple(failed))
                return outcome, before.and_then(change)
            failed.append(name)
        self._note(known[place], kept_despite=tuple(failed))
        return None, before

    def _note(self, items: list[r.Break], **facts: tuple[str, ...]) -> None:
        for item in items:
            self.recorder.amend(r.Break, item.break_id, **facts)

    def _change(self, advice: Advice, item: r.Break) -> Change | None:
        if advice.kind == "set_config":
            return _setting(advice.settings[0])
        if item.source is None or (line := edited_line(item.source, advice)) is None:
            return None
        edit = _edit_of(self.target, item, line)
        return None if edit is None or _edited_code(edit.function, {edit.line: line}) is None else Change(edits=(edit,))

    def _traced(self, function: Callable[..., Any], change: Change) -> Outcome | None:
        """Trace the call with a change; None where nothing was traced."""
        heard, fixes = Recorder(), list[bool]()

        def compiling(graph_module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            fixes.append(_torch.fixes_a_value())
            return self.backend(graph_module, inputs)

        watch = DynamoWatch(heard, lambda backend: backend is compiling)
        compiles = True
        with _with_edits(change.edits), CURRENT.recording_into(heard):
            try:
                _torch.retrace(function, self.args, self.kwargs, compiling, change.settings)
            except Exception:  # noqa: BLE001 - of the change: whatever it raises, the program does not compile with it
                compiles = False
        places = tuple(Place(item.file, item.line) for item in watch.recorder.records(r.Break))
        # A break that becomes a recompile for each value is no better.
        return Outcome(places, compiles=compiles and not any(fixes)) if fixes or places or not compiles else None


def _function_of(target: Any) -> Any:
    """Return the Python function that a call of a target runs; None for a builtin."""
    function = target.forward if isinstance(target, torch.nn.Module) else target
    return function if isinstance(getattr(function, "__func__", function), types.FunctionType) else None


def _setting(line: str) -> Change | None:
    """Read a line that sets something in `torch._dynamo.config`: `name = True`, or `name.add(function)`."""
    statement = ast.parse(line).body[0]
    if isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Attribute):
        return Change({target.attr: ast.literal_eval(statement.value)})
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Attribute):
        return None
    name = call.func.value.attr
    return Change({name: {*_torch.dynamo_setting(name), _named(call.args[0])}})


def _named(node: ast.expr) -> Any:
    return getattr(_named(node.value), node.attr) if isinstance(node, ast.Attribute) else _NAMES[getattr(node, "id", "")]


def _edit_of(target: Any, item: r.Break, text: str) -> Edit | None:
    """Find the function that has the line of a break, to change it there; None where it is not found."""
    for function in _functions_around(target):
        code = function.__code__
        if display_name(code.co_filename) == item.file and item.line is not None and code.co_firstlineno <= item.line <= _last_line(code):
            return Edit(function, item.line, text)
    return None


def _functions_around(target: Any) -> Iterator[types.FunctionType]:
    """Yield the functions of Python that a target is likely to run: its own, the methods of its modules, the globals that it names."""
    own = getattr(_function_of(target), "__func__", _function_of(target))
    modules = target.modules() if isinstance(target, torch.nn.Module) else ()
    kinds = dict.fromkeys(kind for module in modules for kind in type(module).__mro__)
    named = (*(value for kind in kinds for value in vars(kind).values()), *own.__globals__.copy().values())
    yield own
    yield from (value for value in named if isinstance(value, types.FunctionType))


def _last_line(code: types.CodeType) -> int:
    return max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)


def _edited_code(function: types.FunctionType, lines: Mapping[int, str]) -> types.CodeType | None:
    """Compile a function with lines changed, inside one that has its free variables; None where it cannot be compiled by itself."""
    code = function.__code__
    try:
        block = inspect.getblock(lines_of(code.co_filename)[code.co_firstlineno - 1 :])
        for number, text in lines.items():
            old = block[number - code.co_firstlineno]
            block[number - code.co_firstlineno] = f"{old[: len(old) - len(old.lstrip())]}{text or 'pass'}\n"
        body = ast.parse(textwrap.dedent("".join(block))).body[0]
    except (SyntaxError, IndexError, ValueError):
        return None
    if not isinstance(body, ast.FunctionDef) or _PRIVATE.search("".join(block)):
        return None
    body.decorator_list = []
    around = ast.parse(f"def around({', '.join(code.co_freevars)}): pass")
    around.body[0].body = [ast.increment_lineno(body, code.co_firstlineno - 1)]  # type: ignore[attr-defined]  # a function
    compiled = compile(ast.fix_missing_locations(around), code.co_filename, "exec")
    inner = next(each for each in compiled.co_consts if isinstance(each, types.CodeType))
    edited = next(each for each in inner.co_consts if isinstance(each, types.CodeType))
    return edited if edited.co_freevars == code.co_freevars else None


@contextlib.contextmanager
def _with_edits(edits: tuple[Edit, ...]) -> Iterator[None]:
    """Give functions their changed code while the block lasts; what was compiled of theirs belongs to the old code, and comes back."""
    before = [(function, function.__code__) for function in dict.fromkeys(edit.function for edit in edits)]
    try:
        for function, code in before:
            function.__code__ = _edited_code(function, {edit.line: edit.text for edit in edits if edit.function is function}) or code
        yield
    finally:
        for function, code in before:
            function.__code__ = code
