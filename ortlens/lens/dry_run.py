"""Dry runs: a model is analysed on fake tensors, without memory for its weights and without running it."""

from __future__ import annotations

import contextlib
import traceback
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.lowering.user_frames import Frame, innermost
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortlens.trace.recorder import Recorder


def try_with_fakes(recorder: Recorder, target: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a compiled target on fake tensors, up to where it needs the values of one; that becomes a finding.

    Return its result, made of fake tensors; None if it needed values.
    """
    try:
        return _call_with_fakes(target, call, args, kwargs)
    except Exception as error:
        if not _torch.needs_data(error):
            raise
        at = innermost([Frame(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)])
        recorder.add(
            r.Finding(
                rule="dry_run_ended",
                severity="info",
                title="the dry run ended where the model asks a tensor for its values",
                evidence=f"{type(error).__name__}: {error}"[:2000],
                hazard="Graphs after this point are not in the capture.",
                mitigation="Run without dry_run=True, or move the decision into the graph (torch.where).",
                file=at and at.file,
                line=at and at.line,
            )
        )
    return None


def _call_with_fakes(target: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a target with fake arguments. The weights of a module on the meta device become fake tensors on the CPU."""
    module = target if isinstance(target, torch.nn.Module) else None
    weights = [] if module is None else [*module.parameters(), *module.buffers()]
    mode = _torch.fake_mode_of(weights)
    fake_args, fake_kwargs = _torch.map_tensors(lambda tensor: _fake(tensor, mode), (args, kwargs))
    with _fake_weights(module, mode), mode:
        return call(*fake_args, **fake_kwargs)


def _fake(tensor: torch.Tensor, mode: Any) -> torch.Tensor:
    """Return a tensor of the same shape without data; for one on the meta device, on the CPU."""
    if _torch.is_fake_of(tensor, mode):
        return tensor
    if _torch.is_fake(tensor) or tensor.device.type == "meta":
        device = "cpu" if tensor.device.type == "meta" else tensor.device
        with mode:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    made: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
    return made


@contextlib.contextmanager
def _fake_weights(module: torch.nn.Module | None, mode: Any) -> Iterator[None]:
    """Replace weights on the meta device by fake tensors; tied weights stay tied."""
    replaced: list[tuple[torch.nn.Module, str, torch.Tensor]] = []
    stand_ins: dict[int, torch.Tensor] = {}
    for owner in module.modules() if module is not None else ():
        for name, tensor in (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False)):
            if tensor.device.type == "meta" and not _torch.is_fake(tensor):
                replaced.append((owner, name, tensor))
                stand_ins.setdefault(id(tensor), _stand_in(tensor, mode))
    try:
        for owner, name, tensor in replaced:
            setattr(owner, name, stand_ins[id(tensor)])
        yield
    finally:
        for owner, name, tensor in replaced:
            setattr(owner, name, tensor)


def _stand_in(tensor: torch.Tensor, mode: Any) -> torch.Tensor:
    fake = _fake(tensor, mode)
    if not isinstance(tensor, torch.nn.Parameter):
        return fake
    with mode:
        return torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
