"""Measure models of other libraries for the last section of docs/integrations.md: `python -m tests.libraries [NAME ...]`.

`make sweep-integrations` runs it with the libraries installed. With names, only those and what was never measured are measured anew.
Each model runs in a process of its own, so that one that crashes is a row and not the end.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

from ortlens.studies.apart import ProcessLimits, run_in_subprocess
from tests.figures import measured_with, read, write
from tests.libraries.measure import Measurement, measured
from tests.libraries.models import MODELS, PACKAGES, RANKS

_LIMIT_S = 300


def _measured_apart(name: str) -> dict[str, Any]:
    """One model in a process of its own, on one thread; a crash becomes a measurement too."""
    with tempfile.TemporaryDirectory() as folder:
        ended = run_in_subprocess(measured, (name,), limits=ProcessLimits(seconds=_LIMIT_S, threads=1), folder=Path(folder))
    found = Measurement(**ended.value) if ended.status == "ok" else Measurement(wrong=f"{ended.status}: {ended.reason}")
    print(f"{name:50} {found.coverage:6.1%} {found.ratio:6.2f} {found.wrong}", flush=True)  # noqa: T201 - this program's output
    return dataclasses.asdict(found)


def main(names: list[str]) -> int:
    """Measure all, or those that are named and those that are missing, and write the figures."""
    known = {} if not names else read("libraries")["models"]
    rows = {name: known[name] if name in known and name not in names else _measured_apart(name) for name in (*MODELS, *RANKS)}
    write("libraries", {"measured": measured_with("torch", "onnxruntime", *PACKAGES), "models": rows})
    return 1 if any(row["wrong"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
