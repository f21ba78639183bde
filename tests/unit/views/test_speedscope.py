"""The flame graph for speedscope: stacks of known frames that add up to the call and to the compilations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ortlens import cli
from ortlens.analysis.timing import compile_total_ns
from ortlens.errors import UsageError
from ortlens.trace import store
from ortlens.views.flame import flame_of
from ortlens.views.flame_files import speedscope_from_capture
from tests.recorded import FILES, recorded
from tests.unit.views.sample_captures import SAMPLES, captured

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA: dict[str, Any] = {  # what speedscope's own says of sampled profiles
    "type": "object",
    "required": ["$schema", "shared", "profiles"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "name": {"type": "string"},
        "exporter": {"type": "string"},
        "activeProfileIndex": {"type": "integer"},
        "shared": {
            "required": ["frames"],
            "properties": {
                "frames": {
                    "items": {
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}, "file": {"type": "string"}, "line": {"type": "integer"}},
                        "additionalProperties": False,
                    }
                }
            },
        },
        "profiles": {
            "minItems": 1,
            "items": {
                "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
                "properties": {
                    "type": {"const": "sampled"},
                    "unit": {"const": "nanoseconds"},
                    "samples": {"items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}},
                    "weights": {"items": {"type": "number", "exclusiveMinimum": 0}},
                },
            },
        },
    },
}


@pytest.mark.parametrize("name", [*SAMPLES, *FILES])
def test_stacks_add_up_to_the_call_and_the_compilations(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    capture = captured(name)
    whole, compiled = flame_of(capture).root.width, compile_total_ns(capture)
    if not whole and not compiled:
        with pytest.raises(UsageError, match="no call and no compilation"):
            speedscope_from_capture(capture)
        return
    file = json.loads(json.dumps(speedscope_from_capture(capture), allow_nan=False))
    jsonschema.validate(file, SCHEMA)
    assert [profile["name"].rpartition(": ")[2] for profile in file["profiles"]] == ["one call"] * (whole > 0) + ["compiling"] * (
        compiled > 0
    )
    for profile, total in zip(file["profiles"], [number for number in (whole, compiled) if number], strict=True):
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"] == pytest.approx(total, rel=0.01, abs=len(profile["weights"]))
        assert max(index for stack in profile["samples"] for index in stack) < len(file["shared"]["frames"])


def test_frames_have_the_lines_of_the_program(tmp_path: Path) -> None:
    saved = str(store.save(recorded("pieces"), tmp_path / "run.ortlens"))
    assert cli.main(["export", saved, str(tmp_path / "x"), "--format", "speedscope"]) == 0
    frames = json.loads((tmp_path / "x" / "flame.speedscope.json").read_text(encoding="utf-8"))["shared"]["frames"]
    lines = {frame["name"]: frame["line"] for frame in frames if "line" in frame}
    assert lines["prims.bessel_j0"] == 48
    assert {"binding", "bind"} & {frame["name"] for frame in frames}
    assert len(frames) == len({json.dumps(frame) for frame in frames})
