"""Files from strangers: six hundred damaged ones here, a hundred thousand with `make sweep-hostile`."""

from collections import Counter
from pathlib import Path

from tests.hostile.material import originals
from tests.hostile.mutations import verdict_of


def test_a_damaged_file_is_refused_or_loads_rightly(tmp_path: Path) -> None:
    known = originals()
    verdicts = {number: verdict_of(-number, known, tmp_path / "run.ortlens") for number in range(600)}
    assert {number: verdict for number, verdict in verdicts.items() if verdict.is_defect} == {}
    counts = Counter(verdict.kind for verdict in verdicts.values())
    assert min(counts["refused"], counts["loaded"]) > 60
