"""What to do where the CPU provider of ONNX Runtime has no arithmetic in bfloat16, and what that costs."""

from __future__ import annotations

_REASON = "no arithmetic in bfloat16"  # in the words of `backend/partitioning/support.py`
OPTION = 'options={"upcast": ("bfloat16",)}'
"""The option that computes it in float32."""

_TIMES = {
    True: "in 1.0 to 1.6 times PyTorch's time for two models that were measured on such a CPU; an estimate for this one",
    False: "in a seventh to a half of PyTorch's time for two models that were measured without bfloat16 instructions, "
    "which this CPU lacks; an estimate for this one",
}
_LOOKS = {
    True: f"PyTorch computes bfloat16 with instructions of this CPU; {OPTION} computes it in ONNX Runtime, in an estimated 1.0 to "
    "1.6 times PyTorch's time",
    False: f"set {OPTION}, which computes bfloat16 in ONNX Runtime, in an estimated seventh to half of PyTorch's time: this CPU lacks "
    "bfloat16 instructions",
}
_UNKNOWN = f"set {OPTION}, which computes bfloat16 in ONNX Runtime, and time both: it is faster on CPUs without bfloat16 instructions"


def is_bfloat16(reason: str) -> bool:
    """Tell whether an operator stays in PyTorch for want of arithmetic in bfloat16."""
    return _REASON in reason


def bfloat16_remedy(*, has_instructions: bool | None) -> str:
    """Say what to do about bfloat16 in PyTorch, with its price, given whether the CPU has bfloat16 instructions."""
    does = f"{OPTION} computes it in float32 in ONNX Runtime"
    price = "Results are rounded less often than PyTorch's, and a frozen bfloat16 weight takes 4 more bytes per element."
    if has_instructions is None:
        return f"{does}. Time both: it is faster on CPUs without bfloat16 instructions, and not on others. {price}"
    leave = "Leave it: this CPU has bfloat16 instructions, which PyTorch uses. " if has_instructions else ""
    return f"{leave}{does}, {_TIMES[has_instructions]}. {price}"


def bfloat16_advice(*, has_instructions: bool | None) -> str:
    """Say the same as `bfloat16_remedy` in one sentence without a full stop, which may follow a colon."""
    return _UNKNOWN if has_instructions is None else _LOOKS[has_instructions]
