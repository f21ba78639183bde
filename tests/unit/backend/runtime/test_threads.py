"""The choice of threads: by the work, and by who else computes."""

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import onnxruntime
import pytest
import torch

import ortlens
from ortlens import _ort, _process, _torch
from ortlens.backend.freeze import loader
from ortlens.backend.runtime import session, threads
from tests.threads import torch_threads
from tests.unit.backend.graphs import traced


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    with torch_threads(2):
        yield


def work(size: int, *, symbolic: bool = False) -> int | None:
    return work_in(lambda x: (x @ x + 1,), torch.rand(size, size), symbolic=symbolic)


def work_in(function: Callable[[torch.Tensor], Any], x: torch.Tensor, *, symbolic: bool = False) -> int | None:
    module = traced(function, x, symbolic=symbolic)
    return threads.work_of(node for node in module.graph.nodes if node.op == "call_function")


def test_the_choice_follows_from_the_work_and_from_who_else_computes() -> None:
    assert work(8) == 2 * 8**3 + 8**2 + 80, "a product, its result, and what an addition of known time does"
    alone, beside = (threads.choose(work(256), alternates=alternates) for alternates in (False, True))
    assert (alone.count, alone.spinning, beside.count, beside.spinning) == (2, True, 2, False)
    assert threads.choose(work(8), alternates=False).count == 1
    assert threads.choose(work(8, symbolic=True), alternates=False).count == 2, "sizes that may grow are not taken for little work"
    torch.set_num_threads(1)
    assert (threads.choose(work(256), alternates=False).count, threads.choose(work(256), alternates=False).spinning) == (1, False)


def test_kernels_count_by_their_time() -> None:
    x = torch.rand(512, 1024)
    works = [work_in(lambda x: (x.sqrt(),), x), work_in(lambda x: (x.neg(),), x)]
    counts = [threads.choose(made, alternates=False).count for made in works]
    assert counts == [2, 1]


@pytest.mark.parametrize("spinning", [True, False])
def test_the_choice_reaches_the_session(spinning: bool) -> None:  # noqa: FBT001
    options = session.default_session_options(threads.ThreadChoice(count=2, spinning=spinning, reason=""))
    assert options.intra_op_num_threads == 2
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == str(int(spinning))
    if spinning:
        assert options.get_session_config_entry("session.force_spinning_stop") == "1"


def test_of_the_user() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 3
    assert threads.of_the_user(options).spinning
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    choice = threads.of_the_user(options)
    assert (choice.count, choice.spinning) == (3, False)
    assert "ort_session_options" in choice.reason


def tasks() -> int:
    return len(list(pathlib.Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(_torch.openmp_pause() is None, reason="torch does not use GNU's OpenMP here")
def test_torchs_threads_end_before_a_large_run_and_come_back() -> None:
    rest = threads.choose(work(1024), alternates=True).rest()
    assert rest is not None
    x = torch.rand(1024, 1024)
    expected = x + 1
    rest()
    alone = tasks()
    assert torch.equal(x + 1, expected)
    assert tasks() == alone + 1
    rest()
    assert tasks() == alone
    assert torch.equal(x + 1, expected)


@pytest.mark.parametrize(("size", "alternates"), [(256, True), (1024, False)])
def test_torchs_threads_are_left_alone_where_little_is_to_be_gained(size: int, alternates: bool) -> None:  # noqa: FBT001
    assert threads.choose(work(size), alternates=alternates).rest() is None


def test_a_graph_that_alternates_gives_the_same_with_threads_put_to_rest() -> None:
    def alternating(x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x @ x, x).real @ x

    lens, x = ortlens.Lens(), torch.rand(1024, 1024)
    fast = torch.compile(alternating, backend=lens)
    for _ in range(3):
        torch.testing.assert_close(fast(x), alternating(x))
    assert set(lens.sessions.threads) == {2}
    assert not lens.sessions.spinning.any()
    resting = ["are ended before each run" in reason for reason in lens.sessions.threads_reason]
    assert any(resting) == (_torch.openmp_pause() is not None)


def test_what_we_choose_has_no_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (threads, _process):
        monkeypatch.setattr(module, "usable_cores", lambda: 1)
    monkeypatch.setattr(_ort, "default_threads", lambda: 9)
    monkeypatch.setattr("os.cpu_count", lambda: 9)
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda _, options, **_more: options)
    frozen = loader.LoadedFrozen._session(pathlib.Path(), {"threads": None, "disabled_optimizers": ()}, (), None).intra_op_num_threads
    given = threads.of_the_user(onnxruntime.SessionOptions()).count
    assert (threads.choose(None, alternates=False).count, frozen, given) == (1, 1, 9)
