"""What the caller of a random program does: it calls, writes into what it holds, changes weights, and calls again."""

import random
import re

from tests.fuzz.material import attribute
from tests.fuzz.program import Program

_RANDOM = re.compile(r"dropout|rand|bernoulli|uniform_|normal|self\.d|multinomial")


def steps(draw: random.Random, program: Program, sizes: tuple[int, ...]) -> tuple[str, ...]:
    """Draw what the caller does."""
    if program.road != "compile":
        return _steps_on_road(draw, program, sizes)
    made: list[str] = []
    backs = program.trains and draw.random() < 0.8
    for place, n in enumerate(sizes):
        made.append(f"call({n})")
        if backs:
            made.append(f"backward({draw.choice(('', '', '', '0', '0, 1', '1'))})")
        made += [_writes(draw, program) for _ in range(draw.choice((0, 0, 1, 2)))]
        if place == 0 or draw.random() < 0.3:
            made += _changes(draw, program)
            made.append(draw.choice(("again()", f"call({n})", f"other({n})", f"moved({n})")))
            made += [_writes(draw, program) for _ in range(draw.choice((0, 1)))]
        made += _given(draw, program, n)
        if draw.random() < 0.25:
            made += [*_changes(draw, program), draw.choice((f"other({n})", f"moved({n})"))]
    if backs and draw.random() < 0.25:
        made += [f"twice({sizes[0]})", "backward()"]
    if "cache_dir" in program.options and draw.random() < 0.6:
        made += ["warm()", f"call({sizes[0]})", *_changes(draw, program), f"call({sizes[0]})"]
    if (
        draw.random() < 0.15
        and not program.trains
        and not any("spoilt(" in text for text in program.steps)
        and not any(map(_RANDOM.search, program.body))
    ):  # threads share one generator
        made.append(f"threads({sizes[0]})")
    return tuple(made)


def _steps_on_road(draw: random.Random, program: Program, sizes: tuple[int, ...]) -> tuple[str, ...]:
    """The same for a program that is traced once: weights are constants, and results may be copies, so that neither is written to."""
    made: list[str] = []
    for n in sizes:
        made += [f"call({n})", *(f"given({n}, {text})" for text in draw.sample(program.steps, min(len(program.steps), 8)))]
        if draw.random() < 0.4 and program.road != "loaded":  # whose results are new arrays
            made.append(_writes(draw, program, names=("ins",)))
        made.append(draw.choice(("again()", f"call({n})", f"other({n})", f"moved({n})")))
    if made[1].startswith("given") and draw.random() < 0.2:
        made[:2] = reversed(made[:2])  # it is traced with odd arguments
    return tuple(made)


def _given(draw: random.Random, program: Program, n: int) -> list[str]:
    """Calls with other arguments in place of some: nearly all that make PyTorch raise, and a few of the others."""
    spoilt = [text for text in program.steps if "spoilt(" in text]
    others = [text for text in program.steps if "spoilt(" not in text]
    chosen = draw.sample(spoilt, min(len(spoilt), 8)) + draw.sample(others, min(len(others), draw.choice((0, 1, 1, 2))))
    return [f"given({n}, {text})" for text in chosen]


def few_steps(draw: random.Random, program: Program, sizes: tuple[int, ...]) -> tuple[str, ...]:
    """Draw what the caller of a program does that is judged as a graph: in most cases two calls per graph."""
    made = [f"call({n})" for n in sizes]
    made += _given(draw, program, sizes[0])
    if draw.random() < 0.3:
        made += [_writes(draw, program), *(text for text in _changes(draw, program) if not re.search("requires_grad|half|double", text))]
    return (*made, draw.choice(("again()", f"other({sizes[-1]})", f"other({sizes[-1]})", f"moved({sizes[-1]})")))


def _changes(draw: random.Random, program: Program) -> list[str]:
    """The caller changes weights and other tensors of the module, each in one of the ways that people use."""
    names = [attribute(line) for line in program.state]
    ends = [(re.findall(r"[wbcdg](_\d+)", line) or [""])[0] for line in program.state]
    made = [draw.choice(_CHANGES[name]).format(w=f"self.{name}{end}", s=draw.randrange(100)) for name, end in zip(names, ends, strict=True)]
    made = [text for text in made if draw.random() < 0.6]
    return [*made, draw.choice(_CHANGES_OF_ALL)] if made and draw.random() < 0.15 else made


def _writes(draw: random.Random, program: Program, names: tuple[str, ...] = ("outs", "outs", "ins")) -> str:
    """The caller writes into something that it holds; the index may name a plain value, which is left alone."""
    name = draw.choice(names)
    place = draw.randrange(len(program.returns if name == "outs" else program.inputs))
    return f"{name}[{place}].{draw.choice(('zero_()', 'fill_(3)', 'mul_(2)', 'add_(1)'))}"


_CHANGES_OF_ALL = (
    "self.load_state_dict({name: value + 1 for name, value in self.state_dict().items()})",
    "self.load_state_dict({name: value.clone() * 2 for name, value in self.state_dict().items()}, assign=True)",
    "self.double()",
    "self.half()",
    "self.eval()",
    "self.train()",
    "self.requires_grad_(False)",
    "self.zero_grad()",
)
_CHANGES = {
    "w": (
        "{w}.add_(1)",
        "{w}.add_(1)",
        "{w}.copy_(values({s}, *{w}.shape))",
        "{w}.data.mul_(2)",
        "{w}.data = values({s}, *{w}.shape)",
        "{w} = nn.Parameter(values({s}, *{w}.shape))",
        "{w}.set_(values({s}, *{w}.shape))",
        "{w}.detach().numpy()[...] += 1",
        "{w}.requires_grad_(not {w}.requires_grad)",
        "{w}[0].zero_()",
        "{w}.data[-1 if {w}.numel() < 99 else ...] = 7",  # a few elements of a large weight are noticed later, as documented
        "nn.init.constant_({w}, 0.5)",
        "torch.optim.SGD([{w}], lr=0.5).step()",
        "torch.utils.swap_tensors({w}, nn.Parameter(values({s}, *{w}.shape)))",
    ),
    "b": (
        "{w}.add_(1)",
        "{w}.add_(1)",
        "{w}.zero_()",
        "{w} = values({s}, *{w}.shape, dtype={w}.dtype)",
        "{w}.copy_(values({s}, *{w}.shape))",
        "{w}.numpy()[...] += 1",
        "{w}.view(-1)[0] = 5",
        "{w}.data = {w}.data + 1",
        "{w}.data.add_(1)",
        "{w} = {w}.clone().t() if {w}.dim() == 2 else {w}.clone()",
    ),
    "d": ("{w}.eval()", "{w}.train()", "{w}.p = 0.25"),
    "g": ("{w}.eval()", "{w}.train()", "{w}.reset_running_stats()", "{w}.running_mean.add_(1)", "{w}.momentum = 0.5"),
    "c": ("{w} = values({s}, 4)", "{w}.mul_(2)", "{w} = {w} + 1"),
}
