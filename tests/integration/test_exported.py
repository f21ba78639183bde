"""Programs of `torch.export` down the backend's road: the same answers, structures and state as `program.module()`."""

# ruff: noqa: ANN401 - arguments and results of programs are Any in torch itself

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

import ortlens
from ortlens import Lens, UsageError
from tests.conformance.operator_case import Calls
from tests.integration.against_eager import assert_same, twin

Call = tuple[tuple[Any, ...], dict[str, Any]]
X = torch.randn(3)


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


def same_as_module(program: ExportedProgram, *calls: Call) -> Lens:
    """Compile a program once and call it; results, arguments and state must follow `program.module()` call by call."""
    module, lens = copy.deepcopy(program).module(), Lens(options={"on_error": "raise"})
    compiled = lens.compile_exported(program)
    with torch.no_grad():
        for call in calls:
            (args, kwargs), (own_args, own_kwargs) = pytree.tree_map(twin, call), pytree.tree_map(twin, call)
            torch.manual_seed(0)
            result = compiled(*args, **kwargs)
            torch.manual_seed(0)
            assert_same(result, module(*own_args, **own_kwargs))
            assert_same((args, kwargs), (own_args, own_kwargs))
            state = {**program.state_dict, **{name: value for name, value in program.constants.items() if isinstance(value, torch.Tensor)}}
            own = dict((*module.named_parameters(), *module.named_buffers()))
            assert_same({name: state[name].detach() for name in own}, {name: value.detach() for name, value in own.items()})
    assert not lens.captured().findings
    return lens


class Tied(nn.Module):
    """Uses one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first(x).tanh())


class Pair(NamedTuple):
    first: torch.Tensor
    rest: dict[str, torch.Tensor]


STRUCTURES: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    (lambda x: Pair(x + 1, {"twice": x * 2}), (X,)),
    (lambda _: None, (X,)),
    (lambda x: (x, None, 3, [x, "a"]), (X,)),
    (lambda: torch.ones(2), ()),
)


def test_a_program_returns_what_its_module_returns() -> None:
    for function, args in STRUCTURES:
        same_as_module(export(Calls(function), args), (args, {}))


def test_one_session_serves_every_size_and_every_number() -> None:
    program = export(Calls(lambda x, n: (x * n, n + 1)), (torch.randn(4, 4), 4), dynamic_shapes=(({0: Dim("batch", max=64)}, Dim.DYNAMIC),))
    sizes = (4, 2, 64, 5, 1)
    lens = same_as_module(program, *(((torch.randn(size, 4), size + 1), {}) for size in sizes))
    assert lens.graphs.coverage.tolist() == [1.0]
    assert lens.fallbacks.empty
    assert lens.sessions.calls.tolist() == [len(sizes)]
    assert lens.graphs.dynamic_shapes.tolist() == [True]
    with pytest.raises((RuntimeError, AssertionError), match=r"shape|size"):
        lens.compile_exported(program)(torch.randn(4, 5), 4)


def test_a_size_outside_the_constraint_raises_torchs_own_error() -> None:
    program = export(Block(), (torch.randn(4, 4),), dynamic_shapes={"x": {0: Dim("batch", min=3, max=8)}})
    for size in (2, 9):
        with pytest.raises((RuntimeError, AssertionError), match=r"shape\[0\].* to be [<>]= [38]|x\.size\(\)\[0\] [<>]= [38]"):
            ortlens.explain(program)(torch.randn(size, 4))


def test_a_size_that_would_take_another_branch_is_refused() -> None:
    program = export(
        Calls(lambda x: x.sum() + 1 if x.shape[0] % 2 == 0 else x.sum()), (torch.randn(4),), dynamic_shapes=(({0: Dim.AUTO},),)
    )
    with pytest.raises((RuntimeError, AssertionError)):
        ortlens.explain(program, calls=1)(torch.randn(5))


def test_starred_arguments_are_guarded_too() -> None:
    program = export(
        Calls(lambda x, y: (x * 2, y + 1) if x.shape[0] < y.shape[0] else (x, y)),
        (torch.randn(4), torch.randn(6)),
        dynamic_shapes=(({0: Dim.AUTO}, {0: Dim.AUTO}),),
    )
    guards = list(program._guards_code)
    x, y = torch.randn(2), torch.randn(9)
    torch.testing.assert_close(ortlens.explain(program, calls=1)(x, y).result, (x * 2, y + 1))
    with pytest.raises((RuntimeError, AssertionError)):
        ortlens.explain(program, calls=1)(y, x)
    assert program._guards_code == guards


def test_another_structure_and_another_backend_are_refused() -> None:
    program = export(Block(), (torch.randn(2, 4),))
    with pytest.raises((ValueError, TypeError)):
        ortlens.explain(program)(torch.randn(2, 4), nonsense=torch.randn(2))
    with pytest.raises(UsageError, match="eager"):
        ortlens.explain(program, backend="eager")(torch.randn(2, 4))


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


def test_sizes_and_branches_that_depend_on_values() -> None:
    def scaled(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        number = n.item()
        torch._check(number < 5)
        return x * number

    program = export(Calls(scaled), (torch.randn(3), torch.tensor(3)))
    same_as_module(program, ((torch.randn(3), torch.tensor(4)), {}))
    with pytest.raises(RuntimeError):
        ortlens.explain(program, calls=1)(torch.randn(3), torch.tensor(6))
    program = export(Calls(lambda x: x.nonzero().float() * 2), (torch.tensor([1.0, 0.0, 2.0]),))
    same_as_module(program, ((torch.tensor([1.0, 0.0, 2.0]),), {}), ((torch.zeros(3),), {}), ((torch.ones(3),), {}))


def test_the_records_of_a_program_and_of_its_dry_run() -> None:
    program, x = export(Block(), (torch.randn(2, 4),)), torch.randn(2, 4)
    lens, dry = ortlens.explain(program, calls=2, name="block")(x), ortlens.explain(program, dry_run=True)(x)
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
    columns = ["node_count", "weight_bytes", "flops", "input_bytes", "output_bytes"]
    assert dry.partitions[columns].values.tolist() == lens.partitions[columns].values.tolist()
    assert dry.sessions.empty
    shapes, real_shapes = (pytree.tree_map(lambda leaf: tuple(getattr(leaf, "shape", ())), made.result) for made in (dry, lens))
    assert shapes == real_shapes


@pytest.mark.parametrize("decomposed", [False, True])
def test_weights_are_constants_that_are_watched_and_shared_ones_are_one(*, decomposed: bool) -> None:
    program, x = export(Tied(), (torch.randn(2, 3),)), torch.randn(2, 3)
    program = program.run_decompositions() if decomposed else program
    lens = Lens()
    compiled = lens.compile_exported(program)
    torch.testing.assert_close(compiled(x), program.module()(x))
    assert lens.sessions.input_signature.tolist() == ["f32[2,3]"]
    assert lens.partitions.weight_bytes.tolist() == [(9 + 3) * 4]
    with torch.no_grad():
        program.state_dict["first.weight"].add_(1)
    torch.testing.assert_close(compiled(x), program.module()(x))


def test_objects_and_tokens_are_refused_by_name() -> None:
    program = export(Block(), (torch.randn(2, 4), torch.randn(3)))
    spec = next(spec for spec in program.graph_signature.input_specs if spec.arg.name == "y")
    for kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN):
        spec.kind = kind
        with pytest.raises(UsageError, match=r"script objects or effect tokens \(y\)"):
            ortlens.explain(program)(torch.randn(2, 4), torch.randn(3))


def of_sizes(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Call a function on zeros whose sizes are in tensors."""

    def called(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        sizes: list[Any] = [rows[0].item(), columns[0].item()]
        for size in sizes:
            torch._check(size >= 0)
            torch._check(size < 100)
        return function(torch.zeros(sizes))

    return called


MOVED = {
    "returned": lambda x: torch.ops.prims.device_put(x, "cpu"),
    "written": lambda x: torch.ops.prims.device_put(x, "cpu").add_(1) * 2,
    "computed": lambda x: torch.ops.prims.device_put(x + 1, "cpu").add_(1),
}
SQUEEZED = {
    "dim": of_sizes(lambda zeros: zeros.squeeze(0)),
    "dims": of_sizes(lambda zeros: zeros.squeeze((0, 1))),
    "computed with": of_sizes(lambda zeros: (zeros.squeeze(0) + 1) * 2),
    "before": of_sizes(lambda zeros: (zeros * 2 + 1).squeeze(1)),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_move_to_the_same_device_is_the_tensor_itself(name: str) -> None:
    function, given = MOVED[name], [torch.ones(3) for _ in range(3)]
    runs: list[Callable[..., Any]] = [function, Lens().compile_exported(torch.export.export(Calls(function), (torch.ones(3),)))]
    runs.append(ortlens.freeze(function, torch.ones(3)))
    made = [run(x) for run, x in zip(runs, given, strict=True)]
    for x, result in zip(given, made, strict=True):
        torch.testing.assert_close((result, x), (made[0], given[0]))
        assert (result is x) == (made[0] is given[0])


@pytest.mark.filterwarnings("error:ortlens:RuntimeWarning")
@pytest.mark.parametrize("name", SQUEEZED)
def test_a_squeeze_of_a_size_that_follows_from_data(name: str) -> None:
    function, fours = SQUEEZED[name], (torch.tensor([4]), torch.tensor([4]))
    run = Lens().compile_exported(torch.export.export(Calls(function), fours))
    frozen = ortlens.freeze(function, *fours)
    for sizes in ((1, 4), (4, 1), (4, 4), (1, 1)):
        given = [torch.tensor([size]) for size in sizes]
        torch.testing.assert_close((run(*given), frozen(*given)), (function(*given),) * 2)
