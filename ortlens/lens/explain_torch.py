"""What `explain` does with a target of PyTorch: compile it, call it, measure; in a dry run, analyse it on fake tensors.

Of `model.generate`, the model is compiled in place while the call lasts, and each of its calls is clocked. `generate` itself stays Python:
compiled, its loop breaks the graph several times a token, in lines that no user can change.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import time
import traceback
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from ortlens import _torch
from ortlens.analysis.ledger import StepReading
from ortlens.analysis.timing import graph_times
from ortlens.backend.basis.ab_timing import no_wait, waiting_for
from ortlens.backend.basis.provenance import StackFrame, innermost
from ortlens.backend.freeze.frozen import Frozen
from ortlens.backend.observed import graphs_of, in_all, provider_of
from ortlens.errors import UsageError
from ortlens.lens.measuring.ledger_pass import MAX_CALLS
from ortlens.lens.measuring.measurement import Calls
from ortlens.lens.measuring.tried_changes import Trials
from ortlens.lens.observing.compilations import runs_uncompiled
from ortlens.lens.profiling.forecast import record_partitions
from ortlens.lens.stand_ins import fake, fake_weights
from ortlens.lens.verify.call_state import CallState, Reachable
from ortlens.lens.verify.checked_partitions import keep_call
from ortlens.trace import records as r
from ortlens.trace.guard import lens_guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.export import ExportedProgram

    from ortlens.lens.lens import Lens


_STABLE_NS = 1_000_000_000  # explain() calls for about a second


class Wanted(NamedTuple):
    """How a target is explained; the names are those of `explain`."""

    dynamic: bool | None = None
    calls: int | None = None
    device: torch.device | None = None
    keep_values: bool = False


def explain_under(
    lens: Lens, target: Callable[..., Any] | ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: Wanted
) -> None:
    """Explain with a lens that has recorded nothing yet; what it recorded stays if the target raises."""
    recorder, targets = lens.compilations.recorder, lens.compilations.targets
    targets.example = args, dict(kwargs)
    state = CallState(target, args, kwargs, parameters=False) if wanted.keep_values else None
    with lens_guard(recorder, "letting Dynamo trace again what it gave up on"):
        _torch.trace_again(target)
    compiler = partial(_torch.compiled_apart, dynamic=wanted.dynamic)
    plain, fast = target, None
    if is_generate(target):
        generating = Generating(target, partial(compiler, backend=lens))
        plain, fast, targets.steps = generating.uncompiled, generating.compiled, generating.readings
        targets.add(target, fast, parts=generating.parts)
    fast = fast or _compiled(target, lens, compiler)
    if targets.dry_run:
        lens.result = _try_with_fakes(lens, target, fast, args, kwargs, wanted.device)
        record_partitions(recorder)
    else:
        again = partial(compiler, backend=lens.apart)
        with _torch.unlogged_reports():
            source = plain.source if isinstance(plain, Frozen) else plain
            uncompiled = (lambda: source(*args, **kwargs)) if runs_uncompiled(source) else None
            lens.result = _called(lens, target, lambda: fast(*args, **kwargs), uncompiled, wanted.calls, again)
            if state is not None and targets.callables:
                with lens_guard(recorder, "keeping values"):
                    keep_call(recorder, targets, state)
    if not targets.callables and not recorder.records(r.Break):
        targets.note_empty(target, args, kwargs, varies_whole=bool(wanted.dynamic))


def _compiled(target: Callable[..., Any] | ExportedProgram, lens: Lens, compiler: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    if isinstance(target, torch.export.ExportedProgram):
        return lens.compile_exported(target)
    if isinstance(target, Frozen):
        return lens.compile_frozen(target)
    if _torch.compiled_ahead(target) is not None:
        return lens.compile_ahead(target)
    return compiler(target, backend=lens)


def _called(  # noqa: PLR0913, PLR0917 - a target, and the ways to call it
    lens: Lens,
    target: Any,
    call: Callable[[], Any],
    uncompiled: Callable[[], Any] | None,
    calls: int | None,
    again: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Any:
    """Call once to compile, then for stable figures with a clock around every graph; return the result of the last call.

    `again` compiles the target beside, for what is tried.
    """
    recorder, trials, changed = lens.compilations.recorder, None, 0
    fast, plain = Calls(call), None if uncompiled is None else Calls(uncompiled)
    try:
        result = _compiling_call(fast, plain)
        if recorder.count(r.Break):
            trials = _try_changes(lens, target)
        if calls is None:
            result = lens.measured(fast, made=1, max_calls=MAX_CALLS - 1, budget_ns=_STABLE_NS, uncompiled=plain)
        elif calls > 1:  # whoever counts the calls may have reasons to
            result = lens.measured(fast, made=1, max_calls=calls - 1, budget_ns=None)
        with lens_guard(recorder, "counting what a call enters"):
            if not any(graph.entries_per_call for graph in recorder.records(r.Graph)):  # the measured calls do not tell: as a mean over all
                for graph_id, time in graph_times(recorder.capture()).items():
                    recorder.amend(r.Graph, graph_id, entries_per_call=time.calls / fast.made or None)
        if trials is not None and calls is None:
            with lens_guard(recorder, "timing what would avoid graph breaks"):
                changed = trials.time(fast, again, graphs_of(recorder))
        return result
    finally:
        uncompiled_calls = plain.made if plain is not None else 0
        recorder.note(explain_calls=fast.made + changed, explain_uncompiled_calls=uncompiled_calls)


def _compiling_call(fast: Calls, plain: Calls | None) -> Any:
    """Call for the first time; what the target itself refuses is its own error, which names the sizes, and not Dynamo's."""
    try:
        return fast()
    except Exception as error:
        if plain is None or not _torch.is_signal(error):
            raise
        refused = error
    with _torch.uncompiled():
        plain()
    raise refused


def _try_changes(lens: Lens, target: Any) -> Trials | None:
    """Try what would avoid the graph breaks, without a call; those of `generate` are of its model, and a frozen callable has none."""
    recorder, example = lens.compilations.recorder, lens.compilations.targets.example
    if example is None or is_generate(target):
        return None
    trials = None
    with lens_guard(recorder, "trying what would avoid graph breaks"):
        args, kwargs = example
        while isinstance(target, partial):
            target, args, kwargs = target.func, (*target.args, *args), {**target.keywords, **kwargs}
        trials = Trials(recorder=recorder, target=target, args=args, kwargs=kwargs, backend=lens.planned)
        trials.run()
    return trials


def name_of(target: Any) -> str:
    """Return the name of a target, or of its class."""
    return getattr(target, "__name__", None) or _torch.name_compiled_ahead(target) or type(target).__name__


def _try_with_fakes(  # noqa: PLR0913, PLR0917 - a call, and where it is planned to be
    lens: Lens,
    target: Any,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: torch.device | None,
) -> Any:
    """Call a compiled target on fake tensors, on a device if one is given; None, and a finding, where it needs the values of one."""
    modules = Reachable([("", target)]).modules
    weights = [tensor for module in modules for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))]
    mode = _torch.fake_mode_of(weights)
    tensors = [*weights, *_torch.tensors_of((args, dict(kwargs)))]
    with _planned_for([device] if device else [tensor.device for tensor in tensors], lens, tensors):
        fake_args, fake_kwargs = _torch.map_tensors(lambda tensor: fake(tensor, mode, device), (args, kwargs))
        try:
            with fake_weights(modules, mode, device), mode:
                return call(*fake_args, **fake_kwargs)
        except Exception as error:
            if not _torch.needs_data(error):
                raise
            lens.compilations.recorder.add(_ended(error))
    return None


def _ended(error: Exception) -> r.Finding:
    at = innermost([StackFrame(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)])
    return r.Finding(
        rule="dry_run_ended",
        severity="info",
        title="the dry run ended where the model asks a tensor for its values",
        evidence=f"{type(error).__name__}: {error}"[:2000],
        hazard="Graphs after this point are not in the capture.",
        mitigation="Explain it without a dry run, or move the decision into the graph (torch.where).",
        file=at and at.file,
        line=at and at.line,
    )


@contextlib.contextmanager
def _planned_for(places: Iterable[torch.device], lens: Lens, tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Note the providers of devices beside the CPU; without a GPU, let CUDA be traced nevertheless, and note what the plan lacks."""
    kinds = {place.type: provider_of(place) for place in places if place.type != "cpu"}
    recorder = lens.compilations.recorder
    recorder.note(planned_for=tuple(sorted(filter(None, kinds.values()))))
    if "cuda" not in kinds or torch.cuda.is_available():
        yield
        return
    loses_gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    with _torch.tracing_cuda() as is_possible, torch.no_grad():  # autograd asks the GPU for its streams
        if not is_possible:
            raise UsageError(
                f"torch {torch.__version__} cannot trace CUDA tensors without a GPU here: on Windows, only builds of torch with CUDA can"
            )
        try:
            yield
        finally:
            graphs = [
                each.graph for module in lens.compilations.modules for each in module.modules() if isinstance(each, torch.fx.GraphModule)
            ]
            # PyTorch computes it by an operator of the device's, or writes it out.
            attention = torch.nn.functional.scaled_dot_product_attention
            attends = any(graph.find_nodes(op="call_function", target=attention) for graph in graphs)
            recorder.note(planned_without=(*(("gradients",) if loses_gradients else ()), *(("attention",) if attends else ())))


_TOKENS = ("decoder_input_ids", "decoder_inputs_embeds", "input_ids", "inputs_embeds")
"""Arguments of the models of transformers that hold the positions to compute; of other models it is the first tensor."""


class Generating:
    """A `generate` method, called with its model compiled or not."""

    def __init__(self, generate: Callable[..., Any], compiler: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Compile the parts of a method for which `is_generate` holds, which happens at their first call."""
        self._generate = generate
        self.readings: list[StepReading] = []  # the calls of the model since this list was cleared, in order
        modules = _modules(generate.__self__)  # type: ignore[attr-defined]  # it is a method
        self.parts = tuple(module.forward for module in modules)  # of the model, and of an encoder that `generate` calls by itself
        apart: tuple[Literal["encode"] | None, ...] = (None, "encode")  # the first is the model
        self._plain, self._fast = (
            list(zip(modules, map(self._clocked, forwards, apart), strict=False)) for forwards in (self.parts, map(compiler, self.parts))
        )

    def compiled(self, *args: Any, **kwargs: Any) -> Any:
        """Call `generate` with the model compiled."""
        with in_all(itertools.starmap(_torch.forward_as, self._fast)):
            return self._generate(*args, **kwargs)

    def uncompiled(self, *args: Any, **kwargs: Any) -> Any:
        """Call `generate` with the model as it is."""
        with in_all(itertools.starmap(_torch.forward_as, self._plain)):
            return self._generate(*args, **kwargs)

    def _clocked(self, forward: Callable[..., Any], apart: Literal["encode"] | None) -> Callable[..., Any]:
        clock, note, wait = time.perf_counter_ns, self.readings.append, waiting_for(self._generate.__self__)  # type: ignore[attr-defined]  # as above

        @functools.wraps(forward)  # generate reads the signature
        def through(*args: Any, **kwargs: Any) -> Any:
            wait()
            started = clock()
            result = forward(*args, **kwargs)
            returned = clock()
            wait()
            ended = returned if wait is no_wait else clock()
            given = (*map(kwargs.get, _TOKENS), *args, *kwargs.values())
            note(StepReading(apart, started, ended, *_rows_and_positions(_values(result) if apart else given), ended - returned))
            return result

        return through


def is_generate(target: object) -> bool:
    """Tell whether a target is `model.generate`, the method of a module that calls the module once per token."""
    return inspect.ismethod(target) and isinstance(target.__self__, torch.nn.Module) and target.__name__ == "generate"


def _modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """List the model, and the encoder that `generate` of transformers calls before it."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return [model]
    encoder = getattr(model, "get_encoder", lambda: None)()
    return [model, encoder] if isinstance(encoder, torch.nn.Module) and encoder is not model else [model]


def _values(result: object) -> Iterable[Any]:
    """Return what an encoder returns, its states first: an input may be a spectrum, whose rows are no positions."""
    return result.values() if isinstance(result, Mapping) else result if isinstance(result, tuple) else (result,)


def _rows_and_positions(values: Iterable[Any]) -> tuple[int, int]:
    shapes = (value.shape for value in values if isinstance(value, torch.Tensor) and value.dim() > 1)
    return next(((shape[0], shape[1]) for shape in shapes), (1, 1))
