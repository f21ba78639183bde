"""Measure the zoo and write docs/zoo.md: `python -m tests.zoo [MODEL ...]`; with names, only those are measured anew.

Each architecture runs in a process of its own, so that one that crashes is a row and not the end. Measurements are kept
in build/zoo, one file per architecture.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ortlens.progress import progress
from ortlens.studies.apart import Limits, run_apart
from tests.zoo.measure import Measurement, measured
from tests.zoo.page import page_from_measurements
from tests.zoo.table import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "zoo.md"
_KEPT = ROOT / "build" / "zoo"
_LIMIT_S = 900
_JOBS = os.cpu_count() or 1


def _measured_apart(name: str) -> Measurement:
    """One architecture in a process of its own, on one thread; a crash becomes a measurement too."""
    with tempfile.TemporaryDirectory() as folder:
        ended = run_apart(measured, (name,), limits=Limits(seconds=_LIMIT_S, threads=1), folder=Path(folder))
    if ended.status == "ok":
        return Measurement(**ended.value)
    return Measurement(model=name, family=ARCHITECTURES[name].family, error=ended.reason)


def _told(measurement: Measurement) -> Measurement:
    """Keep a measurement, and say on stderr how it went."""
    _KEPT.mkdir(parents=True, exist_ok=True)
    (_KEPT / f"{measurement.model}.json").write_text(json.dumps(dataclasses.asdict(measurement)), encoding="utf-8")
    how = "FAILS" if measurement.failed else "whole" if measurement.whole else f"{measurement.coverage:.1%} in {measurement.partitions}"
    over = "\r\x1b[K" if sys.stderr.isatty() else ""  # the line of the progress bar
    print(f"{over}{measurement.model:36} {how:16} {measurement.compile_s:6.1f} s", *measurement.problems, file=sys.stderr, sep="  ")  # noqa: T201
    return measurement


def _kept(name: str) -> Measurement | None:
    file = _KEPT / f"{name}.json"
    return Measurement(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def main(names: list[str]) -> int:
    """Measure, and write the page."""
    kept = {name: _kept(name) for name in ARCHITECTURES} if names else {}
    wanted = [name for name in ARCHITECTURES if name in names or kept.get(name) is None]
    fresh: dict[str, Measurement] = {}
    with ThreadPoolExecutor(_JOBS) as pool, progress("model zoo", len(wanted), "architecture") as step:
        for name, measurement in zip(wanted, pool.map(_measured_apart, wanted), strict=True):
            fresh[name] = _told(measurement)
            step(1)
    measurements = [found for name in ARCHITECTURES if (found := fresh.get(name) or kept.get(name)) is not None]
    PAGE.write_text(page_from_measurements(measurements), encoding="utf-8")
    failing = [measurement.model for measurement in measurements if measurement.failed]
    print(f"wrote {PAGE.relative_to(ROOT)}: {len(measurements)} architectures, failing: {', '.join(failing) or 'none'}", file=sys.stderr)  # noqa: T201
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
