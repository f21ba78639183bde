"""Analyse a model without its memory and without running it: everything is done on fake tensors."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def call_with_fakes(target: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a compiled target so that no tensor has data.

    Args:
        target: What was compiled; the weights of a module on the meta device stand in as if they were on the CPU.
        call: The compiled target, whose graphs give fake tensors for fake tensors.
        args: Its arguments; tensors are replaced by fake ones of the same shape, dtype and strides.
        kwargs: Likewise.

    Returns:
        What the target returned, made of fake tensors.

    Raises:
        Exception: What the target's own Python raised; `_torch.needs_data` tells when it asked a tensor for its values.
    """
    module = target if isinstance(target, torch.nn.Module) else None
    weights = [] if module is None else [*module.parameters(), *module.buffers()]
    mode = _torch.fake_mode_of(weights)
    fake_args, fake_kwargs = _torch.map_tensors(lambda tensor: _fake(tensor, mode), (args, kwargs))
    with _fake_weights(module, mode), mode:
        return call(*fake_args, **fake_kwargs)


def _fake(tensor: torch.Tensor, mode: Any) -> torch.Tensor:
    """The same tensor without data; one on the meta device becomes one on the CPU."""
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
    """Put fake tensors in the place of weights on the meta device; tied weights stay tied."""
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
