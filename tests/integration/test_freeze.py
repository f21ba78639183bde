"""A frozen callable does what its source does, refuses what it was not traced for, and never shares memory between calls."""

from __future__ import annotations

import copy
import math
import os
import re
import subprocess
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import ortlens
from ortlens import _torch
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def same(actual: Any, expected: Any) -> None:  # noqa: ANN401 - results of any structure
    """Same structure, and tensors with the same dtype, shape and values."""
    given, wanted = _pytree.tree_flatten(actual), _pytree.tree_flatten(expected)
    assert given[1] == wanted[1]
    for left, right in zip(given[0], wanted[0], strict=True):
        if isinstance(right, torch.Tensor):
            assert not left.requires_grad
            torch.testing.assert_close(left, right.detach(), atol=1e-5, rtol=1e-5)
        else:
            assert type(left) is type(right)
            assert left == right


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, parts: dict[str, Any], scale: float = 2.0, *, mask: torch.Tensor | None = None) -> dict[str, Any]:
        y = self.linear(x) * scale + parts["pair"][0] - parts["shift"]
        y = y if mask is None else y.masked_fill(mask, 0.0)
        return {"y": y, "list": [y.sum(), (x, 3)], "nothing": None, "t": x.t()}


def nested_inputs(*, negative: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.randn(4, 8) * (-1 if negative else 1)
    return (x, {"shift": torch.randn(()), "pair": (torch.randn(8), torch.randn(3))}), {"mask": x > 0.5}


def test_nested_arguments_and_results() -> None:
    model = Nested().eval()
    args, kwargs = nested_inputs()
    frozen = ortlens.freeze(model, *args, **kwargs)
    for _ in range(3):
        args, kwargs = nested_inputs()
        same(frozen(*args, **kwargs), model(*args, **kwargs))


def test_arguments_may_be_passed_in_another_way() -> None:
    model = Nested().eval()
    (x, parts), kwargs = nested_inputs()
    frozen = ortlens.freeze(model, x, parts, **kwargs)
    expected = model(x, parts, **kwargs)
    same(frozen(parts=parts, x=x, scale=2.0, **kwargs), expected)
    same(frozen(x, dict(reversed(parts.items())), **kwargs), expected)
    same(frozen(nn.Parameter(x, requires_grad=False), parts, **kwargs), expected)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, p, m: ((x.double(), p), {"mask": m}), r"x: expected f32\[4,8\], given f64\[4,8\]"),
        (lambda x, p, m: ((x[:3], p), {"mask": m}), r"x: expected f32\[4,8\], given f32\[3,8\]"),
        (lambda x, p, m: ((x[None], p), {"mask": m}), r"x: expected f32\[4,8\], given f32\[1,4,8\]"),
        (lambda x, p, _m: ((x, p), {"mask": None}), r"mask: expected bool\[4,8\], given None"),
        (lambda x, p, _m: ((x, p), {}), r"mask: expected bool\[4,8\], given None"),
        (lambda x, p, m: ((x, p, 3.0), {"mask": m}), r"scale: left out, for 2.0, in tracing, given 3.0"),
        (lambda x, p, m: ((x, {"shift": p["shift"]}), {"mask": m}), "another structure"),
        (lambda x, p, m: ((x, [p]), {"mask": m}), "another structure"),
        (lambda x, p, m: ((x, p), {"mask": m, "other": 1}), "unexpected keyword argument 'other'"),
        (
            lambda x, p, m: ((x.to_sparse(), p), {"mask": m}),
            r"x: expected f32\[4,8\], given a sparse tensor \(torch.sparse_coo\); pass dense",
        ),
        (lambda x, p, m: ((x, {**p, "shift": 1.0}), {"mask": m}), r"parts\['shift'\]: expected f32\[\], given 1.0"),
    ],
)
def test_what_differs_is_named(change: Callable[..., Any], said: str) -> None:
    args, kwargs = nested_inputs()
    frozen = ortlens.freeze(Nested().eval(), *args, **kwargs)
    args, kwargs = change(*args, kwargs["mask"])
    with pytest.raises(UsageError, match=said):
        frozen(*args, **kwargs)


class Doubling(torch.Tensor):
    """A class of tensors with operators of its own."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # noqa: ANN401 - PyTorch's annotation is of another function
        return 2 * super().__torch_dispatch__(function, types, args, kwargs or {})


UNUSUAL = [
    (lambda: torch.eye(4, 8).to_sparse_coo(), r"a sparse tensor \(torch.sparse_coo\)", "convert it with .to_dense"),
    (lambda: torch.eye(4, 8).to_sparse_csr(), r"a sparse tensor \(torch.sparse_csr\)", "convert it with .to_dense"),
    (lambda: torch.eye(4, 8).to_mkldnn(), r"an oneDNN tensor \(torch._mkldnn\)", "convert it with .to_dense"),
    (
        lambda: torch.quantize_per_tensor(torch.eye(4, 8), 0.1, 0, torch.qint8),
        r"a quantized tensor \(torch.qint8\)",
        "convert it with .dequantize",
    ),
    (lambda: torch.nested.nested_tensor([torch.ones(2, 8)]), "a nested tensor", "pad it"),
    (lambda: torch.nested.nested_tensor([torch.ones(2, 8)], layout=torch.jagged), "a nested tensor", "pad it"),
    (
        lambda: torch.eye(4, 8).as_subclass(Doubling),
        "a tensor of the class Doubling, which has its own operators",
        "pass the plain tensors",
    ),
]
"""Makes a tensor that a frozen callable does not take; what it is, and what to do."""


@pytest.fixture
def no_warnings() -> Iterator[None]:
    """PyTorch warns of sparse CSR, nested and quantized tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("no_warnings")
@pytest.mark.parametrize(("make", "what", "remedy"), UNUSUAL)
def test_tensors_that_are_not_dense_are_refused_by_name_before_tracing(make: Callable[[], torch.Tensor], what: str, remedy: str) -> None:
    def function(x: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
        raise AssertionError(x, parts)

    with pytest.raises(UsageError, match=rf"function cannot be frozen: parts\[0\] is {what}, not a dense one: {remedy}.* torch.compile"):
        ortlens.freeze(function, torch.ones(4, 8), [make()])


@pytest.mark.usefixtures("no_warnings")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(("make", "what"), [case[:2] for case in UNUSUAL])
def test_calls_with_tensors_that_are_not_dense_say_what_they_are(
    make: Callable[[], torch.Tensor],
    what: str,
    dynamic: bool | None,  # noqa: FBT001 - a parameter
) -> None:
    frozen = ortlens.freeze(nn.ReLU(), torch.ones(4, 8), dynamic=dynamic)
    with pytest.raises(UsageError, match=rf"expected f32\[\S+, given {what}; pass dense tensors, or fallback="):
        frozen(make())


def test_a_class_of_tensors_without_operators_of_its_own_is_taken() -> None:
    class Named(torch.Tensor):
        pass

    x = torch.randn(4, 8)
    frozen = ortlens.freeze(nn.ReLU(), x.as_subclass(Named))
    same(frozen(x), x.relu())
    same(frozen(x.as_subclass(Named)), x.relu())


class Held(nn.Module):
    def __init__(self, held: torch.Tensor) -> None:
        super().__init__()
        self.adj = nn.Buffer(held)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(self.adj, x).relu()


def test_a_sparse_buffer_stays_in_pytorch() -> None:
    model, x = Held(torch.eye(5).to_sparse_coo()), torch.randn(5, 5)
    same(ortlens.freeze(model, x)(x), model(x))


@pytest.mark.usefixtures("no_warnings")
@pytest.mark.parametrize("make", [torch.Tensor.to_mkldnn, lambda dense: torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)])
def test_weights_that_a_trace_would_take_for_dense_are_refused(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for target in (Held(make(torch.eye(5))), Held(make(torch.eye(5))).forward):
        with pytest.raises(UsageError, match=r"cannot be frozen: adj is an? .*, not a dense one: convert it with .*, or leave"):
            ortlens.freeze(target, torch.ones(5, 5))


def test_a_sparse_variable_of_a_function_is_refused() -> None:
    adj = torch.eye(5).to_sparse_coo()
    with pytest.raises(UsageError, match=r"a variable that it reads is a sparse tensor .*, or register it as a buffer of a module"):
        ortlens.freeze(lambda x: torch.mm(adj, x).relu(), torch.ones(5, 5))


def test_a_sparse_argument_of_an_exported_program_is_refused() -> None:
    class Product(nn.Module):
        def forward(self, adj: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(adj, x).relu()

    program = torch.export.export(Product(), (torch.eye(5).to_sparse_coo(), torch.ones(5, 5)), strict=False)
    with pytest.raises(UsageError, match=r"args\[0\] is a sparse tensor"):
        ortlens.freeze(program)
    program.example_inputs = None
    with pytest.raises(UsageError, match="takes dense tensors, not a sparse tensor"):
        ortlens.freeze(program)


def test_a_lens_refuses_sparse_arguments_too() -> None:
    with torch.no_grad():
        lens = ortlens.explain(nn.ReLU(), calls=1)(torch.ones(5, 5))
    with pytest.raises(UsageError, match="is a sparse tensor"):
        lens.freeze(torch.eye(5).to_sparse_coo())


def test_the_fallback_gets_what_is_outside_the_signature() -> None:
    model = mlp()
    frozen = ortlens.freeze(model, torch.randn(3, 16), fallback=lambda x: ("fallback", model(x)))
    x = torch.randn(5, 16)
    name, result = frozen(x)
    assert name == "fallback"
    same(result.detach(), model(x))
    same(frozen(x[:3]), model(x[:3]))


def test_constants_are_checked() -> None:
    def function(x: torch.Tensor, times: int, name: str, flag: bool) -> torch.Tensor:  # noqa: FBT001 - a constant of each kind
        return x * times + len(name) if flag else x

    x, flag = torch.randn(3), True
    frozen = ortlens.freeze(function, x, 2, "ab", flag)
    same(frozen(x, 2, "ab", flag), function(x, 2, "ab", flag))
    with pytest.raises(UsageError, match=r"times: expected 2 \(constant since tracing\), given 3"):
        frozen(x, 3, "ab", flag)
    with pytest.raises(UsageError, match=r"flag: expected True \(constant since tracing\), given 1"):
        frozen(x, 2, "ab", 1)
    with pytest.raises(UsageError, match="name: expected 'ab'"):
        frozen(x, 2, "abc", flag)


@pytest.mark.parametrize(
    ("traced", "given", "taken"), [(math.nan, float("nan"), True), (0.0, -0.0, False), (-0.0, 0.0, False), (-0.0, -0.0, True)]
)
def test_constants_are_the_same_number(traced: float, given: float, taken: bool) -> None:  # noqa: FBT001 - a parameter
    def function(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x / (x * scale)

    x = torch.ones(3)
    call = ortlens.freeze(function, x, traced)
    if not taken:
        with pytest.raises(UsageError, match="scale: expected"):
            call(x, given)
        return
    torch.testing.assert_close(call(x, given), function(x, given), equal_nan=True)


def test_sizes_vary() -> None:
    model = mlp()
    frozen = ortlens.freeze(model, torch.randn(3, 16), dynamic=True)
    for rows in (2, 7, 3, 64, 7):
        x = torch.randn(rows, 16)
        same(frozen(x), model(x))
    with pytest.raises(UsageError, match=r"given f32\[7,15\]"):
        frozen(torch.randn(7, 15))
    assert "1 partitions, 0 nodes in PyTorch" in repr(frozen)


def test_sizes_that_guards_exclude_raise() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y).view(x.shape[0] // 2, 2, -1).sum(1) if x.shape[0] > 3 else x

    batch = torch.export.Dim("batch", min=4, max=32)
    shapes = {"x": {0: 2 * batch}, "y": {0: 2 * batch}}
    frozen = ortlens.freeze(function, torch.randn(12, 4), torch.randn(12, 4), dynamic_shapes=shapes)
    for rows in (8, 10, 64):
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        same(frozen(x, y), function(x, y))
    for left, right in ((6, 6), (9, 9), (66, 66), (8, 10)):
        x, y = torch.randn(left, 4), torch.randn(right, 4)
        with pytest.raises(UsageError, match=r"expected|Guard failed"):
            frozen(x, y)


def test_sizes_as_results_and_sizes_derived_from_others() -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        return x.flatten(), x.shape[0] * 2, torch.zeros(x.shape[0], 3) + x.sum()

    frozen = ortlens.freeze(function, torch.randn(4, 5), dynamic=True)
    for rows, columns in ((3, 2), (6, 9)):
        x = torch.randn(rows, columns)
        same(frozen(x), function(x))


class Counting(nn.Module):
    mean: torch.Tensor
    calls: torch.Tensor
    kept: torch.Tensor

    def __init__(self, rows: int = 8) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(rows))
        self.register_buffer("calls", torch.tensor(0), persistent=False)
        self.register_buffer("kept", torch.ones(rows))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = self.mean.clone()
        self.mean.mul_(0.9).add_(x.mean(0))
        self.calls += 1
        return x + self.mean * self.kept, before, self.mean


def test_buffers_that_calls_change_are_state_of_the_frozen_callable() -> None:
    model = Counting()
    plain = copy.deepcopy(model)
    frozen = ortlens.freeze(model, torch.randn(4, 8))
    kept = []
    for _ in range(3):
        x = torch.randn(4, 8)
        kept.append((frozen(x), [item.clone() for item in plain(x)]))
        torch.testing.assert_close(frozen.state["mean"], plain.mean)
    for actual, expected in kept:
        same(actual, tuple(expected))
    assert sorted(frozen.state) == ["calls", "mean"]
    assert int(frozen.state["calls"]) == 3
    assert int(model.calls) == 0
    assert not model.mean.any()
    frozen.state["mean"].zero_()
    x = torch.randn(4, 8)
    same(frozen(x)[1], torch.zeros(8))


class Namesake(torch.nn.Module):
    x: torch.Tensor
    y: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("x", torch.zeros(3))
        self.register_buffer("y", torch.ones(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.x.add_(x.sum(0))
        y.mul_(2)
        return x + y + self.x + self.y


@pytest.mark.parametrize("road", ["frozen", "loaded", "exported"])
def test_buffers_and_arguments_of_the_same_names(road: str, tmp_path: Path) -> None:
    model = Namesake()
    plain, given = copy.deepcopy(model), (torch.randn(2, 3), torch.randn(2, 3))
    run: Any
    if road == "exported":
        run = ortlens.Lens().compile_exported(torch.export.export(model, given))
    else:
        run = ortlens.freeze(model, *given)
        run = ortlens.load_frozen(run.save(tmp_path / "frozen")) if road == "loaded" else run
    for _ in range(2):
        expected = [item.clone() for item in given]
        wanted = plain(*expected)
        same((torch.as_tensor(run(*given)), *given), (wanted, *expected))
    assert list(getattr(run, "state", {"x": 0})) == ["x"]
    state = model.x if road == "exported" else torch.as_tensor(run.state["x"])
    torch.testing.assert_close(state, plain.x)


@pytest.mark.parametrize("start", [1, 4])
def test_state_lies_in_memory_as_in_the_module(start: int) -> None:
    class Windowed(nn.Module):
        b: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.arange(9.0)[start::2])

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            before = self.b.as_strided((2,), (3,), 5) * 2
            self.b.add_(x.sum())
            return before, self.b

    model, x = Windowed(), torch.ones(3)
    frozen = ortlens.freeze(model, x)
    assert frozen.state["b"].stride() == model.b.stride()
    for _ in range(2):
        same(frozen(x), tuple(item.clone() for item in copy.deepcopy(model)(x)))
        frozen.state["b"].sub_(3)


class Cache(nn.Module):
    """A buffer that is large enough to be written in place."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(512, 1024))

    def forward(self, place: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.cache.index_copy_(0, place, row)
        return self.cache.sum(0), self.cache


def test_a_large_buffer() -> None:
    model = Cache()
    plain = copy.deepcopy(model)
    frozen = ortlens.freeze(model, torch.tensor([0]), torch.randn(1, 1024))
    kept = []
    for place in range(3):
        row = torch.randn(1, 1024)
        expected = [item.clone() for item in plain(torch.tensor([place]), row)]
        kept.append((frozen(torch.tensor([place]), row), expected))
    for actual, expected in kept:
        same(actual, tuple(expected))
    torch.testing.assert_close(frozen.state["cache"], plain.cache)


def test_an_input_that_is_written() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    frozen = ortlens.freeze(function, torch.zeros(4), torch.zeros(4))
    x, y = torch.randn(4), torch.randn(4)
    ours, plain = x.clone(), x.clone()
    same(frozen(ours, y), function(plain, y))
    torch.testing.assert_close(ours, plain)


def test_results_that_share_memory() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return x, x.t(), x[0], y, y.view(-1), y, x.view(2, 2, 2)

    x = torch.randn(4, 2)
    frozen = ortlens.freeze(function, x)
    given, transposed, row, made, flat, again, viewed = frozen(x)
    same((given, transposed, row, made, flat, again, viewed), function(x))
    assert given is x
    assert again is made
    row.fill_(7.0)
    assert (x[0] == 7.0).all()
    assert (transposed[:, 0] == 7.0).all()
    made.zero_()
    assert not flat.any()
    viewed.zero_()
    assert not x.any()


def test_calls_share_no_memory() -> None:
    model = mlp()
    x = torch.randn(3, 16)
    frozen = ortlens.freeze(model, x)
    first = frozen(x)
    expected = model(x)
    x.zero_()
    second = frozen(x)
    same(first, expected)
    first.fill_(1.0)
    same(second, model(x))
    same(frozen(x), model(x))


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(16, 3).t(),
        torch.randn(3, 32)[:, ::2],
        torch.randn(1, 16).expand(3, 16),
        torch.randn(3, 16, dtype=torch.complex64).conj().imag,
    ],
)
def test_tensors_that_lie_otherwise(x: torch.Tensor) -> None:
    model = mlp()
    same(ortlens.freeze(model, torch.randn(3, 16))(x), model(x))


def test_empty_and_0d_tensors() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.cat([x, x + y]), x.sum() + y, y * 2

    for rows in (0, 3):
        x, y = torch.randn(rows, 2), torch.randn(())
        frozen = ortlens.freeze(function, x, y)
        for _ in range(2):
            same(frozen(x, y), function(x, y))


def test_without_inputs_and_without_results() -> None:
    same(ortlens.freeze(lambda: torch.arange(3) + 1)(), torch.arange(3) + 1)
    assert ortlens.freeze(lambda x: None, torch.ones(2))(torch.ones(2)) is None  # noqa: ARG005 - its result is nothing
    assert ortlens.freeze(lambda x: (), torch.ones(2))(torch.ones(2)) == ()  # noqa: ARG005 - likewise


def mixed(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x @ weight).softmax(-1)
    values = torch.linalg.svdvals(y)
    return (y * values.sum()).sum(0), torch.linalg.det(y[:, :4] + values[:4]).exp()


def test_pytorch_between_partitions() -> None:
    x, weight = torch.randn(4, 8), torch.randn(8, 8)
    frozen = ortlens.freeze(mixed, x, weight)
    assert len(frozen.graph.runners) >= 2
    assert frozen.graph.left_in_torch()
    for _ in range(3):
        x = torch.randn(4, 8)
        same(frozen(x, weight), mixed(x, weight))


def test_an_embedding_is_no_argument_of_a_call() -> None:
    model = nn.Sequential(nn.Embedding(3000, 16), nn.Linear(16, 4)).eval()
    tokens = torch.randint(3000, (2, 5))
    frozen = ortlens.freeze(model, tokens)
    for _ in range(2):
        tokens = torch.randint(3000, (2, 5))
        same(frozen(tokens), model(tokens))
    with pytest.raises(IndexError):
        frozen(torch.full((2, 5), 3000))
    same(frozen(tokens), model(tokens))


def test_four_threads_at_once() -> None:
    model = mlp()
    frozen = ortlens.freeze(model, torch.randn(6, 16), dynamic=True)
    inputs = [torch.randn(rows, 16) for rows in (2, 6, 11, 30)]
    expected = [model(x).detach() for x in inputs]
    wrong: list[int] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        wrong.extend(number for _ in range(300) if not torch.allclose(frozen(inputs[number]), expected[number], atol=1e-5))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_that_share_state_count_each_call() -> None:
    frozen = ortlens.freeze(Counting(), torch.randn(4, 8))
    threads = [threading.Thread(target=lambda: [frozen(torch.ones(4, 8)) for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(frozen.state["calls"]) == 400


def test_a_write_to_a_weight_is_known() -> None:
    model = mlp()
    x = torch.randn(3, 16)
    frozen = ortlens.freeze(model, x)
    assert frozen.changed_weights() == ()
    with torch.no_grad():
        model.get_parameter("0.weight").add_(1.0)
    assert frozen.changed_weights() == ("0.weight",)


def test_a_graph_break_is_refused_with_its_place() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + 1
        return x.sin()

    with pytest.raises(UsageError, match=r"(?s)function cannot be frozen.*test_freeze.py:\d+: Data-dependent branching.*torch.where"):
        ortlens.freeze(function, torch.ones(3))


SAMPLING = """
import torch, ortlens
from torch.distributions import Categorical, Distribution

linear = torch.nn.Linear(4, 3).eval()
def act(x, check=None):
    chosen = Categorical(logits=linear(x), validate_args=check)
    action = chosen.sample()
    return action, chosen.log_prob(action)

x = torch.randn(6, 4)
with torch.no_grad():
    print(ortlens.freeze(act, x)(x)[0].shape, Distribution._validate_args)
    for _ in range(2):
        try:
            ortlens.freeze(act, x, True)
        except ortlens.UsageError as error:
            print(str(error).partition("tracing raised ")[2].split(": ")[0], Distribution._validate_args)
        torch.compile(act, backend="eager")(x)
        print(Distribution._validate_args)
    Distribution.set_default_validate_args(True)
    print(ortlens.freeze(act, x)(x)[1].shape, Distribution._validate_args)
"""


def test_sampling_is_frozen_whatever_the_process_did_before(tmp_path: Path) -> None:
    script = tmp_path / "sampling.py"
    script.write_text(SAMPLING, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = [line for line in done.stdout.splitlines() if line.startswith(("torch.Size", "Guard", "False", "True"))]
    place = f"GuardOnDataDependentSymNode at {script}:7"
    # An error is explained with `torch.compile`, whose first call switches the check off for the rest of the process.
    assert lines == ["torch.Size([6]) True", f"{place} False", "False", f"{place} False", "False", "torch.Size([6]) True"]


def test_a_refusal_leaves_arguments_modules_and_generators_as_they_were() -> None:
    class Broken(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            self.calls += 1
            x.unsqueeze_(0).mul_(torch.rand(()))
            return x * float(x.sum())

    model, x, state = Broken(), torch.ones(3), torch.get_rng_state()
    with pytest.raises(UsageError):
        ortlens.freeze(model, x)
    assert x.tolist() == [1, 1, 1]
    assert (model.calls, model.count.item()) == (0, 0)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_line_that_stops_a_trace_is_named() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[: int(x.sum())] if x.sum() > 0 else x

    with pytest.raises(UsageError, match=rf"tracing raised GuardOnDataDependentSymNode at {re.escape(__file__)}:\d+: Could not guard"):
        ortlens.freeze(function, torch.ones(3))


def test_distributions_are_checked_again_after_a_trace_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # else what explains the failure switches the check off
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def function(x: torch.Tensor) -> torch.Tensor:
        assert not torch.distributions.Distribution._validate_args
        raise ZeroDivisionError(x.shape)

    with _torch.unchecked_distributions(), pytest.raises(UsageError, match="ZeroDivisionError"):
        ortlens.freeze(function, torch.ones(3))
    assert torch.distributions.Distribution._validate_args


def test_a_lens_freezes_what_it_explained() -> None:
    model = mlp()
    x = torch.randn(3, 16)
    with torch.no_grad():
        lens = ortlens.explain(model, calls=1)(x)
    same(lens.freeze()(x), model(x))
    y = torch.randn(5, 16)
    same(lens.freeze(y)(y), model(y))


def test_an_exported_program_and_a_method() -> None:
    model = mlp()
    x = torch.randn(3, 16)
    same(ortlens.freeze(torch.export.export(model, (x,)))(x), model(x))
    same(ortlens.freeze(model.forward, x)(x), model(x))


def test_options_that_are_arguments_of_the_target() -> None:
    def function(x: torch.Tensor, options: torch.Tensor) -> torch.Tensor:
        return x + options

    x = torch.ones(2)
    same(ortlens.freeze(function, x, x)(x, x), x + x)
    with pytest.raises(UsageError, match="takes an argument 'options' too"):
        ortlens.freeze(function, x, options=x)  # type: ignore[arg-type]  # what is refused


def test_nothing_is_looked_up_per_weight() -> None:
    """The generated function takes the arguments only: no weight is checked, passed or bound."""
    small, large = (nn.Sequential(*(nn.Linear(8, 8) for _ in range(count))).eval() for count in (1, 30))
    x = torch.randn(2, 8)
    codes = [type(ortlens.freeze(model, x)).__call__.__code__ for model in (small, large)]
    assert codes[0].co_code == codes[1].co_code


def test_the_first_refusal_of_a_process_draws_no_random_numbers(run_python: Callable[..., str]) -> None:
    program = """
import torch, ortlens
state = torch.get_rng_state()
try:
    ortlens.freeze(lambda x: torch.cond(x.sum() > 0, lambda y: y @ torch.ones(7, 7), lambda y: y, (x,)), torch.ones(3, 3))
except ortlens.UsageError:
    print(torch.equal(torch.get_rng_state(), state))
"""
    assert run_python(program).split() == ["True"]
