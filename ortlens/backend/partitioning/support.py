"""Decides for each node whether ONNX Runtime supports it, and if not, why.

The decision is made before anything is converted. It depends on the kind of the node, on whether the registry has a function
for it, and on whether PyTorch and ONNX Runtime represent its tensors by the same bytes. Failures of conversion and of session
creation exclude more nodes later (see `backend/graph.py`).
"""

from __future__ import annotations

import operator
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.basis import dtypes, provenance
from ortlens.backend.basis.dtypes import int_range
from ortlens.backend.basis.memory_order import COPIED, may_overlap_itself, needs_restride
from ortlens.backend.lowering.checks import draws, may_raise
from ortlens.backend.lowering.returned_views import base_of, owner_of, writes_argument
from ortlens.backend.lowering.storage_windows import PART_WRITERS, keeps_storage_of
from ortlens.backend.lowering.wholes import STAYS
from ortlens.backend.operators import registry as operators
from ortlens.backend.operators.facts import ON_PURPOSE, Call, is_known_at_run_time
from ortlens.backend.partitioning import kernel_times
from ortlens.backend.partitioning.plan import NodeKind, Verdict, kind_of
from ortlens.units import time_from_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ortlens.trace.records import FallbackCause, ReasonCode


YES = Verdict(supported=True)


def _no(code: ReasonCode, reason: str, cause: FallbackCause | None = None) -> Verdict:
    return Verdict(supported=False, code=code, reason=reason, cause=cause)


_SQUEEZES = (torch.ops.aten.squeeze.default, torch.ops.aten.squeeze.dim, torch.ops.aten.squeeze.dims)
_PACKED = ("aten._weight_int4pack_mm", "aten._dyn_quant_matmul_4bit")
"""Products with weights of 4 bits that PyTorch has packed for the processor at hand."""


def _without_function(name: str) -> Verdict:
    if name.startswith(_PACKED):
        text = "only PyTorch knows the layout of its 4-bit weights; those of torchao's IntxWeightOnlyConfig run in ONNX Runtime"
        return _no("policy", f"{name} stays in PyTorch on purpose: {text}")
    return _no("no_converter", f"{name} has no ONNX function in the installed torch and onnxscript")


@dataclass(slots=True)
class Support:
    """Decides which nodes of one graph ONNX Runtime supports."""

    registry: Any  # of ONNX functions
    can_run_on: Callable[[str], str | None]  # returns None for a device type that a provider supports, else the reason
    excluded: Mapping[str, Verdict] = field(default_factory=dict)  # nodes that failed before
    _: KW_ONLY
    deployed: bool = False
    without_bfloat16: bool = False  # whether CPU tensors go to no provider that computes in it
    upcast: Collection[torch.dtype] = ()  # types that are computed in float32
    folded: Collection[torch.fx.Node] = ()  # made of weights alone: a session that holds these as constants computes it once
    # Listed once: to do it for each node took a tenth of the time, under a profiler.
    _own: Mapping[Any, Any] = field(init=False, default_factory=operators.own_functions)
    _unknown_ranks: dict[torch.fx.Node, bool] = field(init=False, default_factory=dict)

    def verdict(self, node: torch.fx.Node) -> Verdict:
        """Decide whether a node is supported, and if not, give a code and a reason."""
        if node.name in self.excluded:
            return self.excluded[node.name]
        if node.target is operator.getitem:
            return self.verdict(node.all_input_nodes[0]) if node.all_input_nodes else YES
        if (kept := node.meta.get(STAYS)) is not None:
            whole: Verdict = kept
            return whole
        for rule in (
            self._effect,
            self._slow,
            self._rank,
            self._number,
            self._registered,
            self._wrong_function,
            self._elements,
            self._bits,
            self._bfloat16,
            self._device,
            self._layout,
        ):
            verdict = rule(node)
            if verdict is not None:
                return verdict
        return YES

    def _effect(self, node: torch.fx.Node) -> Verdict | None:

        name = provenance.target_name(node)
        if kind_of(node) is NodeKind.EFFECT:
            return _no("side_effect", f"{name} is a check that PyTorch makes at run time")
        if draws(node):
            return _no("side_effect", f"{name} draws random numbers; only PyTorch's generator reproduces them from the seed", "random")
        if writes_argument(node):
            return _no("side_effect", f"{name} writes into its arguments, which ONNX operators cannot do")
        return None

    def _slow(self, node: torch.fx.Node) -> Verdict | None:
        if node in self.folded or self._is_users(node.target):
            return None
        slow = (None if self.deployed else _loses(node)) or operators.slow_for(node, deployed=self.deployed)
        return None if slow is None else _no("policy", f"{provenance.target_name(node)} {slow}")

    def _rank(self, node: torch.fx.Node) -> Verdict | None:
        if not self._has_unknown_rank(node):
            return None
        return _no("dynamic_shape", "the number of dimensions follows from data: a squeeze drops one whose size is 1 at run time")

    def _has_unknown_rank(self, node: torch.fx.Node) -> bool:
        if node not in self._unknown_ranks:
            given = node.args[0].meta.get("val") if node.target in _SQUEEZES and isinstance(node.args[0], torch.fx.Node) else None
            dropped = isinstance(given, torch.Tensor) and any(map(is_known_at_run_time, given.shape))
            self._unknown_ranks[node] = dropped or any(map(self._has_unknown_rank, node.all_input_nodes))
        return self._unknown_ranks[node]

    def _number(self, node: torch.fx.Node) -> Verdict | None:
        """Leave to Python what it computes otherwise, and at once. A model to deploy checks at run time that an int has 64 bits."""
        computes, alone = kind_of(node) is NodeKind.SIZE, node.target is torch.ops.aten.scalar_tensor.default
        if _is_float_number(node) and not (self.deployed and (computes or alone)):
            if alone:
                return _no("policy", "a number that follows from sizes is rounded once, in PyTorch")
            return _no("dtype", "a Python float has 64 bits, the ONNX model would use 32")
        if computes and not self.deployed and not _has_64_bits(node):
            return _no("dtype", "a Python int has no limit, one of the ONNX model has 64 bits")
        return None

    def _registered(self, node: torch.fx.Node) -> Verdict | None:
        name = provenance.target_name(node)
        if any(isinstance(provenance.attribute_of(source), torch.nn.Module) for source in node.all_input_nodes):
            return _no("no_converter", f"{name} runs graphs of its own, which stay in PyTorch")
        if _torch.dispatch(node, self.registry) is not None:
            return None
        if any(t.is_complex() for t in _tensors_of(node)):
            return _no("dtype", f"{name} on complex numbers has no ONNX function", "complex")
        return _without_function(name)

    def _elements(self, node: torch.fx.Node) -> Verdict | None:
        for tensor in _tensors_of(node):
            if tensor.dtype not in dtypes.ELEMENT_TYPES:
                name = str(tensor.dtype).removeprefix("torch.")
                return _no("dtype", f"{name} tensors cannot be passed to ONNX Runtime", "complex" if tensor.is_complex() else None)
        return None

    def _bits(self, node: torch.fx.Node) -> Verdict | None:
        narrow = [tensor.dtype for tensor in _tensors_of(node) if tensor.dtype in self.upcast]
        if node.target is not torch.ops.aten.view.dtype or not narrow:
            return None
        name = str(narrow[0]).removeprefix("torch.")
        reason = f"the option upcast computes {name} in float32, and {provenance.target_name(node)} reads the bits of {name}"
        return _no("dtype", reason)

    def _bfloat16(self, node: torch.fx.Node) -> Verdict | None:
        may_run = torch.bfloat16 in self.upcast or not self.without_bfloat16 or self.deployed or self._is_users(node.target)
        if may_run or kind_of(node) is not NodeKind.COMPUTE:
            return None
        if not any(map(_makes_bfloat16, [node, *node.all_input_nodes])) or _is_moved_constant(node):
            return None
        beside = node.all_input_nodes if _makes_bfloat16(node) else list(node.users)
        if node.target in _CASTS and any(map(self._computes_beside, beside)):
            return None
        return _no("dtype", "ONNX Runtime's CPU provider has no arithmetic in bfloat16; float32 and float16 run there", "bfloat16")

    def _computes_beside(self, node: torch.fx.Node) -> bool:
        """Tell whether ONNX Runtime computes what a cast converts, or computes with it: then it makes the cast, too, and faster."""
        if kind_of(node) is not NodeKind.COMPUTE or base_of(node) is not None or _makes_bfloat16(node):
            return False
        return not any(map(_makes_bfloat16, node.all_input_nodes)) and self.verdict(node).supported

    def _device(self, node: torch.fx.Node) -> Verdict | None:
        for tensor in _tensors_of(node):
            reason = self.can_run_on(tensor.device.type)
            if reason is not None:
                return _no("device", reason)
        return None

    def _layout(self, node: torch.fx.Node) -> Verdict | None:
        for tensor in _tensors_of(node):
            if tensor.layout is not torch.strided:
                return _no("layout", f"{tensor.layout} tensors have no equivalent in ONNX")
        return None

    def _wrong_function(self, node: torch.fx.Node) -> Verdict | None:
        if self._is_users(node.target):
            return None
        unchecked = operators.reads_sizes_alone(node.target) and _hides_check(node)
        wrong = "does not compute what it takes the sizes of, and so does not check it" if unchecked else operators.wrong_for(node)
        if wrong is None:
            return None
        return _no("no_converter", f"the ONNX function of {provenance.target_name(node)} {wrong}")

    def _is_users(self, target: Any) -> bool:
        """Tell whether an operator has a function of the user's, who answers for it; our own are judged like those of torch."""
        own = self._own.get(target)
        return any(function is not own for function in _torch.custom_functions(target, self.registry))


def _loses(node: torch.fx.Node) -> str | None:
    lost_ns = kernel_times.lost_by_one(Call(node)) if node.target in kernel_times.APART else 0
    return _slower(lost_ns) if lost_ns else None


def slower_in_parts(call: torch.fx.Node, parts: Sequence[torch.fx.Node]) -> Verdict | None:
    """Return why what ONNX Runtime would compute in parts stays in PyTorch, where that takes longer."""
    lost_ns = kernel_times.lost_by_parts(call, parts)
    return _no("policy", f"{provenance.target_name(call)} {_slower(lost_ns)}") if lost_ns else None


def _slower(lost_ns: float) -> str:
    return f"{ON_PURPOSE}of so many numbers ONNX Runtime takes longer than PyTorch, by about {time_from_ns(lost_ns)} on one thread"


def _hides_check(node: torch.fx.Node) -> bool:
    """Find a check whose result nobody reads, so that a model would not make it."""
    unread, waiting = {node}, [node.args[0]]
    while waiting:
        source = waiting.pop()
        if isinstance(source, torch.fx.Node) and source.op == "call_function" and unread.issuperset(source.users):
            if may_raise(source):
                return True
            unread.add(source)
            waiting += source.all_input_nodes
    return False


_CASTS = frozenset({torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default})  # noqa: SLF001 - a name


_ON_CPU = ("cpu", *COPIED)


def _makes_bfloat16(node: torch.fx.Node) -> bool:
    return any(tensor.dtype is torch.bfloat16 and tensor.device.type in _ON_CPU for tensor in provenance.tensors_in(node.meta.get("val")))


def _is_moved_constant(node: torch.fx.Node) -> bool:
    """Tell whether a constant of the CPU is only copied to other devices: so is `torch.tensor(1.0, device="cuda")` without a GPU."""
    return node.target is torch.ops.aten.lift_fresh_copy.default and all(
        user.target in _CASTS and user.meta["val"].device.type != "cpu" for user in node.users
    )


def storage_readers(graph: torch.fx.Graph) -> dict[str, Verdict]:
    """Find the nodes that must stay in PyTorch because the storage behind a tensor matters to them, and not its values alone.

    `as_strided` reads it. Writing a part of an unfolded tensor changes elements outside of that part; writing into a tensor with gaps
    copies what lies in them. These stay, with the views and copies of a whole storage that they read, down to its owner, and with
    the views of a result with gaps that are returned.
    """
    verdicts: dict[str, Verdict] = {}
    (output,) = graph.find_nodes(op="output")
    returned = {owner_of(node, ()) for node in output.all_input_nodes}
    for node in graph.nodes:
        reason = _needs_storage(node, returned=node in returned)
        chain: torch.fx.Node | None = node
        while reason is not None and chain is not None and chain.op == "call_function":
            verdicts[chain.name] = _no("layout", reason)
            source = chain.all_input_nodes[0] if chain.all_input_nodes else None
            chain = source if source is not None and keeps_storage_of(source) is not None else None
    for node in output.all_input_nodes:
        owner, view = owner_of(node, ()), node
        if view is not owner and owner.name in verdicts and needs_restride(owner.meta["val"]):  # one alone may be a number
            while view is not owner:
                verdicts[view.name] = verdicts[owner.name]
                view = view.all_input_nodes[0]
    return verdicts


def _needs_storage(node: torch.fx.Node, *, returned: bool) -> str | None:
    name = provenance.target_name(node)
    if name in _WINDOWS:
        return f"{name} reads the storage behind a tensor, not its values"
    if node.target not in PART_WRITERS:
        return None
    if may_overlap_itself(node.args[0].meta["val"]):  # type: ignore[union-attr]  # a node, by the schema
        return f"{name} writes into a tensor whose elements share memory"
    return f"{name} copies what lies between the elements of a result" if returned and needs_restride(node.meta["val"]) else None


_WINDOWS = (
    *("aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"),
    "aten.sym_storage_offset.default",
)


def _is_float_number(node: torch.fx.Node) -> bool:
    return any(type(value).__name__ == "SymFloat" or isinstance(value, float) for value in _values_at(node))


def _has_64_bits(node: torch.fx.Node) -> bool:
    """Tell whether the ints that a node reads and computes have 64 bits; what follows from data of tensors is checked at run time."""
    values = [value for value in (*_values_at(node), *node.args) if type(value).__name__ in ("SymInt", "int")]
    return all(int_range(value) is not None or _torch.depends_on_data(value) for value in values)


def _values_at(node: torch.fx.Node) -> list[Any]:
    return [node.meta.get("val"), *(source.meta.get("val") for source in node.all_input_nodes)]


def _tensors_of(node: torch.fx.Node) -> list[Any]:
    found = list(provenance.tensors_in(node.meta.get("val")))
    for source in node.all_input_nodes:
        found.extend(provenance.tensors_in(source.meta.get("val")))
    return found
