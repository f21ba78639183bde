"""Operators whose results differ from eager's for a stated reason; read by the whole sweep and by its sampled part."""

from collections.abc import Mapping
from typing import NamedTuple


class Reason(NamedTuple):
    """Why an operator may differ.

    Attributes:
        text: The reason.
        link: Where it is shown or decided.
        dtypes: Short names of the element types; empty for all.
        only: What the difference must contain.
    """

    text: str
    link: str
    dtypes: tuple[str, ...] = ()
    only: str = ""


_RANDOM = "https://github.com/pytorch/pytorch/blob/main/torch/testing/_internal/common_methods_invocations.py"
_SORT = "https://docs.pytorch.org/docs/stable/generated/torch.sort.html"
_TOPK = "https://docs.pytorch.org/docs/stable/generated/torch.topk.html"
_PINV = "https://docs.pytorch.org/docs/stable/generated/torch.linalg.pinv.html"
_PRECISION = "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html"

EXCEPTIONS: Mapping[str, Reason] = {
    **{
        name: Reason("its memory is not initialised", _RANDOM)
        for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
    },
    "linalg.pinv.singular": Reason("the gradient of a singular matrix divides by singular values that are rounding errors", _PINV),
    "argsort": Reason("which of equal elements comes first is not defined unless the sort is stable", _SORT),
    "sort": Reason("which of equal elements comes first is not defined unless the sort is stable", _SORT),
    "topk": Reason("which of equal elements is taken is not defined", _TOPK),
    "nn.functional.conv_transpose3d": Reason(
        "eager adds up in float16; ONNX Runtime's result is nearer to float64's", _PRECISION, ("float16",)
    ),
    "grid_sampler_2d": Reason("eager rounds places in an image to float16 in between", _PRECISION, ("float16",)),
    "linalg.vector_norm": Reason("eager's powers overflow in float16 where the gradient does not", _PRECISION, ("float16",)),
    "masked.normalize": Reason(
        "eager divides an overflow in float16 by an overflow where the gradient is a number", _PRECISION, ("float16",)
    ),
    "nn.functional.soft_margin_loss": Reason("eager overflows in float16 where the result does not", _PRECISION, ("float16",)),
}
"""Name in the database -> the reason."""

_KERNELS = "https://github.com/pytorch/pytorch/tree/v2.13.0/aten/src/ATen/native/cpu"
_HALF = "eager rounds to float16, or overflows in it, in between"

CORNERS: Mapping[str, Reason] = {
    **EXCEPTIONS,
    **{name: Reason(_HALF, _PRECISION, ("float16",)) for name in ("cosh", "sinh", "erf", "erfc", "logit", "special.ndtr")},
    **{f"nn.functional.adaptive_max_pool{dims}d": Reason("which of several NaN is the largest", _KERNELS) for dims in (1, 2, 3)},
    "nn.functional.gelu": Reason("of infinity, eager gives NaN in float32 and infinity in float64", _KERNELS, ("float32",)),
    "nn.functional.soft_margin_loss": Reason("eager divides an overflow by an overflow where the gradient is a number", _KERNELS),
    "grid_sampler_2d": Reason("an infinite neighbour may count whose weight is 0 or a rounding error", _KERNELS),
    "var_mean.unbiased": Reason("eager's mean is NaN unless the infinity comes last", _KERNELS),
}
"""Name in the database -> why it may differ at its corners; read by `tests.opinfo.corners`."""

_OF_ONE = "PyTorch's trace has another stride than its kernel for a dimension of size 1"

_ENDS = "eager reads or writes outside of its memory and ends the process"

LAYOUTS: Mapping[str, Reason] = {
    **{name: Reason(_OF_ONE, _KERNELS, only="of size 1") for name in ("einsum", "kron", "stack")},
    **{f"fft.{name}": Reason(_OF_ONE, _KERNELS, only="of size 1") for name in ("hfft", "hfft2", "irfft", "irfft2")},
    **{name: Reason(_ENDS, _KERNELS) for name in ("_segment_reduce.lengths", "_segment_reduce.offsets", "lu_unpack")},
    "as_strided_copy": Reason("eager's gradient is a view whose elements may overlap", _KERNELS),
    "masked.median": Reason("eager reads what lies behind the one element of an expanded vector", _KERNELS),
    "nn.functional.group_norm": Reason("eager's kernel for channels-last memory rounds more; float64 agrees with ONNX Runtime", _KERNELS),
    "pinverse": Reason("rows that are all alike have no inverse", _PINV),
}
"""Name in the database -> why its result may lie otherwise; read by `tests.opinfo.layouts`."""

_ONE_HOT = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_decomp/decompositions.py"

ERRORS: Mapping[str, Reason] = {
    "nn.functional.one_hot": Reason(
        "PyTorch traces it as comparisons, which take any element type; Inductor does so too", _ONE_HOT, ("bool",)
    ),
}
"""Name in the database -> why it may raise otherwise than eager; read by `tests.opinfo.errors`."""


def reason_for(name: str, dtype: str, reasons: Mapping[str, Reason] = EXCEPTIONS, detail: str = "") -> Reason | None:
    """Find the reason why an operator may differ, as `detail` says."""
    reason = reasons.get(name)
    return reason if reason is not None and (not reason.dtypes or dtype in reason.dtypes) and reason.only in detail else None
