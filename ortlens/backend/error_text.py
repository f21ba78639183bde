"""Exceptions as text, for reasons, warnings and records."""

from __future__ import annotations

from ortlens.errors import OrtLensError

LEFT_TO_TORCH = "a graph could not be prepared for ONNX Runtime and stays in PyTorch"
LOWERED_WITHOUT = "a graph could not be lowered with the backend's decompositions and was lowered without them"


def short_text(error: BaseException, limit: int = 300) -> str:
    """The innermost cause of an exception, in one line.

    Args:
        error: The exception.
        limit: The longest text, in characters.

    Returns:
        Class and message.
    """
    while error.__cause__ is not None and not isinstance(error, OrtLensError):
        error = error.__cause__
    text = " ".join(str(error).split())
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= limit else line[: limit - 3] + "..."


def full_text(error: BaseException, limit: int = 4000) -> str:
    """An exception and its causes, outermost first, one per line.

    Args:
        error: The exception.
        limit: The longest text, in characters.

    Returns:
        Classes and messages.
    """
    lines: list[str] = []
    current: BaseException | None = error
    while current is not None:
        lines.append(f"{type(current).__name__}: {current}".strip())
        current = current.__cause__
    return "\n".join(lines)[:limit]
