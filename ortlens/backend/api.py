"""The backend itself: what `torch.compile` calls, and the names of the removed backend."""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import os
import pathlib
import threading
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from ortlens._versions import check_supported
from ortlens.backend.custom import registered_ops
from ortlens.backend.options import OrtBackendOptions
from ortlens.errors import ConversionError, OrtLensError
from ortlens.progress import progress
from ortlens.trace.recorder import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx
    import torch.fx

    from ortlens.backend.cache.store import ModelCache
    from ortlens.backend.cache.whole_graph import CachedGraph
    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.runtime.session_info import SessionInfo
    from ortlens.trace.recorder import Recorder
    from ortlens.trace.records import Phase

_MAX_INSTANCES = 8
_MANY_OPERATIONS = 1000  # from here on, AOTAutograd takes more than a second

_dump_numbers: dict[str, int] = collections.defaultdict(int)
_dump_lock = threading.Lock()


class OrtBackend:
    """A `torch.compile` backend over ONNX Runtime.

    Attributes:
        options: What the user chose.
    """

    _instances: ClassVar[list[OrtBackend]] = []
    _instances_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, options: OrtBackendOptions | Mapping[str, Any] | None = None) -> None:
        """Make a backend.

        Args:
            options: Options, a mapping of option names to values, or None.

        Raises:
            UsageError: An option is unknown or has a value that cannot be used.
            UnsupportedVersionError: torch, onnxruntime, onnx or onnxscript is outside the supported range.
            OptionalDependencyError: One of them is missing.
        """
        check_supported("torch", "onnxruntime", "onnx", "onnxscript")
        self.options = OrtBackendOptions.from_any(options)
        self._graphs: weakref.WeakSet[CompiledGraph | CachedGraph] = weakref.WeakSet()
        self._custom: dict[Any, Callable[..., Any]] = {}
        self._tables: tuple[Any, dict[Any, Callable[..., Any]]] | None = None

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, dry_run: bool = False) -> Callable[..., Any]:
        """Compile a Dynamo graph.

        Args:
            graph_module: As Dynamo hands it over.
            example_inputs: Its inputs.
            dry_run: Plan and convert only; calls with fake tensors give fake tensors.

        Returns:
            A callable of the same inputs.
        """
        from ortlens import _torch
        from ortlens.backend.gc_paused import gc_paused
        from ortlens.backend.lowering.entry import Entry, left_alone, needs_gradient

        if not self.options.use_aot_autograd and needs_gradient(example_inputs):
            return left_alone(graph_module)
        whole = None if dry_run or needs_gradient(example_inputs) else self._whole_key(graph_module, example_inputs)
        if whole is not None and CURRENT.get() is None and (ready := self._of_earlier_process(whole, graph_module, example_inputs)):
            return ready
        decompositions = self.tables()[1]  # first, so that building the tables is not taken for AOTAutograd's work
        entry = Entry(backend=self, recorder=CURRENT.get(), module=graph_module, whole=whole, dry_run=dry_run)
        backend = _torch.aot_backend(
            forward=entry.compiler_for("forward"),
            backward=entry.compiler_for("backward"),
            inference=entry.compiler_for("inference"),
            decompositions=decompositions,
        )
        many = entry.op_count > _MANY_OPERATIONS
        with entry.recorded(), progress(f"lowering {entry.op_count:,} operations", 0, "", at_once=many):
            compiled: Callable[..., Any] = gc_paused(backend, graph_module, example_inputs)
        return entry.direct or compiled

    def tables(self) -> tuple[Any, dict[Any, Callable[..., Any]]]:
        """The registry of ONNX functions and the decompositions that lead to it; made anew when `register_op` adds to them."""
        from ortlens.backend.conversion.functions import own_functions
        from ortlens.backend.conversion.shape_functions import shape_functions

        custom = {**shape_functions(), **own_functions(), **registered_ops(), **(self.options.custom_translation_table or {})}
        if self._tables is None or self._custom != custom:
            from ortlens import _torch
            from ortlens.backend.lowering import decompositions

            registry = _torch.registry_with(custom)
            table = _torch.decomposition_table(registry, decompositions.always_decompose() - custom.keys())  # the user's word goes
            own = {target: function for target, function in decompositions.own().items() if target not in custom}
            self._custom, self._tables = custom, (registry, {**table, **own})
        return self._tables

    def _whole_key(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str | None:
        """The name of a graph in the cache, if there is a cache."""
        if self._cache() is None:
            return None
        from ortlens.backend.cache import whole_graph

        return whole_graph.key_for(graph_module, example_inputs, self.options)

    def _of_earlier_process(self, key: str, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CachedGraph | None:
        """A graph that needs no AOTAutograd; under a lens there is none, since the nodes that a lens shows are AOTAutograd's."""
        from ortlens import _torch
        from ortlens.backend.cache import whole_graph
        from ortlens.backend.gc_paused import gc_paused

        cache = self._cache()
        if cache is None:
            return None
        with _torch.real_tensors():
            found: CachedGraph | None = gc_paused(
                whole_graph.load,
                cache,
                key,
                module=graph_module,
                inputs=example_inputs,
                options=self.options,
                transforms=lambda model: _transformed(model, self.options),
            )
        if found:
            self._graphs.add(found)
        return found

    def _keep(self, key: str, compiled: CompiledGraph) -> None:
        from ortlens.backend.cache import whole_graph

        cache = self._cache()
        if cache:
            with contextlib.suppress(OSError):  # said already, when its model could not be kept
                whole_graph.keep(cache, key, compiled)

    def _cache(self) -> ModelCache | None:
        """The folder of converted models; none for conversion functions of the user's, whose names say nothing of what they do."""
        from ortlens.backend.cache.store import ModelCache

        folder = self.options.cache_dir
        return None if folder is None or self.custom_targets() else ModelCache(folder)

    def custom_targets(self) -> frozenset[Any]:
        """Operators that the user gave functions for, here or for the whole process."""
        return frozenset({**registered_ops(), **(self.options.custom_translation_table or {})})

    def compile_graph(  # noqa: PLR0913 - what is known of a graph, each by name
        self,
        module: torch.fx.GraphModule,
        *,
        phase: Phase,
        static_inputs: frozenset[int],
        recorder: Recorder | None,
        compile_id: str | None,
        op_count: int,
        aot_ns: int,
        input_names: Sequence[str] = (),
        output_names: Sequence[str] = (),
        dry_run: bool = False,
        whole: str | None = None,
    ) -> Callable[[list[Any]], list[Any]]:
        """Compile one ATen graph.

        Args:
            module: Functional, its nodes with `meta["val"]`.
            phase: `inference`, `forward` or `backward`.
            static_inputs: Positions of parameters and buffers among its inputs.
            recorder: Where records go, if anywhere.
            compile_id: Dynamo's id, if it came from Dynamo.
            op_count: Operations before decomposition.
            aot_ns: Time that decomposing took, in ns.
            input_names: What to call its inputs outside; none: as its nodes are called.
            output_names: What to call its outputs outside; none: numbered.
            dry_run: Plan and convert only.
            whole: Name to keep the graph under in the cache, when its inputs and outputs are those of Dynamo's graph.

        Returns:
            A boxed function: it takes a list, empties it, and returns a list.
        """
        from ortlens.backend import graph
        from ortlens.backend.recording.reporter import GraphReporter
        from ortlens.backend.runtime.providers import reason_against

        reporter = None
        if recorder is not None:
            reporter = GraphReporter(recorder, phase=phase, compile_id=compile_id, op_count=op_count, aot_ns=aot_ns)
        job = graph.Job(
            module=module,
            phase=phase,
            options=self.options,
            registry=self.tables()[0],
            can_run_on=reason_against,
            static_inputs=static_inputs,
            input_names=tuple(input_names),
            output_names=tuple(output_names),
            dry_run=dry_run,
            cache=None if dry_run else self._cache(),
            reporter=reporter,
            prepared=None if whole is None else lambda compiled: self._keep(whole, compiled),
            transforms=lambda model: _transformed(model, self.options),
            dump=lambda model, part: _dump(model, part, self.options),
        )
        compiled = graph.CompiledGraph(job)
        self._graphs.add(compiled)
        if recorder is not None:
            recorder.live.append(compiled)
        return _boxed(lambda args: compiled.run(args))  # noqa: PLW0108 - `run` is another function after the first call

    @property
    def execution_count(self) -> int:
        """How often sessions of this backend ran."""
        return sum(graph.session_calls() for graph in self._graphs)

    @property
    def sessions_by_graph(self) -> dict[torch.fx.GraphModule, list[SessionInfo]]:
        """The sessions of each partition, by the partition's GraphModule."""
        return {runner.part.module: list(runner.sessions) for graph in self._graphs for runner in graph.runners}

    @classmethod
    def get_cached_instance_for_options(cls, options: OrtBackendOptions | Mapping[str, Any] | None = None) -> OrtBackend:
        """The backend for these options; equal options share one.

        Args:
            options: Options, a mapping, or None. Options that hold a `SessionOptions` object equal no others.

        Returns:
            A backend; at most 8 are kept, the oldest goes first.
        """
        wanted = OrtBackendOptions.from_any(options)
        with cls._instances_lock:
            if wanted.ort_session_options is None:
                for instance in cls._instances:
                    if instance.options == wanted:
                        return instance
            made = cls(wanted)
            cls._instances.append(made)
            del cls._instances[:-_MAX_INSTANCES]
            return made

    @classmethod
    def get_cached_instances(cls) -> tuple[OrtBackend, ...]:
        """The backends that are kept, oldest first."""
        with cls._instances_lock:
            return tuple(cls._instances)

    @classmethod
    def clear_cached_instances(cls) -> None:
        """Forget all kept backends; graphs compiled by them go on working."""
        with cls._instances_lock:
            cls._instances.clear()


def _boxed(run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """Mark a function as taking its inputs in a list that it may empty."""
    run._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001 - the mark AOTAutograd looks for
    return run


def _transformed(model: onnx.ModelProto, options: OrtBackendOptions) -> onnx.ModelProto:
    for place, transform in enumerate(options.pre_ort_model_transforms or ()):
        try:
            model = transform(model) or model
        except Exception as error:  # noqa: PERF203 - the message names the one that raised
            name = getattr(transform, "__name__", repr(transform))
            raise ConversionError(f"pre_ort_model_transforms[{place}] ({name}) raised {type(error).__name__}: {error}") from error
    return model


def _dump(model: onnx.ModelProto, part: torch.fx.GraphModule, options: OrtBackendOptions) -> str | None:
    """Write a model and the text of its FX graph; numbers count up per prefix, over the whole process."""
    prefix = str(options.dump_path or os.environ.get("ONNXRT_DUMP_PATH") or "")
    if not prefix:
        return None
    with _dump_lock:
        number = _dump_numbers[prefix]
        _dump_numbers[prefix] += 1
    path = pathlib.Path(f"{prefix}{number}.onnx")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    path.with_suffix(".txt").write_text(f"{part.graph}\n", encoding="utf-8")
    return str(path)


def ortlens_backend(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Any = None, **_: Any
) -> Callable[..., Any]:
    """The backend under its names `ortlens` and `onnxrt`, as registered by entry point.

    Args:
        graph_module: As Dynamo hands it over.
        example_inputs: Its inputs.
        options: What was given as `torch.compile(options=...)`: `OrtBackendOptions` or a mapping.

    Returns:
        A callable of the same inputs.
    """
    return OrtBackend.get_cached_instance_for_options(options)(graph_module, example_inputs)


def torch_compile_backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Any = None) -> Callable[..., Any]:
    """The same under the name that the removed backend's function had.

    Args:
        graph_module: As Dynamo hands it over.
        example_inputs: Its inputs.
        options: `OrtBackendOptions` or a mapping.

    Returns:
        A callable of the same inputs.
    """
    return ortlens_backend(graph_module, example_inputs, options=options)


def is_onnxrt_backend_supported() -> bool:
    """Whether everything that the backend needs is installed, in a supported version.

    Returns:
        True when `torch.compile(backend="onnxrt")` can work.
    """
    try:
        check_supported("torch", "onnxruntime", "onnx", "onnxscript")
    except OrtLensError:
        return False
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "onnxruntime", "onnx", "onnxscript"))
