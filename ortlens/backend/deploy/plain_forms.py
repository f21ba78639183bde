"""Write a deployed model in forms that no rewrite of ONNX Runtime takes wrongly: whoever runs it has none of our session options.

For our own sessions these rewrites are disabled (`runtime/rewrites.py`); `tests/faults/faults.toml` has them by version. A Sum computes
what an Add does, or, of one value, an Identity; no rewrite merges it with a norm, a product or a Transpose, nor removes it.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ortlens.backend.runtime.rewrites import MOVES, moves_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

_SUMMED = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)  # the types of a Sum on the CPU
_DIVIDED = (*_SUMMED, ir.DataType.INT32, ir.DataType.INT64)  # those that DivMulFusion takes
_NORM_STEPS = 4  # at most: a conversion, the scale, another conversion, the bias


def write_plain_forms(model: ir.Model) -> None:
    """Change a model, whose weights are initializers, in place."""
    forms = _PlainForms(model.graph)
    for node in forms.nodes:
        if (write := _FORMS.get(node.op_type)) is not None and not node.domain:
            write(forms, node)


class _PlainForms:
    """Writes the forms of one model, by operator."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._numbers = itertools.count()
        self.nodes = list(ir.traversal.RecursiveGraphIterator(graph))
        self._fixed = set(graph.initializers.values())  # what ONNX Runtime may compute when it loads the model
        for node in self.nodes:
            if node.inputs and all(value is None or value in self._fixed for value in node.inputs):
                self._fixed.update(node.outputs)

    def addition(self, node: ir.Node) -> None:
        """Write an Add that NoopElimination would drop, or a rewrite of norms misread, as a Sum."""
        if _type_of(node) in _SUMMED and (any(map(self._may_be_zero, node.inputs)) or self._is_misread(node)):
            node.op_type = "Sum"

    def difference(self, node: ir.Node) -> None:
        """Write a Sub of -0.0, which is an Add of 0.0, likewise."""
        kind = _type_of(node)
        if kind in _SUMMED and str(_number(node.inputs[1])) == "-0.0":
            node.replace_input_with(1, self._constant(np.zeros((), kind.numpy())))
            node.op_type = "Sum"

    def _may_be_zero(self, value: ir.Value | None) -> bool:
        """Tell whether a value is 0.0, of one element, or nothing: without the Add, -0.0 stays -0.0, and one row stays one row."""
        if value not in self._fixed or _count(value) not in (0, 1, None):
            return False
        number = _number(value)
        return number is None or str(number) == "0.0"

    def _is_misread(self, node: ir.Node) -> bool:
        """Tell whether a fused norm would have another epsilon, 1e-5, or a scale or bias that is larger than what is normalised."""
        first, second = node.inputs
        roots = [use.node.outputs[0] for use in node.outputs[0].uses() if use.node.op_type == "Sqrt"]
        if not roots or "ReduceMean" not in {_operator(first), _operator(second)}:
            return False
        is_read = second in self._fixed and second is not None and second.dtype == ir.DataType.FLOAT
        return not is_read or any(map(self._widens, roots))

    def _widens(self, root: ir.Value) -> bool:
        """Tell whether a scale or a bias broadcasts, or may broadcast, what a square root, or its reciprocal, divides."""
        divided: list[ir.Value] = []
        for use in root.uses():
            if use.node.op_type == "Reciprocal" or (use.node.op_type == "Div" and use.node.inputs[0] in self._fixed):
                if self._widens(use.node.outputs[0]):
                    return True
            elif use.node.op_type in {"Div", "Mul"}:
                divided.append(use.node.outputs[0])
        for _ in range(_NORM_STEPS):
            steps = [
                (value, use.node.outputs[0]) for value in divided for use in value.uses() if use.node.op_type in {"Add", "Cast", "Mul"}
            ]
            if any(value.shape is None or value.shape != made.shape for value, made in steps):
                return True
            divided = [made for _, made in steps]
        return False

    def quotient(self, node: ir.Node) -> None:
        """Write 1 / x as -(-1 / x) where a Mul follows: DivMulFusion makes y / x of 1 / x * y, also of integers, and may lose y."""
        one, kind = node.inputs[0], _type_of(node)
        if kind in _DIVIDED and _number(one) == 1 and "Mul" in {use.node.op_type for use in node.outputs[0].uses()}:
            node.replace_input_with(0, self._constant(np.array(-1, kind.numpy())))
            self._insert("Neg", node.outputs[0])

    def pool(self, node: ir.Node) -> None:
        """Name the axes of a Pad: Pad_Fusion makes one without a part of a MaxPool, which pads with -inf in place of zeros."""
        pad = _behind_cast(node.inputs[0])
        if pad is not None and pad.op_type == "Pad" and len(pad.inputs) <= 3 and (count := _count(pad.inputs[1])) is not None:  # noqa: PLR2004 - axes are the fourth
            pad.resize_inputs(4)
            pad.replace_input_with(3, self._constant(np.arange(count // 2)))

    def expansion(self, node: ir.Node) -> None:
        """Cut what is expanded to nothing down to nothing first: ExpandElimination drops an Expand of size 1 to size 0."""
        data, sizes = node.inputs
        if data is None or data.shape is None or sizes is None:
            return
        shape: Sequence[Any] = () if node.outputs[0].shape is None else node.outputs[0].shape.dims
        if sizes.const_value is not None:
            shape = sizes.const_value.numpy().tolist()
        axes = [place - len(shape) for place, size in enumerate(shape) if size == 0]
        if axes and len(shape) <= len(data.shape):  # of fewer dimensions than it makes, it is not dropped
            bound = self._constant(np.zeros(len(axes), np.int64))
            self._insert("Slice", data, bound, bound, self._constant(np.array(axes)), reader=(node, 0))

    def product(self, node: ir.Node) -> None:
        """Keep a product apart from what it is merged with wrongly."""
        kind = _type_of(node)
        if kind not in _SUMMED:
            return
        for place, value in enumerate(node.inputs):
            made = None if value is None else value.producer()
            if value is not None and made is not None and (self._scales_inexactly(made) or _is_turned(value, kind)):
                self._insert("Sum", value, reader=(node, place))
        uses = [use.node for use in node.outputs[0].uses()]
        if any(map(self._scales_inexactly, uses)) or any(use.op_type in MOVES and _is_normalised(use) for use in uses):
            self._insert("Sum", node.outputs[0])

    def _scales_inexactly(self, node: ir.Node) -> bool:
        """Tell whether a node scales float64 by a number other than a power of two: MatMulScaleFusion keeps that as a float32."""
        if node.op_type not in {"Mul", "Div"} or _type_of(node) != ir.DataType.DOUBLE:
            return False
        numbers = [_number(value) for value in node.inputs if value in self._fixed and _count(value) in (1, None)]
        return any(number is None or abs(math.frexp(number)[0]) != 0.5 for number in numbers)  # noqa: PLR2004 - so is a power of two

    def _insert(self, op_type: str, value: ir.Value, *others: ir.Value, reader: tuple[ir.Node, int] | None = None) -> None:
        """Insert a node between a value and one reader, or all of them."""
        made = ir.node(op_type, [value, *others], name=f"{value.name}/{op_type}")
        made.outputs[0].name, made.outputs[0].type = f"{value.name}:{op_type}:{next(self._numbers)}", value.type
        readers = [(use.node, use.idx) for use in value.uses() if use.node is not made] if reader is None else [reader]
        before: Any = value.producer() if reader is None else reader[0]
        (before.append if reader is None else before.prepend)(made)
        for node, place in readers:
            node.replace_input_with(place, made.outputs[0])

    def _constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        name = f"{array.dtype}{array.tolist()}:plain"
        if name not in self._graph.initializers:
            self._graph.register_initializer(ir.Value(name=name, const_value=ir.tensor(array, name=name)))
        return self._graph.initializers[name]


_FORMS = {
    "Add": _PlainForms.addition,
    "Sub": _PlainForms.difference,
    "Div": _PlainForms.quotient,
    "Expand": _PlainForms.expansion,
    "MatMul": _PlainForms.product,
    "MaxPool": _PlainForms.pool,
}


def _type_of(node: ir.Node) -> Any:
    """Return the type that all values of a node share, as far as one of them has it."""
    values = (*node.outputs, *node.inputs)
    return next((value.dtype for value in values if value is not None and value.dtype is not None), None)


def _operator(value: ir.Value | None) -> str:
    made = None if value is None else value.producer()
    return "" if made is None else made.op_type


def _count(value: ir.Value | None) -> int | None:
    """Count the elements of a value, if its sizes are known."""
    shape = None if value is None else value.shape
    sizes = [None] if shape is None else [size if isinstance(size, int) else None for size in shape.dims]
    return None if None in sizes else math.prod(filter(None, sizes)) if 0 not in sizes else 0


def _number(value: ir.Value | None) -> float | None:
    """Return the value of a constant of one element."""
    constant = None if value is None else value.const_value
    return None if constant is None or constant.size != 1 else float(constant.numpy().item())


def _behind_cast(value: ir.Value | None) -> ir.Node | None:
    """Return the node that makes a value, or, behind one Cast, the value that it converts."""
    made = None if value is None else value.producer()
    return made if made is None or made.op_type != "Cast" or made.inputs[0] is None else made.inputs[0].producer()


def _is_turned(value: ir.Value, kind: ir.DataType) -> bool:
    """Tell whether a Cast, also one that is added to compute float16, follows a Transpose of the first dimension.

    MatmulTransposeFusion swaps the two and leaves a graph behind that ends the process.
    """
    made = _behind_cast(value)
    if made is None or made.op_type != "Transpose" or "perm" not in made.attributes:
        return False
    return moves_batch(made.attributes["perm"].as_ints()) and (kind == ir.DataType.FLOAT16 or value.producer() is not made)


def _is_normalised(node: ir.Node) -> bool:
    """Tell whether a batch normalisation follows, maybe behind moves: MatMul_BatchNormalization_Fusion scales the last dimension."""
    return node.op_type == "BatchNormalization" or (
        node.op_type in MOVES and any(_is_normalised(use.node) for use in node.outputs[0].uses())
    )
