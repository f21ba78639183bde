"""What keeps an operator in PyTorch: rows of the tables of slow and of wrong ONNX functions, and how they are read."""

from __future__ import annotations

import functools
import math
import operator
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.fx

from ortlens import _torch
from ortlens.backend.lowering import decompositions, provenance
from ortlens.units import time_from_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class Call:
    """A node with its arguments by name: tensors and numbers as their example values, with the defaults of those that are not given."""

    def __init__(self, node: torch.fx.Node) -> None:
        """Read the arguments of a node when they are first asked for."""
        self.node = node

    @functools.cached_property
    def _given(self) -> dict[str, Any]:
        target: Any = self.node.target
        schema = target._schema.arguments  # noqa: SLF001 - the operator's schema
        given = dict(zip((argument.name for argument in schema), self.node.args, strict=False)) | self.node.kwargs
        values = {argument.name: given.get(argument.name, argument.default_value) for argument in schema}
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


class Rule(NamedTuple):
    """Why some operators stay in PyTorch."""

    targets: Sequence[Any]  # the operators
    reason: str  # the text that users read, after the name of the operator; empty where `when` returns it
    when: Callable[[Call], Any] = lambda _: True  # tells for which calls it holds; a text that it returns is the reason
    figure: str = ""  # what was measured
    fault: str = ""  # name of the fault of ONNX Runtime, whose row in `backend/faults` has its versions and issue


def by_target(rules: Iterable[Rule]) -> Mapping[Any, Sequence[Rule]]:
    """Index a table by operator."""
    found: dict[Any, list[Rule]] = defaultdict(list)
    for rule in rules:
        for target in rule.targets:
            found[target].append(rule)
    return found


def first_reason(rules: Mapping[Any, Sequence[Rule]], node: torch.fx.Node) -> str | None:
    """Find the reason of the first rule that holds for a node; None if none does."""
    call = Call(node)
    for rule in rules.get(node.target, ()):
        if found := rule.when(call):
            return found if isinstance(found, str) else rule.reason
    return None


def tensor_of(value: Any) -> torch.Tensor | None:
    """Return the example of a node; None if it is no tensor."""
    held = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    return held if isinstance(held, torch.Tensor) else None


_aten, _prims = torch.ops.aten, torch.ops.prims
_TRANSFORMS = (_aten._fft_r2c.default, _aten._fft_c2c.default, _aten._fft_c2r.default)  # noqa: SLF001 - names of operators
BAGS = (
    *(_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default),  # noqa: SLF001 - same
    *(_aten.embedding_bag.default, _aten.embedding_bag.padding_idx),
)
_SUMS = {
    _aten._unsafe_index_put.default: 1,  # noqa: SLF001 - same
    _aten.embedding_dense_backward.default: 0,
    _aten.index_add.default: 1,
    _aten.index_put.default: 1,
    _aten.scatter_add.default: 1,
    _aten.scatter_reduce.two: 1,
}
"""Sums at indices -> the first of the tensors that are added and of their indices."""
_ON_PURPOSE = "stays in PyTorch on purpose: "


def _has_large_indices(call: Call) -> bool:
    """Tell whether the places of the maxima of a pool are read, and there are many."""
    read = any(user.target is not operator.getitem or user.args[1] == 1 for user in call.node.users)
    return read and provenance.is_large(call.node.meta["val"][1])


def _adds_rows(call: Call) -> bool:
    node = call.node
    if node.target not in _SUMS or (node.target in (_aten.scatter_add.default, _aten.scatter_reduce.two) and not _has_row_index(node)):
        return False
    if node.target in (_aten.index_put.default, _aten._unsafe_index_put.default) and not (len(node.args) > 3 and node.args[3]):  # noqa: PLR2004, SLF001 - its place in the schema
        return False
    added = [tensor for source in node.all_input_nodes[_SUMS[node.target] :] for tensor in provenance.tensors_in(source.meta.get("val"))]
    return any(map(provenance.is_large, added))


def _has_row_index(scatter: torch.fx.Node) -> bool:
    """Tell whether an operator of the family of `scatter` takes whole rows of a table."""
    table, dim, index = scatter.args[:3]
    is_view = isinstance(index, torch.fx.Node) and index.target is _aten.expand.default
    return is_view and isinstance(table, torch.fx.Node) and dim in (0, -table.meta["val"].dim())


def _serves(call: Call, targets: Sequence[Any]) -> bool:
    """Tell whether all that reads a node are rows of the table for some operators."""
    users = list(call.node.users)
    return bool(users) and all(user.target in targets for user in users)


def _serves_sums(call: Call) -> bool:
    return _serves(call, tuple(_SUMS)) and all(_adds_rows(Call(user)) for user in call.node.users)


_LOST_NS: Mapping[Any, Callable[[Call], float]] = {
    _aten.amax.default: lambda _: 0.4,
    _aten.amin.default: lambda _: 0.4,
    _aten.argmax.default: lambda call: 0.2 if call["dim"] is None else 1.2,
    _aten.argmin.default: lambda call: 0.2 if call["dim"] is None else 1.2,
    _aten.bucketize.Tensor: lambda _: 48.0,
    _aten.cumsum.default: lambda call: 2.4 if _is_innermost(call) else 0.0,
    _aten.elu.default: lambda call: 0.4 if call["scale"] == 1 else 1.2,
    _aten.flip.default: lambda _: 0.8,
    _aten.hardshrink.default: lambda _: 0.5,
    _aten.huber_loss.default: lambda _: 1.2,
    _aten.linalg_vector_norm.default: lambda call: 0.7 if call["ord"] == 2 and _is_innermost(call) else 0.0,  # noqa: PLR2004 - the usual norm
    _aten.log.default: lambda _: 0.5,
    _aten.log1p.default: lambda _: 4.0,
    _aten.mish.default: lambda _: 8.4,
    _aten.prelu.default: lambda _: 4.6,
    _aten._prelu_kernel.default: lambda _: 4.6,  # noqa: SLF001 - an operator's name
    _aten.prod.dim_int: lambda call: 0.8 if _is_innermost(call) else 0.0,
    _aten.remainder.Scalar: lambda _: 6.0,
    _aten.remainder.Tensor: lambda _: 6.0,
    _aten.sign.default: lambda _: 1.7,
    _aten.sin.default: lambda _: 0.7,
    _aten.smooth_l1_loss.default: lambda _: 1.2,
    _aten.softplus.default: lambda _: 13.9,
    _aten.softshrink.default: lambda _: 2.8,
    _aten.sort.default: lambda call: 16.0 if _is_innermost(call) else 0.0,
    _aten.sort.stable: lambda call: 16.0 if _is_innermost(call) else 0.0,
    _aten.topk.default: lambda call: 1.8 if _is_innermost(call) else 0.0,
}
"""Operator -> how much longer ONNX Runtime's kernel, or what the operator is made of, takes than PyTorch's, in ns per float32 of its first
argument: one thread, 512 x 1024, onnxruntime 1.31.1, torch 2.13.0, by `benchmarks/bench_operators.py`. Not what ONNX Runtime fuses with its
neighbours: squares in a normalisation, cubes in a GELU, sigmoids."""
_WORTH_NS = 100_000
"""A loss from which on two partitions, with PyTorch between them, are faster than one."""


def _is_innermost(call: Call) -> bool:
    """Tell whether an operator works along the last dimension alone."""
    dim, x = call["dim"], call.tensor(0)
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return x is not None and len(dims) == 1 and dims[0] in (-1, x.dim() - 1)


def _loses(call: Call) -> str | None:
    x = call.tensor(0)
    if x is None or x.dtype is not torch.float32 or x.device.type != "cpu":
        return None
    lost_ns = _LOST_NS[call.node.target](call) * math.prod(map(_torch.size_hint, x.shape))
    if lost_ns < _WORTH_NS:
        return None
    return f"{_ON_PURPOSE}of so many numbers ONNX Runtime takes longer than PyTorch, by about {time_from_ns(lost_ns)} on one thread"


SLOW = (
    Rule(
        tuple(_LOST_NS),
        "",
        _loses,
        figure="see `_LOST_NS`",
    ),
    Rule(
        BAGS,
        f"{_ON_PURPOSE}PyTorch adds the rows where they lie, ONNX Runtime would copy them first and take 3 to 60 times as long",
        figure="one thread, 1024 bags of 8 rows of 64: PyTorch 60 us, Gather and ReduceSum 310 us, padded to the longest bag 850 us, "
        "ScatterElements 4.1 ms",
    ),
    Rule(
        tuple(_SUMS),
        f"{_ON_PURPOSE}it adds whole rows, ONNX Runtime single numbers, in 5 to 15 times as long",
        _adds_rows,
        figure="one thread, 3000 rows of 64 numbers: PyTorch 45 us, ScatterElements 680 us, ScatterND 41 us, but it loses rows with "
        "several threads",
    ),
    Rule(
        (_aten.max_pool2d_with_indices.default,),
        f"{_ON_PURPOSE}ONNX Runtime loses NaN and its place, and with the operators that find them a pool takes about twice as long",
        _has_large_indices,
        figure="one thread, 16 images of 32 channels of 64 x 64 and two smaller layers: the forward of a convolutional net takes 56 ms, "
        "with its pools in PyTorch 40 ms",
        fault="max_pool_of_nan",
    ),
    Rule(decompositions.WHOLE_GRADIENTS, f"{_ON_PURPOSE}PyTorch computes it in one pass, ONNX Runtime in many"),
    Rule(
        (_aten.lgamma.default, _aten.digamma.default, _aten.polygamma.default, _prims.lgamma.default, _prims.digamma.default),
        f"{_ON_PURPOSE}ONNX has no such operator, and made of some fifty others it takes 3 to 10 times as long",
        figure="one thread, 100,000 float32: PyTorch 2.5, 11 and 4 ms, some fifty ONNX operators 25, 30 and 19 ms",
    ),
    Rule(  # what `embedding_bag` makes of a table of ids: the offsets of its rows, and one row
        (_aten.arange.default, _aten.arange.start, _aten.arange.start_step, _aten.view.default),
        "only serves a bag of embeddings, which stays in PyTorch: a partition of its own would take longer",
        functools.partial(_serves, targets=BAGS),
    ),
    Rule(  # an index of rows: PyTorch adds whole rows where it sees that all numbers of a row have the same index
        (_aten.expand.default,),
        "only serves sums of rows, which stay in PyTorch and need its view of the index",
        _serves_sums,
    ),
)
SLOW_DEPLOYED = (
    Rule(
        _TRANSFORMS,
        f"{_ON_PURPOSE}ONNX Runtime's DFT takes 7 to 22 times as long and is less exact",
        figure="see docs/numerics.md",
    ),
)
"""Those that stay in PyTorch also in a model to deploy, where a slow form is otherwise better than none."""


@functools.cache
def _tables() -> tuple[Mapping[Any, Sequence[Rule]], Mapping[Any, Sequence[Rule]]]:
    return by_target((*SLOW_DEPLOYED, *SLOW)), by_target(SLOW_DEPLOYED)


def slow_in_ort(node: torch.fx.Node, *, deployed: bool) -> str | None:
    """Explain why an operator stays in PyTorch for its speed; None when it may go to ONNX Runtime."""
    return first_reason(_tables()[deployed], node)
