"""What ONNX Runtime does badly on the processor at hand. Standard library only: `save` copies this file beside the models.

On a processor with AVX2 and without VNNI, its sums of products of unsigned and signed 8-bit integers overflow 16 bits. A setting has it
make constant weights unsigned there, which is exact (seen under QEMU's Haswell). It does so also where the kernels merely differ, as with
AMX, and then takes two to seven times as long as needed. So the setting is left out where VNNI is known to be there.
"""

from __future__ import annotations

import functools
import os
import pathlib

_LISTED = pathlib.Path("/proc/cpuinfo")


@functools.cache
def _listed() -> frozenset[str]:
    """Return what Linux lists of the processors: vendor and instructions. Windows names the vendor, other systems nothing."""
    try:
        return frozenset(_LISTED.read_text(encoding="utf-8").split())
    except OSError:
        return frozenset(os.environ.get("PROCESSOR_IDENTIFIER", "").split())


def exact_products() -> tuple[tuple[str, str], ...]:
    """Return the entries of a session's configuration with which products of 8-bit integers are exact."""
    return () if "avx512_vnni" in _listed() else (("session.x64quantprecision", "1"),)


def stalls_at_denormals() -> bool:
    """Tell whether the processor takes about a hundred times as long for numbers below 1.2e-38; those of AMD and ARM do not."""
    return "GenuineIntel" in _listed()
