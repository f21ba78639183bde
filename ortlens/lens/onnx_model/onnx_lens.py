"""The lens over an ONNX model, or over a running session."""

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ortlens import _ort
from ortlens._os_errors import with_clear_os_errors
from ortlens._process import replaced, usable_cores
from ortlens._shell import progress
from ortlens.analysis.problems.sessions import too_many_threads
from ortlens.backend.basis import placements
from ortlens.backend.basis.node_provenance import FX_NODE_KEY, iter_nodes
from ortlens.errors import OrtLensError, SessionError, UsageError
from ortlens.lens.observing.digests import Digests
from ortlens.lens.observing.environment import LensRecorder, machine_figures
from ortlens.lens.observing.session_memory import WATCHED, SessionMemory
from ortlens.lens.observing.session_messages import SessionMessages
from ortlens.lens.onnx_model import graph_records
from ortlens.lens.onnx_model.memory_trials import try_memory
from ortlens.lens.onnx_model.sessions import SessionChoice, new_session, run, runner_of, threads_of
from ortlens.lens.onnx_model.signature import described, feed_from, feeds_from, generated, inputs_from_session, shapes_of
from ortlens.lens.onnx_model.two_models.model_side import ModelSide
from ortlens.lens.profiling import profiles
from ortlens.lens.profiling.forecast import record_forecast
from ortlens.lens.profiling.kernel_records import ProfiledSession, ProfilerTwin, record_profile, with_profiler, without_weights
from ortlens.trace import records as r
from ortlens.trace.guard import lens_guard
from ortlens.views.capture_view import CaptureView

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import onnx
    import onnxruntime
    import pandas as pd

    from ortlens.lens.observing.time_budget import Repeats
    from ortlens.lens.onnx_model.signature import Feed, Input
    from ortlens.lens.onnx_model.source import ModelSource
    from ortlens.lens.profiling.forecast import Provider
    from ortlens.lens.profiling.kernel_records import Watched
    from ortlens.trace.runlog import RunLog

SESSION = "s0"  # id of the session
_TRIAL_NS = 500_000_000
_GROUP = 128  # values inside that one run returns


@with_clear_os_errors
class OnnxLens(CaptureView):
    """What is known about an ONNX model and its session; `ortlens.explain("model.onnx")(...)` and `ortlens.watch(session)` make it.

    It has the frames and views of every capture. The model is one graph and one partition; graph breaks, recompiles and fallbacks, which
    only PyTorch has, stay empty.

    Attributes:
        name: Name of the capture.
        session: The `onnxruntime.InferenceSession`; None after a dry run.
        inputs: The inputs of the latest call that this lens made, by name; empty before.
        kept_inputs: Copies of the inputs of the latest calls of a watched session, by name and the oldest first, of as many as `watch` was
            asked to keep. They are in no capture.
        result: Its outputs, by name; None before.
    """

    def __init__(  # noqa: PLR0913 - what a lens is made of
        self,
        source: ModelSource,
        inputs: tuple[Input, ...],
        choice: SessionChoice,
        *,
        name: str,
        structure: onnx.ModelProto | None,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        """Begin without a session; in the `structure` of the model, if it is known, every node has a name of its own."""
        self.name = name
        self.session: onnxruntime.InferenceSession | None = None
        self.inputs: Feed = {}
        self.kept_inputs: Sequence[Feed] = ()
        self.result: dict[str, Any] | None = None
        self._source = source
        self._signature = inputs
        self._choice = choice
        self._structure = structure
        self._recorder = LensRecorder(self, "onnxruntime", machine_figures, journal)
        self._messages = SessionMessages(self._recorder)
        self._facts = self._recorder.facts
        self._facts["onnx_model"] = "file" if source.path is not None else "bytes"
        if structure is not None:
            made_by = " ".join(part for part in (structure.producer_name, structure.producer_version) if part)
            self._facts["onnx_producer"] = made_by or "not recorded"
            self._facts["onnx_ir_version"] = str(structure.ir_version)
            self._recorder.attach(graph_records.MODEL_FILE, structure.SerializeToString())
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._memory: SessionMemory | None = None  # of a watched session
        self._stop: Callable[[], object] | None = None
        self._recorder.add(*graph_records.records_of(source, inputs, structure, {}))

    def note(self, **facts: str) -> None:
        """Add facts to the environment of the capture."""
        self._facts.update(facts)

    def began(self, session: onnxruntime.InferenceSession | None, *, create_ns: int, held_bytes: int | None) -> RunLog:
        """Record a session, with the time and the heap memory that creating it took, where known; return the log for its calls.

        None is one inside of another library, which was made as the lens was told.
        """
        self.session = session
        options = self._choice.made_options() if session is None else session.get_session_options()
        used = [name for name, _ in self._choice.providers] if session is None else session.get_providers()
        count, spinning, reason = threads_of(options, given=self._choice.options is not None)
        record = r.Session(
            session_id=SESSION,
            partition_id=graph_records.PARTITION,
            model_id=graph_records.MODEL,
            providers=tuple(used),
            input_signature=" ".join(each.text() for each in self._signature),
            create_ns=create_ns,
            held_bytes=held_bytes,
            threads=count,
            spinning=spinning,
            threads_reason=reason,
            cause="first",
            frozen_bytes=self._source.constant_bytes,
        )
        self._recorder.add(record)
        self._recorder.amend(r.Graph, graph_records.GRAPH, session_ns=create_ns, compile_ns=create_ns)
        if used[:1] == ["CPUExecutionProvider"] and self._structure is not None:
            self._recorder.add(*graph_records.slow_quantised(self._structure))
        if session is not None:
            placements.record(self._recorder, record, session, self._wanted(session), self._structure)
        return self._recorder.run_log(SESSION, graph_records.GRAPH)

    def forecast(self, provider: Provider | None) -> None:
        """Record what a provider would run, if one is given."""

        def made(options: onnxruntime.SessionOptions, providers: Sequence[Provider]) -> onnxruntime.InferenceSession:
            return new_session(self._source, SessionChoice(providers=tuple(providers)), options)

        if provider is not None and self._structure is not None:
            record_forecast(self._recorder, graph_records.PARTITION, self._structure, provider, made)

    def called(self, feed: Feed, outputs: dict[str, Any]) -> None:
        """Note the inputs and outputs of a call by name; their sizes stand for symbolic ones from now on."""
        self.inputs, self.result = feed, outputs
        self._facts["onnx_inputs"] = described(self._signature, feed)
        self._take_sizes(shapes_of(feed))
        self._recorder.add(*graph_records.all_nan(feed, outputs))

    def keep_values(self) -> None:
        """Record digests of the inputs, the outputs and the values inside of the latest call; `UsageError` in ONNX Runtime's own format."""
        digests = Digests()
        for place, each in enumerate(self._signature):
            digests.keep(graph_records.GRAPH, each.name, place, self.inputs[each.name], is_input=True)
        with tempfile.TemporaryDirectory(prefix="ortlens-values-", ignore_cleanup_errors=True) as folder:
            side = ModelSide(self._source, Path(folder), "model")
            side.feed = {name: value for name, value in self.inputs.items() if isinstance(value, np.ndarray)}
            makers = list(side.graph.makers.items())
            for start in range(0, len(makers), _GROUP):
                group, values = makers[start : start + _GROUP], self.result or {}
                with contextlib.suppress(Exception):  # what runs in the session of the lens alone has digests of its outputs
                    values = side.values([name for name, _ in group]) | values
                for name, node in group:
                    digests.keep(graph_records.GRAPH, node.name, list(node.output).index(name), values.get(name))
        self._recorder.add(*digests.values())

    def _take_sizes(self, sizes: Mapping[str, tuple[int, ...]]) -> None:
        """Take the sizes of a call, by input, for symbolic ones, unless those of an earlier call are known."""
        if self._sizes or not sizes:
            return
        self._sizes = dict(sizes)
        self._facts.setdefault("onnx_inputs", " ".join(f"{each.name}={each.text(sizes.get(each.name))}" for each in self._signature))
        for record in graph_records.records_of(self._source, self._signature, self._structure, sizes):
            if isinstance(record, r.Node):
                self._recorder.amend(r.Node, (record.graph_id, record.node), **r.same(record, "flops", "bytes", "output_bytes"))
            elif isinstance(record, r.Partition):
                self._recorder.amend(r.Partition, record.partition_id, **r.same(record, "input_bytes", "output_bytes", "flops"))
            elif isinstance(record, r.Graph):
                self._recorder.amend(r.Graph, record.graph_id, **r.same(record, "input_sizes"))

    def _feed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Feed:
        """Return the inputs of a call: those given, else those of the latest call, else made, with the sizes of a watched call."""
        if args or kwargs:
            return feed_from(self._signature, args, kwargs)
        known = [replace(each, shape=self._sizes.get(each.name, each.shape)) for each in self._signature]
        return self.inputs or generated(known)[0]

    def profile(self, *args: Any, repeat: int | None = None, budget_s: float | None = None, **kwargs: Any) -> pd.DataFrame:
        """Measure where the time inside ONNX Runtime goes, kernel by kernel, as `Lens.profile` does.

        Of a session that takes 1 s to create, it also tries what shortens that, in the time that is left: the finding `slow_start`. Of a
        watched one that keeps memory for a rare call, what frees that, in processes of their own: the finding `memory_ratchet`. A session
        with more threads than the process has cores is timed with fewer: the finding `too_many_threads`.

        Args:
            *args: Inputs in order; without any, those of the latest call.
            repeat: As for `Lens.profile`. If the model has an input of that name, pass all inputs as one mapping.
            budget_s: Likewise. When the time is over, one repeat is enough.
            **kwargs: Inputs by name.

        Returns:
            The frame `kernels`; earlier rows are replaced.

        Raises:
            UsageError: `repeat` or `budget_s` is not a positive number, this was a dry run, or neither file nor bytes of the model are
                known.
            SessionError: ONNX Runtime cannot make a second session of it, or run it.
        """
        from ortlens.lens.observing.environment import measure_peaks
        from ortlens.lens.observing.time_budget import Repeats

        session = self._session_to("profile")
        repeats = Repeats(repeat, budget_s)
        feed = self._feed(args, kwargs)
        self._profile(session, feed, repeats)
        self.try_fewer_threads(feed)
        if not repeats.budget.is_over():
            measure_peaks(self._recorder)
            self._messages.time_starts([self._request()], try_s=repeats.budget.left_s())
            if self._memory is not None and (request := self._request()) is not None:
                try_memory(self._memory, request, self._signature, repeats.budget.left_s())
        return self.kernels

    def _profile(self, session: onnxruntime.InferenceSession, feed: Feed, repeats: Repeats) -> None:
        """Fill the table of kernels, from a second session, in turns with the one in use."""
        if self._source.loadable is None:
            raise UsageError("neither the path nor the bytes of the session's model are known, so that no second session can profile it")
        with tempfile.TemporaryDirectory(prefix="ortlens-profile-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            second = with_profiler(self._second_session, folder, ours=self._choice.options is None)
            twin = ProfilerTwin(second, 0 if self._structure is None else len(self._structure.graph.node))
            inputs = inputs_from_session(session)
            try:
                repeats.restart()
                with progress("profiling", repeats.most + 1, "run") as step:
                    pairs = ((session, twin.turns.plain_ns), (twin.session, twin.turns.profiled_ns))
                    plain, profiled = (_timed(runner_of(each, inputs, feed), taken) for each, taken in pairs)
                    twin.measure(plain, profiled, repeats, step)
                optimized = without_weights(folder / "optimized.onnx", self._structure)
                model, compute = _with_provenance(self._structure, optimized)
                made = ProfiledSession(
                    session_id=SESSION,
                    model_id=graph_records.MODEL,
                    twin=twin,
                    model=model,
                    optimized=optimized,
                    compute=compute,
                    nodes={node.node: node for node in self._recorder.records(r.Node)},
                )
                record_profile(self._recorder, made, profiles.measure_cost())
            except Exception as error:
                said = " ".join(str(error).split())[:600]
                if isinstance(error, profiles.ProfileIncomplete):
                    said = f"the profile is incomplete: {said}; call profile() again with a smaller repeat"
                raise SessionError(
                    f"profiling {self._source.name} failed: {said}. It writes files into {folder.parent}, which needs room"
                ) from error
        placements.record_kernels(self._recorder, graph_records.PARTITION, self._wanted(session)[0], self._structure)

    def try_fewer_threads(self, feed: Feed) -> None:
        """Time a session with as many threads as there are cores, where this one has more: the finding with what that saves."""
        known = next(too_many_threads.check(self._recorder.captured()), None)
        if known is None or self.session is None or self._source.loadable is None:
            return
        from ortlens.backend.basis.ab_timing import clocked  # it loads torch
        from ortlens.lens.measuring.probes import fewer_threads  # likewise

        with lens_guard(self._recorder, "trying fewer threads"):
            inputs, options = inputs_from_session(self.session), self._choice.made_options()
            with replaced(options, "intra_op_num_threads", usable_cores()):
                other = new_session(self._source, self._choice, options)
            as_is, fewer = (clocked(runner_of(session, inputs, feed)) for session in (self.session, other))
            self._recorder.replace_findings((known.rule,), fewer_threads(as_is, fewer, known.record(), _TRIAL_NS))

    def _wanted(self, session: onnxruntime.InferenceSession) -> list[str]:
        """List the providers that were asked for, by name or by their devices, in order."""
        return [name for name, _ in self._choice.providers] or session.get_providers()

    def _second_session(self, watched: Watched) -> onnxruntime.InferenceSession:
        options = self._choice.made_options()
        with watched(options):
            return new_session(self._source, self._choice, options)

    def verify(self, reference: Any, *args: Any, atol: Any = None, rtol: Any = None, **kwargs: Any) -> pd.DataFrame:
        """Compare the model with what it was made from: a PyTorch module, an exported program, or another ONNX model.

        A module or function is called with the model's inputs as tensors, by place and in the model's order, without gradients: twice,
        more often if it draws random numbers, and once in double precision, if it runs so, to tell rounding from faults. What differs
        between two calls has no verdict. Random generators, weights and buffers are put back.

        With an ONNX model, a program, or a module that PyTorch can trace as one graph, every value that both have is compared as well.
        Values are paired by name, by structure and by content. Both run without rewrites, and each part of the model once more on the
        reference's values, which tells what it adds itself from what it inherits. The parts that lose most are tried as they are in the
        reference. Where the model is quantised, or in narrower floats than the reference, differences have no verdict but an SQNR.
        Nothing is recorded as a call.

        Args:
            reference: The module or function, in evaluation mode; the `torch.export.ExportedProgram`; or the path, bytes or
                `onnx.ModelProto` of an ONNX model with the same inputs and outputs.
            *args: Inputs in order; without any, those of the latest call. Several mappings of inputs by name are a call each: the row of
                a value is then that of the worst.
            atol: As for `Lens.verify`.
            rtol: Likewise.
            **kwargs: Inputs of the model by name.

        Returns:
            The frame `numerics`, one row of scope `call` per output of the model, and per tensor of a sequence; unless the reference is
            a function, or a module that is no single graph, also one of scope `value` per value that both have. What differs is a
            finding, too.

        Raises:
            UsageError: `reference` is none of these, raises, or has other inputs or outputs than the model.
            SessionError: ONNX Runtime cannot run one of the models.
        """
        from ortlens.lens.onnx_model import against_torch
        from ortlens.lens.onnx_model.two_models import findings
        from ortlens.lens.verify.compare_values import Tolerances

        session, tolerances, other = self._session_to("verify"), Tolerances(atol, rtol), findings.reference_source(reference)
        made: dict[str, ModelSource | None] = {}  # of a module, by the sizes that it was traced for

        def compare(feed: Feed) -> None:
            if other is not None:
                outputs = run(session, self._signature, feed, self._source.name)
                findings.verify(self._source, other, outputs, feed, self._recorder, tolerances)
                return
            steady = against_torch.verify(session, reference, self._signature, feed, self._recorder, tolerances)
            if steady is None:
                return
            # The outputs are judged: a model whose nodes are not known, or with sequences, is not compared further.
            with lens_guard(self._recorder, "comparing values"), contextlib.suppress(OrtLensError):
                if (sizes := described(self._signature, feed)) not in made:
                    made[sizes] = findings.traced_source(reference, steady[0])
                if (traced := made[sizes]) is not None:
                    judged = self._recorder.records(r.Numeric)
                    findings.verify(self._source, traced, steady[1], feed, self._recorder, tolerances, judged)

        feeds = feeds_from(self._signature, args, kwargs) or [self._feed((), {})]
        self._recorder.keep_worst([partial(compare, feed) for feed in feeds])
        self._facts["onnx_reference"] = "PyTorch" if other is None else other.name
        return self.numerics

    def _session_to(self, study: str) -> onnxruntime.InferenceSession:
        if self.session is None:
            raise UsageError(f"a dry run makes no session; call explain() without dry_run=True to {study} the model")
        return self.session

    def captured(self) -> r.Capture:
        """Take a snapshot of everything recorded so far.

        Returns:
            The capture; recording goes on.
        """
        self._take_sizes(self._memory.first if self._memory is not None else {})
        if self._facts["onnx_model"] != "session":  # one that is watched may serve, on a device with room for one
            self._messages.note([self._request()])
        return self._recorder.captured()

    def _request(self) -> _ort.SessionRequest | None:
        if self.session is None or self._source.loadable is None:
            return None
        providers = self._choice.providers or _ort.requested_of(self.session)
        return _ort.SessionRequest(graph_records.MODEL, providers, self._choice.options, self._written)

    def _written(self, folder: Path) -> tuple[str, list[str]]:
        """Return the path of the model, written into a folder if it came as bytes, and that no rewrite is disabled."""
        path = self._source.path or folder / "model.onnx"
        if self._source.path is None:
            path.write_bytes(self._source.data or b"")
        return str(path), []

    def note_watching(self, start: Callable[[SessionMemory], Callable[[], object]]) -> None:
        """Start to record the calls of the session, with the memory of the process over them, until what `start` returns is called."""
        memory = self._memory = WATCHED[self.session] = self._recorder.memories[SESSION]
        memory.model = self._source.loadable or object()
        self._stop = weakref.finalize(self, start(memory))

    def close(self) -> None:
        """Stop recording the calls of a watched session, which is as it was before. What was recorded stays."""
        if self._stop is not None:
            self._stop()

    def __enter__(self) -> Self:
        """Watch until the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop recording."""
        self.close()


def _timed(call: Callable[[], Any], taken: list[int]) -> Callable[[], None]:
    """Append the time of each call to a list."""

    def run() -> None:
        started = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - started)

    return run


def _with_provenance(structure: onnx.ModelProto | None, optimized: onnx.ModelProto | None) -> tuple[onnx.ModelProto | None, list[str]]:
    """Copy a model with each node as its own origin, and list their names; nodes that the optimised model left nameless get theirs."""
    if structure is None:
        return None, []
    made = copy.deepcopy(structure)
    nodes = list(iter_nodes(made.graph))
    for node in nodes:
        del node.metadata_props[:]
        node.metadata_props.add(key=FX_NODE_KEY, value=node.name)
    makers = {value: node for node in nodes for value in node.output if value}
    for node in iter_nodes(optimized.graph) if optimized is not None else ():
        maker = next((makers[value] for value in node.output if value in makers), None)
        if not node.name and maker is not None and maker.op_type == node.op_type:
            node.name = maker.name
    return made, [node.name for node in nodes]
