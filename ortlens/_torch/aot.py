"""AOTAutograd, and what it knows about the graph that it compiles."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from ortlens._torch.tensors import is_fake, is_fake_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    import torch.fx

_LOCAL = re.compile(r"L\[\s*['\"](.*?)['\"]\s*\]")  # as `strip_local_scope` in torch/_dynamo/guards.py


def aot_backend(
    *,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inference: Callable[..., Any],
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """Make a Dynamo backend that compiles graphs through AOTAutograd.

    Args:
        forward: Compiles the forward graph of a training step.
        backward: Compiles its backward graph.
        inference: Compiles a graph that needs no gradient.
        decompositions: As returned by `decomposition_table`.

    Returns:
        A callable of a GraphModule and example inputs.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    backend: Callable[..., Any] = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=dict(decompositions),
        partition_fn=min_cut_rematerialization_partition,
    )
    return lambda module, inputs: backend(module, _of_the_compilation(inputs))


def _of_the_compilation(inputs: Sequence[Any]) -> list[Any]:
    """Convert the fake tensors among a Dynamo graph's inputs to the fake mode of the running compilation.

    In a dry run the caller's tensors are fake. AOTAutograd uses a mode of its own that Dynamo makes, which keeps the symbols of the
    sizes (`compile_and_call_fx_graph` in `torch/_dynamo/output_graph.py`). torch 2.9 rejects fakes of another mode
    (`detect_fake_mode` in `torch/_guards.py`). torch 2.13 converts them, but without what Dynamo knows about their sizes
    (`process_inputs` in `torch/_functorch/_aot_autograd/frontend_utils.py`). Converting here gives the same result in all versions.
    """
    from torch._guards import TracingContext

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


def fixed_sizes() -> frozenset[tuple[str, int]]:
    """Find the sizes that Dynamo let vary and the code then made constants, as a convolution does with those of its weight.

    `torch._dynamo.mark_dynamic` raises for these (`produce_guards_verbose` in `torch/fx/experimental/symbolic_shapes.py`).

    Returns:
        Name of the tensor, as guards have it, and dimension; empty outside a compilation, and for sizes that were constants from the start.
    """
    import torch
    from torch._guards import TracingContext

    mode = getattr(TracingContext.try_get(), "fake_mode", None)
    tracked = getattr(getattr(mode, "shape_env", None), "tracked_fakes", None) or ()
    return frozenset(
        (_LOCAL.sub(r"\1", _source_name(item.source) or ""), dim)
        for item in tracked
        if isinstance(item.fake, torch.Tensor)
        for dim, size in enumerate(item.fake.shape)
        if isinstance(size, torch.SymInt) and size.node.expr.is_number
    )


def _source_name(source: Any) -> str | None:
    name = getattr(source, "name", None)  # a method in torch 2.9, a property since
    return name() if callable(name) else name


def varies_from_the_start() -> bool:
    """Whether Dynamo lets all sizes vary in the compilation that is running, as with `dynamic=True`."""
    import torch

    return not torch._dynamo.config.assume_static_by_default


def static_input_indices() -> frozenset[int]:
    """Find the parameters and buffers among the inputs of the AOT graph being compiled.

    Returns:
        Positions; empty outside a compilation.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    return frozenset(getattr(metadata, "static_input_indices", None) or ())


def mutated_input_indices() -> tuple[int, ...]:
    """Find the inputs that the program writes to; their new values are the first outputs of the AOT graph being compiled.

    The tokens that order effects are such inputs, too. AOTAutograd puts them before the others, and does not count them.

    Returns:
        Positions, in the order of those outputs; empty outside a compilation.
    """
    from torch._guards import TracingContext

    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    tokens = len(getattr(metadata, "tokens", None) or ())
    return (*range(tokens), *(tokens + place for place in getattr(metadata, "mutated_inp_runtime_indices", None) or ()))


def boxed(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Mark a function as taking its inputs in a list that it may empty.

    Args:
        run: The function.

    Returns:
        The same function, with the mark that AOTAutograd looks for.
    """
    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
    return run


def tangent_indices(module: torch.fx.GraphModule) -> tuple[int, ...]:
    """Find the gradients of the outputs among the inputs of a backward graph; no guard checks them.

    AOTAutograd marks them by their names alone (`_is_tangent` in `torch/_functorch/partitioners.py`).

    Args:
        module: A backward graph.

    Returns:
        Positions.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    return tuple(place for place, node in enumerate(placeholders) if "tangents" in str(node.target))


def lookup_backend(backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """Find a Dynamo backend by name.

    Args:
        backend: A registered name, or a backend, which is returned unchanged.

    Returns:
        The backend.

    Raises:
        InvalidBackend: No backend of this name is registered (`torch._dynamo.exc`).
    """
    from torch._dynamo.backends.registry import lookup_backend as lookup

    found: Callable[..., Any] = lookup(backend)
    return found


def input_sources(graph_module: torch.fx.GraphModule) -> list[str | None]:
    """Find the sources of a Dynamo graph's inputs, as expressions over the user's variables.

    Args:
        graph_module: As Dynamo passes it to a backend.

    Returns:
        Per placeholder, text such as `L['self']._modules['up']._parameters['weight']`; None if Dynamo records no source.
    """
    inputs = graph_module.graph.find_nodes(op="placeholder")
    return [_source_name(getattr(node.meta.get("grapharg"), "source", None)) for node in inputs]


def example_of(node: torch.fx.Node) -> Any:
    """Return the fake value that Dynamo traced with.

    Args:
        node: A placeholder of its graph.

    Returns:
        The value; None if there is none.
    """
    return node.meta.get("example_value")


def returns_outputs_unchanged() -> bool:
    """Whether AOTAutograd returns the outputs of the graph being compiled unchanged.

    It does not if an output is written back to an input, is a view of one, or is a tensor subclass; it then wraps the graph
    (`torch/_functorch/_aot_autograd/runtime_wrappers.py`).

    Returns:
        False also outside a compilation.
    """
    from torch._functorch._aot_autograd.schemas import OutputType, SubclassCreationMeta
    from torch._guards import TracingContext

    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    if metadata is None or metadata.tokens or metadata.traced_tangents or metadata.num_intermediate_bases:
        return False
    touched = any(info.mutates_data or info.mutates_metadata for info in metadata.input_info)
    plain = all(info.output_type is OutputType.non_alias for info in metadata.output_info)
    kinds = (*(metadata.subclass_inp_meta or ()), *(metadata.subclass_fw_graph_out_meta or ()))
    return plain and not touched and not any(isinstance(kind, SubclassCreationMeta) for kind in kinds)


def user_outputs() -> dict[int, bool]:
    """Which outputs of the AOT graph being compiled the user gets, and whether AOTAutograd rebuilds them from what the graph returns.

    An output that shares memory with an input or with another value is rebuilt from its size, strides and storage offset.

    Returns:
        Position among the outputs of an inference or forward graph -> True where it is rebuilt; empty outside a compilation.
    """
    from torch._functorch._aot_autograd.schemas import OutputType
    from torch._guards import TracingContext

    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    if metadata is None:
        return {}
    kept = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view, OutputType.is_input)
    before = len(metadata.tokens) + len(metadata.mutated_inp_runtime_indices)
    return {before + place: info.output_type not in kept for place, info in enumerate(metadata.output_info)}


def differentiable_results() -> frozenset[int]:
    """Which outputs of the AOT graph being compiled need a gradient and are no views, although the graph may compute them as such.

    Returns:
        Positions among the outputs of a forward graph; empty outside a compilation.
    """
    from torch._functorch._aot_autograd.schemas import OutputType
    from torch._guards import TracingContext

    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    infos = [] if metadata is None else metadata.output_info
    results = {place for place, info in enumerate(infos) if info.output_type is OutputType.non_alias and info.requires_grad}
    return frozenset(place for place, number in zip(user_outputs(), range(len(infos)), strict=True) if number in results)


def relaid_inputs() -> frozenset[int]:
    """Which outputs of the AOT graph being compiled are inputs whose sizes and strides the program changes, and not their values.

    The caller's tensor gets the sizes, strides and storage offset of such an output (`as_strided_` in
    `torch/_functorch/_aot_autograd/runtime_wrappers.py`), so that it has to be a view of the input.

    Returns:
        Positions among the outputs of an inference or forward graph; empty outside a compilation.
    """
    from torch._guards import TracingContext

    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    if metadata is None:
        return frozenset()
    infos = [metadata.input_info[place] for place in metadata.mutated_inp_runtime_indices]
    before = len(metadata.tokens)
    return frozenset(before + place for place, info in enumerate(infos) if info.mutates_metadata and not info.mutates_data)


def autocasts() -> bool:
    """Whether autocast is on for some device; compiled graphs must run without it.

    Returns:
        True inside `torch.autocast`.
    """
    import torch

    return torch._C._is_any_autocast_enabled()


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Leave autocast, for whatever device it is on."""
    import torch

    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def holds_transforms(graph_module: Any) -> bool:
    """Whether Dynamo recorded transforms of `torch.func`, or forward-mode differentiation, in a graph.

    Their nodes open and close levels that the whole process shares (`torch/_functorch/predispatch.py`). Such a graph that stops
    half-way, for example because it differentiates where gradients are disabled, leaves them open: PyTorch itself fails from then on.

    Args:
        graph_module: A `torch.fx.GraphModule` as Dynamo passes it to a backend.

    Returns:
        True where a node of it, or of a graph inside it, does so.
    """
    graphs = (module.graph for module in graph_module.modules() if hasattr(module, "graph"))
    homes = (getattr(node.target, "__module__", None) or "" for graph in graphs for node in graph.nodes if node.op == "call_function")
    return any("functorch" in home or home == "torch.autograd.forward_ad" for home in homes)
