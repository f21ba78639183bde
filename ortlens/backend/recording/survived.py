"""Findings about failures after which the model still gives the correct results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Sequence

_WENT_BACK = (
    "PyTorch computes the result, which is correct; the model is slower than it could be.",
    'Set on_error="raise" to see the full traceback of the failure.',
)
_CONSEQUENCES = {
    "lowering_failed": (
        "The results are correct; operators that ONNX has no form for stay in PyTorch undivided, so less may run in ONNX Runtime.",
        'Set on_error="raise" to see the full traceback of the failure.',
    ),
    "optimiser_failed": (
        "The model runs in ONNX Runtime as it was converted; it may be larger and slower than it could be.",
        "No action is needed. A newer onnxscript may optimise it.",
    ),
    "cache_failed": (
        "The model runs; the next process converts it again.",
        "Check that cache_dir names a folder that can be written.",
    ),
    "dump_failed": ("The model runs; the file was not written.", "Check that dump_path names a folder that can be written."),
    "provider_unavailable": ("The model does not run.", "Name a provider that is installed; `ortlens doctor` lists them."),
}
"""The hazard and the mitigation of each rule; `_WENT_BACK` for the others."""


def failure_finding(rule: str, title: str, error: Exception) -> r.Finding:
    """Return the finding about a failure."""
    hazard, mitigation = _CONSEQUENCES.get(rule, _WENT_BACK)
    return r.Finding(
        rule=rule,
        severity="warning",
        title=title,
        evidence=f"{type(error).__name__}: {error}"[:2000],
        hazard=hazard,
        mitigation=mitigation,
    )


def provider_finding(requested: list[str], used: tuple[str, ...]) -> r.Finding:
    """Return the finding about requested execution providers that ONNX Runtime did not register for a session."""
    return r.Finding(
        rule="provider_fallback",
        severity="warning",
        title=f"{', '.join(requested)} is not in use; the model runs on {', '.join(used) or 'nothing'}",
        evidence=f"requested {', '.join(requested)}, ONNX Runtime registered {', '.join(used) or 'none'}",
        hazard="The model may run on a slower device than you expect.",
        mitigation="Install the build of ONNX Runtime that includes the provider, with its libraries; `ortlens doctor` lists them.",
    )


def dropped_finding(partition_id: str, kept: int) -> r.Finding:
    """Return the finding about a partition that meets more combinations of sizes than it keeps sessions for."""
    return r.Finding(
        rule="session_dropped",
        subject=partition_id,
        severity="warning",
        title=f"{partition_id} met more than {kept} combinations of sizes; the least recently used session is dropped for each new one",
        evidence=f"dynamic_shapes=False makes a session per combination of sizes; a partition keeps {kept}",
        hazard="A dropped session is created again when its sizes return, which takes as long as the first time.",
        mitigation="Leave dynamic_shapes out: one session then serves all sizes. Or pad inputs to fewer sizes.",
    )


def unseen_finding(partition_id: str, title: str, names: Sequence[str]) -> r.Finding:
    """Return the finding about changed weights that earlier calls may have missed."""
    return r.Finding(
        rule="uncounted_write",
        subject=partition_id,
        severity="warning",
        title=title,
        evidence=f"inputs of {partition_id}: {', '.join(names)}; the bytes of weights above 4 KiB are compared in turn, a window per call",
        hazard="Calls between the write and now may have returned results of the previous values.",
        mitigation="Write under torch.no_grad() to the parameter itself, not to its .data, its storage or a numpy view of it. "
        "Or set freeze_weights=False.",
    )
