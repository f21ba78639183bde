"""Tries what would avoid a graph break: the call is traced again with the change, without running it, and then timed with it.

A setting is set for the trace alone, and a line is changed in a copy of the function. The call stops at its first break, so that one break
after the other is tried, each with what removed those before it. What could not be tried is left as advice that was not.

What a break costs is not what its change saves: the change may compute more, and a larger graph may be faster. So the changed call is
compiled beside the present one, and both take turns. A line is changed only where the whole call is one graph that changes nothing
outside: else a changed program would leave its marks in the user's objects.
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
from ortlens.analysis.index import grouped
from ortlens.analysis.problems.advice import REPORTING, changes_to_try, chosen_name, is_one_truth, line_to_try
from ortlens.analysis.problems.catalogue import SENTENCES
from ortlens.backend.basis.ab_timing import compare_calls, waiting_for
from ortlens.backend.observed import ObservedGraph, graphs_of, unlogged
from ortlens.lens.observing.break_texts import lines_of
from ortlens.lens.observing.listener import DynamoWatch
from ortlens.trace import records as r
from ortlens.trace.recorder import CURRENT, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ortlens.analysis.problems.catalogue import Advice

_BUDGET_NS = 1_000_000_000
_COMPILING_NS = 3_000_000_000  # of what compiles longer, what its changes save is not timed
_SETTLING = 4  # calls until nothing is compiled any more
_SHARE = 0.5  # of the time that the graphs took to compile, where that is more than two seconds: a trace of theirs takes as long
_PRIVATE = re.compile(r"\b__[a-z]\w*?(?<!__)\b")
"""A name that a class changes, as `self.__x`."""

_NAMES = {"print": print, "warnings": warnings, "logging": logging}


class ProgramLine(NamedTuple):
    """A line of the program."""

    file: str | None
    line: int | None


class TraceOutcome(NamedTuple):
    """What one trace met."""

    places: tuple[ProgramLine, ...]  # of its breaks
    compiles: bool  # whether nothing failed, and what was compiled serves other values of its tensors too
    leaves_marks: bool  # whether what was traced changes anything but what it returns


class Edit(NamedTuple):
    """One statement changed in a function."""

    function: Any  # a function of Python; its type would be read as that of a method
    line: int  # in its file
    last: int  # line at which it ends
    text: str  # in one line; empty to delete it


@dataclass(frozen=True, slots=True)
class TracedChange:
    """What differs in a trace: settings of `torch._dynamo.config`, and edited functions."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()

    def and_then(self, other: TracedChange) -> TracedChange:
        """Make this change and another one."""
        return TracedChange({**self.settings, **other.settings}, (*self.edits, *other.edits))


class Helpful(NamedTuple):
    """A change with which a line breaks no graph."""

    name: str  # as in `Break.removed_by`
    change: TracedChange
    outcome: TraceOutcome
    place: ProgramLine | None = None  # what is still to be seen to break no graph


@dataclass(slots=True, kw_only=True)
class Trials:
    """Tries changes for one target."""

    recorder: Recorder
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    backend: Callable[[torch.fx.GraphModule, Any], Callable[..., Any]]  # compiles without a session
    _helpful: dict[ProgramLine, list[Helpful]] = field(default_factory=dict)  # in the order in which the call meets the lines
    _deadline: int = 0
    _made: int = 0  # calls with a change

    def run(self) -> None:
        """Try what might remove each break, in the order in which the call meets them, and amend the breaks."""
        function = _function_of(self.target)
        if function is None:
            return
        self._deadline = time.perf_counter_ns() + max(_BUDGET_NS, round(_SHARE * self._spent()))
        known = grouped((ProgramLine(item.file, item.line), item) for item in self.recorder.records(r.Break))
        change = TracedChange()
        outcome = self._traced(function, change)
        while outcome is not None and outcome.places and outcome.places[0] in known and outcome.places[0] not in self._helpful:
            place = outcome.places[0]
            found = self._tried(function, known, place, change)
            if not found:
                return
            self._helpful[place] = found
            outcome, change = found[0].outcome, found[0].change

    def _spent(self) -> int:
        return sum(graph.compile_ns or 0 for graph in self.recorder.records(r.Graph))

    def _tried(
        self, function: Callable[..., Any], known: Mapping[ProgramLine, list[r.Break]], place: ProgramLine, before: TracedChange
    ) -> list[Helpful]:
        """Try the changes for a line, until one helps: removes its breaks, and others than those known do not come. A single line: all."""
        helpful: dict[str, Helpful] = {}
        failed: list[str] = []
        for item, advice in ((found, advice) for found in known[place] for advice in changes_to_try(found)):
            change = self._change(advice, item)
            name = advice.settings[0] if advice.kind == "set_config" else advice.kind
            is_done = name in failed or name in helpful or (helpful and len(known) > 1 and ".add(" not in name)  # that drops a report
            if change is None or is_done or time.perf_counter_ns() > self._deadline:
                continue
            outcome = self._traced(function, before.and_then(change))
            if outcome is None:
                continue
            if outcome.compiles and place not in outcome.places and known.keys() >= set(outcome.places[:1]):
                helpful[name] = Helpful(name, before.and_then(change), outcome)
            else:
                failed.append(name)
        self._note(known[place], removed_by=tuple(helpful), kept_despite=tuple(failed))
        return list(helpful.values())

    def time(
        self, present: Callable[[], Any], compiled: Callable[[Callable[..., Any]], Callable[..., Any]], graphs: Sequence[ObservedGraph]
    ) -> int:
        """Time the call with what removed its breaks, in turns with the `present` one, and note what that saves.

        `compiled` compiles a function without recording, `graphs` are those of the present call. Returns how many calls were made.
        """
        if self._spent() > _COMPILING_NS:
            return 0
        self._time_settings(present, compiled, graphs)
        if not self._helpful:
            return self._made
        last = list(self._helpful.values())[-1]  # with what removed those before it
        ways = last if len(self._helpful) == 1 else last[:1]
        gains: dict[str, int | None] = {}
        for way in ways:
            with contextlib.suppress(Exception):  # of the changed program, whatever it is: such a change is not named
                gains[way.name] = self._timed(way, present, compiled, graphs)
        items = [item for item in self.recorder.records(r.Break) if ProgramLine(item.file, item.line) in self._helpful]
        if len(self._helpful) == 1:  # of several lines it is not known which one takes longer
            # A setting that saves nothing is not worth naming.
            named = (name for name, gain in gains.items() if gain is None or gain > 0 or name in SENTENCES)
            useful = sorted(named, key=lambda name: _order(name, gains[name]))
            rest = (way.name for way in ways if way.name not in useful)
            self._note(items, removed_by=tuple(useful), kept_despite=(*items[0].kept_despite, *rest))
            gains = {name: max(gain, 0) if (gain := gains[name]) is not None else None for name in useful[:1]}
        saved = next(iter(gains.values()), None)
        if saved is not None and next(iter(gains)) in REPORTING:  # it was left out to be timed, and is to be moved
            saved = max(saved - sum(item.between_ns or 0 for item in items), 0)
        if saved is not None and saved >= 0:
            prices = [(item.cost_ns or 0) + (item.between_ns or 0) + 1 for item in items]
            for item, price in zip(items, prices, strict=True):
                share = round(saved * price / sum(prices))
                self._note([item], saved_ns=share, cost_ns=max(item.cost_ns or 0, share))
        return self._made

    def _time_settings(self, present: Callable[[], Any], compiled: Callable[[Callable[..., Any]], Callable[..., Any]], graphs: Any) -> None:
        """Call with each setting that drops a report behind a break that stays, where no trace comes, and note whether it serves."""
        for place, items in grouped((ProgramLine(item.file, item.line), item) for item in self.recorder.records(r.Break)).items():
            found = (advice for item in items for advice in changes_to_try(item) if place not in self._helpful)
            for name in dict.fromkeys(line for advice in found for line in advice.settings if ".add(" in line):
                change = setting_of_line(name)
                if change is None:
                    continue
                way = Helpful(name, change, TraceOutcome((), compiles=True, leaves_marks=True), place)
                gain = self._timed(way, present, compiled, graphs)
                saved = (
                    {"removed_by": (name,), "saved_ns": max(gain - (items[0].between_ns or 0), 0)} if gain else {"kept_despite": (name,)}
                )
                self._note(items, **saved)

    def _timed(
        self, way: Helpful, present: Callable[[], Any], compiled: Callable[[Callable[..., Any]], Callable[..., Any]], graphs: Any
    ) -> int | None:
        """Return what a change saves: 0 where no difference is seen, None where it is not timed."""
        if way.change.edits and (way.outcome.places or way.outcome.leaves_marks):
            return None
        heard, fast = Recorder(), compiled(self.target)
        watch = DynamoWatch(heard, lambda _backend: True)

        def call() -> Any:
            self._made += 1
            return fast(*self.args, **self.kwargs)

        codes, settings = _codes(way.change.edits), way.change.settings
        with _changed(codes, settings), CURRENT.recording_into(heard):
            for _ in range(_SETTLING):
                known = heard.count(r.Graph)
                call()
                if known == heard.count(r.Graph):
                    break
            else:
                return None
            if any(ProgramLine(item.file, item.line) == way.place for item in watch.recorder.records(r.Break)):
                return None
        with unlogged((*graphs, *graphs_of(heard))):
            turns = compare_calls(present, call, waiting_for(self.target, self.args), lambda: _changed(codes, settings))
        return turns.gain_ns if turns.is_faster or turns.is_slower else 0

    def _note(self, items: list[r.Break], **facts: Any) -> None:
        for item in items:
            self.recorder.amend(r.Break, item.break_id, **facts)

    def _change(self, advice: Advice, item: r.Break) -> TracedChange | None:
        if advice.kind == "set_config":
            return setting_of_line(advice.settings[0])
        function = _function_at(self.target, item)
        if function is None or item.source is None or item.line is None:
            return None
        line = line_to_try(item.source, advice)
        edit = _choice(function, item.line) if line is None and advice.kind == "choose_with_where" else None
        if line is not None:
            edit = Edit(function, item.line, item.line, line)
        return None if edit is None or _edited_code(function, [edit]) is None else TracedChange(edits=(edit,))

    def _traced(self, function: Callable[..., Any], change: TracedChange) -> TraceOutcome | None:
        """Trace the call with a change; None where nothing was traced."""
        heard, fixes, marks = Recorder(), list[bool](), list[bool]()

        def compiling(graph_module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            fixes.append(_torch.fixes_a_value())
            marks.append(_torch.has_side_effects())
            return self.backend(graph_module, inputs)

        watch = DynamoWatch(heard, lambda backend: backend is compiling)
        compiles = True
        with _changed(_codes(change.edits), change.settings), CURRENT.recording_into(heard):
            try:
                _torch.retrace(function, self.args, self.kwargs, compiling)
            except Exception:  # noqa: BLE001 - of the change: whatever it raises, the program does not compile with it
                compiles = False
        places = tuple(ProgramLine(item.file, item.line) for item in watch.recorder.records(r.Break))
        # A break that becomes a recompile for each value is no better.
        is_known = len(heard.live) == len(fixes)  # graphs of our backend
        leaves_marks = any(marks) or not is_known or any(graph.mutated for graph in graphs_of(heard))
        outcome = TraceOutcome(places, compiles=compiles and not any(fixes), leaves_marks=leaves_marks)
        return outcome if fixes or places or not compiles else None


def _order(name: str, gain: int | None) -> tuple[bool, int]:
    """Sort changes, what saves most first, but what drops a report behind its move, which loses nothing."""
    return name not in REPORTING, -(gain or 0)


def _function_of(target: Any) -> Any:
    """Return the Python function that a call of a target runs; None for a builtin."""
    function = target.forward if isinstance(target, torch.nn.Module) else target
    return function if isinstance(getattr(function, "__func__", function), types.FunctionType) else None


def setting_of_line(line: str) -> TracedChange | None:
    """Read a line that sets something in `torch._dynamo.config`: `name = True`, or `name.add(function)`."""
    statement = ast.parse(line).body[0]
    if isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Attribute):
        return TracedChange({target.attr: ast.literal_eval(statement.value)})
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Attribute):
        return None
    name = call.func.value.attr
    return TracedChange({name: {*_torch.dynamo_setting(name), _named(call.args[0])}})


def _named(node: ast.expr) -> Any:
    return getattr(_named(node.value), node.attr) if isinstance(node, ast.Attribute) else _NAMES[getattr(node, "id", "")]


def _function_at(target: Any, item: r.Break) -> Any:
    """Find the function that has the line of a break, to change it there; None where it is not found."""
    for function in _functions_around(target):
        code = function.__code__
        if display_name(code.co_filename) == item.file and item.line is not None and code.co_firstlineno <= item.line <= _last_line(code):
            return function
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


def _block(function: types.FunctionType) -> list[str]:
    """Read the lines of a function, dedented; none where its file is not what it was made from."""
    code = function.__code__
    try:
        lines = inspect.getblock(lines_of(code.co_filename)[code.co_firstlineno - 1 :])
    except (SyntaxError, IndexError, ValueError):
        return []
    return textwrap.dedent("".join(lines)).splitlines()


def _parsed(function: types.FunctionType, block: list[str]) -> ast.FunctionDef | None:
    """Parse lines as a function; None for a lambda, and where they are no whole definition, or name what only its class can."""
    try:
        body = ast.parse("\n".join(block)).body[0]
    except (SyntaxError, IndexError, ValueError):
        return None
    if not isinstance(body, ast.FunctionDef) or _PRIVATE.search("\n".join(block)):
        return None
    return ast.increment_lineno(body, function.__code__.co_firstlineno - 1)


def _choice(function: types.FunctionType, line: int) -> Edit | None:
    """Write an `if` with one assignment to one name on each side, or on one, as `torch.where`; None where a line has no such `if`."""
    body = _parsed(function, _block(function)) if "torch" in function.__globals__ else None
    found = next((node for node in ast.walk(body) if isinstance(node, ast.If) and node.lineno == line), None) if body else None
    if found is None or len(found.body) > 1 or len(found.orelse) > 1:
        return None
    yes, no = found.body[0], next(iter(found.orelse), None)
    name = chosen_name(yes)
    if name is None or not is_one_truth(ast.unparse(found.test)) or (no is not None and chosen_name(no) != name):
        return None
    values = (ast.unparse(yes.value), name if no is None else ast.unparse(no.value))  # type: ignore[attr-defined]  # assignments
    return Edit(function, line, found.end_lineno or line, f"{name} = torch.where({ast.unparse(found.test)}, {', '.join(values)})")


def _edited_code(function: types.FunctionType, edits: list[Edit]) -> types.CodeType | None:
    """Compile a function with changes, inside one that has its free variables; None where it cannot be compiled by itself."""
    code = function.__code__
    block = _block(function)
    for edit in edits:
        first, end = (number - code.co_firstlineno for number in (edit.line, edit.last))
        if end >= len(block):
            return None
        old = block[first]
        block[first : end + 1] = [f"{old[: len(old) - len(old.lstrip())]}{edit.text or 'pass'}", *[""] * (end - first)]
    body = _parsed(function, block)
    if body is None:
        return None
    body.decorator_list = []
    around = ast.parse(f"def around({', '.join(code.co_freevars)}): pass")
    around.body[0].body = [body]  # type: ignore[attr-defined]  # a function
    compiled = compile(ast.fix_missing_locations(around), code.co_filename, "exec")
    inner = next(each for each in compiled.co_consts if isinstance(each, types.CodeType))
    edited = next(each for each in inner.co_consts if isinstance(each, types.CodeType))
    return edited if edited.co_freevars == code.co_freevars else None


def _codes(edits: tuple[Edit, ...]) -> list[tuple[Any, types.CodeType]]:
    """Compile the functions that are edited, with all their edits."""
    of_each = grouped((edit.function, edit) for edit in edits)
    return [(function, _edited_code(function, own) or function.__code__) for function, own in of_each.items()]


@contextlib.contextmanager
def _changed(codes: list[tuple[Any, types.CodeType]], settings: Mapping[str, Any]) -> Iterator[None]:
    """Give functions their changed code while the block lasts; what was compiled of theirs belongs to the old code, and comes back."""
    before = [(function, function.__code__) for function, _ in codes]
    try:
        for function, code in codes:
            function.__code__ = code
        with _torch.dynamo_settings(settings):
            yield
    finally:
        for function, code in before:
            function.__code__ = code
