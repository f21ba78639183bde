"""Operators at their kinks, ends and infinities, forward and backward: `python -m tests.opinfo --corners [NAME ...]`.

Samples of PyTorch's operator database are filled with numbers at which operators change their form. Element-wise operators get each
of them, and the numbers among their own arguments, with each incoming gradient; the others get drawn ones.
"""

import functools
import itertools
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
from torch.utils import _pytree as pytree

from tests.integration.against_eager import twin
from tests.opinfo import sweep

_MOST = 4
_ALL = (torch.float32, torch.float64, torch.float16)
_KINKS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 6.0)
_FAR = (20.0, -20.0, 60.0, -60.0, 1e-30)
_OUTER = (1e30, -1e30, torch.inf, -torch.inf, torch.nan)
_FEW = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, torch.inf, -torch.inf, torch.nan)  # for each of several arguments
_INCOMING = (1.0, -2.0, 0.0, torch.inf, torch.nan)
_DRAWN: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
    "kinks": ((), (1.0, -2.0, 0.0)),
    "far": (_FAR, (1.0, -2.0, 0.0)),
    "infinities": ((torch.inf, -torch.inf), (1.0, -2.0, 0.0, 1.0, torch.inf)),
    "NaN": ((torch.nan,), (1.0, -2.0, 0.0, 1.0, torch.nan)),
}
"""Way to draw -> the numbers of one element in six, and the incoming gradients."""
_SHARE = 6
_ALIKE = 64
"""Further elements: PyTorch's kernels treat NaN among the last elements otherwise than among all before."""
_TOLERANCE = {torch.float16: 5e-3, torch.float32: 2e-4, torch.float64: 1e-6}
_ALSO_ELEMENTWISE = frozenset(
    {
        *("clamp", "where", "lerp", "addcmul", "addcdiv", "nn.functional.gelu", "nn.functional.hardswish"),
        *("nn.functional.leaky_relu", "nn.functional.prelu"),
    }
)


class Case(NamedTuple):
    """A call at corners.

    Attributes:
        sample: Number of the sample.
        way: How its tensors are filled.
        call: The operator on these tensors alone.
        tensors: What it is given.
        incoming: A function of a result that gives the gradient that comes in.
    """

    sample: int
    way: str
    call: Callable[..., Any]
    tensors: Sequence[torch.Tensor]
    incoming: Callable[[torch.Tensor], torch.Tensor]


def names() -> list[str]:
    """List the differentiable operators."""
    return [name for name, op in sweep.operators().items() if op.supports_autograd and torch.float32 in op.supported_dtypes("cpu")]


def is_elementwise(name: str) -> bool:
    return name in _ALSO_ELEMENTWISE or isinstance(sweep.operators()[name], (UnaryUfuncInfo, BinaryUfuncInfo))


def cases(name: str, dtype: torch.dtype) -> Iterator[Case]:
    """Fill the samples of an operator; samples of element-wise ones that differ in their tensors alone count once."""
    op, known = sweep.operators()[name], set()
    for number, sample in sweep.samples(op, dtype, _MOST, grad=True):
        leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(tensor.layout is not torch.strided for tensor in tensors):
            continue
        call = sweep.of_tensors(op, leaves, structure)
        if is_elementwise(name) and all(tensor.dtype is dtype for tensor in tensors):
            rest = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
            if (key := f"{rest} {structure}") not in known:
                known.add(key)
                yield _product(Case(number, "each", call, tensors, torch.ones_like), rest, dtype)
        else:
            yield from _drawn(Case(number, name, call, tensors, torch.ones_like), dtype)


def _product(case: Case, rest: Sequence[Any], dtype: torch.dtype) -> Case:
    own = {sign * float(leaf) for leaf in rest if isinstance(leaf, (int, float)) and not isinstance(leaf, bool) for sign in (1, -1)}
    numbers = [*_KINKS, *_FAR, *_OUTER, *sorted(own)] if len(case.tensors) == 1 else _FEW
    rows = [*itertools.product(*[numbers] * len(case.tensors), _INCOMING), *[(1.0,) * (len(case.tensors) + 1)] * _ALIKE]
    *columns, incoming = zip(*rows, strict=True)
    filled = [
        torch.tensor(column, dtype=dtype).requires_grad_(like.requires_grad) for column, like in zip(columns, case.tensors, strict=True)
    ]
    return case._replace(tensors=filled, incoming=lambda made: torch.tensor(incoming, dtype=made.dtype))


def _drawn(case: Case, dtype: torch.dtype) -> Iterator[Case]:
    """Draw numbers for all floats; infinities and NaN for the first tensor alone."""
    floats = [place for place, tensor in enumerate(case.tensors) if tensor.dtype is dtype]
    for way, (special, incoming) in _DRAWN.items():
        source = random.Random(f"{case.way} {case.sample} {way}")  # noqa: S311 - corners
        made = list(case.tensors)
        for place in floats:
            chosen = special if place == floats[0] or way == "far" else ()
            numbers = [source.choice(chosen if chosen and not source.randrange(_SHARE) else _KINKS) for _ in range(made[place].numel())]
            filled = torch.empty_like(made[place], requires_grad=False)
            filled.copy_(torch.tensor(numbers, dtype=dtype).reshape(filled.shape))
            made[place] = filled.requires_grad_(case.tensors[place].requires_grad)
        yield case._replace(way=way, tensors=made, incoming=functools.partial(_drawn_like, source.random(), incoming))


def _drawn_like(seed: float, numbers: Sequence[float], made: torch.Tensor) -> torch.Tensor:
    source = random.Random(seed)  # noqa: S311 - same
    return torch.tensor([source.choice(numbers) for _ in range(made.numel())], dtype=made.dtype).reshape(made.shape)


def _answer(case: Case, function: Callable[..., Any]) -> list[torch.Tensor | None]:
    """Results, and gradients of the arguments."""
    own = [twin(tensor) for tensor in case.tensors]
    torch.manual_seed(7)
    made = [value for value in pytree.tree_leaves(function(*own)) if isinstance(value, torch.Tensor)]
    if trained := [value for value in made if value.requires_grad and value.is_floating_point()]:
        torch.autograd.backward(trained, [case.incoming(value) for value in trained])
    return [*(value.detach() for value in made), *(tensor.grad for tensor in own)]


def difference(ours: Sequence[Any], theirs: Sequence[Any], *, exactly: bool) -> str:
    """Describe the first value with a NaN, an infinity or, if `exactly`, a 0 in another place, or beyond the tolerance."""
    for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if (one is None) != (other is None) or (one is not None and (one.shape, one.dtype) != (other.shape, other.dtype)):
            return f"value {place}: {sweep._described(one)} instead of {sweep._described(other)}"
        if one is not None and len(wrong := _differing(*map(_real, (one, other)), exactly=exactly)):
            pairs = [f"{_real(one)[tuple(at)].item():.7g} for {_real(other)[tuple(at)].item():.7g} at {at}" for at in wrong[:4].tolist()]
            return f"value {place}: {len(wrong)} of {other.numel()}: {', '.join(pairs)}"
    return ""


def _real(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _differing(ours: torch.Tensor, theirs: torch.Tensor, *, exactly: bool) -> torch.Tensor:
    if not theirs.is_floating_point():
        return (ours != theirs).nonzero()
    one, other, rtol = ours.double(), theirs.double(), _TOLERANCE.get(theirs.dtype, 5e-2)
    finite = one.isfinite() & other.isfinite()
    scale = other.abs()
    if not exactly:
        scale = scale.clamp(min=float(other[finite].abs().max()) if finite.any() else 0.0)
    tiny = torch.finfo(theirs.dtype).tiny * 8 if exactly else rtol * 1e-2
    near = finite & ((one - other).abs() <= rtol * scale + torch.where(other == 0, tiny, rtol * 1e-2))
    return (~(near | (one == other) | (one.isnan() & other.isnan()))).nonzero()


def outcomes_of(name: str, *dtypes: torch.dtype) -> Iterator[sweep.Outcome]:
    """Compare an operator at its corners with eager, and where it differs `aot_eager` as well; without types, in all."""
    for dtype in dtypes or (_ALL if is_elementwise(name) else _ALL[:1]):
        if dtype not in sweep.operators()[name].supported_dtypes("cpu"):
            continue
        compiled: tuple[int, Any] = (-1, None)
        for case in cases(name, dtype):
            short = str(dtype).removeprefix("torch.")
            outcome = sweep.Outcome(operator=name, dtype=short, road=case.way, sample=case.sample, verdict="refused")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    expected = _answer(case, case.call)
                except Exception:  # noqa: BLE001 - eager does not take it
                    yield outcome
                    continue
                if compiled[0] != case.sample:
                    torch.compiler.reset()
                    compiled = case.sample, torch.compile(case.call, backend="ortlens")
                exactly = case.way == "each"
                verdict, detail = "right", _against(case, compiled[1], expected, exactly=exactly)
                if detail:
                    control = _against(case, torch.compile(case.call, backend="aot_eager"), expected, exactly=exactly)
                    verdict = "control" if control else "wrong"
            points = sum(value.numel() for value in expected if value is not None)
            yield replace(outcome, verdict=verdict, detail=detail, points=points)


def _against(case: Case, function: Callable[..., Any], expected: Sequence[Any], *, exactly: bool) -> str:
    try:
        return difference(_answer(case, function), expected, exactly=exactly)
    except Exception as error:  # noqa: BLE001 - what is looked for
        return f"{type(error).__name__}: {error}"[:300]


if __name__ == "__main__":
    sys.exit(sweep.report(sys.argv[1:], outcomes_of))
