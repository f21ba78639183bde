"""Makes random programs: each statement is tried in PyTorch, in one environment per size, and kept if it runs in all of them."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.fuzz import aten, caller, material, operations
from tests.fuzz.operations import Template
from tests.fuzz.picker import Picker
from tests.fuzz.program import PRELUDE, ROADS, Program, merged
from tests.fuzz.refused import is_defined, is_refused, is_unknown
from tests.fuzz.world import run

_MOST_ELEMENTS = 300
_LARGEST = 1e4
_LARGEST_NUMBER = 2**60
_LARGEST_SUM = 2**20
"""Of floats; a larger one may be rounded on the way."""
GRAPH_PARTS = 16


@dataclass
class Draft:
    """A program under construction, with the values that its statements have so far in each environment."""

    draw: random.Random
    program: Program
    sizes: tuple[int, ...]
    breaks: bool
    graphs: bool = False
    scopes: list[dict[str, Any]] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    inexact: set[str] = field(default_factory=set)
    large: set[str] = field(default_factory=set)
    """Whole numbers so large that nothing is computed from them."""

    def numbers(self) -> dict[str, Any]:
        return {name: self.scopes[0][name] for name in self.names if not isinstance(self.scopes[0].get(name), torch.Tensor)}

    def tensors(self, *, large: bool = False) -> dict[str, torch.Tensor]:
        names = [name for name in self.names if large or name not in self.large]
        found = {name: self.scopes[0][name] for name in names if isinstance(self.scopes[0].get(name), torch.Tensor)}
        model = self.scopes[0]["self"]
        found |= {f"self.{name}": value for name, value in vars(model).items() if isinstance(value, torch.Tensor)}
        found |= {f"self.{name}": value for name, value in (*model.named_parameters(), *model.named_buffers())}
        return {name: value for name, value in found.items() if "self.g." not in name or "running_mean" in name}  # one of five


@dataclass(frozen=True)
class _Settings:
    """What all parts of a program share."""

    trains: bool
    sizes: tuple[int, ...]
    dynamic: bool | None
    captures: bool
    options: dict[str, Any]
    breaks: bool
    graphs: bool
    kind: str
    default_dtype: str


_KINDS = (
    ("plain", 32, 80), ("frozen", 32, 0), ("loaded", 2, 0), ("exported", 13, 0), ("raises", 16, 10), ("exact", 5, 10),
)  # fmt: skip
"""What functions are made for, how many in a hundred, and the same of those that are judged as graphs."""
_DEFAULT_DTYPES = ("float64", "float64", "float16", "bfloat16")


def _kind(seed: int, *, graphs: bool) -> str:
    draw = random.Random(f"kind {seed}")  # noqa: S311 - no secret
    return draw.choices([kind for kind, *_ in _KINDS], [weights[graphs] for _, *weights in _KINDS])[0]


def parts_of(seed: int, *, graphs: bool = False, reshapes: bool = False) -> int:
    """How many programs share a function."""
    if reshapes:
        return GRAPH_PARTS if graphs else 8
    if seed % 8 == 0:
        return 1
    if graphs:
        return GRAPH_PARTS
    kind = _kind(seed, graphs=graphs)
    return 1 if kind in ROADS else 4 if _breaks(seed) or kind == "raises" else 8


def _breaks(seed: int) -> bool:
    return _kind(seed, graphs=False) in ("plain", "raises") and random.Random(f"breaks {seed}").random() < 0.3  # noqa: S311 - no secret


def random_program(seed: int, *, cache_dir: str | None = None, parts: int = 1, graphs: bool = False, reshapes: bool = False) -> Program:
    """Make a program; with `reshapes`, one that writes into what is reshaped, or each part of it does."""
    draw = random.Random(f"graph {seed}" if graphs else seed)  # noqa: S311 - no secret
    sizes = draw.choice(material.SIZES)
    kind = "reshapes" if reshapes else _kind(seed, graphs=graphs)
    dynamic = draw.choice((None, True, *[False] * 30) if graphs else (None, None, False, False, True, True))
    if kind in ROADS:
        dynamic = draw.random() < 0.6
    own = not graphs and kind in ("plain", "raises", "reshapes")
    settings = _Settings(
        trains=draw.random() < 0.35 and own,
        sizes=sizes if dynamic is not False else sizes[:1],
        dynamic=dynamic,
        captures=draw.random() < 0.15 and own,
        options={} if graphs and seed % 4 else material.options(draw, cache_dir),
        breaks=_breaks(seed) and not graphs and not reshapes,
        graphs=graphs,
        kind=kind,
        default_dtype=draw.choice(_DEFAULT_DTYPES) if draw.random() < 0.2 and kind == "plain" else "float32",
    )
    torch.set_default_dtype(getattr(torch, settings.default_dtype))
    try:
        made = merged([(_exact_part if kind == "exact" else _part)(seed, draw, settings) for _ in range(parts)])
    finally:
        torch.set_default_dtype(torch.float32)
    steps = caller.few_steps if graphs else caller.steps
    return _without_refused_steps(made.replace(steps=steps(draw, made, settings.sizes)))


def _empty(seed: int, settings: _Settings) -> Program:
    return Program(
        seed=seed,
        trains=settings.trains,
        dynamic=settings.dynamic,
        captures=settings.captures,
        options=settings.options,
        steps=(),
        road=settings.kind if settings.kind in ROADS else "compile",
        default_dtype=settings.default_dtype,
        exact=settings.kind == "exact",
    )


def _exact_part(seed: int, draw: random.Random, settings: _Settings) -> Program:
    """One operator on a tensor of 16 bits and a Python number."""
    dtype = draw.choice(("float16", "float16", "float16", "bfloat16"))
    program = _empty(seed, settings).replace(inputs=(("a", f"spread({draw.randrange(100)}, n, 30, dtype=torch.{dtype})"),))
    draft = Draft(draw, program, settings.sizes, breaks=False, graphs=settings.graphs)
    _open(draft)
    templates = [template for _, template in operations.EXACT], [weight for weight, _ in operations.EXACT]
    for _ in range(_TRIES):
        text = draw.choices(*templates)[0](Picker(draw, draft.tensors()))
        if all(_runs(f"_ = {text}", scope) for scope in draft.scopes):
            return program.replace(returns=(text,))
    return program.replace(returns=("a",))


def _part(seed: int, draw: random.Random, settings: _Settings) -> Program:
    places = settings.kind == "raises"
    program = _empty(seed, settings)
    if settings.kind == "reshapes":
        program = program.replace(inputs=material.images(draw, trains=settings.trains))
    else:
        inputs = material.inputs(draw, trains=settings.trains, places=places, on_road=program.road != "compile")
        program = program.replace(state=material.state(draw), inputs=inputs)
    if settings.graphs:
        program = program.replace(state=tuple(line for line in program.state if "self.g" not in line))  # a graph has no modules
        program = _without_shared_memory(program)
    draft = Draft(draw, program, settings.sizes, breaks=settings.breaks, graphs=settings.graphs)
    _open(draft)
    given = {name: draft.scopes[0][name] for name, _ in draft.program.inputs}
    marks = _marks(draft) if draw.random() < 0.1 and settings.dynamic is None else ()
    if settings.kind == "reshapes":
        for families in (*[_RESHAPED[:-1]] * draw.choice((0, 1, 1, 2)), _RESHAPED[-1:], *[_RESHAPED] * draw.choice((0, 0, 1, 2))):
            _add_statement(draft, families)
    else:
        for _ in range(draw.choice((1, 2, 3, 4, 5, 6, 8, 10))):
            _add_statement(draft, _families(draft))
    buffer = getattr(draft.scopes[0]["self"], "b", None)
    others = (
        () if settings.trains and not places else material.others(draw, given, buffer if buffer is not None and buffer._version else None)
    )
    others = tuple(text for text in others if not settings.trains or "spoilt(" in text)
    if settings.graphs:  # who resolves signs in memory are the callers of graphs
        others = tuple(text for text in others if not re.search("negative|conjugate", text))
    returns = _returns(draft)
    if settings.kind == "reshapes":  # both what was written to and what may lie in the same memory
        returns += tuple(name for name in draft.names if name not in returns)
    return draft.program.replace(body=tuple(draft.body), returns=returns, marks=marks, steps=others)


def _without_shared_memory(program: Program) -> Program:
    """Give arguments and tensors of the module that are views of others a memory of their own."""
    inputs = tuple((name, f"moved_copy({text})" if re.match(r"[abc]\b", text) else text) for name, text in program.inputs)
    fixed = re.compile(r"(?<=Parameter\()(.*?)(, requires_grad=False)?\)$")  # the caller writes to weights that functions return
    state = (fixed.sub(r"\1, requires_grad=False)", line.split("; self.c")[0]) for line in program.state)
    return program.replace(inputs=inputs, state=tuple(state))


def _marks(draft: Draft) -> tuple[tuple[str, int], ...]:
    """A dimension that follows from `n`; Dynamo refuses a mark on one that turns out to be fixed."""
    found = []
    for name in sorted(draft.tensors().keys() & set(draft.names)):  # the order of a set changes with each process
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


def _open(draft: Draft) -> None:
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
                text
                for text in tried
                if all(_runs(f"{name} = {text}", scope) and (_is_small(scope[name]) or text == material.LARGE) for scope in draft.scopes)
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


def _is_number(value: Any, most: int) -> bool:  # noqa: ANN401 - values of statements
    return isinstance(value, (int, float)) and abs(value) < most


def _is_rounded(value: Any) -> bool:  # noqa: ANN401 - same
    """Whether a number beside a tensor of float32 gives rounded results."""
    return isinstance(value, float) and not (value * 4).is_integer()


def _is_large(value: Any) -> bool:  # noqa: ANN401 - same
    return isinstance(value, torch.Tensor) and value.dtype is torch.int64 and value.numel() > 0 and int(value.abs().max()) > _LARGEST


def _is_small(value: Any, *, finite: bool = True) -> bool:  # noqa: ANN401 - same
    if isinstance(value, (list, tuple)):
        return all(_is_small(item, finite=finite) for item in value)
    if not isinstance(value, torch.Tensor):
        return True
    if value.numel() > _MOST_ELEMENTS or value.dim() > 5:
        return False
    with torch.no_grad():
        if not finite:
            value = torch.where(value.isfinite(), value, 0)
        most = _LARGEST_NUMBER if value.dtype is torch.int64 else _LARGEST
        return not value.numel() or float((value.abs() if value.is_signed() else value).max()) <= most


_FAMILIES: tuple[tuple[float, str, Sequence[tuple[int, Template]]], ...] = (
    (34, "value", operations.VIEWS),
    (24, "value", operations.FRESH),
    (7, "inexact", operations.INEXACT),
    (4, "value", operations.STAYS),
    (24, "write", operations.WRITES),
    (3, "two", operations.PARTS),
    (2, "chosen", ()),
)
_IN_GRAPHS: tuple[tuple[float, str, Sequence[tuple[int, Template]]], ...] = (
    (20, "value", operations.VIEWS),
    (16, "value", operations.FRESH),
    (5, "inexact", operations.INEXACT),
    (3, "value", operations.STAYS),
    (10, "write", operations.WRITES),
    (3, "two", operations.PARTS),
    (1, "chosen", ()),
    (30, "value", aten.VALUES),
    (12, "inexact", aten.INEXACT),
)
_RESHAPED: tuple[tuple[float, str, Sequence[tuple[int, Template]]], ...] = (
    (40, "inexact", operations.LAID_OUT),
    (8, "value", operations.VIEWS),
    (8, "value", operations.FRESH),
    (24, "write", operations.WRITTEN_RESHAPES),
)
_NUMBERS = ((14, "number", operations.NUMBERS), (14, "value", operations.NUMBERED))
_DECIDED = (20, "value", operations.DECIDED)
_CREATED = (3, "value", operations.CREATED)
_SIZED = ((4, "value", operations.SIZED), (2, "number of data", operations.NUMBERS_OF_DATA))
_BREAK = ((6, "break", ()),)
_BRANCHES = (3, "value", operations.BRANCHES)
_LOOPS = (2, "value", operations.LOOPS)
_MODULES = ((12, "inexact", operations.MODULES),)
_CHECKED = ((60, "value", operations.CHECKED), (24, "write", operations.CHECKED_WRITES))
_TRIES = 12
_ROUNDS = re.compile(r"(?<!/)/(?!/)|sin_|\.(?:cos|sin)\(|entropy|margin|nll_|linalg|normal\(|bernoulli\(|multinomial|embedding_bag")


def _families(draft: Draft) -> list[tuple[float, str, Sequence[tuple[int, Template]]]]:
    program = draft.program
    if program.road == "loaded":  # nothing may stay in PyTorch
        return [*_FAMILIES[:3], _FAMILIES[4], *_NUMBERS, _CREATED]
    found = [*(_IN_GRAPHS if draft.graphs else (*_FAMILIES, _BRANCHES))]
    found += [*_NUMBERS] if program.dynamic is not False or not draft.graphs else []
    found += [_FAMILIES[4], _DECIDED] if program.road != "compile" else []  # what is written to shows in what shares its memory
    found += [_CREATED] * (1 if program.default_dtype == "float32" else 8)
    found += [_LOOPS] if not program.trains and not draft.graphs else []
    found += [*_MODULES] if any("self.d" in line or "self.g" in line for line in program.state) and not draft.graphs else []
    found += [*_CHECKED] if any(name == "i" for name, _ in program.inputs) else []
    found += [*_SIZED] if draft.breaks or program.captures else []
    return [*found, *_BREAK] if draft.breaks else found


def _add_statement(draft: Draft, families: Sequence[tuple[float, str, Sequence[tuple[int, Template]]]]) -> None:
    """Try statements until one runs in every environment."""
    for _ in range(_TRIES):
        _, kind, templates = draft.draw.choices(families, [family[0] for family in families])[0]
        if kind == "break":
            draft.body.append("torch._dynamo.graph_break()")
            return
        picker = Picker(draft.draw, draft.tensors(), draft.numbers())
        statement, targets = _statement(draft, kind, templates, picker)
        if is_refused(draft, statement, picker, kind):
            continue
        inexact = _is_inexact(draft, statement, picker, kind)
        before = [dict(scope) for scope in draft.scopes]
        most = _LARGEST_SUM if kind == "number of data" else _LARGEST_NUMBER
        fine = _are_numbers(draft, statement, targets, most) if kind.startswith("number") else _is_kept(draft, statement, targets, picker)
        if not fine or (inexact and not all(draft.scopes[0][name].is_floating_point() for name in targets)):
            for scope, names in zip(draft.scopes, before, strict=True):
                scope.update(names)  # a name may have got another value
            continue
        draft.body.append(statement)
        draft.names += [name for name in targets if name not in draft.names]
        draft.large.update(name for name in targets if any(_is_large(scope[name]) for scope in draft.scopes))
        draft.inexact.update(name for name in targets if any(_is_rounded(scope[name]) for scope in draft.scopes))
        if inexact:
            draft.inexact.update((*targets, *(picker.used if kind == "write" else ())))
            if kind == "write":  # it may have reached every view of what it wrote to
                draft.inexact.update(draft.names)
        return


def _is_inexact(draft: Draft, statement: str, picker: Picker, kind: str) -> bool:
    """Whether ONNX Runtime may round otherwise what a statement gives."""
    if kind.startswith("number"):
        return False
    return kind == "inexact" or any(name in draft.inexact for name in picker.used) or bool(_ROUNDS.search(statement))


def _are_numbers(draft: Draft, statement: str, targets: Sequence[str], most: int) -> bool:
    """Run a statement in every environment; whether it gives Python numbers that 64 bits hold."""
    with torch.set_grad_enabled(draft.program.trains):
        return all(_runs(statement, scope) for scope in draft.scopes) and all(
            _is_number(scope[name], most) for scope in draft.scopes for name in targets
        )


def _is_kept(draft: Draft, statement: str, targets: Sequence[str], picker: Picker) -> bool:
    """Run a statement in every environment; whether all is well with what it gives."""
    with torch.set_grad_enabled(draft.program.trains):
        torch.manual_seed(0)
        if not all(_runs(statement, scope) for scope in draft.scopes):
            return False
    fine = all(_is_small(scope[name], finite=not draft.graphs) for scope in draft.scopes for name in targets)
    if not fine or not is_defined(draft, targets, picker):  # for the second question, a large tensor may be too large
        return False
    return all(isinstance(draft.scopes[0][name], torch.Tensor) for name in targets)


def _statement(draft: Draft, kind: str, templates: Sequence[tuple[int, Template]], picker: Picker) -> tuple[str, list[str]]:
    count = sum(name[0] in "tm" for name in draft.names)
    if kind == "chosen":
        first, second = picker.any(), picker.any()
        return f"t{count} = {first} if {second}.shape[{picker.dim()}] {picker.choice(('> 4', '== 5', '% 2 == 0'))} else {second}", [
            f"t{count}"
        ]
    template = draft.draw.choices([entry[1] for entry in templates], [entry[0] for entry in templates])[0]
    text = template(picker)
    if kind == "write":
        return text, []
    if kind.startswith("number"):
        return f"m{count} = {text}", [f"m{count}"]
    if kind == "two":
        return f"t{count}, t{count + 1} = {text}", [f"t{count}", f"t{count + 1}"]
    if draft.draw.random() < 0.08:
        target = draft.draw.choice(
            [name for name in draft.names if name[0] not in "im"] or ["t0"]
        )  # the name of a value is used for another one
        return f"{target} = {text}", [target]
    return f"t{count} = {text}", [f"t{count}"]


def _returns(draft: Draft) -> tuple[str, ...]:
    draw, names = draft.draw, list(draft.tensors(large=True))
    late = names[-3:] if draw.random() < 0.7 else []
    chosen = [*late, *(draw.choice(names) for _ in range(draw.choice((0, 1, 1, 2, 3))))]
    made = []
    for name in chosen or names[-1:]:
        value = draft.tensors(large=True)[name]
        kind = draw.random()
        if kind < 0.06 and value.dim():
            made.append(f"{name}.shape[{draw.randrange(value.dim())}]")
        elif kind < 0.16:
            picker = Picker(draw, {name: value})
            template = draw.choices([entry[1] for entry in operations.VIEWS], [entry[0] for entry in operations.VIEWS])[0]
            text = template(picker)
            known = not is_unknown(draft, text, picker)
            made.append(text if known and all(_runs(f"_ = {text}", scope) for scope in draft.scopes) else name)
        else:
            made.append(name)
    made += [name for name in draft.numbers() if name[0] == "m" and draw.random() < 0.8]
    checked = [line.partition(" = ")[0] for line in draft.body if re.match(r"t\d+ = .*\bi\b", line)]
    made += [name for name in checked if name in names and name not in made]  # what nobody reads is not checked either
    if draft.program.road != "compile":  # a write that should have reached an argument shows in what is computed from it
        made += [f"{name} + 1" for name, _ in draft.program.inputs if name in draft.tensors() and draw.random() < 0.5]
    draw.shuffle(made)
    return tuple(made)
