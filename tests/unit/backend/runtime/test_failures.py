"""When failed runs leave sizes, or a partition, to PyTorch."""

import pytest

from ortlens.backend.runtime.runner import MAX_SIZES, Failures


@pytest.mark.parametrize(
    ("varies", "runs", "last"),
    [
        (False, "aaa", "partition lost"),
        (True, "aaa", "sizes lost"),
        (True, "aab", "partition lost"),
        (True, "abc", "partition lost"),
        (True, "aa", "kept"),
        (False, "aAaAaAaa", "kept"),
        (True, "aaBa", "sizes lost"),
        (True, "aaAaa", "kept"),
    ],
)
def test_a_row_of_failures(varies: bool, runs: str, last: str) -> None:  # noqa: FBT001 - a parameter of the test
    """A lower-case letter is a failed run of those sizes, an upper-case one a good run."""
    failures = Failures(sizes_vary=varies)
    verdicts = []
    for run in runs:
        if run.isupper():
            failures.succeeded(run.lower())
        else:
            verdicts.append(failures.failed(run))
    assert verdicts[-1] == last
    assert set(verdicts[:-1]) <= {"kept"}


def test_many_sizes_that_failed_lose_the_partition_even_with_good_runs_between() -> None:
    failures = Failures(sizes_vary=True)
    verdicts = []
    for size in range(MAX_SIZES):
        verdicts.append(failures.failed(size))
        failures.succeeded(-1)
    assert verdicts == ["kept"] * (MAX_SIZES - 1) + ["partition lost"]


def test_a_good_run_is_all_it_takes_to_forget() -> None:
    failures = Failures(sizes_vary=True)
    assert not failures
    failures.failed("a")
    assert failures
    failures.succeeded("a")
    assert not failures
