"""Runs one partition: in a session of ONNX Runtime, with a new session when a frozen weight changes, else in PyTorch.

A run counts as failed only if PyTorch computes it: where PyTorch raises as well, the input is to blame. One failed run decides nothing,
because memory may have been short for a moment. Sizes that fail again and again are left to PyTorch by themselves.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from ortlens.backend.runtime import call, cuda, devices
from ortlens.backend.runtime.weights import HeldWeights
from ortlens.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import onnx

    from ortlens.backend.partitioning.plan import GraphPartition
    from ortlens.backend.runtime.session import SessionFactory, SessionInfo
    from ortlens.trace.records import SessionCause
    from ortlens.trace.runlog import RunLog


IN_A_ROW = 3
"""How many failed runs in a row leave sizes, or the partition, to PyTorch."""
MAX_SIZES = 8
"""How many combinations of sizes may have failed, without a good run since, before the partition is left to PyTorch."""

Verdict: TypeAlias = Literal["kept", "sizes lost", "partition lost"]


class Failures:
    """The failed runs of one partition that no good run has made up for."""

    def __init__(self, *, sizes_vary: bool) -> None:
        """Start without failures; unless the sizes of calls vary, they are never to blame."""
        self._sizes_vary = sizes_vary
        self._by_sizes: dict[Hashable, int] = {}  # failed runs in a row at these sizes
        self._row: list[Hashable] = []  # sizes of the latest runs, if these all failed
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Tell whether there are failures to remember; without any, runs need not be reported."""
        return bool(self._by_sizes)

    def at(self, sizes: Hashable) -> int:
        """Count the runs in a row that failed at the sizes of a call."""
        return self._by_sizes.get(sizes, 0)

    def are_lost(self, sizes: Hashable) -> bool:
        """Tell whether PyTorch runs calls of these sizes."""
        return self.at(sizes) >= IN_A_ROW

    def failed(self, sizes: Hashable) -> Verdict:
        """Count a failed run, and tell what it ends: nothing, the runs at these sizes, or all runs.

        The runs at these sizes end after `IN_A_ROW` failures at these alone; all runs, after as many in a row at several sizes or where
        sizes do not vary, or when `MAX_SIZES` sizes have failed.
        """
        with self._lock:
            self._by_sizes[sizes] = self.at(sizes) + 1
            self._row = [*self._row, sizes][-IN_A_ROW:]
            in_a_row = len(self._row) == IN_A_ROW
            if len(self._by_sizes) >= MAX_SIZES or (in_a_row and (len(set(self._row)) > 1 or not self._sizes_vary)):
                return "partition lost"
            return "sizes lost" if self.are_lost(sizes) else "kept"

    def succeeded(self, sizes: Hashable) -> None:
        """Note a good run: it forgives the failures at these sizes, and ends a row of failures."""
        with self._lock:
            self._row.clear()
            self._by_sizes.pop(sizes, None)


MAX_SIZE_SESSIONS = 16
"""How many sessions a partition keeps with `dynamic_shapes=False`: each may hold a packed copy of the weights."""


class RunnerEvents:
    """What a runner calls, with itself first, when something happens to it; here, nothing is done about it."""

    def session_made(self, runner: PartitionRunner, info: SessionInfo) -> RunLog | None:
        """Note a new session; return the log for its calls."""

    def run_failed(self, runner: PartitionRunner, error: Exception, verdict: Verdict) -> None:
        """Note that ONNX Runtime failed to run what PyTorch could compute."""

    def session_dropped(self, runner: PartitionRunner) -> None:
        """Note that a session was dropped because `MAX_SIZE_SESSIONS` others were used since."""

    def called_in_capture(self, runner: PartitionRunner) -> None:
        """Note a call while PyTorch captures a CUDA graph, in which PyTorch computes it instead."""

    def graph_failed(self, runner: PartitionRunner, error: Exception) -> None:
        """Note that capturing a CUDA graph failed; the session runs without."""

    def stale_weights_detected(self, runner: PartitionRunner, names: Sequence[str], calls: int) -> None:
        """Note changed weights that earlier calls may have missed; after `calls` every change is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSession:
    """A session in use: what is known about it, its recorded id, and the function that calls it."""

    info: SessionInfo
    session_id: str | None
    call: Callable[..., tuple[Any, ...]]


class PartitionRunner:
    """Runs one partition: in ONNX Runtime when it can, in PyTorch when it must."""

    def __init__(self, factory: SessionFactory, events: RunnerEvents) -> None:
        """Prepare to run the partition of a factory; sessions are created by `prepare`."""
        self.factory = factory  # creates the sessions
        self.partition: GraphPartition = factory.partition
        self.model: onnx.ModelProto = factory.model  # its ONNX model, with weights as inputs
        self.weights = HeldWeights(factory)
        self.ran_before = False  # whether the runner has had a session
        self.is_lost = False  # whether PyTorch runs the partition from now on
        self.attempts = 0  # how often a session was to be created, those that ONNX Runtime refused included
        # The function to call now, with the partition's inputs; replaced as sessions come and go.
        self.run: Callable[..., tuple[Any, ...]] = self._run_torch
        self._in_session: Callable[..., tuple[Any, ...]] = self._run_for_sizes  # what `run` is as long as nothing failed
        self._events, self._options = events, factory.options
        exported = factory.options.export_options
        per_size = exported is not None and exported.dynamic_shapes is False  # each combination of sizes gets a session of its own
        self._fixed_sizes = self.partition.has_symbolic_sizes and per_size
        self._prepared: OrderedDict[tuple[Any, ...], PreparedSession] = OrderedDict()  # by sizes if these are fixed; least recent first
        self._failures = Failures(sizes_vary=self.partition.has_symbolic_sizes)
        self._has_failed = False
        self._weights_changed = True  # whether that ended the last session, and not another precision
        self.counter = itertools.count()  # counts the runs of its sessions
        self._lock = threading.Lock()

    @property
    def sessions(self) -> list[SessionInfo]:
        """The sessions in use: none before the first call, then one, or one per combination of sizes."""
        return [prepared.info for prepared in list(self._prepared.values())]

    def prepare(self, args: Sequence[Any]) -> None:
        """Create the session for some arguments, of which only weights are read; raise `ModelRefused` if ONNX Runtime rejects the model."""
        self.attempts += 1
        self.factory.check_boundary()
        frozen = self.weights.found_in(args)
        info = self.factory.session(list(frozen.values()), self.factory.dimensions(args) if self._fixed_sizes else {}, cause=self._cause())
        self.weights.hold(frozen)
        log = self._events.session_made(self, info)
        if info.calls is not None:
            info.calls.on_graph_failure = functools.partial(self._events.graph_failed, self)
            if log is not None:
                log.facts = info.calls.facts
        self.ran_before = True
        made = PreparedSession(info=info, session_id=None if log is None else log.session_id, call=self._call_of(info, log))
        if not self._fixed_sizes:
            self._prepared.clear()  # an earlier session holds weights that have changed since
        elif len(self._prepared) >= MAX_SIZE_SESSIONS:
            self._prepared.popitem(last=False)
            self._events.session_dropped(self)
        self._prepared[self._key_of(args)] = made
        self._use(self._run_for_sizes if self._fixed_sizes else made.call)

    def ensure_session(self, args: Sequence[Any]) -> None:
        """Have a session for some arguments: the one there is, if it holds their weights, else a new one."""
        self._prepared_now(self._key_of(args), args)

    def prepared_for(self, args: Sequence[Any]) -> PreparedSession | None:
        """Return the session that runs some arguments; None while PyTorch runs the partition."""
        if self.is_lost or self._failures.are_lost(self._sizes_of(args)):
            return None
        return self._prepared.get(self._key_of(args))

    def unlogged(self) -> Callable[..., tuple[Any, ...]]:
        """Return what `run` is where no lens logs it; `run` itself where sizes or failures choose what runs."""
        prepared = [prepared for prepared in self._prepared.values() if prepared.call is self.run]
        return self._call_of(prepared[0].info, None) if prepared else self.run

    def _cause(self) -> SessionCause:
        if not self.ran_before:
            return "first"
        if self._prepared:
            return "sizes"
        return "weights" if self._weights_changed else "precision"  # either ends all earlier sessions

    def _call_of(self, info: SessionInfo, log: RunLog | None) -> Callable[..., tuple[Any, ...]]:
        spec = call.CallSpec(
            inputs=[
                replace(item, steady=place in self.factory.weight_inputs) for place, item in enumerate(self.factory.inputs(info.frozen))
            ],
            outputs=self.factory.outputs_in_place(info.session, info.frozen),
            on_stale=self._refreeze,
            on_failure=self.failed,
            count=self.counter.__next__,
            log=log,
            preallocate=self._options.preallocate_output,
            rest=info.threads.rest(),
            intact=self._intact(info),
            replays=self._options.cuda_graph,
        )
        return call.make_call(info.session, spec)

    def _intact(self, info: SessionInfo) -> Callable[[], bool] | None:
        """Return the check of what a call cannot see in its arguments: the bytes of weights, and PyTorch's precision."""
        watch = self.weights.intact()
        current = info.calls.is_current if info.calls is not None else None
        if watch is None or current is None:
            return watch or current
        return lambda: watch() and current()

    def _key_of(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return what selects the session: the sizes if these are fixed, else nothing."""
        return self._sizes_of(args) if self._fixed_sizes else ()

    def _sizes_of(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the sizes that may need a session of their own: every shape and number except those of weights."""
        return tuple(
            tuple(arg.shape) if isinstance(arg, torch.Tensor) else arg
            for place, arg in enumerate(args)
            if place not in self.factory.weight_inputs
        )

    def _use(self, function: Callable[..., tuple[Any, ...]]) -> None:
        """Have calls run in ONNX Runtime by this function, and watched while failures are remembered."""
        self._in_session = function
        if not self.is_lost:
            self.run = self._run_watched if self._failures else function

    def _run_for_sizes(self, *args: Any) -> tuple[Any, ...]:
        """Run the session for these sizes, and create it first if there is none."""
        key = self._key_of(args)
        made = self._prepared.get(key)
        if made is None:
            try:
                if devices.capturing(args):
                    return self.failed(args, cuda.CalledInCapture())
                made = self._prepared_now(key, args)
            except Exception as error:  # noqa: BLE001 - whatever the reason, PyTorch has the right answer
                return self.failed(args, error)
        elif self._fixed_sizes:
            with contextlib.suppress(KeyError):  # another thread has dropped it
                self._prepared.move_to_end(key)
        return made.call(*args)

    def _prepared_now(self, key: tuple[Any, ...], args: Sequence[Any]) -> PreparedSession:
        with self._lock:
            self._forget_changed(args)  # a session for one size must not make those for the others look current
            if key not in self._prepared:  # else another thread has created it meanwhile
                self.prepare(args)
            return self._prepared[key]

    def _refreeze(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run after a frozen weight changed, in a session with the present weights or without frozen ones."""
        with self._lock:
            self._forget_changed(args)  # does nothing if another thread noticed first
        return self._in_session(*args)  # outside the lock: the run may come back here when a weight changes once more

    def _forget_changed(self, args: Sequence[Any]) -> None:
        """Drop the sessions whose weights differ from those passed now. The caller holds the lock."""
        changed, unseen, calls = self.weights.differences(args)
        infos = [prepared.info for prepared in self._prepared.values()]
        if not changed and all(info.calls is None or info.calls.is_current() for info in infos):
            return
        if unseen:
            self._events.stale_weights_detected(self, sorted(unseen), calls)
        self._weights_changed = bool(changed)
        self.weights.drop(have_changed=self._weights_changed)
        self._prepared.clear()
        self._use(self._run_for_sizes)

    def failed(self, args: tuple[Any, ...], error: Exception) -> tuple[Any, ...]:
        """Have PyTorch compute a call that failed in ONNX Runtime; what PyTorch raises is the fault of the input.

        Raise `SessionError` if it could compute the call and `on_error` is `"raise"`, or if inputs that the run was to update may have
        changed.
        """
        if isinstance(error, call.HalfWrittenError):
            text = "ONNX Runtime failed while it updated tensors in place. Each of them holds its old values, or its new ones"
            raise SessionError(f"{text}, or some of both: {error}") from error.__cause__
        outputs = self._run_torch(*args)
        if isinstance(error, cuda.CalledInCapture):
            self._events.called_in_capture(self)
            return outputs
        if self._options.on_error == "raise":
            nodes = self.partition.nodes
            where = f"partition of {len(nodes)} nodes, from {nodes[0].name} to {nodes[-1].name}"
            raise SessionError(f"ONNX Runtime failed while running a {where}: {error}") from error
        verdict = self._failures.failed(self._sizes_of(args))
        if verdict == "partition lost":
            self.is_lost, self.run = True, self._run_torch
        else:
            self._use(self._in_session)
        if verdict != "kept" or not self._has_failed:
            self._events.run_failed(self, error, verdict)
        self._has_failed = True
        return outputs

    def _run_watched(self, *args: Any) -> tuple[Any, ...]:
        """Run in ONNX Runtime, as long as failures are remembered: a good run may end that."""
        sizes = self._sizes_of(args)
        if self._failures.are_lost(sizes):
            return self._run_torch(*args)
        before = self._failures.at(sizes)
        outputs = self._in_session(*args)
        if self._failures.at(sizes) == before:
            self._failures.succeeded(sizes)
            self._use(self._in_session)
        return outputs

    def _run_torch(self, *args: Any) -> tuple[Any, ...]:
        outputs: tuple[Any, ...] = self.partition.module(*args)
        return outputs


def count_of(counter: itertools.count[int]) -> int:
    """Return how many times a counter that starts at 0 was called, without calling it."""
    return int(repr(counter).removeprefix("count(").removesuffix(")"))  # Python 3.14 removes the pickling of counters, the other way
