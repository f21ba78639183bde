"""Writes at indices: scatter with fewer indices than sources, and every reduction."""

import functools
import itertools
from typing import Any

import pytest
import torch

from tests.unit.backend.operators.one_graph import as_pytorch, left

X = torch.tensor([[1.0, -2.0, 3.0, 0.5, 4.0]] * 4)
SOURCE = torch.linspace(-3, 4, 42).reshape(6, 7)
INDEX = torch.tensor([[0, 1, 2], [1, 0, 3]])
TWICE = torch.tensor([[0, 1, 2], [0, 0, 3]])
ROWS = torch.tensor([0, 2, 0])
SUMS = {f"aten.{name}.default" for name in ("index_put", "index_add", "embedding_dense_backward")}
put = torch.ops.aten.index_put.default
REDUCTIONS = tuple(itertools.product(("sum", "mean", "prod", "amin", "amax"), (True, False)))


def scatter_reduce(x: torch.Tensor, source: torch.Tensor, *, reduce: str, include_self: bool, index: torch.Tensor = TWICE) -> torch.Tensor:
    return x.scatter_reduce(0, index, source, reduce, include_self=include_self)


def index_reduce(x: torch.Tensor, source: torch.Tensor, *, reduce: str, include_self: bool) -> torch.Tensor:
    return x.index_reduce(0, ROWS, source[:3, :5], reduce, include_self=include_self)


def copied_into_rows(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    made[1:3].copy_(source[0, :5])
    return made


REDUCED: dict[str, Any] = {
    f"{function.__name__} {reduce} {include_self}": functools.partial(function, reduce=reduce, include_self=include_self)
    for function, (reduce, include_self) in itertools.product((scatter_reduce, index_reduce), REDUCTIONS)
    if (function, reduce) != (index_reduce, "sum")
}
CASES: dict[str, Any] = {
    "scatter": lambda x, s: x.scatter(0, INDEX, s),
    "scatter columns": lambda x, s: x.scatter(1, INDEX, s),
    "scatter a number": lambda x, _: x.scatter(0, INDEX, 2.5),
    "scatter added": lambda x, s: x.scatter(0, TWICE, s, reduce="add"),
    "scatter multiplied": lambda x, s: x.scatter(-1, TWICE, s, reduce="multiply"),
    "scatter a number multiplied": lambda x, _: x.scatter(0, TWICE, 2.0, reduce="multiply"),
    "scatter nothing": lambda x, s: x.scatter(0, torch.empty(0, 3, dtype=torch.int64), s),
    "scatter_add": lambda x, s: x.scatter_add(1, TWICE, s),
    "scatter_add of no dimensions": lambda x, s: x.sum().scatter_add(0, torch.tensor(0), s.max()),
    "scatter_add of one index": lambda x, s: x[0].scatter_add(0, torch.tensor(2), s[0]),
    "gather": lambda x, _: x.gather(0, INDEX),
    "gather of no dimensions": lambda x, _: x.sum().gather(0, torch.tensor([0, 0])),
    "gather nothing": lambda x, _: x[0].gather(0, torch.empty(2, 0, dtype=torch.int64)),
    "index_put": lambda x, s: x.index_put((torch.tensor([0, -1]), torch.tensor([1, 1])), s[0, 0]),
    "index_put of nothing, at places that do not exist": lambda x, s: put(x[:0] * 2, [None, TWICE + 99], s[0, 0]) + 1,
    "index_put added": lambda x, s: x.index_put((ROWS,), s[0, :5], accumulate=True),
    "index_put added to columns": lambda x, s: put(x, [None, ROWS], s[:4, :3], accumulate=True),
    "index_put added, a table of indices": lambda x, s: x.index_put((TWICE,), s[0, :5], accumulate=True),
    "index_put added at two dimensions": lambda x, s: x.index_put((ROWS, torch.tensor([-1, 4, -1])), s[0, :3], accumulate=True),
    "index_put added at two broadcast dimensions": lambda x, s: put(x[None], [None, ROWS[:, None], ROWS], s[0, 0], accumulate=True),
    "index_put added behind a dimension apart": lambda x, s: put(x[:, None], [ROWS, None, ROWS], s[0, 0], accumulate=True),
    "index_add": lambda x, s: x.index_add(0, ROWS, s[:3, :5], alpha=-2),
    "index_add of small integers": lambda x, s: x.abs().byte().index_add(0, ROWS, s[:3, :5].abs().byte(), alpha=-1),
    "index_add of booleans": lambda x, s: (x > 2).index_add(0, ROWS, s[:3, :5] > 1, alpha=True),
    "index_add of columns": lambda x, s: x.index_add(-1, ROWS.int(), s[:4, :3]),
    "index_add of no dimensions": lambda x, s: x.sum().index_add(0, torch.tensor([0]), s[0, 0]),
    "embedding with padding": lambda x, s: torch.nn.functional.embedding(TWICE, x + s[0, 0], padding_idx=2),
    "embedding of halves": lambda x, s: torch.nn.functional.embedding(TWICE, (x + s[0, 0]).half()).float(),
    "embedding by frequency": lambda x, s: torch.nn.functional.embedding(TWICE, x + s[0, 0], scale_grad_by_freq=True),
    "copy_ of a row": lambda x, s: x.clone().copy_(s[0, :5]),
    "copy_ of a row into rows": copied_into_rows,
    "copy_ of floats into integers": lambda x, s: torch.zeros(4, 5, dtype=torch.int32).copy_(x + s[0, 0]),
    "repeats of a known sum": lambda x, _: x.repeat_interleave(torch.tensor([1, 0, 2, 1]), 0, output_size=4),
    "repeats of nothing": lambda x, _: x[:0].repeat_interleave(torch.zeros(0, dtype=torch.int64), 0, output_size=0),
}


pytestmark = pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter", "ignore:index_reduce")


@pytest.mark.parametrize("dynamic", [False, True])
def test_as_pytorch(*, dynamic: bool) -> None:
    stays = {"aten.gather.default", "aten.repeat_interleave.Tensor", "aten.index_put.default"}  # of nothing, and at dimensions apart
    as_pytorch({**CASES, **REDUCED}, X, SOURCE, dynamic=dynamic, stays=stays)


def test_gradients_and_sums_that_are_not_made_by_an_operator_that_loses_rows() -> None:
    """ScatterND adds several rows at once; without scatter, whose gradient wants a source of the size of the index."""
    derived = {name: case for name, case in CASES.items() if "scatter" not in name}
    sums = {name: case for name, case in derived.items() if "index_add" in name or "embedding" in name or "put added" in name}
    as_pytorch({name: case for name, case in derived.items() if name not in sums}, X, SOURCE, grad=True)
    capture = as_pytorch(sums, X, SOURCE, grad=True)
    operators = {node.target: node.onnx_ops for node in capture.nodes if node.supported and node.target in SUMS}
    assert operators.keys() == SUMS
    assert all("ScatterElements" in kinds and "ScatterND" not in kinds for kinds in operators.values())
    assert len({row.reason for row in capture.fallbacks}) == 2, "dimensions apart, and the gradient by frequency"


MANY: dict[str, Any] = {
    "index_put": lambda x, s, i: x.index_put((i,), s, accumulate=True),
    "index_add": lambda x, s, i: x.index_add(0, i, s),
    "scatter_add": lambda x, s, i: x.scatter_add(0, i[:, None].expand_as(s), s),
    "scatter_reduce": lambda x, s, i: x.scatter_reduce(0, i[:, None].expand_as(s), s, "amax"),
    "embedding": lambda x, s, i: (torch.nn.functional.embedding(i, x) * s).sum(),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_many_rows_are_added_by_pytorch(*, dynamic: bool) -> None:
    x, source, index = torch.randn(50, 64), torch.randn(600, 64), torch.randint(0, 50, (600,))
    capture = as_pytorch(MANY, x, source, index, dynamic=dynamic, grad=True)
    assert {row.reason_code for row in capture.fallbacks} == {"policy"}
    sums = {"aten.index_put.default", "aten.index_add.default", "aten.scatter_add.default", "aten.scatter_reduce.two"}
    assert left(capture) >= {*sums, "aten.embedding_dense_backward.default", "aten.expand.default"}
    if dynamic:
        return
    as_pytorch(MANY, x, source[:50], index[:50], stays=())
    columns = {"scatter_add": lambda x, s, i: x.scatter_add(1, i[None].expand(600, 600), s @ s.T)}  # not row by row
    as_pytorch(columns, source, source, index, stays=())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_reductions_of_extreme_values(dtype: torch.dtype) -> None:
    x, source = torch.tensor([1.0, -3, 3, 7, 9, 5]).to(dtype), torch.tensor([2.0, 1, 2, 3, -4, 6]).to(dtype)
    if dtype.is_floating_point:
        x[1], x[3], source[0], source[4] = torch.nan, -torch.inf, torch.nan, torch.inf
    index = torch.tensor([0, 1, 0, 2, 2, 4])
    cases = {name: functools.partial(case, index=index) for name, case in REDUCED.items() if "scatter" in name}
    as_pytorch(cases, x, source)


def test_reductions_of_booleans_stay_in_pytorch() -> None:
    cases = {name: functools.partial(case, index=torch.tensor([0, 1, 0])) for name, case in REDUCED.items() if "scatter_reduce am" in name}
    capture = as_pytorch(cases, torch.tensor([True, False, True]), torch.tensor([False, True, True]), stays={"aten.scatter_reduce.two"})
    assert not [row for row in capture.fallbacks if row.reason_code == "converter_raised"]
