"""Inputs as they are written on a command line: `f32[1,3,224,224]`, `mask=bool[1,16]`, `i64[1,16]:30522`, `3`, `true`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from ortlens.errors import UsageError
from ortlens.job.request import value_from_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import torch

_DTYPES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
}
_ALSO = {name: short for short, name in _DTYPES.items()} | {"int": "i64", "long": "i64", "float": "f32", "half": "f16", "double": "f64"}
_WHOLE_RANGE = {"i8": (-128, 128), "u8": (0, 256)}  # pixels and quantised values; wider ones are mostly indices, for which 0 and 1 are safe
_NAMED = re.compile(r"(?P<name>[A-Za-z_/][\w.:/-]*)=(?P<value>.*)", re.DOTALL)
_TENSOR = re.compile(r"(?P<dtype>\w*)\s*\[(?P<sizes>[^\]]*)(?P<close>\]?)(?P<rest>.*)", re.DOTALL)
_HELP = "A tensor is DTYPE[SIZES], for example f32[1,3,224,224] or i64[1,16]:1000 (values below 1000). Others: 3, 2.5, true, none, 'text'."


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor to be filled with random numbers."""

    dtype: str  # short name, as `f32`
    sizes: tuple[int, ...]
    low: float | None = None  # least value; None with `high` for the default of the dtype
    high: float | None = None  # values stay below it

    def _whole_range(self) -> tuple[int, int]:
        low, high = _WHOLE_RANGE.get(self.dtype, (0, 2)) if self.high is None else (self.low or 0, self.high)
        return int(low), int(high)

    def array(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Make the same kind of numbers as an array, for a model without PyTorch; raise `UsageError` if numpy has no such type."""
        dtype = _DTYPES[self.dtype]
        if self.dtype == "bf16":
            raise UsageError("--input: bf16 has no numpy type; an ONNX model with such inputs is explained without --input, or from Python")
        if not dtype.startswith("float"):
            return rng.integers(*self._whole_range(), self.sizes).astype(dtype)
        if self.high is None:
            return rng.standard_normal(self.sizes).astype(dtype)
        low = self.low or 0.0
        return (low + (self.high - low) * rng.random(self.sizes)).astype(dtype)

    def made(self, generator: torch.Generator) -> torch.Tensor:
        """Make the tensor: in the given range, else standard normal floats, and 0 or 1 for integers and truth values.

        Without a range, `i8` and `u8` span all their values.
        """
        import torch

        dtype: torch.dtype = getattr(torch, _DTYPES[self.dtype])
        if not dtype.is_floating_point:
            return torch.randint(*self._whole_range(), self.sizes, generator=generator, dtype=torch.int64).to(dtype)
        if self.high is None:
            return torch.randn(self.sizes, generator=generator).to(dtype)
        low = self.low or 0.0
        return (low + (self.high - low) * torch.rand(self.sizes, generator=generator, dtype=torch.float64)).to(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a target is called with: tensors still to be made, and plain values."""

    positional: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()

    def arrays(self, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Make the tensors as numpy arrays: arguments by place, and by name."""
        import numpy as np

        rng = np.random.default_rng(seed)
        return self._filled(lambda spec: spec.array(rng))

    def made(self, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Make the tensors, the same ones for the same seed: arguments by place, and by name."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        return self._filled(lambda spec: spec.made(generator))

    def _filled(self, fill: Callable[[TensorSpec], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def value(given: Any) -> Any:  # noqa: ANN401 - any argument
            return fill(given) if isinstance(given, TensorSpec) else given

        return tuple([value(given) for given in self.positional]), {name: value(given) for name, given in self.named}


def inputs_from_texts(texts: Sequence[str]) -> Inputs:
    """Read inputs, each a tensor or value, or `name=` and one; raise `UsageError`, which marks the place, for any other text."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for text in texts:
        if (match := _NAMED.fullmatch(text)) is None:
            positional.append(_value(text, text))
        elif match["name"] in named:
            _refuse(text, match.span("name"), f"the argument {match['name']!r} is given twice")
        else:
            named[match["name"]] = _value(text, match["value"])
    return Inputs(positional=tuple(positional), named=tuple(named.items()))


def _value(text: str, written: str) -> Any:  # noqa: ANN401 - any argument
    start = len(text) - len(written)
    if written[:1] not in ("'", '"', "[", "(", "{") and (match := _TENSOR.fullmatch(written)):
        return _tensor(text, start, match)
    value = value_from_text(written)
    if isinstance(value, str) and value == written:  # no quotes: more likely a slip than a text
        short = _ALSO.get(written.lower(), written.lower())
        hint = f"write {short}[] for a single number, {short}[1,3] for a tensor" if short in _DTYPES else "text needs its own quotes"
        _refuse(text, (start, len(text)), f"{written!r} is not a value; {hint}")
    return value


def _tensor(text: str, start: int, match: re.Match[str]) -> TensorSpec:
    def refuse(group: str, message: str) -> NoReturn:
        first, last = match.span(group)
        _refuse(text, (start + first, start + last), message)

    dtype = match["dtype"].lower()
    if (short := _ALSO.get(dtype, dtype)) not in _DTYPES:
        near = get_close_matches(dtype, [*_DTYPES, *_ALSO], n=1, cutoff=0.5)
        hint = f"; did you mean {_ALSO.get(near[0], near[0])}?" if near else "."
        refuse("dtype", f"unknown dtype {match['dtype']!r}{hint} Available: {' '.join(_DTYPES)}")
    if not match["close"]:
        refuse("close", "the bracket is not closed")
    sizes = _sizes(text, start + match.start("sizes"), match["sizes"])
    if not match["rest"]:
        return TensorSpec(dtype=short, sizes=sizes)
    low, high = _range(text, start + match.start("rest"), match["rest"], short)
    return TensorSpec(dtype=short, sizes=sizes, low=low, high=high)


def _sizes(text: str, start: int, written: str) -> tuple[int, ...]:
    sizes: list[int] = []
    for part in written.split(",") if written.strip() else ():
        number = part.strip()
        if not (number.isascii() and number.isdecimal()):
            what = f"{number!r} is not a size" if number else "a size is missing"
            _refuse(text, (start, start + len(part)), f"{what}; sizes are whole numbers from 0, separated by commas")
        sizes.append(int(number))
        start += len(part) + 1
    return tuple(sizes)


def _range(text: str, start: int, written: str, dtype: str) -> tuple[float | None, float]:
    """Read `:HIGH` or `:LOW:HIGH`."""
    here = (start, start + len(written))
    parts = [value_from_text(part) for part in written[1:].split(":")]
    numbers = [part for part in parts if isinstance(part, (int, float)) and not isinstance(part, bool)]
    if not written.startswith(":") or len(numbers) != len(parts) or len(parts) > 2:  # noqa: PLR2004 - a low and a high
        _refuse(text, here, "after the bracket, only a range may follow, such as :1000 (from 0 to below 1000) or :-1:1")
    low, high = (None, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    if dtype == "bool":
        _refuse(text, here, "bool takes no range")
    if not (low or 0) < high:
        _refuse(text, here, f"the range from {low or 0} to below {high} is empty")
    if not dtype.startswith(("f", "bf")) and any(int(number) != number for number in numbers):
        _refuse(text, here, f"a range of {dtype} needs whole numbers")
    return low, high


def _refuse(text: str, place: tuple[int, int], message: str) -> NoReturn:
    first, last = place
    marks = " " * first + "^" * max(last - first, 1)
    raise UsageError(f"--input: {message}.\n  {text}\n  {marks}\n{_HELP}")
