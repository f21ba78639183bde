"""Layouts of results and gradients: every operator of PyTorch's database with inputs that lie in memory in other ways.

`python -m tests.opinfo --layouts [NAME ...]`.

The strides are those of eager, and so is `y = op(x); y.reshape(-1).mul_(0)`, where they decide whether the reshape is a view of `y`. All
ways of a sample share a function; each is compiled by itself where something differs, with `aot_eager` as the control.
"""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.integration.against_eager import twin
from tests.opinfo import sweep

WAYS = ("channels_last", "channels_last_3d", "transposed", "reversed", "expanded", "one_image", "one_channel", "one_pixel", "plain")
ROADS = ("forward", "backward")
_MOST_ELEMENTS = 4096


_NARROWED = {"one_image": 0, "one_channel": 1, "one_pixel": -1}


def laid(tensor: torch.Tensor, way: str, dims: int) -> torch.Tensor:
    """Lay out a tensor of a sample whose tensors have up to `dims` dimensions."""
    if tensor.layout is not torch.strided or tensor.dim() < min(dims, 2) or not tensor.dim():
        return tensor
    tensor = tensor.detach()
    if way == "expanded":
        return tensor.narrow(0, 0, min(tensor.shape[0], 1)).expand_as(tensor)
    if way in ("plain", "transposed", "reversed"):
        order = [*range(tensor.dim())]
        order = order[::-1] if way == "reversed" else [order[-1], *order[1:-1], order[0]][-len(order) :] if way == "transposed" else order
        return tensor.permute(order).contiguous().permute(order)
    images = 5 if way == "channels_last_3d" else 4
    if tensor.dim() == dims < images:
        tensor = tensor.expand(*(2, 3, 2)[: images - dims], *tensor.shape)
    if tensor.dim() in (4, 5):
        tensor = tensor.contiguous(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)
        if way in _NARROWED:
            tensor = tensor.narrow(_NARROWED[way], 0, min(1, tensor.shape[_NARROWED[way]]))
    return tensor


class Case:
    """An operator, a sample, and a way in which its tensors lie."""

    def __init__(self, op: Any, sample: Any, way: str, road: str) -> None:
        self.way, self.road = way, road
        leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self._call = sweep.of_tensors(op, leaves, structure)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        dims = max((tensor.dim() for tensor in tensors), default=0)
        self.tensors = [laid(tensor, way, dims) for tensor in tensors]
        if road == "backward":
            asked = [tensor.requires_grad and not tensor.dtype.is_complex for tensor in tensors]
            self.tensors = [
                tensor.detach().requires_grad_() if grad else tensor.detach() for tensor, grad in zip(self.tensors, asked, strict=True)
            ]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Call the operator, and forward once more to write into what it returned."""
        made = self._results(tensors)
        if self.road == "backward":
            return made
        written = self._results(tensors)
        for value in written:
            value.reshape(-1).mul_(0)
        return [*made, *written]

    def _results(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        return [leaf for leaf in pytree.tree_leaves(self._call(*tensors)) if isinstance(leaf, torch.Tensor)]


def answers(function: Callable[..., Any], cases: Sequence[Case], road: str) -> list[list[torch.Tensor]]:
    """Results of each case, and its gradients."""
    torch.manual_seed(7)
    own = [[twin(tensor) for tensor in case.tensors] for case in cases]
    if road == "forward":
        with torch.no_grad():
            return [list(made) for made in function(*own)]
    found = []
    for made, given in zip(function(*own), own, strict=True):
        outs = [value for value in made if value.requires_grad and not value.dtype.is_complex]
        leaves = [tensor for tensor in given if tensor.requires_grad]
        grads = torch.autograd.grad(outs, leaves, [torch.ones_like(out) for out in outs], allow_unused=True) if outs and leaves else ()
        found.append([value.detach() for value in (*made, *grads) if value is not None])
    return found


def together(cases: Sequence[Case]) -> Callable[..., Any]:
    """Make one function of several cases."""

    def function(*groups: Any) -> Any:
        return [case(*tensors) for case, tensors in zip(cases, groups, strict=True)]

    return function


def differences(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> dict[int, str]:
    """What differs in values or strides, by the place of the result."""
    found = {}
    for place, (first, second) in enumerate(zip(got, want, strict=True)):
        if first.layout is torch.strided and second.numel() and first.stride() != second.stride():
            pairs = zip(first.stride(), second.stride(), second.shape, strict=True)
            others = any(mine != theirs and size != 1 for mine, theirs, size in pairs)
            said = f"{[*first.stride()]} instead of {[*second.stride()]}"
            found[place] = f"{[*second.shape]}: strides {said}{'' if others else ', of size 1'}"
        elif text := sweep.difference([first], [second]):
            found[place] = f"{[*second.shape]}: {text}"
    return found


def compiled(cases: Sequence[Case], road: str, backend: str) -> list[list[torch.Tensor]]:
    """Answers of a backend."""
    torch.compiler.reset()
    return answers(torch.compile(together(cases), backend=backend, dynamic=False), cases, road)


def cases_of(op: Any, sample: Any, road: str) -> Iterator[tuple[Case, list[torch.Tensor]]]:
    """List the ways of a sample that eager takes, with its answers."""
    for way in WAYS:
        with contextlib.suppress(Exception):  # what eager does not take
            case = Case(op, sample, way, road)
            if all(tensor.layout is torch.strided and tensor.numel() <= _MOST_ELEMENTS for tensor in case.tensors):
                (wanted,) = answers(together([case]), [case], road)
                if wanted:
                    yield case, wanted


def outcomes_of(name: str, most: int, roads: Sequence[str] = ROADS) -> Iterator[sweep.Outcome]:
    """Judge the layouts of one operator."""
    op = sweep.operators()[name]
    known = op.supported_dtypes("cpu")
    dtype = next((dtype for dtype in (torch.float32, torch.int64, torch.bool, *known) if dtype in known), None)
    for road in roads:
        if dtype is None or name in sweep.UNINITIALISED or (road == "backward" and not (dtype.is_floating_point and op.supports_autograd)):
            continue
        for number, sample in sweep.samples(op, dtype, most, grad=road == "backward"):
            found = list(cases_of(op, sample, road))
            cases, wanted = [case for case, _ in found], [answer for _, answer in found]
            if cases and not _all_as_eager(cases, wanted, road):
                verdicts = [_verdict(case, answer, road) for case, answer in found]
            else:
                verdicts = [("right", "")] * len(found)
            for case, (verdict, detail) in zip(cases, verdicts, strict=True):
                text = str(dtype).removeprefix("torch.")
                yield sweep.Outcome(operator=name, dtype=text, road=f"{road} {case.way}", sample=number, verdict=verdict, detail=detail)


def _all_as_eager(cases: Sequence[Case], wanted: Sequence[list[torch.Tensor]], road: str) -> bool:
    try:
        return not any(map(differences, compiled(cases, road, "ortlens"), wanted))
    except Exception:  # noqa: BLE001 - each is compiled by itself
        return False


def _verdict(case: Case, wanted: list[torch.Tensor], road: str) -> tuple[str, str]:
    """Compare one case; what `aot_eager` does otherwise as well is torch's."""
    said: list[dict[int, str]] = []
    for backend in ("ortlens", "aot_eager"):
        try:
            (got,) = compiled([case], road, backend)
            said.append(differences(got, wanted))
        except Exception as error:  # noqa: BLE001 - what is looked for
            said.append(dict.fromkeys(range(len(wanted)), f"{type(error).__name__}: {str(error)[:200]}"))
        if not said[0]:
            return "right", ""
    ours = {place: text for place, text in said[0].items() if place not in said[1]}
    return ("wrong" if ours else "control"), "; ".join(
        f"value {place} of {len(wanted)}, {text}" for place, text in (ours or said[0]).items()
    )


def main(arguments: Sequence[str]) -> int:
    """Print the outcomes of operators as JSON lines: `layouts.py MOST NAME ...`."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    return sweep.report(arguments[1:], lambda name: outcomes_of(name, int(arguments[0])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
