"""A random program: plain text in a few parts, so that it can be kept, made smaller, and printed."""

# ruff: noqa: ANN401 - parts of a program are replaced by name

from __future__ import annotations

import dataclasses
import functools
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

PRELUDE = '''\
import math
import torch
from torch._higher_order_ops import scan, while_loop
from torch import nn
from torch.nn import functional as F


SHIFT = [0]  # other values in the same program


def values(seed, *shape, dtype=torch.float32):
    """Quarters between -2 and 2: sums and products of them are exact."""
    made = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed + SHIFT[0]))
    if dtype is torch.bool:
        return made > 0
    if dtype.is_complex:
        return torch.complex(made / 4, made.flip(0) / 2).to(dtype)
    return (made / 4).to(dtype) if dtype.is_floating_point else (made.abs() if dtype is torch.uint8 else made).to(dtype)


def moved_copy(tensor):
    """The same tensor, one element further into a memory of its own."""
    if not isinstance(tensor, torch.Tensor) or tensor.requires_grad or not tensor.numel():
        return tensor
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    room = torch.empty(span + 1, dtype=tensor.dtype)
    room[1:] = tensor.as_strided((span,), (1,))
    return room.as_strided(tensor.shape, tensor.stride(), 1)


def spread(seed, *shape, dtype=torch.float16):
    """Numbers that use all digits of a dtype."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed + SHIFT[0]), dtype=torch.float64) * 4).to(dtype)


def places(seed, *shape):
    """Positions: 0 and 1."""
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed + SHIFT[0]))


def spoilt(tensor, value):
    """The same positions, but for the first."""
    made = tensor.clone()
    made.view(-1)[:1] = value
    return made


def relaid(tensor, way):
    """A tensor of the same sizes that lies otherwise in memory."""
    if way == "permuted":
        back = tuple(range(tensor.dim()))[::-1]
        return tensor.permute(back).contiguous().permute(back)
    if way == "expanded":
        return tensor[:1].contiguous().expand(tensor.shape)
    if way == "contiguous":
        return tensor.contiguous()
    if way == "conjugate":
        return tensor.conj().resolve_conj().conj()
    if way == "negative":
        return torch.complex(tensor, -tensor).conj().imag
    room = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    room[..., 0] = tensor
    return room[..., 0]


def roomy(tensor):
    """The same tensor at the beginning of a larger memory."""
    room = torch.zeros(1000, dtype=tensor.dtype)
    room[: tensor.numel()] = tensor.flatten()
    return room[: tensor.numel()].view(tensor.shape)


def overlapping(tensor, other):
    """A tensor of the other's sizes that begins in the middle of a roomy one."""
    return tensor.as_strided(other.shape, torch.empty(other.shape).stride(), tensor.numel() // 2)


def open_sizes(ins):
    """Says `torch.export` that all sizes vary."""
    return tuple(dict.fromkeys(range(item.dim()), torch.export.Dim.AUTO) if isinstance(item, torch.Tensor) else None for item in ins)


def exported(module, ins, dynamic):
    """The module as an exported program."""
    return torch.export.export(module, tuple(ins), dynamic_shapes=open_sizes(ins) if dynamic else None)


def cond(chosen, first, second, operands):
    """`torch.cond`, and what it means."""
    if torch.compiler.is_compiling():
        return torch.cond(chosen, first, second, operands)
    return first(*operands) if chosen else second(*operands)


def loop(goes_on, step, values):
    """`while_loop`, and what it means."""
    if torch.compiler.is_compiling():
        return while_loop(goes_on, step, values)
    for _ in range(100):
        if not goes_on(*values):
            return tuple(value.clone() for value in values)
        values = step(*values)
    raise RuntimeError("the loop has no end")  # an empty sum stays 0


def scanned(combine, first, items):
    """`scan` over the first dimension, and what it means."""
    if torch.compiler.is_compiling():
        return scan(combine, first, items)
    made = []
    for item in items.unbind():
        first, one = combine(first, item)
        made.append(one)
    return first, torch.stack(made)
'''


@dataclass(frozen=True, kw_only=True)
class Program:
    """A module, its calls, and what happens to its tensors between them.

    Attributes:
        seed: What it was made from; for names only.
        state: Statements of the module's `__init__`; they write to `self`.
        inputs: Name and expression of each argument; an expression may use `n`, `values`, `leaf`, `self` and earlier arguments.
        body: Statements of the function.
        returns: Expressions that it returns.
        steps: What the caller does: `call(5)` calls it with `n = 5`, `other(5)` with other values, `moved(5)` with memory that begins
            elsewhere, `again()` with the same arguments once more, `twice(5)` twice before `backward()`, which sums what the last call
            returned, `threads(5)` from several threads, `given(5, b="a")` with other arguments in place of some, where `spoilt` ones make
            PyTorch raise; `warm()` compiles it anew. Other statements are run under `no_grad` and see `self`, `ins`, `outs`.
        trains: Whether gradients are enabled.
        dynamic: The argument of `torch.compile`.
        marks: Input and dimension that the caller marks as dynamic.
        options: Those of the backend; text that begins with `expr:` is an expression, as for objects.
        captures: Whether Dynamo keeps numbers and sizes that depend on data in the graph.
        road: How it is compiled: `compile`, `frozen`, `loaded` from what a frozen one saved, `exported`.
        default_dtype: That of tensors for which none is said.
        exact: Whether results of 16 bits are those of PyTorch bit by bit, up to one in a hundred.
    """

    seed: int
    state: tuple[str, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    body: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()
    steps: tuple[str, ...] = ("call(5)",)
    trains: bool = False
    dynamic: bool | None = None
    marks: tuple[tuple[str, int], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    captures: bool = False
    road: str = "compile"
    default_dtype: str = "float32"
    exact: bool = False

    def definitions(self) -> str:
        """The module's class and the function, as text."""
        names = ", ".join(name for name, _ in self.inputs)
        lines = ["class Model(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += [f"        {line}" for line in self.state]
        lines += ["", "", f"def function(self, {names}):"]
        lines += [f"    {line}" for line in self.body]
        lines.append(f"    return ({''.join(f'{item}, ' for item in self.returns)})")
        return "\n".join(lines) + "\n"

    def arguments(self) -> str:
        """The function that makes the arguments of a call, as text."""
        lines = [f"    {name} = {expression}" for name, expression in self.inputs]
        names = "".join(f"{name}, " for name, _ in self.inputs)
        return "\n".join(["def arguments(self, n, leaf):", *lines, f"    return [{names}]"]) + "\n"

    def replace(self, **changes: Any) -> Program:
        """A copy with other parts."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> str:
        """One line, for `from_json`."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Read what `to_json` wrote."""
        given = json.loads(text)
        for name in ("state", "body", "returns", "steps"):
            given[name] = tuple(given[name])
        for name in ("inputs", "marks"):
            given[name] = tuple(tuple(pair) for pair in given[name])
        return cls(**given)


def program(*returns: str, **parts: Any) -> Program:
    """Write a program by hand: what it returns, its arguments by their names, and the other parts."""
    inputs = tuple((name, parts.pop(name)) for name in list(parts) if re.fullmatch(r"[a-z](_\d)?", name))
    return Program(seed=0, returns=returns, inputs=inputs, **parts)


strict = functools.partial(program, options={"on_error": "raise"})
"""The same of a program of which nothing may fail."""


def merged(programs: Sequence[Program]) -> Program:
    """Put independent programs into one function, so that they are compiled together; steps that are the same for all are taken once."""
    if len(programs) == 1:
        return programs[0]
    steps = dict.fromkeys(tuple(_renamed(text, part) for text in program.steps) for part, program in enumerate(programs))
    return programs[0].replace(
        state=tuple(_renamed(line, part) for part, program in enumerate(programs) for line in program.state),
        inputs=tuple((f"{name}_{part}", _renamed(text, part)) for part, program in enumerate(programs) for name, text in program.inputs),
        body=tuple(_renamed(line, part) for part, program in enumerate(programs) for line in program.body),
        returns=tuple(_renamed(text, part) for part, program in enumerate(programs) for text in program.returns),
        steps=tuple(text for each in steps for text in each),
        marks=tuple((f"{name}_{part}", dim) for part, program in enumerate(programs) for name, dim in program.marks),
    )


def part_of(program: Program, part: int) -> Program:
    """One part of a merged program, alone."""

    def mine(text: str) -> bool:
        ends = re.findall(r"\b(?:[abcdgikw]|[tm]\d+)_(\d+)\b", text)
        return not ends or str(part) in ends

    held = {"outs": [mine(text) for text in program.returns], "ins": [mine(name) for name, _ in program.inputs]}
    steps = []
    for step in program.steps:
        found = re.match(r"(outs|ins)\[(\d+)\]", step)
        if found is None:
            if mine(step):
                steps.append(re.sub(r"backward\(.*", "backward()", step))
        elif held[found.group(1)][int(found.group(2))]:
            place = sum(held[found.group(1)][: int(found.group(2))])
            steps.append(f"{found.group(1)}[{place}]{step[found.end() :]}")
    return program.replace(
        state=tuple(line for line in program.state if mine(line)),
        inputs=tuple((name, text) for name, text in program.inputs if mine(name)),
        body=tuple(line for line in program.body if mine(line)),
        returns=tuple(text for text in program.returns if mine(text)),
        marks=tuple((name, dim) for name, dim in program.marks if mine(name)),
        steps=tuple(steps),
    )


def _renamed(text: str, part: int) -> str:
    text = re.sub(r"(?<![\w.'])([abcik]|[tm]\d+)\b(?!')", rf"\1_{part}", text)
    return re.sub(r"(?<=self\.)([wbcdg])\b|(?<=buffer\(')(b)\b|(?<=state\(')(b)\b", rf"\g<0>_{part}", text)


CALLS = ("call(", "again(", "other(", "moved(", "twice(", "backward(", "warm(", "threads(", "given(")
"""How steps begin that are no statements about the caller's tensors."""
ROADS = {
    "frozen": "ortlens.freeze(self, *ins, dynamic={dynamic}, options={options})",
    "loaded": "ortlens.load_frozen(ortlens.freeze(self, *ins, dynamic={dynamic}, options={options}).save(tempfile.mkdtemp() + '/frozen'))",
    "exported": "ortlens.Lens(options={options}).compile_exported(exported(self, ins, {dynamic}))",
    "unlifted": "exported(self, ins, {dynamic}).run_decompositions().module()",
}
"""What the first call of a program makes of its module, where that is not `torch.compile`; the last one is the control of the others."""
_SCRIPT = """\
# program {seed}; run it in a checkout of ortlens
from tests.fuzz.oracle import {judge}
from tests.fuzz.program import Program

print({judge}(Program.from_json({text!r})).text())
"""


def script(program: Program, *, graph: bool = False) -> str:
    """A Python program that prints what differs, with the text of the function and of its arguments; a graph is compiled alone."""
    function = "".join(f"# {line}\n" for line in f"{program.definitions()}\n{program.arguments()}".splitlines())
    return _SCRIPT.format(seed=program.seed, judge="judge_graph" if graph else "judge", text=program.to_json()) + function
