"""The flame graph as a picture, for issues, pages and notebooks, which show images only."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ortlens._files import write_asked
from ortlens.errors import UsageError
from ortlens.units import percent, time_from_ns
from ortlens.views.flame import base_of, flame_of
from ortlens.views.wording import clipped, foreign_words, function, place

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ortlens.trace.records import Capture, Graph
    from ortlens.views.flame import Frame, FrameKind


_WIDTH, _ROW = 1160, 24
_LEAST = 1.5  # pixels of the narrowest frame that is drawn
_LETTER = 6.7  # width of a letter of 12 pixels, in pixels; most are narrower
_MOST_ROWS = 14
_FILLS: Mapping[FrameKind, str] = {
    "call": "#d5dce2",
    "graph": "#e2e8ec",
    "module": "#edf1f3",
    "ort": "#7dbbe6",
    "session": "#7dbbe6",
    "foreign": "#c9cf8a",
    "kernel": "#a9d3f0",
    "bind": "#f2c14e",
    "output": "#5cc9a7",
    "residual": "#c2c2c2",
    "guards": "#dda6c6",
    "between": "#f6dcc4",
    "break": "#f0868b",
}
_WORDS: Mapping[FrameKind, str] = {
    "ort": "ONNX Runtime",
    "torch": "PyTorch",
    "bind": "bind",
    "output": "output",
    "foreign": "another backend",
    "guards": "entering compiled code",
    "between": "Python",
    "break": "graph break",
    "residual": "rest",
}
_STYLE = "<style>@media (prefers-color-scheme:dark){.ortlens-flame{color:#e8e8e8}}</style>"
_HATCH = (
    '<defs><pattern id="flame-hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#fbc697"/><rect width="1.2" height="6" fill="#d55e00"/></pattern></defs>'
)


class FlameGraph:
    """The flame graph of a capture as a picture."""

    def __init__(self, capture: Capture) -> None:
        """Draw it.

        Args:
            capture: A capture with a call.

        Raises:
            UsageError: No call was recorded.
        """
        self.svg = flame_svg(capture)
        if not self.svg:
            raise UsageError(
                "no call was recorded, so there is no time to draw: call the compiled function, or explain() without dry_run=True"
            )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture.

        Args:
            path: The file, as `flame.svg`; replaced if it exists.

        Returns:
            The absolute path of the file.

        Raises:
            UsageError: It cannot be written there.
        """
        return write_asked(path, self.svg.encode(), "the picture")

    def _repr_svg_(self) -> str:
        """Return the drawing for notebooks."""
        return self.svg


def flame_svg(capture: Capture) -> str:
    """Draw the time of one call as an `svg` element without scripts and references; empty where no call is known."""
    root = flame_of(capture).root
    if not root.ns:
        return ""
    boxes = list(_boxes(root, 0, 0.0, _WIDTH / root.ns, ""))
    rows = min(max(depth for _, depth, _, _, _ in boxes) + 1, _MOST_ROWS)
    kinds = {frame.kind for frame, _, _, _, _ in boxes}
    body = "".join(_box(capture, box, root.ns) for box in boxes if box[1] < rows)
    height = rows * _ROW + 26
    key = _key(kinds, rows, foreign_words(capture))
    label = escape(f"Flame graph of one {base_of(capture)}, {time_from_ns(root.ns)}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ortlens-flame" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}" '
        f'font-family="system-ui,sans-serif" font-size="12" fill="currentColor">{_STYLE}{_HATCH}{body}{key}</svg>'
    )


def _graph_label(graph: Graph) -> str:
    """Name a graph by Dynamo's id, as recompiles do; a forward and its backward share it, so phase and role are appended."""
    what = graph.role or ("" if graph.phase == "inference" else graph.phase)
    return f"{graph.compile_id or graph.graph_id} {what}".strip()


_Box = tuple["Frame", int, float, float, str]  # a frame, its row, its left edge and width in pixels, and the path of the module around it


def _boxes(frame: Frame, depth: int, left: float, scale: float, outer: str) -> Iterator[_Box]:
    width = (frame.ns if not depth else frame.width) * scale
    if width < _LEAST:
        return
    yield frame, depth, left, width, outer
    at = left
    for child in frame.children:
        if child.kind != "phase":
            yield from _boxes(child, depth + 1, at, scale, frame.path or outer)
            at += child.width * scale


def _box(capture: Capture, box: _Box, whole: float) -> str:
    frame, depth, left, width, outer = box
    title = _title(capture, frame, outer)
    share = f", {percent(min(frame.width / whole, 1.0))}" if depth else ""
    fill = "url(#flame-hatch)" if frame.kind == "torch" else _FILLS[frame.kind]
    size = f'x="{left:.1f}" y="{depth * _ROW}" width="{max(width - 0.7, 0.8):.1f}" height="{_ROW - 1.5}"'
    amount = time_from_ns(frame.width if frame.kind == "module" else frame.ns)
    about = f"<title>{escape(title)}: {amount}{share}</title>"
    text = _fitting(title, amount, width - 8)
    ground = ""
    if text and frame.kind == "torch":  # words stand on plain ground
        size_x = min(len(text) * _LETTER + 4, width - 4)
        ground = f'<rect x="{left + 2:.1f}" y="{depth * _ROW + 3}" width="{size_x:.1f}" height="17" fill="#fbc697"/>'
    words = f'<text x="{left + 4:.1f}" y="{depth * _ROW + 16}" fill="#101418">{escape(text)}</text>' if text else ""
    return f'<g>{about}<rect {size} fill="{fill}"/>{ground}{words}</g>'


def _fitting(title: str, amount: str, room: float) -> str:
    letters = int(room / _LETTER)
    if len(title) + len(amount) + 2 <= letters:
        return f"{title}  {amount}"
    if letters >= 4:  # noqa: PLR2004 - fewer letters say nothing
        return clipped(title, letters)
    return "✂" if title.startswith("✂") and letters else ""


def _title(capture: Capture, frame: Frame, outer: str) -> str:
    """Name a frame of a call; `outer` is the path of the module around it."""
    if frame.kind == "module":
        return clipped(frame.path.removeprefix(f"{outer}.") if outer else frame.path, 80)
    if frame.kind in _TITLES and frame.ref >= 0:
        return clipped(_TITLES[frame.kind](capture, frame.ref), 80)
    return {"call": f"one {base_of(capture)}", "session": "the graph", **_WORDS}[frame.kind]


def _target(capture: Capture, row: int) -> str:
    return capture.nodes[row].target.removeprefix("aten.").removesuffix(".default")


_TITLES: Mapping[FrameKind, Callable[[Capture, int], str]] = {
    "graph": lambda capture, row: f"{_graph_label(capture.graphs[row])} {function(capture.graphs[row].name)}",
    "ort": _target,
    "torch": _target,
    "kernel": lambda capture, row: capture.kernels[row].op_type,
    "break": lambda capture, row: f"✂ at the graph break, {place(capture.breaks[row].file, capture.breaks[row].line)}",
    "between": lambda capture, row: f"Python at the graph break, {place(capture.breaks[row].file, capture.breaks[row].line)}",
    "session": lambda capture, row: f"{capture.sessions[row].partition_id} in ONNX Runtime",
}


def _key(kinds: set[FrameKind], rows: int, foreign: str) -> str:
    at, parts = 2.0, []
    shown = kinds | ({"ort"} if "session" in kinds else set())
    for kind, words in {**_WORDS, "foreign": escape(foreign)}.items():
        if kind not in shown:
            continue
        fill = "url(#flame-hatch)" if kind == "torch" else _FILLS[kind]
        parts.append(f'<rect x="{at:.0f}" y="{rows * _ROW + 9}" width="11" height="11" fill="{fill}"/>')
        parts.append(f'<text x="{at + 16:.0f}" y="{rows * _ROW + 19}">{words}</text>')
        at += 34 + len(words) * _LETTER
    return "".join(parts)
