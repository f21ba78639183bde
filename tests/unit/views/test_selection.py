"""Ids that Python and the browser share."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ortlens.errors import UsageError
from ortlens.trace import records as r
from ortlens.trace.records import Capture
from ortlens.views.payload import payload_bytes
from ortlens.views.selection import Selectable
from tests.recorded import recorded
from tests.unit.views.sample_captures import SAMPLES

ROOT = Path(__file__).resolve().parents[3]
PIECES = recorded("pieces")
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
@pytest.mark.parametrize("name", ["pieces", "hostile", "training", "told"])
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


def test_what_is_there_is_found() -> None:
    for kind in ("graph", "partition", "node", "module", "line", "model", "onnx", "session", "kernel", "break", "recompile", "run"):
        first = next(iter(Selectable(PIECES)._ids(kind)))
        assert Selectable(PIECES).found(first) == first
    assert (Selectable(PIECES).found("line:record.py:48") or "").endswith("/captures/record.py:48")
    only = replace(PIECES, graphs=PIECES.graphs[:1])
    assert Selectable(only).checked(selected=None, tab=None, graph=None)["graph"] == PIECES.graphs[0].graph_id


def test_a_line_of_several_files_is_ambiguous() -> None:
    nodes = tuple(replace(PIECES.nodes[0], file=f"/{folder}/model.py", line=3) for folder in "ab")
    with pytest.raises(UsageError, match=r"names several lines .* 'line:/a/model\.py:3', 'line:/b/model\.py:3'"):
        Selectable(replace(PIECES, nodes=nodes)).found("line:model.py:3")


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("p1", r"'p1' cannot be selected: did you mean 'partition:p1'\?"),
        ("partition:" + "x" * 10_000, "names nothing"),
        ("partition:p99", r"names nothing in this capture: there are 'partition:p\d+', "),
        ("node:g0/admm", "'node:g0/addmm'"),
        ("banana", "an id is a kind and a name, here for example 'graph:g0', 'partition:p0', "),
        (7, "7 cannot be selected"),
        ("line:/nowhere.py:1", "names nothing"),
        ("run:99999", "there are 'run:0', 'run:1', 'run:2', 'run:3', and 396 more"),
    ],
)
def test_a_wrong_id_is_answered_with_what_there_is(wanted: object, told: str) -> None:
    with pytest.raises(UsageError, match=told) as raised:
        Selectable(PIECES).found(wanted)
    assert len(str(raised.value)) < 600


def test_nothing_can_be_selected_in_an_empty_capture() -> None:
    empty = Selectable(r.Capture())
    assert empty.checked(selected=None, tab=None, graph=None) == {"selected": None, "tab": "overview", "graph": None}
    with pytest.raises(UsageError, match=r"it has no partition at all\. The capture is empty"):
        empty.found("partition:p0")
    with pytest.raises(UsageError, match="there is none at all"):
        empty.graph("g0")
