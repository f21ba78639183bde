"""The flame graph as a file for speedscope.app: one profile of a call, and one of compiling, with the frames of the explorer.

Source: speedscope's "file-format-schema.json": sampled profiles, a stack of indices into the shared frames and a weight per sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ortlens.errors import UsageError
from ortlens.views.flame import COMPILE_PHASES, flame_of
from ortlens.views.flame_svg import frame_title
from ortlens.views.wording import PHASE_WORDS, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ortlens.trace.records import Capture
    from ortlens.views.flame import Frame, FrameKind

_PLACED: Mapping[FrameKind, Callable[[Capture], Any]] = {
    "graph": lambda capture: capture.graphs,
    "ort": lambda capture: capture.nodes,
    "torch": lambda capture: capture.nodes,
    "kernel": lambda capture: capture.kernels,
    "break": lambda capture: capture.breaks,
}
"""Records with a user line, by the kind of their frames."""


def speedscope_from_capture(capture: Capture) -> dict[str, Any]:
    """Make the file; refuse a capture in which nothing was called or compiled."""
    root = flame_of(capture).root
    shared = _Shared(capture)
    profiles = [
        profile
        for name, is_compiling in (("one call", False), ("compiling", True))
        if (profile := _profile(f"{visible(capture.name) or 'capture'}: {name}", root, shared, is_compiling=is_compiling))["samples"]
    ]
    if not profiles:
        raise UsageError("no call and no compilation was recorded, so there is no time to show: call the compiled function")
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": visible(capture.name) or "capture",
        "exporter": "ortlens",
        "activeProfileIndex": 0,
        "shared": {"frames": [dict(frame) for frame in shared.indices]},
        "profiles": profiles,
    }


@dataclass(slots=True)
class _Shared:
    capture: Capture
    indices: dict[tuple[tuple[str, Any], ...], int] = field(default_factory=dict)  # of the distinct frames

    def index(self, frame: Frame, outer: str) -> int:
        if frame.kind == "phase":
            about: dict[str, Any] = {"name": PHASE_WORDS[COMPILE_PHASES[frame.ref]]}
        else:
            about = {"name": frame_title(self.capture, frame, outer)}
        record = _PLACED[frame.kind](self.capture)[frame.ref] if frame.kind in _PLACED and frame.ref >= 0 else None
        if record is not None and record.file:
            about |= {"file": visible(record.file), **({} if record.line is None else {"line": record.line})}
        return self.indices.setdefault(tuple(about.items()), len(self.indices))


def _profile(name: str, root: Frame, shared: _Shared, *, is_compiling: bool) -> dict[str, Any]:
    """Walk the frames in the order of a call; each has a sample for what its inner frames leave of it."""
    samples: list[list[int]] = []
    weights: list[int] = []

    def walk(frame: Frame, above: list[int], outer: str) -> float:
        stack = above if is_compiling and frame is root else [*above, shared.index(frame, outer)]
        is_leaf = is_compiling and frame.kind == "phase"
        inner = [child for child in frame.children if is_compiling or child.kind != "phase"]
        spent = sum(walk(child, stack, frame.path or outer) for child in inner if not is_compiling or child.kind in ("graph", "phase"))
        whole = frame.ns if is_leaf else spent if is_compiling else frame.width
        if (own := round(whole - spent)) > 0:
            samples.append(stack)
            weights.append(own)
        return whole

    walk(root, [], "")
    timed = {"unit": "nanoseconds", "startValue": 0, "endValue": sum(weights)}
    return {"type": "sampled", "name": name, **timed, "samples": samples, "weights": weights}
