"""The flame graph: its frames add up to the call of the ledger, and every number in it is that of its record."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ortlens.analysis.ledger import ledger_totals
from ortlens.analysis.timing import compile_total_ns
from ortlens.errors import UsageError
from ortlens.trace.records import Capture
from ortlens.units import time_from_ns
from ortlens.views.capture_view import SavedCapture
from ortlens.views.flame import KINDS, Flame, Frame, flame_of, packed_flame
from ortlens.views.flame_files import flame_svg
from tests.recorded import FILES, recorded
from tests.unit.analysis.hand_made import graph, kernel, ledger, node, partition, session
from tests.unit.views.sample_captures import SAMPLES, captured

_SVG = "{http://www.w3.org/2000/svg}"


def frames(frame: Frame) -> list[Frame]:
    return [frame, *(inner for child in frame.children for inner in frames(child))]


def of_kind(flame: Flame, kind: str) -> list[Frame]:
    return [frame for frame in frames(flame.root) if frame.kind == kind]


@pytest.mark.parametrize("name", [*SAMPLES, *FILES])
def test_frames_fill_what_is_around_them_and_no_more(name: str) -> None:
    capture = captured(name)
    flame = flame_of(capture)
    ledger = ledger_totals(capture)
    if ledger is not None:
        assert flame.root.ns == ledger.total_ns
        assert flame.root.width == pytest.approx(flame.root.ns, abs=10)
    for frame in frames(flame.root):
        inside = sum(child.width for child in frame.children if child.kind != "phase")
        assert inside <= frame.width * 1.0001 + 5, frame.kind
        assert frame.width >= 0
        assert frame.ns >= 0
    svg = flame_svg(capture)
    assert not svg or ET.fromstring(svg) is not None  # noqa: S314 - our own picture
    assert len(svg) < 200_000


def test_kernels_of_a_device_fill_the_run_of_the_host_and_the_waiting_behind_it() -> None:
    capture = Capture(
        graphs=(graph(),),
        partitions=(partition(),),
        nodes=(node("mm"),),
        sessions=(session(),),
        kernels=(kernel("Gemm", node="mm", nodes=("mm",), mean_ns=400, total_ns=400, calls=1),),
        ledger=ledger(guards=10, bind=5, run=50, output=5, eager=0, residual=0, wait=430),
    )
    flame = flame_of(capture)
    assert flame.root.width == pytest.approx(500)
    (shown,) = of_kind(flame, "kernel")
    assert shown.width == 400, "it is not narrowed to the time of its launches"


@pytest.mark.parametrize("name", FILES)
def test_every_frame_says_what_its_record_says(name: str) -> None:
    capture = recorded(name)
    flame = flame_of(capture)
    for frame in of_kind(flame, "kernel"):
        assert frame.ns == pytest.approx(capture.kernels[frame.ref].mean_ns, abs=1)
    for frame in of_kind(flame, "break"):
        assert frame.ns == capture.breaks[frame.ref].cost_ns
        assert frame.width == pytest.approx(capture.breaks[frame.ref].overhead_ns)
    for frame in (frame for frame in of_kind(flame, "between") if frame.ref >= 0):
        assert frame.ns == capture.breaks[frame.ref].between_ns
    for frame in of_kind(flame, "torch"):
        node = capture.nodes[frame.ref]
        assert node.partition_id is None
        row = next(item for item in capture.fallbacks if (item.graph_id, item.node) == (node.graph_id, node.node))
        assert row.call_ns is None or frame.ns in (row.call_ns, 0)
    assert all(capture.nodes[frame.ref].partition_id for frame in of_kind(flame, "ort"))
    assert sum(frame.ns for frame in of_kind(flame, "phase")) == compile_total_ns(capture)


def test_a_graph_break_is_a_slab_between_the_graphs_that_it_parts() -> None:
    capture = recorded("twelve")
    kinds = [child.kind for child in flame_of(capture).root.children if child.kind != "phase"]
    assert kinds == [*["graph", "break", "between"] * 5, "graph", "guards", "between"]
    assert [frame.ns for frame in of_kind(flame_of(capture), "break")] == [item.cost_ns for item in capture.breaks]


def test_what_no_call_measured_is_not_drawn() -> None:
    assert flame_of(recorded("dry")).root.ns == 0
    assert of_kind(flame_of(recorded("dry")), "torch")
    assert not of_kind(flame_of(recorded("gpt2_steps")), "guards")
    assert {frame.kind for frame in frames(flame_of(recorded("deep_break")).root)} == {"call", "graph", "foreign", "phase"}


def measured(run: int, spent: int) -> Capture:
    return Capture(
        graphs=(graph(node_count=1, compile_ns=None),),
        nodes=(node("add", module="a.b.c"),),
        partitions=(partition(node_count=1),),
        sessions=(session(calls=10, p50_ns=run),),
        kernels=(kernel("Add", kernel="Add", node="add", mean_ns=spent),),
        ledger=ledger(guards=10, bind=5, run=run, output=5, eager=0, residual=0),
    )


def test_kernels_of_a_profile_are_narrowed_to_the_time_of_the_ledger_and_keep_their_own() -> None:
    flame = flame_of(measured(100, 150))
    for made, times in ((flame, (150, 100)), (flame_of(measured(100, 60)), (60, 60))):
        (frame,) = of_kind(made, "kernel")
        assert (frame.ns, round(frame.width)) == times
    (module,) = of_kind(flame, "module")
    assert module.path == "a.b.c"
    (frame,) = of_kind(flame_of(replace(measured(100, 60), kernels=())), "session")
    assert (frame.ref, frame.ns) == (0, 100), "one that was not profiled stands for its operators"


def test_packed_frames_are_in_depth_first_order() -> None:
    packed = packed_flame(flame_of(measured(100, 150)))
    kinds = [KINDS[code] for code in packed["kind"]]
    assert list(zip(packed["depth"], kinds, strict=True)) == [
        (0, "call"),
        (1, "graph"),
        (2, "bind"),
        (2, "module"),
        (3, "ort"),
        (4, "kernel"),
        (2, "output"),
        (1, "guards"),
    ]
    assert packed["width"][5] == 100
    assert "width" not in packed_flame(flame_of(measured(100, 60)))


def test_the_picture_is_inert_and_says_what_the_frames_say() -> None:
    capture = recorded("twelve")
    svg = flame_svg(capture)
    root = ET.fromstring(svg)  # noqa: S314 - our own picture
    titles = [element.text or "" for element in root.iter(f"{_SVG}title")]
    assert titles[0] == f"one call: {time_from_ns(sum(part.ns for part in capture.ledger))}"
    assert sum(title.startswith("✂ at the graph break") for title in titles) == 5
    for item in capture.breaks:
        for ns in (item.cost_ns, item.between_ns):
            assert any(f"record.py:{item.line}: {time_from_ns(ns or 0)}" in title for title in titles)
    allowed = {"svg", "style", "g", "rect", "text", "title", "defs", "pattern"}
    assert {element.tag.removeprefix(_SVG) for element in root.iter()} <= allowed
    assert svg.count("http") == 1  # the namespace
    assert len(svg) < 60_000
    assert flame_svg(recorded("dry")) == ""


def test_a_picture_is_saved_and_shown_in_a_notebook(tmp_path: Path) -> None:
    picture = SavedCapture(recorded("twelve")).flame()
    assert picture.save(tmp_path / "flame.svg").read_text(encoding="utf-8") == picture._repr_svg_()
    with pytest.raises(UsageError, match="no call was recorded"):
        SavedCapture(recorded("dry")).flame()
    with pytest.raises(UsageError, match="cannot be written"):
        picture.save(tmp_path / "none" / "flame.svg")
