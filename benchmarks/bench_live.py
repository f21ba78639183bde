"""What `lens.live()` costs a training loop: blocks of steps with and without it, in turns, on a terminal and in a notebook's kernel.

Under `live()` a thread looks, draws and sends at the default pace. The ratio is the median over pairs of neighbours, which a machine that
becomes slower or busier changes little; the processor time of that thread does not depend on other work at all.

Usage: python benchmarks/bench_live.py [--threads 1] [--quick] [--json FILE] [--steps 1000] [--pairs 10]
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from measure import Row, Table, parser_for, report, start

import ortlens

if TYPE_CHECKING:
    from collections.abc import Iterator

_RATIO, _SHARE = 1.01, 0.01


def measured(steps: int, pairs: int) -> dict[str, Any]:
    """Train in blocks, every second one under `live()`."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    lens = ortlens.Lens()
    compiled = torch.compile(model, backend=lens)
    x, y = torch.randn(64, 128), torch.randint(0, 10, (64,))

    def block() -> tuple[float, float]:
        """Seconds, and the time of other threads as a share of them."""
        began, own, all_ = time.perf_counter(), time.thread_time(), time.process_time()
        for _ in range(steps):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(compiled(x), y).backward()
            optimiser.step()
        wall = time.perf_counter() - began
        return wall, (time.process_time() - all_ - (time.thread_time() - own)) / wall

    def watched() -> tuple[float, float]:
        began = time.perf_counter()
        with lens.live():
            _, others = block()
        return time.perf_counter() - began, others

    block()
    ratios, plain, shares = [], [], []
    for pair in range(pairs):
        first = watched if pair % 2 else block
        one, other = first(), (block if first is watched else watched)()
        without, under = (other, one) if first is watched else (one, other)
        ratios.append(under[0] / without[0])
        shares.append(under[1] - without[1])
        plain.append(without[0] / steps)
    return {"ratios": ratios, "step_us": statistics.median(plain) * 1e6, "thread_share": statistics.median(shares)}


def in_kernel(steps: int, pairs: int, threads: int) -> dict[str, Any]:
    """The same in a kernel, where each look is drawn and sent."""
    folder = str(Path(__file__).parent)
    cell = (
        f"import json, sys, torch\nsys.path.insert(0, {folder!r})\ntorch.set_num_threads({threads})\nfrom bench_live import measured\n"
        f"print('RESULT', json.dumps(measured({steps}, {pairs})))"
    )
    said: list[str] = []
    with _kernel() as client:
        reply = client.execute_interactive(
            cell,
            output_hook=lambda message: said.append(str(message["content"].get("text", ""))),
            timeout=3600,
        )
    if reply["content"]["status"] != "ok":
        raise RuntimeError(f"the cell failed: {reply['content']}")
    found: dict[str, Any] = json.loads("".join(said).partition("RESULT ")[2].splitlines()[0])
    return found


@contextlib.contextmanager
def _kernel() -> Iterator[Any]:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", env=dict(os.environ))
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def rows_of(where: str, found: dict[str, Any]) -> list[Row]:
    """The figures of one place."""
    low, _, high = statistics.quantiles(found["ratios"], n=4)
    detail = {"us per step": found["step_us"], "middle half from": low, "to": high}
    return [
        Row(name=f"{where}, with live() to without", value=statistics.median(found["ratios"]), goal=_RATIO, detail=detail),
        Row(
            name=f"{where}, processor time of its threads per step",
            value=found["thread_share"] * found["step_us"],
            unit="us",
            goal=_SHARE * found["step_us"],
        ),
    ]


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="steps per block (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of blocks (default: %(default)s)")
    options = parser.parse_args()
    start(options)
    steps, pairs = (50, 2) if options.quick else (options.steps, options.pairs)
    rows = [
        *rows_of("terminal", measured(steps, pairs)),
        *rows_of("notebook", in_kernel(steps, pairs, options.threads)),
    ]
    report("Live", [Table(title=f"A training loop of {steps} steps", rows=rows)], options)


if __name__ == "__main__":
    main()
