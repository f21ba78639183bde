"""Cases of reductions, products and indexing."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from tests.conformance.cases_math import SPECIAL
from tests.conformance.operator_case import Elsewhere, OpCase, case, r, whole

EFFECT = {"with_effects": "no_converter"}  # Dynamo keeps the check of the result in order by a token
CHECK = {"aten._linalg_check_errors.default": "side_effect"}
WITH_NAN = torch.where(whole(0, 4, 6, 5) == 0, torch.nan, r(6, 5))


def without_tokens(operator: str) -> Elsewhere:
    return Elsewhere(
        "AOTAutograd knows no effect of this check: it is a plain node", before="2.13", stays={operator: "no_converter", **CHECK}
    )


REDUCTIONS: dict[str, OpCase] = {
    "sum_mean_prod": case(lambda x: (x.sum(), x.sum(1), x.mean((0, 1), keepdim=True), x.prod(0), x.prod()), r(4, 6), then=(r(5, 3),)),
    "sum_of_kinds": case(lambda x: (x.sum(dtype=torch.float64), (x > 0).sum(), x.int().sum(0)), r(4, 6), then=(r(5, 3),)),
    "extremes": case(lambda x: (x.max(), x.amin((0, 1)), x.max(1), torch.aminmax(x, dim=1), x.argmin(1)), r(4, 6), then=(r(5, 3),)),
    "reductions_of_nan": case(
        lambda x: (x.max(), x.min(), x.amax(), x.amin(), x.sum(), x.argmax(), x.argmin(), x.max(0), x.min(0)), SPECIAL
    ),
    "argmax_of_nan": case(lambda x: (x.argmax(1), x.argmin(1), x.argmax(), x.argmin(0, keepdim=True)), WITH_NAN),
    "variance": case(lambda x: (x.var(), x.std(1), x.var(0, correction=0), torch.var_mean(x, 1)), r(4, 6), then=(r(5, 3),)),
    "variance_of_one": case(lambda x: (x.var(1), x.std(1, correction=0)), r(4, 1)),
    "logsumexp_infinite": case(lambda x: x.logsumexp(0), torch.tensor([float("-inf"), float("-inf")])),
    "softmax": case(lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(1), F.softmin(x, 1)), r(4, 6) * 50, then=(r(5, 3),)),
    "softmax_of_masked": case(lambda x: x.softmax(-1), torch.full((2, 3), float("-inf"))),
    "softmax_no_dimensions": case(lambda x: (x.softmax(0), x.log_softmax(0), x.sum(0)), torch.tensor(2.0)),
    "cumulative": case(lambda x: (x.cumsum(0), x.cumsum(1), x.long().cumsum(0), (x > 0).cumsum(1)), r(4, 6), then=(r(5, 3),)),
    "cumulative_products": case(
        lambda x: (x.cumprod(0), x.logcumsumexp(1)),
        r(4, 6),
        then=(r(5, 3),),
        stays={"aten.logcumsumexp.default": "no_converter"},
        dynamic_stays={"aten.cumprod.default": "no_converter", "aten.logcumsumexp.default": "no_converter"},
    ),
    "histogram": case(lambda x: torch.bincount(x, minlength=9), whole(0, 9, 20), config={"capture_dynamic_output_shape_ops": True}),
}

PRODUCTS: dict[str, OpCase] = {
    "matmul": case(lambda x, y: x @ y, r(4, 6), r(6, 3), then=(r(5, 2), r(2, 7))),
    "matmul_integers": case(lambda x, y: x @ y, whole(-9, 9, 4, 6), whole(-9, 9, 6, 3)),
    "inverse": case(
        torch.linalg.inv,
        r(3, 3),
        stays={"aten.linalg_inv_ex.default": "no_converter", **EFFECT},
        exported_stays={"aten.linalg_inv_ex.default": "no_converter", **CHECK},
        elsewhere=without_tokens("aten.linalg_inv_ex.default"),
    ),
    "solve": case(
        torch.linalg.solve,
        r(3, 3),
        r(3),
        stays={"aten._linalg_solve_ex.default": "no_converter", **EFFECT},
        exported_stays={"aten._linalg_solve_ex.default": "no_converter", **CHECK},
        elsewhere=without_tokens("aten._linalg_solve_ex.default"),
    ),
}

INDEXING: dict[str, OpCase] = {
    "index_tensor": case(lambda x, i: (x[i], x[:, i], x[i, i]), r(4, 4), torch.tensor([0, -1, 2]), then=(r(5, 5), torch.tensor([0, 1]))),
    "index_around_a_slice": case(lambda x, i: x[i, :, i], r(4, 3, 4), torch.tensor([0, 2])),
    "index_boolean": case(lambda x: x[x > 0] * 2, r(9), graphs=None),
    "index_put": case(
        lambda x, i, v: (x.index_put((i,), v), torch.ops.aten.index_put(x, [None, i], v.t())), r(4, 4), torch.tensor([1, 3]), r(2, 4)
    ),
    "index_put_accumulates": case(lambda x, i, v: x.index_put((i,), v, accumulate=True), r(6), torch.tensor([1, 1, 3]), r(3)),
    "index_put_mask": case(lambda x: torch.ops.aten.index_put(x, [x > 0], torch.tensor(0.0)), r(4, 6), then=(r(5, 3),)),
    "gather": case(lambda x, i: (x.gather(1, i), x.gather(0, i[:2, :1] // 2), x.take(i)), r(4, 6), whole(0, 6, 4, 2)),
    "scatter": case(
        lambda x, i, v: (x.scatter(0, i, v), x.scatter(0, i, 7.0), x.scatter_add(0, i, v)), r(4, 6), whole(0, 4, 2, 6), r(2, 6)
    ),
    "scatter_reduce": case(
        lambda x, i, v: [x.scatter_reduce(0, i, v, kind) for kind in ("amax", "prod", "sum", "mean")], r(6), torch.tensor([0, 0, 3]), r(3)
    ),
    "scatter_reduce_without_self": case(
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax", include_self=False), r(6), torch.tensor([0, 0, 3]), r(3)
    ),
    "embedding": case(F.embedding, whole(0, 10, 2, 4), r(10, 3), then=(whole(0, 10, 3, 5), r(10, 3))),
    "embedding_bag": case(
        lambda i, o, w: F.embedding_bag(i, w, o),
        torch.tensor([1, 2, 4, 0]),
        torch.tensor([0, 2]),
        r(10, 3),
        stays={"aten._embedding_bag_forward_only.default": "policy"},
    ),
    "topk": case(lambda x: (x.topk(2), x.topk(3, 0, largest=False)), r(4, 6), then=(r(5, 3),)),
    "topk_nan": case(lambda x: (x.topk(3), x.topk(3, largest=False).values), SPECIAL),
    "sort": case(lambda x: (x.sort(1), x.sort(0, descending=True)), r(4, 6), then=(r(5, 3),)),
    "sort_nan": case(torch.sort, SPECIAL),
    "kthvalue": case(lambda x: x.kthvalue(2, 1), r(4, 6), stays={"aten.kthvalue.default": "no_converter"}),
    "searchsorted": case(
        lambda x: torch.searchsorted(torch.tensor([0.0, 0.5, 1.0]), x), r(9), stays={"aten.searchsorted.Tensor": "no_converter"}
    ),
    "unique": case(torch.unique, whole(0, 5, 9), config={"capture_dynamic_output_shape_ops": True}),
}

CASES: dict[str, OpCase] = {**REDUCTIONS, **PRODUCTS, **INDEXING}
