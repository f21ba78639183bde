"""Comparing every value inside a model with PyTorch's: `lens.verify` to the check that torch's exporter brings.

A stack of Linear layers and Tanh, so that the model has as many values inside as are asked for. Both sides start from a
model that is converted already, and compare the same values in the same process, in turns. `lens.verify` also makes a run
in double precision, which the other does not.

Usage: python benchmarks/bench_verify.py [--threads 1] [--quick] [--json FILE]
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import Any

import torch
import torch.onnx.verification
from measure import Row, Table, parser_for, report, start

import ortlens
from ortlens.analysis.speed import AbTiming
from ortlens.backend.basis.ab_timing import clocked, take_turns

_GOAL = 1 / 20
_VALUES = 50
_WIDTH = 64


def stack(values: int) -> torch.nn.Module:
    """A model whose graph has as many values as asked for, each a tensor of its own."""
    pairs = (module for _ in range(values // 2) for module in (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Tanh()))
    return torch.nn.Sequential(*pairs).eval()


def exported(model: torch.nn.Module, x: torch.Tensor) -> Any:  # noqa: ANN401 - torch's program
    """The model through torch's exporter, which says what it does on the way."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return torch.onnx.export(model, (x,), dynamo=True, verbose=False)


def compared(values: int, rounds: int) -> Row:
    """Both ways on one model, in turns; the first round of each is not counted, since tables are built once per process."""
    model, x = stack(values), torch.randn(8, _WIDTH)
    program = exported(model, x)
    lens = ortlens.explain(model, calls=1)(x)

    def theirs() -> int:
        with contextlib.redirect_stdout(io.StringIO()):
            return len(torch.onnx.verification.verify_onnx_program(program, (x,), compare_intermediates=True))

    def ours() -> int:
        numerics = lens.verify(x)
        if not numerics.ok.all():
            raise AssertionError(lens.summary())
        return int((numerics.scope == "value").sum())

    counts = ours(), theirs()
    times = AbTiming(*take_turns([clocked(theirs), clocked(ours)], fewest=rounds, most=rounds, is_over=lambda: True))
    detail = {"s": times.other_ns / 1e9, "s of the other": times.base_ns / 1e9}
    detail |= {"values": float(counts[0]), "values of the other": float(counts[1])}
    return Row(name=f"{values} values", value=times.ratio, goal=_GOAL, detail=detail)


def main() -> None:
    """Run and print."""
    options = parser_for(__doc__).parse_args()
    start(options)
    with torch.no_grad():
        row = compared(2, 1) if options.quick else compared(_VALUES, 3)
    remark = f"verify_onnx_program(compare_intermediates=True) takes {1 / row.value:,.0f} times as long"
    title = "Every value compared: lens.verify to torch.onnx.verification.verify_onnx_program"
    report("Verifying numbers", [Table(title=title, rows=[row], remarks=[remark])], options)


if __name__ == "__main__":
    main()
