"""May this node go to ONNX Runtime? If not, for which reason?

The answer is given node by node and before anything is converted, from facts alone: what kind of node it is, whether
the registry has a function for it, and whether both sides hold its tensors in the same bytes. What only conversion or
session creation can find out comes back later as an exclusion (see `compiler.py`).
"""

from __future__ import annotations

import operator
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from ortlens import _torch
from ortlens.backend.conversion import dtypes
from ortlens.backend.lowering import decompositions, provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch.fx

    from ortlens.trace.records import ReasonCode


class NodeKind(Enum):
    """What a node is to the partitioner."""

    COMPUTE = "compute"  # makes tensors
    TUPLE = "tuple"  # picks from a tuple; goes where its producer goes
    SIZE = "size"  # makes a number
    EFFECT = "effect"  # makes nothing: a check
    OTHER = "other"  # placeholder, get_attr, output


class Verdict(NamedTuple):
    """Whether ONNX Runtime can take a node, and if not why."""

    supported: bool
    code: ReasonCode | None = None
    reason: str | None = None
    exception: str | None = None  # what was raised, for what was found out by trying


YES = Verdict(supported=True)


def kind_of(node: torch.fx.Node) -> NodeKind:
    """Classify a node.

    Args:
        node: Any node of an ATen graph.

    Returns:
        Its kind.
    """
    if node.op != "call_function":
        return NodeKind.OTHER
    if node.target is operator.getitem:
        return NodeKind.TUPLE
    value = node.meta.get("val")
    if _torch.is_symbolic(value) or isinstance(value, (int, float, bool)):
        return NodeKind.SIZE
    return NodeKind.EFFECT if value is None else NodeKind.COMPUTE


class Support:
    """Decides node by node, for one graph."""

    def __init__(self, registry: Any, can_run_on: Callable[[str], str | None], excluded: Mapping[str, Verdict] | None = None) -> None:
        """Prepare for one graph.

        Args:
            registry: As returned by `_torch.registry_with`.
            can_run_on: Device type -> None when a provider serves it, else the reason in words.
            excluded: Names of nodes that failed later, with their verdicts.
        """
        self._registry = registry
        self._can_run_on = can_run_on
        self._excluded = excluded or {}

    def verdict(self, node: torch.fx.Node) -> Verdict:
        """Decide one node.

        Args:
            node: A `call_function` node with `meta["val"]`.

        Returns:
            Whether it is supported, and if not a code and a reason in words.
        """
        if node.name in self._excluded:
            return self._excluded[node.name]
        if node.target is operator.getitem:
            return self.verdict(node.all_input_nodes[0]) if node.all_input_nodes else YES
        for rule in (self._effect, self._registered, self._made_up, self._elements, self._device, self._layout):
            verdict = rule(node)
            if verdict is not None:
                return verdict
        return YES

    def _effect(self, node: torch.fx.Node) -> Verdict | None:
        import torch

        name = provenance.target_name(node)
        if kind_of(node) is NodeKind.EFFECT:
            return Verdict(supported=False, code="side_effect", reason=f"{name} is a check that PyTorch makes while running")
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _without_dropout(node):
            reason = f"{name} draws random numbers; only PyTorch's generator gives the numbers the seed promises"
            return Verdict(supported=False, code="side_effect", reason=reason)
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return Verdict(supported=False, code="side_effect", reason=f"{name} writes into its arguments; ONNX operators never do")
        return None

    def _registered(self, node: torch.fx.Node) -> Verdict | None:
        import torch

        if isinstance(node.meta.get("val"), float) or _is_float_number(node):
            return Verdict(supported=False, code="dtype", reason="a Python float keeps 64 bits, ONNX would keep 32")
        name = provenance.target_name(node)
        if any(isinstance(_attribute_of(source), torch.nn.Module) for source in node.all_input_nodes):
            return Verdict(supported=False, code="no_converter", reason=f"{name} runs graphs of its own, which stay in PyTorch with it")
        if _torch.dispatch(node, self._registry) is not None:
            return None
        if any(t.is_complex() for t in _tensors_of(node)):
            return Verdict(supported=False, code="dtype", reason=f"{name} on complex numbers has no ONNX function")
        return Verdict(supported=False, code="no_converter", reason=f"{name} has no ONNX function in the installed torch and onnxscript")

    def _elements(self, node: torch.fx.Node) -> Verdict | None:
        known = dtypes.element_types()
        for tensor in _tensors_of(node):
            if tensor.dtype not in known:
                held = str(tensor.dtype).removeprefix("torch.")
                return Verdict(supported=False, code="dtype", reason=f"{held} tensors cannot be handed to ONNX Runtime")
        return None

    def _device(self, node: torch.fx.Node) -> Verdict | None:
        for tensor in _tensors_of(node):
            reason = self._can_run_on(tensor.device.type)
            if reason is not None:
                return Verdict(supported=False, code="device", reason=reason)
        return None

    def _layout(self, node: torch.fx.Node) -> Verdict | None:
        import torch

        for tensor in _tensors_of(node):
            if tensor.layout is not torch.strided:
                return Verdict(supported=False, code="layout", reason=f"{tensor.layout} tensors have no ONNX form")
        return None

    def _made_up(self, node: torch.fx.Node) -> Verdict | None:
        wrong = decompositions.wrong_for(node)
        if wrong is not None and not _torch.is_custom(node.target, self._registry):
            reason = f"the ONNX function of {provenance.target_name(node)} {wrong}"
            return Verdict(supported=False, code="no_converter", reason=reason)
        made_up = decompositions.made_up_outputs().get(node.target, frozenset())
        read = sorted(made_up & {user.args[1] for user in node.users if user.target is operator.getitem})
        if not read or _torch.is_custom(node.target, self._registry):
            return None
        reason = f"the ONNX function of {provenance.target_name(node)} makes up output {read[0]}, which this graph reads"
        return Verdict(supported=False, code="no_converter", reason=reason)


def _without_dropout(node: torch.fx.Node) -> bool:
    """Whether an operator that would draw for its dropout has none to do: attention in inference."""
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
    for place, argument in enumerate(arguments):
        if argument.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return isinstance(given, (int, float)) and given == 0
    return False


def _attribute_of(node: torch.fx.Node) -> object:
    """What a `get_attr` node stands for; None for every other node."""
    owner = node.graph.owning_module
    if node.op != "get_attr" or owner is None:
        return None
    for part in str(node.target).split("."):
        owner = getattr(owner, part)
    return owner


def storage_readers(graph: torch.fx.Graph) -> dict[str, Verdict]:
    """Nodes that must stay in PyTorch because a window on storage is taken of what they make.

    `as_strided` reads the storage behind a view. ONNX Runtime hands over values, so the operator and the chain of views
    under it belong together, on PyTorch's side, down to the tensor that owns the storage.

    Args:
        graph: An ATen graph.

    Returns:
        Name -> verdict.
    """
    verdicts: dict[str, Verdict] = {}
    for node in graph.nodes:
        if provenance.target_name(node) not in _WINDOWS:
            continue
        reason = f"{provenance.target_name(node)} reads the storage behind a tensor, not its values"
        chain: torch.fx.Node | None = node
        while chain is not None and chain.op == "call_function":
            verdicts[chain.name] = Verdict(supported=False, code="layout", reason=reason)
            source = chain.all_input_nodes[0] if chain.all_input_nodes else None
            chain = source if source is not None and getattr(source.target, "is_view", False) else None
    return verdicts


_WINDOWS = ("aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default")


def _is_float_number(node: torch.fx.Node) -> bool:
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return any(type(v).__name__ == "SymFloat" or isinstance(v, float) for v in [node.meta.get("val"), *values])


def _tensors_of(node: torch.fx.Node) -> list[Any]:
    """Tensors a node reads and makes."""
    found = list(provenance.tensors_in(node.meta.get("val")))
    for source in node.all_input_nodes:
        found.extend(provenance.tensors_in(source.meta.get("val")))
    return found
