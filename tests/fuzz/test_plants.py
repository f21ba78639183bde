"""The judge sees planted defects. How soon the generator finds them is measured by `python -m tests.fuzz --plants`."""

import pytest

from tests.fuzz.oracle import judge, judge_graph
from tests.fuzz.plants import BEYOND_GRAPHS, PLANTS, planted
from tests.fuzz.program import program

pytestmark = pytest.mark.slow

A = "values(1, n, 4)"

SHOWN = {
    "returned views made by the session": program("b", a=A, body=("b = a.view(-1)[a.shape[0] :]",), dynamic=True),
    "outputs permuted the wrong way": program("a * 2", a="values(1, n, 3, 2).permute(1, 2, 0)"),
    "changed weights not noticed": program(
        "a @ self.w", a=A, state=("self.w = nn.Parameter(values(2, 4, 4))",), steps=("call(4)", "self.w.mul_(2)", "again()")
    ),
    "a weight bound without its offset": program("a @ self.b", a=A, state=("self.register_buffer('b', values(2, 6, 4)[1:5])",)),
    "an input bound without its offset": program("a * 2", a="values(1, n, 4)[1:]"),
    "outputs share memory between calls": program("a * 2", a=A, steps=("call(4)", "ins[0].add_(1)", "again()")),
    "int32 returned as int64": program("a + 1", a="values(1, n, 4, dtype=torch.int32)"),
    "two outputs swapped": program("a * 2", "a + 1", a=A),
    "a size baked in": program("torch.rand(a.shape[0] // 2) + a[0, 0]", a=A, steps=("call(6)", "call(8)"), dynamic=True),
    "a write into an input lost": program("a.sum()", a=A, body=("a.mul_(2)",)),
    "the sign of a gradient lost": program("1 - a", a="leaf(values(1, n, 4))", steps=("call(4)", "backward()"), trains=True),
    "an unsound rewrite": program("a.clamp(0, 1).clamp(2, 3)", a=A),
    "scalars made whole": program("a * 0.5", a="values(1, n, 4, dtype=torch.int64)"),
    "the offset of a slice lost": program("a[1:] * 2", a=A),
    "floor division truncates": program("a[: -(-a.shape[0] // 2)] * 2", a=A, steps=("call(5)",), dynamic=True),
    "frozen calls do not look for shared memory": program(
        "a + b", a=A, b="values(2, n, 4)", body=("a.add_(1)",), steps=("call(5)", 'given(5, b="a")'), road="frozen"
    ),
    "frozen calls do not look at strides": program(
        "a * 2", a=A, body=("a.reshape(-1)[::2].add_(10)",), steps=("call(4)", "given(4, a=\"relaid(a, 'permuted')\")"), road="frozen"
    ),
    "writes do not wait for checks": program(
        "t0.sum() + c.mean()",
        a=A,
        b="places(1, 2)",
        c="values(4, 2, 300, 256)",
        i="places(3, 2)",
        body=("t0 = torch.cummax(a[i] * 2, 0)[0]", "c[:, b] = 3"),
        steps=("call(4)", 'given(4, i="spoilt(i, 99)")'),
    ),
    "negative positions taken": program("F.embedding(i, a)", a=A, i="places(3, 2)", steps=("call(4)", 'given(4, i="spoilt(i, -1)")')),
    "constants of 16 bits": program("a * 0.123", a="spread(1, n, 50)", exact=True),
    "the default dtype ignored": program("torch.ones(a.shape[0]) + 1", a=A, default_dtype="float64"),
    "the generator not advanced": program("F.dropout(a, 0.5)", a=A),
    "parts returned without the whole": program("(a + 1)[:, :2]", a=A),
    "branches of cond swapped": program("cond(a.sum() > 0, lambda y: y * 2, lambda y: y - 1, (a,))", a=A, steps=("call(4)", "other(4)")),
}


def test_every_planted_defect_has_a_program_that_shows_it() -> None:
    assert SHOWN.keys() == PLANTS.keys()


@pytest.mark.parametrize("name", SHOWN)
def test_a_planted_defect_is_seen(name: str) -> None:
    judged = judge if name in BEYOND_GRAPHS else judge_graph
    assert judged(SHOWN[name]).word in ("right", "refused")
    with planted(name):
        assert judged(SHOWN[name]).word == "wrong"
