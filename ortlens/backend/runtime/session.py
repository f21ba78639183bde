"""The configuration of a session: model, options, execution providers and threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnxruntime

from ortlens.backend.runtime import _ort
from ortlens.backend.runtime.rewrites import unwanted_rewrites

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from ortlens.backend.runtime import threads

_QUIET = 4  # ONNX Runtime's severity "fatal": errors are raised with their reason anyway


class ModelRefused(Exception):  # noqa: N818 - a verdict on a model; the graph is then planned again
    """ONNX Runtime rejects a model; its own exception is the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Everything that ONNX Runtime needs to create a session.

    Attributes:
        model: The model, with frozen weights as initializers.
        options: Options of the session.
        providers: Names and options of the execution providers, in order.
        threads: Threads of the session, and why these.
        weights: Values that the options refer to; the session is given them to keep alive.
    """

    model: onnx.ModelProto
    options: onnxruntime.SessionOptions
    providers: list[tuple[str, dict[str, Any]]]
    threads: threads.ThreadChoice
    weights: Sequence[Any] = ()

    def session(self, serialized: bytes, *, without: Sequence[str] = ()) -> onnxruntime.InferenceSession:
        """Create the session, with `without` disabled besides the rewrites that always are.

        Raise `ModelRefused` if ONNX Runtime rejects the model.
        """
        try:
            made = onnxruntime.InferenceSession(
                serialized,
                self.options,
                providers=self.providers,
                enable_fallback=0,
                disabled_optimizers=[*unwanted_rewrites(self.model, self.providers), *_disabled_by_user(self.options), *without],
            )
        except Exception as error:
            raise ModelRefused(str(error)) from error
        _ort.keep_with(made, self.weights)
        return made


WITHOUT_OVERFLOW = ("session.x64quantprecision", "1")
"""On a CPU with AVX2 and without VNNI, products of 8-bit integers with signed weights overflow 16 bits. This makes ONNX Runtime compute
with unsigned ones there; on other CPUs it changes nothing."""


def default_session_options(choice: threads.ThreadChoice) -> onnxruntime.SessionOptions:
    """Make the options of one session for when the user gives no `ort_session_options`."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    options.add_session_config_entry(*WITHOUT_OVERFLOW)
    choice.apply(options)
    return options


def _disabled_by_user(options: onnxruntime.SessionOptions) -> list[str]:
    """List the rewrites that the user's options disable: names passed with the session would replace these."""
    try:
        return [name for name in options.get_session_config_entry(_DISABLED_ENTRY).split(";") if name]
    except RuntimeError:  # there is no such entry
        return []


_DISABLED_ENTRY = "optimization.disable_specified_optimizers"
