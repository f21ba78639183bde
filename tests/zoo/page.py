"""Measurements -> docs/zoo.md, and back: what the page says of each architecture."""

from __future__ import annotations

import datetime as dt
import platform
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.zoo.measure import Measurement

FAILS = "**fails**"
_COLUMNS = (
    "Family",
    "Architecture",
    "Nodes",
    "Graphs",
    "Breaks",
    "Partitions",
    "Coverage",
    "What stays in PyTorch, what breaks the graph, and why",
    "Max abs error",
)
_HEAD = """# Model zoo

Architectures of `transformers` through `torch.compile(model, backend=ortlens.Lens())`, with small random configs, float32, eval mode and
perturbed weights. Each runs in its own process: once eagerly, because the first call of some models installs hooks that would break the
graph, then twice compiled. Every output is compared with the eager one. The absolute tolerance is 1e-4, scaled by the largest value if that
is below one; the relative tolerance is 1e-3. `make zoo` measures all architectures and writes this page.

"""
_FOOT = """
Nodes are compute nodes after decomposition, in all graphs. Coverage is the share of them that ONNX Runtime runs. Graph breaks come from
PyTorch, where the code needs the value of a tensor; every backend gets the same graphs. See [the frames](reference/columns.md).
"""


class Row(NamedTuple):
    """What the page says of an architecture."""

    graphs: int
    partitions: int
    coverage: float
    failed: bool


def page_from_measurements(measurements: Sequence[Measurement]) -> str:
    """The whole page."""
    ordered = sorted(measurements, key=lambda m: (m.family, m.model.lower()))
    table = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS)), *(_line(_cells(m)) for m in ordered)]
    return f"{_HEAD}{_versions()}\n\n{_totals(ordered)}\n\n" + "\n".join(table) + "\n" + _FOOT


def rows_from_page(text: str) -> dict[str, Row]:
    """Read the page back."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {
        cells[1].strip("`"): Row(int(cells[3]), int(cells[5]), float(cells[6].removesuffix(" %")) / 100, FAILS in cells[8])
        for cells in lines
        if cells[1].startswith("`")
    }


def _versions() -> str:
    packages = (f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "onnxruntime", "onnxscript", "ortlens"))
    today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    return f"Measured {today} with {', '.join(packages)}, Python {platform.python_version()}, {platform.machine()}, CPU provider."


def _totals(measurements: Sequence[Measurement]) -> str:
    count, whole = len(measurements), sum(m.whole for m in measurements)
    covered, failed = sum(m.coverage == 1.0 for m in measurements), sum(m.failed for m in measurements)
    return (
        f"**{whole} of {count} run whole in one partition**; of {covered}, every node runs in ONNX Runtime (in several graphs where "
        f"PyTorch breaks them); {failed} fail."
    )


def _cells(m: Measurement) -> list[str]:
    problems = f"{FAILS}: {'; '.join(m.problems)}" if m.failed else ""
    return [
        m.family,
        f"`{m.model}`",
        str(m.nodes),
        str(m.graphs),
        str(len(m.breaks)),
        str(m.partitions),
        f"{100 * m.coverage:.1f} %",
        "; ".join([*m.fallbacks, *(f"break: {text}" for text in m.breaks)]) or "-",
        problems or f"{m.max_abs_error:.1e}",
    ]


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;") for cell in cells)
    return f"| {' | '.join(escaped)} |"
