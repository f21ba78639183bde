"""Exports what a lens compiled: its target is traced again, as one graph, without gradients."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.analysis.index import grouped
from ortlens.backend.deploy.export import WeightSource, export_graph, takes_numbers
from ortlens.backend.freeze.arguments import parameter_names
from ortlens.backend.freeze.exporting import boundary_of_graph, export_program
from ortlens.backend.freeze.tracing import Untraceable, program_of
from ortlens.errors import UsageError
from ortlens.lens.stand_ins import fake, fake_weights
from ortlens.lens.verify.call_state import CallState, Reachable, module_behind

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch.export import ExportedProgram

    from ortlens.backend.api import OrtBackend
    from ortlens.backend.deploy.export import ExportedModel
    from ortlens.lens.observing.compilations import CompiledTargets, SeenCalls


def export_target(targets: CompiledTargets, backend: OrtBackend | None, path: str | os.PathLike[str], weights: object) -> ExportedModel:
    """Write the model of the only target of a lens; raise `UsageError` where it has none, or it is not one graph."""
    target = targets.program or module_behind(targets.calls.function)
    graph = None if targets.is_empty else targets.require_one_graph()
    # What was compiled ahead of time, or not by `torch.compile`, cannot be traced; and torch.export takes numbers for sizes, which it takes
    # to be 0 at least.
    if target is None or backend is None or (graph is not None and takes_numbers(graph)):
        graph = graph or targets.require_one_graph()
        return export_graph(graph, path, WeightSource(weights), boundary=boundary_of_graph(graph, parameter_names(target)))
    source = WeightSource(weights, _tied_names(target))
    with _torch.objects_as_trees() as note:
        if targets.program is not None:
            return export_program(targets.program, backend, path, source)
        example = targets.calls.last if targets.example is None else targets.calls.first
        note(example)
        try:
            with _torch.zero_and_one_open():
                program = _traced(target, example, targets.calls, note)

            def retraced(ones: Any) -> ExportedProgram:
                return _traced(target, _with_ones(example, ones), targets.calls, note)

            return export_program(program, backend, path, source, retrace=retraced)
        except UsageError:
            if not targets.calls.varies:
                raise
            with contextlib.suppress(UsageError):  # some programs can be traced only for sizes that are neither 0 nor 1
                program = _traced(target, example, targets.calls, note)
                return export_program(program, backend, path, source, least=1)
            raise


def _traced(target: Any, example: Any, calls: SeenCalls, note: Callable[[Any], None]) -> ExportedProgram:
    """Trace a target with arguments that were noted, on fake tensors where it has no data."""
    modules = Reachable([("", target)]).modules
    weights = [tensor for module in modules for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))]
    if not any(_torch.is_fake(tensor) or tensor.device.type == "meta" for tensor in weights):
        example = _torch.map_tensors(_torch.with_room, example)
        state = CallState(target, *example, parameters=False)
        try:
            return _program_of(target, example, calls, note)
        finally:
            state.restore()
    mode = _torch.fake_mode_of(weights)
    with fake_weights(modules, mode, None), mode:
        return _program_of(target, _torch.map_tensors(lambda tensor: fake(tensor, mode, None), example), calls, note)


def _with_ones(example: Any, ones: Mapping[Any, Sequence[int]]) -> Any:
    """Make arguments with sizes of 1, of which `ones` has the dimensions by the keys that lead to an argument."""
    named, spec = dict(_torch.named_leaves(example)), _torch.flatten(example)[1]
    for path, dims in ones.items():
        for dim in dims:
            named[path] = named[path].narrow(dim, 0, 1).clone()
    return _torch.unflatten(list(named.values()), spec)


def _program_of(target: Any, example: Any, calls: SeenCalls, note: Callable[[Any], None]) -> ExportedProgram:
    """Trace a target once, in the stricter way where the other fails."""
    args, kwargs = example
    name = getattr(target, "__name__", type(target).__name__)
    try:
        return program_of(target, args, kwargs, calls.varying, on_result=note)[0]
    except Untraceable as error:
        try:
            return program_of(target, args, kwargs, calls.varying, strict=True)[0]
        except Untraceable:
            raise UsageError(f"{name} cannot be exported, because torch.export cannot trace it as one graph: {error}") from error


def _tied_names(target: object) -> list[frozenset[str]]:
    """Group the names that mean the same weight; only modules and exported programs have names of weights."""
    named: Iterable[tuple[str, Any]] = ()
    owner = getattr(target, "__self__", target)
    if isinstance(owner, torch.nn.Module):
        named = (*owner.named_parameters(remove_duplicate=False), *owner.named_buffers(remove_duplicate=False))
    elif isinstance(target, torch.export.ExportedProgram):
        named = target.state_dict.items()
    return [frozenset(names) for names in grouped((id(tensor), name) for name, tensor in named).values()]
