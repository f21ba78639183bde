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
    "sum_of_kinds": case(lambda x: (x.sum(dtype=torch.float64), (x > 0).sum(), x.int().sum(0)), r(4, 6), then=(r(5, 3),)),
    "reductions_of_nan": case(
        lambda x: (x.max(), x.min(), x.amax(), x.amin(), x.sum(), x.argmax(), x.argmin(), x.max(0), x.min(0)), SPECIAL
    ),
    "argmax_of_nan": case(lambda x: (x.argmax(1), x.argmin(1), x.argmax(), x.argmin(0, keepdim=True)), WITH_NAN),
    "variance_of_one": case(lambda x: (x.var(1), x.std(1, correction=0)), r(4, 1)),
    "logsumexp_infinite": case(lambda x: x.logsumexp(0), torch.tensor([float("-inf"), float("-inf")])),
    "softmax_of_masked": case(lambda x: x.softmax(-1), torch.full((2, 3), float("-inf"))),
    "softmax_no_dimensions": case(lambda x: (x.softmax(0), x.log_softmax(0), x.sum(0)), torch.tensor(2.0)),
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
    "index_put_accumulates": case(lambda x, i, v: x.index_put((i,), v, accumulate=True), r(6), torch.tensor([1, 1, 3]), r(3)),
    "index_put_mask": case(lambda x: torch.ops.aten.index_put(x, [x > 0], torch.tensor(0.0)), r(4, 6), then=(r(5, 3),)),
    "scatter_reduce_without_self": case(
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax", include_self=False), r(6), torch.tensor([0, 0, 3]), r(3)
    ),
    "embedding_bag": case(
        lambda i, o, w: F.embedding_bag(i, w, o),
        torch.tensor([1, 2, 4, 0]),
        torch.tensor([0, 2]),
        r(10, 3),
        stays={"aten._embedding_bag_forward_only.default": "policy"},
    ),
    "topk_nan": case(lambda x: (x.topk(3), x.topk(3, largest=False).values), SPECIAL),
    "sort_nan": case(torch.sort, SPECIAL),
    "kthvalue": case(lambda x: x.kthvalue(2, 1), r(4, 6), stays={"aten.kthvalue.default": "no_converter"}),
    "searchsorted": case(
        lambda x: torch.searchsorted(torch.tensor([0.0, 0.5, 1.0]), x), r(9), stays={"aten.searchsorted.Tensor": "no_converter"}
    ),
    "unique": case(torch.unique, whole(0, 5, 9), config={"capture_dynamic_output_shape_ops": True}),
}

CASES: dict[str, OpCase] = {**REDUCTIONS, **PRODUCTS, **INDEXING}
