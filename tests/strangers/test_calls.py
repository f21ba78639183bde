"""Whatever Python does around the operators of a call, all of them are counted, and the first problem is on a line to change."""

# ruff: noqa: ANN401 - results of programs are anything

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ortlens._torch import TorchDispatchMode
from ortlens.analysis.coverage import coverage_of
from tests.strangers.calls import PROGRAMS
from tests.strangers.contradictions import contradictions
from tests.strangers.observe import Loaded, Screen

pytestmark = pytest.mark.slow


class Counter(TorchDispatchMode):
    """Counts operators below autograd."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators_in_graphs(loaded: Loaded) -> int:
    """Count what Dynamo's graphs run in a call that compiles nothing."""
    in_graphs = [0]

    def counting(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with Counter() as counter:
                outputs = graph(*args)
            in_graphs[0] += counter.count
            return outputs

        return run

    torch._dynamo.reset()
    fast = torch.compile(loaded.model, backend=counting)
    loaded.called(fast)
    loaded.called(fast)
    in_graphs[0] = 0
    loaded.called(fast)
    return in_graphs[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_operator_of_a_call_is_counted_and_the_first_problem_is_the_users(name: str, tmp_path: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    loaded, program = Loaded(PROGRAMS[name].source(), tmp_path / "before.py"), PROGRAMS[name]
    screen = Screen(loaded)
    coverage = coverage_of(screen.capture)
    with Counter() as whole:
        loaded.called(loaded.model)
    assert coverage.operator_count == whole.count
    compiled = operators_in_graphs(loaded) if loaded.get("is_steady", True) else coverage.compiled_operator_count
    assert coverage.compiled_operator_count == compiled
    if screen.capture.graphs and not screen.capture.fallbacks:
        assert coverage.ort_operator_count == compiled
    assert contradictions(screen.lens) == []
    places = [(item.file, item.line) for item in screen.actions if item.kind == "break"]
    marked = {(loaded.file, line) for line in program.lines}
    assert set(places) <= marked
    assert bool(places) == bool(marked)
    assert not places or (screen.actions[0].file, screen.actions[0].line) in marked
