"""The operators that ONNX Runtime computes rightly and far more slowly than PyTorch, which keeps them."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens.backend.basis import provenance
from ortlens.backend.lowering import decompositions, whole_operators
from ortlens.backend.partitioning import kernel_times
from ortlens.backend.partitioning.rules import Call, Rule, by_target, first_reason
from ortlens.units import time_from_ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_aten = torch.ops.aten
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
_SMALL_KERNEL = 3
"""The largest kernel of a strided transposed convolution in three dimensions that ONNX Runtime computes in 0.4 to 1.15 of oneDNN's time."""
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


def _writes_into_constant(call: Call) -> bool:
    source, table = call.node.args[0], call.result
    is_constant = call.node.target is whole_operators.ONE_HOT or (isinstance(source, torch.fx.Node) and source.target is _aten.full.default)
    return is_constant and table is not None and table.device.type == "cpu" and provenance.is_large(table)


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


def _is_deep_in_onednn(call: Call) -> bool:
    weight, result = call.tensor(1), call.result
    if weight is None or weight.dim() != 5:  # noqa: PLR2004 - three dimensions of pixels
        return False
    if result is None or result.device.type != "cpu" or not provenance.is_large(result):
        return False
    steps, kernel = (max(map(_torch.size_hint, sizes)) for sizes in (call["stride"], weight.shape[2:]))
    if call["transposed"] and steps > 1 and kernel <= _SMALL_KERNEL:
        return False
    arguments: Any = torch.fx.node.map_arg(call.node.args, lambda source: source.meta["val"])
    return _torch.convolution_is_in_onednn(*arguments)


def _is_split_in_ort(call: Call) -> bool:
    arguments: Any = torch.fx.node.map_arg(call.node.args, lambda source: source.meta["val"])
    return not whole_operators.is_one_in_ort(call.node.target, *arguments)


def _spreads_over_all(call: Call) -> bool:
    """Tell whether a variance is that of all numbers: PyTorch then rounds their mean to float32, which shows beside a large mean."""
    result = call.result
    is_narrow = result is not None and result.dtype is torch.float32 and result.device.type == "cpu"
    return is_narrow and statically_known_true(result.numel() == 1)  # type: ignore[union-attr]  # narrow ones are tensors


def _loses(call: Call) -> str | None:
    lost_ns = kernel_times.lost_by_one(call)
    if not lost_ns:
        return None
    return f"{_ON_PURPOSE}of so many numbers ONNX Runtime takes longer than PyTorch, by about {time_from_ns(lost_ns)} on one thread"


SLOW = (
    Rule(kernel_times.APART, "", _loses, figure="one thread: `kernel_times`"),
    Rule(
        whole_operators.INTERPOLATIONS,
        f"{_ON_PURPOSE}ONNX Runtime interpolates by such factors at slightly other places, or in 2 to 10 times the time",
        _is_split_in_ort,
        figure="one thread, 256 images of 56 x 56 to 112 x 112: cubic 24 ms, by Resize 223 ms, by gathers 88 ms; linear 4.8, 4.4 and 27 ms",
    ),
    Rule(
        (_aten.convolution.default,),
        f"{_ON_PURPOSE}ONNX Runtime takes 1.3 to 3.5 times as long for 3D convolutions that PyTorch passes to oneDNN",
        _is_deep_in_onednn,
        figure="one thread, two volumes of 16 channels of 16 x 28 x 28: oneDNN 4.2 ms, ONNX Runtime 6.8 ms; one, which PyTorch computes "
        "itself: PyTorch 9.0 ms, ONNX Runtime 3.4 ms",
    ),
    Rule(
        whole_operators.ATTENTION,
        f"{_ON_PURPOSE}of so many rows it leaves out the half that is masked, ONNX Runtime computes all in 1.6 to 2 times the time",
        figure="one thread, 8 heads of 64, causal: 512 rows 7.3 and 8.5 ms, 1024 rows 20 and 33 ms, 2048 rows 65 and 135 ms",
    ),
    Rule(
        (_aten.var.correction, _aten.std.correction),
        f"{_ON_PURPOSE}of all numbers ONNX Runtime takes 1.7 times as long, and rounds their mean otherwise",
        _spreads_over_all,
        figure="one thread, 1000 x 1000: PyTorch 590 us, in float64 990 us",
    ),
    Rule(
        (_aten.max_pool1d.default,),
        f"{_ON_PURPOSE}ONNX Runtime takes about 8 times as long",
        figure="one thread, 128 rows of 2048, by twos: PyTorch 59 us, MaxPool 490 us",
    ),
    Rule(
        (whole_operators.CIRCULAR,),
        f"{_ON_PURPOSE}PyTorch writes each number once, ONNX Runtime joins the parts dimension by dimension, in twice the time",
        figure="one thread, 128 images of 4 x 32 x 32, by one on each side: PyTorch 190 us, Concat 360 us",
    ),
    Rule(
        (_aten.diag_embed.default,),
        f"{_ON_PURPOSE}PyTorch writes the diagonal alone, ONNX Runtime chooses each number, in 1.4 times as long",
        figure="one thread, 64 x 1024: PyTorch 111 ms, Where 151 ms",
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
        (_aten.scatter.src, _aten.scatter.value, whole_operators.ONE_HOT),
        f"{_ON_PURPOSE}PyTorch writes into the constant itself, ONNX Runtime into a copy of it",
        _writes_into_constant,
        figure="one thread, the one-hot rows of 1024 of 1024 classes: PyTorch 115 us, ScatterElements 560 us, comparisons 740 us",
    ),
    Rule(
        (_aten.max_pool2d_with_indices.default,),
        f"{_ON_PURPOSE}ONNX Runtime loses NaN and its place, and with the operators that find them a pool takes about twice as long",
        _has_large_indices,
        figure="one thread, 16 images of 32 channels of 64 x 64 and two smaller layers: the forward of a convolutional net takes 56 ms, "
        "with its pools in PyTorch 40 ms",
    ),
    Rule(decompositions.WHOLE_GRADIENTS, f"{_ON_PURPOSE}PyTorch computes it in one pass, ONNX Runtime in many"),
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
