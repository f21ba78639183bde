"""Every error that ortlens raises on purpose.

A message says what happened (with the actual values), where (graph, node, user file and line) and what to do
about it. The classes that double as built-in ones do so because callers already catch those: a wrong option is a
`ValueError` to the rest of Python, a missing package an `ImportError`, a broken limit an `AssertionError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def near_hint(word: str, known: Iterable[str]) -> str:
    """Ask whether another word was meant, as ` Did you mean show?`; empty if no word is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


class OrtLensError(Exception):
    """Root of the errors that ortlens raises on purpose."""


class UsageError(OrtLensError, ValueError):
    """The caller passed something invalid: an unknown option, a wrong value."""


class OptionalDependencyError(OrtLensError, ImportError):
    """A package that this feature needs is not installed; the message names it and the install line."""


class UnsupportedVersionError(OrtLensError):
    """An installed package is outside the supported range."""


class ConversionError(OrtLensError):
    """A partition could not be turned into an ONNX model."""


class SessionError(OrtLensError):
    """ONNX Runtime refused a model or failed to run it."""


class CaptureError(OrtLensError):
    """A capture file is missing, damaged, hostile or from an unknown schema version."""


class CheckFailed(OrtLensError, AssertionError):  # noqa: N818 - the public name is part of the contract
    """A capture breaks one of the limits it was checked against."""
