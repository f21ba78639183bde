"""Code on which PyTorch gave up before it was explained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ortlens


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


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize(("make", "breaks"), [(Aggregates, 1), (Outer, 2), (lambda: Aggregates().forward, 1)])
def test_breaks_are_found_again(make: type[nn.Module], breaks: int) -> None:
    model = make()
    with torch.no_grad():
        for _ in range(2):
            torch.compile(model, backend="eager")(*sparse_inputs())
            lens = ortlens.explain(model, calls=1)(*sparse_inputs())
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
        assert len(ortlens.explain(Aggregates(), calls=1)(x, x).graphs) == 1
        assert len(ortlens.explain(Aggregates(), calls=1)(x, adj).breaks) == 1
        compiled(x, x)
    assert len(graphs) == 1


def test_a_sequential_is_compiled_after_another_one_broke() -> None:
    class Breaks(nn.Module):
        def forward(self, adj: torch.Tensor) -> torch.Tensor:
            return torch.mm(adj, torch.ones(5, 5))

    with torch.no_grad():
        torch.compile(nn.Sequential(Breaks()), backend="eager")(torch.eye(5).to_sparse_coo())
        lens = ortlens.explain(nn.Sequential(nn.Linear(5, 5), nn.ReLU()), calls=1)(torch.ones(2, 5))
    assert len(lens.graphs) == 1


def test_where_nothing_is_compiled_the_summary_says_how_to_clear_that() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    torch._dynamo.decorators.skip(function)  # a mark of the user's own, which stays
    lens = ortlens.explain(function, calls=1)(torch.ones(3))
    assert not len(lens.graphs)
    for page in (str(lens.summary()), str(ortlens.Lens().summary()), lens._repr_html_()):
        assert "torch.compiler.reset()" in page
    with pytest.raises(ortlens.UsageError, match=r"nothing was compiled.*torch.compiler.reset\(\) clears that"):
        lens.profile()
