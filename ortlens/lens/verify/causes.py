"""Finds the cause of a wrong value, and writes the findings: a conversion function, a rewrite of the model, or one of ONNX Runtime.

Each suspect is tested by disabling it: without the cause, the value is right. Nothing is concluded from names.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ortlens.analysis.problems.catalogue import remedy
from ortlens.backend.basis import provenance
from ortlens.lens.observing.optimizers import LEVELS, OPTIMIZERS, narrowed
from ortlens.lens.verify.compare_values import ValueVerdict, dtype_name, judge
from ortlens.lens.verify.lockstep import steps
from ortlens.lens.verify.partition_check import InnerValues, session_with
from ortlens.trace import records as r
from ortlens.units import counted, distance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch.fx

    from ortlens.backend.observed import ObservedPartition
    from ortlens.lens.verify.excuses import NonfiniteOrigin
    from ortlens.lens.verify.lockstep import NodeStep
    from ortlens.lens.verify.partition_check import PartitionCheck
    from ortlens.lens.verify.single_ops import SingleOps


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The cause of a wrong value."""

    # `converter`, `check`, `memory`, `accuracy`, `tf32`, `ort`, `stale`, `transform`, `optimizer` or `unknown`
    kind: str
    node: str
    optimizers: tuple[str, ...] = ()  # names of ONNX Runtime's rewrites, for `ort`: one, or several that only together cause it
    text: str  # the result, and how it was found


class CauseSearch:
    """Looks for the cause of one wrong value or output of a partition, within the call that showed it."""

    def __init__(self, check: PartitionCheck, ops: SingleOps) -> None:
        """Prepare to look for causes."""
        self._check = check
        self._ops = ops
        self._module = check.partition.part.module

    def cause(self, suspect: ValueVerdict, step: NodeStep) -> Culprit:
        """Find the cause of a wrong value; of kind `unknown` if the value stays wrong with each suspect disabled."""
        is_right = functools.partial(self._is_right, suspect, step)
        partition, args = self._check.partition, self._check.args
        if (settings := partition.rounds_by(args)) and is_right(functools.partial(partition.in_float32, args)):
            rounded = "factors of float32 are rounded to TF32, which has 10 bits after the point"
            text = f"right with use_tf32=0; {rounded}, by {' and '.join(settings)}"
            return Culprit(kind="tf32", node=suspect.node, text=text)
        if suspect.scope == "value" and (alone := self._wrong_alone(suspect)) is not None:
            return alone
        for kind, text, changed in self._changes(suspect.scope):
            if is_right(**changed):
                return self._rewrite(suspect.node, is_right) if kind == "ort" else Culprit(kind=kind, node=suspect.node, text=text)
        return Culprit(kind="unknown", node=suspect.node, text="no single operator or rewrite causes it")

    def _changes(self, scope: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield what may make a value right, from ONNX Runtime back to the conversion: kind of the cause, text, and how to try it."""
        if scope != "value":  # these are computed without ONNX Runtime's rewrites
            text = "a new session of the same model is right: the one in use holds weights from before a change that was not noticed"
            yield "stale", text, {}
            yield "ort", "", {"level": "disable"}
        anew = functools.partial(self._check.partition.as_converted, self._check.args)
        if self._check.partition.graph.options.pre_ort_model_transforms:
            text = "pre_ort_model_transforms causes it: the model is right without these"
            yield "transform", text, {"make": functools.partial(anew, optimized=True)}
        text = "a rewrite of the model before ONNX Runtime (onnxscript's or ours) causes it: the model is right as converted"
        yield "optimizer", text, {"make": anew}

    def _is_right(
        self, suspect: ValueVerdict, step: NodeStep, make: Callable[[], ObservedPartition] | None = None, **settings: Any
    ) -> bool:
        """Tell whether the value is right when the partition is made anew or with other settings; False if ONNX Runtime cannot run them."""
        args = self._check.args
        try:
            partition = self._check.partition if make is None else make()
            if suspect.scope == "value":
                made = InnerValues(partition, args).take(step.node)
            else:
                outputs = partition.uncounted(session_with(partition, args, **settings))(*args)
                made = outputs[[node.name for node in partition.part.outputs].index(step.node.name)]
        except Exception:  # noqa: BLE001 - a model or setting that does not run explains nothing
            return False
        again = replace(suspect, ok=None, note="", details=())
        judge(again, made, step.eager, step.double, self._check.tolerances)
        return again.ok is True

    def _wrong_alone(self, suspect: ValueVerdict) -> Culprit | None:
        """Find the operator that is wrong when converted alone: that of the value, or one before it whose value the model does not hold."""
        makers = {verdict.line_of: verdict for verdict in self._unseen_before(suspect)}
        for step in steps(self._module, self._check.args, double=False):
            verdict = makers.get(step.node)
            if verdict is None:
                continue
            wrong = [found for found in self._ops.verdicts(step, self._check.tolerances) if found.ok is False]
            if wrong:
                return self._blamed(verdict, wrong[0], step)
        return None

    def _unseen_before(self, suspect: ValueVerdict) -> list[ValueVerdict]:
        """Collect the suspect and the values before it that were not compared, back to those that were."""
        before = [verdict for verdict in self._check.verdicts if verdict.scope == "value" and verdict.place < suspect.place]
        seen = {verdict.node for verdict in before if verdict.ok is not None}
        by_node = {verdict.node: verdict for verdict in before}
        found, waiting = [suspect], list(suspect.line_of.all_input_nodes if suspect.line_of is not None else ())
        while waiting:
            node = waiting.pop()
            maker = by_node.get(node.name)
            if node.op != "call_function" or node.name in seen:
                continue
            if maker is not None and maker not in found:
                found.append(maker)
            waiting.extend(node.all_input_nodes)
            seen.add(node.name)
        return found

    def _blamed(self, verdict: ValueVerdict, alone: ValueVerdict, step: NodeStep) -> Culprit:
        """Name the cause for a wrong operator. A value that the model does not hold gets the figures of the operator by itself."""
        node = step.node
        if verdict.ok is None:
            verdict.ok, verdict.comparison, verdict.tolerance, verdict.open_because = False, alone.comparison, alone.tolerance, ""
            verdict.restate("the model does not hold this value; figures of the operator converted by itself")
        kind, text = "converter", f"{node.target} differs from PyTorch also when converted by itself: its ONNX function is wrong"
        found = alone.comparison
        clashes = found is not None and found.clashes > 0  # an overflow, or NaN on one side: that is no rounding
        if self._ops.is_right_on_copies(step, self._check.tolerances):
            text = f"{node.target} is right on plain copies of its inputs: ONNX Runtime reads the memory of an input otherwise than PyTorch"
            kind = "memory"
        elif found is not None and found.agrees:
            text = f"in the ONNX function of {node.target}, {alone.text}"
        elif not clashes and self._ops.rounds_only(step):
            first = next(iter(provenance.tensors_in(node.meta.get("val"))), None)
            dtype = "its own dtype" if first is None else dtype_name(first)
            text = f"{node.target} loses accuracy in ONNX Runtime: in float64 its ONNX function is right, in {dtype} rounding adds up"
            kind = "accuracy"
        return Culprit(kind=kind, node=verdict.node, text=text)

    def _rewrite(self, node: str, is_right: Callable[..., bool]) -> Culprit:
        """Find the rewrite of ONNX Runtime without which the value is right."""
        level = next((level for level in LEVELS if not is_right(level=level)), "all")
        text = f"right without ONNX Runtime's rewrites, wrong from level {level} on; no rewrite that can be disabled by name is the cause"
        if names := narrowed(OPTIMIZERS, lambda without: is_right(without=without)):
            which = f"rewrite {names[0]} causes" if len(names) == 1 else f"rewrites {' and '.join(names)} cause"
            text = f"ONNX Runtime's {which} it, from optimisation level {level} on: right without"
            if not is_right(without=[name for name in OPTIMIZERS if name not in names]):
                text += ", wrong without all others"
        return Culprit(kind="ort", node=node, optimizers=names, text=text)


RULES = ("call_differs", "numbers_differ", "loses_accuracy", "fusion_changes_numbers", "nonfinite_origin")

_REWRITES = ("ort", "optimizer", "transform")
_ROUNDING = ("accuracy", "tf32")
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
    "inside": remedy("Begin with the value inside that is reported, if one is; a repro has the evidence for a report."),
    "unsought": remedy("Verify again with more time (`budget_s`, `--budget`), which finds out where it comes from."),
    "": remedy("Report it with the function and its inputs."),
}


def finding_of_value(suspect: ValueVerdict, cause: Culprit, node: torch.fx.Node, partition_id: str) -> r.Finding:
    """Describe the first wrong value of a partition; `node` is at fault."""
    row = suspect.row(partition_id)
    figures = f"max_abs {row.max_abs}, max_rel {row.max_rel}, atol {row.atol}, rtol {row.rtol}"
    return r.Finding(
        rule="loses_accuracy" if cause.kind in _ROUNDING else "fusion_changes_numbers" if cause.kind in _REWRITES else "numbers_differ",
        subject=cause.node,
        severity="error",
        title=f"{_what(cause, node)}{_distance(suspect, cause)}",
        **r.same(row, "file", "line"),
        evidence=f"{cause.text}. {figures}; closer to fp64: {row.closer_to_fp64 or 'unknown'}",
        hazard="Rounding errors add up in ONNX Runtime far more than in PyTorch; they grow with the number of elements."
        if cause.kind == "accuracy"
        else "Each factor is rounded to 10 bits after the point before it is multiplied: expect errors of 1e-4 to 1e-3."
        if cause.kind == "tf32"
        else "The results of the model differ from PyTorch's by more than rounding explains.",
        **_mitigation(cause),
    )


def _what(cause: Culprit, node: torch.fx.Node) -> str:
    if cause.kind == "accuracy":
        return f"{cause.node} ({node.target}) is far less accurate in ONNX Runtime than in PyTorch: off"
    if cause.kind == "tf32":
        return f"{cause.node} ({node.target}) is computed in TF32: off"
    if cause.kind == "stale":
        return f"a session holds outdated weights: {cause.node} ({node.target}) differs"
    if cause.kind == "check":
        return f"{cause.node} ({node.target}) accepts what PyTorch refuses"
    by = f" ({' and '.join(cause.optimizers)})" if cause.optimizers else ""
    return f"a rewrite of the model{by} changes {cause.node}" if cause.kind in _REWRITES else f"{cause.node} ({node.target}) differs"


def _distance(verdict: ValueVerdict, cause: Culprit) -> str:
    found = verdict.comparison
    if cause.kind == "check":
        return ""
    if found is None:
        return ": another shape"
    if found.clashes and found.within:
        return ": NaN or infinite on one side only"
    if cause.kind in _ROUNDING and found.ort_error and found.eager_error:
        return f" {distance(found.max_abs, found.max_rel)}, {found.ort_error / found.eager_error:,.0f} times PyTorch's error"
    return f" {distance(found.max_abs, found.max_rel)}"


def _mitigation(cause: Culprit) -> dict[str, Any]:
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
    "tf32": remedy(
        'Leave it if that is precise enough; else torch.set_float32_matmul_precision("highest") for products, and '
        "torch.backends.cudnn.allow_tf32 = False for convolutions."
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


def finding_of_origin(origin: NonfiniteOrigin, partition_id: str) -> r.Finding:
    """Describe the first NaN or infinity."""
    row = ValueVerdict(node=origin.node.name, scope="value", place=0, line_of=origin.node).row(partition_id)
    return r.Finding(
        rule="nonfinite_origin",
        subject=row.node,
        severity="warning",
        title=f"{origin.kind} comes from {row.node} ({origin.node.target})",
        **r.same(row, "file", "line"),
        evidence=f"{row.node} {origin.note}; it reaches an output of {partition_id}.",
        hazard="NaN and infinities spread to all values that are computed from them.",
        mitigation="Scale the values down before this line, or compute it in bfloat16 or float32, which have a larger range."
        if origin.overflow
        else "Keep the inputs of this line in range: add an epsilon to a divisor, clamp before a logarithm or a root.",
    )


def finding_of_call(wrong: Sequence[ValueVerdict], cause: str, inside: r.Numeric | None, prefix: str = "") -> r.Finding:
    """Describe a call that differs, for a `CallCheck.cause`; `inside` is the first wrong value, `prefix` names one of several functions."""
    row = wrong[0].row(None)
    others = len(wrong) - 1
    parts = "; ".join(f"{verdict.node}: {difference_words(verdict)}" for verdict in wrong[:_NAMED])
    if inside is None:
        where = "No value inside a partition differs. " + _CALL_CAUSES.get(cause, "Where it comes from is unknown")
    else:
        where = f"The first wrong value inside is {inside.node} of {inside.partition_id}. {_CALL_CAUSES.get(cause, '')}".rstrip()
    return r.Finding(
        rule="call_differs",
        subject=f"{prefix}call",
        severity="error",
        title=f"{prefix}{row.node} differs from PyTorch's: {difference_words(wrong[0])}"
        + (f", and {counted(others, 'other part')} of the call" if others else ""),
        **r.same(row if inside is None or inside.file is None else inside, "file", "line"),
        evidence=f"{parts}. {where}.",
        hazard="The compiled function gives other results than the function itself.",
        **_CALL_MITIGATIONS[cause if inside is None else "inside"],
    )


def difference_words(verdict: ValueVerdict) -> str:
    """Say how far a wrong value is off, or what else is wrong about it."""
    found = verdict.comparison
    if found is None or found.agrees:
        return verdict.text or "it differs"
    if found.within:
        return verdict.text or "NaN or infinite on one side only"
    return "; ".join(filter(None, (distance(found.max_abs, found.max_rel), verdict.text)))
