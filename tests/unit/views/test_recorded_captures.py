"""Readers over captures that the recorder really wrote; their provenance is in tests/data/captures/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortlens.analysis.findings.registry import findings_of
from ortlens.analysis.overview import overview_of
from ortlens.trace.schema import TABLES
from ortlens.views.capture_view import load
from ortlens.views.table import table

FOLDER = Path(__file__).resolve().parents[2] / "data" / "captures"
RECORDED = ["deep_break", "demo", "dry", "split", "training"]


@pytest.mark.parametrize("name", RECORDED)
def test_every_view_of_a_recorded_capture_can_be_drawn(name: str) -> None:
    assert f"`{name}.ortlens`" in (FOLDER / "README.md").read_text(encoding="utf-8")
    view = load(FOLDER / f"{name}.ortlens")
    assert name in repr(view)
    assert "could not" not in view._repr_html_()
    for table_name in TABLES:
        records = findings_of(view.captured()) if table_name == "findings" else getattr(view.captured(), table_name)
        assert len(getattr(view, table_name)) == len(records)
        assert table(records).startswith("no rows") is not bool(records)


def test_the_recorded_demo() -> None:
    overview = overview_of(load(FOLDER / "demo.ortlens").captured())
    assert (overview.graph_count, len(overview.breaks), len(overview.recompiles)) == (3, 1, 1)
    assert (overview.coverage.ort_node_count, overview.coverage.node_count, overview.coverage.partition_count) == (61, 62, 3)
    assert [group.target for group in overview.fallbacks] == ["aten.median.dim"]
    assert [phase.phase for phase in overview.phases][:2] == ["dynamo", "aot"]
    assert overview.call.calls == 20


def test_the_recorded_training() -> None:
    overview = overview_of(load(FOLDER / "training.ortlens").captured())
    assert [row.graph.phase for row in overview.graphs] == ["forward", "backward"]
    assert overview.graph_count == 1
    assert [(group.target, group.reason_code) for group in overview.fallbacks] == [("aten.native_dropout.default", "side_effect")]
    assert overview.fallbacks[0].module == "2 (Dropout)"
    assert overview.call.calls == 5


def test_the_recorded_deep_break_of_another_backend() -> None:
    overview = overview_of(load(FOLDER / "deep_break.ortlens").captured())
    assert overview.coverage.verdict == "foreign"
    assert (overview.graph_count, len(overview.breaks), overview.break_occurrences) == (6, 1, 5)
    assert overview.breaks[0].source == "torch._dynamo.graph_break()"
    assert overview.call.foreign_ns > 0
