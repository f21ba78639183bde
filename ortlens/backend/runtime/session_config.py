"""The configuration of a session: model, options, execution providers, threads, and the rewrites to disable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from ortlens.backend.runtime import providers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from ortlens.backend.runtime import threads

_WRONG_OPTIMIZERS = ("Pad_Fusion",)
"""Rewrites that change results: Pad_Fusion fuses a Pad with zeros into a MaxPool, which pads with -inf."""

_NORM_OPTIMIZERS = ("LayerNormFusion", "LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion")
"""They replace an epsilon that is not a constant by 1e-5 (`layer_norm_fusion.cc`), which changes results. ONNX Runtime 1.31 has two
variants of the first, by level. Names that a version does not know are ignored."""

_SCALE_OPTIMIZERS = ("MatMulScaleFusion",)
"""They move a factor into an attribute, which has 32 bits, also where the matrices have 64 (`matmul_scale_fusion.cc`)."""

_SLOW_OPTIMIZERS = ("SkipLayerNormFusion",)
"""Rewrites that are slower on the CPU: an addition and a normalisation of [64, 256] take 12 us, the fused operator 71 us."""

_DOUBLE = 11  # in onnx.TensorProto

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
    """

    model: onnx.ModelProto
    options: onnxruntime.SessionOptions
    providers: list[tuple[str, dict[str, Any]]]
    threads: threads.ThreadChoice

    def session(self, serialized: bytes, *, without: Sequence[str] = ()) -> onnxruntime.InferenceSession:
        """Create the session.

        Args:
            serialized: The model, serialized.
            without: Rewrites of ONNX Runtime to disable, besides those that are always disabled.

        Returns:
            The session.

        Raises:
            ModelRefused: ONNX Runtime rejects the model.
        """
        try:
            return onnxruntime.InferenceSession(
                serialized,
                self.options,
                providers=self.providers,
                enable_fallback=0,
                disabled_optimizers=[*unwanted_rewrites(self.model, self.providers), *_disabled_by_user(self.options), *without],
            )
        except Exception as error:
            raise ModelRefused(str(error)) from error


def default_session_options(choice: threads.ThreadChoice) -> onnxruntime.SessionOptions:
    """Options of a session when the user gives no `ort_session_options`.

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
    """Rewrites of ONNX Runtime to disable.

    Args:
        model: The model, with frozen weights as initializers.
        chosen: Names and options of execution providers.

    Returns:
        Names of optimizers.
    """
    on_cpu_only = all(name == providers.CPU for name, _ in chosen)
    norms = () if _epsilons_are_constant(model) else _NORM_OPTIMIZERS
    scales = () if _scales_fit_float32(model) else _SCALE_OPTIMIZERS
    return [*_WRONG_OPTIMIZERS, *norms, *scales, *(_SLOW_OPTIMIZERS if on_cpu_only else ())]


def _disabled_by_user(options: onnxruntime.SessionOptions) -> list[str]:
    """The rewrites that the user's options disable: names passed with the session would replace these."""
    try:
        return [name for name in options.get_session_config_entry(_DISABLED_ENTRY).split(";") if name]
    except RuntimeError:  # there is no such entry
        return []


_DISABLED_ENTRY = "optimization.disable_specified_optimizers"


def _scales_fit_float32(model: onnx.ModelProto) -> bool:
    """Whether float32 holds every single number of the model that is a float64."""
    from onnx import numpy_helper

    constants = [attribute.t for node in model.graph.node if node.op_type == "Constant" for attribute in node.attribute]
    doubles = [tensor for tensor in (*model.graph.initializer, *constants) if tensor.data_type == _DOUBLE and math.prod(tensor.dims) == 1]
    scales = np.array([numpy_helper.to_array(tensor).item() for tensor in doubles if not tensor.external_data])
    with np.errstate(over="ignore"):
        return bool((scales.astype(np.float32) == scales).all())


def _epsilons_are_constant(model: onnx.ModelProto) -> bool:
    """Whether every sum under a square root has a constant operand."""
    constants = {tensor.name for tensor in model.graph.initializer}
    sums = {node.output[0]: node for node in model.graph.node if node.op_type == "Add"}
    under = [sums[node.input[0]] for node in model.graph.node if node.op_type == "Sqrt" and node.input[0] in sums]
    return all(constants.intersection(node.input) for node in under)
