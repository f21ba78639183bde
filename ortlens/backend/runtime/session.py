"""Sessions: made for a partition, kept with it, made again when a frozen weight changes."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.fx

from ortlens import _torch
from ortlens.backend.conversion import converter, dtypes
from ortlens.backend.conversion.node_provenance import provenance_of
from ortlens.backend.runtime import call, layout, providers, threads, weights
from ortlens.backend.runtime.heap import heap_bytes
from ortlens.backend.runtime.session_config import ModelRefused, Recipe, default_session_options
from ortlens.errors import SessionError
from ortlens.trace.runlog import RunLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import onnx
    import onnxruntime

    from ortlens.backend.options import OrtBackendOptions
    from ortlens.backend.partitioning.extraction import Partition
    from ortlens.trace.records import SessionCause

Around: TypeAlias = Callable[[Callable[..., tuple[Any, ...]], tuple[Any, ...]], tuple[Any, ...]]
"""Goes around a run of a partition: takes what runs it and the inputs, returns the outputs."""

_MAX_REFREEZES = 2
"""How often changed weights are frozen anew before they become inputs: weights that change often are being trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session and what it takes and makes; the fields are those of the removed backend.

    Attributes:
        input_names: Names of the inputs that are bound per call.
        output_names: Names of the outputs.
        input_value_infos: Their ONNX types and shapes.
        output_value_infos: Their ONNX types and shapes.
        input_devices: torch devices of the inputs.
        output_devices: torch devices of the outputs.
        providers: Execution providers that ONNX Runtime registered.
        wanted_providers: Those that were asked for.
        session: The session.
        create_ns: How long it took to create.
        frozen: The weights it holds as constants.
        threads: The threads it works with, and why.
        held_bytes: Heap that it took to make it; None where the C library does not tell.
        cause: Why it was made, as in the column `cause` of the sessions.
        copied_bytes: Size of the weights among its constants that do not lie in torch's memory.
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    input_value_infos: tuple[onnx.ValueInfoProto, ...]
    output_value_infos: tuple[onnx.ValueInfoProto, ...]
    input_devices: tuple[torch.device, ...]
    output_devices: tuple[torch.device, ...]
    providers: tuple[str, ...]
    wanted_providers: tuple[str, ...]
    session: onnxruntime.InferenceSession
    create_ns: int
    frozen: tuple[weights.FrozenWeight, ...]
    threads: threads.ThreadChoice
    held_bytes: int | None
    cause: SessionCause
    copied_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A session like the one that runs a partition, made beside it to be watched more closely.

    Attributes:
        session: Made from the same model, with the same weights (shared, not copied), providers, threads and rewrites.
        model: That model.
        session_id: Under which id the session that runs is recorded; None when it is not.
        info: The session that runs.
    """

    session: onnxruntime.InferenceSession
    model: onnx.ModelProto
    session_id: str | None
    info: SessionInfo


class PartitionRunner:
    """Runs one partition: in ONNX Runtime when it can, in PyTorch when it must.

    Attributes:
        part: The partition.
        sessions: The sessions in use: none before the first call, then one, made anew when a frozen weight changes.
        run: The function to call now, with the partition's inputs; it changes as sessions come and go.
        model: The ONNX model, with weights as inputs.
        permutations: Memory order of each output, see `converter.memory_order`.
        cached: Whether the model was converted by an earlier process.
        ran_before: Whether it has had a session already: a model is dumped with its first one only.
    """

    def __init__(  # noqa: PLR0913 - one call site
        self,
        part: Partition,
        model: onnx.ModelProto,
        permutations: Sequence[tuple[int, ...] | None],
        *,
        options: OrtBackendOptions,
        weight_inputs: frozenset[int],
        freeze: bool,
        alternates: bool,
        hooks: RunnerHooks,
        work: int | None,
        cached: bool = False,
    ) -> None:
        """Take what a session will be made from.

        Args:
            part: The partition.
            model: Its ONNX model, with weights as inputs.
            permutations: Memory order of each output, see `converter.memory_order`.
            options: The user's.
            weight_inputs: Positions of inputs that are parameters or buffers.
            freeze: Whether these may become constants.
            alternates: Whether PyTorch computes something before or after it in every call.
            hooks: What to tell, and whom to ask for a log.
            work: How much it computes, see `threads.work_of`.
            cached: Whether the model was converted by an earlier process.
        """
        self.part = part
        self.sessions: list[SessionInfo] = []
        self._session_ids: list[str | None] = []  # of `sessions`, in its order
        self.run: Callable[..., tuple[Any, ...]] = self._run_torch
        self.model = model
        self.permutations = permutations
        self.cached = cached
        self._options = options
        self._choice: threads.ThreadChoice | None = None
        self._weights = frozenset(part.inputs[i] for i in weight_inputs)
        self._alternates = alternates
        self._work = work
        self._freezable = weight_inputs if freeze else frozenset()
        self._hooks = hooks
        self._frozen: dict[int, weights.FrozenWeight] = {}
        chosen = options.export_options
        symbolic = any(_is_symbolic(node.meta["val"]) for node in part.inputs)
        self._fixed_sizes = symbolic and chosen is not None and chosen.dynamic_shapes is False
        self._by_sizes: dict[tuple[Any, ...], Callable[..., tuple[Any, ...]]] = {}
        self.ran_before = False
        self._failed_once = False
        self._refreezes = 0
        self._counter = itertools.count()
        self._lock = threading.Lock()

    def prepare(self, args: Sequence[Any]) -> None:
        """Make the session for these arguments.

        Args:
            args: Values of the partition's inputs; only weights are looked at.

        Raises:
            ModelRefused: ONNX Runtime does not take the model.
        """
        self._check_boundary()
        names, taken = self._names(), {value.name for value in self.model.graph.input}
        freezable = [i for i in sorted(self._freezable) if names[i] in taken]
        frozen = {i: note for i in freezable if (note := weights.freeze(names[i], args[i])) is not None}
        info = self._create(list(frozen.values()), self._dimensions(args) if self._fixed_sizes else {})
        self._frozen = frozen
        log = self._hooks.session_made(self, info)
        self.ran_before = True
        if self._fixed_sizes:
            self.sessions.append(info)
            self._session_ids.append(None if log is None else log.session_id)
        else:
            self._session_ids = [None if log is None else log.session_id]
            self.sessions = [info]  # the one before it, if any, holds weights that are no more
        made = self._caller(
            info.session,
            frozen,
            on_stale=self._refreeze,
            on_failure=self._failed,
            count=self._counter.__next__,
            log=log,
            rest=info.threads.rest(),
        )
        if self._fixed_sizes:
            self._by_sizes[self._sizes_of(args)] = made
            self.run = self._run_for_sizes
        else:
            self.run = made

    @contextlib.contextmanager
    def intercepted(self, around: Around) -> Iterator[None]:
        """Have every run of this partition go through a function.

        Args:
            around: Called with what runs the partition now, and with its inputs; returns its outputs. When a weight changes
                meanwhile, the runs after that go past it: what is right comes before what is watched.
        """
        inner = self.run

        def through(*args: Any) -> tuple[Any, ...]:
            return around(inner, args)

        self.run = through
        try:
            yield
        finally:
            if self.run is through:
                self.run = inner

    def _caller(  # noqa: PLR0913 - two call sites, which differ in nearly all of it
        self,
        session: onnxruntime.InferenceSession,
        frozen: dict[int, weights.FrozenWeight],
        *,
        on_stale: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        on_failure: Callable[[tuple[Any, ...], Exception], tuple[Any, ...]],
        count: Callable[[], object],
        log: RunLog | None,
        outputs: Sequence[call.Output] | None = None,
        rest: Callable[[], object] | None = None,
    ) -> Callable[..., tuple[Any, ...]]:
        return call.make_call(
            session,
            self._inputs(frozen),
            self._outputs(session) if outputs is None else outputs,
            on_stale=on_stale,
            on_failure=on_failure,
            count=count,
            log=log,
            preallocate=self._options.preallocate_output,
            rest=rest,
        )

    def twin(
        self,
        args: Sequence[Any],
        arranged: Callable[[onnxruntime.SessionOptions], AbstractContextManager[object]],
        *,
        model: onnx.ModelProto | None = None,
        without: Sequence[str] = (),
    ) -> Twin | None:
        """Make a second session like the one that runs these arguments.

        Args:
            args: Values of the partition's inputs.
            arranged: Called with the options of the session; inside the context they are as wanted, after it as they were.
            model: Another model of the partition, with weights as inputs; None: the one that runs.
            without: Rewrites of ONNX Runtime to do without, beside those that the session that runs does without.

        Returns:
            The session; None while PyTorch runs the partition.

        Raises:
            ModelRefused: ONNX Runtime does not make it so.
        """
        place = self._place_of(args)
        if place is None:
            return None
        recipe = self._recipe(list(self._frozen.values()), self._dimensions(args) if self._fixed_sizes else {}, model)
        with arranged(recipe.options):
            session = recipe.session(recipe.model.SerializeToString(), without=without)
        return Twin(session=session, model=recipe.model, session_id=self._session_ids[place], info=self.sessions[place])

    def session_for(self, args: Sequence[Any]) -> SessionInfo | None:
        """The session that runs these arguments.

        Args:
            args: Values of the partition's inputs.

        Returns:
            The session; None while PyTorch runs the partition.
        """
        place = self._place_of(args)
        return None if place is None else self.sessions[place]

    def _place_of(self, args: Sequence[Any]) -> int | None:
        """Which of the sessions runs these arguments; None for none."""
        if self._failed_once or not self.sessions:
            return None
        if not self._fixed_sizes:
            return 0
        known, wanted = list(self._by_sizes), self._sizes_of(args)
        return known.index(wanted) if wanted in known else None

    def uncounted(
        self, session: onnxruntime.InferenceSession, log: RunLog, outputs: Sequence[call.Output] | None = None
    ) -> Callable[..., tuple[Any, ...]]:
        """A function that runs a session of this partition without being counted among its calls.

        Args:
            session: One that runs the partition, or its twin.
            log: Where its calls are recorded.
            outputs: What the session gives; None: what the partition gives.

        Returns:
            A function of the partition's inputs that returns the outputs; it raises `WeightChanged` when a frozen weight is not what it
            was, and what ONNX Runtime raises.
        """
        return self._caller(session, self._frozen, on_stale=_changed, on_failure=_raised, count=lambda: None, log=log, outputs=outputs)

    def variant(
        self,
        *,
        choice: threads.ThreadChoice | None = None,
        freeze: bool | None = None,
        preallocate: bool | None = None,
        model: onnx.ModelProto | None = None,
    ) -> PartitionRunner:
        """A runner of the same partition with another setting, to see what it would bring. It tells nobody, and raises where it fails.

        Args:
            choice: Threads; None: as this runner has them.
            freeze: Whether weights are constants; None: likewise.
            preallocate: Whether PyTorch allocates outputs of symbolic size; None: likewise.
            model: The ONNX model; None: likewise.

        Returns:
            The runner; it has no session yet, see `prepare`.
        """
        given = self._options
        options = replace(
            given,
            on_error="raise",
            ort_session_options=None if choice is not None else given.ort_session_options,
            preallocate_output=given.preallocate_output if preallocate is None else preallocate,
        )
        weight_inputs = frozenset(place for place, node in enumerate(self.part.inputs) if node in self._weights)
        made = PartitionRunner(
            self.part,
            model or self.model,
            self.permutations,
            options=options,
            weight_inputs=weight_inputs,
            freeze=bool(self._freezable) if freeze is None else freeze,
            alternates=self._alternates,
            hooks=RunnerHooks(session_made=lambda _runner, _info: RunLog(None, None), run_failed=lambda _runner, _error: None),
            work=self._work,
        )
        made._choice = choice
        return made

    def _sizes_of(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What tells one combination of sizes from another: every shape and number but the weights'."""
        return tuple(
            tuple(arg.shape) if isinstance(arg, torch.Tensor) else arg for place, arg in enumerate(args) if place not in self._freezable
        )

    def _run_for_sizes(self, *args: Any) -> tuple[Any, ...]:
        """With `dynamic_shapes=False`: the session made for these sizes, which is made if there is none."""
        made = self._by_sizes.get(self._sizes_of(args))
        if made is None:
            with self._lock:
                self._forget_changed(args)  # a session made for one size must not make those of the others look current
                try:
                    if self._sizes_of(args) not in self._by_sizes:  # else another thread made it meanwhile
                        self.prepare(args)
                except Exception as error:  # noqa: BLE001 - whatever the reason, PyTorch has the right answer
                    return self._failed(args, error)
                made = self._by_sizes[self._sizes_of(args)]
        return made(*args)

    def _check_boundary(self) -> None:
        """A transform of the user's may have changed what goes in and out; then no call could be written for it."""
        unknown = {value.name for value in self.model.graph.input} - set(self._names())
        outputs = len(self.model.graph.output)
        if unknown or outputs != len(self.part.outputs):
            raise ModelRefused(
                f"the model has inputs {sorted(unknown)} that the partition has not"
                if unknown
                else f"the model has {outputs} outputs, the partition {len(self.part.outputs)}; see pre_ort_model_transforms"
            )

    def calls(self) -> int:
        """How often a session of this partition ran."""
        return int(repr(self._counter).removeprefix("count(").removesuffix(")"))  # Python 3.14 drops the pickling that told it

    def weight_nodes(self) -> frozenset[torch.fx.Node]:
        """The inputs that are parameters or buffers."""
        return self._weights

    def node_names(self) -> dict[str, str]:
        """ONNX node names and the FX nodes they were made from.

        Returns:
            ONNX node name -> FX node name, in the order of the model.
        """
        return {node.name: provenance_of(node).node for node in self.model.graph.node}

    def _names(self) -> list[str]:
        return [node.name for node in self.part.module.graph.nodes if node.op == "placeholder"]

    def _recipe(self, frozen: list[weights.FrozenWeight], dimensions: Mapping[str, int], other: onnx.ModelProto | None = None) -> Recipe:
        # A user's SessionOptions serve many sessions and must not collect their weights: there the bytes go into the model.
        own = self._options.ort_session_options
        plain = other or layout.without_last_reshapes(self.model)
        model = weights.with_frozen(plain, frozen, inline=own is not None) if frozen else plain
        model = layout.with_permuted_inputs(model, self._orders([weight.name for weight in frozen]))
        chosen = providers.providers_for(self._devices(), self._options)
        chosen_threads = threads.choose(self._work, alternates=self._alternates) if own is None else threads.of_the_user(own)
        chosen_threads = self._choice or chosen_threads
        options = own or default_session_options(chosen_threads)
        for name, size in dimensions.items() if own is None else ():
            options.add_free_dimension_override_by_name(name, size)
        if frozen and own is None:
            options.add_external_initializers(*weights.ort_values(frozen))
        return Recipe(model=model, options=options, providers=chosen, threads=chosen_threads)

    def _create(self, frozen: list[weights.FrozenWeight], dimensions: Mapping[str, int]) -> SessionInfo:
        recipe = self._recipe(frozen, dimensions)
        model, serialized = recipe.model, recipe.model.SerializeToString()
        before, started = heap_bytes(), time.perf_counter_ns()
        session = recipe.session(serialized)
        elapsed = time.perf_counter_ns() - started
        after = heap_bytes()
        return SessionInfo(
            input_names=tuple(value.name for value in model.graph.input),
            output_names=tuple(value.name for value in model.graph.output),
            input_value_infos=tuple(model.graph.input),
            output_value_infos=tuple(model.graph.output),
            input_devices=tuple(_device(node.meta["val"]) for node in self.part.inputs),
            output_devices=tuple(_device(node.meta["val"]) for node in self.part.outputs),
            providers=tuple(session.get_providers()),
            wanted_providers=tuple(name for name, _ in recipe.providers),
            session=session,
            create_ns=elapsed,
            frozen=tuple(frozen),
            threads=recipe.threads,
            held_bytes=None if before is None or after is None else max(after - before, 0),
            copied_bytes=weights.copied_bytes(frozen, inline=self._options.ort_session_options is not None),
            cause="first" if not self.ran_before else "sizes" if self.sessions else "weights",  # changed weights end all earlier sessions
        )

    def _dimensions(self, args: Sequence[Any]) -> dict[str, int]:
        """Sizes of the symbolic dimensions in these arguments, by the names they have in the model."""
        sizes: dict[str, int] = {}
        for node, arg in zip(self.part.inputs, args, strict=True):
            if isinstance(arg, torch.Tensor):
                for meta, size in zip(node.meta["val"].shape, arg.shape, strict=True):
                    if not isinstance(meta, int):
                        sizes[str(meta.node.expr)] = size
        return sizes

    def _devices(self) -> list[torch.device]:
        devices = [n.meta["val"].device for n in self.part.inputs if isinstance(n.meta["val"], torch.Tensor)]
        return devices or [_device(node.meta["val"]) for node in self.part.outputs]

    def _inputs(self, frozen: dict[int, weights.FrozenWeight]) -> list[call.Input]:
        names = self._names()
        taken = {value.name for value in self.model.graph.input}
        orders = self._orders([weight.name for weight in frozen.values()])
        return [
            call.Input(
                name=names[i], meta=node.meta["val"], frozen=frozen.get(i), bound=names[i] in taken, permutation=orders.get(names[i])
            )
            for i, node in enumerate(self.part.inputs)
        ]

    def _orders(self, frozen: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """The inputs that lie permuted in memory, and how; of frozen weights the session has contiguous copies."""
        taken = {value.name for value in self.model.graph.input}
        orders = {name: converter.memory_order(node.meta["val"]) for name, node in zip(self._names(), self.part.inputs, strict=True)}
        return {name: order for name, order in orders.items() if order is not None and name in taken and name not in frozen}

    def _outputs(self, session: onnxruntime.InferenceSession) -> list[call.Output]:
        shapes = {value.name: value.shape for value in session.get_outputs()}
        names = [value.name for value in self.model.graph.output]
        made = []
        for name, node, order in zip(names, self.part.outputs, self.permutations, strict=True):
            meta = node.meta["val"]
            sizes = list(meta.shape) if isinstance(meta, torch.Tensor) else []
            shape = layout.given_shape(shapes[name], sizes if order is None else [sizes[dim] for dim in order])
            made.append(call.Output(name=name, meta=meta, permutation=order, shape=shape))
        return made

    def _refreeze(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """A frozen weight changed: make a session with the weights of now, or stop freezing."""
        with self._lock:
            if self._forget_changed(args):  # else another thread noticed first
                try:
                    self.prepare(args)
                except Exception as error:  # noqa: BLE001 - whatever the reason, PyTorch has the right answer
                    return self._failed(args, error)
        return self.run(*args)  # outside the lock: the run may come back here when a weight changes once more

    def _forget_changed(self, args: Sequence[Any]) -> bool:
        """Drop the sessions whose weights are not those passed now; called with the lock held.

        Returns:
            True when there were such.
        """
        if all(note.is_still(args[place]) for place, note in self._frozen.items()):
            return False
        self._refreezes += 1
        self._by_sizes.clear()
        self.sessions, self._session_ids = [], []
        if self._refreezes > _MAX_REFREEZES:
            self._freezable = frozenset()
        return True

    def _failed(self, args: tuple[Any, ...], error: Exception) -> tuple[Any, ...]:
        """ONNX Runtime failed while running: PyTorch answers, from now on, unless the user wants to know."""
        where = f"partition of {len(self.part.nodes)} nodes, from {self.part.nodes[0].name} to {self.part.nodes[-1].name}"
        if self._options.on_error == "raise":
            raise SessionError(f"ONNX Runtime failed while running a {where}: {error}") from error
        self.run = self._run_torch
        self._failed_once = True
        self._hooks.run_failed(self, error)
        return self._run_torch(*args)

    def _run_torch(self, *args: Any) -> tuple[Any, ...]:
        outputs: tuple[Any, ...] = self.part.module(*args)
        return outputs


class WeightChanged(Exception):  # noqa: N818 - as `ModelRefused`
    """A frozen weight is not what it was when the session was made."""


def _changed(_args: tuple[Any, ...]) -> tuple[Any, ...]:
    raise WeightChanged


def _raised(_args: tuple[Any, ...], error: Exception) -> tuple[Any, ...]:
    raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerHooks:
    """What a runner tells the graph it belongs to.

    Attributes:
        session_made: Called with the runner and a new session; returns the log for its calls, if any.
        run_failed: Called with the runner and the exception when it goes back to PyTorch for good.
    """

    session_made: Callable[[PartitionRunner, SessionInfo], RunLog | None]
    run_failed: Callable[[PartitionRunner, Exception], None]


def signature_text(info: SessionInfo, part: Partition) -> str:
    """The dtypes and shapes that a session accepts.

    Args:
        info: The session.
        part: Its partition.

    Returns:
        Text such as `f32[2,8] i64[s0]`, frozen weights left out.
    """
    frozen = {note.name for note in info.frozen}
    return " ".join(_value_text(node.meta["val"]) for node in part.inputs if node.name not in frozen)


def _value_text(meta: Any) -> str:
    if not isinstance(meta, torch.Tensor):
        return type(meta).__name__.removeprefix("Sym").lower()
    sizes = ",".join(str(size) for size in meta.shape)
    return f"{dtypes.element_types()[meta.dtype].short}[{sizes}]"


def _is_symbolic(meta: Any) -> bool:
    sizes = meta.shape if isinstance(meta, torch.Tensor) else [meta]
    return any(_torch.is_symbolic(size) for size in sizes)


def _device(meta: Any) -> torch.device:
    return meta.device if isinstance(meta, torch.Tensor) else torch.device("cpu")
