"""What was compiled through a lens: the callables, to call them again, and the graphs behind them."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from ortlens import _torch
from ortlens.errors import UsageError
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ortlens.analysis.ledger import StepReading
    from ortlens.backend.graph import CompiledGraph
    from ortlens.trace.recorder import Recorder

CallForm: TypeAlias = tuple[tuple[str, str], ...]


class Target(NamedTuple):
    """One of the callables."""

    name: str
    function: Any  # the target as the user wrote it
    compiled: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class TargetNames:
    """Names in the user's model."""

    aliases: tuple[frozenset[str], ...] = ()  # groups of names that mean the same weight
    arguments: tuple[str, ...] = ()  # in order


class CompiledTargets:
    """The targets of one lens."""

    def __init__(self, recorder: Recorder, *, dry_run: bool) -> None:
        """Begin without targets; after a dry run nothing can be called."""
        self.callables: list[tuple[object, Callable[..., Any]]] = []  # as the user wrote it, and compiled; in order
        self._names: list[str] = []  # of the callables, each different
        self._forms: list[set[CallForm]] = []  # of the calls that compiled them
        self._owners: list[tuple[object, str]] = []  # what a target compiles by itself, with the name of the target
        self.grad_modes: set[bool] = set()  # whether gradients were enabled, in the compilations so far
        self.names = TargetNames()  # names in the first target, for `export_onnx`
        self.example: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # what `explain` calls it with, for `freeze`
        self.steps: list[StepReading] | None = None  # calls of the model inside the `generate` that is explained; None for any other target
        self._recorder = recorder
        self._dry_run = dry_run

    def note_compilation(self) -> str | None:
        """Note the function that Dynamo is compiling now, and return its name; None if it is not known.

        The name gets a number if another one has the same.
        """
        self.grad_modes.add(torch.is_grad_enabled())
        found = _torch.compiled_callable()
        if found is None:
            return None
        for part, owner in self._owners:
            if part == found.function:
                return owner
        form = form_of_call(found.function, found.args, found.kwargs)
        for place, (known, _) in enumerate(self.callables):
            if known is found.function or known == found.function:
                self._forms[place].add(form)
                return self._names[place]
        return self.add(found.function, found.compiled, form)

    def add(self, function: object, compiled: Callable[..., Any], form: CallForm | None = None, parts: Iterable[object] = ()) -> str:
        """Note a target and return its name, with a number if another one has the same.

        `form` is that of the call that compiled it, None without one; `parts` are the functions that it compiles, if not the target itself.
        """
        self.callables.append((function, compiled))
        self._forms.append(set() if form is None else {form})
        name = _name_of(function)
        count = sum(1 for known, _ in self.callables if _name_of(known) == name)
        self._names.append(name if count == 1 else f"{name} ({count})")
        self._owners += [(part, self._names[-1]) for part in parts]
        return self._names[-1]

    def taking(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Target], list[Target]]:
        """Find the targets that were compiled for such arguments, the first one if none was; and the others."""
        self._require_any()
        targets = [Target(name, *pair) for name, pair in zip(self._names, self.callables, strict=True)]
        fit = [form_of_call(found.function, args, kwargs) in forms for found, forms in zip(targets, self._forms, strict=True)]
        if not any(fit):
            fit[0] = True
        return list(itertools.compress(targets, fit)), list(itertools.compress(targets, map(operator.not_, fit)))

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the first target; raises UsageError if nothing was compiled yet, or only a dry run was made."""
        self._require_any()
        return self.callables[0][1](*args, **kwargs)

    def first(self) -> Any:
        """Return the first target, as the user wrote it; raises UsageError as `call` does."""
        self._require_any()
        return self.callables[0][0]

    def _require_any(self) -> None:
        if self._dry_run:
            raise UsageError("this lens holds a dry run, which ran nothing; call explain() without dry_run=True first")
        if self.is_uncompiled():
            raise UsageError("nothing was compiled: PyTorch could not trace the function and ran it as it is; see lens.breaks for the line")
        if not self.callables:
            raise UsageError(
                "nothing was compiled through this lens yet; call the compiled function once, then ask again. If it was called, PyTorch "
                "may have given up on its code earlier in this process: torch.compiler.reset() clears that"
            )

    def is_uncompiled(self) -> bool:
        """Tell whether functions were called and PyTorch could compile nothing of them, so that it ran them as they are."""
        return not self.callables and bool(self._recorder.records(r.Break))

    def graphs(self) -> tuple[CompiledGraph, ...]:
        """List the graphs of our backend, oldest first, including those that a recompile replaced."""
        from ortlens.backend.graph import CompiledGraph

        return tuple(graph for graph in self._recorder.live if isinstance(graph, CompiledGraph))

    def graph_to_export(self) -> CompiledGraph:
        """Find the graph that is the whole model: the newest compilation of the only frame.

        Raise `UsageError` if there is none, or the model is split into several.
        """
        graphs = self.graphs()
        if not graphs:
            raise UsageError("there is nothing to export: no graph was compiled through this lens by the ortlens backend")
        recompiled = {record.compile_id for record in self._recorder.records(r.Recompile)}
        every = self._recorder.records(r.Graph)
        first = [record for record in every if record.compile_id not in recompiled and record.phase != "backward"]
        if len(first) > 1:
            raise UsageError(f"the model is split into {len(first)} graphs; one model can be exported from one graph only")
        return [graph for graph in graphs if graph.lowered.phase != "backward"][-1]

    def refuse_ambiguous(self, options: Iterable[str]) -> None:
        """Reject options whose names are also arguments of the target."""
        names: list[str] = []
        for function, _ in self.callables:
            with contextlib.suppress(TypeError, ValueError):  # builtins have no signature
                names += inspect.signature(function).parameters  # type: ignore[arg-type]  # what was called is callable
        clash = next((name for name in names if name in set(options)), None)
        if clash is not None:
            raise UsageError(
                f"the target takes an argument {clash!r} too; pass it by its place, and leave out the option {clash!r} of verify()"
            )


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


def _name_of(target: object) -> str:
    wrapped = inspect.unwrap(target) if callable(target) else target
    owner = getattr(wrapped, "__self__", wrapped)
    if isinstance(owner, torch.nn.Module):
        return type(owner).__name__
    return getattr(wrapped, "__name__", type(wrapped).__name__)


def form_of_call(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallForm:
    """Describe the arguments of a call by name and kind. Calls of the same form differ in sizes and values only.

    An argument that is left out counts with its default. Without a signature, positions are names.
    """
    owner = getattr(target, "__self__", None)
    function = owner.forward if isinstance(owner, torch.nn.Module) else target
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        named = dict(bound.arguments)
    except (TypeError, ValueError):  # builtins without a signature, and arguments that do not fit it
        named = {f"#{place}": value for place, value in enumerate(args)} | dict(kwargs)
    return tuple(sorted((name, _kind(value)) for name, value in named.items()))


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}, {value.dim()}-dimensional"
    if isinstance(value, (bool, int, float)):
        return "number"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_kind(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_kind, value))})"
    return type(value).__name__
