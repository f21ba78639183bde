"""One model of another library through the backend: its results, its place, its time and what the lens says first."""

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import ortlens
from ortlens.analysis.problems.stream import problems_of
from ortlens.backend.basis.ab_timing import clocked, compare
from ortlens.trace.records import Capture
from ortlens.views.sentences import problem_sentence
from tests.integration import two_ranks
from tests.libraries.models import MODELS, RANKS, declare_torchvision
from tests.zoo.measure import max_error, mismatch

_TURNS_NS = 3_000_000_000
_MEASURE_CALLS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was seen of one model.

    Attributes:
        nodes: Compute nodes of all graphs.
        coverage: Share of the compute nodes in ONNX Runtime, 0 to 1.
        graphs: Graphs compiled.
        breaks: Distinct graph breaks.
        partitions: ONNX models.
        difference: Largest difference from eager over all outputs, relative to the largest value of the output.
        wrong: Why it is wrong or did not run; empty when all is well.
        eager_ns: Median time of a call without compilation.
        ortlens_ns: Median time of a call through the backend.
        finding: What the lens says first; empty where nothing stands out.
        load: Load average of the machine after the measurement.
    """

    nodes: int = 0
    coverage: float = 0.0
    graphs: int = 0
    breaks: int = 0
    partitions: int = 0
    difference: float = 0.0
    wrong: str = ""
    eager_ns: int = 0
    ortlens_ns: int = 0
    finding: str = ""
    load: float = 0.0

    @property
    def ratio(self) -> float:
        """The time of ortlens to eager's; 0 where it did not run."""
        return self.ortlens_ns / self.eager_ns if self.eager_ns else 0.0


def _counts(capture: Capture) -> dict[str, Any]:
    nodes = sum(graph.node_count or 0 for graph in capture.graphs)
    covered = sum((graph.node_count or 0) * (graph.coverage or 0.0) for graph in capture.graphs)  # None of a graph without compute nodes
    return {
        "nodes": nodes,
        "coverage": covered / nodes if nodes else 0.0,
        "graphs": len(capture.graphs),
        "breaks": len(capture.breaks),
        "partitions": len(capture.partitions),
        "load": os.getloadavg()[0],
    }


def _tensors(output: Any) -> list[torch.Tensor]:  # noqa: ANN401 - a result of any library
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _compared(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, Any]:
    words = [words for got, wanted in pairs if (words := mismatch(got, wanted))]
    scales = [float(wanted.abs().max()) if wanted.numel() else 0.0 for _, wanted in pairs]
    differences = [max_error(got, wanted) / scale if scale else 0.0 for (got, wanted), scale in zip(pairs, scales, strict=True)]
    return {"difference": max(differences), "wrong": "; ".join(dict.fromkeys(words))}


def _measure(name: str) -> Measurement:
    """Run a model in eager and through the backend, and compare results and times."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    lens = ortlens.Lens(name=name)
    fast = torch.compile(model, backend=lens)
    with torch.no_grad():
        for weight in model.parameters():  # many start as zeros or ones, and what drops such a term would go unseen
            weight.add_(torch.randn_like(weight), alpha=0.02)
        given = lambda: pytree.tree_map(lambda leaf: leaf, inputs)  # noqa: E731 - containers of their own: some models write into them
        eager, ours = (lambda: model(**given())), (lambda: fast(**given()))
        expected = _tensors(eager())
        pairs = [pair for _ in range(2) for pair in zip(_tensors(ours()), expected, strict=True)]
        times = compare(clocked(eager), clocked(ours), _TURNS_NS)
        lens.measured(ours, max_calls=_MEASURE_CALLS, uncompiled=eager)
    capture = lens.captured()
    looks = problems_of(capture)[:3]
    return Measurement(
        **_counts(capture),
        **_compared(pairs),
        eager_ns=times.base_ns,
        ortlens_ns=times.other_ns,
        finding=problem_sentence(looks[0]) if looks else "",
    )


def _measure_ranks(wrapping: two_ranks.Wrapping) -> Measurement:
    """Train on two ranks of gloo, and compare losses and weights with one process, times with the uncompiled model wrapped alike."""
    with tempfile.TemporaryDirectory() as folder:
        result = two_ranks.run(two_ranks.Setting(folder=Path(folder), wrapping=wrapping, compiled="inside", width=256, timed=True))
    losses, weights = two_ranks.alone(256)
    pairs = [(torch.tensor(result["losses"]), torch.tensor(losses)), *zip(result["weights"], weights, strict=True)]
    ours, eager = result["ns"]
    return Measurement(
        nodes=sum(result["nodes"]),
        coverage=min(result["coverage"]),
        graphs=len(result["phases"]),
        breaks=len(result["advice"]),
        partitions=result["partitions"],
        **_compared(pairs),
        eager_ns=eager,
        ortlens_ns=ours,
        load=os.getloadavg()[0],
    )


def measured(name: str) -> dict[str, Any]:
    """The measurement of one model as plain data, for a process of its own."""
    torch.set_num_threads(1)
    declare_torchvision()
    return dataclasses.asdict(_measure_ranks(RANKS[name]) if name in RANKS else _measure(name))
