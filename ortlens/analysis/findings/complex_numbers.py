"""What to do about complex numbers, which ONNX Runtime does not have."""

from __future__ import annotations

import re

_REASON = re.compile(r"on complex numbers has no ONNX function|\bcomplex\d+\b")  # in the words of `backend/partitioning/support.py`
COMPLEX_ADVICE = (
    "complex numbers stay in PyTorch, because ONNX Runtime has none; what is written with their real and imaginary parts "
    "(torch.view_as_real) can run there"
)


def is_complex(reason: str) -> bool:
    """Tell whether an operator stays in PyTorch because it reads or makes complex numbers, or ONNX Runtime cannot be handed one."""
    return _REASON.search(reason) is not None


def complex_remedy() -> str:
    """Write the advice on complex numbers as a sentence."""
    return f"{COMPLEX_ADVICE[0].upper()}{COMPLEX_ADVICE[1:]}."
