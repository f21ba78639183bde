"""From Dynamo's graph to ours: what is known at the door and has to be known behind AOTAutograd."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens import _torch
from ortlens.backend.lowering.provenance import input_name
from ortlens.backend.recording.reporter import GraphReporter
from ortlens.trace.recorder import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortlens.backend.api import OrtBackend
    from ortlens.trace.recorder import Recorder
    from ortlens.trace.records import Phase


class Entry:
    """One Dynamo graph on its way through AOTAutograd.

    Attributes:
        op_count: Operations in that graph.
        direct: What Dynamo may call instead of AOTAutograd's result, once compiled; None when that does more than call our graph.
    """

    def __init__(
        self, *, backend: OrtBackend, recorder: Recorder | None, module: torch.fx.GraphModule, whole: str | None, dry_run: bool
    ) -> None:
        """Note what AOTAutograd's compilers will not be told.

        Args:
            backend: Compiles the graphs that come out.
            recorder: Where records go, if anywhere.
            module: As Dynamo hands it over.
            whole: Name of the graph in the cache, if it has one.
            dry_run: Plan and convert only.
        """
        self._backend = backend
        self._recorder = recorder
        self._module = module
        self._whole = whole
        self._autocasts = _torch.autocasts()  # asked here: AOTAutograd switches it off while it compiles
        self.direct: Callable[..., Any] | None = None
        self._dry_run = dry_run
        self.op_count = count_ops(module)
        self._input_names = [input_name(source, place) for place, source in enumerate(_torch.input_sources(module))]
        self._started = time.perf_counter_ns()
        self._spent = 0  # by this backend's own work, so that what is left is AOTAutograd's

    def recorded(self) -> contextlib.AbstractContextManager[object]:
        """Around the whole compilation, for a lens that no Dynamo graph passes through."""
        on_graph = None if self._recorder is None else self._recorder.on_graph
        return contextlib.nullcontext() if on_graph is None else on_graph(self._module)

    def compiler_for(self, phase: Phase) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
        """The compiler that AOTAutograd calls for one phase.

        Args:
            phase: `inference`, `forward` or `backward`.

        Returns:
            A function of an ATen graph and its inputs.
        """

        def compile_graph(module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
            entered = time.perf_counter_ns()
            mutated = _torch.mutated_input_indices() if phase != "backward" else ()
            static = _torch.static_input_indices() - set(mutated) if phase != "backward" else frozenset()
            # The backward graph is compiled inside the forward's window or much later, at the first backward call:
            # its share of AOTAutograd's time cannot be told apart and stays with the forward graph.
            aot_ns = 0 if phase == "backward" else entered - self._started - self._spent
            plain = phase == "inference" and self._is_plain(module)
            with _torch.real_tensors():
                run = self._backend.compile_graph(
                    module,
                    phase=phase,
                    static_inputs=static,
                    recorder=self._recorder,
                    compile_id=_torch.current_compile_id(),
                    op_count=0 if phase == "backward" else self.op_count,
                    aot_ns=aot_ns,
                    input_names=() if phase == "backward" else self._input_names,
                    output_names=self._output_names(module, mutated) if phase == "inference" else (),
                    dry_run=self._dry_run,
                    whole=self._whole if plain else None,
                )
            self._spent += time.perf_counter_ns() - entered
            if plain and not self._autocasts:  # AOTAutograd's code around a graph would do nothing but cost time with every call
                self.direct = lambda *args: run(list(args))
            return run

        return compile_graph

    def _is_plain(self, module: torch.fx.GraphModule) -> bool:
        """Whether a graph of AOTAutograd's takes and gives what Dynamo's does, so that nothing is left to do around it."""
        outer = [_torch.example_of(node) for node in self._module.graph.find_nodes(op="placeholder")]
        inner = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
        same = len(outer) == len(inner) and all(_alike(first, second) for first, second in zip(outer, inner, strict=True))
        return same and _torch.returns_outputs_unchanged()

    def _output_names(self, module: torch.fx.GraphModule, mutated: Sequence[int]) -> list[str]:
        """New values of what the program writes to come first, then what it returns."""
        output = next(node for node in module.graph.nodes if node.op == "output")
        count = len(output.args[0]) - len(mutated)
        known = len(self._input_names)
        updated = [f"{self._input_names[place] if place < known else f'input_{place}'}.updated" for place in mutated]
        return [*updated, *(f"output_{place}" for place in range(count))]


def _alike(first: Any, second: Any) -> bool:
    """Whether two example values stand for the same input."""
    both = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    # As text: to compare symbolic sizes themselves would make guards.
    return both and _layout_text(first) == _layout_text(second)


def _layout_text(value: torch.Tensor) -> str:
    return f"{value.dtype} {list(map(str, value.shape))} {list(map(str, value.stride()))}"


def needs_gradient(inputs: Sequence[Any]) -> bool:
    """Whether calls with such inputs are part of a training step.

    Args:
        inputs: Inputs of a graph.

    Returns:
        True when gradients are enabled and some input requires one.
    """
    return torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)


def left_alone(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """A training graph that the user keeps from AOTAutograd: PyTorch runs it, and the reason is recorded.

    Args:
        module: As Dynamo hands it over.

    Returns:
        Its own `forward`.
    """
    recorder = CURRENT.get()
    if recorder is not None:
        compile_id = _torch.current_compile_id()
        reporter = GraphReporter(recorder, phase="forward", compile_id=compile_id, op_count=count_ops(module), aot_ns=0)
        reporter.graph_skipped(module, "use_aot_autograd=False leaves graphs that need gradients to PyTorch")
    return module.forward


def count_ops(module: torch.fx.GraphModule) -> int:
    """Operations in a Dynamo graph.

    Args:
        module: As Dynamo hands it over.

    Returns:
        Calls of functions, methods and modules.
    """
    return sum(1 for node in module.graph.nodes if node.op in ("call_function", "call_method", "call_module"))
