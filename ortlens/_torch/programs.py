"""Exported programs: what their own call does around the graph."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ortlens._torch.exporter import quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_STARRED = re.compile(r"L\['([^']+)'\]\[(\d+)\]")


def exported_inputs(program: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """All inputs of an exported program's graph: parameters, buffers, constants, then the user's.

    Args:
        program: A `torch.export.ExportedProgram`.
        args: The user's, in the program's structure.
        kwargs: The user's, in any order.

    Returns:
        One value per placeholder.

    Raises:
        ValueError: The structure is another one.
        AssertionError: A size is outside the program's constraints; RuntimeError in some versions of torch.
    """
    inputs: tuple[Any, ...] = program._graph_module_flat_inputs(args, dict(kwargs))
    return inputs


def without_tokens(program: Any) -> Any:
    """A program whose checks are plain nodes again, and not threaded through effect tokens.

    Args:
        program: A decomposed `torch.export.ExportedProgram`.

    Returns:
        The program, or one without tokens.
    """
    from torch.export.graph_signature import InputKind

    if not any(spec.kind is InputKind.TOKEN for spec in program.graph_signature.input_specs):
        return program
    from torch.export._remove_effect_tokens_pass import _remove_effect_tokens

    return _remove_effect_tokens(program)


def composite_decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions of the operators that PyTorch itself is made of others of.

    Dynamo never hands these over; an exported program keeps them unless told otherwise.

    Returns:
        Op overload -> function.
    """
    import torch

    table = torch.export.default_decompositions()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    named: Any = table
    return {op: function for op, function in named.items() if has_kernel(op.name(), "CompositeImplicitAutograd")}


def with_guards_of_its_own_names(program: Any) -> Any:
    """A program whose guards name its inputs as its graph does.

    Tracing a `forward(*args)` notes guards on `L['args'][0]`, but the graph's signature has `args_0`. torch 2.13 reconciles the
    two (`_force_gm_signature_match` in `torch/export/_unlift.py`); 2.9 does not, and both the program's module and its
    decomposition then raise a NameError.

    Args:
        program: A `torch.export.ExportedProgram`; it stays as it is.

    Returns:
        The program, or a shallow copy with other guards.
    """
    import copy
    import inspect

    from torch.export import _unlift

    starred = {match for guard in getattr(program, "_guards_code", ()) for match in _STARRED.findall(guard)}
    if hasattr(_unlift, "_force_gm_signature_match") or not starred:
        return program
    names = inspect.signature(program.module(check_guards=False).forward).parameters
    named = copy.copy(program)
    for name, place in starred:
        if f"{name}_{place}" in names:
            written, meant = f"L['{name}'][{place}]", f"L['{name}_{place}']"
            named._guards_code = [guard.replace(written, meant) for guard in named._guards_code]
    return named


def exported_guards(program: Any) -> Callable[..., Any] | None:
    """What a program checks of its user's inputs before it runs.

    Args:
        program: A `torch.export.ExportedProgram`.

    Returns:
        A callable of the flat user inputs that raises when one would have taken another branch; None when nothing is checked.
    """
    with quiet():
        return getattr(program.module(), "_guards_fn", None)
