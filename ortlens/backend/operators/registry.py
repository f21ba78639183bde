"""What lowering, partitioning and conversion ask about operators. Importing it loads every family, and with them onnxscript."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.operators import (  # noqa: F401 - each states the facts of its operators
    activations,
    arithmetic,
    attention,
    images,
    indexing,
    losses,
    norms,
    numbers,
    ordering,
    pooling,
    products,
    quotients,
    recurrent,
    reductions,
    shapes,
    special,
)
from ortlens.backend.operators.facts import FACTS, RESULTS, WHOLE, Call, Facts, apart_unless, refuses

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ortlens.backend.operators.facts import Rule, Tracing

_aten = torch.ops.aten
_NOTHING = Facts()


def own_functions() -> dict[Any, Callable[..., Any]]:
    """Map op overloads to our ONNX functions, for each compilation anew, since an import can register operators."""
    found = {_registered(target): facts.function for target, facts in FACTS.items() if facts.function is not None}
    return {target: function for target, function in found.items() if target is not None}


def _registered(target: Any) -> Any:
    """Find the operator of a name, such as `prims::fma`; None while nothing has registered it."""
    if not isinstance(target, str):
        return target
    namespace, _, name = target.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), name, None), "default", None)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Map op overloads to our decompositions."""
    return {target: facts.decomposition for target, facts in FACTS.items() if facts.decomposition is not None}


def fused_on_cuda() -> frozenset[Any]:
    """List the operators that tensors on the CPU do not reach. In PyTorch, what they are decomposed to takes longer and more memory."""
    return frozenset(target for target, facts in FACTS.items() if facts.is_for_cuda)


def with_calls_left_to_torch(table: Mapping[Any, Callable[..., Any]], users: Collection[Any]) -> dict[Any, Callable[..., Any]]:
    """Return decompositions that leave more calls whole, which PyTorch computes faster than ONNX Runtime; not those of `users`."""
    left = {target: facts.leaves for target, facts in FACTS.items() if target not in users and facts.leaves is not None}
    made = {target: apart_unless(stays, table.get(target) or apart) for target, (stays, apart) in left.items()}
    return {**table, **{target: functools.partial(decomposed, target) for target, decomposed in made.items()}}


def decompositions_of_programs(own: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Combine the backend's decompositions with PyTorch's for composite operators where the backend has none."""
    composite = _torch.composite_decompositions()
    table = {**composite, **own}
    for target, facts in FACTS.items():
        made = None if facts.in_program is None else facts.in_program(composite.get(target), own.get(target))
        if made is not None:
            table[target] = made
    return table


def kept_whole(tracing: Tracing) -> dict[Any, Callable[..., Any] | None]:
    """List what tracing is to meet whole: operator -> the function that is traced instead, or None for the operator itself."""
    _torch.list_composites(for_inductor=tracing.with_gradient or _torch.compiles_ahead())
    for target, made, when in RESULTS:  # each time: `run_decompositions` of torch.export makes torch forget it
        if made is not None and when(tracing):
            _torch.know_shape(target, made)
    return {target: traced for target, traced, when in WHOLE if when(tracing)}


def results_known() -> contextlib.AbstractContextManager[None]:
    """Spare the trace of a program what runs in steps, such as a recurrent layer, of which it needs the shapes of the results alone."""
    made = ((target, facts.result_in_program) for target, facts in FACTS.items())
    return _torch.results_known({target: function for target, function in made if function is not None})


def slow_for(node: torch.fx.Node, *, deployed: bool) -> str | None:
    """Explain why an operator stays in PyTorch for its speed; None when it may go to ONNX Runtime."""
    rules = FACTS.get(node.target, _NOTHING).slow
    return _first_reason([rule for rule in rules if rule.deployed or not deployed], node)


def wrong_for(node: torch.fx.Node) -> str | None:
    """Describe what the ONNX function of a node does wrong for its arguments; None if it may go to ONNX Runtime."""
    return _first_reason(FACTS.get(node.target, _NOTHING).wrong, node) or _refused_number(node)


def reads_sizes_alone(target: Any) -> bool:
    """Tell whether an operator reads the sizes of its first argument, and not its values."""
    return FACTS.get(target, _NOTHING).reads_sizes_alone


def _first_reason(rules: Sequence[Rule], node: torch.fx.Node) -> str | None:
    call = Call(node)
    for rule in rules:
        if found := rule.when(call):
            return found if isinstance(found, str) else rule.reason
    return None


_FACTORS = ("alpha", "beta")
_CHECKING_FLOATS = (_aten.logit.default,)  # operators that convert what their schemas call a float, with the check
_UNCHECKED = frozenset({"other", "self", "element", "test_element", "correction", "p", "ord"})
"""Names of numbers that operators convert to the element type of the result without a check: they wrap, or become infinite."""
_RANGES = (_aten.arange.default, _aten.arange.start, _aten.arange.start_step)


def _refused_number(node: torch.fx.Node) -> str | None:
    """Describe a number beyond the range of the result's type, on which PyTorch raises, or may; None if there is none."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype is torch.bool or value.is_complex():
        return None
    for place, name in _checked_numbers(node.target):
        argument = node.args[place] if place < len(node.args) else node.kwargs.get(name)
        held = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument
        wraps = name in _FACTORS and _is_negative_beside(held, value.dtype)
        if held is not None and not wraps and (refused := refuses(held, value.dtype)):
            return refused
    return None


def _is_negative_beside(factor: object, dtype: torch.dtype) -> bool:
    """Tell whether a factor is negative beside an unsigned element type, where it wraps."""
    return isinstance(factor, int) and not dtype.is_signed and -torch.iinfo(dtype).max <= factor < 0


@functools.cache
def _checked_numbers(target: Any) -> tuple[tuple[int, str], ...]:
    """List places and names of the numbers that an operator refuses where the element type of the result cannot hold them."""
    schema = getattr(target, "_schema", None)
    arguments = () if schema is None or target in _RANGES else schema.arguments
    kinds = ("NumberType", "FloatType") if target in _CHECKING_FLOATS else ("NumberType",)
    return tuple((place, each.name) for place, each in enumerate(arguments) if each.name not in _UNCHECKED and _kind(each.type) in kinds)


def _kind(declared: Any) -> str:
    return str((declared.getElementType() if declared.kind() == "OptionalType" else declared).kind())
