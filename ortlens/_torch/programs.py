"""Exported programs: how they are traced, and what their `__call__` does before the graph runs."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import TYPE_CHECKING, Any

from ortlens._torch.exporter import quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_COPY_PASS = re.compile("_remove_unnec+essary_copy_op_pass")
_STARRED = re.compile(r"L\['([^']+)'\]\[(\d+)\]")


def exported_inputs(program: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return all inputs of an exported program's graph: parameters, buffers, constants, then the user's inputs.

    Raises ValueError for another structure; AssertionError, or RuntimeError in some versions of torch, for sizes outside the constraints.
    """
    inputs: tuple[Any, ...] = program._graph_module_flat_inputs(args, dict(kwargs))
    return inputs


def without_tokens(program: Any) -> Any:
    """Return a decomposed program without effect tokens, so that its assertions are plain nodes; a copy only if it has any."""
    from torch.export.graph_signature import InputKind

    if not any(spec.kind is InputKind.TOKEN for spec in program.graph_signature.input_specs):
        return program
    from torch.export._remove_effect_tokens_pass import _remove_effect_tokens

    return _remove_effect_tokens(program)


@contextlib.contextmanager
def copies_kept() -> Iterator[None]:
    """Keep the copies that make new values of parameters and buffers when a program is decomposed.

    PyTorch puts their sources in their place everywhere, which may have another dtype, lie otherwise in memory, or be another input.
    Source: `_remove_unnecessary_copy_op_pass` in `torch/export/exported_program.py`; torch 2.9 spells it otherwise.
    """
    from torch.export import exported_program

    passes = {name: value for name, value in vars(exported_program).items() if _COPY_PASS.fullmatch(name)}
    for name in passes:
        setattr(exported_program, name, lambda module, signature: (module, signature))
    try:
        yield
    finally:
        vars(exported_program).update(passes)


def composite_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of composite operators, which PyTorch implements by other operators.

    Dynamo's graphs do not contain them; an exported program keeps them unless it is decomposed.
    """
    import torch

    table = torch.export.default_decompositions()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    named: Any = table
    return {op: function for op, function in named.items() if has_kernel(op.name(), "CompositeImplicitAutograd")}


def with_renamed_guards(program: Any) -> Any:
    """Return a program whose guards use the input names of its graph: the program itself, unchanged, or a shallow copy.

    Tracing a `forward(*args)` records guards on `L['args'][0]`, but the graph's signature has `args_0`. torch 2.13 reconciles the two
    (`_force_gm_signature_match` in `torch/export/_unlift.py`). torch 2.9 does not, and then both the program's module and its decomposition
    raise a NameError.
    """
    import inspect

    from torch.export import _unlift

    starred = {match for guard in guard_texts(program) for match in _STARRED.findall(guard)}
    if hasattr(_unlift, "_force_gm_signature_match") or not starred:
        return program
    names = inspect.signature(program.module(check_guards=False).forward).parameters
    texts = guard_texts(program)
    for name, place in starred:
        if f"{name}_{place}" in names:
            written, meant = f"L['{name}'][{place}]", f"L['{name}_{place}']"
            texts = tuple(guard.replace(written, meant) for guard in texts)
    return with_guards(program, texts)


def replaced_buffers(program: Any) -> frozenset[str]:
    """Find the placeholders of buffers to which the traced code assigned other tensors; the program must not be decomposed.

    The program writes the new values into the old buffers at its end.
    """
    writes = [node for node in program.graph.nodes if node.name.startswith("copy__default")]  # a copy by the user's code is `copy_`
    return frozenset(node.args[0].name for node in writes)


def with_guards(program: Any, texts: Sequence[str]) -> Any:
    """Return a shallow copy of a program with other guards, in the form of `guard_texts`."""
    import copy

    made = copy.copy(program)
    made._guards_code = list(texts)
    return made


def guard_texts(program: Any) -> tuple[str, ...]:
    """Return what tracing found about input sizes, as Python over `L['name'].size()[0]`; none where torch does not keep it."""
    return tuple(getattr(program, "_guards_code", ()))


def exported_guards(program: Any) -> Callable[..., Any] | None:
    """Return the function that checks a program's flat user inputs, and raises if a guard fails; None if there are no guards."""
    with quiet():
        return getattr(program.module(), "_guards_fn", None)


_LOCK = threading.Lock()
_DEPTH = [0]
_BEFORE = [True, False]
"""What was set when the first of several threads entered: whether parameters are checked, and whether Dynamo had switched that off."""


@contextlib.contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Create distributions without a check of their parameters, unless they are made with `validate_args=True`.

    Dynamo switches the check off for the rest of the process, when the first compiled function is called (`TorchPatcher.patch` in
    `torch/_dynamo/eval_frame.py`), and `torch.export` without Dynamo does not. Afterwards it is as it was, for other threads too, unless
    Dynamo switched it off in the meantime, which it does only once.
    """
    from torch.distributions import Distribution

    with _LOCK:
        if not _DEPTH[0]:
            _BEFORE[:] = Distribution._validate_args, _is_switched_off()
        _DEPTH[0] += 1
        Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        with _LOCK:
            _DEPTH[0] -= 1
            checked, was_switched_off = _BEFORE
            if not _DEPTH[0] and _is_switched_off() == was_switched_off:
                Distribution.set_default_validate_args(checked)


def _is_switched_off() -> bool:
    from torch._dynamo.eval_frame import TorchPatcher

    return bool(TorchPatcher.patch.cache_info().currsize)
