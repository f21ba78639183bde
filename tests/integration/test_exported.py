"""Programs of `torch.export` down the backend's road: the same answers, structures and state as `program.module()`."""

# ruff: noqa: ANN401 - arguments and results of programs are Any in torch itself

from __future__ import annotations

import copy
import io
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

import ortlens
from ortlens import Lens, UsageError
from tests.integration.against_eager import assert_same, twin

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.export import ExportedProgram

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Of(nn.Module):
    """A function as a module: `torch.export` takes nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> Any:
        return self._function(*args)


class OfTwo(Of):
    """A function of two arguments as a module whose arguments have names."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self._function(x, y)


class Block(nn.Module):
    """Optional and keyword arguments, and a nest of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, *, scale: float = 1.0, shift: torch.Tensor | None = None) -> Any:
        made = self.linear(x) * scale
        made = made if y is None else made + y
        made = made if shift is None else made - shift
        return {"made": made, "rest": (made.sum(), [x, None])}


class Counting(nn.Module):
    """Counts its calls in a buffer that is saved and in one that is not."""

    calls: torch.Tensor
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.total.add_(x.sum())
        return x * self.calls + self.total.sum()


def assert_equal(actual: Any, expected: Any) -> None:
    """Equal structure; tensors equal in every way that shows, everything else equal and of one type."""
    leaves, structure = pytree.tree_flatten(actual)
    wanted, wanted_structure = pytree.tree_flatten(expected)
    assert structure == wanted_structure
    for leaf, want in zip(leaves, wanted, strict=True):
        if isinstance(want, torch.Tensor):
            assert_same(leaf, want)
        else:
            assert (type(leaf), leaf) == (type(want), want)


def same_as_module(program: ExportedProgram, *calls: Call) -> Lens:
    """Compile a program once and call it; results, arguments and state must follow `program.module()` call by call."""
    module, lens = copy.deepcopy(program).module(), Lens(options={"on_error": "raise"})
    compiled = lens.compile_exported(program)
    with torch.no_grad():
        for call in calls:
            (args, kwargs), (own_args, own_kwargs) = pytree.tree_map(twin, call), pytree.tree_map(twin, call)
            assert_equal(compiled(*args, **kwargs), module(*own_args, **own_kwargs))
            assert_equal((args, kwargs), (own_args, own_kwargs))
            state = {**program.state_dict, **{name: value for name, value in program.constants.items() if isinstance(value, torch.Tensor)}}
            own = dict((*module.named_parameters(), *module.named_buffers()))
            assert_same({name: state[name].detach() for name in own}, {name: value.detach() for name, value in own.items()})
    assert not lens.captured().findings
    return lens


def whole(lens: Lens) -> bool:
    return bool(lens.graphs.coverage.tolist() == [1.0] and lens.fallbacks.empty and len(lens.partitions) <= 1)


def test_one_session_serves_every_size() -> None:
    program = export(Block(), (torch.randn(4, 4),), dynamic_shapes={"x": {0: Dim("batch", max=64)}})
    lens = same_as_module(program, *(((torch.randn(size, 4),), {}) for size in (2, 64, 5, 1, 4)))
    assert whole(lens)
    assert lens.graphs.dynamic_shapes.tolist() == [True]
    assert lens.sessions.calls.tolist() == [5]


def test_sizes_that_depend_on_each_other() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.cat([x, y]).reshape(x.shape[0] * 2, -1) + x.shape[1], x.shape[0] + 1

    rows, columns = Dim("rows"), Dim("columns")
    shapes = ({0: rows, 1: columns}, {0: rows, 1: columns})
    program = export(OfTwo(function), (torch.randn(3, 4), torch.randn(3, 4)), dynamic_shapes=shapes)
    lens = same_as_module(program, *(((torch.randn(n, m), torch.randn(n, m)), {}) for n, m in ((3, 4), (7, 2), (2, 9))))
    assert whole(lens)
    with pytest.raises((RuntimeError, AssertionError), match=r"shape|size"):
        ortlens.explain(program, calls=1)(torch.randn(3, 4), torch.randn(2, 4))


@pytest.mark.parametrize("size", [2, 9])
def test_a_size_outside_the_constraint_raises_torchs_own_error(size: int) -> None:
    program = export(Block(), (torch.randn(4, 4),), dynamic_shapes={"x": {0: Dim("batch", min=3, max=8)}})
    with pytest.raises((RuntimeError, AssertionError), match=r"shape\[0\].* to be [<>]= [38]|x\.size\(\)\[0\] [<>]= [38]"):
        ortlens.explain(program)(torch.randn(size, 4))


@pytest.mark.parametrize(
    ("branch", "traced", "called"),
    [
        (lambda x, y: x.sum() + y.sum() if x.shape[0] % 2 == 0 else x.sum() - y.sum(), (4, 6), (5, 6)),
        (lambda x, y: x.sum() + y.sum() if x.shape[0] < y.shape[0] else x.sum() - y.sum(), (4, 6), (6, 4)),
    ],
    ids=["even", "smaller"],
)
def test_a_size_that_would_take_another_branch_is_refused(
    branch: Callable[..., Any], traced: tuple[int, int], called: tuple[int, int]
) -> None:
    program = export(OfTwo(branch), tuple(torch.randn(n) for n in traced), dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}))
    x, y = (torch.randn(n) for n in called)
    with pytest.raises((RuntimeError, AssertionError)):
        program.module()(x, y)
    with pytest.raises((RuntimeError, AssertionError)):
        ortlens.explain(program, calls=1)(x, y)


def test_starred_arguments_are_guarded_too() -> None:
    """Not compared with `program.module()`, which torch 2.9 cannot call for such a program."""
    program = export(
        Of(lambda x, y: (x * 2, y + 1) if x.shape[0] < y.shape[0] else (x, y)),
        (torch.randn(4), torch.randn(6)),
        dynamic_shapes=(({0: Dim.AUTO}, {0: Dim.AUTO}),),
    )
    guards = list(program._guards_code)
    x, y = torch.randn(2), torch.randn(9)
    torch.testing.assert_close(ortlens.explain(program, calls=1)(x, y).result, (x * 2, y + 1))
    with pytest.raises((RuntimeError, AssertionError)):
        ortlens.explain(program, calls=1)(y, x)
    assert program._guards_code == guards


def test_another_structure_is_refused_as_torch_refuses_it() -> None:
    with pytest.raises((ValueError, TypeError)):
        ortlens.explain(export(Block(), (torch.randn(2, 4),)))(torch.randn(2, 4), nonsense=torch.randn(2))


# torch 2.9's own reading of the archive: `_create_flat_tensor_from_bytes` in `torch/export/pt2_archive/_package.py`.
@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
def test_a_program_from_a_file() -> None:
    file = io.BytesIO()
    torch.export.save(export(Counting(), (torch.randn(2),), dynamic_shapes={"x": {0: Dim("n")}}), file)
    file.seek(0)
    assert whole(same_as_module(torch.export.load(file), *(((torch.randn(n),), {}) for n in (2, 5))))


def test_a_program_made_from_a_program_and_one_that_was_decomposed_before() -> None:
    program, x = export(Block(), (torch.randn(2, 4),)), torch.randn(2, 4)
    assert whole(same_as_module(export(program.module(), (x,)), ((x,), {})))
    assert whole(same_as_module(program.run_decompositions(), ((x,), {})))


@pytest.mark.parametrize(
    "order",
    [
        ("y", "scale", "shift"),
        *(pytest.param(order, marks=pytest.mark.slow) for order in (("shift", "y", "scale"), ("scale", "shift", "y"))),
    ],
)
def test_none_and_keyword_arguments_in_any_order(order: tuple[str, ...]) -> None:
    x, given = torch.randn(2, 4), {"y": torch.randn(3), "scale": 2.0, "shift": torch.randn(2, 1)}
    lens = same_as_module(export(Block(), (x,), given), ((x,), {name: given[name] for name in order}))
    assert whole(lens)
    assert whole(same_as_module(export(Block(), (x, None), {"shift": given["shift"]}), ((x, None), {"shift": given["shift"]})))


def test_constants_are_those_of_the_tracing() -> None:
    def function(x: torch.Tensor, factor: int, flag: bool, mode: str) -> torch.Tensor:  # noqa: FBT001 - plain values are the point
        made = x * factor + torch.tensor([1.0, -1.0])
        return made.relu() if flag and mode == "relu" else made

    program = export(Of(function), (torch.randn(2), 3, True, "relu"))
    assert whole(same_as_module(program, ((torch.randn(2), 3, True, "relu"), {})))
    with pytest.raises((RuntimeError, AssertionError)):
        ortlens.explain(program, calls=1)(torch.randn(2), 4, True, "relu")  # noqa: FBT003 - the same


def test_nested_inputs_and_outputs_of_every_kind() -> None:
    def function(given: dict[str, Any], pair: tuple[Any, ...]) -> Any:
        first, (second, third) = given["list"][0], pair
        return [first + 1, ({"z": second * third["deep"]}, 3, None), "text", True, 2.5, given["same"], first.shape[0]]

    args = ({"list": [torch.randn(2)], "same": torch.randn(1)}, (torch.randn(3), {"deep": torch.randn(3)}))
    lens = same_as_module(export(Of(function), args), (args, {}))
    assert whole(lens)
    lens = ortlens.explain(export(Of(function), args), calls=1)(*args)
    assert_equal(lens.result, function(*args))


def test_outputs_that_are_all_constants_or_inputs() -> None:
    x = torch.randn(2)
    for function in (lambda x: (x, None, 3), lambda _: None, lambda x: [x, x], lambda _: (1, "a")):
        same_as_module(export(Of(function), (x,)), ((x,), {}))


def test_no_inputs() -> None:
    program = export(Of(lambda: torch.ones(2) + torch.tensor(2.0)), ())
    same_as_module(program, ((), {}), ((), {}))


def test_buffers_count_over_the_calls_and_the_program_holds_them() -> None:
    program = export(Counting(), (torch.randn(3),))
    lens = same_as_module(program, *(((torch.randn(3),), {}) for _ in range(4)))
    assert whole(lens)
    assert lens.sessions.calls.tolist() == [4]
    assert int(program.state_dict["calls"]) == 4
    ortlens.explain(program, calls=3)(torch.randn(3))
    assert int(program.state_dict["calls"]) == 7


def test_a_mutated_input_and_its_alias_in_the_output() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(y)
        y[1:].mul_(2)
        return x, y.sum(), x * 2

    args = (torch.randn(3), torch.randn(3))
    program = export(Of(function), args)
    assert whole(same_as_module(program, (args, {}), (args, {})))


def test_a_mutated_parameter() -> None:
    class Shrinking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.mul_(0.5)
            return x * self.weight

    with torch.no_grad():
        program = export(Shrinking(), (torch.randn(3),))
    same_as_module(program, *(((torch.randn(3),), {}) for _ in range(3)))


def test_training_batch_norm_updates_its_statistics() -> None:
    torch.manual_seed(0)
    program = export(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train(), (torch.randn(2, 3, 6, 6),))
    same_as_module(program, *(((torch.randn(2, 3, 6, 6),), {}) for _ in range(3)))


def test_conv_and_batch_norm_for_inference() -> None:
    program = export(nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU()).eval(), (torch.randn(2, 3, 8, 8),))
    assert whole(same_as_module(program, ((torch.randn(2, 3, 8, 8),), {}), ((torch.randn(2, 3, 8, 8),), {})))


def test_a_lazy_module_after_its_first_call() -> None:
    lazy, x = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2)), torch.randn(2, 5)
    lazy(x)
    assert whole(same_as_module(export(lazy, (x,)), ((x,), {})))


def test_attention_with_a_mask_that_hides_a_whole_row() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    mask = torch.rand(1, 1, 4, 5) > 0.5
    mask[..., 0, :], mask[..., 1:, 0] = False, True
    args = (torch.randn(1, 2, 4, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8), mask)
    lens = same_as_module(export(Of(function), args), (args, {}))
    assert whole(lens)


def split_heads(x: torch.Tensor) -> Any:
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_attention_is_laid_out_as_it_was_traced(masked: bool, dynamic: bool) -> None:  # noqa: FBT001 - parameters of the test
    """A view of the result without a copy, which only the layout of PyTorch's fused operator allows."""

    def function(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        heads = split_heads(x)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
        return mixed.transpose(1, 2).view(x.shape)

    mask = torch.ones(3, 3, dtype=torch.bool).tril() if masked else None
    program = export(Of(function), (torch.randn(2, 3, 8), mask), dynamic_shapes=(({0: Dim("n")}, None),) if dynamic else None)
    calls: list[Call] = [((torch.randn(n, 3, 8), mask), {}) for n in ((2, 5) if dynamic else (2,))]
    assert whole(same_as_module(program, *calls))


def test_attention_that_was_not_fused_is_contiguous() -> None:
    """Its values have fewer features than its keys, which PyTorch's fused operator does not take."""

    def function(x: torch.Tensor) -> torch.Tensor:
        heads = split_heads(x)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads[..., :3]).view(-1, 3)

    x = torch.randn(2, 5, 8)
    assert whole(same_as_module(export(Of(function), (x,)), ((x,), {})))


def test_scalar_tensors_and_empty_ones() -> None:
    args = (torch.tensor(2.5), torch.tensor(True), torch.empty(0, 3), torch.tensor(7))  # noqa: FBT003 - a value like any other
    program = export(Of(lambda a, b, c, d: (torch.where(b, a, -a), c * a, c.sum(0) + d, d // 2)), args)
    assert whole(same_as_module(program, (args, {})))


@pytest.mark.parametrize("strict", [False, True])
def test_what_onnx_cannot_do_splits_the_program_and_says_why(strict: bool) -> None:  # noqa: FBT001 - a parameter of the test
    class Running(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            best = torch.cummax((x * 2).relu(), dim=1).values
            return best.sin() + 1

    program = export(Running(), (torch.randn(2, 3),), dynamic_shapes={"x": {0: Dim("n")}}, strict=strict)
    lens = same_as_module(program, *(((torch.randn(n, 3),), {}) for n in (2, 6)))
    assert lens.graphs.partition_count.tolist() == [2]
    assert 0 < lens.graphs.coverage.item() < 1
    (fallback,) = lens.captured().fallbacks
    assert (fallback.target, fallback.reason_code, fallback.calls) == ("aten.cummax.default", "no_converter", 2)
    assert (fallback.file, fallback.source) == (__file__, "best = torch.cummax((x * 2).relu(), dim=1).values")


class Pair(NamedTuple):
    first: torch.Tensor
    rest: dict[str, torch.Tensor]


class Branching(nn.Module):
    """Parts that `torch.export` keeps as graphs of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = self.linear(x).sin()
        return torch.cond(x.sum() > 0, lambda x: self.linear(x).sin(), lambda x: x.cos(), (x,)) + y


def test_graphs_within_the_graph() -> None:
    program = export(Branching(), (torch.randn(2, 3),))
    lens = same_as_module(program, ((torch.ones(2, 3),), {}), ((-torch.ones(2, 3),), {}))
    assert lens.fallbacks.target.tolist() == ["cond"]


def test_sizes_and_branches_that_depend_on_values() -> None:
    def scaled(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        number = n.item()
        torch._check(number < 5)
        return x * number

    program = export(Of(scaled), (torch.randn(3), torch.tensor(3)))
    same_as_module(program, ((torch.randn(3), torch.tensor(4)), {}))
    with pytest.raises(RuntimeError):
        ortlens.explain(program, calls=1)(torch.randn(3), torch.tensor(6))
    program = export(Of(lambda x: x.nonzero().float() * 2), (torch.tensor([1.0, 0.0, 2.0]),))
    same_as_module(program, ((torch.tensor([1.0, 0.0, 2.0]),), {}), ((torch.zeros(3),), {}), ((torch.ones(3),), {}))


def test_numbers_that_vary() -> None:
    program = export(Of(lambda x, n: (x * n, n + 1)), (torch.randn(3), 4), dynamic_shapes=((None, Dim.DYNAMIC),))
    assert whole(same_as_module(program, ((torch.randn(3), 4), {}), ((torch.randn(3), 9), {})))


def test_a_named_tuple_stays_one() -> None:
    x = torch.randn(3)
    lens = ortlens.explain(export(Of(lambda x: Pair(x + 1, {"twice": x * 2})), (x,)), calls=1)(x)
    assert isinstance(lens.result, Pair)
    assert_equal(lens.result, Pair(x + 1, {"twice": x * 2}))


def test_random_numbers_follow_the_seed() -> None:
    program, x = export(nn.Dropout(0.5).train(), (torch.randn(100),)), torch.ones(100)
    torch.manual_seed(1)
    expected = program.module()(x)
    torch.manual_seed(1)
    torch.testing.assert_close(ortlens.explain(program, calls=1)(x).result, expected)


def test_the_records_of_a_program() -> None:
    program, x = export(Block(), (torch.randn(2, 4),)), torch.randn(2, 4)
    lens = ortlens.explain(program, calls=2, name="block")(x)
    (graph,) = lens.captured().graphs
    assert (graph.phase, graph.compile_id, graph.coverage, graph.partition_count) == ("inference", None, 1.0, 1)
    assert graph.op_count == sum(1 for node in program.graph.nodes if node.op == "call_function")
    assert graph.aot_ns
    assert len(lens.runs) == 2
    assert set(lens.nodes.file) == {__file__}
    assert (lens.nodes.module[lens.nodes.target == "aten.addmm.default"] == "linear").all()
    assert lens.output().graph_count == 1
    assert lens.breaks.empty
    assert lens.captured().name == "block"


def test_weights_are_constants_that_are_watched() -> None:
    program, x = export(nn.Linear(4, 3), (torch.randn(2, 4),)), torch.randn(2, 4)
    lens = Lens()
    compiled = lens.compile_exported(program)
    before = compiled(x)
    assert lens.sessions.input_signature.tolist() == ["f32[2,4]"]
    with torch.no_grad():
        program.state_dict["weight"].add_(1)
    torch.testing.assert_close(compiled(x), before + x.sum(1, keepdim=True))


def test_shared_weights_are_one() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    x = torch.randn(2, 4)
    lens = same_as_module(export(nn.Sequential(first, nn.Tanh(), second), (x,)), ((x,), {}))
    assert lens.partitions.weight_bytes.tolist() == [(16 + 4) * 4]


@pytest.mark.parametrize("kind", [InputKind.CUSTOM_OBJ, InputKind.TOKEN])
def test_objects_and_tokens_are_refused_by_name(kind: InputKind) -> None:
    program = export(Block(), (torch.randn(2, 4), torch.randn(3)))
    spec = next(spec for spec in program.graph_signature.input_specs if spec.arg.name == "y")
    spec.kind = kind
    with pytest.raises(UsageError, match=r"script objects or effect tokens \(y\)"):
        ortlens.explain(program)(torch.randn(2, 4), torch.randn(3))


def test_another_backend_takes_no_program() -> None:
    with pytest.raises(UsageError, match="eager"):
        ortlens.explain(export(nn.Linear(2, 2), (torch.randn(1, 2),)), backend="eager")(torch.randn(1, 2))


def test_a_dry_run_of_a_program_runs_nothing_and_counts_the_same() -> None:
    program, x = export(Block(), (torch.randn(2, 4),)), torch.randn(2, 4)
    real, dry = ortlens.explain(program, calls=1)(x), ortlens.explain(program, dry_run=True)(x)
    columns = ["node_count", "weight_bytes", "flops", "input_bytes", "output_bytes"]
    assert dry.partitions[columns].values.tolist() == real.partitions[columns].values.tolist()
    assert dry.sessions.empty
    assert pytree.tree_map(lambda leaf: tuple(getattr(leaf, "shape", ())), dry.result) == pytree.tree_map(
        lambda leaf: tuple(getattr(leaf, "shape", ())), real.result
    )
