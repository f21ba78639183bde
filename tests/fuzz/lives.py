"""Lives of small models, as programs: calls, and between them every way in which people change weights."""

import random
import sys
from collections.abc import Sequence
from unittest import mock

from ortlens.backend.runtime import weights
from tests.fuzz.minimise import smallest
from tests.fuzz.oracle import Verdict, judge
from tests.fuzz.program import Program, program, script

CONV = program(
    "self.last(F.relu(self.second(b)).mean((2, 3)))",
    a="values(1, n, 3, 8, 8).to(self.last.bias.dtype)",
    state=(
        "torch.manual_seed(1)",
        "self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)",
        "self.second, self.last = nn.Conv2d(8, 8, 3, groups=4), nn.Linear(8, 5)",
        "self.eval()",
    ),
    body=("b = F.max_pool2d(F.relu(self.norm(self.first(a))), 2)",),
)
MLP = program(
    "self.last(self.norm(torch.where(self.kept, b, self.shift)) + self.shift)",
    a="values(1, n, 6)",
    state=(
        "torch.manual_seed(1)",
        "self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)",
        "self.shift, self.kept = nn.Buffer(torch.linspace(-1, 1, 8)), nn.Buffer(torch.arange(8) != 3)",
    ),
    body=("b = F.gelu(self.first(a.to(self.first.weight.dtype)))",),
)
BLOCK = program(
    "self.last(b + self.drop(self.second(c.transpose(1, 2).flatten(2))))",
    a="places(1, n, 5) * 8",
    state=(
        "torch.manual_seed(1)",
        "self.embed, self.last = nn.Embedding(17, 8), nn.Linear(8, 17)",
        "self.last.weight = self.embed.weight",
        "self.norm, self.first, self.second, self.drop = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8), nn.Dropout(0.2)",
        "self.eval()",
    ),
    body=(
        "b = self.embed(a)",
        "t0 = self.first(self.norm(b)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)",
        "c = F.scaled_dot_product_attention(t0[0], t0[1], t0[2], is_causal=True)",
    ),
)
KINDS: dict[str, Program] = {"conv": CONV, "mlp": MLP, "block": BLOCK}
BUFFERS = {"conv": ("self.norm.running_mean", "self.norm.running_var"), "mlp": ("self.shift",), "block": ()}
PARAMETERS = ("self.first.weight", "self.norm.weight", "self.norm.bias", "self.last.weight", "self.last.bias")
OWNERS = {"conv": "self.last", "mlp": "self.first", "block": "self.second"}

_NEW = "(values({s}, *{w}.shape).abs() * 0.3 + 0.2).to({w}.dtype)"
"""Positive, since they may be variances."""
CHANGES = (
    f"{{w}}.copy_({_NEW})",
    f"{{w}}.mul_(0.5).add_({_NEW})",
    f"{{w}}[...] = {_NEW}",
    f"{{w}}.lerp_({_NEW}, 0.75)",
    "{w}[(0,) * {w}.dim()] = 3",
    f"{{w}}.data = {_NEW}",
    # Freed at once: the allocator likes to give the same address again.
    f"{{w}}.data = {_NEW}.t().contiguous().t() if {{w}}.dim() == 2 else {_NEW}",
    "self.load_state_dict({{name: value * 0.5 if value.is_floating_point() else value for name, value in self.state_dict().items()}})",
    "self.load_state_dict({{name: value.clone() for name, value in self.state_dict().items()}}, assign=True)",
    "self.share_memory()",
    "self.double()",
    "self.half(); self.float()",
    "self.to(memory_format=torch.channels_last)",
    "import gc; gc.collect()",
    "self.train()",
    "self.eval()",
)
OF_PARAMETERS = (
    f"{{w}}.grad = {_NEW}; torch.optim.SGD([{{w}}], lr=0.05).step(); {{w}}.grad = None",
    f"{{w}}.grad = {_NEW}; torch.optim.AdamW([{{w}}], lr=0.05, foreach=True).step(); {{w}}.grad = None",
    f"{{w}} = nn.Parameter({_NEW})",
    f"torch.utils.swap_tensors({{w}}, nn.Parameter({_NEW}))",
    "{w}.requires_grad_(not {w}.requires_grad)",
)
OF_BUFFERS = ("{w} = {w} + 1", "{w}.add_(1)")
OF_LAYERS = (
    "from torch.nn.utils import prune; prune.custom_from_mask({o}, 'weight', values({s}, *{o}.weight.shape) > -1)",
    "from torch.nn.utils import prune; prune.remove({o}, 'weight')",
    "nn.utils.parametrizations.weight_norm({o})",
    "nn.utils.parametrize.remove_parametrizations({o}, 'weight')",
    "torch.manual_seed({s}); {o} = nn.Linear({o}.in_features, {o}.out_features)",
)
"""In this order: what one of them changes, the next one ends."""
UNCOUNTED = (f"{{w}}.data.copy_({_NEW})", f"{{w}}.data.mul_(0.5).add_({_NEW})", f"{{w}}.detach().numpy()[...] = {_NEW}.numpy()")
"""Writes that torch does not count."""
CALLS = (
    "call(2)",
    "other(2)",
    "moved(3)",
    "again()",
    "call(1)",
    "given(3, a='a[:0]')",
    "given(4, a='a[::2]')",
    "given(4, a='a[:1].expand_as(a)')",
    "given(4, a='relaid(a, \"permuted\")')",
    "outs[0].fill_(7)",
)


def life(kind: str, steps: Sequence[str], *, trains: bool = False) -> Program:
    """A model, and what happens to it."""
    return KINDS[kind].replace(steps=tuple(steps), trains=trains)


def change(draw: random.Random, kind: str, templates: Sequence[str] = (*CHANGES, *OF_PARAMETERS)) -> str:
    """Draw a change of a weight."""
    text = draw.choice(templates)
    weights = PARAMETERS if text in OF_PARAMETERS else BUFFERS[kind] if text in OF_BUFFERS else (*PARAMETERS, *BUFFERS[kind])
    return text.format(w=draw.choice(weights), o=OWNERS[kind], s=draw.randrange(100)) if weights else "pass"


def random_life(seed: int, kind: str, length: int) -> Program:
    """A life of which every other step is a call."""
    draw = random.Random(f"{seed} {kind}")  # noqa: S311 - no secret
    trains, layers = draw.random() < 0.3, list(OF_LAYERS)
    steps = ["call(2)"]
    for _ in range(length):
        sort = draw.choice(((*CHANGES, *OF_PARAMETERS), UNCOUNTED, OF_BUFFERS, (*CHANGES, *OF_PARAMETERS), layers[:1] or CHANGES))
        steps += [change(draw, kind, sort), draw.choice(CALLS[:-1] if trains else CALLS)]
        layers = layers[1:] if sort == layers[:1] else layers
        steps += ["backward()"] if trains and draw.random() < 0.5 else []
        steps += ["warm()", "call(2)"] if draw.random() < 0.1 else []
    return life(kind, (*steps, "call(2)", "other(2)"), trains=trains)


def every_change(kind: str, templates: Sequence[str] = (*CHANGES, *OF_PARAMETERS, *OF_BUFFERS, *OF_LAYERS)) -> Program:
    """A life in which each change comes once, with calls around it."""
    draw = random.Random(kind)  # noqa: S311 - no secret
    return life(kind, [step for text in templates for step in ("call(2)", change(draw, kind, (text,)), "other(2)")] + ["call(2)"])


def lived(program: Program) -> Verdict:
    """Judge a life in which weights stay frozen however often they change."""
    with mock.patch.object(weights, "_MAX_REFREEZES", sys.maxsize):
        return judge(program)


def failure_of(program: Program) -> str:
    """What goes wrong in a life, and the shortest one that shows it; empty where nothing does."""
    verdict = lived(program)
    if verdict.word != "wrong":
        return ""
    program, verdict = smallest(program, verdict, judged=lived)
    return f"{program.steps}\n{verdict.text()}\n{script(program)}"
