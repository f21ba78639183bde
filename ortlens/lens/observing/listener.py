"""Listens to Dynamo: breaks, recompiles, names and compile phases, each passed to the lens that owns the backend.

torch writes a structured log of every compilation for tlparse. A handler on that logger receives it in process; nothing is
patched. While a backend compiles, the handler is removed: otherwise torch would print every graph of AOTAutograd into the log,
which takes as long as the compilation itself.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import time
import traceback
import weakref
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._shell import display_frames, display_name
from ortlens.analysis.identity import frame_of, function_part, plain_function
from ortlens.analysis.index import grouped
from ortlens.analysis.problems.guards import ERROR, guard_place, number_of_guard, recompile_traits, with_argument
from ortlens.analysis.problems.number_uses import ARGUMENT, LATER, uses_of_argument
from ortlens.backend.basis.provenance import StackFrame, innermost, is_model_code, is_of_a_library, is_of_torch_or_ortlens, is_wrapper
from ortlens.lens.observing.break_texts import (
    BreakText,
    break_from_text,
    cause_of_failure,
    is_break,
    line_text,
    lines_of,
    recompile_from_text,
    value_of,
    value_text,
)
from ortlens.trace import records as r
from ortlens.trace.guard import lens_failed, lens_guard
from ortlens.views.redaction import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType

    from ortlens._torch.aot import TracedSize
    from ortlens.trace.recorder import Recorder


_LAYER = re.compile(r"(LSTM|GRU|RNN)\(")


class DynamoWatch:
    """Receives for one lens what Dynamo does for its backend."""

    def __init__(self, recorder: Recorder, claims: Callable[[object], bool]) -> None:
        """Listen until this object is freed; `claims` tells whether a backend, as passed to `torch.compile`, belongs to this lens."""
        self.recorder = recorder
        self.claims = claims
        self.started: list[str] = []
        """Ids of the compilations for this lens, in order, of functions without a graph too: those reach no backend."""
        self._breaks: dict[tuple[object, ...], r.Break] = {}
        self._heard: dict[object, list[tuple[str, str]]] = {}  # entry -> (compile id, break id), in order
        self._boundaries: dict[str, int] = {}
        self._ahead: dict[str, str] = {}  # frame number -> the break before its graph
        self._entries: dict[object, int] = {}  # entry -> graphs so far, without recompiles
        self._recompiles: dict[str, str | None] = {}
        self._sizes: dict[str, set[TracedSize]] = {}  # frame number -> sizes that its versions were compiled for
        self._backend_ns: dict[str, int] = {}
        with lens_guard(recorder, "listening to torch's log"):
            _LISTENER.add(self)
        weakref.finalize(self, _LISTENER.leave_when_alone)

    def mark(self) -> Callable[[], None]:
        """Return what makes the watch know no more than now."""
        known = {name: {key: copy(item) for key, item in own.items()} for name, own in vars(self).items() if isinstance(own, dict)}
        return functools.partial(vars(self).update, known)

    def heard_start(self, compile_id: str) -> None:
        """Note that a compilation is for this lens."""
        self.started.append(compile_id)
        if compile_id.endswith("/0"):  # numbers start again after a reset
            self._sizes.pop(frame_of(compile_id), None)

    def on_graph_break(self, compile_id: str, text: str) -> None:
        """Record a graph break."""
        if is_break(text):  # the exception that causes a break is logged too, right before it
            self._record_break(compile_id, text)

    def _breaks_of(self, compile_id: str) -> Iterator[r.Break]:
        return (known for known in self._breaks.values() if compile_id in known.compile_ids)

    def _record_break(self, compile_id: str, text: str) -> None:
        heard = break_from_text(text)
        code = _code_of_the_model()
        said = _placed(heard, code)
        key = (said.reason, said.file, said.line)
        # Of a frame that PyTorch gives up it may name nothing but the first line.
        is_head = code is not None and (heard.file, heard.line) == (code.co_filename, code.co_firstlineno)
        known = self._breaks.get(key) or self._new_break(said, said if is_head else heard)
        if compile_id not in known.compile_ids:
            known = replace(known, compile_ids=(*known.compile_ids, compile_id))
        self._breaks[key] = known
        self._heard.setdefault(_torch.dynamo_entry(), []).append((compile_id, known.break_id))
        self.recorder.amend(r.Break, known.break_id, compile_ids=known.compile_ids)  # amended, not replaced: its cost may be known already

    def _new_break(self, said: BreakText, heard: BreakText) -> r.Break:
        own = [frame for frame in said.frames if not is_of_torch_or_ortlens(frame.file)]
        gb_id = said.gb_id or _torch.graph_break_registry().get(said.reason)
        made = r.Break(
            break_id=self.recorder.next_id("b"),
            gb_id=gb_id,
            reason=shortened(said.reason),
            explanation=said.explanation and shortened(said.explanation),
            hints=tuple(map(shortened, said.hints or _torch.graph_break_hints().get(gb_id or "", ()))),
            file=said.file and display_name(said.file),
            line=said.line,
            function=said.function,
            source=line_text(said.file, said.line),
            user_stack=display_frames(tuple(f"{frame.file}:{frame.line} {frame.function}" for frame in own or said.frames)),
            stop_source=heard.statement() or "",
            stop_function=heard.function,
            traits=tuple(_break_traits(heard)),
        )
        self.recorder.add(made)
        return made

    def break_ahead(self, compile_id: str | None) -> str | None:
        """Return the id of the break right before a graph; None for the first graph of a function."""
        return self._ahead.get(frame_of(compile_id))

    def last_breaks(self) -> tuple[str, ...]:
        """Return the ids of the breaks that no graph follows; empty if every break separates two graphs."""
        behind = set(self._ahead.values())
        return tuple(known.break_id for known in self._breaks.values() if known.break_id not in behind)

    def heard_recompile(self, compile_id: str, text: str) -> None:
        """Record a recompile."""
        scope = _torch.recompiled_scope()
        said = recompile_from_text(text, ours=self.started, look=functools.partial(value_text, scope=scope) if scope else None)
        if said is None:
            return
        self._recompiles[compile_id] = said.of_compile_id
        self.recorder.add(
            r.Recompile(
                compile_id=compile_id,
                of_compile_id=said.of_compile_id,
                guard=said.guard and shortened(said.guard),
                reason=shortened(said.reason),
                values=tuple(map(shortened, said.values)),
                traits=self._traits(compile_id, said.guard),
            )
        )

    def heard_metrics(self, compile_id: str, metrics: dict[str, Any]) -> None:
        """Fill in what Dynamo reports at the end of a compilation: fields of `torch._dynamo.utils.CompilationMetrics`."""
        self._heard_skip(compile_id, metrics)
        self._note_frame(compile_id, metrics)
        name, file, line = _torch.display_code(*_compiled_code(metrics))
        if not is_of_torch_or_ortlens(file) and (at := calling_line()) is not None:
            file, line = at.file, at.line
        place = {"name": plain_function(name) or None, "file": display_name(file) or None, "line": line}
        whole_ns = int(metrics.get("dynamo_cumulative_compile_time_us") or 0) * 1000
        dynamo_ns = max(whole_ns - self._backend_ns.get(compile_id, 0), 0)
        for graph in self.recorder.records(r.Graph):
            if graph.compile_id == compile_id:
                own = 0 if graph.phase == "backward" else dynamo_ns
                compile_ns = (graph.compile_ns or 0) - (graph.dynamo_ns or 0) + own
                self.recorder.amend(r.Graph, graph.graph_id, **place, dynamo_ns=own, compile_ns=compile_ns)
        if compile_id in self._recompiles:
            known: dict[str, Any] = {"function": place["name"], "file": place["file"], "line": place["line"]}
            row = next((row for row in self.recorder.records(r.Recompile) if row.compile_id == compile_id), None)
            is_unknown = row is not None and (place["file"] is None or ERROR.match(row.guard or ""))
            if row is not None and is_unknown and (at := _call_in_program()) is not None:
                named = functools.partial(with_argument, source=line_text(at.file, at.line) or "")
                known |= {"file": display_name(at.file), "line": at.line, "varying": tuple(map(named, row.varying))}
                known["guard"] = row.guard and named(row.guard)
            self.recorder.amend(r.Recompile, compile_id, dynamo_ns=dynamo_ns, **known)

    def _heard_skip(self, compile_id: str, metrics: dict[str, Any]) -> None:
        """Record a frame that Dynamo gave up as a break, if the log does not report it: in full graph mode, and at the recompile limit."""
        reason = metrics.get("fail_reason")
        if not reason or metrics.get("fail_type") != "Unsupported":
            return
        if cause_of_failure(str(reason)) == "limit":
            self._recompiles.pop(compile_id, None)  # it was not compiled again, which is what the break reports
            self._heard_limit(compile_id, str(reason))
            return
        if any(self._breaks_of(compile_id)):
            return
        file, line = metrics.get("fail_user_frame_filename"), metrics.get("fail_user_frame_lineno")
        self.on_graph_break(compile_id, f"Graph break in user code at {file}:{line}\n{reason}" if file and line else str(reason))

    def _note_frame(self, compile_id: str, metrics: Mapping[str, Any]) -> None:
        """Record what became of a function of the program, or of the part of it behind a graph break."""
        code, text = _code_of_the_model(), str(metrics.get("fail_reason") or "")
        if code is None or not is_model_code(_head(code)):
            return
        found = next(self._breaks_of(compile_id), None) if text else None
        place: dict[str, Any] = (
            {} if code.co_filename == _GENERATED else {"file": display_name(code.co_filename), "line": code.co_firstlineno}
        )
        self.recorder.add(
            r.PythonFrame(
                **place,
                frame=function_part(code.co_qualname).removeprefix("__create_fn__.<locals>."),
                status="compiled" if metrics.get("has_guarded_code") else "failed" if text else "skipped",
                reason=None if found is None and not text else shortened(found.reason if found is not None else text.partition("\n")[0]),
                cause=cause_of_failure(text) if text else None,
                break_id=None if found is None else found.break_id,
                compile_id=compile_id,
            )
        )

    def _heard_limit(self, compile_id: str, reason: str) -> None:
        """Record that Dynamo reached its recompile limit for a function, with the guard that failed each time."""
        refused = next((row for row in self.recorder.records(r.Recompile) if row.compile_id == compile_id), None)
        self.recorder.drop(r.Recompile, compile_id)
        if not any(self._breaks_of(compile_id)):
            self._record_break(compile_id, reason)
        made = next(self._breaks_of(compile_id), None)
        if made is not None and refused is not None:
            file, line = guard_place(replace(refused, file=refused.file or made.file))
            place = {"file": file, "line": line, "source": line_text(file, line)} if file and line else {}
            said = {"refused_guard": refused.guard, "refused_reason": refused.reason, "refused_values": refused.values}
            self.recorder.amend(r.Break, made.break_id, traits=refused.traits or (), **said, **place)

    @contextlib.contextmanager
    def backend_at_work(self) -> Iterator[str | None]:
        """Wrap the work of a backend on one Dynamo graph; yield the compile id."""
        compile_id = _torch.current_compile_id()
        self._count_boundary(compile_id)
        self._note_sizes(compile_id)
        started = time.perf_counter_ns()
        with _LISTENER.paused():
            yield compile_id
        if compile_id is not None:
            self._backend_ns[compile_id] = time.perf_counter_ns() - started
            for graph in self.recorder.records(r.Graph):
                if graph.compile_id == compile_id:
                    self.recorder.amend(r.Graph, graph.graph_id, recompile_of=self._recompiles.get(compile_id))

    def _note_sizes(self, compile_id: str | None) -> None:
        """Note the sizes that this version is compiled for, and those that it made constants, also for its recompile."""
        sizes = self._sizes.setdefault(frame_of(compile_id), set())
        sizes.update(_torch.traced_sizes())
        if compile_id in self._recompiles:
            guard = next(row.guard for row in self.recorder.records(r.Recompile) if row.compile_id == compile_id)
            values = grouped(((size.name, size.dim), size.value) for size in sizes)
            varying = tuple(f"{name}.size()[{dim}]" for (name, dim), seen in sorted(values.items()) if len(set(seen)) > 1 and min(seen) > 1)
            self.recorder.amend(r.Recompile, compile_id, traits=self._traits(compile_id, guard), varying=varying)

    def _traits(self, compile_id: str, guard: str | None) -> tuple[str, ...]:
        code = _torch.code_being_compiled()
        in_library = code is not None and is_of_a_library(code.co_filename) and _torch.is_compiled_by_itself()
        in_library = in_library or calling_line() is not None
        fixed = {(size.name, size.dim) for size in self._sizes.get(frame_of(compile_id), ()) if size.is_fixed}
        name = number_of_guard(guard or "")
        uses = () if name is None or code is None else uses_of_argument(lines_of(code.co_filename), code.co_firstlineno, name)
        known = recompile_traits(guard or "", fixed, is_dynamic=_torch.varies_from_the_start(), in_library=in_library)
        return (*known, *(ARGUMENT[use] for use in uses))

    def _count_boundary(self, compile_id: str | None) -> None:
        """Note the break before a graph, the last one logged before its compilation; count it unless the graph is its callable's first."""
        if compile_id is None or compile_id in self._recompiles:
            return
        entry = _torch.dynamo_entry()
        seen = self._entries.get(entry, 0)
        self._entries[entry] = seen + 1
        earlier = [break_id for heard_in, break_id in self._heard.get(entry, ()) if heard_in != compile_id]
        self._ahead.pop(frame_of(compile_id), None)  # numbers start again after a reset
        if not earlier:
            return
        self._ahead[frame_of(compile_id)] = earlier[-1]
        if seen:
            self._boundaries[earlier[-1]] = self._boundaries.get(earlier[-1], 0) + 1
            self.recorder.amend(r.Break, earlier[-1], occurrences=self._boundaries[earlier[-1]])


def _break_traits(heard: BreakText) -> Iterator[str]:
    flow = heard.flow()
    if flow is not None:
        yield from (LATER[use] for use in flow.uses)
        if flow.decides_by_size:
            yield "decides_by_size"
        if flow.in_data_loop:
            yield "in_data_loop"
        if flow.jumps:
            yield "jumps"
    if (kind := _recurrent_layer(heard)) is not None:
        yield f"{kind.lower()}_in_{'training' if torch.is_grad_enabled() else 'inference'}"


def _recurrent_layer(heard: BreakText) -> str | None:
    """Return the kind of the recurrent layer that Dynamo refuses: before torch 2.15 it writes the layer, since then only its place."""
    if not heard.recurrent:
        layer = _LAYER.match(heard.context)
        return layer and layer[1]
    with contextlib.suppress(LookupError):
        value = value_of(heard.recurrent, _torch.traced_scope())
        return next((kind.__name__ for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN) if isinstance(value, kind)), None)
    return None


class _TraceListener(logging.Handler):
    """The only handler of ours on torch's structured log; attached only while a lens listens."""

    writes_no_trace = True  # see `_torch.is_traced`

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._watches: weakref.WeakSet[DynamoWatch] = weakref.WeakSet()
        self._logger = logging.getLogger(_torch.TRACE_LOGGER)

    def add(self, watch: DynamoWatch) -> None:
        self._watches.add(watch)
        self._attach()

    def _attach(self) -> None:
        self._logger.setLevel(logging.DEBUG)
        self._logger.propagate = False  # as torch sets it while tracing; the records have no text for other handlers
        self._logger.addHandler(self)  # which does nothing for one that it has

    def leave_when_alone(self) -> None:
        if next(iter(self._watches), None) is None:  # not len(): the set may still count an object that is being freed
            self._logger.removeHandler(self)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self._logger.removeHandler(self)
        try:
            yield
        finally:
            if self._watches:
                self._attach()

    def emit(self, record: logging.LogRecord) -> None:
        """Dispatch one entry of the log; a failure here must not reach the user's compilation."""
        watch: DynamoWatch | None = None
        try:
            metadata = getattr(record, "metadata", None)
            if not isinstance(metadata, dict) or (event := _event_of(metadata)) is None:
                return
            backend = _torch.dynamo_backend()
            watch = next((watch for watch in self._watches if watch.claims(backend)), None)
            if watch is not None:
                self._tell(watch, event, metadata, str(getattr(record, "payload", "") or ""))
        except Exception as error:  # noqa: BLE001 - the lens's own failure becomes a finding and one warning
            for affected in list(self._watches) if watch is None else [watch]:  # whose entry it was is not known then
                lens_failed(affected.recorder, "listening to Dynamo", error)

    @staticmethod
    def _tell(watch: DynamoWatch, event: str, metadata: dict[str, Any], payload: str) -> None:
        compile_id = f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
        if event == "dynamo_start":
            watch.heard_start(compile_id)
        elif event == "dynamo_graph_break_reason":
            watch.on_graph_break(compile_id, payload)
        elif event == "recompile_reasons":
            watch.heard_recompile(compile_id, payload)
        else:
            metrics = metadata["compilation_metrics"]
            if not metrics.get("is_runtime"):
                watch.heard_metrics(compile_id, metrics)


def _event_of(metadata: dict[str, Any]) -> str | None:
    artifact = metadata.get("artifact")
    name = artifact.get("name") if isinstance(artifact, dict) else None
    known = name if name in ("dynamo_graph_break_reason", "recompile_reasons") else None
    return next((event for event in ("compilation_metrics", "dynamo_start") if event in metadata), known)


_LISTENER = _TraceListener()


_GENERATED = "<string>"  # file of code that was made from a text, as `__init__` of a dataclass is


def _compiled_code(metrics: Mapping[str, Any]) -> tuple[str, str, int | None]:
    """Return name, file and first line of the compiled code; for the decorator of a library, those of the function in it."""
    name, file, line = str(metrics.get("co_name") or ""), str(metrics.get("co_filename") or ""), metrics.get("co_firstlineno")
    if is_wrapper(StackFrame(file, line or 0, plain_function(name))) and (code := _torch.code_wrapped_by_compiled()) is not None:
        return code.co_name, code.co_filename, code.co_firstlineno
    return (name, "", None) if file == _GENERATED else (name, file, line)


def _code_of_the_model() -> CodeType | None:
    """Return the code being compiled; for the decorator of a library, that of the function in it."""
    code = _torch.code_being_compiled()
    if code is not None and is_wrapper(_head(code)):
        return _torch.code_wrapped_by_compiled() or code
    return code


def _head(code: CodeType) -> StackFrame:
    """Return the first line of a function."""
    return StackFrame(code.co_filename, code.co_firstlineno, plain_function(code.co_name))


def calling_line() -> StackFrame | None:
    """Find the user's line that runs uncompiled, and calls the function of a library that Dynamo compiles; None for any other code."""
    own = None if (code := _code_of_the_model()) is None else _head(code)
    chosen = None if own is None else innermost((*_callers(), own))
    return None if chosen is own else chosen


def _call_in_program() -> StackFrame | None:
    """Find the user's line that made the call for which Dynamo compiles."""
    stack = [StackFrame(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_stack(None)]
    found = innermost(stack[::-1])
    return found if found is not None and is_model_code(found) else None


def _callers() -> Iterator[StackFrame]:
    return (StackFrame(file, line, plain_function(name)) for file, line, name in _torch.callers_of_compiled())


def _placed(said: BreakText, code: CodeType | None) -> BreakText:
    """Name the line that a reader would change, which is not one of a library that the user's code calls."""
    frames = said.frames
    if code is not None and (frames or said.file is None):
        # PyTorch names no line where it gives up, and leaves out the compiled frame where its call of a module breaks.
        line = _torch.line_being_traced(code) or code.co_firstlineno
        frames = (*_callers(), StackFrame(code.co_filename, line, plain_function(code.co_name)), *_compiled_part(frames))
    chosen = innermost(frames)
    return said if chosen is None else replace(said, file=chosen.file, line=chosen.line, function=chosen.function)


def _compiled_part(frames: tuple[StackFrame, ...]) -> tuple[StackFrame, ...]:
    """Drop the frames around the compiled one, which run already: they are the callers of this function."""
    running = {(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(None)}
    around = next((place for place, frame in enumerate(frames) if (frame.file, frame.line) not in running), len(frames))
    return frames[around:]
