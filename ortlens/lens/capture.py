"""`capture()`: every graph that our backend compiles inside a `with` block, whichever backend object compiles it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ortlens.lens.lens import Lens
from ortlens.lens.other_backends import is_ours
from ortlens.trace.recorder import CURRENT

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from ortlens.backend.options import OrtBackendOptions


class CaptureLens(Lens):
    """The lens of `capture()`: claims every compilation by our backend that happens while it is current."""

    def __repr__(self) -> str:
        """As of any lens."""
        return super().__repr__().replace("CaptureLens", "Lens", 1)

    def _claims(self, backend: object) -> bool:
        return is_ours(backend) and CURRENT.get() is self._recorder

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Have our backend record into this lens."""
        self._recorder.on_graph = self._entered
        with CURRENT.recording_into(self._recorder):
            yield

    @contextlib.contextmanager
    def _entered(self, module: Any, options: OrtBackendOptions) -> Iterator[None]:
        self._note_options(options)
        with self._compiling(module):
            yield


@contextlib.contextmanager
def capture(*, name: str | None = None, journal: str | os.PathLike[str] | None = None) -> Iterator[Lens]:
    """Record every graph that the ONNX Runtime backend compiles inside the `with` block.

    Calls of these graphs are recorded for as long as the lens lives, also after the block.

    Args:
        name: Name of the capture.
        journal: As for `Lens`.

    Yields:
        The lens.
    """
    lens = CaptureLens(name=name, journal=journal)
    with lens.watching():
        yield lens
