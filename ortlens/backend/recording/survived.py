"""Findings about failures after which the model still gives the correct results."""

from __future__ import annotations

from ortlens.trace import records as r

_WENT_BACK = (
    "PyTorch computes the result, which is correct; the model is slower than it could be.",
    'Set on_error="raise" to see the full traceback of the failure.',
)
_CONSEQUENCES = {
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
    """The finding about a failure.

    Args:
        rule: The name of the failure.
        title: What happened, in one line.
        error: The exception.

    Returns:
        The finding.
    """
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
    """The finding about execution providers that a session does without.

    Args:
        requested: The providers that ONNX Runtime did not register.
        used: Those that it registered.

    Returns:
        The finding.
    """
    return r.Finding(
        rule="provider_fallback",
        severity="warning",
        title=f"{', '.join(requested)} is not in use; the model runs on {', '.join(used) or 'nothing'}",
        evidence=f"requested {', '.join(requested)}, ONNX Runtime registered {', '.join(used) or 'none'}",
        hazard="The model may run on a slower device than you expect.",
        mitigation="Install the build of ONNX Runtime that includes the provider, with its libraries; `ortlens doctor` lists them.",
    )
