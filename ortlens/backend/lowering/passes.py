"""What happens to an ATen graph before it is partitioned: one ordered list of passes, with what each requires and ensures.

The conditions are checked in every compilation, after the last pass: one walk over the graph each, which takes less than a hundredth of the
time of the passes. A graph that breaks one stays in PyTorch, as after any failure to compile it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens.backend.basis import pass_runner, provenance
from ortlens.backend.basis.pass_runner import Pass, PassError, run_passes, texts_of
from ortlens.backend.lowering import buffer_writes, repeated_heads, storage_windows, type_promotion
from ortlens.backend.lowering.returned_views import base_of, writes_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Sequence


_METADATA_CHECK = torch.ops.aten._assert_tensor_metadata.default  # noqa: SLF001 - an operator's name


def _has_values(graph: torch.fx.Graph) -> bool:
    return all("val" in node.meta or not node.users or node.op == "get_attr" for node in graph.nodes)


def _is_ordered(graph: torch.fx.Graph) -> bool:
    earlier: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if not earlier.issuperset(node.all_input_nodes):
            return False
        earlier.add(node)
    return True


def _is_read(graph: torch.fx.Graph) -> bool:
    return all(node.users or node.op in ("placeholder", "output") or node.is_impure() for node in graph.nodes)


class GraphCondition(pass_runner.Condition):
    """What is true of a graph between two passes."""

    VALUED = "every node that another reads has its example value", _has_values
    ORDERED = "every node comes after those that it reads", _is_ordered
    SETTLED = (
        "no check of a dtype or device is left, which tracing has made",
        lambda graph: not graph.find_nodes(op="call_function", target=_METADATA_CHECK),
    )
    READ = "every node is read, or has an effect", _is_read


_GIVEN = (GraphCondition.VALUED, GraphCondition.ORDERED)  # what is true of AOTAutograd's graphs
_USUAL: dict[str, Any] = {"requires": _GIVEN, "invalidates": (GraphCondition.READ,)}


def _drop_unread(copy: Prepared) -> None:
    copy.module.graph.eliminate_dead_code()


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A copy of an ATen graph for the partitioner, and what the passes found out; PyTorch can still run the original."""

    module: torch.fx.GraphModule  # the copy
    is_converted: Callable[[Any], bool]  # tells whether an operator has an ONNX function
    mutated: Sequence[int] = ()  # the inputs whose new values are the first outputs
    of_users: Container[Any] = ()  # operators with functions of the user's
    writes: bool = False  # whether PyTorch may write into large buffers in place
    leaves: bool = False  # whether such a write may be left to a session
    # Node -> what was raised where PyTorch's implicit conversions are not known.
    failures: dict[str, Exception] = field(default_factory=dict)
    left_to_sessions: tuple[torch.fx.Node, ...] = ()  # the writes that are
    kept: dict[str, str] = field(default_factory=dict)  # name of a node that has to stay in PyTorch for a write -> why

    def promote(self) -> None:
        """Make implicit conversions of element types explicit."""
        self.failures = type_promotion.promote(self.module, self.is_converted)

    def drop_metadata_checks(self) -> None:
        """Drop checks of dtypes and devices, which tracing has made."""
        for node in self.module.graph.find_nodes(op="call_function", target=_METADATA_CHECK):
            self.module.graph.erase_node(node)

    def leave_writes(self) -> None:
        """Find the writes that may be left to sessions."""
        if self.leaves:
            self.left_to_sessions = buffer_writes.session_writes(self.module, self.mutated, self.of_users)

    def write_in_place(self) -> None:
        """Make the other writes into large buffers in place."""
        if self.writes:
            self.kept = buffer_writes.write_in_place(self.module, self.mutated, self.of_users, self.left_to_sessions)

    def write_all_in_place(self) -> None:
        """Make in place what was left to sessions, too."""
        self.left_to_sessions = ()
        self.write_in_place()


PASSES = (
    Pass(name="make tensors of numbers", run=lambda copy: type_promotion.make_tensors_of_numbers(copy.module.graph), **_USUAL),
    Pass(name="promote types", run=Prepared.promote, **_USUAL),
    Pass(name="gather windows", run=lambda copy: storage_windows.gather_windows(copy.module), **_USUAL),
    Pass(name="drop metadata checks", run=Prepared.drop_metadata_checks, ensures=(GraphCondition.SETTLED,), **_USUAL),
    Pass(name="read unexpanded masks", run=lambda copy: repeated_heads.read_unexpanded(copy.module.graph), **_USUAL),
    Pass(name="multiply by group", run=lambda copy: repeated_heads.multiply_by_group(copy.module.graph), **_USUAL),
    Pass(name="compute once", run=lambda copy: compute_once(copy.module.graph), **_USUAL),
    Pass(name="drop what nobody reads", run=_drop_unread, requires=_GIVEN, ensures=(GraphCondition.READ,)),
    Pass(name="leave writes to sessions", run=Prepared.leave_writes, requires=(*_GIVEN, GraphCondition.READ)),
    Pass(name="write in place", run=Prepared.write_in_place, requires=(*_GIVEN, GraphCondition.READ)),
)
"""The passes, in order."""


def prepared(module: torch.fx.GraphModule, is_converted: Callable[[Any], bool], **writes: Any) -> Prepared:
    """Prepare a copy of an ATen graph for the partitioner; `writes` are the attributes about these."""
    made = Prepared(module=torch.fx.GraphModule(module, _copy_of(module.graph)), is_converted=is_converted, **writes)
    _, established = run_passes(made, PASSES, _GIVEN)
    if broken := [condition for condition in established if not condition.holds(made.module.graph)]:
        raise PassError(f"the lowered graph breaks what its passes ensure: {texts_of(broken)}")
    return made


def _copy_of(graph: torch.fx.Graph) -> torch.fx.Graph:
    copied = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    output = copied.graph_copy(graph, mapping)
    copied.output(output)
    for source, copy in mapping.items():
        copy.meta = dict(source.meta)
    return copied


_SEPARATE_TAGS = frozenset({torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


def compute_once(graph: torch.fx.Graph) -> None:
    """Let one node compute what several nodes of a functional graph do; a graph with an operator that writes stays as it is.

    Decompositions and type promotion repeat themselves: each layer of a model with a key-value cache checks the same position, and each
    residual converts the same mask. ONNX Runtime removes repeats within a session, but not what leaves one: every repeat is bound as an
    output of its own. AOTAutograd removes them before it partitions a training graph, and from inference graphs not at all.

    The first of several equal nodes stays, with its line and its module. These stay all: random draws, what writes or has no schema, views
    (their equal results make what reads them equal, and they move no data), constants (each session folds its own), and what the graph
    returns, since tensors that a program returns are separate.
    """
    if any(map(writes_argument, graph.nodes)):
        return
    returned = _returned(graph)
    number: dict[torch.fx.Node, int] = {}  # equal numbers: equal values
    first: dict[Hashable, torch.fx.Node] = {}
    made_of_inputs: set[torch.fx.Node] = set()
    for node in list(graph.nodes):
        if node.op in ("placeholder", "output"):
            number[node] = len(number)
            made_of_inputs.add(node)
            continue
        if not made_of_inputs.isdisjoint(node.all_input_nodes):
            made_of_inputs.add(node)
        key = _key(node, number)
        equal = node if key is None else first.setdefault(key, node)
        if equal is not node and _made(equal) != _made(node):
            equal = node
        number[node] = number.get(equal, len(number))
        if equal is not node and node in made_of_inputs and returned.isdisjoint((node, equal)) and _makes_a_value(node):
            node.replace_all_uses_with(equal)
            graph.erase_node(node)


def _key(node: torch.fx.Node, number: dict[torch.fx.Node, int]) -> Hashable | None:
    """Collect what determines the value of a node; None where another node with the same may have another value."""
    if node.op == "get_attr":
        return (node.op, node.target)
    if node.op != "call_function" or not (node.target is operator.getitem or _is_pure(node.target)):
        return None
    arguments = _frozen((*node.args, *node.kwargs.items()), number)
    return None if arguments is None else (node.target, arguments)


def _is_pure(target: Any) -> bool:
    return getattr(target, "namespace", None) in ("aten", "prims") and _SEPARATE_TAGS.isdisjoint(target.tags)


def _frozen(value: Any, number: dict[torch.fx.Node, int]) -> Hashable | None:
    """Make an argument a part of a key; None where it cannot be one."""
    if isinstance(value, torch.fx.Node):
        return ("node", number[value])
    if isinstance(value, (list, tuple)):
        items = [_frozen(item, number) for item in value]
        return None if None in items else tuple(items)
    return (type(value), repr(value)) if isinstance(value, _PLAIN) else None


def _made(node: torch.fx.Node) -> tuple[str, ...]:
    value = node.meta.get("val")
    return tuple(map(provenance.layout_text, provenance.tensors_in(value)))


def _makes_a_value(node: torch.fx.Node) -> bool:
    return base_of(node) is None and next(provenance.tensors_in(node.meta.get("val")), None) is not None


def _returned(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Collect what the graph returns, what that is a view of, and what makes it as an item of a tuple."""
    found: set[torch.fx.Node] = set()
    for node in next(iter(graph.find_nodes(op="output"))).all_input_nodes:
        step: torch.fx.Node | None = node
        while step is not None:
            found.add(step)
            step = base_of(step) or (step.all_input_nodes[0] if step.target is operator.getitem else None)
    return found
