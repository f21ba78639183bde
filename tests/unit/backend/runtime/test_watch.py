"""The watch over weights: every byte within a number of calls that it states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ortlens.backend.runtime.weights import CALLS, WeightWatch


def arrays_of(*sizes: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    generator = np.random.default_rng(1)
    return {f"w{number}": generator.integers(256, size=size, dtype=np.uint8) for number, size in enumerate(sizes)}


def calls_until_noticed(watched: WeightWatch) -> int:
    return next(call for call in range(1, CALLS + 2) if not watched.is_next_intact())


SIZES = [(5000,), (4097, 4099, 8192), (1 << 16, 3 * 4096 + 5), ((1 << 20) + 3, 4101, 1 << 19), (3 << 20,)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_one_changed_byte_anywhere_is_noticed_within_the_calls_that_it_states(sizes: tuple[int, ...]) -> None:
    arrays = arrays_of(*sizes)
    watched = WeightWatch({name: array.data for name, array in arrays.items()})
    assert 0 < watched.calls <= CALLS
    for _ in range(watched.calls + 1):
        assert watched.is_next_intact()
    noticed = []
    for name, array in arrays.items():
        for place in {0, 1, 7, 8, len(array) // 3, 2 * len(array) // 3, len(array) - 9, len(array) - 1}:
            array[place] ^= 0x80
            noticed.append(calls_until_noticed(watched))
            assert watched.changed() == {name}
            array[place] ^= 0x80
    assert max(noticed) <= watched.calls
    assert watched.changed() == frozenset()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8])
def test_checksums_see_what_plain_sums_miss(dtype: type) -> None:
    array: np.ndarray[Any, Any] = (np.arange((2 << 20) // np.dtype(dtype).itemsize) % 99 + 1).astype(dtype)
    watched = WeightWatch({"w": array.data.cast("B")})
    before = array.copy()
    array[[1, 3]] *= -1  # two signs: their products with odd numbers cancel out
    assert watched.changed() == {"w"}
    array[:] = before
    array[[10, 20]] = array[[20, 10]]
    assert watched.changed() == {"w"}
    array[:] = before
    array[:64] = array[64:128]
    assert watched.changed() == {"w"} or (before[:64] == before[64:128]).all()
    array[:] = before
    assert watched.changed() == frozenset()


def test_nothing_to_watch() -> None:
    assert WeightWatch({}).calls == 0
