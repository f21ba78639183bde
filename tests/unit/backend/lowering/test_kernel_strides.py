"""Results lie in memory as those of PyTorch's kernels do, where torch's shape functions say something else."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import batch_norm, scaled_dot_product_attention

from ortlens import OrtBackend
from ortlens.backend.lowering.kernel_strides import with_kernel_strides

_aten = torch.ops.aten
PAIRS = {
    "permuted, with one number": (torch.rand(5, 10).t(), torch.tensor(2.0)),
    "two orders": (torch.rand(5, 10, 10).permute(2, 1, 0)[:, :1], torch.rand(5, 10).t()),
    "a permuted matrix and planes": (torch.rand(5, 10, 5).permute(2, 1, 0), torch.rand(5, 10).t()),
    "sizes of one": (torch.rand(24).as_strided((2, 2, 1, 3), (6, 1, 12, 2)), torch.rand(2).as_strided((1, 2, 1, 1), (1, 1, 1, 1))),
    "the second permuted": (torch.rand(3, 1, 4), torch.rand(4, 3, 2).permute(1, 2, 0)),
    "alike": (torch.rand(4, 5).t(), torch.rand(4, 5).t()),
    "contiguous": (torch.rand(3, 1, 4), torch.rand(2, 4)),
}
OF_TWO: dict[str, Any] = {
    "copysign": torch.copysign,
    "floor_divide": torch.floor_divide,
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "heaviside": torch.heaviside,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "logical_and": lambda a, b: torch.logical_and(a > 0.5, b),
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "native_dropout_backward": lambda a, b: _aten.native_dropout_backward(a, b > 0.5, 2.0),
    "xlogy": torch.xlogy,
    "by 2": lambda a, _: a // 2,
    "by 0.5": lambda _, b: b // 0.5,
}
LAYOUTS = {
    "matrix": torch.rand(4, 5).t(),
    "lines": torch.rand(2, 5, 3).transpose(1, 2),
    "images": torch.rand(5, 4, 3, 2).permute(3, 2, 1, 0),
    "channels last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "one image, channels last": torch.rand(1, 4, 2, 3).contiguous(memory_format=torch.channels_last),
    "some columns": torch.rand(2, 3, 4, 10).contiguous(memory_format=torch.channels_last)[..., ::2],
    "volumes, channels last": torch.rand(2, 3, 2, 4, 5).contiguous(memory_format=torch.channels_last_3d),
    "some columns of volumes": torch.rand(2, 3, 2, 4, 10).contiguous(memory_format=torch.channels_last_3d)[..., ::2],
    "one image, its batch stride of no use": torch.rand(50).as_strided((1, 2, 5, 5), (1, 25, 5, 1)),
    "images of one channel": torch.rand(2, 1, 4, 10)[..., ::2],
    "one column of images": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)[..., :1],
    "contiguous": torch.rand(2, 3, 4),
}


def laid_out(value: torch.Tensor) -> list[tuple[int, int]]:
    """Sizes of more than one, with their strides."""
    return [(size, stride) for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1]


def traced_and_wanted(functions: dict[str, Callable[..., Any]], *args: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    def all_of_them(*args: torch.Tensor) -> list[torch.Tensor]:
        return [function(*args) for function in functions.values()]

    wanted = all_of_them(*args)
    traced = make_fx(all_of_them, decomposition_table=OrtBackend().compiler.decompositions(), tracing_mode="fake")(*args)
    torch.testing.assert_close(traced(*args), wanted)
    (output,) = traced.graph.find_nodes(op="output")
    for name, node, value in zip(functions, output.args[0], wanted, strict=True):
        yield name, node.meta["val"], value


def assert_laid_out_as_by_the_kernels(functions: dict[str, Callable[..., Any]], *args: torch.Tensor) -> None:
    for name, made, value in traced_and_wanted(functions, *args):
        assert laid_out(made) == laid_out(value), name


@pytest.mark.parametrize("pair", PAIRS)
def test_functions_of_two_tensors(pair: str) -> None:
    assert_laid_out_as_by_the_kernels(OF_TWO, *PAIRS[pair])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_normalisation(layout: str) -> None:
    given = LAYOUTS[layout]
    functions: dict[str, Callable[..., Any]] = {
        f"training {training}": lambda x, *y, training=training: _aten.native_batch_norm(
            x, None, None, y[0].clone(), y[1].clone(), training, 0.1, 1e-5
        )[0]
        for training in (False, True)
    }
    functions["batch_norm"] = lambda x, *_: batch_norm(x, None, None, training=True)
    assert_laid_out_as_by_the_kernels(functions, given, torch.zeros(given.shape[1]), torch.ones(given.shape[1]))


POOLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "average": lambda x, grad: _aten.avg_pool2d_backward(grad, x, [3, 3], [1, 1], [1, 1], True, False, None),  # noqa: FBT003 - the schema
    "adaptive": lambda x, grad: _aten._adaptive_avg_pool2d_backward(grad[:, :, ::2, ::2], x),
    "unpooled": lambda x, _: torch.nn.functional.max_unpool2d(x, torch.arange(48).reshape(6, 8).expand(x.shape), (1, 1), (1, 1)),
    "average of volumes": lambda x, grad: _aten.avg_pool3d_backward(grad[None], x[None], [3] * 3, [1] * 3, [1] * 3, True, False, None),  # noqa: FBT003 - same
    "adaptive of volumes": lambda x, grad: _aten._adaptive_avg_pool3d_backward(grad[None, :, :1, ::2, ::2], x[None]),
}


@pytest.mark.parametrize("layouts", [(4, 4), (0, 4), (4, 0)])
def test_gradients_of_pools_and_their_inverse(layouts: tuple[int, int]) -> None:
    def all_of_them(x: torch.Tensor, grad: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: pool(x, grad) for name, pool in POOLS.items()}

    formats = {0: torch.contiguous_format, 4: torch.channels_last}
    x, grad = (torch.rand(2, 3, 6, 8).contiguous(memory_format=formats[layout]) for layout in layouts)
    torch.testing.assert_close(torch.compile(all_of_them, backend="ortlens")(x, grad), all_of_them(x, grad), check_stride=True)


def test_a_roll_by_a_multiple_of_a_size_that_varies_is_a_copy() -> None:
    compiled = torch.compile(lambda x: (x.roll(x.numel(), -2), x.roll(1, -2)), backend="ortlens", dynamic=True)
    for size in (4, 5):
        x = torch.rand(2, 3, size, 2).contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(compiled(x), (x.roll(0, -2), x.roll(1, -2)), check_stride=True, rtol=0, atol=0)


@pytest.mark.parametrize("least", [1, 1000])
def test_one_image_whose_batch_stride_is_not_as_traced(least: int) -> None:
    """As in the attention of diffusers' U-Nets; PyTorch's own aot_eager raises."""
    layer, norm = torch.nn.Linear(8, 8), torch.nn.GroupNorm(4, 8)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = layer(x.view(1, 8, 4).transpose(1, 2)).transpose(-1, -2).reshape(1, 8, 2, 2)
        made: torch.Tensor = norm((y + x) / 1.0)
        return made

    x = torch.rand(1, 8, 2, 2)
    with torch.no_grad():
        got = torch.compile(function, backend="ortlens", options={"min_partition_nodes": least})(x)
        torch.testing.assert_close(got, function(x))
        channels_last = norm(x.to(memory_format=torch.channels_last))
        again = torch.compile(norm, backend="ortlens", options={"min_partition_nodes": least})(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(again, channels_last)
    assert again.is_contiguous(memory_format=torch.channels_last) == channels_last.is_contiguous(memory_format=torch.channels_last)


def _first() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int64)


KERNELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a number": lambda x: x + 2,
    "itself": lambda x: torch.lerp(x, x * 2, 0.5),
    "a row": lambda x: torch.maximum(x[:1], x),
    "a line": lambda x: x * torch.rand(x.shape[-1]).clamp(1, 1),
    "one by one": lambda x: x.abs().isfinite(),
    "clamp": lambda x: torch.clamp(x, x * 0, x * 2),
    "reversed sum": lambda x: torch.rsub(x[..., :1], x),
    "cat": lambda x: torch.cat([x[:1] * 2, x], 1 if x.shape[0] == 1 else 0),
    "stack": lambda x: torch.stack([x, x], 1),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 1.0),
    "masked_scatter": lambda x: x.masked_scatter(x > 2, x),
    "index_add": lambda x: x.index_add(0, _first(), x[:1]),
    "index_copy": lambda x: x.index_copy(0, _first(), x[:1]),
    "index_fill": lambda x: x.index_fill(0, _first(), 2.0),
    "isin": lambda x: torch.isin(x, torch.full((2,), 0.5)),
    "renorm": lambda x: x.renorm(2, 0, 0.5),
    "ldexp": lambda x: torch.ldexp(x, x),
    "softmax": lambda x: x.softmax(0),
    "log_softmax, backward": lambda x: _aten._log_softmax_backward_data(x, x, 0, torch.float32),
    "softmax, backward": lambda x: _aten._softmax_backward_data(x, x, 0, torch.float32),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]),
    "huber_loss, backward": lambda x: _aten.huber_loss_backward(x, x, x * 2, 0, 1.0),
    "mse_loss, backward": lambda x: _aten.mse_loss_backward(x, x, x * 2, 0),
    "elu, backward": lambda x: _aten.elu_backward(x, 1.0, 1.0, 1.0, False, x),  # noqa: FBT003 - the schema
    "diag_embed": torch.diag_embed,
    "flip": lambda x: x.flip(0),
    "rot90": lambda x: torch.rot90(x, -1),
}
IMAGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "adaptive average": lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 2),
    "adaptive maximum": lambda x: torch.nn.functional.adaptive_max_pool2d(x, (2, 1)),
    "circular": lambda x: torch.nn.functional.pad(x, (1, 1, 0, 1), mode="circular"),
    "replicate": lambda x: torch.nn.functional.pad(x, (1, 1, 0, 1), mode="replicate"),
    "replicate, backward": lambda x: _aten.replication_pad2d_backward(torch.ones_like(x[..., 1:]), x, [-1, 0, 0, 0]),
    "nearest": lambda x: torch.nn.functional.interpolate(x, scale_factor=1.5),
    "bicubic": lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode="bicubic"),
    "shuffled": lambda x: torch.channel_shuffle(x, 1),
    "convolution of a view": lambda x: torch.nn.functional.conv_transpose2d(x.reshape(x.shape), torch.ones(x.shape[1], 2, 1, 2)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_that_kernels_choose(layout: str) -> None:
    """Strides of dimensions of size 1 included."""
    x = LAYOUTS[layout]
    functions = {**KERNELS, **(IMAGES if x.dim() == 4 else {})}
    found = {name: (made.stride(), value.stride()) for name, made, value in traced_and_wanted(functions, x)}
    assert {name: strides for name, strides in found.items() if strides[0] != strides[1]} == {}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 2, 3, 0), (3, 2, 1, 0), (2, 1, 3, 0)])
def test_pools_of_one_volume_lie_as_it_does(order: tuple[int, ...]) -> None:
    x = torch.rand([(4, 1, 3, 1)[dim] for dim in order]).permute([order.index(dim) for dim in range(4)])
    ((_, made, wanted),) = traced_and_wanted({"max_pool3d": lambda x: torch.nn.functional.max_pool3d(x, 1)}, x)
    assert laid_out(made) == laid_out(wanted)


@pytest.mark.parametrize("layout", ["channels last", "images of one channel", "one column of images"])
def test_a_write_into_what_is_reshaped_shows_where_eager_shows_it(layout: str) -> None:
    def written(x: torch.Tensor) -> dict[str, torch.Tensor]:
        made = {name: function(x) for name, function in IMAGES.items()}
        made |= {"one_hot": torch.nn.functional.one_hot((x > 0.5).long(), 2), "rrelu": torch.rrelu(x)}
        for value in made.values():
            value.reshape(2, -1).mul_(0)
        return made

    x = LAYOUTS[layout]
    torch.testing.assert_close(torch.compile(written, backend="ortlens")(x), written(x), check_stride=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_lie_as_in_eager(*, dynamic: bool) -> None:
    functions: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 2),
        lambda x: torch.nn.functional.max_pool2d(x, 2),
        lambda x: batch_norm(x.transpose(1, 2), None, None, training=True),
        lambda x: torch.nn.functional.glu(x, -2),
        lambda x: torch.nn.functional.huber_loss(x, x * 2, reduction="none"),
        lambda x: x[:, :1] + x[:, :1],
        lambda x: x[:, :1].sigmoid(),
    )

    def results(*given: torch.Tensor) -> list[torch.Tensor]:
        return [function(value) for function, value in zip(functions, given, strict=True)]

    compiled = torch.compile(results, backend="ortlens", dynamic=dynamic)
    for size in (4, 6) if dynamic else (4,):
        given = [torch.rand(2, 3, size, 4).contiguous(memory_format=torch.channels_last).requires_grad_() for _ in functions]
        made, wanted = compiled(*given), results(*given)
        torch.testing.assert_close(made, wanted, check_stride=True)
        got, want = (torch.autograd.grad(outs, given, list(map(torch.ones_like, outs))) for outs in (made, wanted))
        torch.testing.assert_close(got, want, check_stride=True)


class Attention(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(x.mT, x.mT, x.mT)


def test_an_operator_made_of_others_is_decomposed_once_per_pass_of_pytorch() -> None:
    made: list[torch.Tensor] = []

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        made.append((query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value)
        return made[-1]

    table = with_kernel_strides({_aten.scaled_dot_product_attention.default: attention})
    torch.export.export(Attention(), (torch.randn(2, 5, 3),)).run_decompositions(table)
    assert len(made) == 2, "the outputs' metadata, and the trace"
