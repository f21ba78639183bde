"""Cases of shapes: views, joins, slices, sizes of zero, nested structures, numbers among the arguments."""

from __future__ import annotations

import math

import torch

from tests.conformance.operator_case import OpCase, case, r, whole

NUMBERS: dict[str, OpCase] = {
    "sympy_floor_division": case(lambda x: x.view(x.shape[0] // 2, -1) * 2, r(6), then=(r(10),)),
    "sympy_arithmetic": case(
        lambda x: (x + (x.shape[0] * 2 - 1) % 5 + x.shape[0] ** 2, x[: min(x.shape[0], 4)] * max(x.shape[0], 5)), r(6), then=(r(9),)
    ),
    "sympy_true_division": case(
        lambda x: x * (x.shape[0] / 3),
        r(6),
        then=(r(9),),
        dynamic_stays={"aten.scalar_tensor.default": "policy"},
    ),
    "sympy_root": case(lambda x: x / math.sqrt(x.shape[-1]), r(4, 6), then=(r(5, 9),)),
    "sympy_ceiling": case(
        lambda x: (torch.zeros(math.ceil(x.shape[0] / 4)) + x.sum(), torch.full((x.shape[0], 2), 1.5) + x.sum()), r(6), then=(r(9),)
    ),
    "size_in_condition": case(lambda x: x * 2 if x.shape[0] > 3 else x + 1, r(6), then=(r(9),)),
    "numel_as_float": case(lambda x: x.sum() / x.numel(), r(4, 6), then=(r(5, 3),)),
}

STRUCTURES: dict[str, OpCase] = {
    "nested_arguments": case(lambda tree: tree["a"][0] + tree["b"][1] * 2, {"a": (r(4),), "b": [r(3), r(4)]}),
    "nested_results": case(
        lambda x: {"a": (x + 1, [y := x * 2, None]), "twice": y, "handed_back": x, "constants": (3, 2.5, True, None)},
        r(4, 6),
        then=(r(5, 3),),
    ),
    "none_among_arguments": case(lambda x, y, z: x + z if y is None else y, r(4), None, r(4), then=(r(6), None, r(6))),
    "scalar_tensors": case(lambda x, s: x * s + torch.tensor(2.0), r(4), torch.tensor(3.0), then=(r(6), torch.tensor(-1.0))),
    "scalar_tensor_of_size": case(lambda x: torch.scalar_tensor(x.shape[0]) * x, r(4), then=(r(6),)),
}

VIEWS: dict[str, OpCase] = {
    "views": case(
        lambda x: (
            y := x * 2,
            y.view(-1, 2),
            y.t().reshape(-1),
            y.unflatten(1, (2, -1)),
            y.movedim(0, -1).contiguous(),
            y[0, 1],
            y.flatten(),
        ),
        r(4, 6),
        then=(r(5, 8),),
    ),
    "view_zero_sized": case(lambda x: (x + 1).view(3, 0, -1) if x.numel() == 0 and x.dim() == 3 else x.view(-1) + 1, torch.empty(0, 4)),
    "expands": case(lambda x, y: (x.expand_as(y) * y, y.unsqueeze(0).expand(3, -1, -1) + 1), r(1, 6), r(4, 6), then=(r(1, 3), r(5, 3))),
    "squeezes": case(lambda x: (x.squeeze(), x.squeeze((0, -2)) * 2, x.squeeze((0, 1, 2)) * 2), r(1, 4, 1, 3), then=(r(1, 4, 1, 5),)),
    "squeeze_no_dims": case(lambda x: torch.squeeze(x + 1, ()) * 2, r(1, 4)),
    "view_as_dtype": case(lambda x: x.view(torch.int32) + 1, r(4), then=(r(6),), stays={"aten.view.dtype": "no_converter"}),
}

JOINS: dict[str, OpCase] = {
    "cat_with_empty": case(lambda x, y: torch.cat([x, y]) * 2, r(4), torch.empty(0)),
    "cat_promotes": case(lambda x, y: torch.cat([x, y]), r(4), whole(0, 9, 3), then=(r(6), whole(0, 9, 2))),
    "splits": case(
        lambda x: [one + 1 for parts in (x.split(2, 1), x.chunk(3, 1), x.tensor_split(3, 1), x.unbind(1)) for one in parts],
        r(4, 7),
        then=(r(5, 7),),
    ),
    "split_by_size": case(lambda x: [part + 1 for part in x.split(x.shape[1] // 2, 1)], r(4, 7), then=(r(5, 9),)),
    "split_by_sizes": case(lambda x: [part + 1 for part in x.split([x.shape[1] - 2, 2, 0], -1)], r(4, 7), then=(r(5, 9),)),
}

SLICES: dict[str, OpCase] = {
    "slices": case(
        lambda x: (x[1:-1, ::2] * 2, x[2:100] + 1, x[x.shape[0] :] + 1, x[..., None, -1] + x[:, 0, None]), r(4, 6), then=(r(5, 3),)
    ),
    "slice_by_size": case(lambda x, y: x[: y.shape[0]] * 2, r(6), r(4), then=(r(9), r(5))),
    "aranges": case(
        lambda x: (torch.arange(x.shape[0]) * 2 + x, torch.arange(2, 2 * x.shape[0], 2, dtype=torch.float32) + x[0]), r(6), then=(r(9),)
    ),
    "new_tensors": case(
        lambda x: (torch.zeros_like(x) + torch.full_like(x, 3), x.new_zeros(3) + x.new_tensor([1.0, 2.0, 3.0])), r(4, 6), then=(r(5, 3),)
    ),
    "no_elements": case(lambda x: (x.sin() + 1, x.sum(), x.t()), torch.empty(0, 4)),
    # FusedMatMul of ONNX Runtime leaves what it returns unwritten where there is nothing to sum.
    "no_elements_matmul": case(
        lambda x, y, a, b: (x @ y, a @ b),
        torch.empty(0, 4),
        r(4, 3),
        torch.empty(3, 0),
        torch.empty(0, 2),
        stays={"aten.mm.default": "no_converter"},
    ),
    "no_dimensions": case(lambda x: (x.sin() + 1, x.view(1), x.expand(3)), torch.tensor(0.5)),
    "strided_input": case(
        lambda x, y: (x.sin(), y.sin()), r(4, 6)[:, ::2], r(1, 6).expand(4, 6), then=(r(5, 8)[:, ::2], r(1, 3).expand(5, 3))
    ),
    "channels_last": case(lambda x: x.relu() * 2, r(2, 3, 4, 5).to(memory_format=torch.channels_last)),
}

MUTATIONS: dict[str, OpCase] = {
    "writes_in_place": case(
        lambda a, b, c, d, y: (a.add_(1) * 2, b.copy_(y).mul_(2) + 1, c.fill_(2).sub_(1), d.masked_fill_(d > 0, 0.0)),
        *(r(4, 6) + n for n in range(5)),
        then=tuple(r(5, 3) + n for n in range(5)),
    ),
    "writes_a_slice": case(lambda x: (x[1:3].zero_(), x + 1)[1], r(4, 6), then=(r(5, 3),)),
    "writes_an_element": case(lambda x: (x.__setitem__((0, 1), 5.0), x * 2)[1], r(4, 6), then=(r(5, 3),)),
    "writes_a_view_of_a_copy": case(lambda x: (y := x.clone(), y.view(-1).mul_(3), y + 1)[2], r(4, 6), then=(r(5, 3),)),
    "index_put_in_place": case(
        lambda x, i: (x.index_put_((i,), torch.tensor(1.0)), x + 1)[1], r(6), torch.tensor([1, 3]), then=(r(9), torch.tensor([0, 8]))
    ),
}

CASES: dict[str, OpCase] = {**NUMBERS, **STRUCTURES, **VIEWS, **JOINS, **SLICES, **MUTATIONS}
