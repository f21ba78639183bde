"""Tensors without data in the place of others, for models that are only traced."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._process import replaced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def fake(tensor: torch.Tensor, mode: Any, device: torch.device | None) -> torch.Tensor:
    """Return a tensor of the same shape without data, on a device if one is given; else one on the meta device is on the CPU."""
    is_moved = device is not None and tensor.device.type != device.type
    if _torch.is_fake_of(tensor, mode) and not is_moved:
        return tensor
    if is_moved and (_torch.is_wrapper(tensor) or tensor.layout is not torch.strided):
        with mode:
            return mode.from_tensor(tensor, static_shapes=True).to(device)  # type: ignore[no-any-return]  # the mode has no annotations
    if _torch.is_fake(tensor) or tensor.device.type == "meta" or is_moved:
        place = device if is_moved else "cpu" if tensor.device.type == "meta" else tensor.device
        with mode:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=place, requires_grad=tensor.requires_grad)
    made: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
    return made


@contextlib.contextmanager
def fake_weights(modules: Iterable[torch.nn.Module], mode: Any, device: torch.device | None) -> Iterator[None]:
    """Replace the modules' own weights on the meta device, or all not on the given one, by fake tensors; tied weights stay tied."""
    elsewhere: list[tuple[torch.nn.Module, str, torch.Tensor]] = []
    stand_ins: dict[int, torch.Tensor] = {}
    for owner in modules:
        named = (owner.named_parameters, owner.named_buffers)
        for name, tensor in (pair for each in named for pair in each(recurse=False, remove_duplicate=False)):
            if _is_elsewhere(tensor, device):
                elsewhere.append((owner, name, tensor))
                stand_ins.setdefault(id(tensor), _stand_in(tensor, mode, device))
    with contextlib.ExitStack() as stack:
        for owner, name, tensor in elsewhere:
            stack.enter_context(replaced(owner, name, stand_ins[id(tensor)]))
        yield


def _is_elsewhere(tensor: torch.Tensor, device: torch.device | None) -> bool:
    if device is None:
        return tensor.device.type == "meta" and not _torch.is_fake(tensor)
    return tensor.device.type != device.type and not torch.nn.parameter.is_lazy(tensor)


def _stand_in(tensor: torch.Tensor, mode: Any, device: torch.device | None) -> torch.Tensor:
    made = fake(tensor, mode, device)
    if not isinstance(tensor, torch.nn.Parameter):
        return made
    with mode:
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
