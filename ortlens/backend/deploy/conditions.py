"""Conditions on the sizes of a model's inputs, as nodes: a run with other sizes fails, and the failing node has the condition as its name.

A condition is what `freeze.signature.admits` evaluates, or `["same", size, ...]`.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.backend.deploy.signature import Leaf

_BOOL, _INT, _DOUBLE = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.DOUBLE
_TYPES = {bool: _BOOL, int: _INT, float: _DOUBLE}
_COMPARED = {"==": "Equal", "<": "Less", "<=": "LessOrEqual", ">": "Greater", ">=": "GreaterOrEqual"}
_SAME_TYPE = {"+": "Add", "-": "Sub", "*": "Mul", "max": "Max", "min": "Min", "abs": "Abs"}
_OF_DOUBLES = {"/": "Div", "sqrt": "Sqrt", "ceil": "Ceil", "floor": "Floor", "round": "Round"}
_TO_WHOLE = frozenset({"ceil", "floor", "round", "trunc"})
_JOINED = {"and": "And", "or": "Or"}


def reduced(condition: Any, leaves: Sequence[Leaf]) -> Any:
    """Put in the sizes that are numbers; a condition on these alone becomes True."""
    found = _with_numbers(condition, leaves)
    return found if _varies(found) else True


def _with_numbers(condition: Any, leaves: Sequence[Leaf]) -> Any:
    if not isinstance(condition, list):
        return condition
    kind, *operands = condition
    if kind == "size":
        size = leaves[operands[0]].sizes[operands[1]]  # type: ignore[union-attr]  # only tensors have sizes
        return size if isinstance(size, int) else condition
    if kind == "value":
        return condition
    made = [kind, *(_with_numbers(operand, leaves) for operand in operands)]
    return made[1] if kind in _JOINED and len(made) == 2 else made  # noqa: PLR2004 - the kind, and one operand


def _varies(condition: Any) -> bool:
    return isinstance(condition, list) and (condition[0] in {"size", "value"} or any(map(_varies, condition[1:])))


def condition_text(condition: Any, names: Sequence[str], *, inner: bool = False) -> str:
    """Write a condition as Python over `name.shape[0]`; an `inner` one in parentheses."""
    if not isinstance(condition, list):
        return str(condition)
    kind, *operands = condition
    if kind in {"size", "value"}:
        return names[operands[0]] + (f".shape[{operands[1]}]" if kind == "size" else "")
    texts = [condition_text(operand, names, inner=True) for operand in operands]
    if kind == "if":
        text = f"{texts[1]} if {texts[0]} else {texts[2]}"
    elif kind == "same" or (not kind[0].isalpha()) or kind in _JOINED:
        text = f" {'==' if kind == 'same' else kind} ".join(texts)
    else:
        return f"{kind}({', '.join(texts)})"
    return f"({text})" if inner else text


class ConditionWriter:
    """Writes conditions into a model."""

    def __init__(self, model: ir.Model, inputs: Sequence[ir.Value | None]) -> None:
        """Begin without any; `inputs` are those that conditions refer to by their places."""
        self._graph, self._inputs = model.graph, inputs
        self._nodes: list[ir.Node] = []
        self._made: dict[str, ir.Value] = {}
        self._zeros: list[ir.Value] = []

    def add(self, condition: Any, text: str, *, needed: bool = True) -> None:
        """Write the nodes of one condition; where ONNX has no form of it, raise `UsageError` if the condition is needed."""
        try:
            holds = self._value(condition)
        except NotImplementedError as error:
            if not needed:
                return
            raise UsageError(
                f"the condition {text} on sizes, under which the model was traced, cannot be written into it ({error}); "
                "export with sizes that do not vary, or trace the model with torch.export and narrower dynamic_shapes"
            ) from error
        fails = self._op("Cast", [self._op("Not", [holds], _BOOL)], _INT, to=_INT)
        self._zeros.append(self._op("Gather", [self._constant([0]), fails], _INT, name=f"requires {text}"))

    def number(self, expression: Any) -> ir.Value:
        """Write the nodes of a number, as a tensor without dimensions; raise `NotImplementedError` where ONNX has no form of it."""
        value = self._value(expression)
        return self._op("Squeeze", [value], value.dtype)

    def close(self) -> None:
        """Put the nodes before all others, and make an output depend on conditions, so that nobody takes them for unused."""
        if self._zeros:
            zero = self._op("ReduceMax", [self._op("Concat", self._zeros, _INT, axis=0)], _INT, keepdims=0)
        if (first := next(iter(self._graph), None)) is not None:
            self._graph.insert_before(first, self._nodes)
        else:
            self._graph.extend(self._nodes)
        self._nodes = []
        if not self._zeros:
            return
        outputs = list(self._graph.outputs)
        place = next((place for place, value in enumerate(outputs) if value.shape is not None and len(value.shape)), 0)
        self._graph.outputs[place] = self._through(outputs[place], zero)
        self._graph.extend(self._nodes)

    def _through(self, output: ir.Value, zero: ir.Value) -> ir.Value:
        """Return an output as it is, by way of a node that reads the zero that all conditions give where they hold."""
        rank = len(output.shape or ())
        name, output.name = output.name, f"{output.name}:inner"
        dtype: Any = output.dtype
        if rank:  # a shape of zeros is that of the tensor, which ONNX Runtime does not copy
            made = self._op("Reshape", [output, self._op("Add", [self._constant([0] * rank), zero], _INT)], dtype)
        else:
            made = self._op("Gather", [self._op("Unsqueeze", [output, self._constant([0])], dtype), zero], dtype)
        made.name, made.shape = name, output.shape
        return made

    def _op(self, op_type: str, inputs: Sequence[ir.Value], dtype: Any, name: str | None = None, **attributes: Any) -> ir.Value:
        node = ir.node(op_type, inputs, attributes, name=name or f"condition/{len(self._made)}")
        node.outputs[0].name, node.outputs[0].dtype = f"{node.name}:inner", dtype
        self._nodes.append(node)
        self._made[str(node.name)] = node.outputs[0]
        return node.outputs[0]

    def _constant(self, value: Any) -> ir.Value:
        name = f"condition/{value!r}"
        if name not in self._graph.initializers:
            tensor = ir.tensor(value, dtype=_TYPES[type(value[0])], name=name)
            constant = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([len(value)]), const_value=tensor)
            self._graph.register_initializer(constant)
        return self._graph.initializers[name]

    def _value(self, condition: Any) -> ir.Value:
        """Compute a number or a truth value, as a vector of one element; of several for sizes that are to be the same."""
        if not isinstance(condition, list):
            return self._constant([condition])
        kind, *operands = condition
        if kind in {"size", "value"}:
            return self._read(*operands)
        if kind == "if" and _is_truth(operands[1]):  # ONNX Runtime has no Where of these
            test, *branches = operands
            return self._value(["or", ["and", test, branches[0]], ["and", ["not", test], branches[1]]])
        if kind == "/" and not (isinstance(operands[1], (int, float)) and operands[1]):
            raise NotImplementedError("Python raises for a division by 0, and ONNX Runtime does not")
        values = [self._value(operand) for operand in operands]
        return self._logical(kind, values) or self._computed(kind, values)

    def _read(self, leaf: int, dim: int | None = None) -> ir.Value:
        source = self._inputs[leaf]
        if source is None:
            raise NotImplementedError("it refers to what is no input")
        if dim is None:
            return self._op("Reshape", [source, self._constant([1])], _INT)
        name = f"condition/{source.name}.{dim}"
        return self._made.get(name) or self._op("Shape", [source], _INT, name=name, start=dim, end=dim + 1)

    def _logical(self, kind: str, values: Sequence[ir.Value]) -> ir.Value | None:
        if kind == "same":
            return self._op("Equal", [self._op("Concat", values[1:], _INT, axis=0), values[0]], _BOOL)
        if kind in _JOINED:
            return reduce(lambda one, other: self._op(_JOINED[kind], [one, other], _BOOL), values)
        return self._op("Not", values, _BOOL) if kind == "not" else None

    def _computed(self, kind: str, values: Sequence[ir.Value]) -> ir.Value:
        if kind == "if":
            return self._op("Where", [values[0], *(branches := self._alike(values[1:]))], branches[0].dtype)
        alike = self._alike(values)
        dtype = alike[0].dtype
        if kind == "!=":
            return self._op("Not", [self._op("Equal", alike, _BOOL)], _BOOL)
        if kind in _COMPARED:
            return self._op(_COMPARED[kind], alike, _BOOL)
        if kind in _SAME_TYPE:
            return self._op(_SAME_TYPE[kind], alike, dtype)
        if kind in {"//", "%"} and dtype == _INT:
            return self._divided(*alike)[kind == "%"]
        return self._in_double(kind, [self._as(value, _DOUBLE) for value in values])

    def _divided(self, number: ir.Value, divisor: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Divide as Python does, and return quotient and rest; no processor is given the least integer divided by -1."""
        is_minus_one = self._op("Equal", [divisor, self._constant([-1])], _BOOL)
        safe = self._op("Where", [is_minus_one, self._constant([1]), divisor], _INT)
        rest = self._op("Mod", [number, safe], _INT)  # has the sign of the divisor
        quotient = self._op("Div", [self._op("Sub", [number, rest], _INT), safe], _INT)
        return self._op("Where", [is_minus_one, self._op("Neg", [number], _INT), quotient], _INT), rest

    def _in_double(self, kind: str, values: Sequence[ir.Value]) -> ir.Value:
        if kind in {"float", "trunc"}:
            made = values[0]
        elif kind in _OF_DOUBLES and len(values) == (2 if kind == "/" else 1):
            made = self._op(_OF_DOUBLES[kind], values, _DOUBLE)
        else:
            raise NotImplementedError(f"{kind!r} has no form in ONNX")
        return self._as(made, _INT) if kind in _TO_WHOLE else made

    def _alike(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Convert values to one type, as Python does."""
        kinds = {value.dtype for value in values}
        widest = next((kind for kind in (_DOUBLE, _INT) if kind in kinds), _BOOL)
        return [self._as(value, widest) for value in values]

    def _as(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return value if value.dtype == dtype else self._op("Cast", [value], dtype, to=dtype)


def _is_truth(condition: Any) -> bool:
    kind = condition[0] if isinstance(condition, list) else condition
    return isinstance(kind, bool) or kind in {*_COMPARED, *_JOINED, "!=", "not"}
