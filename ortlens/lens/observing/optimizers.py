"""ONNX Runtime's rewrites and their levels by name, and which are to blame. Standard library only: it also runs beside other versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEVELS = {"disable": "ORT_DISABLE_ALL"} | {name: f"ORT_ENABLE_{name.upper()}" for name in ("basic", "extended", "layout", "all")}
"""Levels of optimisation, from none to all, and their names in `onnxruntime.GraphOptimizationLevel`."""

OPTIMIZERS: tuple[str, ...] = (
    *("EliminateIdentity", "EliminateSlice", "UnsqueezeElimination", "EliminateDropout", "ExpandElimination", "CastElimination"),
    *("PreShapeNodeElimination", "NoopElimination", "DivMulFusion", "FuseReluClip", "GemmSumFusion", "GemmTransposeFusion"),
    *("NotWhereFusion", "ConvAddFusion", "ConvMulFusion", "ConvBNFusion", "Pad_Fusion", "MatMul_BatchNormalization_Fusion"),
    *("CastChainElimination", "LabelEncoderFusion", "ClipQuantRewrite", "ReluQuantRewrite"),
    *("ConstantSharing", "CommonSubexpressionElimination", "ConstantFolding", "MatMulAddFusion", "ReshapeFusion"),
    *("SliceConcatToSpaceToDepthFusion", "GeluFusionL1", "LayerNormFusionL1", "TransposeOptimizer"),
    *("DoubleQDQPairsRemover", "QDQPropagationTransformer", "WeightBiasQuantization", "EnsureUniqueDQForNodeUnit", "WhereDummyDq"),
    *("TransposeOptimizer_CPUExecutionProvider", "QDQS8ToU8Transformer", "QDQSelectorActionTransformer", "QDQFinalCleanupTransformer"),
    *("GemmActivationFusion", "MatMulIntegerToFloatFusion", "DynamicQuantizeMatMulFusion", "ConvActivationFusion", "GeluFusionL2"),
    *("LayerNormFusionL2", "SimplifiedLayerNormFusion", "AttentionFusion", "EmbedLayerNormFusion", "GatherSliceToSplitFusion"),
    *("GatherToSliceFusion", "MatmulTransposeFusion", "BiasGeluFusion", "GroupQueryAttentionFusion", "SkipLayerNormFusion"),
    *("BiasSkipLayerNormFusion", "FastGeluFusion", "QuickGeluFusion", "BiasSoftmaxFusion", "BiasDropoutFusion", "MatMulScaleFusion"),
    "SwiGluFusion",
    *("MatMulActivationFusion", "MatMulNBitsFusion", "GroupQueryAttentionPreNormFusion", "NchwcTransformer", "NhwcTransformer"),
    *("ConvAddActivationFusion", "RemoveDuplicateCastTransformer", "CastFloat16Transformer"),
)
"""Rewrites of ONNX Runtime that can be disabled by name, as listed in its verbose log; unknown names are ignored.

Source: `onnxruntime/core/optimizer/graph_transformer_utils.cc`. A test compares them with the log of the installed version."""


def narrowed(names: Sequence[str], is_right: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """Find the fewest names to disable by halving, several if neither half suffices; none if even disabling all leaves the value wrong."""
    if not is_right(names):
        return ()
    left = list(names)
    while len(left) > 1:
        half = len(left) // 2
        smaller = next((part for part in (left[:half], left[half:]) if is_right(part)), None)
        if smaller is None:
            break
        left = smaller
    for name in list(left) if len(left) > 1 else ():
        rest = [other for other in left if other != name]
        if is_right(rest):
            left = rest
    return tuple(left)


def breaking(load: Callable[[Sequence[str]], object]) -> tuple[str, ...]:
    """Find the rewrites without which a model that is refused can be loaded; `load` gets the names to disable, and raises."""

    def loads(without: Sequence[str]) -> bool:
        try:
            load(without)
        except Exception:  # noqa: BLE001 - of ONNX Runtime, which has classes of its own
            return False
        return True

    return narrowed(OPTIMIZERS[::-1], loads)  # where a fusion breaks what an elimination reads, either suffices: the fusion is named
