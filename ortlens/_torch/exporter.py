"""torch.onnx's functions and the recorder of their calls."""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnx_ir as ir
    import torch
    import torch.fx


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


def decomposition_table(registry: Any, always_decompose: frozenset[Any] = frozenset()) -> dict[Any, Callable[..., Any]]:
    """Decompositions of every op that ONNX cannot express directly.

    Args:
        registry: As returned by `registry_with`.
        always_decompose: Op overloads to decompose although the registry has functions for them.

    Returns:
        A table for AOTAutograd that stops at the ops the registry has functions for.
    """
    import torch
    from torch.fx.node import has_side_effect
    from torch.onnx._internal.exporter import _decomp

    # `linalg.inv` and others raise for a singular matrix, in a node without outputs. torch 2.9 takes it for dead code and
    # answers with NaN instead; later versions know its effect (`torch/_higher_order_ops/effects.py`).
    has_side_effect(torch.ops.aten._linalg_check_errors.default)
    implemented = set(_decomp.get_onnx_implemented_overloads(registry)) - always_decompose
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
