"""Figures of the documentation, in docs/data: written by what measures them, read by tests and by docs/pages.py."""

import datetime as dt
import json
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "docs" / "data"


def read(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return figures


def write(name: str, figures: Mapping[str, Any]) -> None:
    """Write with one item of each list and mapping per line, so that a difference is a line."""
    text = ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in figures.items())
    (DATA / f"{name}.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def _lines(value: object) -> str:
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()) + "\n}"
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


def measured_with(*packages: str) -> dict[str, Any]:
    """Describe a measurement of now: its date, versions and machine."""
    from benchmarks.measure import processor  # with torch, which those that only read do without

    return {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "packages": {name: metadata.version(name) for name in packages},
        "python": platform.python_version(),
        "machine": processor(),
    }
