"""Targets as they are written on a command line: `MODULE:NAME`, imported from the current folder."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import pkgutil
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.errors import UsageError
from ortlens.job.inputs import inputs_from_texts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType


@contextlib.contextmanager
def target_and_inputs(options: argparse.Namespace) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Yield the target that `MODULE:NAME` and `--input` name, and its arguments; without gradients, errors in it as `UsageError`."""
    inputs = inputs_from_texts(options.input)  # a slip here should not wait for torch

    from ortlens._versions import check_supported

    check_supported()
    import torch

    torch.manual_seed(options.seed)
    target = target_from_text(options.target)
    with raised_as_usage("creating the inputs"):
        args, kwargs = inputs.made(options.seed)
    with raised_as_usage(f"calling {options.target} with {' '.join(options.input) or 'no --input'}"), torch.no_grad():
        yield target, args, kwargs


def target_from_text(text: str, *, on_meta: bool = False) -> Callable[..., Any]:
    """Find a module (in evaluation mode) or function named `package.module:name` or `file.py:name`; raise `UsageError` if that fails.

    Call a recipe: a class of modules, or a function that makes a module from nothing. On meta, for a dry run, weights take no memory.
    """
    from torch import nn

    found = object_from_text(text)
    if not callable(found):
        raise UsageError(f"{text} is {_a(type(found).__name__)}, which cannot be called; name an nn.Module, its class or a function")
    is_class = isinstance(found, type)
    if is_class or _is_recipe(found):
        if is_class and (needed := _needed(found)):
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
        near = get_close_matches(err.name, [module.name for module in pkgutil.iter_modules([os.curdir])], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"there is no module {err.name!r} in {folder} or among the installed packages.{hint}") from err
    except Exception as err:
        raise UsageError(f"importing {place} failed: {type(err).__name__}: {err}{where(err)}") from err


def _named(module: ModuleType, name: str, text: str) -> Any:  # noqa: ANN401 - whatever the user's module holds
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, [known for known in dir(found) if not known.startswith("__")], n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise UsageError(f"{text}: {getattr(found, '__name__', type(found).__name__)} has no {part!r}.{hint}")
        found = getattr(found, part)
    return found


def _is_recipe(found: Any) -> bool:  # noqa: ANN401 - whatever the user's module holds
    """Tell whether a function can be called with nothing: it may be one that makes a model."""
    return inspect.isroutine(found) and not _needed(found)


def _needed(found: Any) -> list[str]:  # noqa: ANN401 - whatever the user's module holds
    """List the arguments without a default; for what has no signature, none that is known of."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return ["its arguments"]
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in open_ended]


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
    from ortlens.errors import OrtLensError

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
        if not frame.filename.startswith((here, "<")) and "site-packages" not in frame.filename and not frame.filename.startswith(_LIBRARY)
    ]
    return f"\n  at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""


_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120 - as above


def _a(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
