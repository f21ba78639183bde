"""The facts of operators, and how their families state them.

A family is a file of this folder. For its operators it has, side by side: the ONNX functions where those of torch's registry, which are
from onnxscript 0.7, are missing or differ from PyTorch; the decompositions where torch has none that ONNX can use; the calls for which the
ONNX function or ONNX Runtime is wrong; and those for which it is slow. `registry` reads what is stated here.
"""

from __future__ import annotations

import functools
import operator
import types
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens.backend.basis import provenance
from ortlens.backend.basis.dtypes import fits, int_range

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_ADDITIONS = (_aten.add.Tensor, _aten.add.Scalar)
_SUMS = (_aten.add.Tensor, _aten.add.Scalar, _aten.sub.Tensor, _aten.sub.Scalar, _aten.rsub.Scalar)
_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm", "_batch_norm_impl_index", "instance_norm")
UNSAID_WRITES: dict[Any, tuple[str, ...]] = {getattr(_aten, name).default: ("running_mean", "running_var") for name in _NORMS}
"""Arguments that an operator writes to although its schema does not say so (torch 2.13, `native_functions.yaml`)."""
STAYS: Any = NotImplemented
"""A decomposition returns it to leave the operator as it is."""

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_Result = TypeVar("_Result")


class Call:
    """A node with its arguments by name: tensors and numbers as their example values, with the defaults of those that are not given."""

    def __init__(self, node: torch.fx.Node) -> None:
        """Read the arguments of a node when they are first asked for."""
        self.node = node

    @functools.cached_property
    def _given(self) -> dict[str, Any]:
        values = by_name(self.node.target, self.node.args, self.node.kwargs)
        return {name: value.meta.get("val") if isinstance(value, torch.fx.Node) else value for name, value in values.items()}

    def __getitem__(self, name: str) -> Any:
        """Return an argument; KeyError if the operator has none of that name."""
        return self._given[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or a default if the operator has none of that name."""
        return self._given.get(name, default)

    def tensor(self, place: int) -> torch.Tensor | None:
        """Return the example of a positional argument; None if it is no tensor."""
        return tensor_of(self.node.args[place]) if place < len(self.node.args) else None

    @property
    def result(self) -> torch.Tensor | None:
        """The example of the result; None if it is no tensor."""
        return tensor_of(self.node)


def by_name(target: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Map the names of an operator's arguments to what it is called with, or to their defaults; nothing for a function of Python."""
    schema = getattr(getattr(target, "_schema", None), "arguments", ())
    given = dict(zip((argument.name for argument in schema), args, strict=False)) | kwargs
    return {argument.name: given.get(argument.name, argument.default_value) for argument in schema}


def named(target: Any) -> Callable[[Callable[[Any], _Result]], Callable[..., _Result]]:
    """Let a function of an operator with many arguments take them as one record, by the names of the schema."""

    def taking(function: Callable[[Any], _Result]) -> Callable[..., _Result]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> _Result:
            return function(types.SimpleNamespace(**by_name(target, args, kwargs)))

        return called

    return taking


def tensor_of(value: Any) -> torch.Tensor | None:
    """Return the example of a node; None if it is no tensor."""
    held = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    return held if isinstance(held, torch.Tensor) else None


class Rule(NamedTuple):
    """Why an operator stays in PyTorch."""

    reason: str  # the text that users read, after the name of the operator; empty where `when` returns it
    when: Callable[[Call], Any]  # tells for which calls it holds; a text that it returns is the reason
    deployed: bool = False  # whether it holds in a model to deploy, where a slow form is otherwise better than none


class Tracing(NamedTuple):
    """How a graph is traced."""

    with_gradient: bool  # autograd knows the operators that PyTorch implements by others, and those alone
    on_cuda: bool  # tensors on CUDA go to ONNX Runtime


class TracingFact(NamedTuple):
    """What tracing does with an operator."""

    target: Any
    function: Callable[..., Any] | None
    when: Callable[[Tracing], bool]


@dataclass(slots=True)
class Facts:
    """What is known of an operator."""

    function: Callable[..., Any] | None = None  # makes its ONNX nodes
    decomposition: Callable[..., Any] | None = None
    is_for_cuda: bool = False  # whether tensors on the CPU do not reach it, and what it decomposes to is slower in PyTorch
    # Tells, given the operator and its arguments, which calls are left whole for PyTorch; and decomposes the others, if not as usual.
    leaves: tuple[Callable[..., bool], Callable[..., Any] | None] | None = None
    in_program: Callable[..., Any] | None = None  # makes its decomposition in exported programs of torch's and of the usual one
    result_in_program: Callable[..., Any] | None = None  # makes its results without data, of which a program needs the shapes alone
    reads_sizes_alone: bool = False  # whether the values of its first argument are not read
    wrong: list[Rule] = field(default_factory=list)  # in the order in which they are asked
    slow: list[Rule] = field(default_factory=list)


FACTS: defaultdict[Any, Facts] = defaultdict(Facts)
"""Target of an FX node -> what is known of it. The name of an operator stands for one that an import may register later."""
WHOLE: list[TracingFact] = []
"""Operators that tracing is to meet whole, although PyTorch would take them apart, with the function that is traced instead, if any."""
RESULTS: list[TracingFact] = []
"""Operators of which torch refuses to name the shape, or fails to, with functions that make their results without data."""


def torch_op(*targets: Any) -> Callable[[_Function], _Function]:
    """State the ONNX function of some operators, as torchlib's decorator of this name does."""
    return _stating(targets, "function", lambda function, _: function)


def decomposes(*targets: Any) -> Callable[[_Function], _Function]:
    """State the decomposition of some operators."""
    return _stating(targets, "decomposition", lambda function, _: function)


def decomposes_each(*targets: Any) -> Callable[[_Function], _Function]:
    """State the decompositions of some operators by a function that takes the operator before the arguments."""
    return _stating(targets, "decomposition", functools.partial)


def _stating(targets: Any, fact: str, made: Callable[[Any, Any], Any]) -> Callable[[_Function], _Function]:
    def stating(function: _Function) -> _Function:
        for target in targets:
            setattr(FACTS[target], fact, made(function, target))
        return function

    return stating


def apart_unless(stays: Callable[..., bool], apart: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Make a decomposition, given the operator, of what tells the calls that stay as they are, and of another one, by default torch's."""

    def decomposed(target: Any, *args: Any, **kwargs: Any) -> Any:
        return STAYS if stays(target, *args, **kwargs) else (apart or _torch.decomposition_of(target))(*args, **kwargs)

    return decomposed


def as_torch(*targets: Any, unless: Callable[..., bool]) -> None:
    """State that torch's decompositions serve, but for some calls: those that PyTorch's kernel refuses, or ONNX Runtime computes whole."""
    decomposes_each(*targets)(apart_unless(unless))


def leaves(*targets: Any, when: Callable[..., bool], apart: Callable[..., Any] | None = None) -> None:
    """State which calls are left whole, because PyTorch computes them faster; `apart` decomposes others, given the operator as well."""
    for target in targets:
        FACTS[target].leaves = when, None if apart is None else functools.partial(apart, target)


def keeps_whole(*targets: Any, traced: Callable[..., Any] | None = None, when: Callable[[Tracing], bool] = lambda _: True) -> None:
    """State that tracing is to meet operators whole, or another function instead of them."""
    WHOLE.extend(TracingFact(target, traced, when) for target in targets)


def knows_result(*targets: Any, made: Callable[..., Any], when: Callable[[Tracing], bool] = lambda _: True) -> None:
    """State the results of operators without data: torch refuses to name their shapes, or its own functions fail for sizes that vary."""
    RESULTS.extend(TracingFact(target, made, when) for target in targets)


def wrong(*targets: Any, reason: str = "", when: Callable[[Call], Any] = lambda _: True) -> None:
    """State calls for which the ONNX function, or ONNX Runtime, gives other results than PyTorch."""
    for target in targets:
        FACTS[target].wrong.append(Rule(reason, when))


def slow(*targets: Any, reason: str, when: Callable[[Call], Any] = lambda _: True, deployed: bool = False) -> None:
    """State calls that ONNX Runtime computes rightly and far more slowly than PyTorch."""
    for target in targets:
        FACTS[target].slow.append(Rule(f"{ON_PURPOSE}{reason}", when, deployed))


def serves(*targets: Any, reason: str, when: Callable[[Call], Any]) -> None:
    """State calls that stay in PyTorch with what reads their results."""
    for target in targets:
        FACTS[target].slow.append(Rule(f"only serves {reason}", when))


ON_PURPOSE = "stays in PyTorch on purpose: "
REFUSED = ", which PyTorch refuses"


def computes_in_one_pass(*targets: Any) -> None:
    """State gradients that PyTorch computes in one pass; those of small tensors are decomposed, which saves a partition.

    One thread, 16 images of 32 channels of 64 x 64 and two smaller layers: the backward of a convolutional net takes 40 ms instead of 48,
    38 in eager mode. PyTorch refuses integers.
    """
    as_torch(*targets, unless=lambda _, __, tensor, *___: provenance.is_large(tensor) or not tensor.is_floating_point())
    slow(*targets, reason="PyTorch computes it in one pass, ONNX Runtime in many")


def needs_known(*targets: Any, argument: str) -> None:
    """State that an ONNX function needs to know a number."""
    wrong(
        *targets,
        reason=f"needs a known number as its argument {argument}",
        when=lambda call: isinstance(call[argument], (torch.SymInt, torch.SymFloat)),
    )


def is_boolean(call: Call) -> bool:
    """Tell whether the first tensor is boolean."""
    tensors = [value for value in map(tensor_of, call.node.args) if value is not None]
    return bool(tensors) and tensors[0].dtype is torch.bool


def makes_booleans(call: Call) -> bool:
    """Tell whether the result is boolean."""
    return call.result is not None and call.result.dtype is torch.bool


def is_whole(call: Call) -> bool:
    """Tell whether the first argument is a tensor of whole numbers."""
    value = call.tensor(0)
    return value is not None and not value.is_floating_point()


def is_half_on_cpu(call: Call) -> bool:
    """Tell whether the first argument is a tensor of float16 on the CPU."""
    value = call.tensor(0)
    return value is not None and value.dtype is torch.float16 and value.device.type == "cpu"


def is_number(call: Call) -> bool:
    """Tell whether `self` has no dimensions."""
    return not call["self"].dim()


def lacks_elements(*names: str) -> Callable[[Call], bool]:
    """Tell whether a tensor is known to have no elements."""
    return lambda call: any(0 in call[name].shape for name in names)


def may_lack_elements(name: str) -> Callable[[Call], bool]:
    """Tell whether a tensor may have no elements."""
    return lambda call: not statically_known_true(call[name].numel() > 0)


def reads_index(call: Call) -> bool:
    """Tell whether the second output of an operator is read, or all of them as one."""
    return any(user.target is not operator.getitem or user.args[1] == 1 for user in call.node.users)


def lacks_outputs(*targets: Any, count: int) -> None:
    """State that an ONNX function makes the first output alone, and constants of the others, as torchlib's that are marked as faked."""

    def reads(call: Call) -> str | None:
        read = {user.args[1] for user in call.node.users if user.target is operator.getitem}
        return next((f"does not compute output {place}, which this graph reads" for place in range(1, count) if place in read), None)

    wrong(*targets, when=reads)


def refuses(number: object, dtype: torch.dtype) -> str | None:
    """Describe why PyTorch raises, or may, when it converts a number to an element type; None if it does not."""
    short = str(dtype).removeprefix("torch.")
    if isinstance(number, (int, float)):
        return None if fits(number, dtype) else f"takes {number}, which PyTorch refuses to convert to {short}"
    bounds = int_range(number) if isinstance(number, torch.SymInt) else None
    always = bounds is not None and all(fits(bound, dtype) for bound in bounds)
    if dtype not in (torch.float32, torch.float64) and not always:
        return f"takes a number that may be beyond {short}, which PyTorch refuses to convert"
    return None


def refused_booleans(node: torch.fx.Node) -> str | None:
    """Describe what ONNX would do with booleans or a factor that PyTorch refuses in a sum, difference or power; None if it takes them."""
    if node.target in (_aten.pow.Tensor_Tensor, _aten.pow.Scalar) and all(map(is_boolean_value, node.args)):
        return "takes booleans, which PyTorch refuses"
    if node.target not in _SUMS:
        return None
    result, alpha = node.meta["val"], node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)  # noqa: PLR2004 - the schema
    if node.target not in _ADDITIONS and any(map(is_boolean_value, node.args[:2])):
        return "subtracts booleans, which PyTorch refuses"
    if isinstance(result, torch.Tensor) and not result.is_floating_point() and not result.is_complex() and _is_fraction(alpha):
        return "takes a fraction for the factor of whole numbers, which PyTorch refuses"
    if isinstance(alpha, bool) and isinstance(result, torch.Tensor) and result.dtype is not torch.bool:
        return "takes a boolean for a factor, which PyTorch refuses"
    return None


def _is_fraction(value: Any) -> bool:
    held = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
    return isinstance(held, (float, torch.SymFloat))


def is_boolean_value(value: Any) -> bool:
    """Tell whether an argument is a boolean, or a tensor of booleans."""
    held = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
    return held.dtype is torch.bool if isinstance(held, torch.Tensor) else isinstance(held, (bool, torch.SymBool))


def is_known_at_run_time(size: Any) -> bool:
    """Tell whether data decides if a size is 1, so that PyTorch drops the dimension or not."""
    return _torch.depends_on_data(size) and not statically_known_true(size == 1) and not statically_known_true(size != 1)


def is_empty(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is known to have no elements."""
    return any(isinstance(size, int) and not size for size in tensor.shape)


def is_large_on_cpu(_: Any, tensor: torch.Tensor, *__: Any, **___: Any) -> bool:
    """Tell whether an operator computes so many numbers of float32 on the CPU that a faster kernel of PyTorch is worth a partition."""
    return tensor.dtype is torch.float32 and tensor.device.type == "cpu" and provenance.is_large(tensor)
