"""Cases of reductions, products and indexing."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from tests.conformance.cases_math import SIGNED, SPECIAL
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
    "extremes": case(lambda x: (x.max(), x.min(), x.amax(1), x.amin((0, 1)), x.max(1), x.min(0, keepdim=True)), r(4, 6), then=(r(5, 3),)),
    "aminmax": case(lambda x: torch.aminmax(x, dim=1), r(4, 6), then=(r(5, 3),)),
    "argmax_argmin": case(lambda x: (x.argmax(), x.argmin(1), x.argmax(0, keepdim=True)), r(4, 6), then=(r(5, 3),)),
    "reductions_of_nan": case(
        lambda x: (x.max(), x.min(), x.amax(), x.amin(), x.sum(), x.argmax(), x.argmin(), x.max(0), x.min(0)), SPECIAL
    ),
    "argmax_of_nan": case(lambda x: (x.argmax(1), x.argmin(1), x.argmax(), x.argmin(0, keepdim=True)), WITH_NAN),
    "argmax_of_ties": case(lambda x: (x.argmax(), x.argmin(), x.max(0)), torch.tensor([1.0, 3.0, 3.0, 1.0])),
    "any_all": case(lambda x: ((x > 0).any(), (x > 0).all(1), (x > 9).any(0), (x > -9).all()), r(4, 6), then=(r(5, 3),)),
    "any_of_numbers": case(lambda x: (x.any(), x.all(), x.count_nonzero()), SIGNED),
    "variance": case(lambda x: (x.var(), x.std(1), x.var(0, correction=0), x.std((0, 1), keepdim=True)), r(4, 6), then=(r(5, 3),)),
    "var_mean": case(
        lambda x: (torch.var_mean(x, 1), torch.std_mean(x, 0, correction=0)),
        r(4, 6),
        then=(r(5, 3),),
    ),
    "variance_of_one": case(lambda x: (x.var(1), x.std(1, correction=0)), r(4, 1)),
    "norms": case(lambda x: (x.norm(), x.norm(1, 1), x.norm(float("inf")), torch.linalg.norm(x, dim=1)), r(4, 6), then=(r(5, 3),)),
    "vector_norms": case(
        lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (0, 1, 2, 3, float("inf"), float("-inf"))], r(4, 6), then=(r(5, 3),)
    ),
    "matrix_norm": case(lambda x: (torch.linalg.matrix_norm(x), torch.linalg.matrix_norm(x, 1)), r(4, 6)),
    "normalize_cosine": case(lambda x, y: (F.normalize(x), F.cosine_similarity(x, y)), r(4, 6), r(4, 6) + 1, then=(r(5, 3), r(5, 3) + 1)),
    "logsumexp": case(lambda x: (x.logsumexp(1), (x * 200).logsumexp((0, 1)), x.logsumexp(0, keepdim=True)), r(4, 6), then=(r(5, 3),)),
    "logsumexp_infinite": case(lambda x: x.logsumexp(0), torch.tensor([float("-inf"), float("-inf")])),
    "softmax": case(lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(1), F.softmin(x, 1)), r(4, 6) * 50, then=(r(5, 3),)),
    "softmax_casts": case(lambda x: (F.softmax(x, -1, dtype=torch.float64), F.log_softmax(x.half(), -1, dtype=torch.float32)), r(4, 6)),
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
    "cumulative_extremes": case(
        lambda x: (x.cummax(0), x.cummin(1)), r(4, 6), stays={"aten.cummax.default": "no_converter", "aten.cummin.default": "no_converter"}
    ),
    "median": case(lambda x: x.median(), r(9)),
    "nansum_nanmean": case(lambda x: (x.nansum(), x[3:].nanmean()), SPECIAL),
    "trace": case(
        lambda x: (x.trace(), x.diff(), x.diff(dim=0)),
        r(4, 6),
        then=(r(5, 3),),
        elsewhere=Elsewhere("guards on which of the two sizes is larger", before="2.13", roads=("dynamic",), graphs=2),
    ),
    "histogram": case(lambda x: torch.bincount(x, minlength=9), whole(0, 9, 20), config={"capture_dynamic_output_shape_ops": True}),
}

PRODUCTS: dict[str, OpCase] = {
    "matmul": case(lambda x, y: x @ y, r(4, 6), r(6, 3), then=(r(5, 2), r(2, 7))),
    "matmul_vectors": case(lambda x, y, m: (x @ y, m @ x, x @ m.t()), r(6), r(6) + 1, r(4, 6), then=(r(3), r(3), r(5, 3))),
    "matmul_batches": case(lambda x, y: x @ y, r(2, 1, 4, 6), r(3, 6, 5), then=(r(3, 1, 2, 4), r(2, 4, 3))),
    "matmul_integers": case(lambda x, y: x @ y, whole(-9, 9, 4, 6), whole(-9, 9, 6, 3)),
    "bmm_baddbmm": case(lambda b, x, y: (torch.bmm(x, y), torch.baddbmm(b, x, y, beta=0.5, alpha=2)), r(2, 4, 5), r(2, 4, 6), r(2, 6, 5)),
    "addmm": case(lambda b, x, y: (torch.addmm(b, x, y), torch.addmm(b, x, y, beta=0.5, alpha=2)), r(5), r(4, 6), r(6, 5)),
    "addmv_outer_dot": case(lambda b, m, v: (torch.addmv(b, m, v), torch.outer(b, v), torch.dot(v, v)), r(4), r(4, 6), r(6)),
    "tensordot": case(lambda x, y: torch.tensordot(x, y, dims=([1, 2], [0, 1])), r(2, 3, 4), r(3, 4, 5)),
    "einsum_matmul": case(lambda x, y: torch.einsum("bij,bjk->bki", x, y), r(2, 3, 4), r(2, 4, 5), then=(r(3, 2, 5), r(3, 5, 2))),
    "einsum_trace_outer": case(
        lambda x, v: (torch.einsum("ii->i", x), torch.einsum("i,j->ij", v, v), torch.einsum("ij->", x)), r(4, 4), r(3)
    ),
    "einsum_attention": case(lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k), r(2, 2, 3, 4), r(2, 2, 5, 4)),
    "kron_cross": case(lambda x, y: (torch.kron(x, y), torch.cross(x, y, dim=1)), r(4, 3), r(4, 3) + 1),
    "cdist": case(torch.cdist, r(4, 6), r(3, 6), stays={"aten._cdist_forward.default": "no_converter"}),
    "linear": case(lambda x, w, b: (F.linear(x, w, b), F.linear(x, w)), r(4, 6), r(3, 6), r(3), then=(r(5, 6), r(2, 6), r(2))),
    "bilinear": case(F.bilinear, r(4, 6), r(4, 6), r(2, 6, 6)),
    "determinant": case(torch.linalg.det, r(3, 3)),
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
    "index_two_tensors": case(lambda x, i, j: x[i[:, None], j], r(4, 6), torch.tensor([0, 2]), torch.tensor([1, 3, 5])),
    "index_around_a_slice": case(lambda x, i: x[i, :, i], r(4, 3, 4), torch.tensor([0, 2])),
    "index_boolean": case(lambda x: x[x > 0] * 2, r(9), graphs=None),
    "index_put": case(lambda x, i, v: x.index_put((i,), v), r(6), torch.tensor([1, 3]), r(2)),
    "index_put_accumulates": case(lambda x, i, v: x.index_put((i,), v, accumulate=True), r(6), torch.tensor([1, 1, 3]), r(3)),
    "index_put_two": case(lambda x, i, j, v: x.index_put((i, j), v), r(4, 6), torch.tensor([0, 2]), torch.tensor([1, -1]), r(2)),
    "index_put_second_dimension": case(lambda x, i, v: torch.ops.aten.index_put(x, [None, i], v), r(4, 6), torch.tensor([1, 3]), r(4, 2)),
    "index_put_mask": case(lambda x: torch.ops.aten.index_put(x, [x > 0], torch.tensor(0.0)), r(4, 6), then=(r(5, 3),)),
    "index_select_add_copy": case(
        lambda x, i, v: (x.index_select(0, i), x.index_add(0, i, v), x.index_copy(0, i, v), x.index_fill(0, i, 2.0)),
        r(4, 6),
        torch.tensor([0, 2]),
        r(2, 6),
    ),
    "gather": case(lambda x, i: (x.gather(1, i), torch.take_along_dim(x, i, 1)), r(4, 6), whole(0, 6, 4, 2)),
    "gather_smaller": case(lambda x, i: x.gather(0, i), r(4, 6), whole(0, 4, 2, 3)),
    "take": case(lambda x, i: x.take(i), r(4, 6), torch.tensor([0, 5, 23, -1])),
    "scatter": case(lambda x, i, v: x.scatter(0, i, v), r(4, 6), whole(0, 4, 2, 6), r(2, 6)),
    "scatter_value": case(lambda x, i: x.scatter(1, i, 7.0), r(4, 6), whole(0, 6, 4, 1)),
    "scatter_add": case(lambda x, i, v: x.scatter_add(0, i, v), r(4, 6), whole(0, 4, 3, 6), r(3, 6)),
    "scatter_reduce": case(
        lambda x, i, v: (x.scatter_reduce(0, i, v, "amax"), x.scatter_reduce(0, i, v, "prod"), x.scatter_reduce(0, i, v, "sum")),
        r(6),
        torch.tensor([0, 0, 3]),
        r(3),
    ),
    "scatter_reduce_mean": case(
        lambda x, i, v: x.scatter_reduce(0, i, v, "mean"),
        r(6),
        torch.tensor([0, 0, 3]),
        r(3),
    ),
    "scatter_reduce_without_self": case(
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax", include_self=False), r(6), torch.tensor([0, 0, 3]), r(3)
    ),
    "masked_scatter": case(lambda x, v: x.masked_scatter(x > 0, v), r(9), r(9).roll(1)),
    "embedding": case(F.embedding, whole(0, 10, 2, 4), r(10, 3), then=(whole(0, 10, 3, 5), r(10, 3))),
    "embedding_padding": case(lambda i, w: F.embedding(i, w, padding_idx=1), whole(0, 10, 2, 4), r(10, 3)),
    "embedding_bag": case(
        lambda i, o, w: F.embedding_bag(i, w, o),
        torch.tensor([1, 2, 4, 0]),
        torch.tensor([0, 2]),
        r(10, 3),
        stays={"aten._embedding_bag_forward_only.default": "policy"},
    ),
    "one_hot": case(lambda i: F.one_hot(i, 10), whole(0, 10, 2, 4), then=(whole(0, 10, 3, 5),)),
    "topk": case(lambda x: (x.topk(2), x.topk(3, 0, largest=False)), r(4, 6), then=(r(5, 3),)),
    "topk_nan": case(lambda x: (x.topk(3), x.topk(3, largest=False).values), SPECIAL),
    "topk_unsorted": case(lambda x: x.topk(2, sorted=False).values.sum(), r(6), then=(r(9),)),
    "sort": case(lambda x: (x.sort(1), x.sort(0, descending=True)), r(4, 6), then=(r(5, 3),)),
    "stable_sort_of_ties": case(lambda x: torch.sort(x, stable=True), torch.tensor([2, 1, 2, 1, 2, 1, 0])),
    "stable_sort_descending": case(
        lambda x: torch.sort(x, stable=True, descending=True),
        torch.tensor([2, 1, 2, 1, 2, 1, 0]),
    ),
    "sort_nan": case(torch.sort, SPECIAL),
    "argsort": case(lambda x: (x.argsort(1), x.argsort(0, descending=True)), r(4, 6), then=(r(5, 3),)),
    "kthvalue": case(lambda x: x.kthvalue(2, 1), r(4, 6), stays={"aten.kthvalue.default": "no_converter"}),
    "searchsorted": case(
        lambda x: torch.searchsorted(torch.tensor([0.0, 0.5, 1.0]), x), r(9), stays={"aten.searchsorted.Tensor": "no_converter"}
    ),
    "bucketize": case(lambda x: torch.bucketize(x, torch.tensor([0.0, 0.5, 1.0])), r(9), then=(r(12),)),
    "unique": case(torch.unique, whole(0, 5, 9), config={"capture_dynamic_output_shape_ops": True}),
    "isin": case(lambda x: torch.isin(x, torch.tensor([1, 3])), whole(0, 5, 9)),
}

CASES: dict[str, OpCase] = {**REDUCTIONS, **PRODUCTS, **INDEXING}
