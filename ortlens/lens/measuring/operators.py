"""Counts the operators of a call, line by line: all of them, and those that PyTorch runs outside of compiled graphs."""

from __future__ import annotations

import functools
import inspect
import pathlib
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ortlens import _torch
from ortlens._shell import display_name
from ortlens.analysis.identity import function_part, plain_function
from ortlens.analysis.index import summed
from ortlens.backend.basis.provenance import StackFrame, innermost, is_model_code
from ortlens.lens.observing.break_texts import line_text
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from ortlens.trace.recorder import Recorder

_ROOMS = (pathlib.Path(__file__).parents[2] / "backend", pathlib.Path(__file__).parents[1] / "observing")
_PARTS = (("_functorch", "_aot_autograd"), ("_dynamo", "convert_frame.py"))
_INSIDE = ("<ortlens ", *map(str, _ROOMS), *(str(pathlib.Path(_torch.torch_folder(), *part)) for part in _PARTS))
"""What lies between the program and operators in graphs: what runs them, AOTAutograd around it, and Dynamo as it traces."""


class Place(NamedTuple):
    """Where the program runs an operator; empty where no line of it is known. Code that Dynamo made cannot be hashed."""

    file: str | None = None
    function: str = ""
    first: int | None = None  # line of the function
    is_generator: bool = False
    line: int | None = None
    entry: int | None = None  # line of the target that leads there

    @property
    def key(self) -> tuple[str | None, int | None, int | None]:
        """Equal for one line, whatever Dynamo made of its function."""
        return self.file, self.line, self.entry


class _Counting(_torch.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own has no annotations
    """Counts operators outside of graphs, by place and name."""

    def __init__(self, target: r.PythonFrame | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.target = target
        self.found: Counter[tuple[Place, str]] = Counter()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run: under another mode Dynamo would leave it."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Count an operator, and run it."""
        if (place := _place_of(sys._getframe(1), self.target)) is not None:  # noqa: SLF001 - `inspect.stack` reads the source of each frame
            self.found[place, str(func)] += 1
        return func(*args, **(kwargs or {}))


def count_operators(recorder: Recorder, call: Callable[[], Any], uncompiled: Callable[[], Any]) -> None:
    """Call a target twice, as it is and as compiled, and record the operators of its lines, and those of frames outside of graphs."""
    target = next(iter(recorder.records(r.PythonFrame)), None)  # the first that Dynamo met
    with _torch.uncompiled(), _Counting(target) as whole:
        uncompiled()
    with _Counting(target) as left:
        call()
    outside = summed((place.key, count) for (place, _), count in left.found.items())
    operators = summed((place.key, count) for (place, _), count in whole.found.items())
    here = {key: min(outside.get(key, 0), count) for key, count in operators.items()}
    # What leads to a line may differ when it is compiled.
    others = summed((key[:2], count - here.get(key, 0)) for key, count in outside.items())
    for key, count in operators.items():
        more = min(others.get(key[:2], 0), count - here[key])
        here[key], others[key[:2]] = here[key] + more, others.get(key[:2], 0) - more
    places = {place.key: place for place, _ in whole.found}
    recorder.replace_all(r.CallLine, (_line_record(places[key], count, here[key], target) for key, count in operators.items()))
    _note_frames(recorder, left.found)


def _line_record(place: Place, operators: int, outside: int, target: r.PythonFrame | None) -> r.CallLine:
    file, line, entry = place.key
    return r.CallLine(
        file=file and display_name(file),
        line=line,
        source=line_text(file, line),
        function=place.function,
        entry_file=None if entry is None or target is None else target.file,
        entry_line=entry,
        operators=operators,
        outside=outside,
    )


def _note_frames(recorder: Recorder, found: Counter[tuple[Place, str]]) -> None:
    """Record what functions run outside of graphs; one that Dynamo did not report was never tried."""
    known = {(frame.frame, frame.file, frame.line): frame for frame in recorder.records(r.PythonFrame)}
    ran: dict[tuple[str, str | None, int | None], Counter[str]] = {key: Counter() for key in known}
    for (place, name), count in found.items():
        if place.file is not None:
            key: tuple[str, str | None, int | None] = function_part(place.function), display_name(place.file), place.first
            ran.setdefault(key, Counter())[name] += count
            cause: r.FrameCause | None = "generator" if place.is_generator else None
            known.setdefault(key, r.PythonFrame(frame=key[0], file=key[1], line=key[2], status="skipped", cause=cause))
    for key, ops in ran.items():
        counts = tuple(f"{name}:{count}" for name, count in ops.most_common())
        recorder.add(replace(known[key], operators=ops.total(), ops=counts))


def _place_of(frame: FrameType | None, target: r.PythonFrame | None) -> Place | None:
    """Find the innermost line of the program above an operator, and that of the target; None for an operator inside of a graph."""
    found: list[tuple[CodeType, int]] = []
    entry, is_target = None, False
    while frame is not None and frame.f_code is not count_operators.__code__:
        code = frame.f_code
        if not found and code.co_filename.startswith(_INSIDE):
            return None
        if _is_of_the_program(code.co_filename, code.co_name):
            found.append((code, frame.f_lineno))
            was_target, is_target = is_target, target is not None and _is_part(code.co_qualname, code.co_filename, target)
            if is_target and not was_target:  # Dynamo runs a function in parts, one inside another
                entry = frame.f_lineno
        frame = frame.f_back
    frames = [StackFrame(code.co_filename, line, code.co_qualname) for code, line in reversed(found)]
    chosen = innermost(frames)
    if chosen is None:
        return Place()
    code, line = found[-1 - frames.index(chosen)]
    generates = bool(code.co_flags & inspect.CO_GENERATOR)
    return Place(code.co_filename, code.co_qualname, code.co_firstlineno, generates, line, entry)


@functools.lru_cache(maxsize=4096)
def _is_part(qualname: str, file: str, target: r.PythonFrame) -> bool:
    outer, dot, name = qualname.rpartition(".")
    return outer + dot + plain_function(name) == target.frame and display_name(file) == target.file


@functools.lru_cache(maxsize=4096)
def _is_of_the_program(file: str, function: str) -> bool:
    # torch/fx/graph_module.py: what runs a graph in PyTorch, of ours or of the program
    return not file.startswith("<eval_with_key>") and is_model_code(StackFrame(file, 1, plain_function(function)))
