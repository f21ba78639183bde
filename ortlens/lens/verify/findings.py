"""The findings of `verify`: what differs, why, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.analysis.catalogue import remedy
from ortlens.lens.verify.verdicts import Verdict
from ortlens.trace import records as r
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.fx

    from ortlens.lens.verify.bisect import Cause
    from ortlens.lens.verify.compare_values import Comparison
    from ortlens.lens.verify.nonfinite import Origin

RULES = ("call_differs", "numbers_differ", "loses_accuracy", "fusion_changes_numbers", "nonfinite_origin")

_REWRITES = ("ort", "optimizer", "transform")
_NAMED = 3  # parts of a call that a title names

_CALL_CAUSES = {
    "boundary": "With PyTorch's numbers in ONNX Runtime's outputs it still differs, and PyTorch alone on the same graphs is right: the "
    "fault is at the boundary (memory shared by views, strides, order of outputs, the code between partitions)",
    "lowering": "PyTorch alone on the lowered graphs differs as well: the fault is in the lowering (a decomposition, or torch.compile "
    "itself), before ONNX Runtime",
    "inside": "With PyTorch's numbers in ONNX Runtime's outputs it is right: the fault is in the numbers of ONNX Runtime",
    "unsought": "Where it comes from was not looked for: the time was over",
}
_CALL_MITIGATIONS = {
    "boundary": remedy(
        "Report it with the function and its inputs.",
        "Until then, OrtBackendOptions(min_partition_nodes=1_000_000) leaves the function to PyTorch.",
        min_partition_nodes=1_000_000,
    ),
    "lowering": remedy('Try torch.compile(..., backend="aot_eager"): if it differs too, report it to PyTorch, else to ortlens.'),
    "inside": remedy("See the finding about that value; lens.repro writes the evidence."),
    "unsought": remedy("Call verify again with a larger budget_s, which finds out where it comes from."),
    "": remedy("Report it with the function and its inputs."),
}


def finding_of_value(suspect: Verdict, cause: Cause, node: torch.fx.Node, partition_id: str) -> r.Finding:
    """Describe the first wrong value of a partition; `node` is at fault."""
    row = suspect.row(partition_id)
    figures = f"max_abs {row.max_abs}, max_rel {row.max_rel}, atol {row.atol}, rtol {row.rtol}"
    return r.Finding(
        rule=_rule(cause),
        subject=cause.node,
        severity="error",
        title=f"{_what(cause, node)}{_distance(suspect) if cause.kind != 'check' else ''}{_times(suspect, cause)}",
        file=row.file,
        line=row.line,
        evidence=f"{cause.text}. {figures}; closer to fp64: {row.closer_to_fp64 or 'unknown'}",
        hazard="Rounding errors add up in ONNX Runtime far more than in PyTorch; they grow with the number of elements."
        if cause.kind == "accuracy"
        else "The results of the model differ from PyTorch's by more than rounding explains.",
        **_mitigation(cause),
    )


def _rule(cause: Cause) -> str:
    if cause.kind == "accuracy":
        return "loses_accuracy"
    return "fusion_changes_numbers" if cause.kind in _REWRITES else "numbers_differ"


def _what(cause: Cause, node: torch.fx.Node) -> str:
    if cause.kind == "accuracy":
        return f"{cause.node} ({node.target}) is far less accurate in ONNX Runtime than in PyTorch: off"
    if cause.kind == "stale":
        return f"a session holds outdated weights: {cause.node} ({node.target}) differs"
    if cause.kind == "check":
        return f"{cause.node} ({node.target}) accepts what PyTorch refuses"
    by = f" ({' and '.join(cause.optimizers)})" if cause.optimizers else ""
    return f"a rewrite of the model{by} changes {cause.node}" if cause.kind in _REWRITES else f"{cause.node} ({node.target}) differs"


def _times(suspect: Verdict, cause: Cause) -> str:
    found = suspect.comparison
    if cause.kind != "accuracy" or found is None or not found.ort_error or not found.eager_error:
        return ""
    return f", {found.ort_error / found.eager_error:,.0f} times PyTorch's error"


def _distance(verdict: Verdict) -> str:
    found = verdict.comparison
    if found is None:
        return ": another shape"
    if found.clashes and found.within:
        return ": NaN or infinite on one side only"
    return f" {_up_to(found)}"


def _up_to(found: Comparison) -> str:
    """Describe a difference, and what it is measured against."""
    return f"by up to {found.max_abs:.3g}" + (f" ({found.max_rel:.2g} of its size)" if found.max_rel else "")


def _mitigation(cause: Cause) -> dict[str, Any]:
    if cause.optimizers:
        names = ";".join(cause.optimizers)
        return remedy(
            "Disable the rewrite: set options = onnxruntime.SessionOptions(), "
            f'options.add_session_config_entry("optimization.disable_specified_optimizers", "{names}") as ort_session_options; '
            "and report it to ONNX Runtime."
        )
    return _MITIGATIONS.get(cause.kind, remedy("Compare the operators one by one: verify(..., per_op=True)."))


_MITIGATIONS = {
    "accuracy": remedy(
        "Compute this line in float64 (x.double()), reduce in stages (over one dimension after the other), or subtract a "
        "typical value first; report it if PyTorch is accurate without that."
    ),
    "memory": remedy("Pass a plain copy: x.resolve_conj().resolve_neg().contiguous().", "Report it to ortlens."),
    "check": remedy(
        "Check these inputs before the call.", "If no function in custom_translation_table is the cause, report it to ortlens."
    ),
    "converter": remedy("Pass another function in custom_translation_table, or fix the one passed there; if it is not yours, report it."),
    "transform": remedy("Fix the transform, or remove it."),
    "optimizer": remedy("Report it with the model, which is right as converted."),
    "ort": remedy("Lower the level: ort_session_options with graph_optimization_level = ORT_DISABLE_ALL.", "Report it to ONNX Runtime."),
    "stale": remedy(
        "Change weights under torch.no_grad() with in-place operators or load_state_dict, which PyTorch's version counter "
        "notices; or set freeze_weights=False.",
        freeze_weights=False,
    ),
}


def finding_of_origin(origin: Origin, partition_id: str) -> r.Finding:
    """Describe the first NaN or infinity."""
    row = Verdict(node=origin.node.name, scope="value", place=0, line_of=origin.node).row(partition_id)
    return r.Finding(
        rule="nonfinite_origin",
        subject=row.node,
        severity="warning",
        title=f"{origin.kind} comes from {row.node} ({origin.node.target})",
        file=row.file,
        line=row.line,
        evidence=f"{row.node} {origin.note}; it reaches an output of {partition_id}.",
        hazard="NaN and infinities spread to all values that are computed from them.",
        mitigation="Scale the values down before this line, or compute it in bfloat16 or float32, which have a larger range."
        if origin.overflow
        else "Keep the inputs of this line in range: add an epsilon to a divisor, clamp before a logarithm or a root.",
    )


def finding_of_call(wrong: Sequence[Verdict], cause: str, inside: r.Numeric | None, prefix: str = "") -> r.Finding:
    """Describe a call whose results, effects or gradients differ; `inside` is the first wrong value in a partition, if there is one.

    `cause` is `CallCheck.cause`; `prefix` is the name of the function and a colon, if several were compiled.
    """
    row = wrong[0].row(None)
    others = len(wrong) - 1
    parts = "; ".join(f"{verdict.node}: {_words(verdict)}" for verdict in wrong[:_NAMED])
    if inside is None:
        where = "No value inside a partition differs. " + _CALL_CAUSES.get(cause, "Where it comes from is unknown")
    else:
        where = f"The first wrong value inside is {inside.node} of {inside.partition_id}. {_CALL_CAUSES.get(cause, '')}".rstrip()
    return r.Finding(
        rule="call_differs",
        subject=f"{prefix}call",
        severity="error",
        title=f"{prefix}{row.node} differs from PyTorch's: {_words(wrong[0])}"
        + (f", and {counted(others, 'other part')} of the call" if others else ""),
        file=row.file if inside is None or inside.file is None else inside.file,
        line=row.line if inside is None or inside.file is None else inside.line,
        evidence=f"{parts}. {where}.",
        hazard="The compiled function gives other results than the function itself.",
        **_CALL_MITIGATIONS[cause if inside is None else "inside"],
    )


def _words(verdict: Verdict) -> str:
    found = verdict.comparison
    if found is not None and not (found.within and not found.clashes):
        more = f"; {verdict.text}" if verdict.text else ""
        return f"{_up_to(found)}{more}" if not found.within else (verdict.text or "NaN or infinite on one side only")
    return verdict.text or "it differs"
