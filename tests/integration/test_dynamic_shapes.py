"""Symbolic sizes: one session for all of them, numbers computed where they are needed, results of any size."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ortlens import Lens
from ortlens.backend.runtime import runner
from tests.integration.against_eager import same_as_eager, sessions_per_partition

SIZES = (6, 8, 10, 64)  # none makes a matrix of two columns square, for which torch 2.15 compiles again


def pooled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    centred = x - x.mean(0, keepdim=True)
    return centred.t() @ centred, torch.cat([x, centred], 0).sum(1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "view": lambda x: x.view(-1, 2).sum(1),
    "size_in_arithmetic": lambda x: (x.shape[0] * 2 - 1, x + x.shape[0], x.shape[0] // 2),
    "size_in_division": lambda x: x / x.shape[0],
    "flatten": lambda x: x.view(2, -1).flatten() * 2,
    "arange": lambda x: torch.arange(x.shape[0]) + x,
    "arange_with_step": lambda x: torch.arange(0, x.shape[0] * 3, 3) * x,
    "expand": lambda x: x[:1].expand(x.shape[0], x.shape[0]) + x,
    "slice": lambda x: x[: x.shape[0] // 2] + x[-(x.shape[0] // 2) :],
    "matmul": lambda x: (x.unsqueeze(1) @ x.unsqueeze(0)).diagonal(),
    "concatenate": lambda x: torch.cat([x, x * 2]),
    "transposed_result": lambda x: (x.view(-1, 2) * 2).t(),
    "padded": lambda x: torch.nn.functional.pad(x, (1, 2)),
    "two_pieces": lambda x: torch.special.bessel_j0(x * 2).cumsum(0) + x.shape[0],
    "zeros_of_that_size": lambda x: torch.zeros(x.shape[0], 2) + x.unsqueeze(1),
    "scaled_by_root": lambda x: x * math.sqrt(x.shape[0]),
    "pooled": lambda x: pooled(x.view(-1, 2)),
}
GRAPHS = {
    "all": lambda x: [function(x) for name, function in FUNCTIONS.items() if name != "two_pieces"],
    "two_pieces": FUNCTIONS["two_pieces"],
}


def _vectors(*sizes: int) -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(size, generator=generator),) for size in sizes]


@pytest.mark.parametrize(("name", "preallocate"), [("all", False), ("two_pieces", True)])
def test_one_session_serves_all_sizes(*, name: str, preallocate: bool) -> None:
    capture = same_as_eager(GRAPHS[name], *_vectors(*SIZES), dynamic=True, options={"preallocate_output": preallocate})
    (graph,) = capture.graphs
    assert graph.dynamic_shapes
    assert graph.partition_count
    assert sessions_per_partition(capture) == [1] * graph.partition_count
    assert [session.calls for session in capture.sessions] == [len(SIZES)] * graph.partition_count
    assert not capture.recompiles
    assert not capture.findings


def test_batch_sizes_zero_and_one_add_graphs_and_nothing_else() -> None:
    capture = same_as_eager(FUNCTIONS["flatten"], *_vectors(6, 4, 0, 2, 0, 10), dynamic=True)
    assert len(capture.graphs) <= 3
    assert sum(session.calls for session in capture.sessions) == 6
    assert all(graph.coverage == 1.0 for graph in capture.graphs)


def test_automatic_dynamic_shapes_recompile_once_and_then_serve_every_size() -> None:
    capture = same_as_eager(lambda x: x.relu() + 1, *_vectors(3, 4, 5, 6, 7))
    assert [graph.dynamic_shapes for graph in capture.graphs] == [False, True]
    assert [session.calls for session in capture.sessions] == [1, 4]
    assert [session.input_signature.startswith("f32[") for session in capture.sessions] == [True, True]
    (again,) = capture.recompiles
    assert again.of_compile_id == capture.graphs[0].compile_id
    assert capture.graphs[1].recompile_of == again.of_compile_id


def test_fixed_sizes_keep_a_bounded_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_SIZE_SESSIONS", 3)
    lens = Lens(options={"export_options": {"dynamic_shapes": False}})
    compiled = torch.compile(lambda x: x.relu() + 1, backend=lens, dynamic=True)
    for size in (3, 4, 5, 3, 6, 3, 4):  # 6 ends the session for 4, the one that was not used for longest, and 4 that for 5
        torch.testing.assert_close(compiled(torch.ones(size)), torch.ones(size) + 1)
    capture = lens.captured()
    assert [session.calls for session in capture.sessions] == [3, 1, 1, 1, 1]
    (graph,) = lens._recorder.live
    sessions = graph.runners[0].sessions  # type: ignore[attr-defined]  # a compiled graph
    assert [list(info.dimensions.values()) for info in sessions] == [[6], [3], [4]]
    (finding,) = capture.findings
    assert (finding.rule, finding.subject) == ("session_dropped", "p0")


def test_statistics_that_are_inputs_keep_their_sizes() -> None:
    """Batch normalisation returns its statistics in another shape, which must not become that of the inputs."""
    mean, variance = torch.linspace(-1, 1, 3), torch.linspace(1, 2, 3)

    def normalised(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, mean, variance)

    capture = same_as_eager(normalised, *[(torch.rand(rows, 3, 4), mean, variance) for rows in (2, 5, 6)], dynamic=True)
    assert not capture.findings
    assert [session.calls for session in capture.sessions] == [3]
