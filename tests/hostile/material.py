"""The files that are damaged: small ones, because most of a large one is like the rest."""

import tempfile
from pathlib import Path

from ortlens.trace import journal, store
from ortlens.trace.recorder import Recorder
from ortlens.trace.schema import TABLES
from tests.hostile.mutations import DATA
from tests.unit.trace.strategies import small_capture


def originals() -> list[bytes]:
    """Captures and a journal."""
    with tempfile.TemporaryDirectory() as folder:
        small = store.save(small_capture(), Path(folder) / "small.ortlens").read_bytes()
        written = _journal(Path(folder) / "journal")
    return [small, small, small, written, written, (DATA / "deep_break.ortlens").read_bytes()]


def _journal(path: Path) -> bytes:
    recorder = Recorder()
    recorder.journal = journal.Journal(path, lambda: {"name": "n", "backend": "b", "environment": {}}, recorder)
    capture = small_capture()
    for name in TABLES:
        if name != "runs":
            recorder.add(*getattr(capture, name))
    for name, data in capture.attachments.items():
        recorder.attach(name, data)
    recorder.journal.close()
    return path.read_bytes()
