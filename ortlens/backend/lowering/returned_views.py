"""Outputs that are views: PyTorch makes them, from what the rest of the graph returns.

ONNX Runtime returns values in fresh memory. That is not enough in some cases. AOTAutograd rebuilds an output that shares memory
with an input or with another value from the sizes, strides and storage offset of what the graph returned
(`gen_alias_from_base` in `torch/_functorch/_aot_autograd/functional_utils.py`); with static sizes it replays the views
instead, with symbolic ones it cannot. The pieces of a split input are returned as they are, so they have to lie in the
input's memory. An input that is transposed in place, say, gets the storage offset of what the graph returned for it. And a part of a value
shows the rest of it to `as_strided`, through its offset and the gaps between its elements. Such
outputs are taken out of the graph: it returns what they are views of, and the view operators, which move no data, run after it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.analysis.index import grouped
from ortlens.backend.basis.memory_order import needs_restride, with_layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence


_UNDECLARED = frozenset({
    torch.ops.aten._unsafe_view.default,  # noqa: SLF001 - an operator's name
    torch.ops.aten.unsafe_split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default,
})  # fmt: skip
"""Operators whose results lie in the memory of their first argument, though their schemas do not say so."""

_WINDOW = torch.ops.aten.as_strided.default


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnedViews:
    """A graph without the views that it returns, and what makes them."""

    module: torch.fx.GraphModule  # the graph; it returns the bases of the views instead
    views: torch.fx.GraphModule  # takes what `module` returns and the inputs at `kept`, returns the outputs of the whole graph
    kept: tuple[int, ...]  # positions of the graph's inputs that the views read
    # Pairs of a position in what `module` returns and a position among its inputs: the views are made of the new value of that input.
    # AOTAutograd makes them anew from the input, as they lie here: the value has to lie as the input does.
    written: tuple[tuple[int, int], ...] = ()
    new_values_first: bool = True  # whether the first outputs of `module` are still the new values of the mutated inputs

    def around(self, run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        """Extend a function that runs `module` to the whole graph: it takes a list of inputs, empties it, and returns a list."""
        kept, views, written = self.kept, self.views.forward, self.written
        # A window may reach past the input, in the caller's storage.
        whole = bool(self.views.graph.find_nodes(op="call_function", target=_WINDOW))
        # The real part of a conjugate view is traced as a view of both parts, which PyTorch refuses to make of one.
        in_parts = bool(self.views.graph.find_nodes(op="call_function", target=torch.ops.aten.view_as_real.default))

        def run_with_views(args: list[Any]) -> list[Any]:
            inputs = [resolved(args[place]) for place in kept] if in_parts else [args[place] for place in kept]
            like = [args[place] for _, place in written]
            made = run(args)
            for (place, _), given in zip(written, like, strict=True):
                made[place] = with_layout_of(made[place], given, whole=whole)
            return list(views(*made, *inputs))

        return run_with_views

    def windows(self) -> list[tuple[int, list[Any] | None]] | None:
        """Describe the outputs of the whole graph without the graph; None if inputs are needed, or more than numbers.

        For each, its place among what `module` returns, and its shape, strides and offset there if it is a view of that.
        """
        given = inputs_of(self.views.graph)
        if self.kept or self.written:
            return None
        bases = outputs_of(self.module.graph)
        found: list[tuple[int, list[Any] | None]] = []
        for node in outputs_of(self.views.graph):
            owner = owner_of(node, ()) if isinstance(node, torch.fx.Node) else node
            window = None if owner is node else _window(node, bases[given.index(owner)]) if owner in given else []
            if owner not in given or window == []:
                return None
            found.append((given.index(owner), window))
        return found


def _window(view: torch.fx.Node, base: torch.fx.Node) -> list[Any]:
    """Return the shape, strides and offset of a view; empty where these are not all."""
    made, whole = view.meta["val"], base.meta["val"]
    numbers = [list(made.shape), list(made.stride()), made.storage_offset()]
    plain = made.dtype is whole.dtype and not (made.is_conj() or made.is_neg() or whole.storage_offset())
    return numbers if plain and all(isinstance(number, int) for number in (*numbers[0], *numbers[1], numbers[2])) else []


def resolved(value: Any) -> Any:
    """Copy a negative or conjugate view, whose memory does not hold its values; leave anything else as it is."""
    return value.resolve_neg().resolve_conj() if isinstance(value, torch.Tensor) and (value.is_neg() or value.is_conj()) else value


def resolving(run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """Let a graph compute with copies of negative and conjugate views; what it returns as views is made of the views themselves."""

    def run_resolved(args: list[Any]) -> list[Any]:
        args[:] = [resolved(value) for value in args]
        return run(args)

    return run_resolved


def without_returned_views(
    module: torch.fx.GraphModule,
    user_outputs: Mapping[int, bool],
    mutated: Sequence[int] = (),
    relaid: Collection[int] = (),
    parts: Collection[int] = (),
) -> ReturnedViews | None:
    """Take the views out of what a graph returns, on a copy; None when no output has to be such a view.

    `user_outputs`: position -> whether AOTAutograd rebuilds it. `mutated`: inputs whose new values come first. `relaid`: outputs that say
    how such an input lies from now on; its values stay. `parts`: outputs that have to lie in what they are a part of.
    """
    outputs = outputs_of(module.graph)
    # New values lie as their inputs do, so what is a view of them is made of them.
    new_values = {node for place, node in enumerate(outputs[: len(mutated)]) if place not in relaid}
    rebuilt = {**user_outputs, **dict.fromkeys(relaid, False)}
    asked = [(place, node) for place, node in enumerate(outputs) if place in rebuilt]
    views = {place: chain for place, node in asked if (chain := chain_of(node, new_values))}
    together = _sharing_memory(outputs, views)
    chains = {
        place: chain
        for place, chain in views.items()
        if place in together or _must_be_view(chain, rebuilt=rebuilt[place], part=place in parts)
    }
    if not chains:
        return None
    taken = {node for chain in chains.values() for node in chain}
    taken |= _sizes_behind(taken) | {source for node in taken for source in node.all_input_nodes if source.op == "get_attr"}
    order = [node for node in module.graph.nodes if node in taken]
    read = {source for node in order for source in node.all_input_nodes} - taken
    kept = [place for place, node in enumerate(inputs_of(module.graph)) if node in read]
    bases = [node for node in module.graph.nodes if node in read and node.op == "call_function"]
    remaining = [node for place, node in enumerate(outputs) if place not in chains]
    return ReturnedViews(
        module=_returning(module, [*remaining, *bases]),
        views=_views_module(module, order, bases=bases, kept=kept, made_here=chains.keys()),
        kept=tuple(kept),
        new_values_first=all(place not in chains for place in range(len(mutated))),
        written=tuple((len(remaining) + bases.index(node), place) for node, place in zip(outputs, mutated, strict=False) if node in bases),
    )


def outputs_of(graph: torch.fx.Graph) -> list[Any]:
    """List what a graph returns: nodes, and constants as they are."""
    (output,) = graph.find_nodes(op="output")
    returned = output.args[0]
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def inputs_of(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """List the inputs of a graph, in order."""
    return list(graph.find_nodes(op="placeholder"))


def chain_of(node: Any, ends: Collection[torch.fx.Node]) -> list[torch.fx.Node]:
    """List the view operators that lead from a base, or one of `ends`, to a value, the last one first; empty for what is no view."""
    chain = []
    while isinstance(node, torch.fx.Node) and node not in ends and (base := base_of(node)) is not None:
        chain.append(node)
        node = base
    return chain


def owner_of(node: torch.fx.Node, ends: Collection[torch.fx.Node]) -> torch.fx.Node:
    """Find the node in whose memory a value lies, the node itself if it is no view; views among `ends` count as owners."""
    chain = chain_of(node, ends)
    return chain[-1].args[0] if chain else node  # type: ignore[return-value]  # the operand of a view is a node


def base_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """Find what a node is a view of, one step towards the owner; None when it makes a value of its own."""
    first = node.args[0] if node.args else None
    if node.op != "call_function" or not isinstance(first, torch.fx.Node):
        return None
    if node.target is operator.getitem:
        return first if base_of(first) is not None else None
    return first if _is_view_operator(node.target) else None


def writes_argument(node: torch.fx.Node) -> bool:
    """Tell whether an operator changes one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_view_operator(target: Any) -> bool:
    """Tell whether an operator returns an alias of its first argument and writes nothing."""
    if target in _UNDECLARED:
        return True
    schema = getattr(target, "_schema", None)
    if schema is None or schema.is_mutable or not schema.arguments:
        return False
    first = schema.arguments[0].alias_info
    return first is not None and any(returned.alias_info is not None for returned in schema.returns)


def _is_part(view: torch.fx.Node) -> bool:
    """Tell whether there is more in the storage of a view than its elements, or some of them more than once, but by `expand`."""
    if view.target is torch.ops.aten.expand.default:
        return False
    base = base_of(view)
    value = None if base is None else base.meta.get("val")
    return base is None or _count_of(view) != _count_of(base) or (isinstance(value, torch.Tensor) and needs_restride(value))


def _count_of(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    return str(value.numel()) if isinstance(value, torch.Tensor) else ""  # as text: to compare symbols would add guards


def _must_be_view(chain: list[torch.fx.Node], *, rebuilt: bool, part: bool) -> bool:
    """Tell whether one output on its own has to lie in the memory, or at least look like it, of what it is a view of."""
    base = chain[-1].args[0]
    if rebuilt:
        return any(_is_symbolic(node) for node in (*chain, base))
    if any(node.target is _WINDOW for node in chain):
        return True  # its strides are the ones that were asked for, and its elements may overlap
    return (isinstance(base, torch.fx.Node) and base.op == "placeholder") or (part and any(map(_is_part, chain)))


def _sharing_memory(outputs: list[Any], chains: Mapping[int, list[torch.fx.Node]]) -> set[int]:
    """Find outputs that are views of one value: they share a storage, and a write of the user's into one may show in another."""
    by_base = grouped((chains[place][-1].args[0] if place in chains else node, place) for place, node in enumerate(outputs))
    groups = (places for places in by_base.values() if len(places) > 1)
    return {place for places in groups for place in places if place in chains}


def _is_symbolic(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and (_torch.has_symbols(value) or _torch.is_symbolic(value.storage_offset()))


def _sizes_behind(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Collect the size computations that view operators read, as far as they start at the graph's inputs."""
    found: set[torch.fx.Node] = set()
    for node in nodes:
        for source in node.all_input_nodes:
            _add_size(source, found)
    return found


def _add_size(node: torch.fx.Node, found: set[torch.fx.Node]) -> bool:
    """Add a size computation and all that it is made of; False when it reads something else than the graph's inputs."""
    if node.op == "placeholder" or node in found:
        return True
    is_size = node.op == "call_function" and not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))
    if not is_size or not all(_add_size(source, found) for source in node.all_input_nodes):
        return False
    found.add(node)
    return True


def _returning(module: torch.fx.GraphModule, outputs: list[Any]) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(module.graph, copies)
    graph.output(tuple(torch.fx.node.map_arg(node, copies.__getitem__) for node in outputs))
    made = torch.fx.GraphModule(module, graph)
    made.meta = dict(module.meta)
    for node in reversed(list(graph.nodes)):  # views that nothing reads any more; checks without a reader stay
        if node.op == "call_function" and not node.users and base_of(node) is not None:
            graph.erase_node(node)
    return made


def _views_module(
    module: torch.fx.GraphModule, order: list[torch.fx.Node], *, bases: list[torch.fx.Node], kept: list[int], made_here: Collection[int]
) -> torch.fx.GraphModule:
    """Make the graph that makes the whole graph's outputs from what is returned without them.

    Nodes in `order` move to it; they are views of `bases` and read the inputs at `kept`. It passes on the outputs that are not in
    `made_here`, also those whose nodes move.
    """
    graph = torch.fx.Graph()
    inputs, outputs = inputs_of(module.graph), outputs_of(module.graph)
    copies: dict[Any, torch.fx.Node] = {}
    returned = [graph.placeholder(f"returned_{place}") for place in range(len(outputs) - len(made_here))]
    for node in (*bases, *(inputs[place] for place in kept)):
        copies[node] = graph.placeholder(node.name)
    for node in order:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    plain = iter(returned)
    graph.output(tuple(copies[node] if place in made_here else next(plain) for place, node in enumerate(outputs)))
    return torch.fx.GraphModule(module, graph, class_name="ReturnedViews")
