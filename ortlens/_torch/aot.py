"""AOTAutograd, and what it knows about the graph that it compiles."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import threading
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._guards import TracingContext
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
from torch.utils import _pytree

from ortlens._torch.tensors import is_fake, is_fake_of, is_symbolic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_LOCAL = re.compile(r"L\[\s*['\"](.*?)['\"]\s*\]")  # as `strip_local_scope` in torch/_dynamo/guards.py


def aot_backend(  # noqa: PLR0913 - what AOTAutograd takes, each by name
    *,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inference: Callable[..., Any],
    decompositions: Mapping[Any, Callable[..., Any]],
    kept: Mapping[Any, Callable[..., Any] | None],
    joint: Callable[[torch.fx.Graph], Any],
) -> Callable[..., Any]:
    """Make a Dynamo backend that compiles graphs through AOTAutograd; `kept` as for `kept_whole`.

    `joint` may change the graph of forward and backward together, before it is decided what the backward gets of the forward.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def apart(module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        joint(module.graph)
        return min_cut_rematerialization_partition(module, *args, **kwargs)

    backend: Callable[..., Any] = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=dict(decompositions),
        partition_fn=apart,
    )

    def compile_graph(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with kept_whole(kept):
            compiled: Callable[..., Any] = backend(module, _of_the_compilation(inputs))
        return compiled

    return compile_graph


def compiles_ahead() -> bool:
    """Tell whether `aot_compile` of a compiled function is at work, which sets these (`torch/_dynamo/aot_compile.py`)."""
    from torch._functorch import config

    return config.bundled_autograd_cache and config.bypass_autograd_cache_key


@contextlib.contextmanager
def kept_by_itself() -> Iterator[None]:
    """Have AOTAutograd keep what it makes of a graph, and share it with no other compilation: its key knows no backend of ours."""
    from torch._functorch import config

    tagged = torch.compiler.config.patch(cache_key_tag=f"ortlens {uuid.uuid4()}")  # type: ignore[attr-defined]  # made at run time
    with config.patch(enable_autograd_cache=True), tagged:
        yield


@contextlib.contextmanager
def kept_whole(kept: Mapping[Any, Callable[..., Any] | None]) -> Iterator[None]:
    """Let tracing meet operators that torch takes apart by kernels in Python or by others, before it asks for decompositions.

    `kept` has the function that is traced for each, or None for the operator itself; if that is implemented by others, it must not
    need gradients. Kernels in Python serve traces alone, of any thread.
    """
    keys = torch._C.DispatchKey
    before = {target: dict(target.py_kernels) for target in kept}
    try:
        for target, function in kept.items():
            for key in (keys.Autograd, keys.CompositeImplicitAutograd):
                target.py_kernels.pop(key, None)
            if function is not None:
                target.py_kernels |= dict.fromkeys((keys.Autograd, keys.CompositeImplicitAutograd), function)
            elif torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"):
                # As `_override_composite_implicit_decomp` in torch/export/exported_program.py: modes see it, its parts give shapes.
                parts = functools.partial(taken_apart, target)
                target.py_kernels |= dict.fromkeys((keys.CPU, keys.CUDA, keys.Meta), parts)
                target.py_kernels |= {keys.Autograd: functools.partial(_below_autograd, target), keys.CompositeImplicitAutograd: _keep}
            target._dispatch_cache.clear()
        yield
    finally:
        for target, kernels in before.items():
            target.py_kernels.clear()
            target.py_kernels.update(kernels)
            target._dispatch_cache.clear()


class TracedCall(NamedTuple):
    """What a trace made of a call."""

    nodes: list[torch.fx.Node]  # in order
    args: Any  # with the nodes in the place of their values
    kwargs: Any
    results: list[Any]  # the nodes of the leaves of the result


def traced_call(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, TracedCall | None]:
    """Call a decomposition, and return its result with what it made of a graph; None inside of another one, and where it made nothing."""
    mode: Any = get_proxy_mode()
    if mode is None or mode.decomp_layers != 1:
        return function(*args, **kwargs), None

    def node_of(value: Any) -> Any:
        found = mode.tracer.unwrap_proxy(value)
        return getattr(found, "node", found)

    given, named = _pytree.tree_map(node_of, (args, kwargs))
    graph = mode.tracer.graph
    last = next(iter(reversed(graph.nodes)), None)
    made = function(*args, **kwargs)
    nodes = list(itertools.takewhile(lambda node: node is not last, reversed(graph.nodes)))[::-1]
    if made is NotImplemented or any(isinstance(leaf, torch.Tensor) or is_symbolic(leaf) for leaf in _pytree.tree_leaves((given, named))):
        return made, None
    return made, TracedCall(nodes, given, named, [node_of(leaf) for leaf in _pytree.tree_leaves(made)])


def know_shape(target: Any, made: Callable[..., Any]) -> None:
    """Let traces take the result of an operator from a function, where torch refuses to name its shape, which may depend on data."""
    from torch._subclasses.fake_impls import op_implementations_dict

    def known(mode: Any, _: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return made(*args, **kwargs)

    op_implementations_dict.setdefault(target, known)


@contextlib.contextmanager
def results_known(results: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Let traces of this thread take the results of operators that stay whole from functions that know their shapes.

    For operators with a decomposition in torch's table that PyTorch would run through to see the shapes: that of a recurrent layer takes
    milliseconds per step, and fixes the number of steps. Other threads are served as before.
    """
    from torch._decomp import decomposition_table

    plain = {target: decomposition_table[target] for target in results if target in decomposition_table}
    threads = {threading.get_ident()}

    def known(target: Any, *args: Any, **kwargs: Any) -> Any:
        return (results if threading.get_ident() in threads else plain)[target](*args, **kwargs)

    # Fake tensors look at the module of a function in the table: see `torch_decomp_decompositions` in torch/_subclasses/fake_tensor.py.
    served = {target: functools.wraps(function)(functools.partial(known, target)) for target, function in plain.items()}
    with kept_whole(served):
        decomposition_table.update(served)
        try:
            yield
        finally:
            threads.clear()  # for whoever still has a function
            decomposition_table.update(plain)


def taken_apart(target: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operator that PyTorch implements by others, by those."""
    return target._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def untraced(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function on the values of a trace, which does not see it."""
    with disable_proxy_modes_tracing():
        return function(*args, **kwargs)


def _keep(*_: Any, **__: Any) -> Any:
    return NotImplemented


def _below_autograd(target: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return target(*args, **kwargs)


def _of_the_compilation(inputs: Sequence[Any]) -> list[Any]:
    """Convert the fake tensors among a Dynamo graph's inputs to the fake mode of the running compilation.

    In a dry run the caller's tensors are fake. AOTAutograd uses a mode of its own that Dynamo makes, which keeps the symbols of the
    sizes (`compile_and_call_fx_graph` in `torch/_dynamo/output_graph.py`). It would convert fakes of another mode itself, but without what
    Dynamo knows about their sizes (`process_inputs` in `torch/_functorch/_aot_autograd/frontend_utils.py`).
    """
    context = TracingContext.try_get()
    mode = getattr(context, "fake_mode", None)
    if context is None or mode is None:
        return list(inputs)
    return [_fake_again(value, mode, context) if is_fake(value) and not is_fake_of(value, mode) else value for value in inputs]


def _fake_again(value: torch.Tensor, mode: Any, context: Any) -> Any:
    """Copy a fake tensor to another mode; its dynamic sizes keep Dynamo's symbols."""
    noted = context.tensor_to_context.get(value)
    source = getattr(noted, "tensor_source", None)
    return mode.from_tensor(value, symbolic_context=noted, source=source, trace=noted is None)


class TracedSize(NamedTuple):
    """A size of a tensor that the code being compiled takes."""

    name: str  # of the tensor, as guards have it
    dim: int
    value: int  # of the call that is traced
    is_fixed: bool  # whether Dynamo let it vary and the code then made it a constant, as a convolution does with sizes of its weight


def traced_sizes() -> tuple[TracedSize, ...]:
    """List the sizes of the compilation that is running; none outside a compilation.

    `torch._dynamo.mark_dynamic` raises for fixed ones (`produce_guards_verbose` in `torch/fx/experimental/symbolic_shapes.py`).
    """
    sizes: Iterator[tuple[str, int, Any]] = (
        (_LOCAL.sub(r"\1", item.source.name), dim, size)
        for item in _tracked()
        if isinstance(item.fake, torch.Tensor)
        for dim, size in enumerate(item.fake.shape)
    )
    found = ((name, dim, size, size.node if isinstance(size, torch.SymInt) else None) for name, dim, size in sizes)
    return tuple(
        TracedSize(name, dim, value, node is not None and node.expr.is_number)
        for name, dim, size, node in found
        if isinstance(value := size if node is None else node.hint, int)
    )


def fixes_a_value() -> bool:
    """Tell whether the running compilation made the value of a tensor a constant, as where `.item()` of an argument indexes a list.

    Then each value is compiled by itself.
    """
    numbers = (item for item in _tracked() if isinstance(item.fake, (torch.SymInt, torch.SymFloat)) and item.fake.node.expr.is_number)
    return any(item.source.name.endswith(".item()") for item in numbers)


def _tracked() -> Any:
    """Return what Dynamo lets vary in the running compilation: tensors, and numbers, with their sources; empty outside of one."""
    mode = getattr(TracingContext.try_get(), "fake_mode", None)
    return getattr(getattr(mode, "shape_env", None), "tracked_fakes", None) or ()


def varies_from_the_start() -> bool:
    """Tell whether Dynamo lets all sizes vary in the compilation that is running, as with `dynamic=True`."""
    return not torch._dynamo.config.assume_static_by_default


def _metadata() -> Any:
    """Return what AOTAutograd knows about the graph that it compiles; None outside a compilation."""
    return getattr(TracingContext.try_get(), "fw_metadata", None)


def static_input_indices() -> frozenset[int]:
    """Find the parameters and buffers among the inputs of the AOT graph being compiled; none outside a compilation."""
    return frozenset(getattr(_metadata(), "static_input_indices", None) or ())


def mutated_input_indices() -> tuple[int, ...]:
    """Find the inputs that the program writes to; their new values are the first outputs of the AOT graph being compiled.

    They are in the order of those outputs; there are none outside a compilation. The tokens that order effects are such inputs, too, but
    AOTAutograd puts them before the others and does not count them.
    """
    metadata = _metadata()
    tokens = len(getattr(metadata, "tokens", None) or ())
    return (*range(tokens), *(tokens + place for place in getattr(metadata, "mutated_inp_runtime_indices", None) or ()))


def boxed(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Set AOTAutograd's mark on a function that takes its inputs in a list and may empty it."""
    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
    return run


def tangent_indices(module: torch.fx.GraphModule) -> tuple[int, ...]:
    """Find the gradients of outputs among a backward graph's inputs, which no guard checks, by their names (`_is_tangent` in torch)."""
    placeholders = module.graph.find_nodes(op="placeholder")
    return tuple(place for place, node in enumerate(placeholders) if "tangents" in str(node.target))


def lookup_backend(backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """Find a Dynamo backend by name, or return a backend as it is; raises `InvalidBackend` for an unknown name."""
    from torch._dynamo.backends.registry import lookup_backend as lookup

    found: Callable[..., Any] = lookup(backend)
    return found


def input_sources(graph_module: torch.fx.GraphModule) -> list[str | None]:
    """Find the sources of a Dynamo graph's inputs, such as `L['self']._modules['up']`; None where Dynamo records none."""
    inputs = graph_module.graph.find_nodes(op="placeholder")
    return [getattr(getattr(node.meta.get("grapharg"), "source", None), "name", None) for node in inputs]


def gradient_inputs(graph_module: torch.fx.GraphModule) -> frozenset[int]:
    """Find the inputs of a Dynamo graph that are gradients, `p.grad`: Dynamo marks these static like the parameters.

    They are `GradSource` in an optimiser's step, else `AttrSource` (`torch/_dynamo/source.py`).
    """
    sources = (getattr(node.meta.get("grapharg"), "source", None) for node in graph_module.graph.find_nodes(op="placeholder"))
    return frozenset(place for place, source in enumerate(sources) if getattr(source, "member", None) == "grad")


def example_of(node: torch.fx.Node) -> Any:
    """Return the fake value that Dynamo traced a placeholder with; None if there is none."""
    return node.meta.get("example_value")


def returns_outputs_unchanged() -> bool:
    """Tell whether AOTAutograd returns the outputs of the graph being compiled unchanged; False outside a compilation.

    It does not if an output is written back to an input, is a view of one, or is a tensor subclass; it then wraps the graph
    (`torch/_functorch/_aot_autograd/runtime_wrappers.py`).
    """
    from torch._functorch._aot_autograd.schemas import OutputType, SubclassCreationMeta

    metadata = _metadata()
    if metadata is None or metadata.tokens or metadata.traced_tangents or metadata.num_intermediate_bases:
        return False
    touched = any(info.mutates_data or info.mutates_metadata for info in metadata.input_info)
    plain = all(info.output_type is OutputType.non_alias for info in metadata.output_info)
    kinds = (*(metadata.subclass_inp_meta or ()), *(metadata.subclass_fw_graph_out_meta or ()))
    return plain and not touched and not any(isinstance(kind, SubclassCreationMeta) for kind in kinds)


def user_outputs() -> dict[int, bool]:
    """Map the positions of the outputs that the user gets of the AOT graph being compiled to whether AOTAutograd rebuilds them.

    An output that shares memory with an input or with another value is rebuilt from its size, strides and storage offset. There are none
    outside a compilation.
    """
    from torch._functorch._aot_autograd.schemas import OutputType

    metadata = _metadata()
    if metadata is None:
        return {}
    kept = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view, OutputType.is_input)
    before = len(metadata.tokens) + len(metadata.mutated_inp_runtime_indices)
    return {before + place: info.output_type not in kept for place, info in enumerate(metadata.output_info)}


def differentiable_results() -> frozenset[int]:
    """Find the outputs of the AOT graph being compiled that need a gradient and are no views, though the graph may make them as such."""
    from torch._functorch._aot_autograd.schemas import OutputType

    outputs = zip(user_outputs(), getattr(_metadata(), "output_info", ()), strict=True)
    return frozenset(place for place, info in outputs if info.output_type is OutputType.non_alias and info.requires_grad)


def relaid_inputs() -> frozenset[int]:
    """Find the outputs of the AOT graph being compiled that are inputs whose sizes and strides the program changes, but not values.

    The caller's tensor gets the sizes, strides and storage offset of such an output (`as_strided_` in
    `torch/_functorch/_aot_autograd/runtime_wrappers.py`), so it has to be a view of the input. There are none outside a compilation.
    """
    metadata = _metadata()
    if metadata is None:
        return frozenset()
    infos = [metadata.input_info[place] for place in metadata.mutated_inp_runtime_indices]
    before = len(metadata.tokens)
    return frozenset(before + place for place, info in enumerate(infos) if info.mutates_metadata and not info.mutates_data)


def autocasts() -> bool:
    """Tell whether autocast is on for some device; compiled graphs must run without it."""
    return torch._C._is_any_autocast_enabled()


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Leave autocast, for whatever device it is on."""
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def holds_transforms(graph_module: Any) -> bool:
    """Tell whether Dynamo recorded transforms of `torch.func`, or forward-mode differentiation, in a graph or one inside it.

    Their nodes open and close levels that the whole process shares (`torch/_functorch/predispatch.py`). A graph that stops half-way, say
    because it differentiates where gradients are disabled, leaves them open, and PyTorch itself fails from then on.
    """
    graphs = (module.graph for module in graph_module.modules() if hasattr(module, "graph"))
    homes = (getattr(node.target, "__module__", None) or "" for graph in graphs for node in graph.nodes if node.op == "call_function")
    return any("functorch" in home or home == "torch.autograd.forward_ad" for home in homes)
