"""Functions and modules with the signatures that their exported files have: order and names of inputs and results, sizes."""

# ruff: noqa: ANN401 - arguments and results of models are Any in torch itself

import collections
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional
from torch.utils import _pytree as pytree
from transformers.modeling_outputs import BaseModelOutputWithPooling

from tests.zoo.programs import PROGRAMS
from tests.zoo.table import ARCHITECTURES

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

Road: TypeAlias = Literal["compiled", "frozen", "program"]
"""`explain(model)`, `freeze(model).save` and `explain(torch.export.export(model))`."""


def _given(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def _rows(batch: int = 3) -> Call:
    return _given(torch.randn(batch, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function or module, how it is called, and the signature of its file.

    Attributes:
        build: Makes the function or module.
        call: Makes the arguments from sizes, by default some rows; the defaults of the sizes are what is traced.
        outputs: Names of the results.
        inputs: Names of the inputs, where `torch.onnx.export` fails or does not keep the order of definition.
        written: Names of the arguments and buffers that the call writes to. New values follow the results, buffers the arguments.
        shapes: Which sizes are open, as for `torch.export.export`; True: all that PyTorch finds may vary.
        inside: Other sizes that the file accepts.
        outside: Sizes that the file refuses, or for which no file is written.
        refused: Roads on which no file is written.
        verify: Sizes that the lens verifies before it exports.
        grad: Whether the lens compiles with gradients.
        always: Whether every run of the tests has it, not only the slow ones.
    """

    build: Callable[[], Callable[..., Any]]
    call: Callable[..., Call] = _rows
    outputs: tuple[str, ...] = ("output_0",)
    inputs: tuple[str, ...] | None = None
    written: tuple[str, ...] = ()
    shapes: Any = None
    inside: Sequence[Mapping[str, int]] = ()
    outside: Sequence[Mapping[str, int]] = ()
    refused: frozenset[Road] = frozenset()
    verify: Mapping[str, int] | None = None
    grad: bool = False
    always: bool = False


ALL_ROADS: frozenset[Road] = frozenset({"compiled", "frozen", "program"})
BATCH, WIDTH = Dim("batch"), Dim("width")
_GLOBAL = torch.tensor([0.5, -1.0, 2.0, 0.25])


def _two(batch: int = 3, other: int | None = None) -> Call:
    return _given(torch.randn(batch, 4), torch.randn(batch if other is None else other, 4))


def _of(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    return lambda: function


def decorated(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as libraries do that check arguments or collect outputs."""

    @functools.wraps(forward)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return wrapper


class _Decorated(nn.Module):
    @decorated
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, bias: torch.Tensor | None = None) -> Any:
        y = x - 1 if bias is None else x - bias
        return y if mask is None else y * mask


class _Keywords(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, shift: torch.Tensor) -> Any:
        return x / scale.exp() + shift


def _many(x: torch.Tensor, power: int = 2, slope: float = 0.5, mode: str = "relu", *, negate: bool = False) -> Any:
    y = getattr(torch, mode)(x) ** power * slope
    return -y if negate else y


def _sparing(first: torch.Tensor, x: torch.Tensor, middle: torch.Tensor, y: torch.Tensor, last: torch.Tensor) -> Any:  # noqa: ARG001
    return y / 2 - x


def _repeated(x: torch.Tensor, mask: torch.Tensor) -> Any:
    hidden = x * 2
    return mask, hidden, hidden, x + 1


def _views(x: torch.Tensor) -> Any:
    hidden = x.relu()
    return hidden, hidden[:, 0], hidden.t(), hidden.reshape(-1)


def _apart(x: torch.Tensor) -> Any:  # noqa: ARG001
    return _GLOBAL + 1, torch.arange(3)


def _nested(extra: dict[str, Any], pair: tuple[torch.Tensor, torch.Tensor]) -> Any:
    return pair[1] / 2 - pair[0], extra["list"][0] * extra["single"]


def _variadic(*parts: torch.Tensor, **named: torch.Tensor) -> Any:
    return parts[1] - parts[0] * named["b"] + named["a"]


def _capturing() -> Callable[..., Any]:
    held = torch.tensor([3.0, 1.0, 2.0, 5.0])
    return lambda x: (x - held) * _GLOBAL


class _Holding(nn.Module):
    """Holds tensors and numbers outside parameters and buffers, and takes arguments with the names of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4))
        self.shift: torch.Tensor
        self.plain = torch.randn(4)
        self.epsilon, self.power = 1e-3, 3

    def forward(self, weight: torch.Tensor, shift: torch.Tensor) -> Any:
        return (self.weight - weight) * self.plain + self.shift * shift**self.power / (weight.abs() + self.epsilon)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> Any:
        return {"logits": self.head(self.embed(ids))}


def _typed(ids: torch.Tensor, keep: torch.Tensor, scale: torch.Tensor, small: torch.Tensor) -> Any:
    return torch.where(keep, ids * 2, ids - 1), scale.exp() * keep, small.float().cumsum(-1).double(), ids > small


class _Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("kept", torch.arange(4.0))
        self.kept: torch.Tensor

    def forward(self, x: torch.Tensor) -> Any:
        return self.kept, x * self.weight, self.weight


class _Assigning(nn.Module):
    """Keeps what it computed as an attribute, which is no result."""

    def forward(self, x: torch.Tensor) -> Any:
        self.last = x.sin()
        return self.last * 2


class _Pair(NamedTuple):
    mean: torch.Tensor
    spread: torch.Tensor


@dataclass
class _Scores:
    """What a detector returns."""

    boxes: torch.Tensor
    logits: torch.Tensor | None = None


torch.export.register_dataclass(_Scores, serialized_type_name="signature_cases.Scores")


class _Pooler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.dense(x)
        return BaseModelOutputWithPooling(pooler_output=hidden.mean(0).tanh(), last_hidden_state=hidden, hidden_states=(x, hidden))


class _Cached(nn.Module):
    """Attention over what is in a cache and one token more."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.ModuleList(nn.Linear(4, 12) for _ in range(2))

    def forward(self, x: torch.Tensor, past_key_values: list[tuple[torch.Tensor, torch.Tensor]], use_cache: bool = True) -> Any:  # noqa: FBT001, FBT002
        present = []
        for project, past in zip(self.project, past_key_values, strict=True):
            query, *new = project(x).chunk(3, -1)
            key, value = (torch.cat(pair, 1) for pair in zip(past, new, strict=True))
            x = x + (query @ key.transpose(1, 2)).softmax(-1) @ value
            present.append((key, value))
        return {"logits": x, "past_key_values": present if use_cache else None}


def _cache(batch: int = 2, past: int = 3) -> Call:
    return _given(torch.randn(batch, 1, 4), [(torch.randn(batch, past, 4), torch.randn(batch, past, 4)) for _ in range(2)])


class _Cells:
    """A cache as libraries make them: an object that a call changes and returns."""

    def __init__(self, keys: list[torch.Tensor]) -> None:
        self.keys = keys

    def update(self, layer: int, key: torch.Tensor) -> torch.Tensor:
        self.keys[layer] = torch.cat((self.keys[layer], key), 1)
        return self.keys[layer]


pytree.register_pytree_node(
    _Cells,
    lambda cells: (list(cells.keys), None),
    lambda keys, _: _Cells(list(keys)),
    serialized_type_name="signature_cases.Cells",
    flatten_with_keys_fn=lambda cells: ([(pytree.SequenceKey(place), key) for place, key in enumerate(cells.keys)], None),
)


def _remembering(x: torch.Tensor, cells: _Cells) -> Any:
    for layer in range(len(cells.keys)):
        x = x + cells.update(layer, x * 2).sum(1, keepdim=True)
    return x, cells


def _cells(batch: int = 2, past: int = 3) -> Call:
    return _given(torch.randn(batch, 1, 4), _Cells([torch.randn(batch, past, 4) for _ in range(2)]))


def _window(x: torch.Tensor) -> Any:
    return (x[:, -8:] if x.shape[1] > 8 else x).sum(1)


def _positions(x: torch.Tensor) -> Any:
    length = x.shape[1]
    causal = torch.arange(length)[:, None] >= torch.arange(length)
    scores = (x @ x.transpose(1, 2)) / math.sqrt(length)
    return scores.masked_fill(~causal, -torch.inf).softmax(-1) @ x + torch.arange(length)[:, None]


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, src: torch.Tensor, padding: torch.Tensor) -> Any:
        return self.layer(src + 0, src_key_padding_mask=padding)


class _Attending(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor) -> Any:
        return functional.scaled_dot_product_attention(query, key, key * 2, attn_mask=mask)


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> Any:
        return self.lstm(x, state)


class _Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, self.up, lambda x: self.down(x).relu(), (x,))


def _layers(*layers: nn.Module) -> Callable[[], nn.Module]:
    """Stack layers whose statistics and scales are no ones and zeros, in eval mode."""

    def build() -> nn.Module:
        made = nn.Sequential(*layers).eval()
        with torch.no_grad():
            for tensor in (*made.parameters(), *made.buffers()):
                if tensor.is_floating_point():
                    tensor.uniform_(0.5, 1.5)
        return made

    return build


def _image(batch: int = 2, side: int = 8, channels: int = 3) -> Call:
    return _given(torch.randn(batch, channels, side, side))


class _Scale(nn.Module):
    """A norm whose scale is wider than the rows that it scales."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 5.0))

    def forward(self, x: torch.Tensor) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1.0) * self.weight


def _program(name: str, **more: Any) -> Case:
    program = PROGRAMS[name]
    return Case(build=program.build, call=lambda: _given(*program.inputs()), **more)


def _architecture(name: str, *outputs: str, **more: Any) -> Case:
    architecture = ARCHITECTURES[name]
    return Case(build=architecture.build, call=lambda: _given(**architecture.inputs()), outputs=outputs, **more)


_ARGUMENTS = {
    "arguments used in another order": Case(
        build=_of(lambda x, y: (y - y.mean(1, keepdim=True)) - x),
        call=_two,
        shapes={"x": {0: BATCH}, "y": {0: BATCH}},
        inside=({"batch": 7}, {"batch": 1}),
        outside=({"batch": 5, "other": 4}, {"batch": 5, "other": 1}),
        always=True,
    ),
    "unused arguments": Case(
        build=_of(_sparing),
        call=lambda batch=3: _given(*(torch.randn(batch, size) for size in (2, 4, 5, 4, 6))),
        shapes={name: {0: BATCH} for name in ("first", "x", "middle", "y", "last")},
        inside=({"batch": 4},),
        always=True,
    ),
    "a decorated method by place": Case(build=_Decorated, call=_two),
    "a decorated method by name, with a gap": Case(
        build=_Decorated, call=lambda: _given(torch.randn(3, 4), bias=torch.randn(4)), always=True
    ),
    "a decorated method by name, in another order": Case(
        build=_Decorated,
        call=lambda batch=3: _given(bias=torch.randn(batch, 4), mask=torch.ones(batch, 4), x=torch.randn(batch, 4)),
        inputs=("x", "mask", "bias"),  # likewise
        shapes={"bias": {0: BATCH}, "mask": {0: BATCH}, "x": {0: BATCH}},
        inside=({"batch": 2},),
    ),
    "keywords alone, in another order": Case(
        build=_Keywords,
        call=lambda: _given(torch.randn(3, 4), shift=torch.randn(3, 4), scale=torch.randn(3, 4)),
        inputs=("x", "scale", "shift"),  # torch.onnx.export has them in the order of the call
        always=True,
    ),
    "numbers, text and flags": Case(build=_of(_many), call=lambda: _given(torch.randn(3, 4), 3, mode="tanh", negate=True, slope=0.25)),
    "defaults": Case(build=_of(_many), shapes={"x": {0: BATCH}}, inside=({"batch": 9},)),
    "nested arguments": Case(
        build=_of(_nested),
        call=lambda: _given(
            {"list": [torch.randn(4)], "flag": None, "single": torch.randn(1), "spare": torch.ones(2)},
            (torch.randn(3, 4), torch.randn(3, 4)),
        ),
        outputs=("output_0", "output_1"),
    ),
    "arguments of any number": Case(
        build=_of(_variadic), call=lambda: _given(torch.randn(4), torch.randn(4), torch.randn(4), b=torch.randn(4), a=torch.randn(4))
    ),
    "captured tensors": Case(build=_capturing, shapes={"x": {0: BATCH}}, inside=({"batch": 5},)),
    "captured tensors and numbers, all sizes open": Case(
        build=_Holding, call=_two, shapes=True, inside=({"batch": 5},), outside=({"batch": 5, "other": 2},), always=True
    ),
    "arguments with the names of weights": Case(build=_Holding, call=_two),
    "an argument with the name of a result": Case(
        build=_of(lambda output_0, x: (x - output_0, output_0 * 2)), call=_two, outputs=("output_0", "output_1")
    ),
    "tied weights": Case(
        build=_Tied,
        call=lambda batch=2, length=5: _given(torch.randint(0, 11, (batch, length))),
        outputs=("logits",),
        shapes={"ids": {0: BATCH, 1: Dim("length")}},
        inside=({"batch": 3, "length": 1}, {"batch": 1, "length": 8}),
    ),
    "whole numbers, flags and scalars": Case(
        build=_of(_typed),
        call=lambda batch=3: _given(
            torch.randint(-9, 9, (batch, 4)), torch.rand(batch, 4) > 0.5, torch.tensor(0.5), torch.randint(0, 9, (4,), dtype=torch.uint8)
        ),
        outputs=("output_0", "output_1", "output_2", "output_3"),
        shapes={"ids": {0: BATCH}, "keep": {0: BATCH}, "scale": None, "small": None},
        inside=({"batch": 6},),
    ),
}

_RESULTS = {
    "an argument and a result twice": Case(
        build=_of(_repeated),
        call=_two,
        outputs=("output_0", "output_1", "output_2", "output_3"),
        always=True,
    ),
    "an argument alone": Case(build=_of(lambda x: x), shapes={"x": {0: BATCH}}, inside=({"batch": 2},)),
    "a buffer that changes": _program("writes to a buffer", written=("kept",), outputs=("output_0", "kept.updated")),
    "a part of an argument": Case(build=_of(lambda x: (x[1:], x.t(), x)), outputs=("output_0", "output_1", "output_2")),
    "weights and buffers": Case(build=_Buffers, outputs=("output_0", "output_1", "output_2"), always=True),
    "nothing of the arguments": Case(build=_of(_apart), outputs=("output_0", "output_1")),
    "a dict": Case(
        build=_of(lambda x: {"logits": x.sum(1), "a": x * 2, "x": x + 1}),
        outputs=("logits", "a", "x"),
        shapes={"x": {0: BATCH}},
        inside=({"batch": 8},),
        always=True,
    ),
    "an ordered dict in a tuple": Case(
        build=_of(lambda x: (x + 1, collections.OrderedDict(b=x - 1, a=[x * 2, x.cos()]))),
        outputs=("output_0", "output_1.b", "output_1.a.0", "output_1.a.1"),
    ),
    "a dict of whole numbers": Case(build=_of(lambda x: {2: x + 1, 0: x - 1}), outputs=("output_2", "output_0")),
    "a named tuple": Case(build=_of(lambda x: _Pair(spread=x.std(1), mean=x.mean(1))), outputs=("mean", "spread")),
    "a dataclass": Case(build=_of(lambda x: _Scores(logits=x.exp(), boxes=x.cumsum(1))), outputs=("boxes", "logits")),
    "a dataclass without a part": Case(build=_of(lambda x: _Scores(boxes=x.cumsum(1))), outputs=("boxes",)),
    "a model output": Case(
        build=_Pooler,
        outputs=("last_hidden_state", "pooler_output", "hidden_states.0", "hidden_states.1"),
        shapes={"x": {0: BATCH}},
        inside=({"batch": 5},),
        always=True,
    ),
    "lists in a dict": Case(
        build=_of(lambda x: {"rest": [x + 1, (x + 2, {"deep": x + 3})], "one": (x + 4,)}),
        outputs=("rest.0", "rest.1.0", "rest.1.1.deep", "one.0"),
    ),
    "a list of one": Case(build=_of(lambda x: [x.relu()])),
    "None, numbers and text": Case(build=_of(lambda x: (x * 2, None, 3, "text", x - 1)), inputs=("x",), outputs=("output_0", "output_4")),
    "views": Case(
        build=_of(_views),
        outputs=tuple(f"output_{place}" for place in range(4)),
        shapes={"x": {0: BATCH}},
        inside=({"batch": 1}, {"batch": 6}),
    ),
    "largest": Case(build=PROGRAMS["largest"].build, call=lambda: _given(torch.randn(8, 40)), outputs=("output_0", "output_1")),
    "chosen by data": Case(build=_of(lambda x: (torch.nonzero(x > 0), x[x > 0])), outputs=("output_0", "output_1"), refused=ALL_ROADS),
    "an attribute": Case(build=_Assigning),
    "a size as a tensor": Case(
        build=_of(lambda x: (x.new_full((), x.shape[0]), torch.tensor(x.shape[0] * 2))),
        outputs=("output_0", "output_1"),
        shapes={"x": {0: BATCH}},
        inside=({"batch": 8},),
    ),
}

_CACHES = {
    "a cache of pairs": Case(
        build=_Cached,
        call=_cache,
        outputs=("logits", *(f"past_key_values.{layer}.{part}" for layer in range(2) for part in range(2))),
        shapes={"x": {0: BATCH}, "past_key_values": [({0: BATCH, 1: Dim("past")},) * 2] * 2},
        inside=({"batch": 1, "past": 5},),
    ),
    "a cache that is left out": Case(build=_Cached, call=lambda: ((*_cache()[0], False), {}), outputs=("logits",)),
    "a cache that changes": Case(
        build=_of(_remembering),
        call=_cells,
        outputs=("output_0", "output_1.0", "output_1.1"),
    ),
}

_SIZES = {
    "two names": Case(
        build=_of(lambda x: x.flatten(1).cumsum(1)),
        call=lambda batch=3, width=5: _given(torch.randn(batch, width, 2)),
        shapes={"x": {0: BATCH, 1: WIDTH}},
        inside=({"batch": 1, "width": 9}, {"batch": 8, "width": 2}),
    ),
    "a fixed size beside an open one": Case(
        build=_layers(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)),
        call=lambda batch=3, width=4: _given(torch.randn(batch, width)),
        shapes={"input": {0: BATCH}},
        inside=({"batch": 1}, {"batch": 30}),
        outside=({"batch": 3, "width": 5},),
        always=True,
    ),
    "an upper bound": Case(
        build=_of(lambda x: x.cumsum(0)),
        shapes={"x": {0: Dim("batch", max=8)}},
        inside=({"batch": 8}, {"batch": 1}),
        outside=({"batch": 9},),
    ),
    "a lower bound": Case(
        build=_of(lambda x: x[3:] - x[:-3]),
        call=lambda batch=6: _given(torch.randn(batch, 4)),
        shapes={"x": {0: Dim("batch", min=5)}},
        inside=({"batch": 5}, {"batch": 9}),
        outside=({"batch": 2},),
    ),
    "a size that follows from another": Case(
        build=_of(lambda x, y: x.reshape(-1, 2) + y[:, None]),
        call=lambda half=3, whole=None: _given(torch.randn(2 * half if whole is None else whole), torch.randn(half)),
        shapes={"x": {0: 2 * Dim("half")}, "y": {0: Dim("half")}},
        inside=({"half": 5},),
        outside=({"half": 3, "whole": 8}, {"half": 1, "whole": 6}),
    ),
    "a branch on a size": Case(
        build=_of(_window),
        call=lambda columns=5: _given(torch.randn(2, columns)),
        shapes=True,
        inside=({"columns": 8}, {"columns": 3}),
        outside=({"columns": 12},),
        always=True,
    ),
    "the other branch": Case(
        build=_of(_window),
        call=lambda columns=12: _given(torch.randn(2, columns)),
        shapes=True,
        inside=({"columns": 9},),
        outside=({"columns": 7},),
    ),
    "pairs of rows": Case(
        build=_of(lambda x: x.view(x.shape[0] // 2, 2, -1).sum(1)),
        call=lambda rows=6: _given(torch.randn(rows, 4)),
        shapes=True,
        inside=({"rows": 10},),
        outside=({"rows": 7},),
    ),
    "a size rounded up": Case(
        build=_of(lambda x: x * math.ceil(x.shape[0] / 7)), shapes=True, inside=({"batch": 8}, {"batch": 70}, {"batch": 2})
    ),
    "many rows": Case(
        build=_of(lambda x: x.mean(0)), call=lambda rows=16: _given(torch.randn(rows, 8)), shapes=True, inside=({"rows": 5000},)
    ),
    "positions": Case(
        build=_of(_positions),
        call=lambda batch=2, length=5: _given(torch.randn(batch, length, 3)),
        shapes=True,
        inside=({"batch": 3},),
        outside=({"length": 9},),  # `math.sqrt` of a size fixes it
    ),
    "an image twice as large": Case(
        build=_of(lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear")),
        call=_image,
        shapes={"x": {0: BATCH, 2: Dim("height"), 3: Dim("side")}},
        inside=({"side": 5}, {"batch": 1, "side": 12}),
        outside=({"channels": 4},),
    ),
    "after verify with another size": Case(
        build=_of(_window),
        call=lambda columns=5: _given(torch.randn(2, columns)),
        shapes=True,
        inside=({"columns": 6},),
        verify={"columns": 12},
    ),
    "compiled with gradients": Case(
        build=_layers(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)),
        shapes={"input": {0: BATCH}},
        inside=({"batch": 5},),
        grad=True,
        always=True,
    ),
}

_LAYERS = {
    "convolutions": Case(
        build=PROGRAMS["convolutions"].build, call=_image, shapes={"input": {0: BATCH}}, inside=({"batch": 1},), outside=({"side": 10},)
    ),
    "channels last": Case(
        build=_layers(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(2)),
        call=lambda batch=2: _given(torch.randn(batch, 3, 8, 8).to(memory_format=torch.channels_last)),
        shapes={"input": {0: BATCH}},
        inside=({"batch": 3}, {"batch": 1}),
    ),
    "signals": Case(
        build=_layers(nn.Conv1d(2, 3, 3, padding=1), nn.MaxPool1d(2), nn.ConvTranspose1d(3, 2, 2, 2), nn.InstanceNorm1d(2)),
        call=lambda batch=2: _given(torch.randn(batch, 2, 8)),
        shapes={"input": {0: BATCH}},
        inside=({"batch": 1}, {"batch": 5}),
    ),
    "norms": Case(
        build=_layers(nn.LayerNorm(6), nn.Unflatten(1, (6, 1)), nn.GroupNorm(3, 6), nn.Flatten(), nn.RMSNorm(6), nn.GELU()),
        call=lambda batch=3: _given(torch.randn(batch, 6)),
        shapes={"input": {0: BATCH}},
        inside=({"batch": 5}, {"batch": 1}),
    ),
    "an encoder with padding": Case(
        build=lambda: _Encoder().eval(),
        call=lambda batch=2, length=5: _given(torch.randn(batch, length, 8), torch.arange(length).expand(batch, length) > 2),
        shapes={"src": {0: BATCH, 1: Dim("length")}, "padding": {0: BATCH, 1: Dim("length")}},
        inside=({"batch": 4, "length": 7},),
    ),
    "masked attention": Case(
        build=_Attending,
        call=lambda batch=2, length=5: _given(
            torch.randn(batch, 2, length, 4), torch.randn(batch, 2, 6, 4), torch.rand(batch, 1, length, 6) > 0.3
        ),
        shapes={"query": {0: BATCH, 2: Dim("length")}, "key": {0: BATCH}, "mask": {0: BATCH, 2: Dim("length")}},
        inside=({"batch": 3, "length": 2},),
    ),
    "attention": _program("attention"),
    "recurrent steps": _program("recurrent"),
    "a long short-term memory": Case(
        build=lambda: _Lstm().eval(),
        call=lambda batch=2: _given(torch.randn(batch, 3, 4), (torch.randn(1, batch, 5), torch.randn(1, batch, 5))),
        outputs=("output_0", "output_1.0", "output_1.1"),
        shapes={"x": {0: BATCH}, "state": ({1: BATCH}, {1: BATCH})},
        inside=({"batch": 5},),
        refused=frozenset({"compiled"}),
    ),
    "a bag of embeddings": Case(
        build=lambda: nn.EmbeddingBag(9, 4, mode="mean").eval(), call=lambda batch=2: _given(torch.randint(0, 9, (batch, 3)))
    ),
    "a branch on data": Case(build=_Branching, refused=ALL_ROADS),
    "narrow floats": Case(
        build=lambda: _layers(nn.Linear(4, 6), nn.GELU())().half(),
        call=lambda batch=3: _given(torch.randn(batch, 4).half()),
        shapes={"input": {0: BATCH}},
        inside=({"batch": 5},),
    ),
    "infinite mask": _program("infinite mask", shapes=True),
    "rounding decides": _program("rounding decides"),
    "whole numbers": _program("whole numbers"),
    "writes to its argument": _program("writes to its input", outputs=("output_0", "x.updated"), written=("x",)),
    "dropout": Case(build=lambda: nn.Dropout(0.5).train(), refused=ALL_ROADS),
    "a Fourier transform": Case(build=_of(lambda x: torch.fft.fft(x).abs()), refused=ALL_ROADS),
}

_REWRITES = {
    "a sum with 0.0": Case(build=_of(lambda x: 1 / ((-x) + 0.0)), call=lambda: _given(torch.tensor([0.0, 2.0]))),
    "no rows": Case(build=_of(lambda x: torch.neg(torch.neg(x).expand(0, 3))), call=lambda: _given(torch.ones(1, 3))),
    "a scale wider than its rows": Case(build=_Scale, call=lambda: _given(torch.tensor([[0.5], [1.5]])), always=True),
}

_MODELS = {
    "BertModel": _architecture("BertModel", "last_hidden_state", "pooler_output"),
    "LlamaForCausalLM": _architecture("LlamaForCausalLM", "logits"),
    "T5Model": _architecture(
        "T5Model",
        "last_hidden_state",
        "encoder_last_hidden_state",
        inputs=("input_ids", "decoder_input_ids"),  # torch.onnx.export fails
    ),
    "WhisperModel": _architecture("WhisperModel", "last_hidden_state", "encoder_last_hidden_state"),
}

CASES: dict[str, Case] = {**_ARGUMENTS, **_RESULTS, **_CACHES, **_SIZES, **_LAYERS, **_REWRITES, **_MODELS}
