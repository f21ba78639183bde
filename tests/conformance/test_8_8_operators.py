"""CONTRACT 8.8: the classic operator cases, static and dynamic through `torch.compile`, and as ExportedProgram."""

import os

import pytest
import torch

from tests.conformance.cases import CASES
from tests.conformance.operator_case import compiled_like_eager, exported_like_eager, stays_of, together

ROADS = ("static", "dynamic", "exported")
# `make sweep-conformance` sets this. Without it, each case takes one road, in turn, and `make test` runs a part of them.
EVERY_ROAD = bool(os.environ.get("ORTLENS_EVERY_ROAD"))
CHOSEN = {
    road: [name for place, name in enumerate(CASES) if EVERY_ROAD or (place + turn) % len(ROADS) == 0] for turn, road in enumerate(ROADS)
}
_TOGETHER = 9


def batches() -> list[tuple[str, list[str]]]:
    """Each road with the names of cases that are compiled together; those with something special are alone."""
    made = []
    for road, names in CHOSEN.items():
        plain = [name for name in names if CASES[name].is_plain(road)]
        made += [(road, plain[place : place + _TOGETHER]) for place in range(0, len(plain), _TOGETHER)]
        made += [(road, [name]) for name in names if name not in plain]
    return made


@pytest.mark.filterwarnings("ignore:var\\(\\):UserWarning", "ignore:The tensor attribute:UserWarning")
@pytest.mark.parametrize(
    ("road", "names"),
    [
        pytest.param(road, names, id=f"{names[0]}-{road}", marks=() if place % 5 == 0 else pytest.mark.slow)
        for place, (road, names) in enumerate(batches())
    ],
)
def test_8_8_operators(road: str, names: list[str]) -> None:
    given = together([CASES[name] for name in names])
    if road == "exported" and given.not_exported:
        with pytest.raises(Exception, match=given.not_exported), torch.no_grad():
            exported_like_eager(given)
        return
    capture = exported_like_eager(given) if road == "exported" else compiled_like_eager(given, dynamic=road == "dynamic")
    assert stays_of(capture) == given.expected_stays(road)
    assert all(fallback.reason for fallback in capture.fallbacks)
    assert not capture.findings
    graphs = 1 if road == "exported" else given.graphs
    assert graphs is None or len(capture.graphs) == graphs
    for graph in capture.graphs:
        assert graph.coverage is None or graph.fallback_count or graph.coverage == 1.0
