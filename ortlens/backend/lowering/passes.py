"""What happens to an ATen graph before it is partitioned: one ordered list of passes, with what each requires and ensures.

The conditions are checked in every compilation, after the last pass: one walk over the graph each, which takes less than a hundredth of the
time of the passes. A graph that breaks one stays in PyTorch, as after any failure to compile it.

Two passes read what attention repeats once: masks per value, keys and values per group of query heads. Grouped-query attention multiplies
each key head with the queries of a group. Programs repeat the heads, as `repeat_kv` of transformers and
`scaled_dot_product_attention(enable_gqa=True)` do, and then make one product per query head. The repeated keys and values of a cache are
several times as large as the cache, and are copied at every token. `multiply_by_group` puts the rows of a group's queries below each other
in one matrix, and one product per head that is not repeated makes the same numbers. Batch, rows and features may vary, heads may not.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ortlens.backend.basis import pass_runner, provenance
from ortlens.backend.basis.pass_runner import Pass, PassError, run_passes, texts_of
from ortlens.backend.lowering import buffer_writes, storage_windows, type_promotion
from ortlens.backend.lowering.returned_views import base_of, writes_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Hashable, Sequence


_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)  # noqa: SLF001 - an operator's name
_Size: TypeAlias = tuple[torch.fx.Node, int, int]  # a multiple of a size: a node, one of its dimensions, and the factor
_HEADS = 2  # the dimension in which repeated heads lie before they are one dimension with the others: (batch, head, copy, row, feature)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repeated:
    """Matrices that are repeated for each query head of a group."""

    source: torch.fx.Node  # (batch, head, row, feature), each head once
    count: int  # how many query heads share a head
    transposed: bool  # whether the product reads (feature, row)


def multiply_by_group(graph: torch.fx.Graph) -> None:
    """Let batched products with repeated matrices read each of them once; the copies that nothing reads any more stay."""
    for product in graph.find_nodes(op="call_function", target=_aten.bmm.default):
        repeated = _repeated_matrices(product.args[1])
        if repeated is not None:
            _regroup(graph, product, repeated)


def multiply_at_once(graph: torch.fx.Graph) -> None:
    """Make one product of a batched one with a matrix that is expanded, as `linear` does for a weight without a gradient."""
    for product in graph.find_nodes(op="call_function", target=_aten.bmm.default):
        left, right = product.args
        matrix = _before(_before(right, _RESHAPES) or right, (_aten.expand.default,))
        if matrix is None or _shape(right)[1:] != _shape(matrix) or type(summed := matrix.meta["val"].shape[0]) is not int or not summed:
            continue
        value, count = product.meta["val"], matrix.meta["val"].shape[1]
        many = value[..., 0].numel()
        with graph.inserting_before(product):
            rows = provenance.call_like(product, _aten.reshape.default, (left, [-1, summed]), value.new_empty([many, summed]))
            made = provenance.call_like(product, _aten.mm.default, (rows, matrix), value.new_empty([many, count]))
            product.replace_all_uses_with(_reshaped(product, made, [(left, 0, 1), (left, 1, 1), (matrix, 1, 1)]))


def read_unexpanded(graph: torch.fx.Graph) -> None:
    """Let what reads the first of expanded values read the value before it was expanded: masks, whose copies nothing reads then."""
    sources: dict[torch.fx.Node, torch.fx.Node] = {}  # a slice of an expanded value -> the value
    for node in graph.find_nodes(op="call_function", target=_aten.slice.Tensor):
        base: Any = node.args[0]
        source = sources.get(base, _before(base, (_aten.expand.default,)))
        if source is None or list(node.args[2:]) != [0, 1]:
            continue
        sources[node] = source
        added = node.meta["val"].dim() - source.meta["val"].dim()
        if _shape(node) != ["1"] * added + _shape(source):
            continue
        with graph.inserting_before(node):
            for _ in range(added):
                source = provenance.call_like(node, _aten.unsqueeze.default, (source, 0), source.meta["val"].unsqueeze(0))
        node.replace_all_uses_with(source)


def stack_parts(graph: torch.fx.Graph) -> None:
    """Stack what is written into zeros and added up, as the gradient of `q, k, v = packed` is: each sum reads and writes all parts."""
    found: dict[Any, tuple[int, dict[int, Any]]] = {}  # a value -> the dimension and, by place, the parts; all else in it is zero
    for node in list(graph.nodes):
        if node.target is _aten.select_scatter.default:
            zeros, part, dim, place = node.args
            count = node.meta["val"].shape[dim]
            known = type(count) is int and type(place) is int and part.meta["val"].dtype is node.meta["val"].dtype
            if known and zeros.target is _aten.new_zeros.default:
                found[node] = dim % node.meta["val"].dim(), {place % count: part}
        elif node.target is _aten.add.Tensor and not node.kwargs and found.keys() >= set(node.args):
            (dim, first), (other, second) = map(found.__getitem__, node.args)
            if dim != other or not first.keys().isdisjoint(second) or _shape(node.args[0]) != _shape(node.args[1]):
                continue
            parts = {**first, **second}
            found[node] = dim, parts
            if len(parts) == node.meta["val"].shape[dim]:
                with graph.inserting_before(node):
                    ordered = [parts[place] for place in range(len(parts))]
                    made = provenance.call_like(node, _aten.stack.default, (ordered, dim), node.meta["val"])
                node.replace_all_uses_with(made)


def read_undetached(graph: torch.fx.Graph) -> None:
    """Let what reads a value that AOTAutograd detached read the value: a session would copy it."""
    for node in graph.find_nodes(op="call_function", target=_aten.detach.default):
        node.replace_all_uses_with(node.all_input_nodes[0], delete_user_cb=lambda user: user.op != "output")


def _repeated_matrices(node: Any) -> _Repeated | None:
    """Find the matrices that the second operand of a product repeats; None if it does not."""
    flat: Any = _before(node, _RESHAPES)
    if flat is None or flat.meta["val"].dim() != 4 or _shape(node) != _one_by_one(flat):  # noqa: PLR2004 - batch, head, row, feature
        return None
    while flat.target is _aten.expand.default and _shape(flat.args[0]) == _shape(flat):
        flat = flat.args[0]
    transposed = _is_transposed(flat)
    wide: Any = _before(flat.args[0] if transposed else flat, _RESHAPES)
    if wide is not None and wide.target is _aten.clone.default:
        wide = wide.args[0]
    single: Any = None if wide is None else _before(wide, (_aten.expand.default,))
    source = None if single is None else _before(single, (_aten.unsqueeze.default,))
    if source is None or source.meta["val"].dim() != 4 or single.args[1] not in (_HEADS, _HEADS - 5):  # noqa: PLR2004 - as above
        return None
    head, count = wide.meta["val"].shape[1:3]
    if type(head) is not int or type(count) is not int or count == 1:
        return None
    batch, _, _, *matrix = _shape(wide)
    if _shape(flat.args[0] if transposed else flat) != [batch, str(head * count), *matrix] or _shape(source) != [batch, str(head), *matrix]:
        return None
    return _Repeated(source=source, count=count, transposed=transposed)


def _regroup(graph: torch.fx.Graph, product: torch.fx.Node, repeated: _Repeated) -> None:
    """Change a product so that it multiplies the rows of whole groups, and give its readers the shape that they know."""
    left: Any = product.args[0]
    source, was = repeated.source, product.meta["val"]
    with graph.inserting_before(product):
        matrices = (source, 0, source.meta["val"].shape[1])
        grouped = _reshaped(product, left, [matrices, (left, 1, repeated.count), (left, 2, 1)])
        single = _reshaped(product, source, [matrices, (source, 2, 1), (source, 3, 1)])
        if repeated.transposed:
            single = provenance.call_like(product, _aten.transpose.int, (single, 1, 2), single.meta["val"].transpose(1, 2))
    product.args = (grouped, single)
    product.meta = {**product.meta, "val": was.new_empty([*grouped.meta["val"].shape[:2], was.shape[2]])}
    with graph.inserting_before(product.next):
        made = _reshaped(product, product, [(left, 0, 1), (left, 1, 1), (source, 2 if repeated.transposed else 3, 1)])
    made.meta["val"] = was
    product.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def _reshaped(like: torch.fx.Node, node: Any, sizes: Sequence[_Size]) -> torch.fx.Node:
    """Give a value other sizes, before the product that it is for."""
    known = [of.meta["val"].shape[dim] * factor for of, dim, factor in sizes]
    varying = [place for place, size in enumerate(known) if type(size) is not int]
    if len(varying) == 1 and all(size for size in known if type(size) is int):  # with a size of 0, -1 could be any number
        given = [-1 if place in varying else size for place, size in enumerate(known)]
    else:
        given = [_size(*size) if place in varying else known[place] for place, size in enumerate(sizes)]
    return provenance.call_like(like, _aten.reshape.default, (node, given), node.meta["val"].new_empty(known))


def _size(of: torch.fx.Node, dim: int, factor: int) -> torch.fx.Node:
    size = of.graph.call_function(_aten.sym_size.int, (of, dim))
    size.meta = {"val": of.meta["val"].shape[dim]}
    if factor == 1:
        return size
    made = of.graph.call_function(operator.mul, (size, factor))
    made.meta = {"val": size.meta["val"] * factor}
    return made


def _before(node: Any, targets: Collection[Any]) -> torch.fx.Node | None:
    """Return what a node of some operators reads, if that is a tensor."""
    source = node.args[0] if isinstance(node, torch.fx.Node) and node.target in targets else None
    return source if isinstance(source, torch.fx.Node) and isinstance(source.meta.get("val"), torch.Tensor) else None


def _is_transposed(node: torch.fx.Node) -> bool:
    if node.target is _aten.transpose.int:
        return {int(dim) % 4 for dim in node.args[1:]} == {2, 3}  # type: ignore[arg-type]  # numbers, by the schema
    return node.target is _aten.permute.default and list(node.args[1]) == [0, 1, 3, 2]  # type: ignore[arg-type]  # likewise


def _one_by_one(node: Any) -> list[str]:
    """Compute the sizes of the matrices of (batch, head, row, feature) when batch and head are one dimension."""
    batch, head, *matrix = node.meta["val"].shape
    return [str(size) for size in (batch * head, *matrix)]


def _shape(node: Any) -> list[str]:
    """Return the sizes of a node as texts: comparing symbols would add guards."""
    return [str(size) for size in node.meta["val"].shape]


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
    Pass(name="read unexpanded masks", run=lambda copy: read_unexpanded(copy.module.graph), **_USUAL),
    Pass(name="read what is not detached", run=lambda copy: read_undetached(copy.module.graph), **_USUAL),
    Pass(name="stack parts", run=lambda copy: stack_parts(copy.module.graph), **_USUAL),
    Pass(name="multiply at once", run=lambda copy: multiply_at_once(copy.module.graph), **_USUAL),
    Pass(name="multiply by group", run=lambda copy: multiply_by_group(copy.module.graph), **_USUAL),
    Pass(name="compute once", run=lambda copy: compute_once(copy.module.graph), **_USUAL),
    Pass(name="drop what nobody reads", run=_drop_unread, requires=_GIVEN, ensures=(GraphCondition.READ,)),
    Pass(name="leave writes to sessions", run=Prepared.leave_writes, requires=(*_GIVEN, GraphCondition.READ)),
    Pass(name="write in place", run=Prepared.write_in_place, requires=(*_GIVEN, GraphCondition.READ)),
)
"""The passes, in order."""


def prepared(module: torch.fx.GraphModule, is_converted: Callable[[Any], bool], **writes: Any) -> Prepared:
    """Prepare a copy of an ATen graph for the partitioner; `writes` are the attributes about these."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    made = Prepared(module=torch.fx.GraphModule(module, graph), is_converted=is_converted, **writes)
    _, established = run_passes(made, PASSES, _GIVEN)
    if broken := [condition for condition in established if not condition.holds(made.module.graph)]:
        raise PassError(f"the lowered graph breaks what its passes ensure: {texts_of(broken)}")
    return made


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
