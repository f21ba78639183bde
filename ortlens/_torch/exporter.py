"""torch.onnx: the registry of ONNX functions, decompositions, and the recorder of function calls."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch

from ortlens._process import process_wide, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnx_ir as ir


_CHATTY = ("torch.onnx", "onnxscript", "onnx_ir", "torch._dynamo.variables")
_RAISING = ("torch._subclasses.fake_tensor", "torch.export", "torch.fx.experimental.symbolic_shapes")
"""These log, at any level, what they also raise: each exception of a shape function, and where a trace stops."""


class _Silence(logging.Filter):
    """Drops what a thread says while it is quiet. It is put in place by the first quiet thread and removed by the last.

    As a filter of handlers it sees the records of loggers that are only made meanwhile. As the message of a filter of warnings it is
    asked like a pattern; `warnings.catch_warnings` would replace the filters of all threads, and threads that leave it in another order
    than they entered would leave the wrong ones behind.
    """

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()
        self._lock = threading.Lock()
        self._quiet = 0
        self._rule: tuple[Any, ...] = ("ignore", self, Warning, None, 0)
        self._handlers: list[logging.Handler] = []
        self._rules: list[Any] = []

    def match(self, _text: str) -> bool:
        """Tell whether a warning is dropped."""
        return getattr(self._here, "depth", 0) > 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a log record is passed on."""
        chatty = record.name.startswith(_RAISING) or (record.levelno < logging.ERROR and record.name.startswith(_CHATTY))
        return not (chatty and self.match(""))

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Silence this thread for as long as the block lasts, also where putting the filters in place or removing them fails."""
        self._enter()
        self._here.depth = getattr(self._here, "depth", 0) + 1
        try:
            yield
        finally:
            self._here.depth -= 1  # alone, it ends the silence
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            for handler in _handlers():  # also those that were added since another thread entered
                if self not in handler.filters:
                    handler.addFilter(self)
                    self._handlers.append(handler)
            if not any(rule is self._rule for rule in warnings.filters[:1]):
                self._take_back()
                self._rules = warnings.filters  # type: ignore[assignment]  # a list, though annotated as a sequence
                self._rules.insert(0, self._rule)
            self._quiet += 1

    def _leave(self) -> None:
        with self._lock:
            self._quiet -= 1
            if not self._quiet:
                for handler in self._handlers:
                    handler.removeFilter(self)
                self._handlers.clear()
                self._take_back()

    def _take_back(self) -> None:
        """Remove the rule from where it was put, and from copies that `warnings.catch_warnings` made in the meantime."""
        for rules in (self._rules, warnings.filters):
            rules[:] = [rule for rule in rules if rule is not self._rule]  # type: ignore[index]  # a list


def _handlers() -> list[logging.Handler]:
    """Find the handlers that get what these loggers say."""
    found = [] if logging.lastResort is None else [logging.lastResort]
    for name in (*_CHATTY, *_RAISING):
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            found += [handler for handler in logger.handlers if handler not in found]
            logger = logger.parent
    return found


_SILENCE = _Silence()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter, ONNX Script and its optimiser in this thread.

    They warn of a missing torchvision, of constants that are outputs, of empty attribute lists and of divisions by zero while folding.
    None of these concerns the user, and a real failure raises.
    """
    import numpy as np

    with _SILENCE.during(), np.errstate(all="ignore"):
        yield


@contextlib.contextmanager
def unprinted() -> Iterator[None]:
    """Stop `torch.export` from printing the graph of a trace that fails, which its exception has (`torch/export/_trace.py`)."""
    from torch.export import _trace

    shown = vars(_trace)
    shown["print"] = lambda *texts, **where: None if _SILENCE.match("") else print(*texts, **where)  # noqa: T201 - of other threads
    try:
        with quiet():
            yield
    finally:
        shown.pop("print", None)


_NEVER_DECOMPOSED = frozenset(
    {
        # Decomposed, they draw other random numbers than PyTorch's own kernels and leave the generator in another state.
        *("cauchy", "cauchy_", "exponential", "exponential_", "geometric", "geometric_", "log_normal", "log_normal_"),
        *("uniform", "uniform_"),  # decomposed, a draw does not read what it overwrites, so that an earlier draw goes away as dead code
        *("cumprod", "cumprod_"),  # quadratic in time and memory
        # The first writes at offset 0 where none is given, the second in place through a view, which AOTAutograd rejects.
        *("as_strided_scatter", "diagonal_scatter"),
        # Their parts have no ONNX functions, so that PyTorch would compute them one by one.
        *("digamma", "igamma", "igammac", "lgamma", "log_ndtr", "mvlgamma", "ndtri", "spherical_bessel_j0", "zeta"),
    }
)
"""Operators whose decompositions in torch's table are wrong or slow, without the prefix of `torch.special`; they stay in PyTorch."""


class _Unread:
    """A function of ONNX Script that is read from its source, and compiled if it is a script, when more than its name is used."""

    def __init__(self, function: Callable[..., Any], read: Callable[[], Any]) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]  # called as what `read` returns
        self.__dict__.update(_name=function.__name__, _read=functools.cache(read))

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_read")(), name)


@process_wide
@contextlib.contextmanager
def _read_when_used() -> Iterator[None]:
    """Let ONNX Script define functions that are read when they are used, for as long as the block lasts; in it their domain is empty."""
    import onnxscript.values

    script, traced = onnxscript.script, onnxscript.values.TracedOnnxFunction
    scripts: Any = type("UnreadScript", (_Unread, onnxscript.OnnxFunction), {"function_ir": types.SimpleNamespace(domain="")})
    others: Any = type("UnreadFunction", (_Unread, traced), {})

    def script_later(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return lambda function: scripts(function, lambda: script(*args, **kwargs)(function))

    def traced_later(*args: Any, **kwargs: Any) -> Any:
        function = next(each for each in (*args, *kwargs.values()) if isinstance(each, types.FunctionType))
        return others(function, lambda: traced(*args, **kwargs))

    with (
        replaced(onnxscript, "script", script_later),
        replaced(onnxscript.values, "TracedOnnxFunction", traced_later),
        replaced(traced, "function_ir", scripts.function_ir),
    ):
        try:
            yield
        finally:
            del scripts.function_ir


@functools.cache
def shared_registry() -> Any:
    """Return the `ONNXRegistry` of ATen-to-ONNX functions of the installed torch and onnxscript; built once.

    A model must use its operator set version: functions of a newer one emit operators that an older model cannot contain. A function and
    its signature are read from its source when a graph has its operator: to read those of all takes 0.5 s.
    """
    from torch.onnx._internal.exporter import _registration
    from torch.onnx._internal.exporter._torchlib import _torchlib_registry

    with quiet():
        _torchlib_registry.get_torchlib_ops()  # torch's own, which other exporters share, have signatures
        with _read_when_used(), replaced(_registration.OnnxDecompMeta, "__post_init__", lambda _: None):
            return _registration.ONNXRegistry.from_torchlib()


def registry_with(custom: Mapping[Any, Callable[..., Any]] | None) -> Any:
    """Return the registry with custom functions taking precedence: a copy, or the shared one if there are none."""
    base = shared_registry()
    if not custom:
        return base
    from torch.onnx._internal.exporter import _registration

    registry = _registration.ONNXRegistry()
    registry._opset_version = base.opset_version
    registry.functions = {target: list(metas) for target, metas in base.functions.items()}
    with replaced(_registration.OnnxDecompMeta, "__post_init__", lambda _: None):  # likewise
        for target, function in custom.items():
            registry.register_op(target, function)
    return registry


def decomposition_table(registry: Any) -> dict[Any, Callable[..., Any]]:
    """Return decompositions for AOTAutograd of operators without functions in the registry.

    The exporter's table has those that PyTorch implements by others as well, of all namespaces: Dynamo's graphs hold none of them, and
    exported programs get them from `composite_decompositions`.
    """
    core, converted = torch._decomp._core_aten_decompositions_post_autograd(), set(converted_operators(registry))

    def is_left(overload: Any) -> bool:
        if overload in converted or not hasattr(overload, "_schema"):  # without one it is a higher-order operator
            return True
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd")
        return (composite and overload not in core) or overload._opname.removeprefix("special_") in _NEVER_DECOMPOSED

    table = {overload: function for overload, function in torch._decomp.decomposition_table.items() if not is_left(overload)}
    for overload in (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default):
        # AOTAutograd lifts tensor constants itself; a decomposition would mix the real constant with fake tensors.
        table.pop(overload, None)
    return table


def converted_operators(registry: Any) -> list[Any]:
    """List the operators that have ONNX functions in a registry."""
    from torch.onnx._internal.exporter import _decomp

    return list(_decomp.get_onnx_implemented_overloads(registry))


def decomposition_of(target: Any) -> Callable[..., Any]:
    """Return torch's own decomposition of an operator that has one, in its table or as its kernel in Python."""
    from torch._decomp import decomposition_table, decompositions

    function: Callable[..., Any] = decomposition_table.get(target) or getattr(decompositions, target._opname)
    return function


def dispatch(node: torch.fx.Node, registry: Any) -> Callable[..., Any] | None:
    """Find the ONNX function for a `call_function` node with `meta["val"]`; None if there is none for its target and dtypes."""
    from torch.onnx._internal.exporter import _dispatching

    function, _ = _dispatching.dispatch(node, registry)
    return function


def custom_functions(target: Any, registry: Any) -> list[Callable[..., Any]]:
    """Find the functions for a target that were added to torch's registry."""
    return [meta.onnx_function for meta in registry.get_decomps(target) if meta.is_custom]


def insert_type_promotion(graph_module: torch.fx.GraphModule, may_promote: Callable[[torch.fx.Node], bool]) -> dict[str, Exception]:
    """Make PyTorch's implicit type promotion explicit, in place: ONNX operators do not promote types.

    Returns what was raised, by name of the node, where the promotion is not known: such nodes stay as they were, since PyTorch can run
    them. Nodes that `may_promote` rejects are not run again with fake tensors, which is slow.
    """
    from torch.onnx._internal.fx.passes import type_promotion

    table = _promotion_table()
    failures: dict[str, Exception] = {}

    class Interpreter(type_promotion._TypePromotionInterpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            known = node.op == "call_function" and "val" in node.meta
            if known and not (type_promotion.get_type_promotion_rule(node, table) and may_promote(node)):
                return node.meta["val"]
            before = (node.target, node.args, node.kwargs, node.meta.get("val"))
            try:
                return super().run_node(node)
            except Exception as error:
                if not known:
                    raise
                failures[node.name] = error
                node.target, node.args, node.kwargs, node.meta["val"] = before
                return node.meta["val"]

    inserting = type_promotion.InsertTypePromotion(graph_module, table)
    inserting.interpreter = Interpreter(graph_module, table)
    with quiet():
        inserting.run()
    return failures


@functools.cache
def _promotion_table() -> Any:
    from torch.onnx._internal.fx.passes import type_promotion

    return type_promotion.TypePromotionTable()


class _ByText(dict[Any, Any]):
    """Constants that the exporter has made, for `_building._get_or_create_constant`: 0.0 and -0.0 are equal, and two constants."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(repr(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(repr(key), value)


_SIGNATURES: dict[tuple[str, int], Any] = {}
"""Name of an operator of ONNX and version -> its signature, which the recorder reads from the schema for each node."""


class NodeRecorder:
    """Runs ONNX Script functions and collects the ONNX nodes that they make."""

    def __init__(self, registry: Any) -> None:
        """Prepare for a model, whose operator set the registry determines."""
        import onnxscript

        self._opset = onnxscript.values.Opset("", registry.opset_version)
        self._constants: dict[Any, Any] = _ByText()

    def symbolic(self, name: str) -> ir.Value:
        """Make a graph input, without type and shape, that ONNX Script functions can compute with."""
        from torch.onnx._internal.exporter import _tensors

        return _tensors.SymbolicTensor(self._opset, name=name)

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, list[ir.Node], dict[Any, Any]]:
        """Run one function; return its result, the nodes made, and the local functions that they call."""
        import onnx_ir as ir
        import onnxscript
        from torch.onnx._internal.exporter import _building, _core

        recorder = _building.OpRecorder(self._opset, self._constants)  # type: ignore[abstract]  # onnxscript's stub leaves a body empty
        read = ir.schemas.OpSignature.from_op_schema

        def signature(schema: Any) -> Any:
            known, key = {} if schema.domain else _SIGNATURES, (schema.name, schema.since_version)
            return known.get(key) or known.setdefault(key, read(schema))

        tracing, reading = replaced(_core, "current_tracer", recorder), replaced(ir.schemas.OpSignature, "from_op_schema", signature)
        with onnxscript.evaluator.default_as(recorder), tracing, reading:
            outputs = function(*args, **kwargs)
        return outputs, recorder.nodes, recorder.functions


def recorded(node: ir.Node) -> Sequence[ir.Value]:
    """Add a node to those of the function that runs, for an operator that ONNX Script cannot call: one with a body; return its outputs."""
    from torch.onnx._internal.exporter import _core

    _core.current_tracer.nodes.append(node)  # type: ignore[union-attr]  # `NodeRecorder.call` has set it
    return node.outputs


def add_opset_imports(model: ir.Model) -> None:
    """Declare, in place, the operator sets that the nodes of a model use."""
    from torch.onnx._internal.exporter import _ir_passes

    _ir_passes.add_opset_imports(model)
