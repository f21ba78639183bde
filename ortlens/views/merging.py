"""`merge()`: the captures of the ranks of one job as one capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens._os_errors import clear_os_errors
from ortlens.analysis.ranks import merged
from ortlens.views.capture_view import CaptureView, SavedCapture, capture_from

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from ortlens.trace.records import Capture


@clear_os_errors
def merge(captures: Iterable[CaptureView | Capture | str | os.PathLike[str]]) -> SavedCapture:
    """Merge the captures of the ranks of one job, such as `ortlens run` writes under `torchrun`. Needs neither torch nor ONNX Runtime.

    Each row of each frame has its rank in the column `rank`, and its ids begin with it. Graphs, breaks, recompiles and sessions that
    differ between the ranks are findings, and so is a rank that keeps the others waiting.

    Args:
        captures: One per rank: lenses, loaded captures, or paths of saved ones. The rank is the one that was recorded; where none was,
            the place.

    Returns:
        The capture with its frames and views.

    Raises:
        UsageError: There are fewer than two, a rank is there twice, only some recorded theirs, or one is merged already.
        CaptureError: A file cannot be read.

    Example:
        >>> import ortlens
        >>> list(ortlens.merge([ortlens.Lens(), ortlens.Lens()]).graphs["rank"])
        []
    """
    return SavedCapture(merged([capture_from(source) for source in captures]))
