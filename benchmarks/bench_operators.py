"""Single operators, compiled and in eager PyTorch: whether ONNX Runtime's kernel, or what an operator is made of, holds PyTorch back.

Each operator is a function of its own, so that the ratio is that of its kernels, with the microseconds of entering compiled code.

Usage: python benchmarks/bench_operators.py [--threads 1] [--only NAME ...] [--sizes 512x1024 64x64] [--quick] [--json FILE]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from measure import Row, Table, called_with, geomean, isolated, parser_for, report, start, take_turns
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_GOAL = 1.15
_TOLERANCE = 1e-4

OPERATORS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "add": lambda x: x + x,
    "amax": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(-1),
    "cat": lambda x: torch.cat([x, x], -1),
    "celu": functional.celu,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "cumsum": lambda x: x.cumsum(-1),
    "div": lambda x: x / 3.7,
    "elu": functional.elu,
    "erf": torch.erf,
    "exp": torch.exp,
    "gather of few": lambda x: x[:, ::64].contiguous(),
    "gelu": functional.gelu,
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "glu": functional.glu,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "hardtanh": functional.hardtanh,
    "huber": lambda x: functional.huber_loss(x, x * 0.5),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "leaky_relu": functional.leaky_relu,
    "log": lambda x: (x.abs() + 1).log(),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsigmoid": functional.logsigmoid,
    "max_pool1d": lambda x: functional.max_pool1d(x[None], 2)[0],
    "mean": lambda x: x.mean(-1),
    "mish": functional.mish,
    "mul": lambda x: x * x,
    "norm": lambda x: x.norm(dim=-1),
    "pow 3": lambda x: x**3,
    "relu": torch.relu,
    "round": torch.round,
    "rsqrt": lambda x: (x * x + 1).rsqrt(),
    "selu": functional.selu,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": functional.silu,
    "sin": torch.sin,
    "softmax": lambda x: x.softmax(-1),
    "softplus": functional.softplus,
    "softsign": functional.softsign,
    "sort": lambda x: x.sort(-1).values,
    "sqrt": lambda x: x.abs().sqrt(),
    "std": lambda x: x.std(-1),
    "sum": lambda x: x.sum(-1),
    "sum of columns": lambda x: x.sum(0),
    "tanh": torch.tanh,
    "topk": lambda x: x.topk(5, -1).values,
    "transposed copy": lambda x: x.T.contiguous(),
    "var": lambda x: x.var(-1),
    "where": lambda x: torch.where(x > 0, x, -x),
}


def row_of(name: str, x: torch.Tensor, *, quick: bool) -> Row:
    """Compiled to eager."""
    eager = OPERATORS[name]
    fast = isolated(eager, "ortlens")
    torch.testing.assert_close(fast(x), eager(x), atol=_TOLERANCE, rtol=_TOLERANCE)
    turns = take_turns(called_with({"ortlens": fast, "eager": eager}, x), quick=quick, rounds=15, turn_ms=10)
    detail = {"us": min(turns.us["ortlens"]), "us of eager": min(turns.us["eager"]), "median ratio": turns.ratio("ortlens", "eager")}
    return Row(name=name, value=turns.ratio_of_minima("ortlens", "eager"), goal=_GOAL, detail=detail)


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--only", nargs="*", choices=tuple(OPERATORS), default=tuple(OPERATORS), metavar="NAME")
    parser.add_argument("--sizes", nargs="*", default=["512x1024"], metavar="ROWSxCOLUMNS")
    options = parser.parse_args()
    start(options)
    tables = []
    for size in options.sizes:
        rows, columns = (8, 128) if options.quick else map(int, size.split("x"))
        x = torch.randn(rows, columns)
        with torch.no_grad():
            made = [row_of(name, x, quick=options.quick) for name in options.only]
        mean = geomean([row.value for row in made])
        remark = f"geometric mean {mean:.2f}; {sum(row.value <= _GOAL for row in made)} of {len(made)} at most {_GOAL} times eager"
        tables.append(Table(title=f"float32 of {rows} x {columns}, shortest calls", rows=made, remarks=[remark]))
    report("single operators", tables, options)


if __name__ == "__main__":
    main()
