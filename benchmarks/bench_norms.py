"""Norms, losses and three dimensions, compiled and in eager PyTorch: where what ONNX has only in parts, or not at all, holds PyTorch back.

Each is a function of volumes of 8 channels, whose sides make 1,024 to 4,194,304 numbers. `dynamo` is the same function compiled by Dynamo
with PyTorch's own kernels: what of the ratio is the way into compiled code.

Usage: python benchmarks/bench_norms.py [--threads 1] [--only NAME ...] [--sides 4 16 64] [--quick] [--json FILE]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from bench_operators import rows_of
from measure import Table, parser_for, report, start
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from measure import Row

_BATCH, _CHANNELS = 2, 8
_MOST, _MOST_OF_LONG, _LONG_US = 3.0, 1.3, 100


def rows(x: torch.Tensor) -> torch.Tensor:
    """View volumes as rows of the numbers of one slice."""
    return x.flatten(3).flatten(0, 2)


def weight(*sizes: int) -> torch.Tensor:
    """Make a weight, the same one for each call."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(1))


KERNELS = {
    "conv": weight(_CHANNELS, _CHANNELS, 3, 3, 3),
    "conv 1": weight(_CHANNELS, _CHANNELS, 5),
    "conv 2": weight(_CHANNELS, _CHANNELS, 3, 5),
}

FUNCTIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "batch_norm in training": lambda x: functional.batch_norm(x, None, None, training=True),
    "group_norm": lambda x: functional.group_norm(x, 2),
    "instance_norm": functional.instance_norm,
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[1:]),
    "layer_norm of rows": lambda x: functional.layer_norm(rows(x), rows(x).shape[1:]),
    "rms_norm of rows": lambda x: functional.rms_norm(rows(x), rows(x).shape[1:]),
    "norm of 1": lambda x: x / rows(x).abs().mean(1).reshape(*x.shape[:3], 1, 1),
    "norm of 2": lambda x: functional.normalize(rows(x)),
    "norm of all": lambda x: x / x.norm(),
    "bce": lambda x: functional.binary_cross_entropy_with_logits(x, x.sigmoid()),
    "cosine": lambda x: 1 - functional.cosine_similarity(rows(x), rows(x) * 0.5 + 1).mean(),
    "cross_entropy": lambda x: functional.cross_entropy(rows(x), rows(x).argmax(1)),
    "hinge": lambda x: (1 - x * x.sign()).clamp(min=0).mean(),
    "kl_div": lambda x: functional.kl_div(rows(x).log_softmax(1), rows(x).softmax(1), reduction="batchmean"),
    "l1": lambda x: functional.l1_loss(x, x * 0.5),
    "mse": lambda x: functional.mse_loss(x, x * 0.5),
    "smooth_l1": lambda x: functional.smooth_l1_loss(x, x * 0.5),
    "triplet": lambda x: functional.triplet_margin_loss(rows(x), rows(x) * 0.9, rows(x).flip(0)),
    "avg_pool3d": lambda x: functional.avg_pool3d(x, 2),
    "conv3d": lambda x: functional.conv3d(x, KERNELS["conv"]),
    "conv3d group_norm": lambda x: functional.group_norm(functional.conv3d(x, KERNELS["conv"]), 2),
    "conv3d relu": lambda x: functional.conv3d(x, KERNELS["conv"]).relu(),
    "conv_transpose3d softmax": lambda x: functional.conv_transpose3d(x, KERNELS["conv"], stride=2).softmax(1),
    "max_pool3d": lambda x: functional.max_pool3d(x, 3, 2, 1),
    "dilated conv1d": lambda x: functional.conv1d(x.flatten(2), KERNELS["conv 1"], stride=3, dilation=4),
    "asymmetric conv_transpose2d": lambda x: functional.conv_transpose2d(x.flatten(3), KERNELS["conv 2"]),
    "cumsum": lambda x: (rows(x) * 2).cumsum(1) + 1,
}


def summary(made: list[Row]) -> list[str]:
    """What is above the goals."""
    noticed = [row.name for row in made if row.value > (_MOST_OF_LONG if row.detail["eager"] >= _LONG_US else _MOST)]
    return [f"above {_MOST_OF_LONG} where eager takes {_LONG_US} us or more, or {_MOST} anywhere: {', '.join(noticed) or 'none'}"]


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--only", nargs="*", choices=tuple(FUNCTIONS), default=tuple(FUNCTIONS), metavar="NAME")
    parser.add_argument("--sides", nargs="*", type=int, default=[4, 16, 64])
    options: Any = parser.parse_args()
    start(options)
    chosen, tables = {name: FUNCTIONS[name] for name in options.only}, []
    for side in [4] if options.quick else options.sides:
        torch.compiler.reset()  # Dynamo would let the sizes vary from the second side on
        x = torch.randn(_BATCH, _CHANNELS, side, side, side)
        made = rows_of(chosen, x, _MOST_OF_LONG, quick=options.quick)
        tables.append(Table(title=f"float32, {x.numel():,} numbers, shortest calls", rows=made, remarks=summary(made)))
    report("norms, losses and three dimensions", tables, options)


if __name__ == "__main__":
    main()
