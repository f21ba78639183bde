"""CONTRACT 8.8: the classic operator cases, static and dynamic through `torch.compile`, and as ExportedProgram.

What an operator does with plain numbers alone is in PyTorch's own database, which `tests.opinfo` goes through.
"""

from __future__ import annotations

import os

import pytest
import torch

from tests.conformance import cases_layers, cases_math, cases_reductions, cases_shapes
from tests.conformance.operator_case import compiled_like_eager, exported_like_eager, stays_of

ROADS = ("static", "dynamic", "exported")
TABLES = (cases_shapes.CASES, cases_math.CASES, cases_reductions.CASES, cases_layers.CASES)
CASES = {name: given for table in TABLES for name, given in table.items()}

# Every case down every road takes minutes: `make sweep-conformance` sets this. Without it, each case takes one road, in turn, and
# `make test` runs every third of them: each road and each table is among them.
EVERY_ROAD = bool(os.environ.get("ORTLENS_EVERY_ROAD"))
CHOSEN = [
    (name, road) for place, name in enumerate(CASES) for turn, road in enumerate(ROADS) if EVERY_ROAD or (place + turn) % len(ROADS) == 0
]


def test_8_8_no_case_is_written_twice() -> None:
    assert len(CASES) == sum(len(table) for table in TABLES)
    assert len(CASES) >= 130


@pytest.mark.filterwarnings(
    "ignore:var\\(\\):UserWarning", "ignore:Using padding='same':UserWarning", "ignore:The tensor attribute:UserWarning"
)
@pytest.mark.parametrize(
    ("name", "road"),
    [
        pytest.param(name, road, id=f"{name}-{road}", marks=() if place // len(ROADS) % 6 == 0 else pytest.mark.slow)
        for place, (name, road) in enumerate(CHOSEN)
    ],
)
def test_8_8_operators(name: str, road: str) -> None:
    given = CASES[name]
    if road == "exported" and given.not_exported:
        with pytest.raises(Exception, match=given.not_exported), torch.no_grad():
            exported_like_eager(given)
        return
    capture = exported_like_eager(given) if road == "exported" else compiled_like_eager(given, dynamic=road == "dynamic")
    assert stays_of(capture) == given.expected_stays(road)
    assert all(fallback.reason for fallback in capture.fallbacks)
    assert not capture.findings
    graphs = 1 if road == "exported" else given.expected_graphs(road)
    assert graphs is None or len(capture.graphs) == graphs
    for graph in capture.graphs:
        assert graph.coverage is None or graph.fallback_count or graph.coverage == 1.0
