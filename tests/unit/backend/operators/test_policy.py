"""Operators that stay in PyTorch, whose kernels are faster: bags of embeddings, which deployed models contain, and gamma functions."""

import functools
import itertools
import pathlib
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional

from ortlens import Lens, UsageError
from ortlens.backend.operators import indexing, registry
from tests.integration.test_export_onnx import run_bare
from tests.unit.backend.operators.one_graph import as_pytorch, left

TABLE = torch.randn(10, 6, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([1, 2, 4, 2, 9, 0, 3, 2, 2, 5])
SHARES = torch.linspace(-1, 2, 10)
OFFSETS = torch.tensor([0, 0, 3, 3, 7])  # empty bags
ENDS = torch.tensor([0, 2, 9, 9, 10])
EXTREME = torch.tensor([[torch.nan, 1.0, -0.0, torch.inf], [2.0, torch.nan, 0.0, -torch.inf], [3.0, -1.0, -0.0, 5.0]])
MODES = ("sum", "mean", "max")


def extreme(table: torch.Tensor, mode: str) -> torch.Tensor:
    made = functional.embedding_bag(torch.tensor([0, 1, 2, 2, 1, 0]), EXTREME.to(table.dtype), torch.tensor([0, 3, 4]), mode=mode)
    return made if mode == "max" else 1 / made  # the larger of both zeros may be either


FORMS: dict[str, Any] = {
    "plain": lambda t, _, mode: functional.embedding_bag(IDS, t, OFFSETS, mode=mode),
    "rows": lambda t, _, mode: functional.embedding_bag(IDS.view(2, 5), t, mode=mode),
    "ends": lambda t, _, mode: functional.embedding_bag(IDS, t, ENDS, mode=mode, include_last_offset=True),
    "padding": lambda t, _, mode: functional.embedding_bag(IDS, t, OFFSETS, mode=mode, padding_idx=2),
    "shares": lambda t, shares, mode: functional.embedding_bag(IDS, t, OFFSETS, mode=mode, per_sample_weights=shares, padding_idx=-1),
    "short": lambda t, _, mode: functional.embedding_bag(IDS.int(), t, OFFSETS.int(), mode=mode),
    "all empty": lambda t, _, mode: functional.embedding_bag(IDS[:0], t, OFFSETS[:2] * 0, mode=mode),
    "extreme": lambda t, _, mode: extreme(t, mode),
}
BAGS: dict[str, Any] = {
    f"{mode} {form}": functools.partial(FORMS[form], mode=mode)
    for mode, form in itertools.product(MODES, FORMS)
    if form != "shares" or mode == "sum"
}
GAMMA: dict[str, Any] = {
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "psi": lambda x: torch.polygamma(0, x),
    "trigamma": lambda x: torch.polygamma(1, x),
    "several": lambda x: torch.mvlgamma(x.abs() + 2, 3),
    "third": lambda x: torch.polygamma(3, x),
}

X = torch.linspace(0.1, 9, 40)
OWN = registry.own_functions()
IN_ORT = {target: functools.partial(OWN[target]) for target in OWN if OWN[target].__module__ == indexing.__name__}
OPTIONS = {"custom_translation_table": IN_ORT}


def test_bags_stay_in_pytorch() -> None:
    capture = as_pytorch(BAGS, TABLE, SHARES, dynamic=True)
    assert {"aten.arange.start_step", "aten.view.default"} <= left(capture)  # they only serve the bags
    assert sum("embedding_bag" in row.target for row in capture.fallbacks) == len(BAGS)
    assert {row.reason_code for row in capture.fallbacks} == {"policy"}


@pytest.mark.parametrize("grad", [False, True])
def test_gamma_functions_stay_in_pytorch(*, grad: bool) -> None:
    capture = as_pytorch(GAMMA, X, grad=grad)
    assert {row.reason_code for row in capture.fallbacks if "gamma" in row.target} == {"no_converter"}
    assert {"aten.lgamma.default", "aten.digamma.default", "aten.polygamma.default", "aten.mvlgamma.default"} <= left(capture)


@pytest.mark.parametrize("name", ["lgamma", "several"])
def test_a_model_to_deploy_cannot_contain_gamma_functions(name: str, tmp_path: pathlib.Path) -> None:
    lens = Lens()
    with torch.no_grad():
        torch.compile(lambda x: GAMMA[name](x) + 1, backend=lens)(X)
    with pytest.raises(UsageError, match="gamma"):
        lens.export_onnx(tmp_path / "refused.onnx")


@pytest.mark.parametrize("wrong", [-1, 10, 2**62 - 1])
def test_an_id_out_of_range_raises_in_the_onnx_form(wrong: int) -> None:
    bags = torch.compile(lambda table, ids: functional.embedding_bag(ids, table, OFFSETS), backend=Lens(options=OPTIONS))
    torch.testing.assert_close(bags(TABLE, IDS), functional.embedding_bag(IDS, TABLE, OFFSETS))
    with pytest.raises(RuntimeError, match=r"idx|[Ii]ndex"):
        bags(TABLE, IDS.where(IDS > 0, wrong))


@pytest.mark.parametrize(
    ("dtype", "dynamic"),
    [(torch.float32, False), (torch.float64, False), (torch.float16, False), pytest.param(torch.float32, True, marks=pytest.mark.slow)],
    ids=str,
)
def test_the_onnx_form_is_right(dtype: torch.dtype, *, dynamic: bool) -> None:
    capture = as_pytorch(BAGS, TABLE.to(dtype), SHARES.to(dtype), dynamic=dynamic, atol=1e-6, options=OPTIONS)
    assert [target for target in left(capture) if "embedding_bag" in target] == []
    assert not {op for node in capture.nodes for op in node.onnx_ops} & {"Loop", "SequenceInsert", "ScatterND"}


def test_equal_bags_are_added_whole_by_several_threads() -> None:
    """ScatterND would lose rows here."""
    table, ids, offsets = torch.ones(50, 64), torch.randint(0, 50, (20_000,)), torch.tensor([0, 1, 19_999])
    compiled = torch.compile(lambda i, t, starts: functional.embedding_bag(i, t, starts, mode="sum"), backend=Lens(options=OPTIONS))
    with torch.no_grad():
        for _ in range(10):
            assert compiled(ids, table, offsets)[:, 0].tolist() == [1, 19_998, 1]


def test_a_deployed_model_contains_them(tmp_path: pathlib.Path) -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(10, 6, mode=mode, padding_idx=2) for mode in MODES)

        def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            return torch.stack([bag(ids, offsets) for bag in self.bags])

    model, lens = Bags().eval(), Lens()
    with torch.no_grad():
        want = model(IDS, OFFSETS)
        torch.testing.assert_close(torch.compile(model, backend=lens)(IDS, OFFSETS), want)
    path = lens.export_onnx(tmp_path / "indexing.onnx")
    (made,) = run_bare(path, {"ids": IDS, "offsets": OFFSETS}).values()
    torch.testing.assert_close(made, want)
    assert "Loop" not in {node.op_type for node in onnx.load(path).graph.node}
