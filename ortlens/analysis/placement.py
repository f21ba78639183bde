"""What each execution provider runs, in how many pieces, and which operators keep the preferred one from the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.index import grouped, nodes_by_partition, once, parts_of, sessions_by_id
from ortlens.analysis.roofline import CPU

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ortlens.trace.records import Capture, Node, Placement, Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderShare:
    """What one provider runs, over all sessions."""

    provider: str
    nodes: int
    pieces: int
    ops: tuple[tuple[str, int], ...]  # of a provider that is not preferred: operators of its nodes and how many, most frequent first


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """The preferred provider of a session, and what it left to others."""

    row: Placement  # of that provider
    node_count: int  # nodes of the session
    left: tuple[Node, ...]  # what other providers run, of what has an origin in the program or the model
    pieces_then: int | None  # pieces that there would be if it ran what it lacks too; None where that is not known

    @property
    def cutting(self) -> tuple[Node, ...]:
        """What it lacks."""
        return tuple(node for node in self.left if not set(self.row.lacking).isdisjoint(node.onnx_ops))


def refusal_words(provider: str, operator: str, cause: Refusal, about: Sequence[str]) -> str:
    """Say why a provider does not run a node, of the cause in `kernels.refusal` and what it is about."""
    return {
        "no_kernel": f"{provider} has no kernel of {operator}",
        "opset": f"{provider} has kernels of {operator} for operator sets {' but not '.join(about)}",
        "dtype": f"{provider} has kernels of {operator}, but not for {', '.join(about)}",
        "chosen": f"{provider} has a kernel of {operator}: ONNX Runtime left it on the CPU, as it does with computations of shapes",
        "compiles": f"{provider} did not take {operator}; it compiles graphs, and ONNX Runtime has no table of what it takes",
        "unlisted": f"{provider} did not take {operator}; its kernels could not be listed",
    }[cause]


def short_name(provider: str) -> str:
    """Name a provider as people do: `CUDA`, for `CUDAExecutionProvider`."""
    return provider.removesuffix("ExecutionProvider")


def pieces_of(names: Collection[str], values: Iterable[Sequence[str]]) -> int:
    """Count the connected parts of some nodes; of each value the nodes at its ends are given, its maker first."""
    return len(parts_of(names, ((maker, reader) for maker, *readers in values for reader in readers)))


@once
def provider_shares(capture: Capture) -> tuple[ProviderShare, ...]:
    """Add up what each provider runs, in the order in which they were asked for; nothing where only the CPU's was."""
    if not any(row.provider != CPU for row in capture.placements):
        return ()
    runs = grouped((node.provider, op) for node in capture.nodes if node.provider for op in node.onnx_ops)
    rows = grouped((row.provider, row) for row in sorted(capture.placements, key=lambda row: row.requested or len(capture.placements)))
    first = next(iter(rows))
    return tuple(
        ProviderShare(
            provider=name,
            nodes=sum(row.nodes for row in own),
            pieces=sum(row.pieces for row in own),
            ops=() if name == first else tuple(Counter(runs.get(name, ())).most_common()),
        )
        for name, own in rows.items()
    )


@once
def borders(capture: Capture) -> tuple[Border, ...]:
    """List the sessions whose preferred provider, another than the CPU's, does not run everything."""
    found = []
    for session_id, rows in grouped((row.session_id, row) for row in capture.placements).items():
        first = next((row for row in rows if row.requested == 1 and row.provider != CPU), None)
        count, session = sum(row.nodes for row in rows), sessions_by_id(capture).get(session_id)
        if first is not None and first.nodes < count and (session is None or first.provider in session.providers):
            # A dry run has no sessions, and partitions in their place.
            found.append(_border(first, count, nodes_by_partition(capture).get(session.partition_id if session else session_id, ())))
    return tuple(found)


def _border(first: Placement, count: int, nodes: Sequence[Node]) -> Border:
    left = tuple(node for node in nodes if node.provider not in (None, first.provider))
    then = {
        node.node for node in nodes if not first.nodes or node.provider == first.provider or not {*first.lacking}.isdisjoint(node.onnx_ops)
    }
    edges = [(source, node.node) for node in nodes for source in node.inputs]
    return Border(row=first, node_count=count, left=left, pieces_then=pieces_of(then, edges) if first.lacking else None)
