"""PyTorch's own operator database through the backend: each sample against eager, with `aot_eager` as the control."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import contextlib
import functools
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ortlens import Lens
from tests.integration.against_eager import twin
from tests.sweep import say_row

UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_"}
)
"""Operators whose values mean nothing: only types and shapes are compared."""

_LOOSER = {torch.float16: (2e-2, 2e-2), torch.float32: (2e-4, 2e-4), torch.float64: (1e-6, 1e-6)}
"""Absolute and relative tolerance: sums may be added in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one sample of one operator gave.

    Attributes:
        operator: Its name in the database.
        dtype: Short name of the element type.
        road: `static`, `dynamic` or `backward`.
        sample: Its number.
        verdict: `whole` in ONNX Runtime, `part`, `torch`; `wrong`, `crash`; `control` when `aot_eager` differs from eager as well;
            `refused` when eager does not take the sample.
        detail: What differs, or why nodes stay in PyTorch.
        points: How many numbers were compared, at corners.
    """

    operator: str
    dtype: str
    road: str
    sample: int
    verdict: str
    detail: str = ""
    points: int = 0


@functools.cache
def operators() -> dict[str, Any]:
    """The database: name with variant -> OpInfo."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}


def outcomes_of(name: str, dtypes: Sequence[torch.dtype], roads: Sequence[str], most: int) -> Iterator[Outcome]:
    """Send the samples of one operator down each road."""
    op = operators()[name]
    for dtype in dtypes:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for road in roads:
            if road == "backward" and not (dtype.is_floating_point and op.supports_autograd):
                continue
            for number, sample in samples(op, dtype, most, grad=road == "backward"):
                short = str(dtype).removeprefix("torch.")
                yield _outcome(op, sample, Outcome(operator=name, dtype=short, road=road, sample=number, verdict=""))


def samples(op: Any, dtype: torch.dtype, most: int, *, grad: bool) -> list[tuple[int, Any]]:
    """Samples of an operator, spread evenly over all there are, with their numbers; none if its sample function does not run here."""
    torch.manual_seed(0)
    random.seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = list(enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)))
    except Exception:  # noqa: BLE001 - a sample function that this build cannot run says nothing about the backend
        return []
    step = max(len(found) / most, 1.0)
    return [found[int(place * step)] for place in range(min(most, len(found)))]


def of_tensors(op: Any, leaves: Sequence[Any], structure: pytree.TreeSpec) -> Callable[..., Any]:
    """Make an operator a function of the tensors among its arguments, which are given flat."""

    def call(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        value, args, kwargs = pytree.tree_unflatten([next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure)
        return op(value, *args, **kwargs)

    return call


def _outcome(op: Any, sample: Any, blank: Outcome) -> Outcome:
    lens = Lens()
    leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    function = of_tensors(op, leaves, structure)
    call = (lambda *given: torch.zeros_like(function(*given))) if blank.operator in UNINITIALISED else function
    tensors = [leaf if blank.road == "backward" else leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = _result(call, tensors, blank.road)
        except Exception:  # noqa: BLE001 - eager does not take it
            return _said(blank, "refused")
        try:
            found = difference(_result(_compiled(call, lens, blank.road), tensors, blank.road), expected)
        except Exception as error:  # noqa: BLE001 - what is looked for
            verdict = "crash" if _control(call, tensors, blank.road, expected) == "" else "control"
            return _said(blank, verdict, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300])
        if found:
            return _said(blank, "wrong" if _control(call, tensors, blank.road, expected) == "" else "control", found)
        return _placed(blank, lens)


def _said(blank: Outcome, verdict: str, detail: str = "") -> Outcome:
    return Outcome(**{**asdict(blank), "verdict": verdict, "detail": detail})


def _placed(blank: Outcome, lens: Lens) -> Outcome:
    """Where the operator ran, from the lens's records."""
    captured = lens.captured()
    left = sorted({f"{row.target}: {row.reason}" for row in captured.fallbacks})
    failed = sorted({row.title for row in captured.findings if row.rule in ("run_failed", "backend_failed")})
    if failed:
        return _said(blank, "part", "; ".join(failed)[:300])
    if not captured.partitions:
        return _said(blank, "torch", "; ".join(left)[:300])
    return _said(blank, "part" if left else "whole", "; ".join(left)[:300])


def _compiled(call: Callable[..., Any], backend: Any, road: str) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(call, backend=backend, dynamic=road == "dynamic")
    return compiled


def _control(call: Callable[..., Any], tensors: list[torch.Tensor], road: str, expected: Any) -> str:
    torch.compiler.reset()
    try:
        return difference(_result(_compiled(call, "aot_eager", road), tensors, road), expected)
    except Exception as error:  # noqa: BLE001 - torch.compile itself does not take it
        return f"{type(error).__name__}"


def _result(call: Callable[..., Any], tensors: list[torch.Tensor], road: str) -> Any:
    """Results, arguments after the call or gradients, and the state of the random generator."""
    own = [twin(tensor) for tensor in tensors]
    torch.manual_seed(7)
    if road != "backward":
        with torch.no_grad():
            return call(*own), own, torch.get_rng_state()
    made = call(*own)
    loss = [value.sum() * (place + 1) for place, value in enumerate(pytree.tree_leaves(made)) if _has_gradient(value)]
    if loss:
        functools.reduce(torch.add, loss).backward()
    detached = pytree.tree_map(lambda value: value.detach() if isinstance(value, torch.Tensor) else value, made)
    return detached, [tensor.grad for tensor in own], torch.get_rng_state()


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and not value.is_complex()


def difference(got: Any, want: Any) -> str:
    """What differs between two structures of tensors and numbers; empty when nothing does."""
    ours, theirs = pytree.tree_leaves(got), pytree.tree_leaves(want)
    if len(ours) != len(theirs):
        return f"{len(ours)} values instead of {len(theirs)}"
    for place, (first, second) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(second, torch.Tensor):
            if found := _tensor_difference(first, second):
                return f"value {place}: {found}"
        elif type(first) is not type(second) or (first != second and first == first):  # noqa: PLR0124 - NaN
            return f"value {place}: {first!r} instead of {second!r}"[:200]
    return ""


def _tensor_difference(first: Any, second: torch.Tensor) -> str:
    if not isinstance(first, torch.Tensor) or first.shape != second.shape or first.dtype != second.dtype:
        return f"{_described(first)} instead of {_described(second)}"
    atol, rtol = _LOOSER.get(second.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(first, second, atol=atol, rtol=rtol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    except Exception:  # noqa: BLE001 - layouts that assert_close does not compare
        return ""
    return ""


def _described(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def main(arguments: list[str]) -> int:
    """Print the outcomes of operators as JSON lines: `sweep.py MOST DTYPE,... ROAD,... NAME ...`."""
    most, names = int(arguments[0]), arguments[3:]
    dtypes, roads = [getattr(torch, dtype) for dtype in arguments[1].split(",")], arguments[2].split(",")
    return report(names, lambda name: outcomes_of(name, dtypes, roads, most))


def report(names: Sequence[str], outcomes: Callable[[str], Iterator[Outcome]]) -> int:
    """Print what a function gives for each operator, as JSON lines."""
    torch.set_num_threads(1)
    for name in names:
        say_row({"begin": name})
        with contextlib.suppress(KeyboardInterrupt):
            for outcome in outcomes(name):
                say_row(asdict(outcome))
                torch.compiler.reset()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
