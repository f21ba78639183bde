"""What PyTorch refuses, through the backend: `python -m tests.opinfo.errors [NAME ...]`.

The error inputs of PyTorch's databases of operators, modules and optimisers, static and dynamic, and samples of operators in element
types that the kernels do not have.
Where eager raises, the compiled function raises the same type, and leaves its arguments in the same state. `aot_eager` is the control:
what torch's shape functions raise, or Dynamo wraps, is not the backend's.
"""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import collections
import functools
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from tests.integration.against_eager import twin
from tests.opinfo import sweep
from tests.opinfo.exceptions import ERRORS, reason_for
from tests.sweep import say

_DTYPES = (torch.bool, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float32)
_SAMPLES = 2


class Refusal(NamedTuple):
    """What a call raised, and its arguments afterwards."""

    kind: type[Exception] | None
    text: str
    arguments: list[Any]


class Call(NamedTuple):
    """A function of tensors, the tensors, and the short name of the element type to which samples were converted."""

    name: str
    function: Callable[..., Any]
    given: Sequence[Any]
    dtype: str = ""


def error_inputs(name: str) -> Iterator[Call]:
    """List the error inputs of an operator whose tensors lie on the CPU."""
    op = sweep.operators()[name]
    if op.error_inputs_func is not None:
        torch.manual_seed(0)
        for number, given in enumerate(op.error_inputs(device="cpu")):
            sample = given.sample_input
            yield from _call(f"{name} error {number}", op, sample.input, sample.args, sample.kwargs)


def module_errors() -> Iterator[Call]:
    """List the error inputs of modules, with their state, and of optimisers' steps; a constructor that raises is not compiled."""
    from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

    for info in module_db:
        for trains in (False, True) if info.module_error_inputs_func is not None else ():
            torch.manual_seed(0)
            given = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": trains}
            for number, error in enumerate(info.module_error_inputs_func(info, **given)):
                if error.error_on is ModuleErrorEnum.FORWARD_ERROR:
                    built, inputs = error.module_error_input.constructor_input, error.module_error_input.forward_input
                    module = info.module_cls(*built.args, **built.kwargs).train(trains)
                    op = functools.partial(torch.func.functional_call, module)
                    yield from _call(f"{info.name} error {number}", op, module.state_dict(), (inputs.args, inputs.kwargs), {})
    for entry in optim_db:
        kind: Any = entry.optim_cls
        for number, error in enumerate(entry.optim_error_inputs_func(device="cpu", dtype=torch.float32)):
            if error.error_on is OptimizerErrorEnum.STEP_ERROR:
                wrong = error.optimizer_error_input
                op = functools.partial(_step, kind, wrong.kwargs)
                yield from _call(f"{kind.__name__} error {number}", op, wrong.params, ([value.grad for value in wrong.params],), {})


def _step(kind: Any, settings: Any, parameters: Sequence[torch.Tensor], grads: Sequence[torch.Tensor]) -> None:
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad
    kind(parameters, **settings).step()


def other_types(name: str) -> Iterator[Call]:
    """List samples of an operator, converted to the element types that its kernels do not have."""
    op = sweep.operators()[name]
    known = op.supported_dtypes("cpu")
    own = next((dtype for dtype in (torch.float32, torch.int64, torch.bool) if dtype in known), None)
    if own is None:
        return
    for other in (dtype for dtype in _DTYPES if dtype not in known):
        for number, sample in sweep.samples(op, own, _SAMPLES, grad=False):
            convert = lambda value, other=other: value.detach().to(other) if getattr(value, "dtype", None) is own else value  # noqa: E731
            short = str(other).removeprefix("torch.")
            changed = pytree.tree_map(convert, (sample.input, sample.args, sample.kwargs))
            yield from _call(f"{name} {short} {number}", op, *changed, dtype=short)


def _call(name: str, op: Any, *arguments: Any, dtype: str = "") -> Iterator[Call]:
    leaves, structure = pytree.tree_flatten(arguments)
    tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if all(tensor.device.type == "cpu" and tensor.layout is torch.strided for tensor in tensors):
        yield Call(name, sweep.of_tensors(op, leaves, structure), tensors, dtype)


def refusal(function: Callable[..., Any], given: Sequence[Any]) -> Refusal:
    """Call a function with copies of its arguments."""
    own = [twin(value) for value in given]
    torch.manual_seed(7)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*own)
    except Exception as error:  # noqa: BLE001 - what is looked for
        return Refusal(type(error), str(error), own)
    return Refusal(None, "", own)


def complaint(call: Call, before: Sequence[Any] | None = None, *, dynamic: bool = False) -> str | None:
    """What the backend does otherwise than eager with arguments that eager refuses."""
    expected = refusal(call.function, call.given)
    if expected.kind is None:
        return None

    def compiled(backend: str) -> Refusal:
        torch.compiler.reset()
        function = torch.compile(call.function, backend=backend, dynamic=dynamic)
        if before is not None and (earlier := refusal(function, before)).kind is not None:
            return earlier
        return refusal(function, call.given)

    found = compiled("ortlens")
    if found.kind is expected.kind and not sweep.difference(found.arguments, expected.arguments):
        return ""
    control = compiled("aot_eager")
    if found.kind is control.kind and not sweep.difference(found.arguments, control.arguments):
        return ""
    state = sweep.difference(found.arguments, expected.arguments)
    return f"{found.kind} {found.text[:80]!r} instead of {expected.kind} {expected.text[:80]!r} {state}"


def main(names: Sequence[str]) -> int:
    """Print what differs, of the named operators and modules or of all; 1 when something does."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    modules: dict[str, list[Call]] = collections.defaultdict(list)
    for call in module_errors():
        modules[call.name.split()[0]].append(call)
    counts: collections.Counter[str] = collections.Counter()
    for name in names or [*sorted(sweep.operators()), *modules]:
        refused, others = (modules[name], ()) if name in modules else ([*error_inputs(name)], other_types(name))
        counts["operators, modules and optimisers"] += 1
        counts["with error inputs"] += bool(refused)
        calls = [(call, dynamic) for call in refused for dynamic in (False, True)]
        for call, dynamic in [*calls, *((call, False) for call in others)]:
            found = complaint(call, dynamic=dynamic)
            reason = reason_for(name, call.dtype, ERRORS)
            counts["calls that eager takes" if found is None else "as eager" if not found else "excluded" if reason else "wrong"] += 1
            if found and reason is None:
                say(f"{call.name}{' dynamic' if dynamic else ''}: {' '.join(found.split())}")
    say(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
