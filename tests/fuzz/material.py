"""What random programs are made of: sizes, arguments, the module's tensors, and options of the backend."""

import random
import re
from collections.abc import Mapping
from typing import Any

import torch

SIZES = ((5, 7), (4, 6), (6, 9, 4), (3, 8), (2, 5), (8, 3), (1, 4), (4, 0, 6))
_BASES = (
    "{s}, n, 4", "{s}, n, 4", "{s}, n, n", "{s}, 3, n", "{s}, 2, n, 3", "{s}, n", "{s}, n", "{s}, 4", "{s}", "{s}, 2, 3, n, 2", "{s}, 4, 4",
    "{s}, 3, 2", "{s}, n, 1", "{s}, 1, n", "{s}, 2 * n, 2", "{s}, 0, n", "{s}, 2, 3, 4, 4",
)  # fmt: skip
LAYOUTS = (
    "{x}", "{x}", "{x}", "{x}.t()", "{x}.mT", "{x}[1:]", "{x}[:, 1:]", "{x}[..., ::2]", "{x}.expand(2, *{x}.shape)",
    "{x}[None].expand(3, -1, -1)",
    "{x}.contiguous(memory_format=torch.channels_last)", "{x}.permute(*range({x}.dim())[::-1])", "{x}.as_strided((2, 2), (1, 1))",
    "{x}.flatten()[1:]", "{x}[-2:]", "{x}.transpose(0, -1)[..., 1:]", "{x}.unfold(0, 2, 1)", "{x}[..., 1]",
    "{x}.movedim(0, -1)", "{x}.movedim(-1, 0)",
)  # fmt: skip
_DTYPES = ("float32",) * 10 + ("float64", "int64", "int64", "int32", "int32", "bool", "float16", "bfloat16", "uint8", "int8", "complex64")
_NUMBERS = ("n", "n", "n + 1", "-n", "n - 6", "-7 * n", "208067 + n", "2**33 + n", "n / 2", "0.25 * n", "2.5", "3", "n > 4", "True")
LARGE = "values(1, 2, 300, 256)"
"""Worth writing in place."""
WAYS = (
    "expanded", "permuted", "permuted", "strided", "strided", "contiguous", "conjugate", "negative",
)  # fmt: skip
_STATE = (
    "self.w = nn.Parameter(values({s}, 4, 4))",
    "self.w = nn.Parameter(values({s}, 4, 4).t())",
    "self.w = nn.Parameter(values({s}, 4))",
    "self.w = nn.Parameter(values({s}, 6, 4)[2:])",
    "self.w = nn.Parameter(values({s}, 8)[1::2], requires_grad=False)",
    "self.w = nn.Parameter(values({s}, 300, 4))",
    "self.w = nn.Parameter(values({s}, 4, 4)); self.c = self.w.detach()[1:]",
    "self.register_buffer('b', values({s}, 4))",
    "self.register_buffer('b', values({s}, 3, 4))",
    "self.register_buffer('b', values({s}, 4, 4).t())",
    "self.register_buffer('b', values({s}, 6, 4)[1:5])",
    "self.register_buffer('b', values({s}, 9)[5:])",
    "self.register_buffer('b', torch.tensor(0))",
    "self.register_buffer('b', values({s}, 4, dtype=torch.int64))",
    "self.register_buffer('b', values({s}, 4, 4, dtype=torch.int32))",
    "self.register_buffer('b', values({s}, 4, dtype=torch.bool))",
    "self.register_buffer('b', values({s}, 0, 4, dtype=torch.float64))",
    "self.register_buffer('b', values({s}, 1).expand(4))",
    "self.c = values({s}, 4)",
    "self.d = nn.Dropout(0.5)",
    "self.g = nn.BatchNorm1d(4)",
)
_OPTIONS: tuple[dict[str, Any], ...] = (
    {"min_partition_nodes": 2},
    {"min_partition_nodes": 3},
    {"freeze_weights": False},
    {"freeze_weights": True},
    {"preallocate_output": True},
    {"export_options": {"dynamic_shapes": False}},
    {"export_options": {"dynamic_shapes": True}, "preallocate_output": True},
    {"export_options": {"opset_version": 20}},
    {"use_aot_autograd": False},
    {"preferred_execution_providers": ["CPUExecutionProvider"]},
    {"infer_execution_providers": False, "default_execution_providers": [["CPUExecutionProvider", {}]]},
    {"ort_session_options": 'expr:__import__("onnxruntime").SessionOptions()'},
    {"pre_ort_model_transforms": "expr:[lambda model: model]"},
    {"custom_translation_table": 'expr:{torch.ops.aten.tanh.default: lambda x: __import__("onnxscript").opset18.Tanh(x)}'},
    {"on_error": "raise"},
    {"upcast": ["bfloat16", "float16"]},
)
"""Text that begins with `expr:` is an expression: objects have no place in JSON."""


def options(draw: random.Random, cache_dir: str | None) -> dict[str, Any]:
    """Options of the backend; half of the programs have none."""
    chosen: dict[str, Any] = dict(draw.choice(_OPTIONS)) if draw.random() < 0.4 else {}
    if chosen and draw.random() < 0.2:
        chosen |= draw.choice(_OPTIONS)
    if cache_dir is not None and draw.random() < 0.2:
        chosen["cache_dir"] = cache_dir
    if cache_dir is not None and draw.random() < 0.02:
        chosen["dump_path"] = f"{cache_dir}/dump"
    return chosen


def others(draw: random.Random, given: Mapping[str, Any], buffer: torch.Tensor | None) -> tuple[str, ...]:
    """Arguments in place of some, as `given` takes them: in other memory, in memory that they share, or such that PyTorch raises."""
    made = []
    for name, value in given.items():
        if type(value) is int:
            made += [f'{name}="{number}"' for number in (-3, 8, 0, 2**31 + 1)]
        if not isinstance(value, torch.Tensor):
            continue
        if name[0] == "i":
            made += [f'{name}="spoilt({name}, {number})"' for number in draw.sample((-1, 99, -99, 2, -3), 2)]
            continue
        ways = [way for way in WAYS if value.dtype.is_complex == (way == "conjugate") or way not in ("conjugate", "negative")]
        made += [f"{name}=\"relaid({name}, '{way}')\"" for way in draw.sample(ways, 2)]
        if buffer is not None and (buffer.shape, buffer.dtype) == (value.shape, value.dtype):
            made.append(f"{name}=\"state('b')\"")
        for other, theirs in given.items():
            if other == name or not isinstance(theirs, torch.Tensor) or theirs.dtype != value.dtype:
                continue
            if theirs.shape == value.shape:
                made += [f'{other}="{name}"'] * 2
            elif theirs.shape == value.shape[1:]:
                made.append(f'{other}="{name}[0]"')
            made.append(f'{name}="roomy({name})", {other}="overlapping({name}, {other})"')
    return tuple(made)


def inputs(draw: random.Random, *, trains: bool, places: bool = False, on_road: bool = False) -> tuple[tuple[str, str], ...]:
    """Names and expressions of arguments: tensors, some of them views of others, and now and then a Python number."""
    made: list[tuple[str, str]] = []
    for name in "abc"[: draw.choice((1, 1, 2, 2, 3))]:
        if made and draw.random() < 0.2:
            other = draw.choice(made)[0]
            made.append((name, draw.choice(LAYOUTS).format(x=other)))
            continue
        if made and on_road and draw.random() < 0.5:
            made.append((name, re.sub(r"(?<=values\()\d+", str(draw.randrange(100)), made[0][1])))
            continue
        dtype = draw.choice(_DTYPES)
        kind = "" if dtype == "float32" else f", dtype=torch.{dtype}"
        base = f"values({draw.choice(_BASES).format(s=draw.randrange(100))}{kind})"
        if draw.random() < 0.04:
            base = f"values({draw.randrange(100)}, 2, 3, n, 2{kind}).contiguous(memory_format=torch.channels_last)"
        laid = draw.choice(LAYOUTS).format(x=base) if draw.random() < 0.6 else base
        if trains and not kind and draw.random() < 0.75:
            laid = draw.choice((f"leaf({laid})", f"leaf({laid})", f"leaf({laid}) * 1", draw.choice(LAYOUTS).format(x=f"leaf({base})")))
        made.append((name, laid))
    if places and draw.random() < 0.8:
        made = [*[item for item in made if item[0] != "c"], ("c", LARGE)]
    if places:
        made.append(("i", f"places({draw.randrange(100)}, {draw.choice(('3', '3', 'n', '2, 2', '2', '4'))})"))
    if draw.random() < 0.2:
        made.append(("k", draw.choice(("3", "-5", "0.3") if on_road else _NUMBERS)))
    return tuple(made)


_IMAGES = (
    "{s}, 2, 4, n, 2",
    "{s}, n, 4, 2, 2",
    "{s}, 1, 3, n, 4",
    "{s}, 2, 1, n, 3",
    "{s}, 2, 4, 1, n",
    "{s}, 1, 4, 1, 1",
    "{s}, 2, 2, 2, n, 2",
)
_ORDERS = (
    *("{x}.contiguous(memory_format={f})", "{x}.contiguous(memory_format={f})", "{x}.contiguous(memory_format={f})[:1]"),
    *("{x}.contiguous(memory_format={f})[:, :1]", "{x}.contiguous(memory_format={f})[..., :1]", "{x}", "{x}.transpose(0, 1)", "{x}.mT"),
    *("{x}[:1].expand({x}.shape)", "{x}.permute(*range({x}.dim())[::-1])", "{x}.transpose(1, -1)"),
)


def images(draw: random.Random, *, trains: bool) -> tuple[tuple[str, str], ...]:
    """Arguments that are images or volumes, in one of the orders in which they may lie in memory."""
    made = []
    for name in "ab"[: draw.choice((1, 2))]:
        base = draw.choice(_IMAGES).format(s=draw.randrange(100))
        layout = "torch.channels_last_3d" if base.count(",") > 4 else "torch.channels_last"
        laid = draw.choice(_ORDERS).format(x=f"values({base})", f=layout)
        made.append((name, f"leaf({laid})" if trains and draw.random() < 0.5 else laid))
    return tuple(made)


def state(draw: random.Random) -> tuple[str, ...]:
    """Statements of the module's `__init__`, each for a name of its own."""
    lines = draw.choices(_STATE, k=draw.choice((0, 1, 1, 1, 2)))
    return tuple({attribute(line): line.format(s=draw.randrange(100)) for line in lines}.values())


def attribute(line: str) -> str:
    """The name that a statement of `state` gives."""
    return next(name for name in "wbcdg" if re.search(rf"self\.{name}\b|self\.{name}_|'{name}['_]", line))
