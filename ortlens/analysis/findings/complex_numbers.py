"""What to do about complex numbers, which ONNX Runtime does not have."""

from __future__ import annotations

import re

_REASON = re.compile(r"on complex numbers has no ONNX function|\bcomplex\d+\b")  # in the words of `backend/partitioning/support.py`
COMPLEX_ADVICE = (
    "complex numbers stay in PyTorch, because ONNX Runtime has none; what is written with their real and imaginary parts "
    "(torch.view_as_real) can run there"
)


def is_complex(reason: str) -> bool:
    """Whether an operator stays in PyTorch because it reads or makes complex numbers.

    Args:
        reason: Why it stays, as recorded.

    Returns:
        True also where ONNX Runtime cannot be handed one, False for other data types.
    """
    return _REASON.search(reason) is not None


def complex_remedy() -> str:
    """What to do about it, as a sentence.

    Returns:
        The advice with a capital letter and a full stop.
    """
    return f"{COMPLEX_ADVICE[0].upper()}{COMPLEX_ADVICE[1:]}."
