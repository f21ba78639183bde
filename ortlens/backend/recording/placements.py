"""Which execution provider runs what of a session, from ONNX Runtime's own record, and why the preferred one does not run the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.trace.recorder import Recorder


def explained(recorder: Recorder, session_id: str, messages: Sequence[str]) -> None:
    """Put what ONNX Runtime said about the making of a session beside the providers and nodes that it explains."""
