"""Which ONNX models a capture holds, and what is said of those that it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.errors import CaptureError, UsageError
from ortlens.units import counted
from ortlens.views.wording import clipped

if TYPE_CHECKING:
    from ortlens.trace.records import Capture, Model

OPTIMIZED = ".optimized"
"""End of the id of a model as ONNX Runtime runs it, after its own rewrites."""

_LISTED = 12


def model_named(capture: Capture, name: object) -> Model:
    """Find a model by its id or its partition's; the `UsageError` for an unknown name lists what exists."""
    for model in capture.models:
        if name in (model.partition_id, model.model_id):
            return model
    raise UsageError(_nothing_called(capture, name))


def attached_model(capture: Capture, model: Model, *, optimized: bool) -> bytes:
    """Get a model's bytes out of a capture; `optimized` takes what ONNX Runtime made of it, known only where it was profiled."""
    found = capture.attachments.get(attachment_name(model, optimized=optimized))
    if found is not None:
        return found
    if optimized and attachment_name(model, optimized=False) in capture.attachments:
        raise UsageError(
            f"the optimized version of model {model.model_id} is not known yet: call lens.profile(...) first. "
            f"Without optimized=True, the converted model is shown"
        )
    raise CaptureError(
        f"model {model.model_id} of partition {model.partition_id} is not in this capture, "
        f"only its metadata ({counted(model.node_count, 'node')}). "
        "Redacted captures leave models out: load the capture as it was saved, or record it again"
    )


def attachment_name(model: Model, *, optimized: bool) -> str:
    """Name the member of a capture that holds a model's bytes, as `models/m0.onnx`."""
    # Never `model.path`: a loaded capture may name any file of this machine there.
    return f"models/{model.model_id}{OPTIMIZED if optimized else ''}.onnx"


def _nothing_called(capture: Capture, name: object) -> str:
    asked = clipped(repr(name), 80)
    if not capture.models:
        return f"there is no partition or model {asked}: this capture has none. A backend other than ortlens creates no ONNX models"
    pairs = [f"{model.partition_id} ({model.model_id})" for model in capture.models]
    more = f" and {len(pairs) - _LISTED} more, see .partitions" if len(pairs) > _LISTED else ""
    return f"there is no partition or model {asked} in this capture; it has {', '.join(pairs[:_LISTED])}{more}"
