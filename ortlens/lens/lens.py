"""The Lens: a backend that wraps a backend and records what happens, and the two ways of making one."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens import _versions
from ortlens.backend import _torch
from ortlens.backend.compiler import OrtBackend, count_ops, ortlens_backend, torch_compile_backend
from ortlens.errors import UsageError
from ortlens.lens.dynamo import DynamoWatch
from ortlens.lens.explain_output import ExplainOutput, reason_from_break
from ortlens.trace import records as r
from ortlens.trace.recorder import CURRENT, Recorder
from ortlens.views.capture_view import CaptureView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ortlens.backend.options import OrtBackendOptions

_OWN_NAMES = ("ortlens", "onnxrt")
_STABLE_NS = 1_000_000_000  # explain() calls for about a second
_STABLE_CALLS = 100


class Lens(CaptureView):
    """A `torch.compile` backend that wraps another one and records what happens.

    Pass it as `backend=`: `torch.compile(model, backend=Lens())`. It may serve several `torch.compile` calls.

    Example:
        >>> import torch, ortlens
        >>> lens = ortlens.Lens("eager")
        >>> fast = torch.compile(torch.sin, backend=lens)
        >>> _ = fast(torch.ones(2))
        >>> len(lens.graphs)
        1
    """

    def __init__(
        self,
        backend: str | Callable[..., Any] = "ortlens",
        *,
        options: OrtBackendOptions | Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        """Wrap a backend.

        Args:
            backend: `"ortlens"` (also `"onnxrt"`), the name of any registered backend, or a backend. With one other than
                ours, graphs, breaks, recompiles and runs are recorded; partitions and below stay empty.
            options: Options of our backend.
            name: Name of the capture.

        Raises:
            UsageError: An option is unknown or wrong, or options are given for a backend that is not ours.
            UnsupportedVersionError: torch, onnxruntime, onnx or onnxscript is outside the supported range.
        """
        self.name = name or ""
        self._recorder = Recorder()
        self._modules: list[torch.fx.GraphModule] = []
        self._backend_name, self._backend, self._own = _resolve(backend, options)
        self._watch = DynamoWatch(self._recorder, self._claims)

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        """Compile a Dynamo graph with the wrapped backend; called by `torch.compile`.

        Args:
            graph_module: As Dynamo hands it over.
            example_inputs: Its inputs.
            **kwargs: What else `torch.compile` passes on, such as `options`.

        Returns:
            A callable of the same inputs.
        """
        self._modules.append(graph_module)
        token = CURRENT.set(self._recorder)
        try:
            with self._watch.backend_at_work() as compile_id:
                compiled: Callable[..., Any] = self._backend(graph_module, example_inputs, **kwargs)
                return compiled if self._own else self._observed(graph_module, compiled, compile_id, example_inputs)
        finally:
            CURRENT.reset(token)

    def _claims(self, backend: object) -> bool:
        return backend is self

    def _observed(
        self, module: torch.fx.GraphModule, compiled: Callable[..., Any], compile_id: str | None, inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Record a graph of a foreign backend, and time its calls."""
        graph_id = self._recorder.next_id("g")
        training = torch.is_grad_enabled() and any(isinstance(i, torch.Tensor) and i.requires_grad for i in inputs)
        sizes = [size for i in inputs if isinstance(i, torch.Tensor) for size in i.shape]
        self._recorder.add(
            r.Graph(
                graph_id=graph_id,
                compile_id=compile_id,
                phase="forward" if training else "inference",
                op_count=count_ops(module),
                dynamic_shapes=any(_torch.is_symbolic(value) for value in (*inputs, *sizes)),
            )
        )
        return _timed(compiled, self._recorder.run_log(None, graph_id).record)

    def captured(self) -> r.Capture:
        """Take a snapshot of everything recorded so far.

        Returns:
            The capture; recording goes on.
        """
        return self._recorder.capture(name=self.name, backend=self._backend_name, environment=_environment())

    def output(self) -> ExplainOutput:
        """What `torch._dynamo.explain` would return, with recompiles told apart from breaks.

        Returns:
            Counts, graphs and distinct break reasons; prints like PyTorch's.
        """
        breaks = self._recorder.records(r.Break)
        return ExplainOutput(
            graphs=tuple(self._modules),
            graph_count=len(self._modules),
            graph_break_count=sum(record.occurrences for record in breaks),
            recompile_count=len(self._recorder.records(r.Recompile)),
            break_reasons=tuple(reason_from_break(record) for record in breaks),
            op_count=sum(count_ops(module) for module in self._modules),
        )


class _CaptureLens(Lens):
    """The lens of `capture()`: claims every compilation by our backend that happens while it is current."""

    def _claims(self, backend: object) -> bool:
        ours = backend in (ortlens_backend, torch_compile_backend) or isinstance(backend, OrtBackend)
        return ours and CURRENT.get() is self._recorder

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Make this lens the one that our backend tells."""
        self._recorder.on_graph = self._entered
        token = CURRENT.set(self._recorder)
        try:
            yield
        finally:
            CURRENT.reset(token)

    @contextlib.contextmanager
    def _entered(self, module: Any) -> Iterator[None]:
        self._modules.append(module)
        with self._watch.backend_at_work():
            yield


@contextlib.contextmanager
def capture(*, name: str | None = None) -> Iterator[Lens]:
    """Record every graph that the ONNX Runtime backend compiles inside the `with` block.

    Calls of these graphs are recorded for as long as the lens lives, also after the block.

    Args:
        name: Name of the capture.

    Yields:
        The lens.
    """
    lens = _CaptureLens(name=name)
    with lens.watching():
        yield lens


def explain(  # noqa: PLR0913 - the contract's own signature
    target: Callable[..., Any],
    *,
    backend: str | Callable[..., Any] = "ortlens",
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    calls: int | None = None,
    name: str | None = None,
) -> Callable[..., Lens]:
    """Compile a function or module, call it, and return the lens over it. Curried like `torch._dynamo.explain`.

    Other compilations of the same function are left alone. Gradients are as the caller has them: under `torch.no_grad()`
    the inference graph is compiled, otherwise the forward graph of a training step.

    Args:
        target: A function or `nn.Module`.
        backend: As for `Lens`.
        options: As for `Lens`.
        dynamic: As for `torch.compile`.
        calls: How often to call, the first call included; by default until the figures are stable, at most about a second.
            Say 1 for targets with side effects.
        name: Name of the capture; by default the target's.

    Returns:
        A callable of the target's arguments that returns the `Lens`.

    Raises:
        UsageError: `calls` is not a positive number, or the target cannot be called.

    Example:
        >>> import torch, ortlens
        >>> lens = ortlens.explain(torch.nn.Linear(4, 2), calls=1)(torch.ones(3, 4))
        >>> float(lens.graphs.coverage.iloc[0])
        1.0
    """
    if not callable(target):
        raise UsageError(f"explain() takes a function or a module, not {type(target).__name__}")
    if calls is not None and (not isinstance(calls, int) or calls < 1):
        raise UsageError(f"calls must be a whole number from 1, not {calls!r}")

    def run(*args: Any, **kwargs: Any) -> Lens:
        lens = Lens(backend, options=options, name=name or _name_of(target))
        apart: dict[str, Any] = {"isolate_recompiles": True} if _torch.supports_isolated_recompiles() else {}
        fast = torch.compile(target, backend=lens, dynamic=dynamic, **apart)
        _call_until_stable(lambda: fast(*args, **kwargs), calls)
        return lens

    return run


def _call_until_stable(call: Callable[[], object], calls: int | None) -> None:
    call()
    deadline = time.perf_counter_ns() + _STABLE_NS
    for _ in range((calls or _STABLE_CALLS) - 1):
        if calls is None and time.perf_counter_ns() > deadline:
            return
        call()


def _resolve(backend: str | Callable[..., Any], options: Any) -> tuple[str, Callable[..., Any], bool]:
    """Name, callable, and whether it is ours."""
    if (isinstance(backend, str) and backend in _OWN_NAMES) or backend in (ortlens_backend, torch_compile_backend):
        return "ortlens", _Own(OrtBackend.get_cached_instance_for_options(options)), True
    if isinstance(backend, OrtBackend):
        return "ortlens", _Own(backend), True
    if options is not None:
        raise UsageError(f"options are for the ortlens backend; {backend!r} takes none through a Lens")
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    try:
        return name, _torch.lookup_backend(backend), False
    except Exception as error:
        raise UsageError(f"unknown backend {backend!r}: {error}") from error


class _Own:
    """Our backend, taking options that `torch.compile(options=)` passes on."""

    def __init__(self, backend: OrtBackend) -> None:
        self._backend = backend

    def __call__(self, module: Any, inputs: Sequence[Any], *, options: Any = None, **_: Any) -> Callable[..., Any]:
        backend = self._backend if options is None else OrtBackend.get_cached_instance_for_options(options)
        return backend(module, inputs)


def _timed(compiled: Callable[..., Any], record: Callable[[int, int, int, int, int], None]) -> Callable[..., Any]:
    clock, thread = time.perf_counter_ns, threading.get_ident

    def call(*args: Any) -> Any:
        started = clock()
        result = compiled(*args)
        done = clock()
        record(started, started, done, done, thread())
        return result

    return call


def _name_of(target: Any) -> str:
    return getattr(target, "__name__", None) or type(target).__name__


def _environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": str(os.cpu_count() or 0),
        "torch_threads": str(torch.get_num_threads()),
        **{f"version_{package}": version for package, version in _versions.installed().items()},
    }
