"""A capture of a graph of 10,000 nodes: every frame, and what supporting operators would save.

Twice: a graph made up of records alone, with dozens of operators that stay in PyTorch, and one that is really compiled, a deep
stack of layers in a dry run. Times are the fastest of a few rounds.

Usage: python benchmarks/bench_large_capture.py [--quick] [--json FILE]
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import torch
from measure import Row, Table, parser_for, report, start

import ortlens
from ortlens.trace import records as r
from ortlens.trace.schema import TABLES
from ortlens.views.capture_view import SavedCapture

if TYPE_CHECKING:
    from collections.abc import Callable

_FRAMES_GOAL = 2.0
_RANKING_GOAL = 10.0
_EVERY = 50  # every 50th node of the graph that is made up stays in PyTorch
_STAYING = 48  # operators that those nodes are of; they make 1,128 pairs
_CALLS = 250  # recorded per session
_ROUNDS = 3


def made_up(count: int) -> r.Capture:
    """A capture with one graph of random wiring, some of whose nodes stay in PyTorch."""
    rng = random.Random(0)  # noqa: S311 - a shape, no secret
    nodes = tuple(_node(number, rng) for number in range(count))
    pieces = range(0, count, _EVERY)
    return r.Capture(
        graphs=(r.Graph(graph_id="g0", phase="inference", op_count=count, node_count=count, inputs=("x",), input_sizes=(4096,)),),
        nodes=nodes,
        fallbacks=tuple(_fallback(node) for node in nodes if not node.supported),
        partitions=tuple(
            r.Partition(
                partition_id=f"p{n}", graph_id="g0", node_count=_EVERY, input_count=1, output_count=1, input_bytes=n, output_bytes=n
            )
            for n in pieces
        ),
        sessions=tuple(r.Session(session_id=f"s{n}", partition_id=f"p{n}", calls=_CALLS) for n in pieces),
        runs=tuple(
            r.Run(session_id=f"s{n}", call=call, start_ns=call, bind_ns=2000 + n, run_ns=9000, output_ns=500, total_ns=11500 + n)
            for n in pieces
            for call in range(_CALLS)
        ),
    )


def _node(number: int, rng: random.Random) -> r.Node:
    """Reads the node before, and sometimes one from further back."""
    stays = number % _EVERY == _EVERY - 1
    sources = {number - 1, rng.randrange(max(0, number - 40), number)} if number else set[int]()
    return r.Node(
        graph_id="g0",
        node=f"n{number}",
        target=f"aten.stays_{rng.randrange(_STAYING)}.default" if stays else "aten.sin.default",
        inputs=tuple(f"n{source}" for source in sorted(sources)) or ("x",),
        module=f"layers.{number // 100}.block",
        file="model.py",
        line=number % 300,
        source="x = self.block(x)",
        dtype="float32",
        shape=(1, 64, 256),
        partition_id=None if stays else f"p{number // _EVERY * _EVERY}",
        supported=not stays,
        reason_code="no_converter" if stays else None,
        reason="it has no ONNX function" if stays else None,
        output_bytes=rng.randrange(4, 65536),
        onnx_nodes=(f"node_{number}",),
    )


def _fallback(node: r.Node) -> r.Fallback:
    return r.Fallback(
        graph_id="g0", node=node.node, target=node.target, reason_code="no_converter", reason="it has no ONNX function", calls=9, total_ns=9
    )


def compiled(count: int) -> ortlens.Lens:
    """A lens over a deep stack of layers, some of which hold an operator that stays in PyTorch."""
    layers = -(-count // _NODES_PER_LAYER)
    model = torch.nn.Sequential(*(Layer(number) for number in range(layers))).eval()
    with torch.no_grad():
        return ortlens.explain(model, dry_run=True)(torch.ones(2, 16))


_NODES_PER_LAYER = 5
_BESSEL = (torch.special.bessel_j0, torch.special.bessel_j1, torch.special.i1e, torch.special.i0e, torch.special.log_ndtr)


class Layer(torch.nn.Module):
    """A product, and a few functions; in every twentieth layer one without an ONNX function."""

    def __init__(self, number: int) -> None:
        """Make the layer of that number."""
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.odd = None if number % 20 else _BESSEL[number // 20 % len(_BESSEL)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        y = torch.tanh(self.linear(x))
        return x + (y * 2 if self.odd is None else self.odd(y))


def fastest(call: Callable[[], object], *, rounds: int) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def rows_of(view: ortlens.Lens | SavedCapture, *, rounds: int) -> list[Row]:
    """What the frames, the ranking and one question cost."""
    ranked = view.what_if()
    first = ranked.target.iloc[0]
    nodes, kinds = len(view.nodes), view.fallbacks.target.nunique()
    detail = {"nodes": nodes, "ops that stay": kinds, "rows": len(ranked)}
    return [
        Row(name="all frames", value=fastest(lambda: [getattr(view, name) for name in TABLES], rounds=rounds), unit="s", goal=_FRAMES_GOAL),
        Row(name="what_if()", value=fastest(view.what_if, rounds=rounds), unit="s", goal=_RANKING_GOAL, detail=detail),
        Row(name="what_if(*ops)", value=fastest(lambda: view.what_if(first), rounds=rounds), unit="s"),
    ]


def main() -> None:
    """Run and print."""
    options = parser_for(__doc__).parse_args()
    start(options)
    count, rounds = (300, 1) if options.quick else (10_000, _ROUNDS)
    tables = [
        Table(title=f"Made up of records: {count:,} nodes", rows=rows_of(SavedCapture(made_up(count)), rounds=rounds)),
        Table(title=f"Compiled in a dry run: {count:,} nodes or more", rows=rows_of(compiled(count), rounds=rounds)),
    ]
    report("A large capture", tables, options)


if __name__ == "__main__":
    main()
