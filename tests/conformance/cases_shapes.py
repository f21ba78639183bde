"""Cases of shapes: views, joins, slices, sizes of zero, nested structures, numbers among the arguments."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from tests.conformance.operator_case import OpCase, case, r, whole

NUMBERS: dict[str, OpCase] = {
    "sympy_floor_division": case(lambda x: x.view(x.shape[0] // 2, -1) * 2, r(6), then=(r(10),)),
    "sympy_arithmetic": case(lambda x: x + (x.shape[0] * 2 - 1) % 5 + x.shape[0] ** 2, r(6), then=(r(9),)),
    "sympy_min_max": case(lambda x: x[: min(x.shape[0], 4)] * max(x.shape[0], 5), r(6), then=(r(9),)),
    "sympy_true_division": case(lambda x: x * (x.shape[0] / 3), r(6), then=(r(9),), dynamic_stays={"aten.mul.Tensor": "dtype"}),
    "sympy_root": case(lambda x: x / math.sqrt(x.shape[-1]), r(4, 6), then=(r(5, 9),)),
    "sympy_ceiling": case(lambda x: torch.zeros(math.ceil(x.shape[0] / 4)) + x.sum(), r(6), then=(r(9),)),
    "size_results": case(lambda x: (x.shape[0], x.shape[0] * 2, x + 1, x.numel()), r(4, 6), then=(r(5, 3),)),
    "size_in_condition": case(lambda x: x * 2 if x.shape[0] > 3 else x + 1, r(6), then=(r(9),)),
    "full_with_size": case(lambda x: torch.full((x.shape[0], 2), 1.5) + x.sum(), r(6), then=(r(9),)),
    "numel_as_float": case(lambda x: x.sum() / x.numel(), r(4, 6), then=(r(5, 3),)),
}

STRUCTURES: dict[str, OpCase] = {
    "nested_arguments": case(lambda tree: tree["a"][0] + tree["b"][1] * 2, {"a": (r(4),), "b": [r(3), r(4)]}),
    "nested_results": case(lambda x: {"a": (x + 1, [x * 2, None]), "b": {"c": x - 1}}, r(4, 6), then=(r(5, 3),)),
    "none_among_arguments": case(lambda x, y, z: x + z if y is None else y, r(4), None, r(4), then=(r(6), None, r(6))),
    "none_results": case(lambda x: (None, x + 1, None), r(4), then=(r(6),)),
    "same_value_twice": case(lambda x: (y := x * 2, y), r(4), then=(r(6),)),
    "input_handed_back": case(lambda x: (x, x + 1), r(4), then=(r(6),)),
    "scalar_tensors": case(lambda x, s: x * s + torch.tensor(2.0), r(4), torch.tensor(3.0), then=(r(6), torch.tensor(-1.0))),
    "scalar_tensor_of_size": case(lambda x: torch.scalar_tensor(x.shape[0]) * x, r(4), then=(r(6),)),
    "constant_results": case(lambda x: (x + 1, 3, 2.5, True), r(4), then=(r(6),)),
    "keyword_defaults": case(lambda x, scale=2.0: x * scale, r(4), then=(r(6),)),
}

VIEWS: dict[str, OpCase] = {
    "view": case(lambda x: (x * 2).view(-1, 2), r(4, 6), then=(r(5, 4),)),
    "view_as": case(lambda x, y: (x * 2).view_as(y) + y, r(4, 6), r(6, 4), then=(r(2, 5), r(5, 2))),
    "view_zero_sized": case(lambda x: (x + 1).view(3, 0, -1) if x.numel() == 0 and x.dim() == 3 else x.view(-1) + 1, torch.empty(0, 4)),
    "reshape": case(lambda x: (x + 1).t().reshape(-1), r(4, 6), then=(r(5, 3),)),
    "flatten": case(lambda x: (x + 1).flatten(1), r(2, 3, 4), then=(r(5, 2, 3),)),
    "unflatten": case(lambda x: (x + 1).unflatten(1, (2, -1)), r(4, 6), then=(r(5, 8),)),
    "expand": case(lambda x: x.unsqueeze(0).expand(3, -1, -1) + 1, r(4, 6), then=(r(5, 3),)),
    "expand_as": case(lambda x, y: x.expand_as(y) * y, r(1, 6), r(4, 6), then=(r(1, 3), r(5, 3))),
    "squeeze": case(lambda x: (x + 1).squeeze(), r(1, 4, 1), then=(r(1, 6, 1),)),
    "squeeze_dim": case(lambda x: (x + 1).squeeze(1).squeeze(0), r(4, 1, 3), then=(r(5, 1, 2),)),
    "squeeze_dims": case(lambda x: (x + 1).squeeze((0, -2)) * 2, r(1, 4, 1, 3), then=(r(1, 4, 1, 5),)),
    "squeeze_dims_of_many": case(lambda x: (x + 1).squeeze((0, 1, 2)) * 2, r(1, 4, 1, 3), then=(r(1, 4, 1, 5),)),
    "squeeze_no_dims": case(lambda x: torch.squeeze(x + 1, ()) * 2, r(1, 4)),
    "unsqueeze": case(lambda x: (x + 1).unsqueeze(-1).unsqueeze(0), r(4), then=(r(6),)),
    "permute": case(lambda x: (x + 1).permute(2, 0, 1) * 2, r(2, 3, 4), then=(r(3, 5, 2),)),
    "movedim": case(lambda x: (x + 1).movedim(0, -1).contiguous(), r(2, 3, 4), then=(r(3, 5, 2),)),
    "transpose_contiguous": case(lambda x: (x + 1).transpose(0, 1).contiguous() * 2, r(4, 6), then=(r(5, 3),)),
    "flip": case(lambda x: x.flip(0, 1), r(4, 6), then=(r(5, 3),)),
    "roll": case(lambda x: x.roll((1, -2), (0, 1)), r(4, 6), then=(r(5, 3),)),
    "roll_flat": case(lambda x: x.roll(2), r(4, 6), then=(r(5, 3),)),
    "rot90": case(lambda x: torch.rot90(x, 1, [0, 1]), r(4, 6), then=(r(5, 3),)),
    "tril_triu": case(lambda x: (x.tril(-1), x.triu(1), x.tril(2)), r(4, 6), then=(r(5, 3),)),
    "diag": case(torch.diag, r(4), then=(r(6),)),
    "diagonal": case(lambda x: (x.diagonal(1) * 2, x.diag()), r(4, 6), then=(r(5, 6),)),
    "diag_embed": case(torch.diag_embed, r(2, 3), then=(r(3, 4),)),
    "unfold_tensor": case(lambda x: (x + 1).unfold(0, 3, 2), r(9), then=(r(13),)),
    "as_strided": case(lambda x: (x + 1).as_strided((2, 3), (3, 1)), r(6)),
    "select": case(lambda x: x.select(1, -1) + x[0, 1], r(4, 6), then=(r(5, 3),)),
    "view_as_dtype": case(lambda x: x.view(torch.int32) + 1, r(4), then=(r(6),), stays={"aten.view.dtype": "no_converter"}),
    "atleast": case(lambda x: (torch.atleast_2d(x) + 1, torch.atleast_3d(x) + 1), r(4), then=(r(6),)),
}

JOINS: dict[str, OpCase] = {
    "cat": case(lambda x, y: torch.cat([x, y, x], 0), r(4, 6), r(2, 6), then=(r(5, 3), r(3, 3))),
    "cat_with_empty": case(lambda x, y: torch.cat([x, y]) * 2, r(4), torch.empty(0)),
    "cat_promotes": case(lambda x, y: torch.cat([x, y]), r(4), whole(0, 9, 3), then=(r(6), whole(0, 9, 2))),
    "stack": case(lambda x, y: torch.stack([x, y], -1), r(4, 6), r(4, 6) + 1, then=(r(5, 3), r(5, 3))),
    "hstack_vstack": case(lambda x, y: (torch.hstack([x, y]), torch.vstack([x, y])), r(4, 6), r(4, 6), then=(r(5, 3), r(5, 3))),
    "split": case(lambda x: [part * 2 for part in x.split(2)], r(6, 2)),
    "split_sizes": case(lambda x: [part * 2 for part in x.split([1, 3, 2], 1)], r(4, 6), then=(r(5, 6),)),
    "chunk": case(lambda x: [part + 1 for part in x.chunk(3, 1)], r(4, 7), then=(r(5, 7),)),
    "split_by_size": case(lambda x: [part + 1 for part in x.split(x.shape[1] // 2, 1)], r(4, 7), then=(r(5, 9),)),
    "split_by_sizes": case(lambda x: [part + 1 for part in x.split([x.shape[1] - 2, 2, 0], -1)], r(4, 7), then=(r(5, 9),)),
    "tensor_split": case(lambda x: [part + 1 for part in x.tensor_split(3, 1)], r(4, 7), then=(r(5, 7),)),
    "unbind": case(lambda x: [part + 1 for part in x.unbind(1)], r(4, 3), then=(r(5, 3),)),
    "repeat": case(lambda x: x.repeat(2, 1, 3), r(4, 6), then=(r(5, 3),)),
    "tile": case(lambda x: x.tile(2), r(4, 6), then=(r(5, 3),)),
    "repeat_interleave": case(lambda x: x.repeat_interleave(3, 1), r(4, 6), then=(r(5, 3),)),
    "repeat_interleave_flat": case(lambda x: x.repeat_interleave(2), r(4, 6), then=(r(5, 3),)),
    "meshgrid": case(lambda x, y: [g * 2 for g in torch.meshgrid(x, y, indexing="ij")], r(4), r(3), then=(r(5), r(2))),
    "cartesian_prod": case(lambda x, y: torch.cartesian_prod(x, y) * 2, r(4), r(3), then=(r(5), r(2))),
    "broadcast_tensors": case(lambda x, y: [t + 1 for t in torch.broadcast_tensors(x, y)], r(4, 1), r(3), then=(r(5, 1), r(2))),
}

SLICES: dict[str, OpCase] = {
    "slice": case(lambda x: x[1:-1, ::2] * 2, r(4, 6), then=(r(5, 3),)),
    "slice_beyond_the_end": case(lambda x: x[2:100] + 1, r(4, 6), then=(r(5, 3),)),
    "slice_to_nothing": case(lambda x: x[x.shape[0] :] + 1, r(4, 6), then=(r(5, 3),)),
    "slice_by_size": case(lambda x, y: x[: y.shape[0]] * 2, r(6), r(4), then=(r(9), r(5))),
    "ellipsis_and_none": case(lambda x: x[..., None, -1] + x[:, 0, None], r(4, 6), then=(r(5, 3),)),
    "narrow": case(lambda x: x.narrow(1, 1, 2) + 1, r(4, 6), then=(r(5, 3),)),
    "slice_scatter": case(lambda x, y: x.slice_scatter(y, 0, 1, 3), r(4, 6), r(2, 6), then=(r(5, 3), r(2, 3))),
    "select_scatter": case(lambda x, y: x.select_scatter(y, 0, 1), r(4, 6), r(6), then=(r(5, 3), r(3))),
    "arange": case(lambda x: torch.arange(x.shape[0]) * 2 + x, r(6), then=(r(9),)),
    "arange_float": case(lambda x: torch.arange(0, 3, 0.5) + x[0], r(6), then=(r(9),)),
    "arange_start_step": case(lambda x: torch.arange(2, 2 * x.shape[0], 2, dtype=torch.float32) + x[0], r(6), then=(r(9),)),
    "linspace": case(lambda x: torch.linspace(0, 1, x.shape[0]) * x, r(6)),
    "eye": case(lambda x: torch.eye(4) + torch.eye(3, 4).sum() + x, r(4, 4)),
    "zeros_ones_like": case(lambda x: torch.zeros_like(x) + torch.ones_like(x) * 2 + torch.full_like(x, 3), r(4, 6), then=(r(5, 3),)),
    "new_tensors": case(lambda x: x.new_zeros(3) + x.new_full((3,), 2) + x.new_tensor([1.0, 2.0, 3.0]), r(4), then=(r(6),)),
    "no_elements": case(lambda x: (x.sin() + 1, x.sum(), x.t()), torch.empty(0, 4)),
    "no_elements_matmul": case(lambda x, y: x @ y, torch.empty(0, 4), r(4, 3)),
    "no_inner_elements": case(lambda x, y: x @ y, torch.empty(3, 0), torch.empty(0, 2)),
    "no_elements_cat_and_pad": case(lambda x: F.pad(torch.cat([x, x]), (1, 1)), torch.empty(0, 4)),
    "no_dimensions": case(lambda x: (x.sin() + 1, x.view(1), x.expand(3)), torch.tensor(0.5)),
    "strided_input": case(lambda x: x.sin(), r(4, 6)[:, ::2], then=(r(5, 8)[:, ::2],)),
    "expanded_input": case(lambda x: x.sin(), r(1, 6).expand(4, 6), then=(r(1, 3).expand(5, 3),)),
    "channels_last": case(lambda x: x.relu() * 2, r(2, 3, 4, 5).to(memory_format=torch.channels_last)),
}

MUTATIONS: dict[str, OpCase] = {
    "adds_in_place": case(lambda x: x.add_(1) * 2, r(4, 6), then=(r(5, 3),)),
    "writes_a_slice": case(lambda x: (x[1:3].zero_(), x + 1)[1], r(4, 6), then=(r(5, 3),)),
    "writes_an_element": case(lambda x: (x.__setitem__((0, 1), 5.0), x * 2)[1], r(4, 6), then=(r(5, 3),)),
    "copies_over": case(lambda x, y: x.copy_(y).mul_(2) + 1, r(4, 6), r(4, 6), then=(r(5, 3), r(5, 3))),
    "fills": case(lambda x: x.fill_(2).sub_(1), r(4, 6), then=(r(5, 3),)),
    "writes_a_view_of_a_copy": case(lambda x: (y := x.clone(), y.view(-1).mul_(3), y + 1)[2], r(4, 6), then=(r(5, 3),)),
    "masked_fill_in_place": case(lambda x: x.masked_fill_(x > 0, 0.0), r(4, 6), then=(r(5, 3),)),
    "index_put_in_place": case(
        lambda x, i: (x.index_put_((i,), torch.tensor(1.0)), x + 1)[1], r(6), torch.tensor([1, 3]), then=(r(9), torch.tensor([0, 8]))
    ),
}

CASES: dict[str, OpCase] = {**NUMBERS, **STRUCTURES, **VIEWS, **JOINS, **SLICES, **MUTATIONS}
