"""`generate` of several architectures and ways, for `bench_workloads.py`: the table of them, and what is below it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from measure import take_turns

import ortlens
from ortlens.analysis.first_look import looks_of
from ortlens.analysis.overview import overview_of
from ortlens.views.sentences import look_sentence
from tests.zoo.generation import generation_inputs, generator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ARCHITECTURES = ("GPT2", "OPT", "Bloom", "Phi", "Llama", "Mistral", "Qwen2", "Qwen3Moe", "Gemma2", "T5", "Mamba")
WAYS = ("dynamic", "static, 64", "static, 2048", "padding, sampling", "beams")
GOAL = 0.8
_BUSY = 2.0  # load average with one thread of our own
CASES = tuple(f"{name}: {way}" for name in ARCHITECTURES for way in WAYS if not (name == "Mamba" and way.startswith("static")))
"""Mamba has a state of one size and ignores a static cache."""

SECTION = """## Generation

`generate` of models of transformers, two layers of width 512, in float32: two prompts of 16 tokens, and 16 new tokens each, with a dynamic
cache, with static caches for 64 and 2048 positions, sampling after a padded prompt, and with 3 beams; Mamba ignores static caches. Mistral
and every other layer of Gemma2 see 24 positions, less than there are in the end. The tokens are eager's in every case, else the command
fails. A figure is the time of a whole call to eager's; the goal is {goal:.2f}. In brackets, where decode is not one session without a graph
break: the share of its compute nodes in ONNX Runtime, and its partitions. The last column is eager with a dynamic cache.

| model | {ways} | eager, per token |
|---|{rules}---|
{rows}

{totals}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What was seen of a case.

    Attributes:
        ratio: Time of a call of `generate` to eager's.
        eager_us: Of a call.
        tokens: New ones in each row.
        coverage: Share of the compute nodes of decode in ONNX Runtime.
        partitions: Of a graph of decode, at most.
        breaks: Graph breaks.
        finding: What the lens says first.
        load: Load average of the machine afterwards, of which 1 is the benchmark's own.
    """

    ratio: float
    eager_us: float
    tokens: int
    coverage: float
    partitions: int
    breaks: int
    finding: str
    load: float

    @property
    def is_whole(self) -> bool:
        """Whether decode is one session."""
        return (self.coverage, self.partitions, self.breaks) == (1.0, 1, 0)


def _stepping(case: str, backend: object, *, quick: bool) -> Callable[[], torch.Tensor]:
    """A call of `generate`, from the same random state each time."""
    name, _, way = case.partition(": ")
    model: Any = generator(name, **({} if quick else {"width": 512, "window": 24}))
    inputs = generation_inputs(way, **({"prompt": 8, "new": 4} if quick else {"prompt": 16, "new": 16}))
    for part in (model, model.get_encoder()) if model.config.is_encoder_decoder else (model,):
        if backend is not None:
            part.forward = torch.compile(part.forward, backend=backend)

    def step() -> torch.Tensor:
        torch.manual_seed(1)
        tokens: torch.Tensor = model.generate(**inputs, disable_compile=True)
        return tokens

    return step


def measured_generation(case: str, *, quick: bool) -> Generated:
    """Time a case against eager."""
    torch.compiler.reset()
    lens = ortlens.Lens()
    steps = {way: _stepping(case, backend, quick=quick) for way, backend in (("eager", None), ("ortlens", lens))}
    for _ in range(2):
        assert torch.equal(steps["ortlens"](), steps["eager"]()), f"{case}: other tokens than eager's"
    turns = take_turns(steps, quick=quick, rounds=5)
    if turns.ratio("ortlens", "eager") > GOAL:  # else nobody asks why
        lens.measured(steps["ortlens"], max_calls=14, budget_ns=None, uncompiled=steps["eager"])
    capture = lens.captured()
    decode = {graph.graph_id: graph for graph in capture.graphs if graph.role == "decode"}
    nodes = sum(graph.node_count or 0 for graph in decode.values())
    looks = looks_of(overview_of(capture))
    return Generated(
        ratio=turns.ratio("ortlens", "eager"),
        eager_us=turns.median("eager"),
        tokens=4 if quick else 16,
        coverage=sum((graph.node_count or 0) * (graph.coverage or 0.0) for graph in decode.values()) / max(nodes, 1),
        partitions=max((sum(part.graph_id == graph_id for part in capture.partitions) for graph_id in decode), default=0),
        breaks=len(capture.breaks),
        finding=look_sentence(looks[0]) if looks else "nothing stands out",
        load=os.getloadavg()[0],
    )


def generation_section(found: Mapping[str, Generated]) -> str:
    """The section of the page."""
    return SECTION.format(
        goal=GOAL,
        ways=" | ".join(WAYS),
        rules="---|" * len(WAYS),
        rows="\n".join(_row(name, found) for name in ARCHITECTURES if any(case.startswith(f"{name}:") for case in found)),
        totals="\n".join(_totals(found)),
    )


def _row(name: str, found: Mapping[str, Generated]) -> str:
    cells = []
    for way in WAYS:
        one = found.get(f"{name}: {way}")
        apart = "" if one is None or one.is_whole else f" ({one.coverage:.1%}, {one.partitions})"
        cells.append("" if one is None else f"{one.ratio:.2f}{apart}")
    eager = found.get(f"{name}: {WAYS[0]}")
    return f"| {name} | {' | '.join(cells)} | {f'{eager.eager_us / eager.tokens / 1000:.2f} ms' if eager else ''} |"


def _totals(found: Mapping[str, Generated]) -> Iterator[str]:
    met, whole = sum(one.ratio <= GOAL for one in found.values()), sum(one.is_whole for one in found.values())
    yield f"{met} of {len(found)} meet the goal; in {whole}, decode is one session."
    if busy := [f"{case} (load average {one.load:.1f})" for case, one in found.items() if one.load > _BUSY]:
        yield f"Measured on a busy machine, so within a factor of two: {', '.join(busy)}."
    if missing := [case for case in CASES if case not in found]:
        yield f"Not measured: {', '.join(missing)}."
    for case, one in found.items():
        if one.ratio > GOAL or not one.is_whole:
            yield f"\n- {case}, {one.ratio:.2f}: {one.finding}"
