"""The windows of adaptive pools, which differ in size by one where the sizes do not divide."""

from __future__ import annotations

MOST_WINDOWS = 64
"""Windows of different sizes that are cut out one by one: each becomes some ONNX nodes."""


def windows_of(size: int, wanted: int) -> list[tuple[int, int]]:
    """List the windows of an adaptive pool along one dimension: the first element of each and the one after its last."""
    return [(place * size // wanted, -(-(place + 1) * size // wanted)) for place in range(wanted)]
