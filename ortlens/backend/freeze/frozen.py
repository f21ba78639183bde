"""The frozen callable: a program over its sessions, with one generated function per call."""

from __future__ import annotations

import functools
import io
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.export.graph_signature import InputKind

from ortlens import _torch
from ortlens._process import gc_paused
from ortlens.backend.freeze.arguments import Arguments, form_text, refuse_constants, size_sources, squeezed_sizes
from ortlens.backend.freeze.steps import FrozenSteps, in_copies
from ortlens.backend.lowering.exported import in_torch, mutated_inputs, results_of, state_value
from ortlens.backend.lowering.layout_decisions import inputs_in_results
from ortlens.backend.runtime.memory_assumptions import MemoryAssumptions
from ortlens.errors import UsageError
from ortlens.units import counted

if TYPE_CHECKING:
    import inspect
    import os
    import pathlib
    from collections.abc import Callable, Collection, Mapping

    from torch.export import ExportedProgram

    from ortlens.backend.api import OrtBackend
    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.lowering.entry import LoweredGraph
    from ortlens.trace.recorder import Recorder


class Frozen:
    """A traced program over its sessions: a plain callable, without Dynamo and without checks of weights.

    Weights and all Python state are constants since tracing. A call checks the structure, dtypes and sizes of its arguments, runs, and
    returns fresh results without gradients. It may be called from several threads; with `state`, one after the other.

    Attributes:
        program: The program as traced.
        source: What was traced.
        fallback: What is called with arguments that the program does not take; None: they raise.
        arguments: What it takes.
        steps: What a call does.
    """

    def __init__(  # noqa: PLR0913 - each is a part of what was frozen
        self,
        program: ExportedProgram,
        source: Any,
        *,
        steps: FrozenSteps,
        arguments: Arguments,
        fallback: Callable[..., Any] | None,
        backend: OrtBackend,
    ) -> None:
        """Made by `freeze`."""
        self._backend = backend
        self.program, self.source, self.fallback, self.arguments, self.steps = program, source, fallback, arguments, steps
        self._strict: Callable[..., Any] | None = None
        self._in_torch = functools.cache(functools.partial(in_torch, program, steps.state))
        self._lock = threading.Lock()

    @property
    def graph(self) -> CompiledGraph:
        """The compiled graph: partitions, sessions, and what stays in PyTorch."""
        return self.steps.graph

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The buffers that calls change: name in the source -> tensor. Copies of the source's buffers, made by `freeze`.

        Write into the tensors (`frozen.state["cache"].zero_()`) to set them; the mapping itself is read-only.
        """
        return MappingProxyType(self.steps.state)

    def changed_weights(self) -> tuple[str, ...]:
        """The weights that were written to since `freeze`: whether calls see such a change is not defined, so freeze again.

        Returns:
            Their names in the source.
        """
        return self.steps.changed_weights()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run; in each frozen callable, a generated function takes the place of this one.

        Args:
            *args: As in tracing, in structure, dtypes and sizes.
            **kwargs: Likewise.

        Returns:
            What the source returns, without gradients, in the same structure.

        Raises:
            UsageError: An argument is outside the traced signature, and there is no `fallback`; the message names what differs.
        """
        return self.call_with_rearranged_args(args, kwargs)

    def call_with_rearranged_args(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call whose arguments are not exactly as traced; raise UsageError if they mean something else and there is no `fallback`."""
        memory, is_interpreted = self.steps.memory, _torch.is_interpreted()
        try:
            with _torch.unrecorded():
                leaves = self.arguments.arranged(args, kwargs, any_class=is_interpreted)
        except UsageError as error:
            if self.fallback is not None:
                return self.fallback(*args, **kwargs)
            never = any(form_text(tensor) is not None for tensor in _torch.tensors_of((args, kwargs)))
            remedy = "pass dense tensors, or fallback=" if never else "freeze again for such arguments, or pass fallback="
            raise UsageError(f"outside the traced signature: {error}; {remedy}") from error
        if is_interpreted:
            arranged, named = _torch.unflatten(leaves, self.arguments.spec)
            return self._in_torch()(*arranged, **named)
        if faults := memory.faults(leaves) if memory.needed else []:
            if self.fallback is not None:
                return self.fallback(*args, **kwargs)
            raise UsageError(f"outside the traced signature: {'; '.join(faults)}, or pass fallback=")
        with self._lock:
            if self._strict is None:
                self._strict = self.steps.function(self.arguments, _refuse, checks_all=False)
        arranged, named = _torch.unflatten(leaves, self.arguments.spec)
        with _torch.without_autocast():
            return self._strict(self, *arranged, **named)

    def save(self, folder: str | os.PathLike[str]) -> pathlib.Path:
        """Write a folder that runs with onnxruntime and numpy alone: see `ortlens.load_frozen`.

        It has the ONNX model with its weights, a manifest with the hash of each file, the present state, and the loader as a script.

        Args:
            folder: A folder that does not exist yet, or is empty.

        Returns:
            Its absolute path.

        Raises:
            UsageError: Nodes stay in PyTorch (they are listed), weights were written to since, or something has no form in the folder.
                Nothing is written then.
        """
        from ortlens.backend.freeze.folder import save

        return save(self, folder)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Frozen:
        """Compile the program again; the copy has state of its own, with the same values, and the same weights."""
        return _with_state_of(
            frozen_from(
                self.program,
                self._backend,
                source=self.source,
                traced=self.arguments.traced,
                fallback=self.fallback,
                asked=self.steps.memory.asked,
            ),
            self.state,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the program with its weights, to be compiled again where it is unpickled; what was traced is not part of it."""
        remedy = "save(folder) writes it for ortlens.load_frozen, and freeze makes another one"
        if changed := self.changed_weights():
            written = ", ".join(changed[:8])
            raise UsageError(f"this frozen callable cannot be pickled, as weights were written to since ({written}): {remedy}")
        program = io.BytesIO()
        try:
            torch.export.save(self.program, program)
        except Exception as error:
            raise UsageError(f"this frozen callable cannot be pickled, as PyTorch cannot write its program ({error}): {remedy}") from error
        signature = self.arguments.plain_signature()
        facts = {"fallback": self.fallback, "asked": self.steps.memory.asked}
        return _unpickled, (program.getvalue(), self._backend.options, signature, facts, dict(self.state))

    def __repr__(self) -> str:
        """Name, partitions and nodes in PyTorch."""
        left = len(self.graph.left_in_torch()) if self.graph.runners else None
        name = getattr(self.source, "__name__", type(self.source).__name__)
        nodes = counted(left, "node") if left is not None else "all nodes"
        return f"<frozen {name}: {counted(len(self.graph.runners), 'partition')}, {nodes} in PyTorch>"


def _refuse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise UsageError(f"these arguments cannot be passed on: {len(args)} positional ones, and {', '.join(kwargs) or 'none'} by name")


def frozen_from(  # noqa: PLR0913 - a target, how to compile it, and what its trace left
    program: ExportedProgram,
    backend: OrtBackend,
    *,
    source: Any,
    traced: Callable[..., Any] | None,
    fallback: Callable[..., Any] | None = None,
    asked: Collection[str] = (),
) -> Frozen:
    """Compile a program and freeze it; `asked` is what the traced code asked about layouts."""
    parts = lowered_for(_torch.plain_program(program), backend, source=source, traced=traced)
    steps = _steps_of(parts, backend, recorder=None, asked=asked)
    frozen = Frozen(parts.program, source, steps=steps, arguments=parts.arguments, fallback=fallback, backend=backend)
    call = frozen.steps.function(parts.arguments, frozen.call_with_rearranged_args)
    frozen.__class__ = type("Frozen", (Frozen,), {"__call__": call, "__doc__": Frozen.__doc__})  # Python looks calls up in the class
    return frozen


def _with_state_of(made: Frozen, state: Mapping[str, torch.Tensor]) -> Frozen:
    for name, value in state.items():
        made.state[name].copy_(value)
    return made


def _unpickled(
    program: bytes, options: Any, signature: inspect.Signature | None, facts: Mapping[str, Any], state: Mapping[str, torch.Tensor]
) -> Frozen:
    """Compile the program of a pickled callable; its source is the program."""
    from ortlens.backend.api import OrtBackend

    traced: Any = None
    if signature is not None:
        traced = functools.partial(_refuse)
        traced.__signature__ = signature
    backend = OrtBackend.get_cached_instance_for_options(options)
    with _torch.quiet():
        loaded = torch.export.load(io.BytesIO(program))
    return _with_state_of(frozen_from(loaded, backend, source=loaded, traced=traced, **facts), state)


class LoweredProgram(NamedTuple):
    """A program on its way to a frozen callable."""

    program: ExportedProgram  # as traced
    decomposed: ExportedProgram
    lowered: LoweredGraph
    arguments: Arguments


def lowered_for(program: ExportedProgram, backend: OrtBackend, *, source: Any, traced: Callable[..., Any] | None) -> LoweredProgram:
    """Lower a program, with its guards renamed, for a frozen callable; raise `UsageError` where it cannot be one."""
    refuse_constants(source, program)
    _refuse_old_values(source, program)
    decomposed, lowered = backend.compiler.lowered_from(program, updates_in_place=True)
    arguments = Arguments(decomposed, traced)  # to decompose a program may add guards
    sources = size_sources(program, [leaf.name for leaf in arguments.signature.leaves])
    if squeezed := squeezed_sizes(program, sources, of_all=False):
        arguments = Arguments(_torch.with_guards(decomposed, (*arguments.guard_texts, *squeezed)), traced)
    _refuse_sessions_per_size(arguments, backend)
    return LoweredProgram(program, decomposed, lowered, arguments)


def watched(frozen: Frozen, backend: OrtBackend, recorder: Recorder) -> Callable[..., Any]:
    """Compile a frozen callable's program once more, through sessions that a lens records; its state is that of the source."""
    decomposed, lowered = backend.compiler.lowered_from(frozen.program, recorder=recorder, updates_in_place=True)
    parts = LoweredProgram(frozen.program, decomposed, lowered, frozen.arguments)
    steps = _steps_of(parts, backend, recorder=recorder, asked=frozen.steps.memory.asked)
    call = steps.function(frozen.arguments, frozen.call_with_rearranged_args)
    return lambda *args, **kwargs: call(frozen, *args, **kwargs)


def _steps_of(parts: LoweredProgram, backend: OrtBackend, *, recorder: Recorder | None, asked: Collection[str]) -> FrozenSteps:
    decomposed = parts.decomposed
    with gc_paused():
        graph = backend.compiler.graph_of(parts.lowered, recorder=recorder)
        values = _own_values(decomposed, copies_state=recorder is None)
        graph.prepare(values)
    specs = decomposed.graph_signature.input_specs
    state = {str(spec.target): value for spec, value in zip(specs, values, strict=True) if isinstance(value, torch.Tensor)}
    names = [leaf.name for leaf in parts.arguments.signature.leaves]
    memory = MemoryAssumptions(parts.program, written=mutated_inputs(decomposed), state=state, names=names, asked=asked)
    results = results_of(decomposed, inputs_in_results(parts.program))
    return FrozenSteps(decomposed, graph, values, results=results, memory=memory, recorder=recorder)


def _own_values(program: ExportedProgram, *, copies_state: bool) -> list[Any]:
    """Collect the graph inputs that are no arguments: weights, and the state or a copy of it; None in the place of arguments."""
    written = mutated_inputs(program)
    specs = program.graph_signature.input_specs
    values: list[Any] = [None if spec.kind is InputKind.USER_INPUT else state_value(program, spec.target) for spec in specs]
    if not copies_state:
        return values
    state = {id(value): value for spec, value in zip(specs, values, strict=True) if value is not None and spec.arg.name in written}
    plain = {key: value for key, value in state.items() if value.layout is torch.strided and not (value.is_neg() or value.is_conj())}
    copies = dict(zip(plain, in_copies(*plain.values()), strict=True))  # one weight may have several names
    copies |= {key: value.detach().clone() for key, value in state.items() if key not in plain}
    return [copies.get(id(value), value) for value in values]


def _refuse_old_values(source: object, program: ExportedProgram) -> None:
    """Refuse results that are buffers from before other tensors were assigned: programs write into these."""
    replaced = _torch.replaced_buffers(program)
    if any(replaced & inputs for inputs in inputs_in_results(program)):
        name = getattr(source, "__name__", type(source).__name__)
        raise UsageError(
            f"{name} cannot be frozen: it assigns a new tensor to a buffer and returns the old one; return a clone() of the old one"
        )


def _refuse_sessions_per_size(arguments: Arguments, backend: OrtBackend) -> None:
    chosen = backend.options.export_options
    if arguments.signature.varies and chosen is not None and chosen.dynamic_shapes is False:
        raise UsageError("dynamic_shapes=False in export_options makes a session per size; a frozen callable of varying sizes has one")
