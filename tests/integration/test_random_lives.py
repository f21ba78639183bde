"""Whatever happens to a model, in whatever order: the next answer is PyTorch's. See `lives` for how a life is written and replayed.

These are a few short lives; `make sweep-soak` lives long random ones for minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ortlens import OrtBackend
from tests.integration.life_steps import COUNTED
from tests.integration.lives import KINDS, Step, failure_of, life_from_text, live, random_life
from tests.sample import sampled

if TYPE_CHECKING:
    from collections.abc import Callable


def compile_module(module: nn.Module) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(module, backend="ortlens")
    return compiled


@pytest.mark.parametrize("kind", sampled(KINDS, ("mlp", "block")))
def test_every_sort_of_change_comes_once(kind: str) -> None:
    """So that no sort of change depends on the luck of a seed; the models share them, channels_last being for the first."""
    sorts = [name for name in COUNTED if not name.startswith("call")]
    assert sorts.index("channels_last") % len(KINDS) == list(KINDS).index("conv")
    changes = [Step(name, number) for number, name in enumerate(sorts, start=1)][list(KINDS).index(kind) :: len(KINDS)]
    calls = [Step("call_on_odd_memory", 1), Step("call_on_odd_memory", 2)]
    live(kind, [*calls, *(step for change in changes for step in (change, *calls))], COUNTED, compile_module)


def test_a_life_is_lived_in_onnx_runtime() -> None:
    """A life in which everything fell back to PyTorch would agree with PyTorch, and show nothing."""
    OrtBackend.clear_cached_instances()
    assert failure_of("block", [Step("call_on_odd_memory", number) for number in (1, 2, 3)], COUNTED, compile_module) is None
    (backend,) = OrtBackend.get_cached_instances()
    assert backend.execution_count >= 3
    assert any(info.frozen for sessions in backend.sessions_by_graph.values() for info in sessions)


def stale(module: nn.Module) -> Callable[..., Any]:
    """Compiled, with weights that are never looked at again."""
    state = {name: value.detach().clone() for name, value in module.state_dict(keep_vars=True).items()}
    return lambda x: torch.func.functional_call(module, state, (x,), tie_weights=False)


def sharing_results(module: nn.Module) -> Callable[..., Any]:
    """Compiled, with one buffer for the results of all calls."""
    results: dict[Any, torch.Tensor] = {}

    def compiled(x: torch.Tensor) -> torch.Tensor:
        made = module(x)
        return results.setdefault(made.shape, made).copy_(made) if not made.requires_grad else made

    return compiled


def writing_to_arguments(module: nn.Module) -> Callable[..., Any]:
    return lambda x: (module(x), x.detach().zero_())[0]


def eager(module: nn.Module) -> Callable[..., Any]:
    return module


@pytest.mark.parametrize("fault", [stale, sharing_results, writing_to_arguments])
def test_a_planted_fault_is_found_and_cut_down(fault: Callable[[nn.Module], Callable[..., Any]]) -> None:
    with pytest.raises(AssertionError) as caught:  # noqa: PT012 - in one of several lives
        for seed in range(20):
            live("conv", random_life(seed, list(COUNTED), 12), COUNTED, fault)
    kind, steps = life_from_text(str(caught.value).splitlines()[0])
    assert failure_of(kind, steps, COUNTED, fault) is not None
    assert failure_of(kind, steps, COUNTED, eager) is None
    assert 1 <= len(steps) <= 3, "calls and the change between them"
