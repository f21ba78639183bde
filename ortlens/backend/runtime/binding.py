"""What is bound to a session: its inputs, its outputs, and the native binding of one call at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion import dtypes
from ortlens.backend.runtime import _ort, devices
from ortlens.backend.runtime.layout import permuted_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnxruntime

    from ortlens.backend.runtime.weights import FrozenWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a partition."""

    name: str  # name in the ONNX model
    meta: Any  # a fake tensor or a number: dtype, device and (symbolic) shape
    frozen: FrozenWeight | None = None  # the weight that the session holds as a constant in its place; then it is checked and not bound
    bound: bool = True  # false when the session does not take it: the optimiser may remove an input
    permutation: tuple[int, ...] | None = None  # memory order in which the session takes it; see `layout.with_permuted_inputs`
    guarded: bool = False  # whether Dynamo's guards make sure of its sizes. What PyTorch's operators return has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One output of a partition."""

    name: str  # name in the ONNX model
    meta: Any  # a fake tensor or a number: what PyTorch expects
    permutation: tuple[int, ...] | None = None  # memory order in which the session writes it; see `backend.memory_order`
    shape: tuple[int, ...] | None = None  # shape in which the session writes it, if that differs; see `layout.without_last_reshapes`
    # Position of the input whose memory it takes, where no inputs overlap; see `runtime.in_place`. None: it is allocated.
    in_place: int | None = None
    repeatable: bool = True  # whether a run may be repeated on what a failed run has written there


class Binding:
    """A native binding, its session, and the buffers of its numbers."""

    __slots__ = ("bind_input", "bind_output", "get_outputs", "inputs_at", "kept", "native", "numbers", "outputs_at", "run", "session")

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Sequence[Input],
        outputs: Sequence[Output],
        constants: Sequence[tuple[Input, torch.Tensor]] = (),
    ) -> None:
        """Bind what never moves: constants, and the buffers of numbers.

        This object keeps the values of the constants alive, and the session, which it releases after the native binding.
        """
        # Addresses of the inputs and outputs of fixed sizes that are bound, by position.
        self.inputs_at, self.outputs_at = [0] * len(inputs), [0] * len(outputs)
        self.session = session
        self.native = _ort.new_binding(session)
        self.run = _ort.runner_of(session)
        self.bind_input = self.native.bind_input
        self.bind_output = self.native.bind_output
        self.get_outputs = self.native.get_outputs
        self.numbers = {item.name: number_buffer(item.meta) for item in inputs if item.bound and not isinstance(item.meta, torch.Tensor)}
        for name, buffer in self.numbers.items():
            element = dtypes.element_types()[buffer.dtype].onnx
            self.bind_input(name, devices.ort_device(buffer.device), element, (), buffer.data_ptr())
        self.kept = [self._bind_constant(item, value) for item, value in constants if item.bound]

    def _bind_constant(self, item: Input, value: torch.Tensor) -> torch.Tensor:
        name = item.name if item.permutation is None else permuted_name(item.name)
        plain = value.detach().resolve_neg()
        plain = (plain if item.permutation is None else plain.permute(item.permutation)).contiguous()
        kept = plain if plain.data_ptr() else plain.new_zeros(max(plain.numel(), 1))  # ONNX Runtime requires an address
        self.bind_input(name, devices.ort_device(plain.device), dtypes.element_types()[plain.dtype].onnx, plain.shape, kept.data_ptr())
        return kept

    def __del__(self) -> None:
        """Release the native binding before the session: the other order crashes the process."""
        for name in ("bind_input", "bind_output", "get_outputs", "run", "native", "session"):
            if hasattr(self, name):
                delattr(self, name)


def number_buffer(meta: Any) -> torch.Tensor:
    """Return a zero without dimensions, of dtype bool or int64, to pass or receive a number in."""
    is_bool = isinstance(meta, (bool, torch.SymBool))
    return torch.zeros((), dtype=torch.bool if is_bool else torch.int64)
