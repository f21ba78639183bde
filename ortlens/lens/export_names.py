"""What a lens knows for `export_onnx`: which graph is the model, and the names that the user gave to weights and arguments."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ortlens.errors import UsageError
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.backend.graph import CompiledGraph
    from ortlens.trace.recorder import Recorder


@dataclass(frozen=True, slots=True)
class TargetNames:
    """Names in the user's model.

    Attributes:
        aliases: Groups of names that mean the same weight.
        arguments: Names of the arguments, in order.
    """

    aliases: tuple[frozenset[str], ...] = ()
    arguments: tuple[str, ...] = ()


def names_of(target: object) -> TargetNames:
    """Read the names of weights and arguments; only modules and exported programs have names of weights."""
    groups: dict[int, set[str]] = {}
    if isinstance(target, torch.nn.Module):
        named = (*target.named_parameters(remove_duplicate=False), *target.named_buffers(remove_duplicate=False))
        for name, tensor in named:
            groups.setdefault(id(tensor), set()).add(name)
    if isinstance(target, torch.export.ExportedProgram):
        for name, tensor in target.state_dict.items():
            groups.setdefault(id(tensor), set()).add(name)
    function = target.forward if isinstance(target, torch.nn.Module) else target
    arguments: tuple[str, ...] = ()
    with contextlib.suppress(TypeError, ValueError):  # builtins have no signature
        arguments = tuple(inspect.signature(function).parameters) if callable(function) else ()
    return TargetNames(tuple(frozenset(names) for names in groups.values()), arguments)


def graph_to_export(recorder: Recorder, graphs: Sequence[CompiledGraph]) -> CompiledGraph:
    """Find the graph that is the whole model: the newest compilation of the only frame.

    Raise `UsageError` if there is none, or the model is split into several.
    """
    if not graphs:
        raise UsageError("there is nothing to export: no graph was compiled through this lens by the ortlens backend")
    recompiled = {record.compile_id for record in recorder.records(r.Recompile)}
    first = [record for record in recorder.records(r.Graph) if record.compile_id not in recompiled and record.phase != "backward"]
    if len(first) > 1:
        raise UsageError(f"the model is split into {len(first)} graphs; one model can be exported from one graph only")
    return [graph for graph in graphs if graph.lowered.phase != "backward"][-1]
