"""The ONNX models of a capture and the viewer that draws them, packed for the explorer: once per page, without weights."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.errors import OptionalDependencyError
from ortlens.units import counted
from ortlens.views.netron.frame import frame_html
from ortlens.views.netron.models import OPTIMIZED, attachment_name
from ortlens.views.netron.slim import SlimModel, slim_model
from ortlens.views.netron.viewer import LICENCE, TESTED, UnexpectedFilesError, Viewer, installed_viewer
from ortlens.views.netron.wire import WireError
from ortlens.views.wording import clipped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortlens.trace.records import Capture

MAX_MODEL_BYTES = 64 * 2**20
"""Models above this are not gone through: their weights are inside, and reading them would hold the page up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """What a page needs so that the explorer can show ONNX models."""

    frame: bytes
    """The frame's HTML, gzip'd: the viewer, without a model. Empty where Netron is not there; models can be saved then."""
    models: Mapping[str, bytes]
    """The models without weights, serialised and gzip'd, by id: `m0`, and `m0.optimized` where it was profiled."""
    notes: tuple[str, ...]
    """Sentences about what is not in it, and why."""
    licence: str
    """Notice that a page must carry that embeds the frame; empty without one."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the frame and all models; in base64 a third more."""
        return len(self.frame) + sum(map(len, self.models.values()))


def embedding(capture: Capture, *, budget_bytes: int | None = None) -> Embedding:
    """Pack a capture's models for the explorer; never raises for what a capture or the installed Netron holds.

    Within `budget_bytes`, gzip'd and frame included, models with many nodes go first, rewritten ones last; sentences say what was left out.
    """
    slim, notes = _slim_models(capture)
    frame, viewer_notes, licence = _frame(slim) if slim else (b"", [], "")
    if budget_bytes is not None and len(frame) > budget_bytes:
        frame, licence = b"", ""
        viewer_notes = [f"Netron ({len(frame):,} bytes) does not fit into this page; save a model to open it elsewhere."]
    models, dropped = _within(slim, None if budget_bytes is None else budget_bytes - len(frame))
    if dropped:
        notes.append(f"Left out so that the page stays small: {_names(dropped)}. lens.netron(...) shows each of them.")
    return Embedding(frame=frame, models=models, notes=(*viewer_notes, *notes), licence=licence)


def _slim_models(capture: Capture) -> tuple[dict[str, SlimModel], list[str]]:
    """Collect the models that can be drawn, the largest first, the rewritten ones behind, and sentences about the others."""
    found: dict[str, SlimModel] = {}
    absent: list[str] = []
    damaged: list[str] = []
    large: list[str] = []
    for optimized in (False, True):
        for model in sorted(capture.models, key=lambda model: -model.node_count):
            name = f"{model.model_id}{OPTIMIZED}" if optimized else model.model_id
            data = capture.attachments.get(attachment_name(model, optimized=optimized))
            if data is None:
                absent += [] if optimized else [name]
            elif len(data) > MAX_MODEL_BYTES:
                large.append(name)
            else:
                _add(found, damaged, name, data)
    return found, _sentences(absent, damaged, large)


def _add(found: dict[str, SlimModel], damaged: list[str], name: str, data: bytes) -> None:
    try:
        found[name] = slim_model(data)
    except WireError as err:
        damaged.append(f"{clipped(name, 40)} ({err})")


def _sentences(absent: list[str], damaged: list[str], large: list[str]) -> list[str]:
    notes = []
    if absent:
        notes.append(f"This capture holds only metadata of {_names(absent)}: redacted captures contain no models.")
    if damaged:
        notes.append(f"Damaged, and left out: {_names(damaged)}.")
    if large:
        notes.append(f"Larger than {MAX_MODEL_BYTES // 2**20} MB, and left out: {_names(large)}. lens.netron(...) shows each of them.")
    return notes


def _names(names: list[str], shown: int = 6) -> str:
    listed = ", ".join(clipped(name, 120) for name in names[:shown])
    return f"{listed} and {counted(len(names) - shown, 'other')}" if len(names) > shown else listed


def _frame(slim: Mapping[str, SlimModel]) -> tuple[bytes, list[str], str]:
    try:
        viewer = installed_viewer("The ONNX panel")
    except OptionalDependencyError as err:
        return b"", [f"{err}."], ""
    except UnexpectedFilesError as err:
        why = clipped(str(err), 200)
        return b"", [f"The installed Netron differs from {TESTED} ({why}): models can be saved here and opened in Netron itself."], ""
    return gzip.compress(frame_html(viewer, list(slim.values())).encode(), 9, mtime=0), _untested(viewer), LICENCE


def _untested(viewer: Viewer) -> list[str]:
    return [] if viewer.tested else [f"ortlens was tested with Netron {TESTED}; {viewer.version} is installed."]


def _within(slim: Mapping[str, SlimModel], budget: int | None) -> tuple[dict[str, bytes], list[str]]:
    kept: dict[str, bytes] = {}
    dropped = []
    for name, model in slim.items():
        data = gzip.compress(model.data, 9, mtime=0)
        if budget is None or len(data) <= budget:
            kept[name] = data
            budget = None if budget is None else budget - len(data)
        else:
            dropped.append(name)
    return kept, dropped
