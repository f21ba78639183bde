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
    "floor division truncates": Program(seed=0, inputs=_A, returns=("a[: -(-a.shape[0] // 2)] * 2",), steps=("call(5)",), dynamic=True),
    "frozen calls do not look for shared memory": Program(
        seed=0,
        inputs=(*_A, ("b", "values(2, n, 4)")),
        body=("a.add_(1)",),
        returns=("a + b",),
        steps=("call(5)", 'given(5, b="a")'),
        road="frozen",
    ),
    "frozen calls do not look at strides": Program(
        seed=0,
        inputs=_A,
        body=("a.reshape(-1)[::2].add_(10)",),
        returns=("a * 2",),
        steps=("call(4)", "given(4, a=\"relaid(a, 'permuted')\")"),
        road="frozen",
    ),
    "writes do not wait for checks": Program(
        seed=0,
        inputs=(*_A, ("b", "places(1, 2)"), ("c", "values(4, 2, 300, 256)"), ("i", "places(3, 2)")),
        body=("t0 = torch.cummax(a[i] * 2, 0)[0]", "c[:, b] = 3"),
        returns=("t0.sum() + c.mean()",),
        steps=("call(4)", 'given(4, i="spoilt(i, 99)")'),
    ),
    "negative positions taken": Program(
        seed=0,
        inputs=(*_A, ("i", "places(3, 2)")),
        returns=("F.embedding(i, a)",),
        steps=("call(4)", 'given(4, i="spoilt(i, -1)")'),
    ),
    "constants of 16 bits": Program(seed=0, inputs=(("a", "spread(1, n, 50)"),), returns=("a * 0.123",), exact=True),
    "the default dtype ignored": Program(seed=0, inputs=_A, returns=("torch.ones(a.shape[0]) + 1",), default_dtype="float64"),
    "the generator not advanced": Program(seed=0, inputs=_A, returns=("F.dropout(a, 0.5)",)),
    "parts returned without the whole": Program(seed=0, inputs=_A, returns=("(a + 1)[:, :2]",)),
    "branches of cond swapped": Program(
        seed=0, inputs=_A, returns=("cond(a.sum() > 0, lambda y: y * 2, lambda y: y - 1, (a,))",), steps=("call(4)", "other(4)")
    ),
}


def test_every_planted_defect_has_a_program_that_shows_it() -> None:
    assert SHOWN.keys() == PLANTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_planted_defect_is_seen(name: str) -> None:
    assert judge(SHOWN[name]).word in ("right", "refused")
    with planted(name):
        assert judge(SHOWN[name]).word == "wrong"


@pytest.mark.parametrize("name", sorted(SHOWN.keys() - BEYOND_GRAPHS))
def test_a_planted_defect_is_seen_in_a_graph(name: str) -> None:
    assert judge_graph(SHOWN[name]).word == "right"
    with planted(name):
        assert judge_graph(SHOWN[name]).word == "wrong"
