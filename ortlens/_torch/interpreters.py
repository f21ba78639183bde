"""What may compute or record operators in place of PyTorch's kernels, which calls of sessions do not go through.

These are modes, tracers, transforms of `torch.func`, and forward-mode differentiation; and Dynamo, for functions that it must not trace.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNGUARDED = "(modes() and has_mode()) or forward_ad._current_level >= 0"
"""Whether a mode sees every operator, as that of fake tensors, or a level of `torch.autograd.forward_ad` is open: Dynamo guards neither.

In Python source, for `interpreter_scope`: to ask in a function of its own takes twice as long.
"""
IS_INTERPRETED = f"{UNGUARDED} or is_tracing() or transform() or (function_modes() and has_function_mode())"
"""The same of all interpreters, for calls that no Dynamo guards; it takes 0.1 us."""


def interpreter_scope() -> dict[str, Any]:
    """Return the globals of the conditions above."""
    from torch.autograd import forward_ad

    return {
        "modes": torch._C._len_torch_dispatch_stack,
        "has_mode": _or_in_doubt(_has_mode),
        "forward_ad": forward_ad,
        "is_tracing": torch._C._is_tracing,
        "transform": torch._C._functorch.peek_interpreter_stack,
        "function_modes": torch._C._len_torch_function_stack,
        "has_function_mode": _or_in_doubt(_has_function_mode),
    }


def _or_in_doubt(asks: Callable[[], bool]) -> Callable[[], bool]:
    """Let PyTorch compute where it cannot be told what sees its operators: every call asks, and must not fail for that."""

    def asked() -> bool:
        try:
            return asks()
        except Exception:  # noqa: BLE001 - such as that a private name of torch is gone
            return True

    return asked


def _has_mode() -> bool:
    """Tell whether a mode is to see operators of compiled code, unlike those of AOTAutograd and of selective checkpoints."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    def sees(mode: Any) -> bool:
        makes_tensors = getattr(mode, "_mode_key", None) is not None  # those of fake tensors, of `make_fx`, and functional ones
        return makes_tensors or not mode.ignore_compile_internals()

    return any(map(sees, _get_current_dispatch_mode_stack()))


def _has_function_mode() -> bool:
    """Tell whether a mode sees PyTorch's functions that does more than to choose a default device."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    return any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())  # type: ignore[no-untyped-call]  # torch has no annotations here


def is_unguarded() -> bool:
    """Tell whether `UNGUARDED` holds."""
    return bool(_asked(UNGUARDED)())


def is_interpreted() -> bool:
    """Tell whether `IS_INTERPRETED` holds."""
    return bool(_asked(IS_INTERPRETED)())


@functools.cache
def _asked(condition: str) -> Callable[[], Any]:
    function: Callable[[], Any] = eval(f"lambda: {condition}", interpreter_scope())  # noqa: S307 - a constant above
    return function


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Stop `torch.jit.trace`, under which sizes are tensors."""
    set_state: Callable[[Any], None] = torch._C._set_tracing_state  # type: ignore[attr-defined]  # torch has no annotations here
    state = torch._C._get_tracing_state()
    set_state(None)
    try:
        yield
    finally:
        set_state(state)


def is_transformed() -> bool:
    """Tell whether a transform of `torch.func` is active, which differentiates by its own levels."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def skipped_by_dynamo(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """Have Dynamo trace neither a function nor what it calls; unlike with `torch.compiler.disable`, calls take no longer."""
    from torch._C._dynamo import eval_frame

    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # Dynamo's marks
    function._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]  # same
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function
