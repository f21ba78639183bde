"""Which frozen weights a session can read in torch's memory, and the entry that has it read them there.

`add_external_initializers` alone has ONNX Runtime copy each weight before it packs it. With `add_initializer` under the same name it
reads torch's memory instead: no copy while packing, and no copy at all without packing. Under that name, however, it takes the memory as
it is, also after one of its rewrites has transposed the initializer of the model in place, as its transpose optimizer does for operands
of Add, Where or Concat. So only weights are shared that nothing but matrix products read: no rewrite changes these in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.backend.runtime.tables import captured

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx
    import onnxruntime

_PRODUCTS = frozenset({"MatMul", "Gemm"})
_OPERANDS = 2  # the third input of Gemm is added, and may be rearranged
_UNPACKED_ENTRY = "session.disable_prepacking"


def shareable(model: onnx.ModelProto) -> frozenset[str]:
    """Find the initializers that ONNX Runtime never changes: both factors of matrix products, read by nothing else."""
    products: set[str] = set()
    others = {value.name for value in model.graph.output}
    for node in model.graph.node:
        place = _OPERANDS if node.op_type in _PRODUCTS and not node.domain else 0
        products.update(node.input[:place])
        others.update(node.input[place:])
        others.update(captured(node))
    return frozenset(tensor.name for tensor in model.graph.initializer if tensor.name in products - others)


def share(options: onnxruntime.SessionOptions, names: Sequence[str], values: Sequence[Any], shared: frozenset[str]) -> None:
    """Have a session read `shared` initializers in place; its options hold no reference to the values, which must outlive it."""
    for name, value in zip(names, values, strict=True):
        if name in shared:
            options.add_initializer(name, value)


def leave_unpacked(options: onnxruntime.SessionOptions) -> None:
    """Have the kernels of a session read weights as they are, without packing them into copies."""
    options.add_session_config_entry(_UNPACKED_ENTRY, "1")
