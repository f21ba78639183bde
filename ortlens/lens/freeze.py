"""`freeze()`: a plain callable over the sessions of a traced model."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._os_errors import clear_os_errors
from ortlens.backend.api import OrtBackend
from ortlens.lens.freezing import freeze_with, refuse_reserved
from ortlens.lens.lens import Lens
from ortlens.lens.verify.call_state import CallState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.export import ExportedProgram

    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.backend.freeze.frozen import Frozen
    from ortlens.trace import records as r


@clear_os_errors
def freeze(
    target: Callable[..., Any] | ExportedProgram,
    /,
    *args: Any,
    dynamic: bool | None = None,
    dynamic_shapes: Any = None,
    fallback: Callable[..., Any] | None = None,
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Frozen:
    """Trace a model once and return a plain callable over its ONNX Runtime sessions: no Dynamo, no guards, no checks of weights.

    From now on weights and Python state are constants: write to no weight of the model while the callable is in use, and freeze again
    after training. A call checks dtypes, ranks and sizes, runs, and returns new tensors without gradients.

    Args:
        target: A function, an `nn.Module`, or a `torch.export.ExportedProgram`, which takes no further arguments here.
        *args: Arguments as calls will pass them: tensors, nested tuples, lists and dicts, and constants, which calls must repeat.
        dynamic: True leaves all sizes open that PyTorch finds may vary; else sizes are fixed.
        dynamic_shapes: Which sizes may vary, as for `torch.export.export`.
        fallback: Called with arguments outside the traced signature, such as the model itself; None: they raise.
        options: Options of the backend.
        **kwargs: Keyword arguments as calls will pass them.

    Returns:
        The frozen callable.

    Raises:
        UsageError: The target is no single graph (the message lists the breaks), takes something that cannot be frozen, or has an
            argument with the name of an option that is given.

    Example:
        >>> import torch, ortlens
        >>> frozen = ortlens.freeze(torch.nn.Linear(4, 2), torch.ones(3, 4))
        >>> frozen(torch.zeros(3, 4)).shape
        torch.Size([3, 2])
    """
    given: dict[str, Any] = {"dynamic": dynamic, "dynamic_shapes": dynamic_shapes, "fallback": fallback, "options": options}
    refuse_reserved(target, given)
    backend = OrtBackend.get_cached_instance_for_options(given.pop("options"))
    return freeze_with(target, args, kwargs, given, backend=backend, breaks=lambda: _breaks_of(target, args, kwargs))


def _breaks_of(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[r.Break]:
    """Where `torch.compile` would break the graph: the target is called once, uncompiled but for Dynamo, and tensors restored."""
    lens, state = Lens("eager"), CallState(target, args, kwargs)
    try:
        with contextlib.suppress(Exception), _torch.quiet(), torch.no_grad():  # what tracing raised is reported anyway
            compiled: Callable[..., Any] = _torch.compiled_apart(target, lens)
            compiled(*args, **kwargs)
    finally:
        state.restore()
    return lens.captured().breaks
