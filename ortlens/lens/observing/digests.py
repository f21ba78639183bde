"""Digests of the values of one call, by which two captures are compared, whatever machines and versions made them.

A digest is figures in double precision, without elements; its size does not depend on the value's. The signs of its sketch come from a hash
of the place of an element, not from a generator of random numbers, whose stream may differ between versions.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any

import numpy as np

from ortlens.trace import records as r

MAX_VALUES = 10_000  # values of one call, about 5 MB of a capture; later ones are left out
_BLOCK = 1 << 14  # elements with signs of their own; in other blocks, all of these are turned or kept
_SKETCH_SIZE = 16  # numbers, which tell the distance of two values within a factor of about 1.5
_TURNED = 1 << 32  # where the places of blocks begin in the hash, beyond those of elements


class Digests(dict[tuple[str, str, int, bool], r.ValueDigest]):
    """The digests of one call; of a value that is computed several times, the first."""

    def keep(self, graph_id: str, node: str, place: int, value: Any, *, is_input: bool = False) -> None:
        """Keep the digest of a tensor or array; what has no numbers, as a text, has none."""
        key, dtype = (graph_id, node, place, is_input), str(getattr(value, "dtype", ""))
        if hasattr(value, "detach"):
            value = value.detach().cpu().resolve_conj().resolve_neg()
            value = (value.float() if value.is_floating_point() and value.itemsize < 4 else value).numpy()  # noqa: PLR2004 - numpy lacks some
        if isinstance(value, np.ndarray) and value.dtype.kind not in "OSU" and key not in self and len(self) < MAX_VALUES:
            names: Any = {"graph_id": graph_id, "node": node, "place": place, "is_input": is_input, "dtype": dtype.removeprefix("torch.")}
            self[key] = r.ValueDigest(**names, **_figures(value))


def _figures(value: np.ndarray[Any, Any]) -> dict[str, Any]:
    flat = np.ascontiguousarray(value).reshape(-1)
    numbers = (flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat).astype(np.float64)
    finite = np.isfinite(numbers)
    known = numbers[finite]
    blocks = np.pad(np.where(finite, numbers, 0.0), (0, -numbers.size % _BLOCK)).reshape(-1, _BLOCK)
    with np.errstate(over="ignore", invalid="ignore"):
        sketch = (blocks @ _signs(0, _BLOCK) * _signs(_TURNED, len(blocks))).sum(axis=0)
        norm = np.linalg.norm(known)
    return {
        "shape": value.shape,
        "norm": float(norm),
        "low": float(known.min()) if known.size else None,
        "high": float(known.max()) if known.size else None,
        "nonfinite": numbers.size - known.size,
        "checksum": zlib.crc32(flat.view(np.uint8).data),
        "sketch": tuple(map(float, np.nan_to_num(sketch))),
    }


@functools.lru_cache(maxsize=2)
def _signs(start: int, count: int) -> np.ndarray[Any, Any]:
    """Return, for each place, a row of signs: bits of the place, mixed as by SplitMix64."""
    mixed = np.arange(start + 1, start + 1 + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return 1.0 - 2.0 * (mixed[:, None] >> np.arange(33, 33 + _SKETCH_SIZE, dtype=np.uint64) & np.uint64(1))
