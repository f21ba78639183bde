"""Single operators, compiled and in eager PyTorch: whether ONNX Runtime's kernel, or what an operator is made of, holds PyTorch back.

Each operator is a function of its own. `dynamo` is the same function compiled by Dynamo with PyTorch's own kernels: what of the ratio
is the way into compiled code. The times of `ortlens/backend/partitioning/kernel_times.py` come from runs of 1024x1024 with `--everywhere`,
which sends all to ONNX Runtime.

Usage: python benchmarks/bench_operators.py [--threads 1] [--only NAME ...] [--sizes 1024x1024 64x64] [--everywhere] [--quick] [--json FILE]
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import torch
from measure import Row, Table, called_with, geomean, isolated, parser_for, report, start, take_turns
from torch.nn import functional

from ortlens.backend import planner
from ortlens.backend.partitioning import support

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_GOAL = 1.15
_TOLERANCE = 1e-4
_NOTICED, _NOTICED_US = 1.3, 100


def images(x: torch.Tensor) -> torch.Tensor:
    """View the numbers as images of 4 channels of 32 x 32; there are 4096 of them, or a multiple."""
    return x.reshape(-1, 4, 32, 32)


def causal_attention(x: torch.Tensor) -> torch.Tensor:
    """Attention of as many rows as the numbers have columns, each with its own and earlier ones."""
    return functional.scaled_dot_product_attention(x, x, x, is_causal=True)


OPERATORS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "add": lambda x: x + x,
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "amax": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(-1),
    "atanh": lambda x: (x * 0.1).atanh(),
    "avg_pool2d": lambda x: functional.avg_pool2d(images(x), 2),
    "bicubic": lambda x: functional.interpolate(images(x), scale_factor=2, mode="bicubic"),
    "bilinear": lambda x: functional.interpolate(images(x), scale_factor=2, mode="bilinear"),
    "bucketize": lambda x: torch.bucketize(x, torch.linspace(-3, 3, 20)),
    "cat": lambda x: torch.cat([x, x], -1),
    "causal attention": lambda x: causal_attention(x.reshape(1, -1, x.shape[-1], 64)),
    "celu": functional.celu,
    "circular padding": lambda x: functional.pad(images(x), (1, 1, 1, 1), mode="circular"),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "conversion": lambda x: x.to(torch.int64),
    "cumsum": lambda x: x.cumsum(-1),
    "div": lambda x: x / 3.7,
    "double": lambda x: x.double().softmax(-1),
    "elu": functional.elu,
    "erf": torch.erf,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "fmod": lambda x: torch.fmod(x, 1.5),
    "gather": lambda x: x.gather(-1, x.argsort(-1)),
    "gather of few": lambda x: x[:, ::64].contiguous(),
    "gelu": functional.gelu,
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "glu": functional.glu,
    "group_norm": lambda x: functional.group_norm(images(x), 2),
    "hardshrink": functional.hardshrink,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "hardtanh": functional.hardtanh,
    "huber": lambda x: functional.huber_loss(x, x * 0.5),
    "index_select of columns": lambda x: x.index_select(1, torch.arange(0, x.shape[1], 2)),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "leaky_relu": functional.leaky_relu,
    "lerp": lambda x: torch.lerp(x, x, 0.3),
    "log": lambda x: (x.abs() + 1).log(),
    "log2": lambda x: (x.abs() + 1).log2(),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logaddexp": lambda x: torch.logaddexp(x, x),
    "logsigmoid": functional.logsigmoid,
    "max_pool1d": lambda x: functional.max_pool1d(x[None], 2)[0],
    "maximum of all": torch.max,
    "mean": lambda x: x.mean(-1),
    "median": lambda x: x.median(-1).values,
    "mish": functional.mish,
    "mul": lambda x: x * x,
    "nan_to_num": torch.nan_to_num,
    "nearest": lambda x: functional.interpolate(images(x), scale_factor=2),
    "norm": lambda x: x.norm(dim=-1),
    "norm of all": torch.linalg.vector_norm,
    "pad": lambda x: functional.pad(images(x), (1, 1, 1, 1)),
    "pow 3": lambda x: x**3,
    "pow 4": lambda x: x**4,
    "product": lambda x: x @ x.T,
    "reciprocal power": lambda x: (x.abs() + 1) ** -1,
    "relu": torch.relu,
    "roll": lambda x: x.roll(3, -1),
    "round": torch.round,
    "rsqrt": lambda x: (x * x + 1).rsqrt(),
    "selu": functional.selu,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": functional.silu,
    "sin": torch.sin,
    "softmax": lambda x: x.softmax(-1),
    "softplus": functional.softplus,
    "softshrink": functional.softshrink,
    "softsign": functional.softsign,
    "sort": lambda x: x.sort(-1).values,
    "sqrt": lambda x: x.abs().sqrt(),
    "std": lambda x: x.std(-1),
    "sum": lambda x: x.sum(-1),
    "sum of columns": lambda x: x.sum(0),
    "sum of whole numbers": lambda x: x.to(torch.int64).sum(-1),
    "tan": torch.tan,
    "tanh": torch.tanh,
    "threshold": lambda x: functional.threshold(x, 0.1, 20.0),
    "topk": lambda x: x.topk(5, -1).values,
    "transposed copy": lambda x: x.T.contiguous(),
    "unfold": lambda x: functional.unfold(images(x), 3, padding=1),
    "var": lambda x: x.var(-1),
    "where": lambda x: torch.where(x > 0, x, -x),
}


def rows_of(functions: Mapping[str, Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor, goal: float, *, quick: bool) -> list[Row]:
    """Compiled to eager, and to what Dynamo compiles without a backend; nothing needs a gradient."""
    with torch.no_grad():
        return [_row_of(name, eager, x, goal, quick=quick) for name, eager in functions.items()]


def _row_of(name: str, eager: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, goal: float, *, quick: bool) -> Row:
    fast = isolated(eager, "ortlens")
    torch.testing.assert_close(fast(x), eager(x), atol=_TOLERANCE, rtol=_TOLERANCE)
    turns = take_turns(
        called_with({"ortlens": fast, "eager": eager, "dynamo": isolated(eager, "eager")}, x), quick=quick, rounds=15, turn_ms=10
    )
    detail = {way: min(turns.us[way]) for way in ("ortlens", "eager", "dynamo")}
    detail["to dynamo"] = turns.ratio_of_minima("ortlens", "dynamo")
    return Row(name=name, value=turns.ratio_of_minima("ortlens", "eager"), goal=goal, detail=detail)


def send_everything_to_onnx_runtime() -> None:
    """Leave nothing to PyTorch for its speed, so that the times are those of ONNX Runtime's kernels."""
    places = ((support, "_loses"), (support.operators, "slow_for"), (planner, "if_slower"), (planner, "slower_in_parts"))
    for module, name in places:
        mock.patch.object(module, name, return_value=None).start()


def summary(rows: list[Row]) -> list[str]:
    """Geometric means, and what is slow enough and far enough from eager to be noticed."""
    to_eager, to_dynamo = geomean([row.value for row in rows]), geomean([row.detail["to dynamo"] for row in rows])
    noticed = [row.name for row in rows if row.value > _NOTICED and row.detail["eager"] >= _NOTICED_US]
    met = sum(row.value <= _GOAL for row in rows)
    return [
        f"geometric mean {to_eager:.2f} of eager, {to_dynamo:.2f} of Dynamo alone; {met} of {len(rows)} meet the goal",
        f"above {_NOTICED} where eager takes {_NOTICED_US} us or more: {', '.join(noticed) or 'none'}",
    ]


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--only", nargs="*", choices=tuple(OPERATORS), default=tuple(OPERATORS), metavar="NAME")
    parser.add_argument("--sizes", nargs="*", default=["512x1024"], metavar="ROWSxCOLUMNS")
    parser.add_argument("--everywhere", action="store_true", help="leave nothing to PyTorch for its speed")
    options = parser.parse_args()
    start(options)
    if options.everywhere:
        send_everything_to_onnx_runtime()
    tables = []
    for size in options.sizes:
        rows, columns = (64, 64) if options.quick else map(int, size.split("x"))
        chosen = {name: OPERATORS[name] for name in options.only}
        made = rows_of(chosen, torch.randn(rows, columns), _GOAL, quick=options.quick)
        tables.append(Table(title=f"float32 of {rows} x {columns}, shortest calls", rows=made, remarks=summary(made)))
    report("single operators", tables, options)


if __name__ == "__main__":
    main()
