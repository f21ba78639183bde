"""What is known of a processor by what Linux lists of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ortlens.backend.runtime import processor


@pytest.fixture(autouse=True)
def _unknown_processor() -> Iterator[None]:
    processor._listed.cache_clear()
    yield
    processor._listed.cache_clear()


@pytest.mark.parametrize(
    ("listed", "entries", "stalls"),
    [
        ("vendor_id\t: GenuineIntel\nflags\t\t: avx2 avx512_vnni amx_int8", 0, True),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fma avx2 avx512f", 1, False),
        (None, 1, False),
    ],
    ids=["with VNNI", "without", "another system"],
)
def test_processors_are_told_apart(
    listed: str | None, entries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stalls: bool
) -> None:
    place = tmp_path / "cpuinfo"
    if listed is not None:
        place.write_text(listed, encoding="utf-8")
    monkeypatch.setattr(processor, "_LISTED", place)
    assert (len(processor.exact_products()), processor.stalls_at_denormals()) == (entries, stalls)
