"""The code between partitions: one generated straight-line function per graph, no interpreter.

Waves of PyTorch nodes and partitions alternate as planned. Values are deleted after their last use, as AOTAutograd's own
code does, so that activations do not accumulate.

Draws of random numbers run as soon as their inputs allow, so that a check which comes before a draw in the program may run after it. If it
fails, the generator is put back to where it was before the draw.
"""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ortlens import _torch
from ortlens.analysis.index import grouped
from ortlens.backend.lowering.buffer_writes import AT_INDICES
from ortlens.backend.lowering.checks import draws, may_raise
from ortlens.backend.partitioning.plan import NodeKind, kind_of
from ortlens.backend.runtime import devices
from ortlens.backend.runtime.generated import Emitter, function_from_source, listed, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ortlens.backend.partitioning.plan import GraphPartition, Plan
    from ortlens.backend.runtime.generated import Lines
    from ortlens.trace.runlog import EagerLog


def eager_nodes(plan: Plan) -> tuple[torch.fx.Node, ...]:
    """List the nodes that PyTorch runs and the lens counts: compute nodes and checks outside partitions, in graph order."""
    counted = (NodeKind.COMPUTE, NodeKind.EFFECT)
    return tuple(node for node in plan.verdicts if not plan.in_partition(node) and kind_of(node) in counted)


class Runs(Protocol):
    """What runs a partition."""

    @property
    def partition(self) -> GraphPartition:
        """The partition."""

    @property
    def run(self) -> Callable[..., tuple[Any, ...]]:
        """A function of the partition's inputs; of those that are not fixed, if some are."""


def make_program(  # noqa: PLR0913 - what is known about a graph, each by name
    plan: Plan,
    owner: torch.nn.Module,
    runners: Sequence[Runs],
    log: EagerLog | None,
    fixed: Mapping[torch.fx.Node, Any] | None = None,
    *,
    elsewhere: tuple[str, Callable[[list[Any]], list[Any]]] | None = None,
) -> Callable[[list[Any]], list[Any]]:
    """Generate the boxed function that runs a graph, without `fixed` inputs: it takes a list, empties it, and returns a list.

    `elsewhere` is a condition of `_torch.interpreter_scope`, and the function that is called instead where it holds.
    """
    writer = _ProgramWriter(plan, owner, runners, log, fixed or {}, elsewhere)
    return function_from_source("program", writer.source(), writer.scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """One statement: a node run by PyTorch, or, when there is no node, the partition of that number."""

    reads: tuple[torch.fx.Node, ...]
    writes: tuple[torch.fx.Node, ...]
    node: torch.fx.Node | None = None
    partition: int = -1


@dataclass
class _ProgramWriter:
    plan: Plan
    owner: torch.nn.Module
    runners: Sequence[Runs]
    log: EagerLog | None
    fixed: Mapping[torch.fx.Node, Any]
    elsewhere: tuple[str, Callable[[list[Any]], list[Any]]] | None

    def __post_init__(self) -> None:
        self._slots = {} if self.log is None else {name: slot for slot, name in enumerate(self.log.nodes)}
        self._names: dict[torch.fx.Node, str] = {}
        self._emitter = Emitter(**{f"p{i}": runner for i, runner in enumerate(self.runners)})
        self.scope = self._emitter.scope
        if self.elsewhere is not None:
            self.scope |= {**_torch.interpreter_scope(), "elsewhere": self.elsewhere[1]}
        if self.log is not None:
            self.scope.update(clock=time.perf_counter_ns, calls=self.log.calls, total=self.log.total_ns)

    def source(self) -> str:
        graph = self.plan.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder" and node not in self.fixed]
        (output,) = (node for node in graph.nodes if node.op == "output")
        steps = self._needed(list(self._steps()), output)
        body: list[Any] = [] if self.elsewhere is None else [f"if {self.elsewhere[0]}: return elsewhere(args)"]
        body += [f"{listed(map(self._name, placeholders))} = args"] if placeholders else []
        body.append("args.clear()")
        last_use = self._last_uses(steps, output)
        early = self._early_draws(steps)
        kept = {draw for drawn in early.values() for draw in drawn}
        for index, step in enumerate(steps):
            body += [f"{self._generator(step.node)}_state = {self._generator(step.node)}.get_state()"] if step.node in kept else []
            body += self._restoring(self._statement(step), early.get(index, ()))
            dead = [self._name(node) for node in last_use.get(index, ())]
            body += [f"del {', '.join(dead)}"] if dead else []
        results = output.args[0] if isinstance(output.args[0], (list, tuple)) else (output.args[0],)
        body.append(f"return [{', '.join(self._render(item) for item in results)}]")
        return source_of("program(args)", body)

    def _steps(self) -> Iterator[_Statement]:
        waves = grouped((self.plan.level[node], node) for node in self.plan.verdicts if not self.plan.in_partition(node))
        for index in range(self.plan.partition_count + 1):
            for node in waves.get(index, ()):
                yield _Statement(reads=tuple(node.all_input_nodes), writes=(node,), node=node)
            if index < len(self.runners):
                partition = self.runners[index].partition
                yield _Statement(reads=partition.inputs, writes=partition.outputs, partition=index)

    def _early_draws(self, steps: list[_Statement]) -> dict[int, tuple[torch.fx.Node, ...]]:
        """Find for each step with checks the first draw from each generator that comes after one of them in the program, but has run."""
        order = {node: place for place, node in enumerate(self.plan.graph.nodes)}
        found: dict[int, tuple[torch.fx.Node, ...]] = {}
        drawn: list[torch.fx.Node] = []
        for index, step in enumerate(steps):
            nodes = (step.node,) if step.node is not None else self.runners[step.partition].partition.nodes
            checks = [order[node] for node in nodes if may_raise(node)] if drawn else []
            later = [node for node in drawn if checks and order[node] > min(checks)]
            if later:
                found[index] = tuple({_device_of(node): node for node in reversed(later)}.values())
            drawn += [node for node in nodes if step.node is not None and draws(node) and devices.kind_of(_device_of(node)).generator]
        return found

    def _restoring(self, lines: Lines, drawn: Iterable[torch.fx.Node]) -> Lines:
        """Put generators back if a statement raises."""
        back = [f"{self._generator(draw)}.set_state({self._generator(draw)}_state)" for draw in drawn]
        return ["try:", lines, "except Exception:", [*back, "raise"]] if back else lines

    def _generator(self, draw: torch.fx.Node) -> str:
        """Put the generator that a node draws from into the scope, under a name for this node; return the name."""
        name, device = f"generator_{self._name(draw)}", _device_of(draw)
        if (generator := devices.kind_of(device).generator) is not None:
            self.scope[name] = generator(device.index or 0)
        return name

    def _needed(self, steps: list[_Statement], output: torch.fx.Node) -> list[_Statement]:
        """Skip size computations that only partitions read."""
        wanted = set(output.all_input_nodes)
        kept = []
        for step in reversed(steps):
            droppable = step.node is not None and step.node in self.plan.hoisted_sizes
            if not droppable or wanted.intersection(step.writes):
                wanted.update(step.reads)
                kept.append(step)
        return kept[::-1]

    def _last_uses(self, steps: list[_Statement], output: torch.fx.Node) -> dict[int, list[torch.fx.Node]]:
        kept = set(output.all_input_nodes)
        last = {node: index for index, step in enumerate(steps) for node in (*step.reads, *step.writes)}
        dying = (node for node in last if node not in kept and node.op != "get_attr" and node not in self.fixed)
        return grouped((last[node], node) for node in dying)

    def _name(self, node: torch.fx.Node) -> str:
        return self._names.setdefault(node, f"v{len(self._names)}")

    def _statement(self, step: _Statement) -> list[str]:
        node = step.node
        if node is None:
            results = listed(map(self._name, step.writes))
            args = ", ".join(self._render(read) for read in step.reads if read not in self.fixed)
            return [f"{results} = p{step.partition}.run({args})"]
        line = f"{self._name(node)} = {self._call(node)}"
        slot = self._slots.get(node.name)
        return [line] if slot is None else ["t = clock()", line, f"total[{slot}] += clock() - t", f"calls[{slot}] += 1"]

    def _call(self, node: torch.fx.Node) -> str:
        args = [self._render(arg) for arg in node.args]
        args += [f"{key}={self._render(value)}" for key, value in node.kwargs.items()]
        return f"{self._emitter.constant(self._faster(node))}({', '.join(args)})"

    def _faster(self, node: torch.fx.Node) -> Any:
        """Find the fastest form of a call: on a constant that nothing else reads, PyTorch writes in place instead of into a copy."""
        source = next(iter(node.args), None)
        if node.target not in _IN_PLACE or not isinstance(source, torch.fx.Node) or source.target is not torch.ops.aten.full.default:
            return _FASTER.get(node.target) or _behind_prim(node.target)
        alone = len(source.users) == 1 and source not in node.args[1:] and source not in self.fixed
        return _IN_PLACE[node.target] if alone and not self.plan.in_partition(source) else node.target

    def _render(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return self._rendered_node(value)
        if isinstance(value, (list, tuple)):
            items = listed(map(self._render, value))
            return f"[{items}]" if isinstance(value, list) else f"({items})"
        if isinstance(value, slice):
            return f"slice({self._render(value.start)}, {self._render(value.stop)}, {self._render(value.step)})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key!r}: {self._render(item)}" for key, item in value.items()) + "}"
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        return self._emitter.constant(value)

    def _rendered_node(self, node: torch.fx.Node) -> str:
        if node in self.fixed:
            return self._emitter.constant(self.fixed[node])
        return self._emitter.constant(operator.attrgetter(str(node.target))(self.owner)) if node.op == "get_attr" else self._name(node)


_FASTER: Mapping[Any, Callable[..., Any]] = {
    torch.ops.prims.convert_element_type.default: lambda tensor, dtype: tensor.to(dtype, copy=True)
}
"""Operator -> an equal call that is faster than what `_behind_prim` finds."""


def _behind_prim(target: Any) -> Any:
    """Return what a prim calls to compute a new tensor, after checks in Python of 40 us that tracing has made already."""
    is_new = getattr(getattr(target, "return_type", None), "name", "") == "NEW"
    return getattr(target, "impl_aten", target) if is_new and target.namespace == "prims" else target


_IN_PLACE: Mapping[Any, Any] = {**AT_INDICES, torch.ops.aten.scatter_reduce.two: torch.ops.aten.scatter_reduce_.two}


def _device_of(draw: torch.fx.Node) -> torch.device:
    """Find the device from whose generator a node draws: that of its result, or the meta device if it makes no tensor."""
    value = draw.meta.get("val")
    made = value[0] if isinstance(value, (tuple, list)) else value
    return made.device if isinstance(made, torch.Tensor) else torch.device("meta")
