"""The judge sees planted defects. How soon the generator finds them is measured by `python -m tests.fuzz --plants`."""

from __future__ import annotations

import pytest

from tests.fuzz.oracle import judge, judge_graph
from tests.fuzz.plants import BEYOND_GRAPHS, PLANTS, planted
from tests.fuzz.program import Program

_A = (("a", "values(1, n, 4)"),)

SHOWN: dict[str, Program] = {
    "returned views made by the session": Program(seed=0, inputs=_A, body=("b = a.view(-1)[a.shape[0] :]",), returns=("b",), dynamic=True),
    "outputs permuted the wrong way": Program(seed=0, inputs=(("a", "values(1, n, 3, 2).permute(1, 2, 0)"),), body=(), returns=("a * 2",)),
    "changed weights not noticed": Program(
        seed=0,
        inputs=_A,
        state=("self.w = nn.Parameter(values(2, 4, 4))",),
        returns=("a @ self.w",),
        steps=("call(4)", "self.w.mul_(2)", "again()"),
    ),
    "a weight bound without its offset": Program(
        seed=0, inputs=_A, state=("self.register_buffer('b', values(2, 6, 4)[1:5])",), returns=("a @ self.b",)
    ),
    "an input bound without its offset": Program(seed=0, inputs=(("a", "values(1, n, 4)[1:]"),), returns=("a * 2",)),
    "outputs share memory between calls": Program(seed=0, inputs=_A, returns=("a * 2",), steps=("call(4)", "ins[0].add_(1)", "again()")),
    "int32 returned as int64": Program(seed=0, inputs=(("a", "values(1, n, 4, dtype=torch.int32)"),), returns=("a + 1",)),
    "two outputs swapped": Program(seed=0, inputs=_A, returns=("a * 2", "a + 1")),
    "a size baked in": Program(
        seed=0, inputs=_A, returns=("torch.rand(a.shape[0] // 2) + a[0, 0]",), steps=("call(6)", "call(8)"), dynamic=True
    ),
    "a write into an input lost": Program(seed=0, inputs=_A, body=("a.mul_(2)",), returns=("a.sum()",)),
    "the sign of a gradient lost": Program(
        seed=0, inputs=(("a", "leaf(values(1, n, 4))"),), returns=("1 - a",), steps=("call(4)", "backward()"), trains=True
    ),
    "an unsound rewrite": Program(seed=0, inputs=_A, returns=("a.clamp(0, 1).clamp(2, 3)",)),
    "scalars made whole": Program(seed=0, inputs=(("a", "values(1, n, 4, dtype=torch.int64)"),), returns=("a * 0.5",)),
    "the offset of a slice lost": Program(seed=0, inputs=_A, returns=("a[1:] * 2",)),
}


def test_every_planted_defect_has_a_program_that_shows_it() -> None:
    assert SHOWN.keys() == PLANTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_planted_defect_is_seen(name: str) -> None:
    assert judge(SHOWN[name]).word == "right"
    with planted(name):
        assert judge(SHOWN[name]).word == "wrong"


@pytest.mark.parametrize("name", sorted(SHOWN.keys() - BEYOND_GRAPHS))
def test_a_planted_defect_is_seen_in_a_graph(name: str) -> None:
    assert judge_graph(SHOWN[name]).word == "right"
    with planted(name):
        assert judge_graph(SHOWN[name]).word == "wrong"
