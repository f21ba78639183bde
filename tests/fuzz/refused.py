"""Which statements of random programs are left out, because nothing says what they give, or because it cannot be compared."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fuzz.generator import Draft
    from tests.fuzz.picker import Picker

_NARROW = (torch.float16, torch.bfloat16)
_DISCRETE = (
    "floor",
    "round",
    "trunc",
    "ceil",
    "sign(",
    "heaviside",
    "nextafter",
    "//",
    "%",
    "eq_",
    "logical_not_",
    "searchsorted",
    "item()",
    "int(",
    "bool(",
)
_DISCRETE_IN_GRAPHS = (
    "frac", "sgn", "signbit", "remainder", "fmod", "copysign", "threshold", "hardshrink", "div(", "sort", "isclose", "cross_entropy",
    "bucketize", "mode(", ", 0, ",
)  # fmt: skip
_NOT_IN_GRAPHS = re.compile(
    r"\.(?:t_|unsqueeze_|squeeze_|transpose_|swapaxes_|square_|fill_diagonal_)\(|_foreach|out=|view\(torch|\[(?:\(.*\)|[a-z][\w.]*)\] = "
)
"""What `torch.func.functionalize` cannot trace: changes of an argument's shape, operators without a functional form, masks."""


def is_refused(draft: Draft, statement: str, picker: Picker, kind: str) -> bool:
    """Whether a statement cannot be judged: what it gives is not defined, or jumps where its operands are rounded."""
    if is_unknown(draft, statement, picker):
        return True
    if kind == "number":
        return False  # sizes and whole numbers are exact, and so is double precision
    if _is_discrete(draft, statement, picker, kind) or _is_drawn_at_odd_places(draft, statement, picker):
        return True
    return kind == "write" and (_writes_to_overlap(draft, picker) or _writes_to_leaf(draft, picker))


def is_unknown(draft: Draft, text: str, picker: Picker) -> bool:
    """Whether graphs of a statement or expression cannot be traced, or nothing says what it gives."""
    if draft.graphs and _NOT_IN_GRAPHS.search(text):
        return True
    if draft.program.road == "exported" and ".contiguous(" in text:
        return True  # torch.export leaves out a call that copies nothing
    used = [value for name, value in draft.tensors().items() if name in picker.used]
    if "unshuffle" in text and not all(value.numel() for value in used):
        return True  # PyTorch's kernel gives another shape than its shape function
    if "var_mean" in text and not all(map(_is_finite, used)):
        return True  # the mean is that of Welford, where an infinity becomes NaN unless it is the last element
    return "as_strided" in text and any(map(_owns_more_than_it_shows, used))


def is_defined(draft: Draft, targets: Sequence[str], picker: Picker) -> bool:
    """Whether what a statement gives follows from its operands.

    An infinity or NaN as a whole number depends on the processor. A result of 16 bits that overflows, of finite operands, depends on which
    intermediate values have 16 bits.
    """
    if not draft.graphs:
        return True  # there are only finite numbers
    used = [value for name, value in draft.tensors().items() if name in picker.used]
    made = [draft.scopes[0][name] for name in targets] or used
    if not all(map(_is_finite, used)):
        return all(map(_is_floating_or_bool, made))
    return all(map(_is_finite, (value for value in made if isinstance(value, torch.Tensor) and value.dtype in _NARROW)))


def _is_finite(value: torch.Tensor) -> bool:
    return bool(value.detach().isfinite().all())


def _is_floating_or_bool(value: Any) -> bool:  # noqa: ANN401 - values of statements
    return not isinstance(value, torch.Tensor) or value.is_floating_point() or value.dtype is torch.bool


def _owns_more_than_it_shows(value: torch.Tensor) -> bool:
    """Whether memory that a kernel allocated was larger than its result, as that of `F.mse_loss`: what is behind it is left over."""
    owner = value if value._base is None else value._base
    return not isinstance(owner, torch.nn.Parameter) and owner.untyped_storage().nbytes() > owner.numel() * owner.element_size()


def _is_discrete(draft: Draft, statement: str, picker: Picker, kind: str) -> bool:
    """Whether a statement jumps where its operands are rounded: then what is compared would be noise."""
    if not draft.inexact.intersection(picker.used):
        return False
    tensors = draft.tensors()
    written = kind == "write" and any(not tensors[name].is_floating_point() for name in picker.used if name in tensors)
    words = (*_DISCRETE, *_DISCRETE_IN_GRAPHS) if draft.graphs else _DISCRETE
    return written or any(word in statement for word in words) or any(sign in statement for sign in (" > ", " < ", "<=", "==", "!=", ">="))


def _is_drawn_at_odd_places(draft: Draft, statement: str, picker: Picker) -> bool:
    """Whether random numbers are drawn in the order of odd memory: under `torch.compile` others go to each element."""
    tensors = draft.tensors()
    odd = any(not tensors[name].is_contiguous() for name in picker.used if name in tensors)
    return odd and any(word in statement for word in ("dropout", "rand", "bernoulli", "uniform_", "normal", "self.d"))


def _writes_to_overlap(draft: Draft, picker: Picker) -> bool:
    """Whether a statement may write to an argument whose elements share memory: what PyTorch gives then is not defined."""
    tensors = draft.tensors()
    given = [value for name, value in tensors.items() if not name.startswith("t")]
    bases = {value.untyped_storage().data_ptr() for value in given if _overlaps(value)}
    return any(tensors[name].untyped_storage().data_ptr() in bases or _overlaps(tensors[name]) for name in picker.used if name in tensors)


def _writes_to_leaf(draft: Draft, picker: Picker) -> bool:
    """Whether a statement may write to the memory of a leaf; through `detach()` PyTorch allows it, AOTAutograd refuses most of it."""
    if not draft.program.trains or draft.draw.random() < 0.03:
        return False
    tensors = draft.tensors()
    leaves = {value.untyped_storage().data_ptr() for value in tensors.values() if _is_leaf(value)}
    written = {tensors[name].untyped_storage().data_ptr() for name in picker.used if name in tensors}
    return bool(leaves & written)


def _is_leaf(value: torch.Tensor) -> bool:
    try:
        return value.requires_grad and value.is_leaf
    except RuntimeError:  # a view made under no_grad whose base was written to since
        return False


def _overlaps(value: torch.Tensor) -> bool:
    """Whether two elements of a tensor lie at the same place."""
    if value.is_contiguous():
        return False
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(value.shape, value.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return len(places.flatten().unique()) < places.numel()
