"""Targets and inputs as they are written on a command line: `MODULE:NAME`, imported from this folder; `f32[1,3]`, `mask=@mask.npy`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import pkgutil
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ortlens.errors import OrtLensError, UsageError, near_hint
from ortlens.job.request import value_from_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    import numpy as np


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

    def array(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Make the numbers: in the given range, else standard normal floats, and 0 or 1 for integers and truth values.

        Without a range, `i8` and `u8` span all their values. Those of `bf16`, which numpy has no type for, are `float32`.
        """
        import numpy as np

        dtype = "float32" if self.dtype == "bf16" else _DTYPES[self.dtype]
        low, high = _WHOLE_RANGE.get(self.dtype, (0, 2)) if self.high is None else (self.low or 0, self.high)
        if dtype.startswith("float"):
            made: Any = rng.standard_normal(self.sizes) if self.high is None else low + (high - low) * rng.random(self.sizes)
        else:
            made = rng.integers(int(low), int(high), self.sizes)
        return np.asarray(made, dtype)  # of no sizes, it is a number until now


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a target is called with: tensors still to be made, arrays and tensors of files, and plain values."""

    positional: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()
    calls: tuple[Inputs, ...] = ()  # those of each call, this first one among them: a folder holds several

    def arrays(self, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Make the tensors as numpy arrays: arguments by place, and by name. Raise `UsageError` for bf16, and for several calls."""
        if any(isinstance(given, TensorSpec) and given.dtype == "bf16" for given in (*self.positional, *dict(self.named).values())):
            raise UsageError("--input: bf16 has no numpy type; an ONNX model with such inputs is explained without --input, or from Python")
        return self._filled(seed, lambda array, _: array)

    def made(self, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Make the tensors, with the same numbers for the same seed, as `arrays` does."""
        import torch

        return self._filled(seed, lambda array, dtype: torch.from_numpy(array).to(getattr(torch, dtype) if dtype else None))

    def _filled(self, seed: int, made: Callable[[Any, str | None], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        import numpy as np

        if len(self.calls) > 1:
            raise UsageError(f"--input: this makes one call, and the folder holds {len(self.calls)}; name one of its files")
        rng = np.random.default_rng(seed)

        def value(given: Any) -> Any:  # noqa: ANN401 - any argument
            if isinstance(given, TensorSpec):
                return made(given.array(rng), _DTYPES[given.dtype])
            return made(given, None) if isinstance(given, np.ndarray) else given

        with raised_as_usage("creating the inputs"):
            return tuple(map(value, self.positional)), {name: value(given) for name, given in self.named}


def inputs_from_texts(texts: Sequence[str]) -> Inputs:
    """Read inputs, each a tensor or value, or `name=` and one, or `@` and a file or folder; raise `UsageError` for any other text.

    `**@` and a file or folder, which is what `--inputs` stands for, gives all of it by name. What is not of a folder serves each call.
    """
    given = [(text, *_given(text)) for text in texts]
    counts = {len(calls): text for text, calls, is_folder in given if is_folder}
    if len(counts) > 1:
        raise UsageError(f"--input: {' and '.join(counts.values())} have files for other numbers of calls: {', '.join(map(str, counts))}")
    calls = [_call((text, own[min(place, len(own) - 1)]) for text, own, _ in given) for place in range(max([1, *counts]))]
    return replace(calls[0], calls=tuple(calls))


def _given(text: str) -> tuple[list[dict[str, Any]], bool]:
    """Return what a text gives to each call, by name (`""` by place), and whether it is of a folder."""
    name, written = match.group("name", "value") if (match := _NAMED.fullmatch(text)) else ("", text)
    if not (written.startswith("@") or text.startswith("**@")):
        return [{name: _value(text, written)}], False
    from ortlens.job.input_files import calls_from_files  # which imports numpy

    return calls_from_files(text[3:], None) if text.startswith("**@") else calls_from_files(written[1:], name)


def _call(given: Iterable[tuple[str, Mapping[str, Any]]]) -> Inputs:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for text, values in given:
        for name, value in values.items():
            if not name:
                positional.append(value)
            elif name in named:
                _refuse(text, (0, len(text.partition("=")[0])), f"the argument {name!r} is given twice")
            else:
                named[name] = value
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
        refuse("dtype", f"unknown dtype {match['dtype']!r}.{near_hint(dtype, _DTYPES)} Available: {' '.join(_DTYPES)}")
    if not match["close"]:
        refuse("close", "the bracket is not closed")
    sizes = _sizes(text, start + match.start("sizes"), match["sizes"])
    low, high = _range(text, start + match.start("rest"), match["rest"], short) if match["rest"] else (None, None)
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


@contextlib.contextmanager
def target_and_inputs(options: argparse.Namespace) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Yield the target that `MODULE:NAME` and `--input` name, and its arguments; without gradients, errors in it as `UsageError`."""
    inputs = inputs_from_texts(options.input)  # a slip here should not wait for torch

    from ortlens._versions import check_supported

    check_supported()
    import torch

    torch.manual_seed(options.seed)
    target = target_from_text(options.target)
    args, kwargs = inputs.made(options.seed)
    with raised_as_usage(calling(options, target, args, kwargs)), torch.no_grad():
        yield target, args, kwargs


def calling(options: argparse.Namespace, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:  # noqa: ANN401 - a target
    """Name a call, for a message about its failure; raise `UsageError` where it needs inputs and has none, or one has no such name."""
    from ortlens.backend.freeze.arguments import needed_arguments, parameters_of, parameters_source

    known = parameters_of(parameters_source(target))
    takes_any = not known or any(each.kind is each.VAR_KEYWORD for each in known.values())
    if unknown := [] if takes_any else [name for name in kwargs if name not in known]:
        raise UsageError(f"{options.target} has no argument {unknown[0]!r}.{near_hint(unknown[0], known)} It takes {', '.join(known)}")
    if not args and not kwargs and (needed := needed_arguments(target)):
        line = " ".join(f"--input {name}=f32[1,8]" for name in needed)
        raise UsageError(
            f"{options.target} takes {', '.join(needed)}; give the types and sizes: ortlens {options.command} {options.target} {line}"
        )
    return f"calling {options.target} with {' '.join(options.input) or 'no --input'}"


def target_from_text(text: str, *, on_meta: bool = False) -> Callable[..., Any]:
    """Find a module (in evaluation mode) or function named `package.module:name` or `file.py:name`; raise `UsageError` if that fails.

    Call a recipe: a class of modules, or a function that makes a module from nothing. On meta, for a dry run, weights take no memory.
    """
    from torch import nn

    from ortlens.backend.freeze.arguments import needed_arguments

    found = object_from_text(text)
    if not callable(found):
        raise UsageError(f"{text} is {_a(type(found).__name__)}, which cannot be called; name an nn.Module, its class or a function")
    is_class = isinstance(found, type)
    if is_class or _is_recipe(found):
        if is_class and (needed := needed_arguments(found)):
            raise UsageError(f"{text} is a class that needs {', '.join(needed)}; name a function without arguments that returns the model")
        model = _called(found, text, on_meta=on_meta)
        found = model if is_class or isinstance(model, nn.Module) else found
    if not callable(found):
        raise UsageError(f"{text} returned {_a(type(found).__name__)}, which cannot be called")
    target: Callable[..., Any] = found.eval() if isinstance(found, nn.Module) else found
    return target


def object_from_text(text: str) -> Any:  # noqa: ANN401 - whatever the user's module holds
    """Find what a module holds under a name, written as for `target_from_text`; raise `UsageError` if that fails."""
    place, colon, name = text.rpartition(":")
    if Path(text).suffix == ".py" and Path(text).is_file():
        raise UsageError(f"{text} is a file; write {text}:NAME for what to call in it, or record the script with: ortlens run {text}")
    if not colon or not place or not name:
        raise UsageError(f"{text!r} is not a target; write MODULE:NAME, for example mymodels:net for `net` in mymodels.py")
    return _named(_imported(place), name, text)


def call_from_text(
    text: str, given: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {})
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Find a target as `target_from_text` does, with the arguments by place and by name that its recipe gives, if any.

    A recipe may also return `(model, args)` or `(model, args, kwargs)`; `args` is a tuple, a mapping by name, or a single argument. With
    any `given`, which are the recipe's own arguments, what `text` names is called.
    """
    found = object_from_text(text)
    if not any(given) and not _is_recipe(found):
        return target_from_text(text), (), {}
    with raised_as_usage(f"creating the model with {text}"):
        made = found(*given[0], **given[1])
    model, args, kwargs = _parts(made)
    if not callable(model):
        if any(given):
            raise UsageError(f"{text} returned {_a(type(model).__name__)}, which cannot be called")
        return found, (), {}  # a function without arguments, to be compiled as it is
    from torch import nn

    return model.eval() if isinstance(model, nn.Module) else model, args, kwargs


def _parts(made: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:  # noqa: ANN401 - what a recipe returns
    if not (isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0])):
        return made, (), {}
    model, given, *named = made
    if not named and isinstance(given, dict):
        return model, (), given
    return model, given if isinstance(given, tuple) else (given,), dict(*named)


def _imported(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix == ".py":
        if not path.is_file():
            raise UsageError(f"there is no file {place!r} in {Path.cwd()}")
        folder, module = path.resolve().parent, path.stem
    else:
        folder, module = Path.cwd(), place
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        if err.name is None or not (module == err.name or module.startswith(f"{err.name}.")):
            raise UsageError(f"{place} imports {err.name!r}, which is not installed: {err}") from err
        hint = near_hint(err.name, (module.name for module in pkgutil.iter_modules([os.curdir])))
        raise UsageError(f"there is no module {err.name!r} in {folder} or among the installed packages.{hint}") from err
    except Exception as err:
        raise UsageError(f"importing {place} failed: {type(err).__name__}: {err}{where(err)}") from err


def _named(module: ModuleType, name: str, text: str) -> Any:  # noqa: ANN401 - whatever the user's module holds
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            hint = near_hint(part, (known for known in dir(found) if not known.startswith("__")), most=3)
            raise UsageError(f"{text}: {getattr(found, '__name__', type(found).__name__)} has no {part!r}.{hint}")
        found = getattr(found, part)
    return found


def _is_recipe(found: Any) -> bool:  # noqa: ANN401 - whatever the user's module holds
    """Tell whether a function can be called with nothing: it may be one that makes a model."""
    from ortlens.backend.freeze.arguments import needed_arguments

    return inspect.isroutine(found) and not needed_arguments(found)


def _called(make: Any, text: str, *, on_meta: bool) -> Any:  # noqa: ANN401 - whatever the user's module holds
    import torch

    if on_meta:
        with contextlib.suppress(Exception), torch.device("meta"):  # what reads its own weights while it is made cannot be made so
            return make()
    with raised_as_usage(f"creating the model with {text}"):
        return make()


@contextlib.contextmanager
def raised_as_usage(doing: str) -> Iterator[None]:
    """Turn what the user's own code raises into a `UsageError` of one message with its place."""
    try:
        yield
    except OrtLensError:
        raise
    except Exception as err:
        raise UsageError(f"{doing} failed: {type(err).__name__}: {err}{where(err)}") from err


def where(err: BaseException) -> str:
    """Name the innermost line outside ortlens and installed packages that raised, to add to a message; empty when there is none."""
    from traceback import extract_tb

    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - frames hold plain text
    frames = [
        frame
        for frame in extract_tb(err.__traceback__)
        if not (frame.filename.startswith((here, "<", _LIBRARY)) or "site-packages" in frame.filename or frame.filename.endswith(".pyx"))
    ]
    return f"\n  at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""


_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120 - as above


def _a(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
