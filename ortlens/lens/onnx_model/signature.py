"""The inputs of a model: what it takes, what the user gave, and inputs made where none were given."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ortlens.errors import UsageError, near_hint

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

Feed: TypeAlias = dict[str, Any]  # values by input: numpy arrays, lists of them for sequences, None for an optional one
_NUMPY = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bool": "bool",
    "string": "object",
    **{name: name for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
}
_SHORT = {"float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16", "string": "str"} | {
    f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (4, 8, 16, 32, 64)
}
BY_BITS = {
    "bfloat16": "bfloat16",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
}
"""Element types that numpy passes as unsigned integers of the same width, and what torch calls them."""

_TENSOR = re.compile(r"(?P<wrap>(?:\w+\()*)tensor\((?P<element>\w+)\)+")
_PLUS = re.compile(r"\s*\+\s*")
_SEQUENCE_LENGTH = 2
_SIZES: Mapping[str, int] = {"batch": 1, "height": 224, "width": 224, "seq": 16, "len": 16, "time": 16, "token": 16, "channel": 3}
"""Sizes by what the name of a dimension contains."""

_MOST_DIMENSIONS = 32  # of numpy 1
_MOST_ELEMENTS = 1 << 28  # 1 GiB of float32
_LONGEST_NUMBER = 18

FALLBACK_SIZES = (None, 1, 2, 4, 8, 16, 32, 64, 128, 224)
"""Sizes that are tried one after the other for every symbolic dimension; None: by name and place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a model."""

    name: str
    type: str  # as ONNX Runtime writes it: `tensor(float)`, `seq(tensor(int64))`, `optional(tensor(float))`
    shape: tuple[int | str | None, ...] | None  # a name or None for a size that is not fixed; None: the rank is unknown

    @property
    def element(self) -> str:
        """Element type, such as `float`; empty for maps and unknown types."""
        match = _TENSOR.fullmatch(self.type)
        return match["element"] if match else ""

    @property
    def kind(self) -> str:
        """`tensor`, `seq`, `optional`, `optional(seq`, or what else ONNX Runtime calls it."""
        match = _TENSOR.fullmatch(self.type)
        return match["wrap"].strip("(") or "tensor" if match else self.type.partition("(")[0]

    @property
    def dtype(self) -> str | None:
        """Name in numpy of the element type; None where numpy has none."""
        return _NUMPY.get(self.element)

    def text(self, sizes: Sequence[object] | None = None) -> str:
        """Write the input in short, as on the command line: `f32[1,3,224,224]`."""
        shown = self.shape if sizes is None else sizes
        inner = "..." if shown is None else ",".join("?" if size is None else str(size) for size in shown)
        text = f"{_SHORT.get(self.element, self.element or self.type)}[{inner}]"
        return text if self.kind == "tensor" else f"{self.kind}({text})"


def inputs_of(structure: onnx.ModelProto) -> tuple[Input, ...]:
    """List the inputs of a model, without initializers, which models up to IR version 3 list as inputs too."""
    constants = {tensor.name for tensor in structure.graph.initializer}
    return tuple(
        Input(name=value.name, type=type_text(value.type), shape=_shape(value.type))
        for value in structure.graph.input
        if value.name not in constants
    )


def type_text(kind: onnx.TypeProto) -> str:
    """Write a type as ONNX Runtime does, such as `tensor(float)`."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        name = _element_text(getattr(kind, which).elem_type)
        return f"{'sparse_' if which == 'sparse_tensor_type' else ''}tensor({name})"
    if which == "sequence_type":
        return f"seq({type_text(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({type_text(kind.optional_type.elem_type)})"
    if which == "map_type":
        return f"map({_element_text(kind.map_type.key_type)},{type_text(kind.map_type.value_type)})"
    return "unknown"


def _element_text(element: int) -> str:
    import onnx

    return onnx.TensorProto.DataType.Name(element).lower() if element in onnx.TensorProto.DataType.values() else str(element)


def tensor_of(kind: onnx.TypeProto) -> onnx.TypeProto.Tensor | None:
    """Return the type of a tensor, or of the tensors in a sequence or optional value; None for others."""
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        return tensor_of(getattr(kind, which).elem_type)
    return kind.tensor_type if which == "tensor_type" else None


def _shape(kind: onnx.TypeProto) -> tuple[int | str | None, ...] | None:
    tensor = tensor_of(kind)
    if tensor is None or not tensor.HasField("shape"):
        return None
    sizes = tensor.shape.dim
    return tuple(size.dim_value if size.HasField("dim_value") and size.dim_value >= 0 else size.dim_param or None for size in sizes)


def inputs_from_session(session: Any) -> tuple[Input, ...]:
    """List the inputs as a session reports them. A shape of no sizes may be that of a number, or unknown."""
    return tuple(
        Input(name=value.name, type=value.type, shape=tuple(size if size != "" else None for size in value.shape))
        for value in session.get_inputs()
    )


def feed_from(inputs: Sequence[Input], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Feed:
    """Put what the user gave into the form that ONNX Runtime takes; `args` are values in order, or one mapping of names to values."""
    first = args[0] if len(args) == 1 and not kwargs else None
    if isinstance(first, Mapping) and not (inputs and inputs[0].type.startswith("map")):
        args, kwargs = (), first
    signature = ", ".join(f"{each.name}={each.text()}" for each in inputs)
    if len(args) > len(inputs):
        raise UsageError(f"{len(args)} inputs were given, and the model takes {len(inputs)}: {signature}")
    given = dict(zip([each.name for each in inputs], args, strict=False))
    if twice := sorted(given.keys() & kwargs.keys()):
        raise UsageError(f"the input {twice[0]!r} is given twice, by place and by name; the model takes {signature}")
    given |= kwargs
    known = {each.name: each for each in inputs}
    for name in given:
        if name not in known:
            raise UsageError(f"the model has no input {name!r}.{near_hint(name, known)} It takes {signature or 'none'}")
    missing = [each.name for each in inputs if each.name not in given and not each.kind.startswith("optional")]
    if missing:
        raise UsageError(f"no value for the input {', '.join(map(repr, missing))}; the model takes {signature}")
    return {each.name: _value(each, given.get(each.name)) for each in inputs}


def feeds_from(inputs: Sequence[Input], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Feed]:
    """Do the same for each of several mappings, which are a call each; return no call where nothing was given."""
    if len(args) > 1 and not kwargs and all(isinstance(each, Mapping) for each in args) and not inputs[0].type.startswith("map"):
        return [feed_from(inputs, (each,), {}) for each in args]
    return [feed_from(inputs, args, kwargs)] if args or kwargs else []


def feed_for(wanted: Sequence[Input], feed: Feed, models: tuple[str, str]) -> Feed:
    """Give a model the inputs of another, which `models` names first: by names, or else by places; floats in its own type.

    Raises `UsageError` if it takes others, or what are no arrays.
    """
    given = {name: value for name, value in feed.items() if value is not None}
    names = [each.name for each in wanted]
    pairs = list(zip(wanted, names if given.keys() >= {*names} else given, strict=False))
    other = "they are not the same function"
    if not len(pairs) == len(names) == len(given):
        raise UsageError(f"{models[0]} takes {', '.join(given)}, and {models[1]} {', '.join(names)}: {other}")
    found: Feed = {}
    for each, name in pairs:
        value, dtype = given[name], np.dtype(each.dtype or object)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc" or dtype.kind != value.dtype.kind:
            kind = getattr(value, "dtype", type(value).__name__)
            raise UsageError(f"{models[0]} takes {name} as {kind}, and {models[1]} {each.name} as {each.type}: {other}, or not of arrays")
        found[each.name] = value.astype(dtype) if dtype.kind == "f" else value
    return found


def _value(of: Input, value: Any) -> Any:
    if value is None:
        if not of.kind.startswith("optional"):
            raise UsageError(f"the input {of.name!r} is None, and the model takes {of.text()}")
        return None
    if of.kind.endswith("seq"):
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"the input {of.name!r} is {of.type}: give a list, not {type(value).__name__}")
        return [_array(of, item) for item in value]
    if of.type.startswith("map") or type(value).__name__ in ("OrtValue", "SparseTensor"):
        return value
    return _array(of, value)


def _array(of: Input, value: Any) -> Any:
    found = _numpy_from(value, of)
    wanted = of.dtype
    if wanted is None or found.dtype == np.dtype(wanted):
        return found
    if not hasattr(value, "dtype") or (wanted == "object" and found.dtype.kind in "US"):  # a list or number of Python
        return found.astype(wanted)
    raise UsageError(f"the input {of.name!r} is {found.dtype}, and the model takes {of.text()}; convert it with .astype({wanted!r})")


def _numpy_from(value: Any, of: Input) -> Any:
    if type(value).__module__.partition(".")[0] == "torch" or hasattr(value, "resolve_conj"):
        plain = value.detach().cpu()
        if "bfloat16" in str(plain.dtype) or "float8" in str(plain.dtype):
            import torch

            return plain.contiguous().view(torch.int16 if "bfloat16" in str(plain.dtype) else torch.uint8).numpy()
        return np.ascontiguousarray(plain.numpy()).reshape(plain.shape)
    if type(value).__name__ == "TensorProto":
        from onnx import numpy_helper

        return numpy_helper.to_array(value)
    if hasattr(value, "dtype"):
        return np.asarray(value)
    try:
        return np.asarray(value, dtype=of.dtype)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the input {of.name!r} is {type(value).__name__}, and the model takes {of.text()}: {error}") from error


def generated(inputs: Sequence[Input], *, size: int | None = None, zeros: bool = False) -> tuple[Feed, dict[str, int]]:
    """Make inputs: standard normal floats, 0 or 1 for integers and truth values, which are safe as indices and masks.

    A symbolic dimension gets `size`, or a size by its name and place; these are returned too, by name, or by input and place as `x[0]`.
    """
    rng = np.random.default_rng(0)
    sizes: dict[str, int] = {}
    feed: Feed = {}
    for each in inputs:
        if each.kind.startswith("optional"):
            feed[each.name] = None
            continue
        if each.kind not in ("tensor", "seq") or not each.element:
            raise UsageError(f"the input {each.name!r} is {each.type}, which cannot be made up; give the inputs: {each.name}=...")
        shape = tuple(_sizes_of(each, sizes, size))
        if len(shape) > _MOST_DIMENSIONS or math.prod(shape) > _MOST_ELEMENTS:
            raise UsageError(
                f"the input {each.name!r} is {each.text(shape[:8])}, which cannot be made up; give the inputs: {each.name}=..."
            )
        made = [_random(each, shape, rng, zeros=zeros) for _ in range(_SEQUENCE_LENGTH)]
        feed[each.name] = made if each.kind == "seq" else made[0]
    return feed, sizes


def _sizes_of(of: Input, sizes: dict[str, int], size: int | None) -> Iterator[int]:
    shape = of.shape or ()
    for place, given in enumerate(shape):
        if isinstance(given, int):
            yield given
            continue
        parts = _PLUS.split(given) if given else [f"{of.name}[{place}]"]
        for part in parts:
            if part not in sizes:
                fixed = part.isdecimal() and len(part) <= _LONGEST_NUMBER
                sizes[part] = int(part) if fixed else size or _chosen(part if given else "", place, len(shape))
        yield sum(sizes[part] for part in parts)


def _chosen(name: str, place: int, rank: int) -> int:
    by_name = next((size for word, size in _SIZES.items() if word in name.lower()), None)
    if by_name is not None:
        return by_name
    if place == 0 and rank > 1:
        return 1
    image = 4
    if rank == image:
        return 3 if place == 1 else 224
    return 8


def _random(of: Input, shape: tuple[int, ...], rng: np.random.Generator, *, zeros: bool) -> Any:
    dtype = of.dtype
    if of.element == "string":
        return np.full(shape, "a", dtype=object)
    if dtype is None:  # types without a numpy dtype, by their bits: 0 is zero in all of them
        return np.zeros(shape, dtype=np.uint16 if of.element == "bfloat16" else np.uint8)
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    if dtype in ("int8", "uint8") and not zeros:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)
    return (np.zeros(shape) if zeros else rng.integers(0, 2, shape)).astype(dtype)


def shapes_of(feed: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of arrays and tensors by name."""
    return {name: tuple(value.shape) for name, value in feed.items() if isinstance(getattr(value, "shape", None), tuple)}


def described(inputs: Sequence[Input], feed: Mapping[str, Any]) -> str:
    """Write the inputs of a call in short: `x=f32[1,3,224,224] ids=i64[1,16]`."""
    return " ".join(f"{each.name}={_text_of(each, feed.get(each.name))}" for each in inputs)


def _text_of(of: Input, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return f"seq of {len(value)}"
    shape = getattr(value, "shape", None)
    return of.text(shape() if callable(shape) else shape) if shape is not None else of.text()
