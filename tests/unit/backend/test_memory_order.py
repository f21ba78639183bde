"""The order of dimensions in memory: found from strides, and given to values that lie in another."""

# ruff: noqa: ANN401 - hypothesis' random numbers have no type of their own

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ortlens.backend.basis import memory_order


@given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4))
def test_memory_order_makes_any_permuted_tensor_contiguous(order: list[int], sizes: list[int]) -> None:
    tensor = torch.empty(sizes).permute(order)
    permutation = memory_order.memory_order(tensor)
    if permutation is None:
        assert tensor.is_contiguous()
    else:
        assert tensor.permute(permutation).is_contiguous()
        assert sorted(permutation) == [0, 1, 2, 3]


ODD = (torch.empty(3, 1).expand(3, 4), torch.empty(4, 6)[:, ::2], torch.empty(5, 5).diagonal())


def test_what_is_not_dense_or_no_tensor_has_no_memory_order() -> None:
    for value in (*ODD, torch.empty(0, 3).t(), torch.empty(2, 2).to_sparse(), 3, True, None):
        assert memory_order.memory_order(value) is None
    plain = [torch.empty(3, 4), torch.empty(3, 4).t(), torch.empty(0, 4), torch.empty(4, 6)[:0, ::2], torch.empty(())]
    assert all(memory_order.needs_restride(tensor) for tensor in ODD)
    assert not any(memory_order.needs_restride(tensor) for tensor in plain)


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["keep", "expand", "step"])), min_size=1, max_size=4), st.randoms())
def test_restride_keeps_values_and_gives_the_strides(dims: list[tuple[int, str]], random: Any) -> None:
    base = torch.rand([1 if kind == "expand" else 2 * size if kind == "step" else size for size, kind in dims])
    order = list(range(len(dims)))
    random.shuffle(order)
    view = base.permute(order).contiguous().permute([order.index(d) for d in range(len(order))])
    view = view[tuple(slice(None, None, 2) if kind == "step" else slice(None) for _, kind in dims)].expand([size for size, _ in dims])
    made = memory_order.restride(view.contiguous(), view.stride())
    torch.testing.assert_close(made, view)
    assert made.stride() == tuple(view.stride())


def test_what_is_laid_out_anew_is_no_view() -> None:
    tensor = torch.rand(2, 3, 4)
    expected = tensor.permute(2, 0, 1)
    made = memory_order.reorder(tensor.clone(), (2, 0, 1))
    torch.testing.assert_close(made, expected)
    assert made.stride() == expected.stride()
    expanded = torch.rand(3, 1).expand(3, 4)
    others = memory_order.restride(expanded.contiguous(), expanded.stride()), memory_order.restride(torch.rand(2, 2), (5, 1))
    assert not any(value._is_view() for value in (made, *others))


def test_a_value_laid_like_another() -> None:
    given = torch.rand(5, 6)[1:, 2:4]
    value = torch.rand(4, 2)
    made = memory_order.with_layout_of(value, given)
    torch.testing.assert_close(made, value)
    assert (made.stride(), made.storage_offset()) == (given.stride(), given.storage_offset())
    assert memory_order.with_layout_of(value, torch.empty(4, 2)) is value
    assert memory_order.with_layout_of(value, torch.empty(3, 2)) is value
    empty = torch.empty(0, 2)
    assert memory_order.with_layout_of(empty, torch.empty(4, 2)[4:]) is empty


def test_symbolic_sizes_of_equal_strides_have_an_order() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    size = mode.from_tensor(torch.empty(8, 3)).shape[0]
    assert memory_order.order_from_strides([size // 8, 3], [3, 3]) == [1, 0]
