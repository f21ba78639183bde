"""`generate` of several architectures and ways, for `bench_workloads.py`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from measure import take_turns

import ortlens
from ortlens.analysis.problems.stream import problems_of
from ortlens.views.sentences import problem_sentence
from tests.zoo.generation import generation_inputs, generator

if TYPE_CHECKING:
    from collections.abc import Callable

ARCHITECTURES = ("GPT2", "OPT", "Bloom", "Phi", "Llama", "Mistral", "Qwen2", "Qwen3Moe", "Gemma2", "T5", "Mamba")
WAYS = ("dynamic", "static, 64", "static, 2048", "padding, sampling", "beams")
GOAL = 0.8
CASES = tuple(f"{name}: {way}" for name in ARCHITECTURES for way in WAYS if not (name == "Mamba" and way.startswith("static")))
"""Mamba has a state of one size and ignores a static cache."""


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


def measured_generation(case: str, *, quick: bool) -> dict[str, Any]:
    """Time a case against eager: figures of docs/data/workloads.json."""
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
    looks = problems_of(capture)[:3]
    return {
        "to_eager": turns.ratio("ortlens", "eager"),
        "eager_ns_per_token": round(turns.median("eager") * 1000 / (4 if quick else 16)),
        "coverage": sum((graph.node_count or 0) * (graph.coverage or 0.0) for graph in decode.values()) / max(nodes, 1),
        "partitions": max((sum(part.graph_id == graph_id for part in capture.partitions) for graph_id in decode), default=0),
        "breaks": len(capture.breaks),
        "finding": problem_sentence(looks[0]) if looks else "nothing stands out",
        "load": os.getloadavg()[0],
    }
