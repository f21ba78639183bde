"""Graph breaks, counted once per place, also in called functions, and recompiles, kept apart from them."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens, UsageError, explain

HERE = Path(__file__)
X = torch.linspace(0.1, 1, 5)


def innermost(x: torch.Tensor) -> torch.Tensor:
    x = torch.sin(x)
    torch._dynamo.graph_break()  # three calls deep
    return torch.sin(x)


def second(x: torch.Tensor) -> torch.Tensor:
    return torch.cos(innermost(torch.cos(x)))


def third(x: torch.Tensor) -> torch.Tensor:
    return torch.tan(second(torch.tan(x)))


def outermost(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(third(torch.sigmoid(x)))


def line_of(comment: str) -> int:
    (number,) = (n for n, line in enumerate(HERE.read_text(encoding="utf-8").splitlines(), 1) if line.rstrip().endswith(f"# {comment}"))
    return number


def watch(function: Callable[..., Any], *calls: tuple[Any, ...], backend: str = "eager", dynamic: bool | None = None) -> Lens:
    lens = Lens(backend)
    compiled = torch.compile(function, backend=lens, dynamic=dynamic)
    with torch.no_grad():
        for args in calls:
            torch.testing.assert_close(compiled(*args), function(*args))
    return lens


LIBRARY = """
import functools

def keeps_its_result(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper
"""


def test_a_function_is_named_and_placed_behind_the_decorators_of_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "site-packages" / "some_library.py"  # as transformers puts decorators around `forward`
    library.parent.mkdir()
    library.write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(library.parent))
    decorate = importlib.import_module("some_library").keeps_its_result
    lens = watch(decorate(decorate(outermost)), (X,), (torch.ones(2, 3),))
    assert "wrapper" not in set(lens.graphs.name)
    assert {row.file for row in lens.captured().recompiles if row.function == "outermost"} == {str(HERE)}


def test_one_break_three_calls_deep() -> None:
    lens = watch(outermost, (X,), (X + 1,))
    output = lens.output()
    assert (output.graph_count, output.graph_break_count, output.op_count, output.recompile_count) == (8, 7, 8, 0)
    assert len(output.graphs) == 8
    (broken,) = lens.captured().breaks
    assert (broken.occurrences, broken.gb_id) == (7, "GB0025")
    assert (broken.file, broken.line, broken.function) == (str(HERE), line_of("three calls deep"), "innermost")
    assert broken.source == "torch._dynamo.graph_break()  # three calls deep"
    assert "graph_break()" in broken.reason
    assert broken.explanation
    assert broken.hints
    assert lens.recompiles.empty
    assert len(lens.graphs) == 8
    assert set(lens.graphs.name) == {"innermost", "second", "third", "outermost"}
    assert (lens.graphs.dynamo_ns > 0).all()
    for word in ("Graph Count: 8", "Graph Break Count: 7", "Op Count: 8", "(x7)", broken.reason):
        assert word in str(output)


def test_the_stack_of_a_break_that_explain_met_is_the_users() -> None:
    (broken,) = explain(outermost, calls=1)(X).captured().breaks
    assert [frame.rpartition(" ")[2] for frame in broken.user_stack][-4:] == ["outermost", "third", "second", "innermost"]
    assert [frame for frame in broken.user_stack if "ortlens/lens" in frame or "/torch/" in frame] == []


def helper(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()  # called twice
    return x + 1


def calls_it_twice(x: torch.Tensor) -> torch.Tensor:
    return helper(helper(x.sin()).cos()).tan()


def branches(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:  # branch on data
        return y + 1
    return y - 1


def prints(x: torch.Tensor) -> torch.Tensor:
    print(end="")  # noqa: T201 # printed
    return x


@pytest.mark.parametrize(
    ("function", "marked", "graphs", "occurrences"),
    [(calls_it_twice, "called twice", 4, 3), (branches, "branch on data", 3, 2), (prints, "printed", 0, 1)],
)
def test_a_line_is_one_break_however_often_and_with_what_around_it(
    function: Callable[..., Any], marked: str, graphs: int, occurrences: int
) -> None:
    lens = watch(function, (X,), (-X,), (X,))
    assert lens.breaks.line.tolist() == [line_of(marked)]
    assert (lens.output().graph_count, lens.breaks.occurrences.item()) == (graphs, occurrences)
    assert lens.recompiles.empty


def test_a_break_in_a_loop_skips_the_frame_and_is_told() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    def loops(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = inner(x) + 1
            torch._dynamo.graph_break()  # in a loop
        return x

    lens = watch(loops, (X,))
    assert line_of("in a loop") in lens.breaks.line.tolist()
    assert lens.graphs.name.tolist() == ["inner"], "PyTorch skips the frame with the loop and compiles what it calls"
    assert not lens.captured().findings


def test_a_recompile_of_a_function_with_a_break_adds_no_break() -> None:
    def broken_once(x: torch.Tensor, flag: bool) -> torch.Tensor:  # noqa: FBT001 - what Dynamo guards on
        x = x.sin() if flag else x.cos()
        torch._dynamo.graph_break()  # recompiled
        return x + 1

    lens = watch(broken_once, (X, True), (X, False), (X, True))
    (broken,) = lens.captured().breaks
    assert broken.occurrences == 1
    assert len(broken.compile_ids) == 2
    assert lens.output().recompile_count == len(lens.recompiles) >= 1
    assert "flag" in (lens.captured().recompiles[0].guard or "")
    assert lens.output().graph_count == 1 + 1 + len(lens.recompiles)


def signs(x: torch.Tensor) -> Iterator[torch.Tensor]:
    for row in x:
        yield row + 1 if row.sum() > 0 else row - 1  # decides in a generator


def takes_from_signs(x: torch.Tensor) -> torch.Tensor:  # takes from a generator
    total = torch.zeros(1)
    for row in signs(x):
        total = total + row
    return total


def test_a_frame_given_up_for_its_generator_is_a_break_with_the_reason() -> None:
    lens = watch(takes_from_signs, (X.view(5, 1),), (-X.view(5, 1),))
    (told,) = lens.breaks.itertuples()
    assert (told.reason, told.gb_id) == ("Data-dependent branching", "GB0170")
    assert told.file == __file__
    assert told.line == line_of("decides in a generator")
    assert not lens.captured().findings


def test_a_frame_with_nothing_to_compile_is_no_break() -> None:
    def nothing(x: torch.Tensor) -> torch.Tensor:
        return x

    torch.compile(takes_from_signs, backend="eager")(X.view(5, 1))  # leaves its reason in Dynamo's counters
    lens = watch(nothing, (X,))
    assert lens.breaks.empty
    assert lens.graphs.empty


def test_a_frame_that_the_backend_cannot_compile_is_one_break() -> None:
    # PyTorch logs it twice: that it gives the frame up, and why.
    def takes(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.stack([x, x + 1])[at]  # indexed by a number in a tensor

    lens = watch(takes, (X, torch.tensor(1)), backend="aot_eager")
    (broken,) = lens.captured().breaks
    assert (broken.reason, broken.line) == ("Backend compiler exception", line_of("indexed by a number in a tensor"))


def raises(x: torch.Tensor) -> torch.Tensor:
    raise KeyError(x.shape)


@pytest.mark.parametrize(("function", "error", "fullgraph"), [(outermost, torch._dynamo.exc.Unsupported, True), (raises, KeyError, False)])
def test_an_error_of_full_graph_mode_or_of_the_user_is_raised_and_no_finding(
    function: Callable[..., Any], error: type[Exception], *, fullgraph: bool
) -> None:
    lens = Lens("eager")
    with pytest.raises(error):
        torch.compile(function, backend=lens, fullgraph=fullgraph)(X)
    assert lens.graphs.empty
    assert not lens.captured().findings


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning")
def test_packed_weights_of_torch_ao_cannot_be_traced() -> None:
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(5, 3)), {nn.Linear}, dtype=torch.qint8)
    with torch.no_grad():
        (broken,) = explain(model, calls=1)(X[None]).captured().breaks
    assert (broken.advice or "").startswith("Quantise with torchao")


# ------------------------------------------------------------- code on which PyTorch gave up before it was explained


class Aggregates(nn.Module):
    """Breaks the graph with a sparse argument."""

    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.mm(adj, x.sin()))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Aggregates()

    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x, adj)
        return y + 1


def sparse_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 5), torch.eye(5).to_sparse_coo()


@pytest.mark.parametrize(("make", "breaks"), [(Aggregates, 1), (Outer, 2), (lambda: Aggregates().forward, 1)])
def test_breaks_are_found_again(make: type[nn.Module], breaks: int) -> None:
    model = make()
    with torch.no_grad():
        for _ in range(2):
            torch.compile(model, backend="eager")(*sparse_inputs())
            lens = explain(model, calls=1)(*sparse_inputs())
            assert len(lens.breaks) == breaks


def test_what_the_user_compiled_of_the_same_code_stays() -> None:
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    x, adj = sparse_inputs()
    compiled = torch.compile(Aggregates(), backend=backend)
    with torch.no_grad():
        compiled(x, x)
        compiled(x, adj)
        assert len(explain(Aggregates(), calls=1)(x, x).graphs) == 1
        assert len(explain(Aggregates(), calls=1)(x, adj).breaks) == 1
        compiled(x, x)
    assert len(graphs) == 1


def test_a_sequential_is_compiled_after_another_one_broke() -> None:
    class Breaks(nn.Module):
        def forward(self, adj: torch.Tensor) -> torch.Tensor:
            return torch.mm(adj, torch.ones(5, 5))

    with torch.no_grad():
        torch.compile(nn.Sequential(Breaks()), backend="eager")(torch.eye(5).to_sparse_coo())
        lens = explain(nn.Sequential(nn.Linear(5, 5), nn.ReLU()), calls=1)(torch.ones(2, 5))
    assert len(lens.graphs) == 1


def test_where_nothing_is_compiled_the_summary_says_how_to_clear_that() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    torch._dynamo.decorators.skip(function)  # a mark of the user's own, which stays
    lens = explain(function, calls=1)(torch.ones(3))
    assert not len(lens.graphs)
    for page in (str(lens.summary()), str(Lens().summary()), lens._repr_html_()):
        assert "torch.compiler.reset()" in page
    with pytest.raises(UsageError, match=r"nothing was compiled.*torch.compiler.reset\(\) clears that"):
        lens.profile()


def in_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = innermost(x) + 1
    return x.tan()


def broken_twice(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    x = x.cos()
    torch._dynamo.graph_break()
    return x.tan()


def two_in_one(x: torch.Tensor) -> torch.Tensor:
    return broken_twice(x.exp()) + 1


def on_data(x: torch.Tensor) -> torch.Tensor:
    return branches(x.exp()) * 2


def weighed(x: torch.Tensor) -> torch.Tensor:
    return x * x.mean().item()


def by_number(x: torch.Tensor) -> torch.Tensor:
    return weighed(x.exp()).sin()


def in_context(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = innermost(x.exp())
    return y.tan()


def in_list(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([innermost(x + shift) for shift in range(2)]).sum(0)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        torch._dynamo.graph_break()
        return y.relu()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x))
        return y


BREAK = "torch._dynamo.graph_break()"
DEEP = f"{BREAK}  # three calls deep"
PROGRAMS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "three_deep": (outermost, "innermost", DEEP),
    "in_loop": (in_loop, "innermost", DEEP),
    "two_in_one": (two_in_one, "broken_twice", BREAK),
    "called_twice": (calls_it_twice, "helper", f"{BREAK}  # called twice"),
    "on_data": (on_data, "branches", "if y.sum() > 0:  # branch on data"),
    "by_number": (by_number, "weighed", "return x * x.mean().item()"),
    "in_context": (in_context, "innermost", DEEP),
    "in_list": (in_list, "innermost", DEEP),
    "submodule": (Model(), "forward", BREAK),
    "sequential": (nn.Sequential(Layer(), nn.Linear(5, 5), Layer()), "forward", BREAK),
}


@pytest.mark.filterwarnings("ignore")  # of Dynamo about what it cannot trace
@pytest.mark.parametrize(
    ("name", "is_nested"), [*((name, True) for name in PROGRAMS), *((name, False) for name in ("two_in_one", "in_context", "submodule"))]
)
def test_graphs_and_breaks_are_those_of_pytorch_and_the_line_is_that_of_the_inner_function(name: str, is_nested: bool) -> None:  # noqa: FBT001
    target, function, source = PROGRAMS[name]
    with torch.no_grad(), torch._dynamo.config.patch(nested_graph_breaks=is_nested):
        theirs = torch._dynamo.explain(target)(X)
        torch._dynamo.reset()
        lens = ortlens.explain(target, calls=3)(X)
    torch.testing.assert_close(lens.result, target(X), rtol=1e-4, atol=1e-4)
    capture = lens.captured()
    assert (len(lens.graphs), int(lens.breaks.occurrences.sum())) == (theirs.graph_count, theirs.graph_break_count)
    assert {(item.function, item.source, item.file) for item in capture.breaks} == {(function, source, __file__)}
    for item in capture.breaks:
        assert item.cost_ns is not None
        assert item.user_stack[-1].endswith(f" {function}")
        assert not any("ortlens/_os_errors.py" in frame for frame in item.user_stack)
    assert all((graph.entries_per_call or 0) >= 1 for graph in capture.graphs)
