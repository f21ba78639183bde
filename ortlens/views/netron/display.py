"""One ONNX model in Netron: what a notebook shows, and what can be saved as a file."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens._files import write_file
from ortlens.errors import CaptureError, UsageError
from ortlens.units import counted
from ortlens.views.markup import policy
from ortlens.views.netron.frame import OPTIMIZED, attached_model, frame_html
from ortlens.views.netron.slim import SlimModel, WireError, slim_model
from ortlens.views.netron.viewer import TESTED, UnexpectedFilesError, Viewer, installed_viewer
from ortlens.views.wording import clipped

if TYPE_CHECKING:
    import os

    from ortlens.trace.records import Capture

_FRAME = "width:100%;height:620px;border:1px solid #8888;border-radius:4px"
_MAX_NAME = 80
_MAX_LINK_BYTES = 2 * 2**20  # of a model behind a link in a notebook; a larger one is saved from Python


@dataclass(frozen=True)
class NetronView:
    """An ONNX model as Netron draws it. A notebook shows it; elsewhere `save` writes it to a file.

    Attributes:
        name: Id of the model, `m0` or `m0.optimized`.
        partition_id: Partition that it was made from.
        model: The model as it was recorded, serialised: what `onnx.load_from_string` reads.
        viewer: The installed Netron; None where its files are not what they should be.
        trouble: Why there is no viewer.
    """

    name: str
    partition_id: str
    model: bytes
    viewer: Viewer | None
    trouble: str = ""

    @cached_property
    def slim(self) -> SlimModel:
        """The model without its weights, as it is drawn."""
        try:
            return slim_model(self.model)
        except WireError as err:
            raise CaptureError(
                f"model {self.name} in this capture is damaged: {err}. Record it again, or load another copy of the capture"
            ) from err

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to a file that opens by itself.

        Args:
            path: `*.onnx` for the model as it was recorded, anything else for one HTML page with Netron in it, which needs no network.

        Returns:
            The absolute path of the file.

        Raises:
            UsageError: It cannot be written there.
        """
        target = Path(path).expanduser().resolve()
        data = self.model if target.suffix.lower() == ".onnx" else self._page().encode("utf-8")
        try:
            write_file(target, data)
        except OSError as error:
            raise UsageError(f"{target} cannot be written: {error.strerror or error}") from error
        return target

    def __repr__(self) -> str:
        """Say on one line what it is and how to see it; never raises."""
        where = (
            f".save('{self.name}.html') writes one file for any browser"
            if self.viewer
            else f"{self.trouble}; .save('{self.name}.onnx') writes the model"
        )
        return f"<ONNX model {self.name} of partition {self.partition_id} in Netron: displayed in a notebook; {where}>"

    def _repr_html_(self) -> str:
        """Return a frame that may run scripts and nothing else; never raises."""
        if self.viewer is None:
            return f"<p>{escape(self._facts())}. {escape(self.trouble)}.{self._link()}</p>"
        title, page = escape(self._facts(), quote=True), escape(self._page(), quote=True)
        frame = f'<iframe sandbox="allow-scripts" title="{title}" style="{_FRAME}" srcdoc="{page}"></iframe>'
        return f"{frame}<p>{escape(self._facts())}. {escape(self._notes())}</p>"

    def _page(self) -> str:
        if self.viewer is None:
            rules = f"<meta http-equiv='Content-Security-Policy' content=\"{policy()}\">"
            return f"<!doctype html><meta charset='utf-8'>{rules}<title>{escape(self.name)}</title>{self._repr_html_()}"
        return frame_html(self.viewer, [self.slim], shown=(self.name, self.slim.data))

    def _facts(self) -> str:
        how = "as ONNX Runtime runs it" if self.name.endswith(OPTIMIZED) else "as it was converted"
        nodes = counted(self.slim.node_count, "node")
        return f"ONNX model {self.name.removesuffix(OPTIMIZED)} of partition {self.partition_id}, {how}: {nodes}"

    def _notes(self) -> str:
        assert self.viewer is not None  # noqa: S101 - callers have looked
        left_out = f"Drawn without the values of {counted(self.slim.left_out_tensors, 'weight')}. " if self.slim.left_out_tensors else ""
        untested = "" if self.viewer.tested else f"ortlens was tested with Netron {TESTED}; this is {self.viewer.version}. "
        return f"{left_out}{untested}Drawn by Netron {self.viewer.version}; nothing leaves this page."

    def _link(self) -> str:
        if len(self.model) > _MAX_LINK_BYTES:
            return f" <code>.save('{escape(self.name)}.onnx')</code> writes the model."
        data = base64.b64encode(self.model).decode("ascii")
        return (
            f' <a download="{escape(self.name)}.onnx" href="data:application/octet-stream;base64,{data}">Save {escape(self.name)}.onnx</a>'
        )


def netron_view(capture: Capture, name: object, *, optimized: bool) -> NetronView:
    """Show a model, by its id or its partition's; `optimized` takes what ONNX Runtime made of it.

    An optimised model is known only where it was profiled; else this raises `UsageError`.
    """
    model, data = attached_model(capture, name, optimized=optimized)
    viewer, trouble = None, ""
    try:
        viewer = installed_viewer("lens.netron()")
    except UnexpectedFilesError as err:
        trouble = f"this needs Netron {TESTED}; the installed version has unexpected files ({clipped(str(err), 200)})"
    shown = clipped(model.model_id, _MAX_NAME) + (OPTIMIZED if optimized else "")
    view = NetronView(name=shown, partition_id=clipped(model.partition_id, _MAX_NAME), model=data, viewer=viewer, trouble=trouble)
    _ = view.slim  # a damaged model is an error of this call, not of a later display
    return view
