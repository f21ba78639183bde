"""How ONNX Runtime is to multiply 8-bit integers on the processor at hand. Standard library only: `save` copies this file to the models.

On a processor with AVX2 and without VNNI, its sums of products of unsigned and signed 8-bit integers overflow 16 bits. A setting has it
make constant weights unsigned there, which is exact (seen under QEMU's Haswell). It does so also where the kernels merely differ, as with
AMX, and then takes two to seven times as long as needed. So the setting is left out where VNNI is known to be there.
"""

from __future__ import annotations

import functools
import pathlib

_LISTED = pathlib.Path("/proc/cpuinfo")
_EXACT = "avx512_vnni"  # AMX comes with it


@functools.cache
def exact_products() -> tuple[tuple[str, str], ...]:
    """Return the entries of a session's configuration with which products of 8-bit integers are exact."""
    try:
        is_exact = _EXACT in _LISTED.read_text(encoding="utf-8").split()
    except OSError:  # another system than Linux
        is_exact = False
    return () if is_exact else (("session.x64quantprecision", "1"),)
