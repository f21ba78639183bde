"""Weights: as constants of a session, in torch's memory, and watched for changes."""

import linecache
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from ortlens.backend.recording.records import changed_at
from ortlens.backend.runtime import weights


def scaling_model(size: int = 3) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]> g (bool[{size}] mask, float[{size}] x, float[{size}] w) => (float[{size}] y)
        {{ y = Where(mask, x, w) }}"""
    )


def frozen(name: str, tensor: torch.Tensor) -> weights.FrozenWeight:
    note = weights.freeze(name, tensor)
    assert note is not None
    return note


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_frozen_inputs_become_constants_with_their_values(inline: bool, transposed: bool) -> None:  # noqa: FBT001 - parameters
    weight = torch.rand(3, 2).t()[1] if transposed else torch.rand(3)
    mask = torch.tensor([True, False, False])
    notes = [frozen("w", weight), frozen("mask", mask)]
    model = scaling_model()
    before = model.SerializeToString()
    made = weights.with_frozen(model, notes, inline_bytes=math.inf if inline else -1)
    assert model.SerializeToString() == before
    assert [value.name for value in made.graph.input] == ["x"]
    options = onnxruntime.SessionOptions()
    if not inline:
        weights.add_initializers(notes, options, frozenset())
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": np.ones(3, dtype=np.float32)})
    torch.testing.assert_close(torch.from_numpy(result), torch.where(mask, torch.ones(3), weight))


def test_the_bytes_stay_outside_the_model_unless_asked_for() -> None:
    note = frozen("w", torch.rand(5000))
    outside, inside = (
        weights.with_frozen(scaling_model(size=5000), [note], inline_bytes=math.inf if inline else -1) for inline in (False, True)
    )
    assert len(outside.SerializeToString()) < 1000
    assert len(inside.SerializeToString()) > 20_000


def test_no_elements() -> None:
    for inline in (True, False):
        made = weights.with_frozen(scaling_model(size=0), [frozen("w", torch.empty(0))], inline_bytes=math.inf if inline else -1)
        assert list(made.graph.initializer[0].dims) == [0]


def test_what_cannot_be_watched_is_not_frozen() -> None:
    with torch.inference_mode():
        unversioned = torch.rand(3)
    assert [
        weights.freeze("w", value) for value in (unversioned, 3, None, torch.rand(2, 2).to_sparse(), torch.empty(2, device="meta"))
    ] == [None] * 5


PAST_THE_COUNTER: dict[str, Callable[[torch.Tensor], object]] = {
    "added": lambda data: data.add_(1),
    "scaled": lambda data: data.mul_(1.01),
    "pruned": lambda data: data.mul_(data.abs() > data.abs().median()),
    "clamped_below": lambda data: data.clamp_(min=0),
    "clamped_above": lambda data: data.clamp_(max=0),
    "even_rows": lambda data: data[::2].zero_(),
    "odd_rows": lambda data: data[1::2].zero_(),
    "some_columns": lambda data: data[:, ::4].zero_(),
    "half": lambda data: data[: data.shape[0] // 2].mul_(2),
    "numpy": lambda data: np.multiply(data.numpy(), 2, out=data.numpy()),
}


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("name", PAST_THE_COUNTER)
def test_writes_past_the_counter_show_in_the_sample(name: str, layout: str) -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        made = torch.randn(64, 48) if layout == "rows" else torch.randn(48, 64).t()
        parameter = torch.nn.Parameter(made)
        note = weights.freeze("w", parameter)
        assert note is not None
        assert note.is_still(parameter)
        PAST_THE_COUNTER[name](parameter.data)
        assert not note.is_still(parameter)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.int64])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4), (7, 1, 2)])
def test_every_size_of_element_and_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    note = weights.freeze("w", tensor)
    assert note is not None
    assert note.is_still(tensor)
    tensor.data.fill_(1)
    assert note.is_still(tensor) == (tensor.numel() == 0)


def test_a_counted_write_between_the_samples_is_seen_by_its_count() -> None:
    weight = torch.zeros(64, 64)
    note = weights.freeze("w", weight)
    assert note is not None
    weight.view(-1)[1] = 1.0  # the sample begins with element 0
    assert note.sample == note.sampled
    assert not note.is_still(weight)


FACTOR = "a = MatMul(x, w)"
MODELS: dict[str, tuple[str, set[str]]] = {
    "factors of products": (f"{FACTOR} y = Gemm<transB=1>(v, a)", {"w", "v"}),
    "also added": (f"{FACTOR} y = Add(a, w)", set()),
    "also the third operand of a product": (f"{FACTOR} y = Gemm(a, v, w)", {"v"}),
    "also transposed": (f"{FACTOR} y = Transpose(w)", set()),
    "also joined": (f"{FACTOR} y = Concat<axis=0>(a, w)", set()),
    "also in an operator of others": (f"{FACTOR} y = com.example.MatMul(a, w)", set()),
    "also in a graph inside a node": (
        f"{FACTOR} y = If<then_branch = t () => (b) {{b = Identity(w)}}, else_branch = e () => (b) {{b = Identity(w)}}>(c)",
        set(),
    ),
    "also an output": ("y = MatMul(x, w) u = Identity(y)", set()),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_only_products_read_can_be_shared(name: str) -> None:
    nodes, expected = MODELS[name]
    outputs = "float[4,4] y, float[4,4] w" if "output" in name else "float[4,4] y"
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18, "com.example" : 1]> g (float[4,4] x, bool c) => ({outputs})
        <float[1,1] w = {{0}}, float[1,1] v = {{0}}> {{ {nodes} }}"""
    )
    for weight in model.graph.initializer:
        weight.dims[:], weight.float_data[:] = [4, 4], [0.0] * 16
    assert weights.shareable(model) == expected


def arrays_of(*sizes: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    generator = np.random.default_rng(1)
    return {f"w{number}": generator.integers(256, size=size, dtype=np.uint8) for number, size in enumerate(sizes)}


def calls_until_noticed(watched: weights.WeightWatch) -> int:
    return next(call for call in range(1, weights.CALLS + 2) if not watched.is_next_intact())


SIZES = [(5000,), (4097, 4099, 8192), (1 << 16, 3 * 4096 + 5), ((1 << 20) + 3, 4101, 1 << 19), (3 << 20,)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_one_changed_byte_anywhere_is_noticed_within_the_calls_that_it_states(sizes: tuple[int, ...]) -> None:
    arrays = arrays_of(*sizes)
    watched = weights.WeightWatch({name: array.data for name, array in arrays.items()})
    assert 0 < watched.calls <= weights.CALLS
    for _ in range(watched.calls + 1):
        assert watched.is_next_intact()
    noticed = []
    for name, array in arrays.items():
        for place in {0, 1, 7, 8, len(array) // 3, 2 * len(array) // 3, len(array) - 9, len(array) - 1}:
            array[place] ^= 0x80
            noticed.append(calls_until_noticed(watched))
            assert watched.changed() == {name}
            array[place] ^= 0x80
    assert max(noticed) <= watched.calls
    assert watched.changed() == frozenset()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8])
def test_checksums_see_what_plain_sums_miss(dtype: type) -> None:
    array: np.ndarray[Any, Any] = (np.arange((2 << 20) // np.dtype(dtype).itemsize) % 99 + 1).astype(dtype)
    watched = weights.WeightWatch({"w": array.data.cast("B")})
    before = array.copy()
    array[[1, 3]] *= -1  # two signs: their products with odd numbers cancel out
    assert watched.changed() == {"w"}
    array[:] = before
    array[[10, 20]] = array[[20, 10]]
    assert watched.changed() == {"w"}
    array[:] = before
    array[:64] = array[64:128]
    assert watched.changed() == {"w"} or (before[:64] == before[64:128]).all()
    array[:] = before
    assert watched.changed() == frozenset()


def test_nothing_to_watch() -> None:
    assert weights.WeightWatch({}).calls == 0


FILE = "/home/user/program.py"
PROGRAM = """\
class Net:
    def __init__(self):
        self.weight = made()
        self.table.weight = made()
def assign():
    net.layers[0].weight = made()
    net.head.bias, other = made(), 1
    setattr(net.head, "scale", made())
    net.register_buffer("state", made())
def write():
    net.head.weight.data.mul_(2)
    net.head.gain[0] = 1
    net.head.shift += 1
    torch.nn.init.zeros_(net.head.zero)
    net.twice.add_(1)
    net.twice.add_(1)
def call():
    return look()
"""


def line_of(weight: str, *, is_new: bool) -> int | None:
    """Find the line as a call from that file does."""
    linecache.cache[FILE] = (len(PROGRAM), None, PROGRAM.splitlines(keepends=True), FILE)
    names = {"look": lambda: changed_at([weight], is_new=is_new)}
    exec(compile("def call():\n    return look()", FILE, "exec"), names)  # noqa: S102 - a text of this file
    place = names["call"]()
    return place and place.line


@pytest.mark.parametrize(
    ("weight", "is_new", "line"),
    [
        ("layers.0.weight", True, 6),
        ("head.bias", True, 7),
        ("head.scale", True, 8),
        ("state", True, 9),
        ("head.weight", False, 11),
        ("head.gain", False, 12),
        ("head.shift", False, 13),
        ("head.zero", False, 14),
        ("twice", False, None),  # two lines can have
        ("layers.0.weight", False, None),  # that line is about another module
        ("table.weight", True, None),  # at first, in the constructor
        ("unknown", True, None),
    ],
)
def test_the_one_line_that_can_have_changed_a_weight(weight: str, is_new: bool, line: int | None) -> None:  # noqa: FBT001 - a row of the table
    assert line_of(weight, is_new=is_new) == line
