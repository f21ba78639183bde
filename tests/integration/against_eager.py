"""The one claim behind most integration tests: compiled through a lens, a function does what it does without."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from ortlens import Lens
from ortlens.backend.runtime.session import SessionConfig
from ortlens.trace.records import Capture

SEED = 20260


def twin(value: Any) -> Any:
    """The same tensor in memory of its own, strides, gradient flag and all; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage().clone()
    made = torch.empty(0, dtype=value.dtype).set_(storage, value.storage_offset(), value.shape, value.stride())
    return made.requires_grad_(value.requires_grad)


def assert_same(actual: Any, expected: Any, *, atol: float = 1e-5, rtol: float = 1e-4) -> None:
    """Equal structure, Python types, numbers, dtypes and strides."""
    leaves, structure = pytree.tree_flatten(actual)
    wanted, wanted_structure = pytree.tree_flatten(expected)
    assert structure == wanted_structure
    for leaf, want in zip(leaves, wanted, strict=True):
        assert type(leaf) is type(want)
        if isinstance(want, (str, type(None))):
            assert leaf == want
            continue
        torch.testing.assert_close(leaf, want, atol=atol, rtol=rtol, equal_nan=True)
        if isinstance(want, torch.Tensor):
            assert strides_that_matter(leaf) == strides_that_matter(want)


def strides_that_matter(tensor: torch.Tensor) -> list[int]:
    """Strides of the dimensions that have more than one index; of an empty tensor none."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1] if tensor.numel() else []


def same_as_eager(
    function: Callable[..., Any],
    *calls: Sequence[Any],
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    grad: bool = False,
    atol: float = 1e-5,
) -> Capture:
    """Call a function both ways, with the same arguments and random numbers, and compare results and arguments."""
    lens = Lens(options=options)
    compiled = torch.compile(function, backend=lens, dynamic=dynamic)
    with torch.set_grad_enabled(grad):
        for args in calls:
            assert_same_call(compiled, function, args, atol=atol)
    return lens.captured()


def assert_same_call(ours: Callable[..., Any], theirs: Callable[..., Any], args: Sequence[Any], *, atol: float) -> None:
    """Equal results and arguments after a call with the same arguments and random numbers."""
    mine, reference = pytree.tree_map(twin, args), pytree.tree_map(twin, args)
    torch.manual_seed(SEED)
    expected = theirs(*reference)
    torch.manual_seed(SEED)
    assert_same(ours(*mine), expected, atol=atol)
    assert_same(mine, reference, atol=atol)


def sessions_per_partition(capture: Capture) -> list[int]:
    return [sum(session.partition_id == part.partition_id for session in capture.sessions) for part in capture.partitions]


def sessions_tried(patch: pytest.MonkeyPatch) -> list[SessionConfig]:
    """Note what every session is made of, those that ONNX Runtime refuses included."""
    tried: list[SessionConfig] = []
    original = SessionConfig.session

    def noted(config: SessionConfig, *given: Any, **by_name: Any) -> Any:
        tried.append(config)
        return original(config, *given, **by_name)

    patch.setattr(SessionConfig, "session", noted)
    return tried
