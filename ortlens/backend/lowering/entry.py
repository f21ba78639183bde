"""Sends Dynamo's graphs through AOTAutograd and keeps what AOTAutograd does not pass on; and which graphs are not worth that."""

from __future__ import annotations

import collections
import functools
import operator
import time
import types
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.basis.error_text import LEFT_TO_TORCH, LOWERED_WITHOUT
from ortlens.backend.basis.provenance import count_ops, input_name, layout_text, module_path, needs_gradient, operations, user_line
from ortlens.backend.lowering.returned_views import inputs_of, outputs_of, without_returned_views
from ortlens.backend.lowering.wholes import noting, put_together
from ortlens.backend.operators.facts import Tracing
from ortlens.errors import ConversionError, OrtLensError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ortlens.backend.lowering.returned_views import ReturnedViews
    from ortlens.trace.records import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredGraph:
    """An ATen graph, ready to be partitioned."""

    module: torch.fx.GraphModule  # the graph: functional, its nodes with `meta["val"]`. It is never changed
    phase: Phase  # `inference`, `forward` or `backward`
    static_inputs: frozenset[int]  # positions of the inputs that are parameters or buffers
    compile_id: str | None  # Dynamo's id; None for an exported program
    op_count: int  # number of operations before decomposition
    aot_ns: int  # time that decomposition took, in ns
    loading_ns: int = 0  # time that ortlens took beforehand to load what it needs once per process
    input_names: tuple[str, ...] = ()  # names of the inputs in a deployed model; empty to use the names of the nodes
    output_names: tuple[str, ...] = ()  # names of the outputs in a deployed model
    arguments: tuple[int, ...] = ()  # positions of the user's inputs, all of which a deployed model has, in this order; empty if not known
    updates: frozenset[int] = frozenset()  # positions of the outputs that are new values of inputs, which a deployed model has last
    is_plain: bool = False  # whether it has the inputs and outputs of Dynamo's graph, so that Dynamo may call it directly
    recorded: Callable[..., Any] | None = None  # Dynamo's graph, where it may be called in place of this one
    views: ReturnedViews | None = None  # the outputs that PyTorch makes as views; None when there are none
    mutated: tuple[int, ...] = ()  # positions of the inputs whose new values are the first outputs, in that order
    checks_signs: bool = False  # whether inputs may be negative or conjugate views, which tracing did not see
    tangents: tuple[int, ...] = ()  # positions of the gradients that a backward graph takes: no guard rejects those that are negative views

    @property
    def partitioned(self) -> torch.fx.GraphModule:
        """The graph without the views that it returns."""
        return self.module if self.views is None else self.views.module


@dataclass(slots=True)
class Phases:
    """Time spent in each phase of the work on a lowered graph, in ns."""

    partition_ns: int = 0
    convert_ns: int = 0
    optimize_ns: int = 0
    session_ns: int = 0

    def total(self) -> int:
        """Sum up all phases, in ns."""
        return sum(asdict(self).values())


def is_for_the_user(error: BaseException) -> bool:
    """Tell whether an exception is to reach the user, for what was asked for and cannot be had, or Dynamo, as its own signal."""
    return (isinstance(error, OrtLensError) and not isinstance(error, ConversionError)) or _torch.is_signal(error)


class DynamoGraph:
    """One Dynamo graph on its way through AOTAutograd, which makes one ATen graph of it, or a forward and a backward one."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        compile_graph: Callable[[LoweredGraph], Callable[..., Any]],
        on_failure: Callable[[str, str, Exception], None] | None = None,
        *,
        stays: Callable[..., Any],
        ahead: bool = False,
    ) -> None:
        """Note what is known before AOTAutograd runs.

        `stays` tells which operators of a graph with gradients stay in PyTorch whole, as for `put_together`.

        `on_failure` reports, by rule, title and exception, a failure that the graph survives: lowered without our decompositions, or
        compiled by PyTorch alone. Without it, the failure is raised. `ahead`: AOTAutograd's own function is wanted, which can be saved.
        """
        self._on_failure = on_failure
        self._ahead = ahead
        self._stays = stays
        self._module = module
        self._compile_graph = compile_graph
        self._autocasts = _torch.autocasts()  # read here, because AOTAutograd disables autocast while it compiles
        self._direct: Callable[..., Any] | None = None
        self._needs_gradient = False
        self._op_count = count_ops(module)
        self._input_names = tuple(input_name(source, place) for place, source in enumerate(_torch.input_sources(module)))
        self._gradients = _torch.gradient_inputs(module)
        self._started = time.perf_counter_ns()
        self._compile_ns = 0  # spent in `compile_graph`, to be subtracted from AOTAutograd's time

    def compile(self, example_inputs: Sequence[Any], decompositions: Mapping[Any, Callable[..., Any]]) -> Callable[..., Any]:
        """Run AOTAutograd; returns the compiled graph itself if AOTAutograd would only wrap it."""
        self._needs_gradient = needs_gradient(example_inputs)
        try:
            compiled = self._lower(example_inputs, decompositions)
        except Exception as error:
            if self._on_failure is None or isinstance(error, OrtLensError) or _torch.is_signal(error):
                raise
            compiled = self._without_decompositions(example_inputs, error)
            self._on_failure("lowering_failed", LOWERED_WITHOUT, error)
        return self._direct or compiled

    def _lower(self, example_inputs: Sequence[Any], decompositions: Mapping[Any, Callable[..., Any]]) -> Callable[..., Any]:
        from ortlens.backend.operators import registry as operators

        on_cuda = any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in example_inputs)
        on_cuda &= decompositions.keys() >= operators.fused_on_cuda()  # else the provider is not there
        backend = _torch.aot_backend(
            forward=self._compiler_for("forward"),
            backward=self._compiler_for("backward"),
            inference=self._compiler_for("inference"),
            decompositions=noting(decompositions),
            kept=operators.kept_whole(Tracing(with_gradient=self._needs_gradient, on_cuda=on_cuda)),
            joint=functools.partial(put_together, why=self._stays),
        )
        compiled: Callable[..., Any] = backend(self._module, example_inputs)
        return compiled

    def _without_decompositions(self, example_inputs: Sequence[Any], error: Exception) -> Callable[..., Any]:
        """Lower again: what a decomposition did may be to blame. If AOTAutograd alone fails too, the first error is the user's."""
        self._direct = None
        try:
            return self._lower(example_inputs, {})
        except Exception:  # noqa: BLE001 - no backend could compile this graph
            raise error from None

    def _compiler_for(self, phase: Phase) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
        def compile_phase(module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
            try:
                return self._compiled(module, phase)
            except Exception as error:
                if self._on_failure is None or self._ahead or is_for_the_user(error):
                    raise
                self._on_failure("backend_failed", LEFT_TO_TORCH, error)
                return _torch.boxed(lambda args: module(*args))

        return compile_phase

    def _compiled(self, module: torch.fx.GraphModule, phase: Phase) -> Callable[..., Any]:
        entered = time.perf_counter_ns()
        lowered = self._lowered(module, phase, entered - self._started - self._compile_ns)
        with _torch.real_tensors():
            run = self._compile_graph(lowered)
        if phase == "backward" and not self._ahead:
            run = with_plain_tangents(run, lowered.tangents)
        self._compile_ns += time.perf_counter_ns() - entered
        # AOTAutograd's wrapper would have no effect and cost time in every call; with gradients enabled, it disables them.
        if lowered.recorded is not None:
            self._direct = lambda *args: run(list(args))
        return run

    def _lowered(self, module: torch.fx.GraphModule, phase: Phase, aot_ns: int) -> LoweredGraph:
        compile_id = _torch.current_compile_id()
        if phase == "backward":
            # It is compiled together with the forward graph or at the first backward call: its part of AOTAutograd's time is
            # unknown and counts for the forward graph.
            return LoweredGraph(
                module=module,
                phase=phase,
                static_inputs=frozenset(),
                compile_id=compile_id,
                op_count=0,
                aot_ns=0,
                tangents=_torch.tangent_indices(module),
            )
        mutated = _torch.mutated_input_indices()
        outputs = _torch.user_outputs()
        # To autograd a view in place of such a result would be one that a custom function returns, which cannot be written to.
        parts = outputs.keys() - (_torch.differentiable_results() if phase == "forward" else frozenset())
        views = without_returned_views(module, outputs, mutated, _torch.relaid_inputs(), parts)
        is_plain = phase == "inference" and self._is_plain(module)
        return LoweredGraph(
            module=module,
            phase=phase,
            static_inputs=_torch.static_input_indices() - set(mutated) - self._gradients,  # of which each step makes new ones
            compile_id=compile_id,
            op_count=self._op_count,
            aot_ns=aot_ns,
            input_names=self._input_names,
            output_names=self._output_names(module, mutated) if phase == "inference" else (),
            updates=frozenset(range(len(mutated))),
            is_plain=is_plain,
            recorded=self._module.forward if is_plain and not (self._autocasts or self._needs_gradient or self._ahead) else None,
            views=views,
            mutated=mutated,
        )

    def _is_plain(self, module: torch.fx.GraphModule) -> bool:
        """Tell whether an ATen graph has the inputs and outputs of Dynamo's graph, so that AOTAutograd adds nothing around it."""
        outer = [_torch.example_of(node) for node in inputs_of(self._module.graph)]
        inner = [node.meta.get("val") for node in inputs_of(module.graph)]
        same = len(outer) == len(inner) and all(_alike(first, second) for first, second in zip(outer, inner, strict=True))
        return same and _torch.returns_outputs_unchanged()

    def _output_names(self, module: torch.fx.GraphModule, mutated: Sequence[int]) -> tuple[str, ...]:
        """Name the outputs: first the new values of mutated inputs, then the results."""
        count = len(outputs_of(module.graph)) - len(mutated)
        known = len(self._input_names)
        updated = [f"{self._input_names[place] if place < known else f'input_{place}'}.updated" for place in mutated]
        return unique_names([*updated, *(f"output_{place}" for place in range(count))], self._input_names)


def unique_names(names: Iterable[str], taken: Iterable[str]) -> tuple[str, ...]:
    """Number names that are taken, or that others of them have: a function may return an input under its name."""
    used, unique = set(taken), []
    for name in names:
        numbered = (name, *(f"{name}.{number}" for number in range(1, len(used) + 2)))
        unique.append(next(each for each in numbered if each not in used))
        used.add(unique[-1])
    return tuple(unique)


def with_plain_tangents(run: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """Let a backward graph take gradients whose negative bit is set; tracing saw none, and no guard rejects them."""

    def run_plainly(args: list[Any]) -> Any:
        for place in places:
            if args[place].is_neg():
                args[place] = args[place].resolve_neg()
        return run(args)

    return _torch.boxed(run_plainly)


def _alike(first: Any, second: Any) -> bool:
    both = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    # As text: to compare symbolic sizes themselves would add guards.
    return both and layout_text(first) == layout_text(second)


_MOST_OPERATIONS, _MOST_OF_A_LINE = 10_000, 1_000


def unrolled(module: torch.fx.GraphModule) -> str | None:
    """Say which line makes most of a graph of more than 10,000 operations, if more than 1,000 come from it: tracing unrolls loops.

    To compile so many would take minutes, and more memory than the model. One line of many modules, as in a deep network, is no loop.
    """
    calls = operations(module)
    if len(calls) <= _MOST_OPERATIONS:
        return None
    lines = collections.Counter((*at[:2], module_path(node)) for node in calls if (at := user_line(node)).file is not None)
    ((file, line, _), count) = next(iter(lines.most_common(1)), (("", 0, None), 0))
    if count <= _MOST_OF_A_LINE:
        return None
    return f"tracing unrolled a loop: {count:,} of the {len(calls):,} operators of the graph are from {file}:{line}"


_METHODS = frozenset(
    {"add_", "sub_", "mul_", "div_", "neg_", "lerp_", "addcmul_", "addcdiv_", "copy_", "zero_", "fill_", "clamp_", "sqrt_", "reciprocal_"}
)
_FUNCTIONS = frozenset({operator.iadd, operator.isub, operator.imul, operator.itruediv})


def only_updates(module: torch.fx.GraphModule) -> bool:
    """Tell whether a graph consists of elementwise updates of inputs in place, at least one, as the step of a plain optimiser does."""
    calls = operations(module)
    made = set(calls)  # an update returns what it updated
    if not calls or not all(map(_updates, calls)):
        return False
    updated = [value for node in calls for value in (node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]])]
    return all(isinstance(value, torch.fx.Node) and (value.op in ("placeholder", "get_attr") or value in made) for value in updated)


def _updates(node: torch.fx.Node) -> bool:
    if not node.args:
        return False
    if node.op == "call_method":
        return node.target in _METHODS
    name = getattr(node.target, "__name__", "")
    return node.op == "call_function" and (node.target in _FUNCTIONS or (name.startswith("_foreach_") and name.endswith("_")))


def as_recorded(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """Make a function of a graph whose tensors are plain attributes: a module takes as long to find one as an update."""
    names = [str(node.target) for node in module.graph.find_nodes(op="get_attr")]
    if any("." in name for name in names):
        return module.forward
    written = type(torch.fx.GraphModule(module, module.graph))  # Dynamo's own writes its code at the first call
    return functools.partial(written.forward, types.SimpleNamespace(**{name: getattr(module, name) for name in names}))
