"""Files from strangers: two thousand damaged ones here, a hundred thousand with `make fuzz`."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from tests.hostile.material import originals
from tests.hostile.mutations import judged, mutated

if TYPE_CHECKING:
    from pathlib import Path


def test_a_damaged_file_is_refused_or_loads_rightly(tmp_path: Path) -> None:
    known, counts, defects = originals(), Counter[str](), []
    for number in range(2000):
        chance = random.Random(-number)  # noqa: S311 - to be repeated
        original = chance.choice(known)
        data, forged = mutated(original, chance)
        verdict = judged(tmp_path / "run.ortlens", data, forged=forged, original=original)
        counts[verdict.kind] += 1
        defects += [(number, verdict)] if verdict.is_defect else []
    assert defects == []
    assert min(counts["refused"], counts["loaded"]) > 100
