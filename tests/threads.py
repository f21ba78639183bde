"""Runs work in several threads that begin at once, and lets torch compute with a number of its own."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Have torch compute with a number of threads."""
    import torch  # which not everybody who runs threads needs

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(work: Callable[[int], object], count: int = 4) -> None:
    """Call a function with the number of each thread; raise what the first of them raises."""
    barrier = threading.Barrier(count)

    def started(number: int) -> None:
        barrier.wait(timeout=30)
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(started, number) for number in range(count)]:
            done.result(timeout=120)
