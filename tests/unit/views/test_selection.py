"""Ids that Python and the browser share."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ortlens.errors import UsageError
from ortlens.trace import records as r
from ortlens.trace import store
from ortlens.views.payload import payload_bytes
from ortlens.views.selection import PANELS, Selectable, panel
from tests.sample import sampled
from tests.unit.views.sample_captures import SAMPLES

if TYPE_CHECKING:
    from ortlens.trace.records import Capture

ROOT = Path(__file__).resolve().parents[3]
PIECES = store.load(ROOT / "tests" / "browser" / "captures" / "pieces.ortlens")
NODE = shutil.which("node")

# Every id that the browser can make, and which of those that Python made it knows.
_IDS = """
import { readFileSync } from "node:fs";
import { createData, payloadFromBytes } from "SRC/data.js";
import { createIdentity } from "SRC/identity.js";
import { KEYS, Places } from "SRC/places.js";
const [, , file, asked] = process.argv;
const data = createData(await payloadFromBytes(readFileSync(file)));
const identity = createIdentity(data);
const { modules, lines, onnx } = new Places(data);
const made = [...modules.keys(), ...lines.keys(), ...onnx.keys()];
for (const name of [...Object.keys(KEYS), "findings", "runs"]) {
  for (let row = 0; row < data.table(name).rows; row++) made.push(identity.idOf(name, row));
}
console.log(JSON.stringify({ made, unknown: JSON.parse(readFileSync(asked)).filter((id) => !identity.has(id)) }));
"""


def every_id(capture: Capture) -> list[str]:
    selectable = Selectable(capture)
    kinds = "graph partition node model session kernel break recompile module line onnx finding run"
    return [found for kind in kinds.split() for found in selectable._ids(kind)]


@pytest.mark.skipif(NODE is None, reason="needs node, to ask the browser's side")
@pytest.mark.parametrize("name", sampled(["pieces", *SAMPLES], {"pieces", *SAMPLES} - {"huge"}))
def test_python_and_the_browser_make_the_same_ids(name: str, tmp_path: Path) -> None:
    capture = PIECES if name == "pieces" else SAMPLES[name]
    ids = every_id(capture)
    (tmp_path / "payload").write_bytes(payload_bytes(capture))
    (tmp_path / "ids").write_text(json.dumps(ids), encoding="utf-8")
    (tmp_path / "ids.mjs").write_text(_IDS.replace("SRC", (ROOT / "frontend" / "src").as_uri()), encoding="utf-8")
    assert NODE is not None
    command = [NODE, str(tmp_path / "ids.mjs"), str(tmp_path / "payload"), str(tmp_path / "ids")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    told = json.loads(done.stdout)
    assert told["unknown"] == []
    assert sorted(set(told["made"]) - set(ids)) == []


@pytest.mark.parametrize(
    "kind", ["graph", "partition", "node", "module", "line", "model", "onnx", "session", "kernel", "break", "recompile", "run"]
)
def test_every_kind_is_found_in_a_recorded_capture(kind: str) -> None:
    first = next(iter(Selectable(PIECES)._ids(kind)))
    assert Selectable(PIECES).found(first) == first


def test_the_end_of_a_path_is_enough_for_a_line() -> None:
    line = Selectable(PIECES).found("line:record.py:48")
    assert line is not None
    assert line.endswith("/captures/record.py:48")


def test_a_line_of_several_files_is_ambiguous() -> None:
    nodes = tuple(replace(PIECES.nodes[0], file=f"/{folder}/model.py", line=3) for folder in "ab")
    with pytest.raises(UsageError, match=r"names several lines .* 'line:/a/model\.py:3', 'line:/b/model\.py:3'"):
        Selectable(replace(PIECES, nodes=nodes)).found("line:model.py:3")


def test_a_name_without_its_kind_is_recognised() -> None:
    with pytest.raises(UsageError, match=r"'p1' cannot be selected: did you mean 'partition:p1'\?"):
        Selectable(PIECES).found("p1")


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("partition:p99", r"names nothing in this capture: there are 'partition:p\d+', "),
        ("node:g0/admm", "'node:g0/addmm'"),
        ("banana", "an id is a kind and a name, here for example 'graph:g0', 'partition:p0', "),
        (7, "7 cannot be selected"),
        ("line:/nowhere.py:1", "names nothing"),
        ("run:99999", "there are 'run:0', 'run:1', 'run:2', 'run:3', and 396 more"),
    ],
)
def test_a_wrong_id_is_answered_with_what_there_is(wanted: object, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Selectable(PIECES).found(wanted)


def test_nothing_can_be_selected_in_an_empty_capture() -> None:
    empty = Selectable(r.Capture())
    assert empty.checked(selected=None, tab=None, graph=None) == {"selected": None, "tab": "overview", "graph": None}
    with pytest.raises(UsageError, match=r"it has no partition at all\. The capture is empty"):
        empty.found("partition:p0")
    with pytest.raises(UsageError, match="there is none at all"):
        empty.graph("g0")


def test_a_long_name_is_told_in_part() -> None:
    with pytest.raises(UsageError) as raised:
        Selectable(PIECES).found("partition:" + "x" * 10_000)
    assert len(str(raised.value)) < 600


def test_tabs_and_graphs_are_looked_up() -> None:
    assert [panel(name) for name in ("graph", "roofline")] == ["graph", "roofline"]
    with pytest.raises(UsageError, match=f"There is no tab 'grpah'; there are {', '.join(PANELS)}"):
        panel("grpah")
    assert Selectable(PIECES).graph("g1") == "g1"
    with pytest.raises(UsageError, match="There is no graph 'g99' in this capture; there are g0, g1, g2, g3 and 12 more"):
        Selectable(PIECES).graph("g99")


def test_the_only_graph_is_shown_at_first() -> None:
    graph = PIECES.graphs[0]
    assert Selectable(replace(PIECES, graphs=(graph,))).checked(selected=None, tab=None, graph=None)["graph"] == graph.graph_id
