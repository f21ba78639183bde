"""Exceptions as text, for reasons, warnings and records."""

from __future__ import annotations

import re

from ortlens.errors import OrtLensError

LEFT_TO_TORCH = "a graph could not be prepared for ONNX Runtime and stays in PyTorch"
LOWERED_WITHOUT = "a graph could not be lowered with the backend's decompositions and was lowered without them"


def without_colours(text: str) -> str:
    """Remove the codes that colour text on a terminal, which the messages of `torch.onnx` have."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def innermost_cause(error: BaseException) -> BaseException:
    """Return what an exception was raised from in the end; an error of ours says itself what its cause does not."""
    while error.__cause__ is not None and not isinstance(error, OrtLensError):
        error = error.__cause__
    return error


def short_text(error: BaseException, limit: int = 300) -> str:
    """Format the innermost cause of an exception as class and message in one line of at most `limit` characters."""
    error = innermost_cause(error)
    text = " ".join(without_colours(str(error)).split())
    return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__, limit)


def shortened(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, with dots at its end where it is longer."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def full_text(error: BaseException, limit: int = 4000) -> str:
    """Format an exception and its causes, outermost first, one per line, in at most `limit` characters."""
    lines: list[str] = []
    current: BaseException | None = error
    while current is not None:
        lines.append(f"{type(current).__name__}: {current}".strip())
        current = current.__cause__
    return without_colours("\n".join(lines))[:limit]
