"""Measure models of other libraries and write the last section of docs/integrations.md: `python -m tests.libraries [NAME ...]`.

`make sweep-integrations` runs it with the libraries installed. With names, only those and what was never measured are measured anew.
Each model runs in a process of its own, so that one that crashes is a row and not the end; its measurement is kept in build/libraries.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.studies.apart import Limits, run_in_subprocess
from tests.libraries.measure import Measurement, measured
from tests.libraries.models import MODELS, PACKAGES, RANKS

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "integrations.md"
_KEPT = ROOT / "build" / "libraries"
_LIMIT_S = 300
_BUSY = 1.5  # load average with one thread of our own
_HEADING = "## Measured models\n"
_SECTION = """
`make sweep-integrations` measures these models, small and with random weights, and writes this section. Each runs in its own process on one
thread of the CPU, in float32 and eval mode, without gradients; the last two train on two processes of gloo. Results are compared as in the
[model zoo](zoo.md); the difference is relative to the largest value of an output. Compute nodes are counted after decomposition.
Times are medians of calls in turns, ortlens to eager, below 1 where ortlens is faster. {load}

{totals}

| library | model | difference | nodes | in ONNX Runtime | graphs, breaks, partitions | eager | to eager | first finding |
|---|---|---|---|---|---|---|---|---|
{rows}

Measured with {versions}, Python {python}.
"""


def _measured_apart(name: str) -> Measurement:
    """One model in a process of its own, on one thread; a crash becomes a measurement too."""
    with tempfile.TemporaryDirectory() as folder:
        ended = run_in_subprocess(measured, (name,), limits=Limits(seconds=_LIMIT_S, threads=1), folder=Path(folder))
    found = Measurement(**ended.value) if ended.status == "ok" else Measurement(wrong=f"{ended.status}: {ended.reason}")
    _KEPT.mkdir(parents=True, exist_ok=True)
    _file(name).write_text(json.dumps(dataclasses.asdict(found)), encoding="utf-8")
    print(f"{name:50} {found.coverage:6.1%} {found.ratio:6.2f} {found.wrong}", flush=True)  # noqa: T201 - this program's output
    return found


def _file(name: str) -> Path:
    return _KEPT / f"{name.replace(': ', '-')}.json"


def _row(name: str, found: Measurement) -> str:
    library, _, model = name.partition(": ")
    cells = (
        library,
        f"`{model}`",
        f"**{found.wrong}**" if found.wrong else f"{found.difference:.0e}",
        str(found.nodes),
        f"{found.coverage:.0%}" if found.coverage in (0, 1) else f"{found.coverage:.1%}",
        f"{found.graphs}, {found.breaks}, {found.partitions}",
        f"{found.eager_ns / 1e6:.1f} ms",
        f"{found.ratio:.2f}",
        found.finding,
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"


def _totals(found: Mapping[str, Measurement]) -> str:
    right = sum(not one.wrong for one in found.values())
    whole = sum((one.breaks, one.coverage) == (0, 1.0) for one in found.values())
    faster = sum(0 < one.ratio < 1 for one in found.values())
    return f"**{right} of {len(found)} are right**; {whole} run in ONNX Runtime without a graph break, {faster} are faster than eager."


def section(found: Mapping[str, Measurement]) -> str:
    """The section of the page."""
    loads = sorted(one.load for one in found.values())
    middle = loads[len(loads) // 2]
    busy = "the machine was busy, so ratios within a factor of two of each other are noise" if middle > _BUSY else "the machine was quiet"
    return _SECTION.format(
        load=f"The load average was {middle:.1f}: {busy}.",
        totals=_totals(found),
        rows="\n".join(_row(name, one) for name, one in found.items()),
        versions=", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "onnxruntime", *PACKAGES)),
        python=platform.python_version(),
    )


def main(names: list[str]) -> int:
    """Measure, and write the section."""
    found = {}
    for name in (*MODELS, *RANKS):
        anew = not names or name in names or not _file(name).is_file()
        found[name] = _measured_apart(name) if anew else Measurement(**json.loads(_file(name).read_text(encoding="utf-8")))
    above = PAGE.read_text(encoding="utf-8").partition(_HEADING)[0]
    PAGE.write_text(above + _HEADING + section(found), encoding="utf-8")
    return 1 if any(one.wrong for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
