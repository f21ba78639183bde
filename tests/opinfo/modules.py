"""Send PyTorch's own databases of modules and optimisers through the backend: `python -m tests.opinfo.modules [NAME ...]`.

Each module answers, in training and in eval mode where these differ, and has its gradients taken; each optimiser makes three steps.
Results, gradients, parameters, buffers and the optimiser's state are compared with eager's.
"""

# ruff: noqa: ANN401 - arguments and results of modules are Any in torch itself

import collections
import copy
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.integration.against_eager import twin
from tests.opinfo.sweep import difference
from tests.sweep import figures, say

_DTYPES = (torch.float32, torch.float16)
_MOST = 6
"""Samples per module, element type and mode, spread evenly over all there are."""
_OTHERWISE = frozenset({"LBFGS", "SparseAdam"})
"""Optimisers that take a closure, or sparse gradients."""


def cases() -> dict[str, Callable[[Any], Any]]:
    """Name -> a function of a backend, None for eager, that gives what is compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict([*_modules(), *_optimisers()])


def _modules() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        for dtype in (dtype for dtype in _DTYPES if dtype in info.dtypes):
            for trains in (False, True) if info.train_and_eval_differ else (True,):
                given = {"device": "cpu", "dtype": dtype, "requires_grad": True, "training": trains}
                torch.manual_seed(0)
                samples = [sample for sample in info.module_inputs_func(info, **given) if sample.forward_input is not None]
                for number, sample in enumerate(samples[:: max(1, -(-len(samples) // _MOST))]):
                    name = f"{info.name} {'training' if trains else 'eval'} {str(dtype).removeprefix('torch.')} {number}"
                    yield name, functools.partial(_answer, info.module_cls, sample, dtype, trains=trains)


def _answer(kind: type[torch.nn.Module], sample: Any, dtype: torch.dtype, backend: Any, *, trains: bool) -> Any:
    torch.manual_seed(0)
    module = kind(*sample.constructor_input.args, **sample.constructor_input.kwargs).to(dtype).train(trains)
    args, kwargs = pytree.tree_map(_own, (sample.forward_input.args, sample.forward_input.kwargs))
    made = (module if backend is None else torch.compile(module, backend=backend))(*args, **kwargs)
    loss = [value.sum() * (place + 1) for place, value in enumerate(pytree.tree_leaves(made)) if _is_trained(value)]
    if loss:
        functools.reduce(torch.add, loss).backward()
    leaves = [value for value in (*pytree.tree_leaves((args, kwargs)), *module.parameters()) if isinstance(value, torch.Tensor)]
    results = pytree.tree_map(lambda value: value.detach() if isinstance(value, torch.Tensor) else value, made)
    return results, [leaf.grad for leaf in leaves], list(module.buffers())


def _is_trained(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _own(value: Any) -> Any:
    return twin(value) if isinstance(value, torch.Tensor) else value


def _optimisers() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        kind: Any = info.optim_cls
        for number, sample in enumerate(info.optim_inputs_func(device="cpu")):
            if kind.__name__ not in _OTHERWISE:
                yield f"{kind.__name__} {number} {sample.desc}", functools.partial(_stepped, kind, sample.kwargs)


def _stepped(kind: Any, settings: Mapping[str, Any], backend: Any) -> Any:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(*shape)) for shape in ((5, 3), (3,), (4, 3))]
    optimiser = kind(parameters, **copy.deepcopy(settings))
    step = optimiser.step if backend is None else torch.compile(optimiser.step, backend=backend)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        step()
    return [parameter.detach() for parameter in parameters], [list(state.values()) for state in optimiser.state.values()]


def verdict_of(case: Callable[[Any], Any]) -> tuple[str, str]:
    """What the backend makes of a case."""
    try:
        expected = case(None)
    except Exception as error:  # noqa: BLE001 - PyTorch does not take it
        return "refused", f"{type(error).__name__}: {error}"
    found = _against(case, expected, "ortlens")
    if not found:
        return "right", ""
    return ("control" if _against(case, expected, "aot_eager") else "wrong"), found


def _against(case: Callable[[Any], Any], expected: Any, backend: str) -> str:
    torch.compiler.reset()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            found = difference(case(backend), expected)
        except Exception as error:  # noqa: BLE001 - what is looked for
            return f"{type(error).__name__}: {error}"
    return found or next((str(item.message) for item in heard if "ortlens" in str(item.message)), "")


def main(names: Sequence[str]) -> int:
    """Print what is wrong and how many cases came out how, of all or of those whose name holds a text; 1 when something is wrong."""
    counts: collections.Counter[str] = collections.Counter()
    for name, case in cases().items():
        if names and not any(text in name for text in names):
            continue
        verdict, said = verdict_of(case)
        counts[verdict] += 1
        if verdict in ("wrong", "control"):
            say(f"{name}: {verdict}: {' '.join(said.split())[:300]}")
    say(figures(counts))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
