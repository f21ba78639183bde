"""Defects to plant, one at a time: each is a mistake that a change of the backend could bring."""

# ruff: noqa: ANN401 - nodes and arguments are Any in torch itself

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from ortlens import OrtBackend
from ortlens.backend.basis.memory_order import inverse_order
from ortlens.backend.compiler import GraphCompiler
from ortlens.backend.lowering import checks, returned_views
from ortlens.backend.lowering.entry import LoweredGraph
from ortlens.backend.runtime import call, program, weights
from ortlens.backend.runtime.memory_assumptions import MemoryAssumptions

PLANTS: dict[str, Callable[[], Any]] = {}
BEYOND_GRAPHS: set[str] = set()
"""Those that no graph shows which is judged without AOTAutograd."""


def plant(name: str, *, beyond_graphs: bool = False) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register what plants a defect."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        PLANTS[name] = make
        BEYOND_GRAPHS.update([name] if beyond_graphs else ())
        return make

    return register


def graph_plant(name: str, *, beyond_graphs: bool = False) -> Callable[[Callable[[Any, LoweredGraph], None]], Callable[[], Any]]:
    """Register a change of the module of each graph that is compiled."""

    def register(change: Callable[[Any, LoweredGraph], None]) -> Callable[[], Any]:
        def changed(lowered: LoweredGraph) -> LoweredGraph:
            change(lowered.partitioned, lowered)
            return lowered

        return plant(name, beyond_graphs=beyond_graphs)(lambda: _with_lowered(changed))

    return register


def _around(owner: Any, name: str, planted: Callable[..., Any]) -> Any:
    """Have a function called in the place of another, which it gets before the arguments."""
    original = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **settings: planted(original, *args, **settings))


def _with_lowered(changed: Callable[[LoweredGraph], LoweredGraph]) -> Any:
    """Replace each graph that is compiled."""
    return _around(GraphCompiler, "compile", lambda original, self, lowered, **context: original(self, changed(lowered), **context))


def _truncated(number: Any, divisor: Any) -> Any:
    """The quotient, cut off at the point as in C."""
    quotient = abs(number) // abs(divisor)
    return quotient if (number < 0) == (divisor < 0) else -quotient


def _replaced_in(owner: Any, name: str, old: str, new: str) -> Any:
    """Replace a text in every line that a method writes; `{index}` is the method's first argument."""

    def planted(original: Any, self: Any, index: int, *args: Any) -> list[str]:
        return [line.replace(old.format(index=index), new.format(index=index)) for line in original(self, index, *args)]

    return _around(owner, name, planted)


@plant("returned views made by the session")
def _no_returned_views() -> Any:
    return _with_lowered(lambda lowered: dataclasses.replace(lowered, views=None))


@plant("outputs permuted the wrong way")
def _permuted_the_wrong_way() -> Any:
    def wrong(sizes: Any, order: Any, **kinds: Any) -> torch.Tensor:
        return torch.empty_permuted(sizes, inverse_order(order), **kinds)

    def planted(original: Any, name: str, source: str, scope: dict[str, Any]) -> Any:
        return original(name, source, {**scope, "empty_in_order": wrong})

    return _around(call, "function_from_source", planted)


@plant("changed weights not noticed")
def _stale_weights() -> Any:
    return mock.patch.object(call._Writer, "_staleness", return_value=[])


@plant("a weight bound without its offset")
def _weight_without_its_offset() -> Any:
    def planted(original: Any, name: str, tensor: Any) -> Any:
        made = original(name, tensor)
        if made is None or not tensor.storage_offset():
            return made
        return dataclasses.replace(made, contiguous=torch.as_strided(made.contiguous, made.contiguous.shape, made.contiguous.stride(), 0))

    return _around(weights, "freeze", planted)


@plant("an input bound without its offset")
def _input_without_its_offset() -> Any:
    return _replaced_in(call._Writer, "_bind_input", "i{index}.data_ptr()", "i{index}.untyped_storage().data_ptr()")


@plant("outputs share memory between calls")
def _outputs_share_their_memory() -> Any:
    """Every call writes its outputs where the last one did."""

    def planted(original: Any, name: str, source: str, scope: dict[str, Any]) -> Any:
        made: dict[Any, torch.Tensor] = {}

        def empty(shape: Any, **kinds: Any) -> torch.Tensor:
            return made.setdefault((tuple(shape), *kinds.values()), torch.empty(shape, **kinds))

        return original(name, source, {**scope, "empty": empty} if "empty" in scope else scope)

    return _around(call, "function_from_source", planted)


@plant("int32 returned as int64")
def _int32_returned_as_int64() -> Any:
    def planted(original: Callable[..., list[str]], self: Any) -> list[str]:
        widened = [
            f"r{place} = r{place}.long()" for place, item in enumerate(self._outputs) if getattr(item.meta, "dtype", None) is torch.int32
        ]
        return original(self) + widened

    return _around(call._Writer, "_collect", planted)


@plant("two outputs swapped")
def _outputs_swapped() -> Any:
    """The last two outputs of a partition, where they look alike."""

    def planted(original: Callable[..., list[str]], self: Any, step: Any) -> list[str]:
        lines = original(self, step)
        last = [node.meta["val"] for node in step.writes[-2:]]
        if step.node is None and len(last) == 2 and all(isinstance(value, torch.Tensor) for value in last):
            first, second = (f"{self._name(node)}" for node in step.writes[-2:])
            if (last[0].dtype, str(last[0].shape)) == (last[1].dtype, str(last[1].shape)):
                lines.append(f"{first}, {second} = {second}, {first}")
        return lines

    return _around(program._ProgramWriter, "_statement", planted)


@plant("a size baked in")
def _baked_sizes() -> Any:
    """A size that PyTorch computes is the one of the first call."""

    def planted(original: Any, self: Any, node: Any) -> str:
        value = node.meta.get("val")
        return str(value.node.hint) if isinstance(value, torch.SymInt) and value.node.hint is not None else original(self, node)

    return _around(program._ProgramWriter, "_call", planted)


@graph_plant("a write into an input lost")
def _write_lost(module: Any, lowered: LoweredGraph) -> None:
    """The last input that a program writes to gets its old values back."""
    if lowered.mutated:
        output = next(iter(module.graph.find_nodes(op="output")))
        results = list(output.args[0])
        results[len(lowered.mutated) - 1] = module.graph.find_nodes(op="placeholder")[lowered.mutated[-1]]
        output.args = (tuple(results),)


@graph_plant("the sign of a gradient lost", beyond_graphs=True)
def _gradient_off(module: Any, lowered: LoweredGraph) -> None:
    """What is negated in a backward graph keeps its sign."""
    if lowered.phase == "backward":
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.neg.default):
            node.replace_all_uses_with(node.args[0])


@graph_plant("an unsound rewrite")
def _unsound_rewrite(module: Any, _: LoweredGraph) -> None:
    """Two clamps in a row are taken for one."""
    clamps = (torch.ops.aten.clamp.default, torch.ops.aten.relu.default, torch.ops.aten.clamp_min.default)
    for node in module.graph.nodes:
        source = node.args[0] if node.args else None
        if node.target in clamps and getattr(source, "target", None) in clamps:
            node.replace_all_uses_with(source)


@graph_plant("scalars made whole")
def _scalars_of_the_tensors_dtype(module: Any, _: LoweredGraph) -> None:
    """A fraction beside a tensor of whole numbers is made whole, instead of the tensor a float."""
    for node in [item for item in module.graph.nodes if item.op == "call_function"]:
        values = [getattr(source, "meta", {}).get("val") for source in node.args[:1]]
        if values and isinstance(values[0], torch.Tensor) and not values[0].is_floating_point():
            node.args = tuple(int(item) if isinstance(item, float) else item for item in node.args)


@graph_plant("the offset of a slice lost")
def _offset_of_a_slice_lost(module: Any, _: LoweredGraph) -> None:
    """`x[1:]` becomes `x[:-1]`."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor):
        if node.args[2:] == (1, 9223372036854775807):
            node.args = (*node.args[:2], 0, -1)


@graph_plant("floor division truncates", beyond_graphs=True)
def _floor_division_truncates(module: Any, _: LoweredGraph) -> None:
    for node in module.graph.find_nodes(op="call_function", target=operator.floordiv):
        node.target = _truncated


plant("frozen calls do not look for shared memory", beyond_graphs=True)(
    lambda: mock.patch.object(MemoryAssumptions, "_overlaps", return_value=[])
)
plant("frozen calls do not look at strides", beyond_graphs=True)(
    lambda: mock.patch.object(MemoryAssumptions, "_other_layouts", return_value=[])
)


@plant("writes do not wait for checks", beyond_graphs=True)
@contextlib.contextmanager
def _writes_before_checks() -> Iterator[None]:
    """Writes and draws of random numbers do not wait for what may raise."""
    with mock.patch.object(checks, "may_raise", return_value=False), mock.patch.object(program, "may_raise", return_value=False):
        yield


@graph_plant("negative positions taken")
def _negative_positions_taken(module: Any, _: LoweredGraph) -> None:
    """A look-up in a table takes positions from the end."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.embedding.default):
        table, places = node.args[:2]
        node.target, node.args, node.kwargs = torch.ops.aten.index.Tensor, (table, [places]), {}


@graph_plant("constants of 16 bits")
def _constants_of_16_bits(module: Any, _: LoweredGraph) -> None:
    """A fraction beside a tensor of 16 bits is rounded to 16 bits."""
    for node in [item for item in module.graph.nodes if item.op == "call_function"]:
        dtypes = [getattr(source.meta.get("val"), "dtype", None) for source in node.all_input_nodes]
        narrow = next((dtype for dtype in dtypes if dtype in (torch.float16, torch.bfloat16)), None)
        if narrow is not None:
            node.args = tuple(float(torch.tensor(item, dtype=narrow)) if isinstance(item, float) else item for item in node.args)


@graph_plant("the default dtype ignored", beyond_graphs=True)
def _default_dtype_ignored(module: Any, _: LoweredGraph) -> None:
    """What is created without a dtype is of float32."""
    aten = torch.ops.aten
    targets = {aten.ones.default, aten.zeros.default, aten.full.default, aten.scalar_tensor.default, aten.eye.default, aten.rand.default}
    for node in [item for item in module.graph.nodes if item.target in targets and item.meta["val"].dtype.is_floating_point]:
        node.kwargs = {"dtype": torch.float32, **node.kwargs}


@plant("the generator not advanced", beyond_graphs=True)
def _generator_not_advanced() -> Any:
    """A graph draws random numbers, and the next one draws the same."""

    def planted(original: Any, self: Any, lowered: LoweredGraph, **context: Any) -> Any:
        run = original(self, lowered, **context)

        def again(args: list[Any]) -> Any:
            before = torch.get_rng_state()
            made = run(args)
            torch.set_rng_state(before)
            return made

        return again

    return _around(GraphCompiler, "compile", planted)


@graph_plant("branches of cond swapped", beyond_graphs=True)
def _branches_swapped(module: Any, _: LoweredGraph) -> None:
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond):
        chosen, first, second, *operands = node.args
        node.args = (chosen, second, first, *operands)


@plant("parts returned without the whole", beyond_graphs=True)
def _parts_without_the_whole() -> Any:
    """A returned view has the strides of what it is a view of, and nothing between its elements."""
    return _around(returned_views, "_must_be_view", lambda original, chain, **how: original(chain, **{**how, "part": False}))


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a defect."""
    OrtBackend.clear_cached_instances()
    torch.compiler.reset()
    with PLANTS[name]():
        yield
    OrtBackend.clear_cached_instances()
    torch.compiler.reset()
