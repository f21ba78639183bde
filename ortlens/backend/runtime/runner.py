"""Runs one partition: in a session of ONNX Runtime, with a new session when a frozen weight changes, else in PyTorch."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.fx

from ortlens import _torch
from ortlens.backend.conversion.node_provenance import provenance_of
from ortlens.backend.runtime import call, weights
from ortlens.backend.runtime.session_factory import SessionFactory
from ortlens.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from ortlens.backend.options import OrtBackendOptions
    from ortlens.backend.partitioning.extraction import Partition
    from ortlens.backend.runtime.session_info import SessionInfo
    from ortlens.trace.records import SessionCause
    from ortlens.trace.runlog import RunLog

_MAX_REFREEZES = 2
"""How often changed weights are frozen again before they become inputs: weights that change more often are being trained."""


class RunnerContext(Protocol):
    """The surroundings of a runner: a graph that was just compiled, one from the cache, or a lens that runs a partition by itself."""

    @property
    def options(self) -> OrtBackendOptions:
        """The user's options."""

    def session_made(self, runner: PartitionRunner, info: SessionInfo) -> RunLog | None:
        """React to a new session.

        Args:
            runner: The partition's.
            info: The session.

        Returns:
            The log for the session's calls; None to log none.
        """

    def run_failed(self, runner: PartitionRunner, error: Exception) -> None:
        """React to a runner that leaves its partition to PyTorch from now on.

        Args:
            runner: The partition's.
            error: The exception that ONNX Runtime raised.
        """


class PartitionRunner:
    """Runs one partition: in ONNX Runtime when it can, in PyTorch when it must.

    Attributes:
        factory: Creates the sessions.
        partition: The partition.
        model: Its ONNX model, with weights as inputs.
        weight_inputs: Positions of the inputs that are parameters or buffers.
        freezes: Whether these may become constants of a session.
        sessions: The sessions in use: none before the first call, then one, or one per combination of sizes.
        run: The function to call now, with the partition's inputs; replaced as sessions come and go.
        cached: Whether an earlier process converted the model.
        ran_before: Whether the runner has had a session.
    """

    def __init__(
        self, factory: SessionFactory, context: RunnerContext, *, weight_inputs: frozenset[int], freezes: bool, cached: bool = False
    ) -> None:
        """Prepare to run a partition; sessions are created by `prepare`.

        Args:
            factory: Creates the sessions.
            context: The options, and who to notify of new sessions and failures.
            weight_inputs: Positions of the inputs that are parameters or buffers.
            freezes: Whether these may become constants of a session.
            cached: Whether an earlier process converted the model.
        """
        self.factory = factory
        self.partition: Partition = factory.partition
        self.model: onnx.ModelProto = factory.model
        self.weight_inputs = weight_inputs
        self.freezes = freezes
        self.cached = cached
        self.sessions: list[SessionInfo] = []
        self._session_ids: list[str | None] = []  # of `sessions`, in the same order
        self.run: Callable[..., tuple[Any, ...]] = self._run_torch
        self._context = context
        self._freezable = weight_inputs if freezes else frozenset()
        self._frozen: dict[int, weights.FrozenWeight] = {}
        self._fixed_sizes = _wants_fixed_sizes(self.partition, context.options)
        self._by_sizes: dict[tuple[Any, ...], Callable[..., tuple[Any, ...]]] = {}
        self.ran_before = False
        self._failed_once = False
        self._refreezes = 0
        self._counter = itertools.count()
        self._lock = threading.Lock()

    def prepare(self, args: Sequence[Any]) -> None:
        """Create the session for some arguments.

        Args:
            args: Values of the partition's inputs; only weights are read.

        Raises:
            ModelRefused: ONNX Runtime rejects the model.
        """
        self.factory.check_boundary()
        frozen = self._freeze(args)
        info = self.factory.session(list(frozen.values()), self.factory.dimensions(args) if self._fixed_sizes else {}, cause=self._cause())
        self._frozen = frozen
        log = self._context.session_made(self, info)
        self.ran_before = True
        session_id = None if log is None else log.session_id
        if self._fixed_sizes:
            self.sessions.append(info)
            self._session_ids.append(session_id)
            self._by_sizes[self._sizes_of(args)] = self._call_of(info, log)
            self.run = self._run_for_sizes
        else:
            self._session_ids = [session_id]
            self.sessions = [info]  # an earlier one holds weights that have changed since
            self.run = self._call_of(info, log)

    def session_for(self, args: Sequence[Any]) -> SessionInfo | None:
        """The session that runs some arguments.

        Args:
            args: Values of the partition's inputs.

        Returns:
            The session; None while PyTorch runs the partition.
        """
        place = self._place_of(args)
        return None if place is None else self.sessions[place]

    def session_id_for(self, args: Sequence[Any]) -> str | None:
        """The recorded id of the session that runs some arguments.

        Args:
            args: Values of the partition's inputs.

        Returns:
            The id; None while PyTorch runs the partition, and for a session that is not recorded.
        """
        place = self._place_of(args)
        return None if place is None else self._session_ids[place]

    def calls(self) -> int:
        """How many times sessions of this partition have run."""
        return int(
            repr(self._counter).removeprefix("count(").removesuffix(")")
        )  # Python 3.14 removes the pickling of counters, the other way to read one

    def weight_nodes(self) -> frozenset[torch.fx.Node]:
        """The inputs that are parameters or buffers."""
        return frozenset(self.partition.inputs[place] for place in self.weight_inputs)

    def node_names(self) -> dict[str, str]:
        """ONNX nodes and the FX nodes that they come from.

        Returns:
            ONNX node name -> FX node name, in the order of the model.
        """
        return {node.name: provenance_of(node).node for node in self.model.graph.node}

    @property
    def frozen(self) -> tuple[weights.FrozenWeight, ...]:
        """The weights that the sessions in use hold as constants."""
        return tuple(self._frozen.values())

    def _freeze(self, args: Sequence[Any]) -> dict[int, weights.FrozenWeight]:
        names, bound = self.factory.input_names(), self.factory.bound_names()
        freezable = [place for place in sorted(self._freezable) if names[place] in bound]
        return {place: weight for place in freezable if (weight := weights.freeze(names[place], args[place])) is not None}

    def _cause(self) -> SessionCause:
        if not self.ran_before:
            return "first"
        return "sizes" if self.sessions else "weights"  # changed weights end all earlier sessions

    def _call_of(self, info: SessionInfo, log: RunLog | None) -> Callable[..., tuple[Any, ...]]:
        return call.make_call(
            info.session,
            self.factory.inputs(info.frozen),
            self.factory.outputs(info.session),
            on_stale=self._refreeze,
            on_failure=self._failed,
            count=self._counter.__next__,
            log=log,
            preallocate=self._context.options.preallocate_output,
            rest=info.threads.rest(),
        )

    def _place_of(self, args: Sequence[Any]) -> int | None:
        """Which of the sessions runs these arguments; None for none."""
        if self._failed_once or not self.sessions:
            return None
        if not self._fixed_sizes:
            return 0
        known, wanted = list(self._by_sizes), self._sizes_of(args)
        return known.index(wanted) if wanted in known else None

    def _sizes_of(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The sizes that need a session of their own: every shape and number except those of weights."""
        return tuple(
            tuple(arg.shape) if isinstance(arg, torch.Tensor) else arg for place, arg in enumerate(args) if place not in self._freezable
        )

    def _run_for_sizes(self, *args: Any) -> tuple[Any, ...]:
        """With `dynamic_shapes=False`: run the session for these sizes, and create it first if there is none."""
        made = self._by_sizes.get(self._sizes_of(args))
        if made is None:
            with self._lock:
                self._forget_changed(args)  # a session for one size must not make those for the others look current
                try:
                    if self._sizes_of(args) not in self._by_sizes:  # else another thread has created it meanwhile
                        self.prepare(args)
                except Exception as error:  # noqa: BLE001 - whatever the reason, PyTorch has the right answer
                    return self._failed(args, error)
                made = self._by_sizes[self._sizes_of(args)]
        return made(*args)

    def _refreeze(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """A frozen weight changed: create a session with the present weights, or stop freezing."""
        with self._lock:
            if self._forget_changed(args):  # else another thread noticed first
                try:
                    self.prepare(args)
                except Exception as error:  # noqa: BLE001 - whatever the reason, PyTorch has the right answer
                    return self._failed(args, error)
        return self.run(*args)  # outside the lock: the run may come back here when a weight changes once more

    def _forget_changed(self, args: Sequence[Any]) -> bool:
        """Drop the sessions whose weights differ from those passed now. The caller holds the lock.

        Returns:
            Whether there were such sessions.
        """
        if all(weight.is_still(args[place]) for place, weight in self._frozen.items()):
            return False
        self._refreezes += 1
        self._by_sizes.clear()
        self.sessions, self._session_ids = [], []
        if self._refreezes > _MAX_REFREEZES:
            self._freezable = frozenset()
        return True

    def _failed(self, args: tuple[Any, ...], error: Exception) -> tuple[Any, ...]:
        """ONNX Runtime failed during a run: PyTorch computes this call and all later ones, unless `on_error` is "raise"."""
        where = f"partition of {len(self.partition.nodes)} nodes, from {self.partition.nodes[0].name} to {self.partition.nodes[-1].name}"
        if self._context.options.on_error == "raise":
            raise SessionError(f"ONNX Runtime failed while running a {where}: {error}") from error
        self.run = self._run_torch
        self._failed_once = True
        self._context.run_failed(self, error)
        return self._run_torch(*args)

    def _run_torch(self, *args: Any) -> tuple[Any, ...]:
        outputs: tuple[Any, ...] = self.partition.module(*args)
        return outputs


def runner_for(  # noqa: PLR0913 - what is known about a partition, each by name
    partition: Partition,
    model: onnx.ModelProto,
    facts: Mapping[str, Any],
    context: RunnerContext,
    *,
    weight_inputs: frozenset[int],
    inference: bool,
    alternates: bool,
    work: int | None,
    cached: bool = False,
) -> PartitionRunner:
    """Make the runner of a partition from its model, whether that was just converted or read from the cache.

    Args:
        partition: The partition.
        model: Its ONNX model, with weights as inputs and the user's transforms applied.
        facts: What the cache holds beside a model; read is `permutations`, the memory order of each output or None.
        context: The options, and who to notify of new sessions and failures.
        weight_inputs: Positions of the inputs that are parameters or buffers.
        inference: Whether the graph is for inference: only then are weights frozen, if the options allow it.
        alternates: Whether PyTorch computes something before or after the partition in every call.
        work: Amount of computation, as counted by `threads.work_of`.
        cached: Whether an earlier process converted the model.

    Returns:
        The runner; its sessions are created by `prepare`.
    """
    factory = SessionFactory(
        partition=partition,
        model=model,
        permutations=[None if order is None else tuple(order) for order in facts["permutations"]],
        options=context.options,
        alternates=alternates,
        work=work,
    )
    freezes = inference and context.options.freeze_weights is not False
    return PartitionRunner(factory, context, weight_inputs=weight_inputs, freezes=freezes, cached=cached)


def _wants_fixed_sizes(partition: Partition, options: OrtBackendOptions) -> bool:
    """Whether each combination of sizes gets a session of its own: `dynamic_shapes=False`, on a graph with symbolic sizes."""
    chosen = options.export_options
    symbolic = any(_is_symbolic(node.meta["val"]) for node in partition.inputs)
    return symbolic and chosen is not None and chosen.dynamic_shapes is False


def _is_symbolic(meta: Any) -> bool:
    sizes = meta.shape if isinstance(meta, torch.Tensor) else [meta]
    return any(_torch.is_symbolic(size) for size in sizes)
