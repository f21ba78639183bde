"""Which processors are told to multiply 8-bit integers without overflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ortlens.backend.runtime import overflow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _unknown_processor() -> Iterator[None]:
    overflow.exact_products.cache_clear()
    yield
    overflow.exact_products.cache_clear()


@pytest.mark.parametrize(
    ("flags", "entries"),
    [("fma avx2 avx512_vnni amx_int8", 0), ("fma avx2 avx512f", 1), (None, 1)],
    ids=["VNNI", "none", "another system"],
)
def test_only_a_processor_with_vnni_needs_no_setting(
    flags: str | None, entries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "cpuinfo"
    if flags is not None:
        listed.write_text(f"model name\t: One\nflags\t\t: {flags}\n", encoding="utf-8")
    monkeypatch.setattr(overflow, "_LISTED", listed)
    assert len(overflow.exact_products()) == entries
