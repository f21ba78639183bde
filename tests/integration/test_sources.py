"""Functions of the user: kept as they ran, gone from redacted pages."""

import importlib.util
import linecache
from pathlib import Path
from types import ModuleType

import torch

import ortlens
from ortlens.lens.observing.compilations import KeptSources
from ortlens.trace.recorder import Recorder
from ortlens.trace.records import Break
from ortlens.trace.sources import sources_of
from ortlens.views.payload import payload_from_capture

PROGRAM = "SECRET = 1\n\n\ndef double(x):\n    return x * 2\n"
KEPT = [None, None, None, "def double(x):", "    return x * 2"]


def loaded(file: Path, text: str) -> ModuleType:
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_function_that_ran_is_in_the_capture_and_not_in_a_redacted_page(tmp_path: Path) -> None:
    module = loaded(tmp_path / "program_of_ada.py", PROGRAM)
    lens = ortlens.explain(module.double, calls=1)(torch.ones(2))
    lens.save(tmp_path / "run.ortlens")
    capture = ortlens.load(tmp_path / "run.ortlens").captured()
    assert sources_of(capture.attachments) == {str(tmp_path / "program_of_ada.py"): KEPT}
    assert payload_from_capture(capture)["sources"] == sources_of(capture.attachments)
    assert "def double" not in str(payload_from_capture(capture, redact=True))


def test_a_file_that_changed_after_its_lines_were_recorded_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    module = loaded(file, PROGRAM)
    assert linecache.getline(str(file), 5)
    records = (Break(break_id="b0", reason="r", file=str(file), line=5, source="return x * 2"),)
    file.write_text(PROGRAM.replace("x * 2", "x * 3"), encoding="utf-8")
    linecache.clearcache()
    recorder = Recorder()
    KeptSources(recorder).note(records)
    assert recorder.capture().attachments == {}
    file.write_text(PROGRAM, encoding="utf-8")
    linecache.clearcache()
    KeptSources(recorder).note(records)
    assert len(recorder.capture().attachments) == 1
    assert module.double(2) == 4
