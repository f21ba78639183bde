"""A planted cause comes first, with its line, and is gone once the advice is followed: samples of `make sweep-strangers`, without times."""

import pytest

from tests.strangers.__main__ import problems, rows_of

# Each compiles and measures two programs in a process of their own, which takes some seconds; what comes first depends on prices.
pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.timed]
NAMED = (
    *("an operator without a kernel", "many tiny graphs", "a break in a loop", "a branch on data", "float64 by accident", "batch sizes"),
    *("inputs in another layout", "a compiled optimiser", "mlp"),
)


@pytest.mark.parametrize("name", NAMED)
def test_the_first_screen_can_be_followed(name: str) -> None:
    assert [problems(row) for row in rows_of([name], with_times=False)] == [[]]
