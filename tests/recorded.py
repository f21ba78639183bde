"""Captures that the recorder really wrote, by name. Provenance: the README beside each."""

from functools import cache
from pathlib import Path

from ortlens.trace import store
from ortlens.trace.records import Capture

HERE = Path(__file__).parent
COMPARED = HERE / "data" / "compare"
FILES = {
    {"browser/training": "gpt2_steps", "data/training": "dropout_steps"}.get(f"{path.parts[-3]}/{path.stem}", path.stem): path
    for path in sorted(HERE.glob("*/captures/*.ortlens"))
}
"""Name -> recorded capture, of those that are not recorded to be compared."""


@cache
def recorded(name: str) -> Capture:
    return store.load(FILES.get(name, COMPARED / f"{name}.ortlens"))
