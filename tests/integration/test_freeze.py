"""A frozen callable does what its source does, refuses what it was not traced for, and never shares memory between calls."""

import copy
import dataclasses
import math
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F  # noqa: N812 - as everywhere
from torch.utils import _pytree

import ortlens
from ortlens import _torch
from ortlens.backend.api import OrtBackend
from ortlens.backend.freeze.frozen import Frozen, lowered_for
from ortlens.backend.freeze.tracing import DroppedWrite, program_of
from ortlens.errors import UsageError
from ortlens.lens.freezing import call_text, tried
from tests.threads import in_threads


def same(actual: Any, expected: Any) -> None:  # noqa: ANN401 - results of any structure
    """Same structure, and tensors with the same dtype, shape and values."""
    given, wanted = _pytree.tree_flatten(actual), _pytree.tree_flatten(expected)
    assert given[1] == wanted[1]
    for left, right in zip(given[0], wanted[0], strict=True):
        if isinstance(right, torch.Tensor):
            assert not left.requires_grad
            torch.testing.assert_close(left, right.detach(), atol=1e-5, rtol=1e-5)
        else:
            assert (type(left), left) == (type(right), right)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()


@pytest.fixture(scope="module")
def rows() -> tuple[nn.Sequential, Frozen]:
    """A model, frozen for any number of rows."""
    model = mlp()
    return model, ortlens.freeze(model, torch.randn(3, 16), dynamic=True)


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


@pytest.fixture(scope="module")
def nested() -> tuple[Nested, Frozen]:
    model = Nested().eval()
    args, kwargs = nested_inputs()
    return model, ortlens.freeze(model, *args, **kwargs)


def test_nested_arguments_and_results_also_of_a_loaded_callable(nested: tuple[Nested, Frozen], tmp_path: Path) -> None:
    model, original = nested
    for frozen in (original, ortlens.load_frozen(original.save(tmp_path / "nested"))):
        (x, parts), kwargs = nested_inputs()
        expected = model(x, parts, **kwargs)
        same(frozen(x, parts, **kwargs), expected)
        same(frozen(x, parts=parts, **kwargs), expected)
        same(frozen(x, dict(reversed(parts.items())), **kwargs), expected)
        same(frozen(nn.Parameter(x, requires_grad=False), parts, **kwargs), expected)
        with pytest.raises(UsageError, match=r"x: expected f32\[4,8\], given f32\[3,8\]"):
            frozen(x[:3], parts, **kwargs)
    same(original(parts=parts, x=x, scale=2.0, **kwargs), expected)
    with pytest.raises(UsageError, match="expected the arguments"):
        frozen(x, parts)


OTHER_CALLS: list[tuple[Callable[..., Any], str]] = [
    (lambda x, p, m: ((x.double(), p), {"mask": m}), r"x: expected f32\[4,8\], given f64\[4,8\]"),
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
]


def test_what_differs_is_named(nested: tuple[Nested, Frozen]) -> None:
    (x, parts), kwargs = nested_inputs()
    for change, said in OTHER_CALLS:
        args, other = change(x, parts, kwargs["mask"])
        with pytest.raises(UsageError, match=said):
            nested[1](*args, **other)


class Doubling(torch.Tensor):
    """A class of tensors with operators of its own."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # noqa: ANN401 - PyTorch's annotation is of another function
        return 2 * super().__torch_dispatch__(function, types, args, kwargs or {})


QUANTIZED = partial(torch.quantize_per_tensor, torch.eye(4, 8), 0.1, 0, torch.qint8)
UNUSUAL: list[tuple[Callable[[], torch.Tensor], str, str]] = [
    (lambda: torch.eye(4, 8).to_sparse_coo(), r"a sparse tensor \(torch.sparse_coo\)", "convert it with .to_dense"),
    (lambda: torch.eye(4, 8).to_sparse_csr(), r"a sparse tensor \(torch.sparse_csr\)", "convert it with .to_dense"),
    (lambda: torch.eye(4, 8).to_mkldnn(), r"an oneDNN tensor \(torch._mkldnn\)", "convert it with .to_dense"),
    (QUANTIZED, r"a quantized tensor \(torch.qint8\)", "convert it with .dequantize"),
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
def test_tensors_that_are_not_dense_are_refused_by_name_before_tracing() -> None:
    def function(x: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
        raise AssertionError(x, parts)

    for make, what, remedy in UNUSUAL:
        with pytest.raises(
            UsageError, match=rf"function cannot be frozen: parts\[0\] is {what}, not a dense one: {remedy}.* torch.compile"
        ):
            ortlens.freeze(function, torch.ones(4, 8), [make()])


@pytest.mark.usefixtures("no_warnings")
@pytest.mark.parametrize("dynamic", [None, True])
def test_calls_with_tensors_that_are_not_dense_say_what_they_are(*, dynamic: bool | None) -> None:
    frozen = ortlens.freeze(nn.ReLU(), torch.ones(4, 8), dynamic=dynamic)
    for make, what, _ in UNUSUAL:
        with pytest.raises(UsageError, match=rf"expected f32\[\S+, given {what}; pass dense tensors, or fallback="):
            frozen(make())


class Held(nn.Module):
    def __init__(self, held: torch.Tensor) -> None:
        super().__init__()
        self.adj = nn.Buffer(held)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(self.adj, x).relu()


@pytest.mark.usefixtures("no_warnings")
def test_weights_that_a_trace_would_take_for_dense_are_refused_and_a_sparse_buffer_stays_in_pytorch() -> None:
    dense = torch.eye(5)
    for held in (dense.to_mkldnn(), torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)):
        for target in (Held(held), Held(held).forward):
            with pytest.raises(UsageError, match=r"cannot be frozen: adj is an? .*, not a dense one: convert it with .*, or leave"):
                ortlens.freeze(target, torch.ones(5, 5))
    adj, x = dense.to_sparse_coo(), torch.randn(5, 5)
    with pytest.raises(UsageError, match=r"a variable that it reads is a sparse tensor .*, or register it as a buffer of a module"):
        ortlens.freeze(lambda x: torch.mm(adj, x).relu(), x)
    same(ortlens.freeze(Held(adj), x)(x), Held(adj)(x))


def test_an_exported_program_is_taken_and_its_sparse_argument_refused() -> None:
    same(ortlens.freeze(torch.export.export(MLP, (X,)))(X), MLP(X))

    class Product(nn.Module):
        def forward(self, adj: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(adj, x).relu()

    program = torch.export.export(Product(), (torch.eye(5).to_sparse_coo(), torch.ones(5, 5)), strict=False)
    with pytest.raises(UsageError, match=r"args\[0\] is a sparse tensor"):
        ortlens.freeze(program)
    program.example_inputs = None
    with pytest.raises(UsageError, match="takes dense tensors, not a sparse tensor"):
        ortlens.freeze(program)


def test_the_fallback_gets_what_is_outside_the_signature() -> None:
    frozen, x = ortlens.freeze(nn.ReLU(), torch.randn(3, 16), fallback=lambda x: ("fallback", x)), torch.randn(5, 16)
    same(frozen(x), ("fallback", x))
    same(frozen(x[:3]), x[:3].relu())


OTHER_CONSTANTS: list[tuple[tuple[Any, ...], str]] = [
    ((3, "ab", True, (math.nan, 0.0, -0.0)), r"times: expected 2 \(constant since tracing\), given 3"),
    ((2, "abc", True, (math.nan, 0.0, -0.0)), "name: expected 'ab'"),
    ((2, "ab", 1, (math.nan, 0.0, -0.0)), r"flag: expected True \(constant since tracing\), given 1"),
    ((2, "ab", True, (1.0, 0.0, -0.0)), r"scales\[0\]: expected"),
    ((2, "ab", True, (math.nan, -0.0, -0.0)), r"scales\[1\]: expected"),
    ((2, "ab", True, (math.nan, 0.0, 0.0)), r"scales\[2\]: expected"),
]


def test_constants_are_the_same_number() -> None:
    def function(x: torch.Tensor, times: int, name: str, flag: bool, scales: tuple[float, ...]) -> tuple[Any, ...]:  # noqa: FBT001 - a constant of each kind
        return x * times + len(name) if flag else x, [x / (x * scale) for scale in scales]

    x, flag = torch.ones(3), True
    frozen = ortlens.freeze(function, x, 2, "ab", flag, (math.nan, 0.0, -0.0))
    result, wanted = (call(x, 2, "ab", flag, (float("nan"), 0.0, -0.0)) for call in (frozen, function))
    torch.testing.assert_close(result, wanted, equal_nan=True)
    for other, said in OTHER_CONSTANTS:
        with pytest.raises(UsageError, match=said):
            frozen(x, *other)


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


def test_branches_on_sizes_of_0_and_1_that_tracing_takes_for_impossible() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 0 or x.shape[1] <= 1:
            return x.new_full((1,), 7.0)
        return x.sum(0) / max(x.shape[2], 1)

    shapes = {"x": {place: torch.export.Dim(name) for place, name in enumerate("abc")}}
    frozen = ortlens.freeze(function, torch.randn(2, 2, 2), dynamic_shapes=shapes)
    for sizes in ((1, 2, 1), (3, 4, 1)):
        same(frozen(x := torch.randn(sizes)), function(x))
    for sizes in ((0, 2, 2), (2, 1, 2), (2, 0, 2), (2, 2, 0)):
        with pytest.raises(UsageError, match="Guard failed"):
            frozen(torch.randn(sizes))


def test_a_size_that_cannot_have_any_value_says_which_it_can_have() -> None:
    rows = torch.export.Dim("rows")
    with pytest.raises(UsageError, match=r"\(rows\); it can be traced with rows = Dim\('rows', min=4\)"):
        ortlens.freeze(lambda x: x * 2 if x.shape[0] > 3 else x, torch.randn(5), dynamic_shapes={"x": {0: rows}})


REDUCTIONS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: (x.sum(), x.sum(0), x.sum((0, 1)), x.double().sum(0), x.half().mean(0), x.long().sum(0)),
    lambda x: (x.mean(), x.mean(0), x.mean(1, keepdim=True), x.nansum(), x.logsumexp(0), x.softmax(0)),
    lambda x: (x.var(), x.var(0), x.std(1, correction=0), *torch.var_mean(x, 0), x.bfloat16().var(0)),
    lambda x: (x.norm(), torch.linalg.vector_norm(x, 1, 0), torch.linalg.vector_norm(x, 3, 1), x.renorm(2, 0, 1.0)),
    lambda x: (x.cumsum(0), x.cumsum(1), x.cumprod(1), x.logcumsumexp(0), x.prod(), x.prod(0), x.amax(0), *x.max(0)),
    lambda x: (F.mse_loss(x, x * 2), F.huber_loss(x, x * 2), F.cosine_similarity(x, x + 1, 0), F.normalize(x, dim=0)),
    lambda x: (F.layer_norm(x, x.shape[-1:]), F.rms_norm(x, x.shape[-1:]), F.layer_norm(x, x.shape)),
]
OF_IMAGES: list[Callable[[torch.Tensor], Any]] = [  # of which tracing itself finds conditions
    lambda x: (F.batch_norm(x, None, None, training=True), x.mean((2, 3)), x.var((2, 3)), x.sum((1, 3))),
    lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, 2), F.adaptive_max_pool2d(x, 2), F.avg_pool2d(x, 2)),
    lambda x: (F.group_norm(x, 3), F.local_response_norm(x, 3), F.lp_pool2d(x, 2, 2)),
]


@pytest.mark.parametrize(
    ("functions", "shape"),
    [(REDUCTIONS, (6, 8)), *(([each], (2, 3, 10, 12)) for each in OF_IMAGES)],
    ids=["rows", "batch", "pools", "groups"],
)
def test_reductions_of_sizes_that_vary_add_no_condition(functions: list[Callable[[torch.Tensor], Any]], shape: tuple[int, ...]) -> None:
    """What tracing found about sizes is all: how an operator is lowered is right for every size."""

    def function(x: torch.Tensor) -> list[Any]:
        return [each(x) for each in functions]

    program, _ = program_of(function, (torch.rand(shape),), {}, dynamic_shapes=True)
    arguments = lowered_for(program, OrtBackend(), source=function, traced=function).arguments
    traced = _torch.guard_texts(program)
    assert [text for text in arguments.guard_texts if text not in traced and not _is_of_contiguity(text)] == []


def _is_of_contiguity(text: str) -> bool:
    """Tell whether a condition only says that a size is neither 0 nor 1: PyTorch's fake tensors ask so for each of their sizes."""
    return text.endswith((" > 1", " >= 2"))


def test_a_long_sum_over_a_size_that_varies() -> None:
    function = lambda x: (x.mean(0), x.cumsum(0), x.var(0))  # noqa: E731 - called twice
    frozen = ortlens.freeze(function, torch.rand(16, 3), dynamic=True)
    for rows in (2, 5000):
        same(frozen(x := torch.rand(rows, 3)), function(x))


class Counting(nn.Module):
    calls: torch.Tensor

    def __init__(self, rows: int = 8) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(rows))
        self.calls = nn.Buffer(torch.tensor(0), persistent=False)
        self.kept = nn.Buffer(torch.ones(rows))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = self.mean.clone()
        self.mean.mul_(0.9).add_(x.mean(0))
        self.calls += 1
        return x + self.mean * self.kept, before, self.mean


class Namesake(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Buffer(torch.zeros(3))
        self.y = nn.Buffer(torch.ones(3))

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


class Named(torch.Tensor):
    """A class of tensors without operators of its own."""


def with_options(x: torch.Tensor, options: torch.Tensor) -> torch.Tensor:
    return x + options


X, MLP = torch.randn(3, 16), mlp()
TARGETS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "None": (lambda _: None, (X,)),
    "nothing": (lambda _: (), (X,)),
    "a method": (MLP.forward, (X,)),
    "a class of tensors": (nn.ReLU(), (X.as_subclass(Named),)),
    "an argument named as an option": (with_options, (X, X)),
}


def test_a_frozen_callable_does_what_its_source_does() -> None:
    for target, args in TARGETS.values():
        same(ortlens.freeze(target, *args)(*args), target(*(arg.as_subclass(torch.Tensor) for arg in args)))


def test_what_is_an_option_and_an_argument_is_refused() -> None:
    with pytest.raises(UsageError, match="takes an argument 'options' too"):
        ortlens.freeze(with_options, X, options=X)  # type: ignore[arg-type]  # what is refused


def test_pytorch_between_partitions(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.softmax(-1)
        scaled: torch.Tensor = y * torch.linalg.svdvals(y).sum()
        return scaled.sum(0)

    x = torch.randn(4, 8)
    frozen = ortlens.freeze(function, x)
    assert frozen.graph.left_in_torch()
    with pytest.raises(UsageError, match="_linalg_svd"):
        frozen.save(tmp_path / "mixed")
    assert not list(tmp_path.iterdir())
    with torch.no_grad():
        lens = ortlens.explain(frozen, calls=2)(x)
        same(lens.result, function(x))
        assert len(lens.sessions) >= 2
        assert lens.verify(x).ok.all()


def test_four_threads_at_once(rows: tuple[nn.Sequential, Frozen]) -> None:
    model, frozen = rows
    inputs = [torch.randn(rows, 16) for rows in (2, 6, 11, 30)]
    expected = [model(x).detach() for x in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        wrong.extend(number for _ in range(100) if not torch.allclose(frozen(inputs[number]), expected[number], atol=1e-5))

    in_threads(work)
    assert not wrong
    assert "1 partition, 0 nodes in PyTorch" in repr(frozen)
    with pytest.raises(UsageError, match=r"given f32\[7,15\]"):
        frozen(torch.randn(7, 15))


def test_threads_that_share_state_count_each_call() -> None:
    frozen = ortlens.freeze(model := Counting(), torch.randn(4, 8))
    in_threads(lambda _: [frozen(torch.ones(4, 8)) for _ in range(25)])
    assert set(frozen.state) == {"calls", "mean"}
    assert (int(frozen.state["calls"]), int(model.calls)) == (100, 0)


def by_value(x: torch.Tensor) -> torch.Tensor:
    return x[: int(x.sum())] if x.sum().item() > 0 else x


def test_a_graph_break_is_refused_with_its_place() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + 1
        return x.sin()

    with pytest.raises(UsageError, match=r"(?s)branches cannot be frozen.*test_freeze.py:\d+: Data-dependent branching.*torch.where"):
        ortlens.freeze(branches, torch.ones(3))
    with pytest.raises(UsageError, match=rf"tracing raised GuardOnDataDependentSymNode at {re.escape(__file__)}:\d+: Could not guard"):
        ortlens.freeze(by_value, torch.ones(3))


def test_a_refusal_leaves_arguments_modules_and_generators_as_they_were() -> None:
    class Broken(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.count = nn.Buffer(torch.zeros(1))
            self.latest: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            self.latest = x * 2
            x.unsqueeze_(0).mul_(torch.rand(()))
            return x * float(x.sum())

    model, x, state = Broken(), torch.ones(3), torch.get_rng_state()
    with pytest.raises(UsageError):
        ortlens.freeze(model, x)
    assert x.tolist() == [1, 1, 1]
    assert (model.latest, model.count.item()) == (None, 0)
    assert torch.equal(torch.get_rng_state(), state)


def test_distributions_are_checked_again_after_a_trace_whether_it_failed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(4, 3).eval()

    def act(x: torch.Tensor, check: bool | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: FBT001 - an argument like others
        chosen = Categorical(logits=linear(x), validate_args=check)
        action = chosen.sample()
        return action, chosen.log_prob(action)

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # else what explains the failure switches the check off
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    x = torch.randn(6, 4)
    assert [result.shape for result in ortlens.freeze(act, x)(x)] == [(6,), (6,)]
    told = rf"GuardOnDataDependentSymNode at {re.escape(__file__)}:\d+|distribution constraint"  # torch 2.15 traces the check
    with pytest.raises((UsageError, RuntimeError), match=told):
        ortlens.freeze(act, x, True)(torch.nan * x, True)  # noqa: FBT003 - likewise
    assert torch.distributions.Distribution._validate_args


def test_a_lens_freezes_what_it_explained() -> None:
    model, x, y = mlp(), torch.randn(3, 16), torch.randn(5, 16)
    with torch.no_grad():
        lens = ortlens.explain(model, calls=1)(x)
    same(lens.freeze()(x), model(x))
    assert repr(lens.freeze()) == "<frozen Sequential: 1 partition, 0 nodes in PyTorch>"
    same(lens.freeze(y)(y), model(y))
    with pytest.raises(UsageError, match="is a sparse tensor"):
        lens.freeze(torch.eye(5).to_sparse_coo())


def test_a_lens_sees_the_calls_of_a_frozen_callable(rows: tuple[nn.Sequential, Frozen]) -> None:
    (model, frozen), x = rows, torch.randn(5, 16)
    with torch.no_grad():
        lens = ortlens.explain(frozen, calls=3)(x)
        same(lens.result, model(x))
        assert len(lens.runs) == 3
        assert {"guards", "bind", "run", "output"} <= set(lens.ledger.part)
        assert "LayerNormalization" in set(lens.profile(x).op_type)
        assert lens.verify(x).ok.all()


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


class Returning(nn.Module):
    """Returns an object of a class that PyTorch does not know, or keeps tensors in ways that a frozen call cannot."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.kept = how, torch.zeros(8)
        self.table: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None, **more: bool) -> Pair | torch.Tensor:
        if self.how == "dataclass":
            return Pair(x, x + 1)
        if self.how == "writes":
            self.kept.add_(1)
        if self.how == "notes":
            self.table["last"] = x * 2
        if self.how == "flag":
            more.setdefault("flag", True)
            self.how, how = "busy", self.how
            self.how = how
        return x * self.kept if mask is None else x * mask


@pytest.mark.parametrize("on_error", ["fallback", "raise"])
def test_a_write_to_a_tensor_that_is_no_buffer_is_refused_with_its_line(on_error: str) -> None:
    with pytest.raises(UsageError, match=r"test_freeze.py:\d+ writes to a tensor .*'kept'.*register_buffer"):
        ortlens.freeze(Returning("writes"), torch.ones(8), options={"on_error": on_error})


SEEN: list[torch.Tensor] = []


@pytest.mark.parametrize("keep", [SEEN.append, lambda made: setattr(Pair, "latest", made.mean())], ids=["list", "attribute"])
def test_values_that_a_hook_keeps_are_named_with_their_line(keep: Callable[[torch.Tensor], None]) -> None:
    model, x = mlp(), torch.randn(3, 16)
    model[0].register_forward_hook(lambda _module, _args, made: keep(made + 1))
    with pytest.warns(DroppedWrite, match=r"beyond its results, from \S*test_freeze.py:\d+, ") as caught:
        ortlens.freeze(model, x)
    assert caught[0].filename == __file__
    assert "test_freeze.py" in str(tried(model, (x,), {}, OrtBackend(), converts=False))


KEPT = torch.zeros(3), torch.ones(3)
NORMS: dict[str, Callable[..., Any]] = {
    "instance_norm": lambda x, mean, var: F.instance_norm(x, mean, var, use_input_stats=True),
    "batch_norm": lambda x, mean, var: F.batch_norm(x, mean, var, training=True),
    "native_batch_norm": lambda x, mean, var: torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)[0],  # noqa: FBT003 - schema
}


@pytest.mark.parametrize("name", NORMS)
def test_statistics_that_an_operator_writes_without_saying_so(name: str) -> None:
    """As arguments they are written to; those that a function captures are neither state nor arguments, and refused."""
    norm, x = NORMS[name], torch.randn(2, 3, 5)
    with pytest.raises(UsageError, match=r"register_buffer"):
        ortlens.freeze(lambda x: norm(x, *KEPT), x)
    given, expected = ([part.clone() for part in KEPT] for _ in range(2))
    frozen = ortlens.freeze(norm, x, *given)
    kept = [part.clone() for part in KEPT]
    compiled = torch.compile(lambda x: norm(x, *kept), backend="ortlens")
    for _ in range(2):
        wanted = norm(x, *expected)
        same((frozen(x, *given), *given), (wanted, *expected))
        with torch.no_grad():
            same((compiled(x), *kept), (wanted, *expected))
    ortlens.freeze(lambda x: F.instance_norm(x, *KEPT, use_input_stats=False), x)  # reads them only


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda frozen: pickle.loads(pickle.dumps(frozen))], ids=["deepcopy", "pickle"])  # noqa: S301 - its own
def test_a_copy_has_state_of_its_own(copied: Callable[[Frozen], Frozen]) -> None:
    frozen = ortlens.freeze(Counting(), torch.ones(3, 8), dynamic=True, fallback=Counting())
    frozen(torch.ones(3, 8))
    other, x = copied(frozen), torch.rand(5, 8)
    same(dict(other.state), dict(frozen.state))
    same(other(x=x), frozen(x))
    other.state["mean"].zero_()
    assert frozen.state["mean"].all()
    assert other(torch.ones(2, 8, dtype=torch.float64))[0].shape == (2, 8)  # by the fallback


def test_what_cannot_be_pickled_says_what_to_do() -> None:
    model = nn.Linear(3, 3)
    frozen = ortlens.freeze(model, torch.ones(2, 3))
    with torch.no_grad():
        model.weight.zero_()
    with pytest.raises(UsageError, match=r"frozen callable cannot be pickled.*weight.*freeze"):
        pickle.dumps(frozen)


@pytest.mark.parametrize("function", [by_value, lambda x: x.numpy(), lambda x: x + 1 if x.sum() > 0 else x])
def test_a_trace_that_fails_prints_nothing(function: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="cannot be frozen"):
        ortlens.freeze(function, torch.ones(4, 3), dynamic=True)
    assert capfd.readouterr() == ("", "")


def test_an_unknown_class_is_named_with_what_registers_it() -> None:
    with pytest.raises(UsageError, match=r"class Pair.*torch\.export\.register_dataclass\(Pair\)"):
        ortlens.freeze(Returning("dataclass"), torch.ones(8))


class Joined:
    """Computes where it is made, as caches of transformers do."""

    def __init__(self, parts: list[torch.Tensor]) -> None:
        self.parts = [torch.cat([torch.tensor([]), part]) + 1 for part in parts]


_pytree.register_pytree_node(
    Joined,
    lambda joined: (joined.parts, None),
    lambda parts, _: Joined(list(parts)),
    flatten_with_keys_fn=lambda joined: ([(_pytree.SequenceKey(place), part) for place, part in enumerate(joined.parts)], None),
)


def test_what_builds_an_object_of_the_result_is_no_part_of_the_graph() -> None:
    x = torch.arange(3.0)
    frozen = ortlens.freeze(lambda x: Joined([x * 2, x.exp()]), x)
    expected = [x * 2 + 2, x.exp() + 2]  # made by the model, and once more from its parts
    same(frozen(x).parts, expected)
    same(
        [torch.as_tensor(value) for value in frozen.graph.runners[0].sessions[0].session.run(None, {"x": x.numpy()})],
        [x * 2 + 1, x.exp() + 1],
    )


def test_what_builds_an_object_of_an_argument_is_no_part_of_the_graph() -> None:
    given = Joined([torch.arange(3.0)])
    frozen = ortlens.freeze(lambda joined: joined.parts[0] * 2, given)
    same(frozen(given), frozen.program.module()(given))


def test_an_argument_of_a_class_without_keys_is_refused() -> None:
    cls = type("Keyless", (), {})
    _pytree.register_pytree_node(cls, lambda _: ([], None), lambda *_: cls())
    with pytest.raises(UsageError, match="flatten_with_keys_fn"):
        ortlens.freeze(lambda x, _: x * 2, torch.ones(2), cls())


@pytest.mark.parametrize(("how", "works"), [("plain", True), ("dataclass", False), ("writes", False)])
def test_what_freeze_would_do_is_known_without_a_trace_of_trying(how: str, works: bool) -> None:  # noqa: FBT001 - a row of the table
    model = Returning(how)
    given, backend = ((torch.ones(8),), {"mask": torch.ones(8)}), OrtBackend.get_cached_instance_for_options(None)
    made, refusal = (tried(model, *given, backend, converts=converts) for converts in (True, False))
    assert isinstance(made, Frozen) == (refusal is None) == works
    assert not model.kept.any()


@pytest.mark.parametrize(("how", "works"), [("plain", True), ("notes", False), ("flag", True)])
def test_freezing_is_not_advised_for_what_changes_python_objects(how: str, works: bool) -> None:  # noqa: FBT001 - likewise
    with torch.no_grad():
        lens = ortlens.explain(Returning(how), calls=1)(torch.ones(8))
    lens._try_freezing(lambda: lens.call_target((torch.ones(8),), {}), lens._targets.example, counted=False)
    figures = lens.captured().figures
    assert (figures.freeze_call is not None) == works
    assert (figures.freeze_refused is not None) != works


def test_the_call_of_freeze_names_a_model_whose_forward_is_of_torch() -> None:
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)
    assert call_text(ortlens.explain(model)(x).compilations.targets.first(), (x,), {}) == "ortlens.freeze(model, input)"


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "text"),
    [
        (Returning("plain"), (1.5,), {"mask": torch.ones(8)}, "ortlens.freeze(model, 1.5, mask=mask)"),
        (Returning("plain").forward, (torch.ones(8),), {}, "ortlens.freeze(model.forward, x)"),
        (same, (torch.ones(8),), {"expected": True}, "ortlens.freeze(same, actual, expected=True)"),
        (lambda *rows: rows, (torch.ones(8), torch.ones(8)), {}, "ortlens.freeze(f, rows[0], rows[1])"),
    ],
)
def test_the_call_of_freeze_is_written_with_the_arguments_of_the_call(target: Any, args: Any, kwargs: Any, text: str) -> None:  # noqa: ANN401 - any
    assert call_text(target, args, kwargs) == text


@torch.no_grad()
def test_modules_keep_their_own_lists() -> None:
    """That two are one object is a guard of compiled code, and torch.export leaves copies."""
    model: Any = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    kinds = model[0].kinds = model[1].kinds = ["c2p"]
    ortlens.freeze(model, torch.ones(1, 2))
    assert model[0].kinds is model[1].kinds is kinds
