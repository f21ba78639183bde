"""Makes random programs: each statement is tried in PyTorch, in one environment per size, and kept if it runs in all of them."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tests.fuzz import operations
from tests.fuzz.picker import Picker
from tests.fuzz.program import PRELUDE, Program, merged
from tests.fuzz.world import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fuzz.operations import Template

_MOST_ELEMENTS = 300
_LARGEST = 1e4
_DISCRETE = ("floor", "round", "trunc", "ceil", "sign(", "heaviside", "nextafter", "//", "%", "eq_", "logical_not_", "searchsorted")
_SIZES = ((5, 7), (4, 6), (6, 9, 4), (3, 8), (2, 5), (8, 3), (1, 4), (4, 0, 6))
_BASES = (
    "{s}, n, 4", "{s}, n, 4", "{s}, n, n", "{s}, 3, n", "{s}, 2, n, 3", "{s}, n", "{s}, n", "{s}, 4", "{s}", "{s}, 2, 3, n, 2", "{s}, 4, 4",
    "{s}, 3, 2", "{s}, n, 1", "{s}, 1, n", "{s}, 2 * n, 2", "{s}, 0, n", "{s}, 2, 3, 4, 4",
)  # fmt: skip
_LAYOUTS = (
    "{x}", "{x}", "{x}", "{x}.t()", "{x}.mT", "{x}[1:]", "{x}[:, 1:]", "{x}[..., ::2]", "{x}.expand(2, *{x}.shape)",
    "{x}[None].expand(3, -1, -1)",
    "{x}.contiguous(memory_format=torch.channels_last)", "{x}.permute(*range({x}.dim())[::-1])", "{x}.as_strided((2, 2), (1, 1))",
    "{x}.flatten()[1:]", "{x}[-2:]", "{x}.transpose(0, -1)[..., 1:]", "{x}.unfold(0, 2, 1)", "{x}[..., 1]",
    "{x}.movedim(0, -1)", "{x}.movedim(-1, 0)",
)  # fmt: skip
_DTYPES = ("float32",) * 8 + ("float64", "int64", "int64", "int32", "bool", "float16", "bfloat16", "uint8", "int8")
_STATE = (
    "self.w = nn.Parameter(values({s}, 4, 4))",
    "self.w = nn.Parameter(values({s}, 4))",
    "self.register_buffer('b', values({s}, 4))",
    "self.register_buffer('b', values({s}, 3, 4))",
    "self.register_buffer('b', values({s}, 4, 4).t())",
    "self.register_buffer('b', values({s}, 6, 4)[1:5])",
    "self.register_buffer('b', torch.tensor(0))",
    "self.register_buffer('b', values({s}, 4, dtype=torch.int64))",
    "self.register_buffer('b', values({s}, 1).expand(4))",
    "self.c = values({s}, 4)",
)
_OPTIONS: tuple[dict[str, Any], ...] = (
    {"min_partition_nodes": 2},
    {"min_partition_nodes": 3},
    {"freeze_weights": False},
    {"freeze_weights": True},
    {"preallocate_output": True},
    {"export_options": {"dynamic_shapes": False}},
    {"export_options": {"dynamic_shapes": True}, "preallocate_output": True},
    {"use_aot_autograd": False},
)


@dataclass
class _Draft:
    """A program under construction, with the values that its statements have so far in each environment."""

    draw: random.Random
    program: Program
    sizes: tuple[int, ...]
    scopes: list[dict[str, Any]] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    inexact: set[str] = field(default_factory=set)

    def tensors(self) -> dict[str, torch.Tensor]:
        found = {name: self.scopes[0][name] for name in self.names if isinstance(self.scopes[0].get(name), torch.Tensor)}
        model = self.scopes[0]["self"]
        found |= {f"self.{name}": value for name, value in vars(model).items() if isinstance(value, torch.Tensor)}
        return found | {f"self.{name}": value for name, value in (*model.named_parameters(), *model.named_buffers())}


@dataclass(frozen=True)
class _Settings:
    """What all parts of a program share."""

    trains: bool
    sizes: tuple[int, ...]
    dynamic: bool | None
    captures: bool
    options: dict[str, Any]


def random_program(seed: int, *, cache_dir: str | None = None, parts: int = 1) -> Program:
    """Make a program.

    Args:
        seed: What everything follows from.
        cache_dir: Where programs that use the cache keep their models; None: none does.
        parts: How many independent programs it consists of; they share a function, so that they are compiled at once.

    Returns:
        A program; names of part 2 end in `_2`.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    sizes, dynamic = draw.choice(_SIZES), draw.choice((None, None, False, False, True, True))
    settings = _Settings(
        trains=draw.random() < 0.35,
        sizes=sizes if dynamic is not False else sizes[:1],
        dynamic=dynamic,
        captures=draw.random() < 0.15,
        options=_options(draw, cache_dir),
    )
    made = merged([_part(seed, draw, settings) for _ in range(parts)])
    return _without_refused_steps(made.replace(steps=_steps(draw, made, settings.sizes)))


def _part(seed: int, draw: random.Random, settings: _Settings) -> Program:
    program = Program(
        seed=seed, trains=settings.trains, dynamic=settings.dynamic, captures=settings.captures, options=settings.options, steps=()
    )
    state = {_attribute(line): line.format(s=draw.randrange(100)) for line in draw.choices(_STATE, k=draw.choice((0, 0, 1, 1, 2)))}
    program = program.replace(state=tuple(state.values()))
    draft = _Draft(draw, program.replace(inputs=_inputs(draw, trains=settings.trains)), settings.sizes)
    _open(draft)
    marks = _marks(draft) if draw.random() < 0.1 and settings.dynamic is None else ()
    for _ in range(draw.choice((1, 2, 3, 4, 5, 6, 8, 10))):
        _add_statement(draft)
    return draft.program.replace(body=tuple(draft.body), returns=_returns(draft), marks=marks)


def _attribute(line: str) -> str:
    """The name that a line of `_STATE` gives, without the number of a part."""
    return next(name for name in "wbc" if re.search(rf"self\.{name}\b|self\.{name}_|'{name}['_]", line))


def _marks(draft: _Draft) -> tuple[tuple[str, int], ...]:
    """A dimension that follows from `n`; Dynamo refuses a mark on one that turns out to be fixed."""
    found = []
    for name in draft.names:
        shapes = [scope[name].shape for scope in draft.scopes]
        found += [(name, dim) for dim in range(len(shapes[0])) if len({shape[dim] for shape in shapes}) == len(shapes) > 1]
    return (draft.draw.choice(found),) if found else ()


def _without_refused_steps(program: Program) -> Program:
    """Leave out the steps that PyTorch refuses, such as a write into memory that backward needs."""
    while len(program.steps) > 1:
        notes = run(program)
        if notes.error is None:
            return program
        failed = len(notes.steps)
        program = program.replace(steps=program.steps[:failed] + program.steps[failed + 1 :])
    return program


def _options(draw: random.Random, cache_dir: str | None) -> dict[str, Any]:
    chosen: dict[str, Any] = dict(draw.choice(_OPTIONS)) if draw.random() < 0.3 else {}
    if cache_dir is not None and draw.random() < 0.2:
        chosen["cache_dir"] = cache_dir
    return chosen


def _inputs(draw: random.Random, *, trains: bool) -> tuple[tuple[str, str], ...]:
    made: list[tuple[str, str]] = []
    for name in "abc"[: draw.choice((1, 1, 2, 2, 3))]:
        if made and draw.random() < 0.2:
            other = draw.choice(made)[0]
            made.append((name, draw.choice(_LAYOUTS).format(x=other)))
            continue
        dtype = draw.choice(_DTYPES)
        kind = "" if dtype == "float32" else f", dtype=torch.{dtype}"
        base = f"values({draw.choice(_BASES).format(s=draw.randrange(100))}{kind})"
        laid = draw.choice(_LAYOUTS).format(x=base) if draw.random() < 0.6 else base
        if trains and not kind and draw.random() < 0.75:
            laid = draw.choice((f"leaf({laid})", f"leaf({laid})", f"leaf({laid}) * 1", draw.choice(_LAYOUTS).format(x=f"leaf({base})")))
        made.append((name, laid))
    return tuple(made)


def _open(draft: _Draft) -> None:
    """Make the module and the arguments in every environment; arguments that cannot be made become plain ones."""
    for n in draft.sizes:
        scope: dict[str, Any] = {}
        exec(PRELUDE, scope)  # noqa: S102 - our own text
        exec(draft.program.replace(inputs=()).definitions().split("def function")[0], scope)  # noqa: S102 - same
        scope.update(self=scope["Model"](), n=n, leaf=lambda tensor: tensor.detach().requires_grad_())
        draft.scopes.append(scope)
    made = []
    with torch.set_grad_enabled(draft.program.trains):
        for place, (name, expression) in enumerate(draft.program.inputs):
            tried = (expression, f"values({place}, n, 4)")
            kept = next(
                text for text in tried if all(_runs(f"{name} = {text}", scope) and _is_small(scope[name]) for scope in draft.scopes)
            )
            made.append((name, kept))
            draft.names.append(name)
    draft.program = draft.program.replace(inputs=tuple(made))


def _runs(statement: str, scope: dict[str, Any]) -> bool:
    try:
        exec(statement, scope)  # noqa: S102 - a statement of ours
    except Exception:  # noqa: BLE001 - whatever PyTorch refuses
        return False
    return True


def _is_small(value: Any) -> bool:  # noqa: ANN401 - values of statements
    if isinstance(value, (list, tuple)):
        return all(map(_is_small, value))
    if not isinstance(value, torch.Tensor):
        return True
    if value.numel() > _MOST_ELEMENTS or value.dim() > 5:
        return False
    with torch.no_grad():
        return not value.numel() or float((value.abs() if value.is_signed() else value).max()) <= _LARGEST


_FAMILIES: tuple[tuple[float, str, Sequence[tuple[int, Template]]], ...] = (
    (34, "value", operations.VIEWS),
    (24, "value", operations.FRESH),
    (7, "inexact", operations.INEXACT),
    (4, "value", operations.STAYS),
    (3, "value", operations.SIZED),
    (24, "write", operations.WRITES),
    (3, "two", operations.PARTS),
    (2, "break", ()),
    (2, "chosen", ()),
)
_TRIES = 12


def _add_statement(draft: _Draft) -> None:
    """Try statements until one runs in every environment."""
    for _ in range(_TRIES):
        _, kind, templates = draft.draw.choices(_FAMILIES, [family[0] for family in _FAMILIES])[0]
        if kind == "break":
            draft.body.append("torch._dynamo.graph_break()")
            return
        picker = Picker(draft.draw, draft.tensors())
        statement, targets = _statement(draft, kind, templates, picker)
        if _is_discrete(draft, statement, picker, kind) or (kind == "write" and _writes_to_overlap(draft, picker)):
            continue
        with torch.set_grad_enabled(draft.program.trains):
            torch.manual_seed(0)
            if not all(_runs(statement, scope) for scope in draft.scopes):
                continue
        fine = all(_is_small(scope[name]) for scope in draft.scopes for name in targets)
        if targets and (not fine or not all(isinstance(draft.scopes[0][name], torch.Tensor) for name in targets)):
            continue
        inexact = kind == "inexact" or any(name in draft.inexact for name in picker.used) or "/" in statement or "sin_" in statement
        if inexact and any(not draft.scopes[0][name].is_floating_point() for name in targets):
            continue
        draft.body.append(statement)
        draft.names += [name for name in targets if name not in draft.names]
        if inexact:
            draft.inexact.update((*targets, *(picker.used if kind == "write" else ())))
            if kind == "write":  # it may have reached every view of what it wrote to
                draft.inexact.update(draft.names)
        return


def _statement(draft: _Draft, kind: str, templates: Sequence[tuple[int, Template]], picker: Picker) -> tuple[str, list[str]]:
    count = sum(name.startswith("t") for name in draft.names)
    if kind == "chosen":
        first, second = picker.any(), picker.any()
        return f"t{count} = {first} if {second}.shape[{picker.dim()}] {picker.choice(('> 4', '== 5', '% 2 == 0'))} else {second}", [
            f"t{count}"
        ]
    template = draft.draw.choices([entry[1] for entry in templates], [entry[0] for entry in templates])[0]
    text = template(picker)
    if kind == "write":
        return text, []
    if kind == "two":
        return f"t{count}, t{count + 1} = {text}", [f"t{count}", f"t{count + 1}"]
    if draft.draw.random() < 0.08:
        target = draft.draw.choice(draft.names)  # the name of a value is used for another one
        return f"{target} = {text}", [target]
    return f"t{count} = {text}", [f"t{count}"]


def _is_discrete(draft: _Draft, statement: str, picker: Picker, kind: str) -> bool:
    """Whether a statement jumps where its operands are rounded: then what is compared would be noise."""
    if not draft.inexact.intersection(picker.used):
        return False
    tensors = draft.tensors()
    written = kind == "write" and any(not tensors[name].is_floating_point() for name in picker.used if name in tensors)
    return written or any(word in statement for word in _DISCRETE) or any(sign in statement for sign in (" > ", "<=", "==", "!=", ">="))


def _writes_to_overlap(draft: _Draft, picker: Picker) -> bool:
    """Whether a statement may write to an argument whose elements share memory: what PyTorch gives then is not defined."""
    tensors = draft.tensors()
    given = [value for name, value in tensors.items() if not name.startswith("t")]
    bases = {value.untyped_storage().data_ptr() for value in given if _overlaps(value)}
    return any(tensors[name].untyped_storage().data_ptr() in bases or _overlaps(tensors[name]) for name in picker.used if name in tensors)


def _overlaps(value: torch.Tensor) -> bool:
    """Whether two elements of a tensor lie at the same place."""
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(value.shape, value.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return len(places.flatten().unique()) < places.numel()


def _returns(draft: _Draft) -> tuple[str, ...]:
    draw, names = draft.draw, list(draft.tensors())
    late = names[-3:] if draw.random() < 0.7 else []
    chosen = [*late, *(draw.choice(names) for _ in range(draw.choice((0, 1, 1, 2, 3))))]
    made = []
    for name in chosen or names[-1:]:
        value = draft.tensors()[name]
        kind = draw.random()
        if kind < 0.06 and value.dim():
            made.append(f"{name}.shape[{draw.randrange(value.dim())}]")
        elif kind < 0.16:
            picker = Picker(draw, {name: value})
            template = draw.choices([entry[1] for entry in operations.VIEWS], [entry[0] for entry in operations.VIEWS])[0]
            text = template(picker)
            made.append(text if all(_runs(f"_ = {text}", scope) for scope in draft.scopes) else name)
        else:
            made.append(name)
    draw.shuffle(made)
    return tuple(made)


def _steps(draw: random.Random, program: Program, sizes: tuple[int, ...]) -> tuple[str, ...]:
    """What the caller does. It writes into what it holds, changes weights, and calls again with what it has left."""
    steps: list[str] = []
    backs = program.trains and draw.random() < 0.8
    for place, n in enumerate(sizes):
        steps.append(f"call({n})")
        if backs:
            steps.append(f"backward({draw.choice(('', '', '', '0', '0, 1', '1'))})")
        steps += [_writes(draw, program) for _ in range(draw.choice((0, 0, 1, 2)))]
        if place == 0 or draw.random() < 0.3:
            steps += _changes(draw, program)
            steps.append(draw.choice(("again()", f"call({n})")))
            steps += [_writes(draw, program) for _ in range(draw.choice((0, 1)))]
    if "cache_dir" in program.options and draw.random() < 0.6:
        steps += ["warm()", f"call({sizes[0]})", *_changes(draw, program), f"call({sizes[0]})"]
    if draw.random() < 0.03 and not program.trains:
        steps.append(f"threads({sizes[0]})")
    return tuple(steps)


def _changes(draw: random.Random, program: Program) -> list[str]:
    """The caller changes weights and other tensors of the module, each in one of the ways that people use."""
    names = [_attribute(line) for line in program.state]
    ends = [(re.findall(r"[wbc](_\d+)", line) or [""])[0] for line in program.state]
    made = [draw.choice(_CHANGES[name]).format(w=f"self.{name}{end}", s=draw.randrange(100)) for name, end in zip(names, ends, strict=True)]
    made = [text for text in made if draw.random() < 0.6]
    return [*made, draw.choice(_CHANGES_OF_ALL)] if made and draw.random() < 0.15 else made


def _writes(draw: random.Random, program: Program) -> str:
    """The caller writes into something that it holds; the index may name a plain value, which is left alone."""
    name = draw.choice(("outs", "outs", "ins"))
    place = draw.randrange(len(program.returns if name == "outs" else program.inputs))
    return f"{name}[{place}].{draw.choice(('zero_()', 'fill_(3)', 'mul_(2)', 'add_(1)'))}"


_CHANGES_OF_ALL = (
    "self.load_state_dict({name: value + 1 for name, value in self.state_dict().items()})",
    "self.load_state_dict({name: value.clone() * 2 for name, value in self.state_dict().items()}, assign=True)",
    "self.double()",
    "self.eval()",
)
_CHANGES = {
    "w": (
        "{w}.add_(1)",
        "{w}.data.mul_(2)",
        "{w}.data = values({s}, *{w}.shape)",
        "{w} = nn.Parameter(values({s}, *{w}.shape))",
        "{w}.set_(values({s}, *{w}.shape))",
        "{w}.detach().numpy()[...] += 1",
        "{w}.requires_grad_(not {w}.requires_grad)",
        "{w}[0].zero_()",
        "{w}.data[-1] = 7",
    ),
    "b": (
        "{w}.add_(1)",
        "{w}.zero_()",
        "{w} = values({s}, *{w}.shape, dtype={w}.dtype)",
        "{w}.copy_(values({s}, *{w}.shape))",
        "{w}.numpy()[...] += 1",
        "{w}.view(-1)[0] = 5",
        "{w}.data = {w}.data + 1",
    ),
    "c": ("{w} = values({s}, 4)", "{w}.mul_(2)", "{w} = {w} + 1"),
}
