"""Many operators in one compiled function: a table of cases costs one compilation."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ortlens import Lens
from tests.integration.against_eager import twin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ortlens.trace.records import Capture


def differing(
    cases: Mapping[str, Callable[..., Any]], *inputs: torch.Tensor, dynamic: bool = False, grad: bool = False
) -> tuple[dict[str, str], Capture]:
    """Run all cases on the same inputs in one compiled function."""
    lens = Lens()

    def all_of_them(*given: torch.Tensor) -> list[Any]:
        return [case(*given) for case in cases.values()]

    compiled = torch.compile(all_of_them, backend=lens, dynamic=dynamic)
    with torch.set_grad_enabled(grad):
        (got, gradients), (want, wanted) = _called(compiled, inputs, grad=grad), _called(all_of_them, inputs, grad=grad)
    found = {name: text for name, ours, theirs in zip(cases, got, want, strict=True) if (text := _difference(ours, theirs))}
    found |= {f"gradient {place}": text for place, pair in enumerate(zip(gradients, wanted, strict=True)) if (text := _difference(*pair))}
    capture = lens.captured()
    found |= {finding.rule: finding.evidence for finding in capture.findings if finding.rule.endswith("_failed")}
    return found, capture


def _called(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], *, grad: bool) -> tuple[Any, list[Any]]:
    given = [twin(value).requires_grad_(grad and value.is_floating_point()) for value in inputs]
    results = function(*given)
    if not grad:
        return results, []
    leaves = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    functools.reduce(torch.add, [leaf.sin().sum() for leaf in leaves]).backward()
    return results, [value.grad for value in given]


def _difference(got: Any, want: Any) -> str:
    ours, theirs = pytree.tree_leaves(got), pytree.tree_leaves(want)
    try:
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def left(capture: Capture) -> set[str]:
    """The operators that stayed in PyTorch."""
    return {row.target for row in capture.fallbacks}
