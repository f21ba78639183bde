"""`dynamic_shapes()`: which sizes vary between calls of a model, and which of them together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.deploy.signature import value_text
from ortlens.backend.freeze.arguments import bound_arguments, named_arguments, parameters_source
from ortlens.errors import UsageError
from ortlens.trace.records import column, optional
from ortlens.trace.schema import frame_from_records, table_from_record

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingSize:
    """A size that varies between calls, or an argument that differs in more than sizes."""

    argument: str = column("Argument, with the keys that lead to the tensor.", brief=1)
    dim: int | None = optional("Dimension of the tensor; empty for what differs in more than sizes.", brief=2)
    sizes: tuple[int, ...] = column("Sizes seen, each once, in the order of the calls.", default=(), brief=3)
    name: str | None = optional("Name of the size; sizes that are equal in all calls have one name.", brief=4)
    varies_with: tuple[str, ...] = column("The other sizes of that name.", default=(), brief=5)
    note: str | None = optional("What differs, and what to do: a trace takes one of the kinds.", brief=6)


@dataclass(frozen=True, slots=True, repr=False)
class DynamicShapes:
    """Which sizes vary between calls of a model, in the forms that PyTorch takes.

    Attributes:
        sizes: Frame with a row per size that varies, and per argument that differs in more, with the columns of
            `ortlens.lens.dynamic_shapes.VaryingSize`. Empty if nothing varies.
        example: `(args, kwargs)` of the call to trace with: all sizes that vary are 2 or more in it, as traces make constants of 0 and 1.
        dynamic_shapes: For `torch.export.export`, `ortlens.freeze` and `torch.onnx.export`, by the names of the arguments in `example`:
            `Dim.DYNAMIC` for each size that varies. PyTorch finds limits and relations, and raises where the code fixes a size.
        names: The same with a name per size, which sizes that vary together share, for `torch.onnx.export`.
        marks: Tensors of `example`, each with its dimensions that vary, for `torch._dynamo.mark_dynamic`: compiled with `example` in the
            first call, one graph then serves all calls.
    """

    sizes: pd.DataFrame
    example: tuple[tuple[Any, ...], dict[str, Any]]
    dynamic_shapes: dict[str, Any]
    names: dict[str, Any]
    marks: list[tuple[torch.Tensor, list[int]]]

    def __repr__(self) -> str:
        """Name what varies."""
        return f"DynamicShapes({', '.join(dict.fromkeys(self.sizes.name.dropna())) or 'no size varies, all are fixed'})"


def dynamic_shapes(model: Callable[..., Any], calls: Iterable[Any]) -> DynamicShapes:
    """Observe which sizes vary between calls, and return what tracing, exporting and compiling for all of them take.

    The model is not called. Tensors may lie in lists, tuples, dicts, and objects. `torch.export` itself takes objects of registered
    classes, so register a dataclass (`torch.export.register_dataclass`) or a cache of transformers first. Numbers are constants of a trace.

    Args:
        model: A function or an `nn.Module`, whose parameters name the arguments.
        calls: Two calls or more that differ in all sizes that are to vary. A mapping has keyword arguments; a tuple of a tuple and a
            mapping is `(args, kwargs)`, and any other tuple has positional arguments.

    Returns:
        What varies, as a frame and in the forms that PyTorch takes.

    Raises:
        UsageError: Fewer than two calls, a call in another form or that the model does not take, or no call in which all sizes that vary
            are 2 or more.

    Example:
        >>> import torch, ortlens
        >>> ortlens.dynamic_shapes(torch.nn.Linear(4, 2), [(torch.ones(3, 4),), (torch.ones(5, 4),)]).names
        {'input': {0: 'batch'}}
    """
    given = [_call(place, call) for place, call in enumerate(calls)] if isinstance(calls, Iterable) else []
    if len(given) < 2:  # noqa: PLR2004 - a difference takes two
        raise UsageError(f"pass a list of two calls or more that differ in the sizes that vary, not of {len(given)}")
    try:
        bound = [bound_arguments(parameters_source(model), *call) for call in given]
    except TypeError as error:
        raise UsageError(f"a call does not fit the model, a function or a module: {error}") from error
    with _torch.objects_as_trees() as note:
        note(bound)
        leaves = [dict(named_arguments(None, (), each)) for each in bound]
        best, columns = _example(leaves)
        dims = [{dim: name for (owner, dim), name in _names(columns).items() if owner == argument} for argument in leaves[best]]
        named = _torch.shapes_over(bound[best], [each or None for each in dims])
        open_ = _torch.shapes_over(bound[best], [dict.fromkeys(each, torch.export.Dim.DYNAMIC) or None for each in dims])
    marks = [(leaf, list(each)) for leaf, each in zip(leaves[best].values(), dims, strict=True) if each]
    frame = frame_from_records(table_from_record("sizes", VaryingSize), _rows(leaves, columns))
    return DynamicShapes(frame, given[best], open_, named, marks)


def _call(place: int, call: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    match call:
        case Mapping():
            return (), dict(call)
        case tuple((tuple(), Mapping())):
            return call[0], dict(call[1])
        case tuple():
            return call, {}
    raise UsageError(f"call {place}: pass a tuple, a mapping of keyword arguments, or (args, kwargs), not {type(call).__name__}")


def _form(leaf: Any) -> str:
    return f"{leaf.dtype} of rank {leaf.dim()}" if isinstance(leaf, torch.Tensor) else value_text(leaf)


def _sizes(leaf: Any) -> Iterable[tuple[int, int]]:
    return enumerate(leaf.shape) if isinstance(leaf, torch.Tensor) and not leaf.is_nested else ()


def _example(leaves: list[dict[str, Any]]) -> tuple[int, dict[tuple[str, int], tuple[int | None, ...]]]:
    """Choose the call to trace with, and collect the sizes that vary in it, from all calls that have the tensor in the same form."""
    calls = [{(name, _form(leaf), dim): size for name, leaf in each.items() for dim, size in _sizes(leaf)} for each in leaves]
    varied = [{key: size for key, size in each.items() if any(other.get(key, size) != size for other in calls)} for each in calls]
    special = [[f"{name}.shape[{dim}]" for (name, _, dim), size in each.items() if size in (0, 1)] for each in varied]
    # Sizes that vary apart should differ in the trace, which may take equal ones for one.
    best = max(range(len(calls)), key=lambda place: (-len(special[place]), len(varied[place]), len({*varied[place].values()})))
    if special[best]:
        raise UsageError(f"traces fix sizes of 0 and 1: add a call with 2 or more in all that vary, also in {', '.join(special[best])}")
    return best, {(name, dim): tuple(each.get((name, form, dim)) for each in calls) for name, form, dim in varied[best]}


def _names(columns: dict[tuple[str, int], tuple[int | None, ...]]) -> dict[tuple[str, int], str]:
    """Name sizes; those that are equal in all calls share a name."""
    names: dict[tuple[int | None, ...], str] = {}
    for (argument, dim), sizes in columns.items():
        own = "batch" if dim == 0 and "batch" not in names.values() else "_".join((*re.findall(r"\w+", argument), str(dim)))
        names.setdefault(sizes, own)
    return {key: names[sizes] for key, sizes in columns.items()}


def _rows(leaves: list[dict[str, Any]], columns: dict[tuple[str, int], tuple[int | None, ...]]) -> list[VaryingSize]:
    rows, names = list[VaryingSize](), _names(columns)
    for argument in dict.fromkeys(name for each in leaves for name in each):
        forms = dict.fromkeys(_form(each[argument]) if argument in each else "not passed" for each in leaves)
        if len(forms) > 1:
            note = f"{', '.join(forms)}: a trace takes that of its call; trace each, or always pass the same, and numbers as tensors"
            rows.append(VaryingSize(argument=argument, note=note))
        for key, seen in columns.items():
            if key[0] == argument:
                alike = tuple(f"{owner}.shape[{dim}]" for (owner, dim), name in names.items() if name == names[key] and (owner, dim) != key)
                sizes = tuple(dict.fromkeys(size for size in seen if size is not None))
                rows.append(VaryingSize(argument=argument, dim=key[1], sizes=sizes, name=names[key], varies_with=alike))
    return rows
