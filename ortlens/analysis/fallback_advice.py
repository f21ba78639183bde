"""What to do about an operator that stays in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.analysis.catalogue import Advice, advise

if TYPE_CHECKING:
    from ortlens.trace.records import Fallback, FallbackCause

_DRAWING = ("dropout", "bernoulli", "multinomial", "rand", "normal", "exponential", "uniform", "poisson")
_DROPOUT = "dropout"


def cause_of(item: Fallback) -> FallbackCause | None:
    """Return what else is known of why an operator stays; captures of earlier versions do not say it of random numbers."""
    if item.cause is None and item.reason_code == "side_effect" and any(name in item.target for name in _DRAWING):
        return "random"
    return item.cause


def advice_for_fallback(item: Fallback, *, has_instructions: bool | None) -> Advice:
    """Advise on an operator in PyTorch, given whether the CPU has bfloat16 instructions."""
    cause, target = cause_of(item), item.target
    if cause == "bfloat16":
        return advise("bfloat16", **{{True: "instructions", False: "lacking", None: "unknown"}[has_instructions]: True})
    if cause == "complex":
        return advise("complex_numbers")
    if cause == "random":
        drawn = next((name for name in ("multinomial", "bernoulli") if name in target), "outside")
        return advise(f"draw_{drawn}", target=target, dropout=_DROPOUT in target)
    return advise("check_assertion" if "aten._assert_" in target else item.reason_code, target=target)
