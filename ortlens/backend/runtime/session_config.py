"""What a session is made of: model, options, execution providers, threads, and the rewrites to do without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnxruntime

from ortlens.backend.runtime import providers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from ortlens.backend.runtime import threads

_WRONG_OPTIMIZERS = ("Pad_Fusion",)
"""Rewrites of ONNX Runtime that change the numbers: Pad_Fusion takes a Pad with zeros into a MaxPool, which pads with -inf."""

_NORM_OPTIMIZERS = ("LayerNormFusion", "LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion")
"""They take an epsilon that is no constant for the default of 1e-5 (`layer_norm_fusion.cc`), which changes the numbers. ONNX Runtime
1.31 has two of the first, by level; a name that a version does not know does no harm."""

_SLOW_OPTIMIZERS = ("SkipLayerNormFusion",)
"""Rewrites that cost time on the CPU: an addition and a normalisation of [64, 256] take 12 us, the operator made of both 71 us."""

_QUIET = 4  # ONNX Runtime's severity "fatal": what it refuses is raised, and told with its reason, anyway


class ModelRefused(Exception):  # noqa: N818 - said of a model, caught where it is planned anew
    """ONNX Runtime does not take a model; the cause is what it raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Everything that ONNX Runtime needs to create a session.

    Attributes:
        model: The model, with frozen weights as initializers.
        options: Its options.
        providers: Names and options of the execution providers, in order.
        threads: The threads it works with, and why.
    """

    model: onnx.ModelProto
    options: onnxruntime.SessionOptions
    providers: list[tuple[str, dict[str, Any]]]
    threads: threads.ThreadChoice

    def session(self, serialized: bytes, *, without: Sequence[str] = ()) -> onnxruntime.InferenceSession:
        """Make a session.

        Args:
            serialized: The model's bytes.
            without: Rewrites of ONNX Runtime to do without, beside those that are never wanted.

        Returns:
            The session.

        Raises:
            ModelRefused: ONNX Runtime does not take the model.
        """
        try:
            return onnxruntime.InferenceSession(
                serialized,
                self.options,
                providers=self.providers,
                enable_fallback=0,
                disabled_optimizers=[*unwanted_rewrites(self.model, self.providers), *_left_out_by_user(self.options), *without],
            )
        except Exception as error:
            raise ModelRefused(str(error)) from error


def default_session_options(choice: threads.ThreadChoice) -> onnxruntime.SessionOptions:
    """Options for sessions of which the user said nothing.

    Args:
        choice: The threads.

    Returns:
        Options of one session.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    choice.apply(options)
    return options


def unwanted_rewrites(model: onnx.ModelProto, chosen: Sequence[tuple[str, Any]]) -> list[str]:
    """Rewrites of ONNX Runtime to do without.

    Args:
        model: The model, with frozen weights as initializers.
        chosen: Names and options of execution providers.

    Returns:
        Names of optimizers.
    """
    on_cpu_only = all(name == providers.CPU for name, _ in chosen)
    norms = () if _epsilons_are_constant(model) else _NORM_OPTIMIZERS
    return [*_WRONG_OPTIMIZERS, *norms, *(_SLOW_OPTIMIZERS if on_cpu_only else ())]


def _left_out_by_user(options: onnxruntime.SessionOptions) -> list[str]:
    """The rewrites that the user's options leave out: names given with the session would take the place of theirs."""
    try:
        return [name for name in options.get_session_config_entry(_LEFT_OUT).split(";") if name]
    except RuntimeError:  # there is no such entry
        return []


_LEFT_OUT = "optimization.disable_specified_optimizers"


def _epsilons_are_constant(model: onnx.ModelProto) -> bool:
    """Whether every sum under a square root has a constant in it."""
    constants = {tensor.name for tensor in model.graph.initializer}
    sums = {node.output[0]: node for node in model.graph.node if node.op_type == "Add"}
    under = [sums[node.input[0]] for node in model.graph.node if node.op_type == "Sqrt" and node.input[0] in sums]
    return all(constants.intersection(node.input) for node in under)
