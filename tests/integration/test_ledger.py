"""The ledger of real calls: it balances, and time that is planted in one part appears there and nowhere else."""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from ortlens.analysis.costs import fallback_groups
from ortlens.analysis.ledger import LedgerTotals, totals_of
from ortlens.analysis.speed import call_pace
from ortlens.backend.basis import ab_timing
from ortlens.backend.runtime.runner import IN_A_ROW
from ortlens.backend.runtime.session import SessionFactory, SessionInfo
from ortlens.backend.runtime.weights import FrozenWeight
from ortlens.demo import _model_and_tokens
from ortlens.lens.measuring import ledger_pass
from ortlens.trace.records import SessionCause

# Measures the parts of a call's time.
pytestmark = [pytest.mark.serial, pytest.mark.timed]

X = torch.linspace(-1, 1, 64)
SLOW = 0.004


@torch.compiler.disable
def pause(seconds: float) -> None:
    """Time that PyTorch cannot trace: a graph break around it."""
    time.sleep(seconds)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.no_grad():
        yield


def totals(lens: ortlens.SavedCapture | Lens) -> LedgerTotals:
    found = totals_of(lens.captured().ledger)
    assert found is not None
    return found


def of(lens: Lens, graph_id: str, part: str) -> int:
    (row,) = (row for row in lens.captured().ledger if (row.graph_id, row.part) == (graph_id, part))
    return row.ns


def wall_ns(call: Callable[[], Any], calls: int = 60) -> float:
    """The same mean over the middle half that the ledger takes, measured from outside."""
    walls = []
    for _ in range(calls):
        started = time.perf_counter_ns()
        call()
        walls.append(time.perf_counter_ns() - started)
    middle = sorted(walls)[calls // 4 : -(calls // 4)]
    return sum(middle) / len(middle)


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval()


def measure_quietly(lens: Lens, *args: object) -> None:
    """Measure again while other work on the machine is in the way: until two ledgers in turn agree to a fifth."""
    before = float("inf")
    for _ in range(8):
        now = float(lens.measure(*args).ns.sum())
        if abs(before - now) < now / 5:
            return
        before = now


def balances(lens: Lens) -> None:
    rows = lens.captured().ledger
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert all(row.ns >= 0 for row in rows)
    assert totals(lens).is_measured
    assert totals(lens).share["residual"] < 0.10


@pytest.mark.slow
def test_the_demo_model_balances() -> None:
    model, tokens = _model_and_tokens()
    lens = ortlens.explain(model)(tokens)
    balances(lens)
    assert set(lens.ledger.graph_id) == set(lens.graphs.graph_id)
    assert totals(lens).ns["run"] > totals(lens).ns["bind"] > 0
    assert of(lens, "g0", "eager") > of(lens, "g0", "guards"), "the singular values, and the comparison with zero that no converter takes"


def test_the_sum_is_the_wall_time_of_a_call() -> None:
    model = small_net()
    lens = Lens()
    fast = torch.compile(model, backend=lens)
    fast(X)
    before = wall_ns(lambda: fast(X))
    lens.measure(X)
    after = wall_ns(lambda: fast(X))
    # The clock at the door costs about a microsecond per graph; other work on the machine more.
    assert min(before, after) * 0.6 < totals(lens).total_ns < max(before, after) * 1.6 + 5_000


def test_devices_are_waited_for_before_and_after_each_timed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def noted(name: str, function: Callable[..., torch.Tensor]) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            events.append(name)
            return function(X)

        return call

    monkeypatch.setattr(ledger_pass, "waiting_for", lambda *_values: lambda: events.append("wait"))
    model, lens = small_net(), Lens()
    fast = torch.compile(model, backend=lens)
    fast(X)
    monkeypatch.setattr(ab_timing, "_FEW", ())  # no call that is not timed
    lens.measured(noted("compiled", fast), uncompiled=noted("plain", model), max_calls=13, budget_ns=None)
    calls = events[1:]  # the first is observed, not timed
    timed = calls[1::3]
    assert calls == [event for name in timed for event in ("wait", name, "wait")]
    assert (timed.count("compiled"), timed.count("plain")) == (12 + 10, 10)


def test_both_sides_of_the_comparison_are_called_and_timed_alike_without_anything_of_the_lens(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []
    lens = Lens()
    fast = torch.compile(lambda x: torch.special.bessel_j0(x.sin()) + 1, backend=lens)
    fast(X)

    def logged() -> int:
        return int(lens.sessions.calls.sum() + lens.fallbacks.calls.sum())

    def shortest(run: Callable[[], object], *_wait: object, **_usual: object) -> Callable[[], int]:
        def timed() -> int:
            before = logged()
            run()
            made.append(("", logged() - before))
            return 1000 if run is plain else 1500

        return timed

    def plain() -> None:
        made.append(("plain", 0))

    monkeypatch.setattr(ledger_pass, "shortest_of_few", shortest)
    lens.measured(lambda: fast(X), uncompiled=plain, max_calls=4, budget_ns=None)
    assert {logs for _, logs in made} == {0}
    assert sum(name == "plain" for name, _ in made) == (len(made) - 10) / 2 == 10
    pace = call_pace(lens.captured())
    assert pace is not None
    assert (pace.verdict, pace.eager_ns) == ("slower", 1000)
    assert pace.passes == pytest.approx((1.5, 1.5), rel=0.01), "parts are rounded"
    assert pace.call_ns == pytest.approx(1500, abs=8)  # the parts are rounded
    before = logged()
    fast(X)
    assert logged() > before


def test_python_between_graphs_is_eager_and_the_price_of_its_break() -> None:
    def gapped(x: torch.Tensor, seconds: float) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()  # costs nothing but itself
        x = x.cos()
        pause(seconds)
        return x.tan()

    lens = ortlens.explain(gapped, calls=24)(X, SLOW)
    assert lens.breaks.occurrences.tolist() == [1, 1]
    cheap, dear = lens.breaks.between_ns
    planted = of(lens, "g2", "eager")
    assert planted >= SLOW * 1e9
    assert planted * 0.99 <= dear < planted * 1.2
    assert 0 < cheap < dear / 8
    assert totals(lens).ns["eager"] - planted < planted / 8
    assert totals(lens).total_ns - planted < planted / 2, "and nowhere else"


@pytest.mark.slow
def test_heavy_guards_behind_a_break_are_told_from_python() -> None:
    class Guarded(nn.Module):
        """So many numbers that guarding them takes its time; the guards are Dynamo's, whatever the backend."""

        def __init__(self) -> None:
            super().__init__()
            self.numbers = list(range(5000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.sin()
            torch._dynamo.graph_break()
            return x * max(self.numbers)

    lens = Lens("eager")
    torch.compile(Guarded(), backend=lens)(X)
    measure_quietly(lens, X)
    first, last = (graph.graph_id for graph in lens.captured().graphs)
    assert of(lens, last, "foreign") > of(lens, last, "run") == 0
    assert totals(lens).ns["bind"] == totals(lens).ns["residual"] == 0, "another backend's graphs are timed as a whole"
    assert of(lens, last, "guards") > 2 * of(lens, first, "guards") > 0
    assert of(lens, last, "eager") < of(lens, last, "guards")
    (broken,) = lens.captured().breaks
    assert broken.cost_ns is not None
    assert broken.cost_ns > of(lens, last, "guards") * 0.7


def test_a_partition_that_went_back_to_pytorch_is_eager() -> None:
    lens = Lens()
    net = small_net()
    fast = torch.compile(net, backend=lens)
    fast(X)
    (graph,) = lens._targets.graphs()
    (runner,) = graph.of.runners
    inputs = tuple(node.meta["val"].new_zeros(node.meta["val"].shape) for node in runner.partition.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(IN_A_ROW):
            runner.failed(inputs, RuntimeError("planted"))
    lens.measure(X)
    assert of(lens, "g0", "run") == 0
    assert of(lens, "g0", "eager") > totals(lens).total_ns / 20
    assert of(lens, "g0", "residual") == 0


def test_a_plain_lens_tells_what_the_logs_hold() -> None:
    lens = Lens()
    fast = torch.compile(small_net(), backend=lens)
    assert lens.ledger.empty
    for _ in range(5):
        fast(X)
    assert set(lens.ledger.part) == {"bind", "run", "output"}
    assert lens.ledger.share.sum() == pytest.approx(1)
    assert not totals(lens).is_measured
    assert lens.ledger.ns.sum() == pytest.approx(lens.sessions.p50_ns.sum(), abs=5), "a usual call, not the mean with the slow first one"


@pytest.mark.slow
def test_a_number_of_calls_and_the_error_of_the_target_are_kept() -> None:
    for count in (1, 2):
        lens = ortlens.explain(small_net(), calls=count)(X)
        assert lens.sessions.calls.tolist() == [count]
        assert totals(lens).is_measured == (count > 1)
    calls = []

    def fails_later(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        torch._dynamo.graph_break()
        if len(calls) > 3:
            raise KeyError("mine")
        return x.sin()

    with pytest.raises(KeyError, match="mine"):
        ortlens.explain(fails_later, calls=9)(X)
    with pytest.raises(ortlens.UsageError, match="nothing was compiled"):
        Lens().measure(X)
    with pytest.raises(ortlens.UsageError, match="dry run"):
        ortlens.explain(small_net(), dry_run=True)(X).measure(X)


def test_a_failure_of_the_ledger_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def tripping(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(ledger_pass, "ledger_from_calls", tripping)
    model = small_net()
    with pytest.warns(RuntimeWarning, match="planted"):
        lens = ortlens.explain(model, calls=5)(X)
    torch.testing.assert_close(lens.result, model(X))
    assert [finding.rule for finding in lens.captured().findings] == ["lens_failed"]
    assert not totals(lens).is_measured


def test_a_recompile_while_measuring_is_left_out() -> None:
    lens = Lens()
    fast = torch.compile(lambda x: x.sin() + 1, backend=lens, dynamic=False)
    fast(X)
    sizes = iter([64, 64, 32, *[32] * 20])
    lens.measured(lambda: fast(torch.ones(next(sizes))), max_calls=20, budget_ns=None)
    assert len(lens.graphs) == 2
    balances(lens)
    assert totals(lens).total_ns < 5_000_000, "the call that compiled is not in it"


class Block(nn.Module):
    """Two of them share one code object, and so one session: it is created again when the other's weights come."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.lin(x))
        torch._dynamo.graph_break()
        out: torch.Tensor = self.lin(x) * 2
        return out


CREATION = 0.1


@pytest.fixture
def slow_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the creation of a session take much longer than a call."""
    inner = SessionFactory.session

    def session(self: SessionFactory, frozen: Sequence[FrozenWeight], dimensions: Mapping[str, int], *, cause: SessionCause) -> SessionInfo:
        time.sleep(CREATION)
        return inner(self, frozen, dimensions, cause=cause)

    monkeypatch.setattr(SessionFactory, "session", session)


@pytest.mark.usefixtures("slow_sessions")
@pytest.mark.parametrize("calls", [2, 3])
def test_the_creation_of_a_session_is_no_part_of_a_call_or_price(calls: int) -> None:
    lens = ortlens.explain(nn.Sequential(Block(), Block()).eval(), calls=calls)(torch.randn(2, 64))
    captured = lens.captured()
    assert len(captured.sessions) > 2, "weights changed, so sessions were created again"
    assert captured.figures.explain_calls == calls
    tenth = CREATION * 1e9 / 10
    for item in captured.breaks:
        assert (item.between_ns or 0) + (item.cost_ns or 0) < tenth
    assert totals(lens).total_ns < 5 * tenth  # which is half a creation; a call enters each graph twice
    assert {graph.entries_per_call for graph in captured.graphs} == {2}, "known without times"
    assert totals(lens).is_measured == (calls > 2), "of two calls, each compiled code or created a session"


def sized() -> tuple[Lens, Callable[[torch.Tensor], torch.Tensor]]:
    """A function whose sessions each serve one size, though it is compiled once; and its lens."""
    lens = Lens(options={"export_options": {"dynamic_shapes": False}})
    return lens, torch.compile(lambda x: x.sin() + 1, backend=lens, dynamic=True)


@pytest.mark.usefixtures("slow_sessions")
def test_calls_that_all_create_sessions_are_followed_by_more_unless_their_number_was_given() -> None:
    lens, fast = sized()
    fast(X)
    sizes = iter([8, 16, 24, 24])
    lens.measured(lambda: fast(torch.ones(next(sizes))), budget_ns=1)
    assert next(sizes, None) is None, "one to observe, two that create a session, one that counts"
    assert totals(lens).is_measured
    assert lens.captured().figures.ledger_calls == 1
    lens, fast = sized()
    fast(X)
    sizes = iter([8, 16, 24, 32])
    lens.measured(lambda: fast(torch.ones(next(sizes))), max_calls=3, budget_ns=None)
    assert list(sizes) == [32]
    assert not totals(lens).is_measured


def test_a_session_that_is_refused_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no id, but the attempt takes its time, too."""
    inner = SessionFactory.session

    def session(self: SessionFactory, frozen: Sequence[FrozenWeight], dimensions: Mapping[str, int], *, cause: SessionCause) -> SessionInfo:
        if 8 in dimensions.values():
            time.sleep(CREATION)
            raise RuntimeError("planted")
        return inner(self, frozen, dimensions, cause=cause)

    monkeypatch.setattr(SessionFactory, "session", session)
    lens, fast = sized()
    fast(X)
    sizes = iter([64, 8, 64, 64])
    with pytest.warns(RuntimeWarning, match="planted"):
        lens.measured(lambda: fast(torch.ones(next(sizes))), max_calls=4, budget_ns=None)
    assert totals(lens).total_ns < CREATION * 1e9 / 20


def test_slow_nodes_in_pytorch_are_eager_and_their_prices_agree() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.special.bessel_j0(x).relu() + x.mode(dim=-1, keepdim=True).values
        return made

    lens = ortlens.explain(halves, calls=40)(torch.rand(64, 1024))
    eager, prices = totals(lens).ns["eager"], lens.fallbacks.call_ns
    assert (prices > 0).all()
    assert 0.5 * eager < prices.sum() <= eager + len(prices)  # rounded
    assert fallback_groups(lens.captured())[0].call_ns == prices.max()
    assert totals(lens).share["eager"] > 0.5
    assert totals(lens).share["residual"] < 0.10


def test_an_operator_whose_time_varies_takes_no_more_than_its_part_of_the_call() -> None:
    pauses = itertools.cycle((0.001, 0.008, 0.008))

    @torch.library.custom_op("ortlens_test::pauses", mutates_args=())
    def paused(x: torch.Tensor) -> torch.Tensor:
        time.sleep(next(pauses))
        return x.clone()

    paused.register_fake(torch.empty_like)
    lens = ortlens.explain(lambda x: paused(x * 2) + 1, calls=8)(torch.randn(4, 4))
    (slow,) = lens.captured().fallbacks
    assert slow.call_ns is not None
    assert 0.9 * of(lens, "g0", "eager") < slow.call_ns <= of(lens, "g0", "eager") + 1
