"""The only file of ortlens that touches private names of torch.

Each entry says why there is no public way and where the thing lives in torch 2.13, so that the next version's
changes are looked for here and nowhere else. Everything is imported on first use: `import ortlens` stays light.

| what | torch 2.13 | why private |
| --- | --- | --- |
| ONNX functions and their dispatcher | `torch/onnx/_internal/exporter/_registration.py`, `_dispatching.py` | no public per-node entry |
| the recorder of ONNX Script calls | `torch/onnx/_internal/exporter/_building.py` | same |
| the type promotion pass | `torch/onnx/_internal/fx/passes/type_promotion.py` | same |
| AOTAutograd for backends | `torch/_dynamo/backends/common.py` | the documented way for custom backends, underscore and all |
| compile ids, static inputs, fake mode | `torch/_guards.py` | Dynamo publishes them nowhere else |
| counts of what could not be traced | `torch/_dynamo/utils.py` | all that torch 2.9 keeps of some breaks |
| the structured trace | `torch/_logging/_internal.py` | the log that tlparse reads |
| times of Dynamo's look-ups | `torch/autograd/profiler_legacy.py` | public, but on its way out; the newer one writes to stderr |
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import logging
import os
import pathlib
import re
import sys
import time
import types
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import CodeType, FrameType

    import onnx_ir as ir
    import torch
    import torch.fx

TRACE_LOGGER = "torch.__trace"  # torch/_logging/_internal.py: trace_log; it never propagates and is always at DEBUG


_STARRED = re.compile(r"L\['([^']+)'\]\[(\d+)\]")

_LOOKUP, _REGION, _CLOCK = "TorchDynamo Cache Lookup", "Torch-Compiled Region: ", "ortlens clock"

_CHATTY = ("torch.onnx", "onnxscript", "onnx_ir")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Mute the exporter, ONNX Script and its optimiser: they warn of what is normal here.

    Absent torchvision, constants that are outputs, empty attribute lists, folding that would divide by zero: none is the
    user's to mend, and what matters comes back as an exception.
    """
    import numpy as np

    levels = {name: logging.getLogger(name).level for name in _CHATTY}
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@functools.cache
def shared_registry() -> Any:
    """The registry of ATen-to-ONNX functions of the installed torch and onnxscript; about 0.5 s, built once.

    Its operator set version must be the model's too: functions of a newer set emit operators an older model cannot hold.

    Returns:
        A `torch.onnx._internal.exporter._registration.ONNXRegistry`.
    """
    from torch.onnx._internal.exporter import _registration

    with quiet():
        return _registration.ONNXRegistry.from_torchlib()


def registry_with(custom: Mapping[Any, Callable[..., Any]] | None) -> Any:
    """The registry, with custom functions in front.

    Args:
        custom: Op overload -> ONNX Script function.

    Returns:
        The shared registry when nothing is custom, else a copy.
    """
    base = shared_registry()
    if not custom:
        return base
    from torch.onnx._internal.exporter import _registration

    registry = _registration.ONNXRegistry()
    registry._opset_version = base.opset_version
    registry.functions = {target: list(metas) for target, metas in base.functions.items()}
    for target, function in custom.items():
        with quiet():  # a function without annotations has no signature to infer, and needs none
            registry.register_op(target, function)
        # Up to torch 2.10 the dispatcher compares signatures and would silently pass over a function that names its
        # parameters in another way; from 2.11 on it takes the first. So the user's is left alone on its list.
        name = target.name() if hasattr(target, "_schema") else target
        registry.functions[name] = [meta for meta in registry.functions[name] if meta.is_custom or meta.is_complex]
    return registry


def decomposition_table(registry: Any, distrusted: frozenset[Any] = frozenset()) -> dict[Any, Callable[..., Any]]:
    """Decompositions of every op that ONNX cannot express directly.

    Args:
        registry: As returned by `registry_with`.
        distrusted: Op overloads to decompose although the registry has functions for them.

    Returns:
        A table for AOTAutograd that stops at the ops the registry has functions for.
    """
    import torch
    from torch.fx.node import has_side_effect
    from torch.onnx._internal.exporter import _decomp

    # `linalg.inv` and others raise for a singular matrix, in a node without outputs. torch 2.9 takes it for dead code and
    # answers with NaN instead; later versions know its effect (`torch/_higher_order_ops/effects.py`).
    has_side_effect(torch.ops.aten._linalg_check_errors.default)
    implemented = set(_decomp.get_onnx_implemented_overloads(registry)) - distrusted
    table = dict(_decomp.create_onnx_friendly_decomposition_table(implemented))
    for overload in (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default):
        # AOTAutograd lifts tensor constants of the graph itself; decomposed, the constant would meet fake tensors raw.
        table.pop(overload, None)
    return table


def dispatch(node: torch.fx.Node, registry: Any) -> Callable[..., Any] | None:
    """The ONNX Script function for a node.

    Args:
        node: A `call_function` node with `meta["val"]`.
        registry: As returned by `registry_with`.

    Returns:
        The function, or None when there is none for this target and these dtypes.
    """
    from torch.onnx._internal.exporter import _dispatching

    function, _ = _dispatching.dispatch(node, registry)
    return function


def is_custom(target: Any, registry: Any) -> bool:
    """Whether the user gave the function that a target is converted with.

    Args:
        target: Target of a node.
        registry: As returned by `registry_with`.

    Returns:
        True for targets of the custom table.
    """
    return any(meta.is_custom for meta in registry.get_decomps(target))


def insert_type_promotion(graph_module: torch.fx.GraphModule, may_promote: Callable[[torch.fx.Node], bool]) -> None:
    """Make PyTorch's implicit type promotion explicit, in place: ONNX operators do not promote.

    Args:
        graph_module: An ATen graph whose placeholders carry fake values.
        may_promote: Whether a node is worth asking about; the others are not run again under fake tensors, which is what
            costs time.
    """
    from torch.onnx._internal.fx.passes import type_promotion

    table = _promotion_table()

    class Interpreter(type_promotion._TypePromotionInterpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            known = node.op == "call_function" and "val" in node.meta
            if known and not (type_promotion.get_type_promotion_rule(node, table) and may_promote(node)):
                return node.meta["val"]
            return super().run_node(node)

    inserting = type_promotion.InsertTypePromotion(graph_module, table)
    inserting.interpreter = Interpreter(graph_module, table)
    with quiet():
        inserting.run()


@functools.cache
def _promotion_table() -> Any:
    from torch.onnx._internal.fx.passes import type_promotion

    return type_promotion.TypePromotionTable()


class NodeRecorder:
    """Runs ONNX Script functions and collects the ONNX nodes they make."""

    def __init__(self, registry: Any) -> None:
        """Prepare for one model.

        Args:
            registry: As returned by `registry_with`; gives the operator set.
        """
        import onnxscript

        self._opset = onnxscript.values.Opset("", registry.opset_version)
        self._constants: dict[Any, Any] = {}

    def symbolic(self, name: str) -> ir.Value:
        """A graph input that ONNX Script functions can compute with.

        Args:
            name: Name of the value.

        Returns:
            A value without type and shape.
        """
        from torch.onnx._internal.exporter import _tensors

        return _tensors.SymbolicTensor(self._opset, name=name)

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, list[ir.Node], dict[Any, Any]]:
        """Run one function.

        Args:
            function: As returned by `dispatch`.
            args: ONNX values and Python constants.
            kwargs: The same by name.

        Returns:
            What the function returned (a value or a sequence), the nodes made, the local functions they call.
        """
        import onnxscript
        from torch.onnx._internal.exporter import _building, _core

        recorder = _building.OpRecorder(self._opset, self._constants)  # type: ignore[abstract]  # onnxscript's stub leaves a body empty
        with onnxscript.evaluator.default_as(recorder):
            _core.current_tracer = recorder
            try:
                outputs = function(*args, **kwargs)
            finally:
                _core.current_tracer = None
        return outputs, recorder.nodes, recorder.functions


def add_opset_imports(model: ir.Model) -> None:
    """Declare the operator sets that the nodes of a model use.

    Args:
        model: Changed in place.
    """
    from torch.onnx._internal.exporter import _ir_passes

    _ir_passes.add_opset_imports(model)


def aot_backend(
    *,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inference: Callable[..., Any],
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """A Dynamo backend that sends graphs through AOTAutograd.

    Args:
        forward: Compiles the forward graph of a training step.
        backward: Compiles its backward graph.
        inference: Compiles a graph that needs no gradient.
        decompositions: As returned by `decomposition_table`.

    Returns:
        A callable of a GraphModule and example inputs.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    backend: Callable[..., Any] = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=dict(decompositions),
        partition_fn=min_cut_rematerialization_partition,
    )
    return lambda module, inputs: backend(module, _of_the_compilation(inputs))


def _of_the_compilation(inputs: Sequence[Any]) -> list[Any]:
    """A Dynamo graph's inputs, fake tensors of other modes made anew in the mode of the running compilation.

    A dry run's tensors are the caller's fakes. AOTAutograd works in a mode that Dynamo makes for it, keeping the sizes'
    symbols (`compile_and_call_fx_graph` in `torch/_dynamo/output_graph.py`). torch 2.9 refuses fakes of another mode
    (`detect_fake_mode` in `torch/_guards.py`); 2.13 takes them, by the same conversion without what Dynamo noted of their
    sizes (`process_inputs` in `torch/_functorch/_aot_autograd/frontend_utils.py`). Converted here, all versions see the same.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    mode = getattr(context, "fake_mode", None)
    if context is None or mode is None:
        return list(inputs)
    return [_fake_again(value, mode, context) if is_fake(value) and not is_fake_of(value, mode) else value for value in inputs]


def _fake_again(value: torch.Tensor, mode: Any, context: Any) -> Any:
    """A fake tensor's twin in another mode, its dynamic sizes the symbols that Dynamo gave them."""
    noted = context.tensor_to_context.get(value)
    source = getattr(noted, "tensor_source", None)
    return mode.from_tensor(value, symbolic_context=noted, source=source, trace=noted is None)


def static_input_indices() -> frozenset[int]:
    """Which inputs of the AOT graph being compiled are parameters and buffers.

    Returns:
        Positions; empty outside a compilation.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    return frozenset(getattr(metadata, "static_input_indices", None) or ())


def mutated_input_indices() -> tuple[int, ...]:
    """Which inputs of the AOT graph being compiled the program writes to; their new values are the graph's first outputs.

    Returns:
        Positions, in the order of these outputs; empty outside a compilation.
    """
    from torch._guards import TracingContext

    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    return tuple(getattr(metadata, "mutated_inp_runtime_indices", None) or ())


def current_compile_id() -> str | None:
    """Dynamo's id of the running compilation.

    Returns:
        Text such as `0/1`, or None outside a compilation.
    """
    from torch._guards import CompileContext

    compile_id = CompileContext.current_compile_id()
    return None if compile_id is None else str(compile_id)


def lookup_backend(backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """Find a Dynamo backend by name.

    Args:
        backend: A registered name, or a backend, which is returned as it is.

    Returns:
        The backend.

    Raises:
        InvalidBackend: The name is not registered (`torch._dynamo.exc`).
    """
    from torch._dynamo.backends.registry import lookup_backend as lookup

    found: Callable[..., Any] = lookup(backend)
    return found


def is_symbolic(value: object) -> bool:
    """Whether a value is a symbolic number.

    Args:
        value: Anything, as found in `meta["val"]`.

    Returns:
        True for SymInt, SymFloat and SymBool.
    """
    import torch

    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def symbols_of(value: object) -> frozenset[str]:
    """Names of the symbols in a size.

    Args:
        value: An int or a SymInt.

    Returns:
        Names such as `s0` (backed by an input's size) and `u0` (data-dependent).
    """
    node = getattr(value, "node", None)
    expr = getattr(node, "expr", None)
    return frozenset(str(s) for s in expr.free_symbols) if expr is not None else frozenset()


def expression_of(value: object) -> str:
    """Python source of a size, over its symbols.

    Args:
        value: An int or a SymInt.

    Returns:
        Text such as `2*s0` or `s0 // 4`, which evaluates with the symbols as names and `math` in scope.
    """
    node = getattr(value, "node", None)
    if node is None:
        return repr(value)
    from torch.utils._sympy.printers import PythonPrinter

    return str(PythonPrinter().doprint(node.expr))


def size_hint(value: object) -> int:
    """The size that a SymInt had while tracing.

    Args:
        value: An int or a SymInt.

    Returns:
        The hint; 1 for a data-dependent size, which has none.
    """
    if isinstance(value, int):
        return value
    node = getattr(value, "node", None)
    hint = getattr(node, "hint", None)
    return int(hint) if hint is not None else 1


def dynamo_backend() -> object | None:
    """The backend object that the running Dynamo compilation was asked to use.

    Dynamo tells listeners of its trace neither who compiles nor for whom, but its own frames are on the stack:
    `ConvertFrame.__call__` in `torch/_dynamo/convert_frame.py` holds the backend, under a wrapper of `torch.compile`.

    Returns:
        The innermost backend, unwrapped, or None when no compilation is on the stack.
    """
    for owner in _callers_on_stack():
        backend = getattr(owner, "_torchdynamo_orig_backend", None)
        if backend is not None:
            return _innermost(backend)
    return None


def _callers_on_stack() -> Iterator[object]:
    """The `self` of every `__call__` on the stack, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__call__":
            yield frame.f_locals.get("self")
        frame = frame.f_back


def _innermost(backend: object) -> object:
    for attribute in ("_torchdynamo_orig_backend", "compiler_fn"):
        inner = getattr(backend, attribute, None)
        if inner is not None and inner is not backend:
            return _innermost(inner)
    return backend


def dynamo_entry() -> object | None:
    """The outermost object that Dynamo's compilation of this call came through; one per `torch.compile` call.

    Returns:
        An object whose identity tells one compiled callable from another, or None outside a compilation.
    """
    return next((owner for owner in _callers_on_stack() if type(owner).__name__ == "CatchErrorsWrapper"), None)


def compiled_callable() -> tuple[object, Callable[..., Any]] | None:
    """What the running compilation is for: the callable that the user's call of it went through.

    `compile_wrapper` in `torch/_dynamo/eval_frame.py` has the user's function and the context that compiles it as `fn` and `self`.

    Returns:
        The user's function (a bound method for a module), and a function that calls it compiled, like the one that
        `torch.compile` returned; None outside a compilation.
    """
    found: tuple[object, Callable[..., Any]] | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # the outermost is the user's own
        if frame.f_code.co_name == "compile_wrapper" and {"fn", "self"} <= frame.f_locals.keys():
            function, context = frame.f_locals["fn"], frame.f_locals["self"]
            found = function, context(function)
        frame = frame.f_back
    return found


def code_being_compiled() -> CodeType | None:
    """The user's code that Dynamo is at: the argument `code` of `_compile` in `torch/_dynamo/convert_frame.py`.

    Returns:
        The innermost one on the stack; None outside a compilation.
    """
    caller: FrameType | None = sys._getframe(1)
    while caller is not None:
        if caller.f_code.co_name == "_compile" and isinstance(code := caller.f_locals.get("code"), types.CodeType):
            return code
        caller = caller.f_back
    return None


def recompiled_scope() -> Mapping[str, Any]:
    """The names that a failed guard speaks of, while Dynamo says why it recompiles.

    `get_and_maybe_log_recompilation_reasons` in `torch/_dynamo/guards.py` has the user's frame as `frame`.

    Returns:
        The frame's locals, and its globals under `G`; empty at any other time.
    """
    caller: FrameType | None = sys._getframe(1)
    while caller is not None:
        if caller.f_code.co_name == "get_and_maybe_log_recompilation_reasons":
            frame = caller.f_locals.get("frame")
            return {**getattr(frame, "f_locals", {}), "G": getattr(frame, "f_globals", {})}
        caller = caller.f_back
    return {}


@functools.cache
def graph_break_hints() -> dict[str, tuple[str, ...]]:
    """PyTorch's hints by the id of the graph break.

    Returns:
        Id -> hints, without those that have blanks to be filled in with what happened; empty when torch has no such file.
    """
    hints: dict[str, tuple[str, ...]] = {}
    for gb_id, item in _registered_breaks():
        whole = "\n".join(str(part) for part in item.get("Hints") or ()).replace(" \n", " ")  # parts of one sentence end in a blank
        hints.setdefault(gb_id, tuple(" ".join(hint.split()) for hint in whole.split("\n") if hint.strip() and "{" not in hint))
    return hints


@functools.cache
def graph_break_registry() -> dict[str, str]:
    """PyTorch's ids of graph breaks by their type.

    Returns:
        Type of the break (the first line of its message) -> id such as `GB0025`; empty when torch has no such file.
    """
    return {str(item["Gb_type"]): gb_id for gb_id, item in _registered_breaks() if "Gb_type" in item}


def _registered_breaks() -> Iterator[tuple[str, dict[str, Any]]]:
    import torch._dynamo

    path = pathlib.Path(torch._dynamo.__file__).with_name("graph_break_registry.json")
    with contextlib.suppress(OSError, ValueError):
        for gb_id, items in json.loads(path.read_text(encoding="utf-8")).items():
            yield from ((gb_id, item) for item in items)


def untold_failures() -> dict[str, int]:
    """What Dynamo could not trace in functions that it inlined, where the log may not have told it.

    torch 2.9 gives up a frame that takes from a generator it cannot trace, and tells the reason nobody: it raises a
    `SkipFrame` of no text (`LocalGeneratorObjectVariable.next_variable` in `torch/_dynamo/variables/functions.py`, which
    2.13 does not import `SkipFrame` into). The text remains in `counters` of `torch/_dynamo/utils.py`.

    Returns:
        Dynamo's message -> how often; empty on a torch that tells.
    """
    from torch._dynamo import utils
    from torch._dynamo.variables import functions

    return dict(utils.counters.get("inline_call", {})) if hasattr(functions, "SkipFrame") else {}


@contextlib.contextmanager
def lookups_heard(heard: list[tuple[bool, int, int]]) -> Iterator[None]:
    """Listen to Dynamo looking for compiled code, its guards included, and to that code starting.

    torch marks both for its profiler (`TorchDynamo Cache Lookup` in `torch/csrc/dynamo/eval_frame_cpp.cpp`, `Torch-Compiled
    Region` in `torch/_dynamo/convert_frame.py`). The older profiler is taken: what `torch.profiler` is built on writes lines to
    stderr of its own. Rejected: `profile_guard_manager` in `torch/_C/_dynamo/guards.pyi`, which needs the locals of the frame,
    that exist during the call alone; and its figure in the compile metrics, which is taken after a flush of the CPU's caches.

    Args:
        heard: Filled in order: `(True, start, end)` for a look-up, `(False, start, end)` for compiled code; on the clock of
            `time.perf_counter_ns`, to about a microsecond. Nothing is heard by a torch without that profiler, or while another
            profiler runs.
    """
    import torch

    try:
        from torch.autograd import profiler_legacy as legacy
    except ImportError:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profiler: Any = legacy.profile(enabled=not getattr(torch.autograd, "_profiler_enabled")())  # type: ignore[no-untyped-call]  # noqa: B009 - not exported
        with profiler:
            for _ in range(2):  # the first one is cold; the profiler has a clock of its own, and this ties it to ours
                with torch.autograd.profiler.record_function(_CLOCK):
                    anchor_ns = time.perf_counter_ns()
            yield
    events = sorted(getattr(profiler, "function_events", None) or (), key=lambda event: event.time_range.start)
    anchors = [event.time_range for event in events if event.name == _CLOCK]
    for event in events:
        if event.name == _LOOKUP or event.name.startswith(_REGION):
            start, end = (anchor_ns + round((at - (anchors[-1].start + anchors[-1].end) / 2) * 1000) for at in _ends(event))
            heard.append((event.name == _LOOKUP, start, end))


def _ends(event: Any) -> tuple[float, float]:
    return event.time_range.start, event.time_range.end


def version_of(tensor: torch.Tensor) -> int:
    """The count of in-place writes to a tensor.

    Args:
        tensor: Not made in inference mode.

    Returns:
        The count.
    """
    return tensor._version


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Step out of fake tensor mode: what the backend makes while AOTAutograd traces must be real."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


def input_sources(graph_module: torch.fx.GraphModule) -> list[str | None]:
    """Where the inputs of a Dynamo graph come from, in the user's own terms.

    Args:
        graph_module: As Dynamo hands it to a backend.

    Returns:
        Per placeholder, text such as `L['self']._modules['up']._parameters['weight']`; None where Dynamo says nothing.
    """
    sources = []
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            source = getattr(node.meta.get("grapharg"), "source", None)
            name = getattr(source, "name", None)  # a method up to torch 2.9, a property since
            sources.append(name() if callable(name) else name)
    return sources


def example_of(node: torch.fx.Node) -> Any:
    """The fake value that Dynamo traced with.

    Args:
        node: A placeholder of its graph.

    Returns:
        The value; None when there is none.
    """
    return node.meta.get("example_value")


def is_fake(value: object) -> bool:
    """Whether a tensor has no data behind it.

    Args:
        value: Anything.

    Returns:
        True for fake tensors.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)


def is_fake_of(value: object, mode: object) -> bool:
    """Whether a tensor is a fake one of this mode; those of different modes do not mix.

    Args:
        value: Anything.
        mode: A fake tensor mode.

    Returns:
        True for its fake tensors.
    """
    return getattr(value, "fake_mode", None) is mode


def qualified_name(target: object) -> str | None:
    """A name by which the next process finds the same function.

    Args:
        target: Target of a `call_function` node.

    Returns:
        Text such as `torch.nn.functional.gelu`; None for what has none.
    """
    from torch.fx.node import _get_qualified_name

    try:
        return str(_get_qualified_name(target))  # type: ignore[arg-type]  # what has no name raises
    except (RuntimeError, AttributeError, NotImplementedError):
        return None


def returns_plainly() -> bool:
    """Whether the graph being compiled gives its outputs as they are: none is written back, a view of an input, or a subclass.

    AOTAutograd wraps other graphs in code that does the rest (`torch/_functorch/_aot_autograd/runtime_wrappers.py`).

    Returns:
        False also when nothing is known.
    """
    from torch._functorch._aot_autograd.schemas import OutputType, SubclassCreationMeta
    from torch._guards import TracingContext

    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    if metadata is None or metadata.tokens or metadata.traced_tangents or metadata.num_intermediate_bases:
        return False
    touched = any(info.mutates_data or info.mutates_metadata for info in metadata.input_info)
    plain = all(info.output_type is OutputType.non_alias for info in metadata.output_info)
    kinds = (*(metadata.subclass_inp_meta or ()), *(metadata.subclass_fw_graph_out_meta or ()))
    return plain and not touched and not any(isinstance(kind, SubclassCreationMeta) for kind in kinds)


def is_wrapper(value: torch.Tensor) -> bool:
    """Whether a tensor is a subclass that holds others, which AOTAutograd takes apart.

    Args:
        value: A tensor.

    Returns:
        True for such subclasses.
    """
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return bool(is_traceable_wrapper_subclass(value))


def fake_tensor(dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """A tensor without data.

    Args:
        dtype: Its dtype.
        shape: Its sizes.
        strides: Its strides.

    Returns:
        A fake tensor of the CPU.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with real_tensors(), FakeTensorMode():
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)


def autocasts() -> bool:
    """Whether operators that run now would convert their inputs for some device; compiled graphs must run without that.

    Returns:
        True inside `torch.autocast`.
    """
    import torch

    return torch._C._is_any_autocast_enabled()


def is_contiguous(value: object) -> bool:
    """Whether a value lies densely in memory, in the order of its dimensions; asked without making a guard.

    Args:
        value: A fake tensor, or anything else.

    Returns:
        True for what is no strided tensor, too.
    """
    import torch

    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return True
    expected = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if size_hint(size) != 1 and size_hint(stride) != expected:
            return False
        expected *= max(size_hint(size), 1)
    return True


def fake_mode_of(values: Iterable[object]) -> Any:
    """A fake tensor mode to run under: that of the first fake tensor, else a new one that takes real tensors too.

    Args:
        values: Tensors.

    Returns:
        A `torch._subclasses.fake_tensor.FakeTensorMode`.
    """
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    found = next((value for value in values if isinstance(value, FakeTensor)), None)
    return FakeTensorMode(allow_non_fake_inputs=True) if found is None else found.fake_mode


def needs_data(error: BaseException) -> bool:
    """Whether code failed because a fake tensor has no values to decide on.

    Args:
        error: What was raised.

    Returns:
        True for the errors of `torch._subclasses.fake_tensor` that say so.
    """
    from torch._subclasses import fake_tensor

    kinds = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
    return isinstance(error, kinds)


def exported_inputs(program: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """All inputs of an exported program's graph: parameters, buffers, constants, then the user's.

    Args:
        program: A `torch.export.ExportedProgram`.
        args: The user's, in the program's structure.
        kwargs: The user's, in any order.

    Returns:
        One value per placeholder.

    Raises:
        ValueError: The structure is another one.
        AssertionError: A size is outside the program's constraints; RuntimeError in some versions of torch.
    """
    inputs: tuple[Any, ...] = program._graph_module_flat_inputs(args, dict(kwargs))
    return inputs


def without_tokens(program: Any) -> Any:
    """A program whose checks are plain nodes again, and not threaded through effect tokens.

    Args:
        program: A decomposed `torch.export.ExportedProgram`.

    Returns:
        The program, or one without tokens.
    """
    from torch.export.graph_signature import InputKind

    if not any(spec.kind is InputKind.TOKEN for spec in program.graph_signature.input_specs):
        return program
    from torch.export._remove_effect_tokens_pass import _remove_effect_tokens

    return _remove_effect_tokens(program)


def composite_decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions of the operators that PyTorch itself is made of others of.

    Dynamo never hands these over; an exported program keeps them unless told otherwise.

    Returns:
        Op overload -> function.
    """
    import torch

    table = torch.export.default_decompositions()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    named: Any = table
    return {op: function for op, function in named.items() if has_kernel(op.name(), "CompositeImplicitAutograd")}


def with_guards_of_its_own_names(program: Any) -> Any:
    """A program whose guards name its inputs as its graph does.

    Tracing a `forward(*args)` notes guards on `L['args'][0]`, but the graph's signature has `args_0`. torch 2.13 reconciles the
    two (`_force_gm_signature_match` in `torch/export/_unlift.py`); 2.9 does not, and both the program's module and its
    decomposition then raise a NameError.

    Args:
        program: A `torch.export.ExportedProgram`; it stays as it is.

    Returns:
        The program, or a shallow copy with other guards.
    """
    import copy
    import inspect

    from torch.export import _unlift

    starred = {match for guard in getattr(program, "_guards_code", ()) for match in _STARRED.findall(guard)}
    if hasattr(_unlift, "_force_gm_signature_match") or not starred:
        return program
    names = inspect.signature(program.module(check_guards=False).forward).parameters
    named = copy.copy(program)
    for name, place in starred:
        if f"{name}_{place}" in names:
            written, meant = f"L['{name}'][{place}]", f"L['{name}_{place}']"
            named._guards_code = [guard.replace(written, meant) for guard in named._guards_code]
    return named


def exported_guards(program: Any) -> Callable[..., Any] | None:
    """What a program checks of its user's inputs before it runs.

    Args:
        program: A `torch.export.ExportedProgram`.

    Returns:
        A callable of the flat user inputs that raises when one would have taken another branch; None when nothing is checked.
    """
    with quiet():
        return getattr(program.module(), "_guards_fn", None)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """Apply a function to every tensor in a structure.

    Args:
        function: Takes and returns a tensor.
        tree: Nested tuples, lists, dicts and whatever else is registered with torch's pytree.

    Returns:
        The same structure.
    """
    import torch
    from torch.utils import _pytree

    return _pytree.tree_map_only(torch.Tensor, function, tree)


def unflatten(values: list[Any], spec: Any) -> Any:
    """Put values back into a structure.

    Args:
        values: The leaves.
        spec: A tree spec of `torch.utils._pytree`.

    Returns:
        The structure.
    """
    from torch.utils import _pytree

    return _pytree.tree_unflatten(values, spec)


@contextlib.contextmanager
def compiled_apart() -> Iterator[dict[str, Any]]:
    """Around compiling and calling a function whose other compilations must neither help nor count.

    Dynamo compiles one code object a limited number of times, whatever the backend, and then gives up without a word.
    torch 2.13 keeps the compilations of one `torch.compile` apart when asked; before, the limit is lifted meanwhile.

    Yields:
        Keyword arguments for `torch.compile`.
    """
    import inspect

    import torch

    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        yield {"isolate_recompiles": True}
        return
    import torch._dynamo

    with torch._dynamo.config.patch(recompile_limit=1 << 20, accumulated_recompile_limit=1 << 20):
        yield {}


@functools.cache
def thread_rester() -> Callable[[], Any] | None:
    """A function that ends the OpenMP threads which PyTorch's operators left spinning on the calling thread's behalf.

    GNU's OpenMP, which torch brings on Linux, has its threads spin for a while after their work, and reads how long when it is
    loaded. `omp_pause_resource_all` (OpenMP 5.0, 3.2.44) ends them; the next operator that wants threads starts new ones.

    Returns:
        It; None where torch does not use GNU's OpenMP, or one without that function.
    """
    library = next(pathlib.Path(torch_folder(), "lib").glob("libgomp*.so*"), None)
    if library is None or sys.platform != "linux":
        return None
    try:
        pause = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all
    except (OSError, AttributeError):  # another one is in use, or one from before OpenMP 5.0
        return None
    pause.argtypes = [ctypes.c_int]
    return functools.partial(pause, 1)  # omp_pause_soft


def torch_folder() -> str:
    """Folder of the installed torch, to tell its frames from the user's."""
    import torch

    return str(pathlib.Path(torch.__file__).parent)
