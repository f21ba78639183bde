"""Images: interpolation, samples at the places of a grid, padding, shuffles of channels and pixels.

Interpolation is one operator in ONNX, too; taken apart, as torch does while it traces, it reads every pixel by its place, in 3 to 10 times
the time.

PyTorch moves a place outside of the image to its border, and then adds up the neighbours that exist. ONNX Runtime moves each neighbour, and
so multiplies an infinite one by a weight of 0. The places are moved here, and ONNX Runtime takes what is outside for 0. It converts places
to integers without a look at their size: NaN, infinity and places far away gave any element.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens.backend.basis.memory_order import suggested_format
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op
from ortlens.backend.operators.facts import STAYS, Call, decomposes, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten

_NEAREST_PIXELS = (_aten.upsample_nearest1d, _aten.upsample_nearest2d, _aten.upsample_nearest3d)
_LINEAR = (_aten.upsample_linear1d, _aten.upsample_bilinear2d, _aten.upsample_trilinear3d)
_CENTRED = (_aten._upsample_nearest_exact1d, _aten._upsample_nearest_exact2d, _aten._upsample_nearest_exact3d)
_INTERPOLATIONS = (*_NEAREST_PIXELS, *_CENTRED, *_LINEAR, _aten.upsample_bicubic2d)
_REPEATING = frozenset(overload for packet in _NEAREST_PIXELS for overload in (packet.default, packet.vec))
_SLOW_IN_ORT = (_aten.upsample_nearest1d.default, _aten.upsample_nearest3d.default, _aten.upsample_linear1d.default)
_LINEAR_OVERLOADS = frozenset(packet.default for packet in _LINEAR)
_TARGETS = tuple(packet.default for packet in _INTERPOLATIONS)

_SMOOTHING = (_aten._upsample_bilinear2d_aa, _aten._upsample_bicubic2d_aa)


def _interpolated_from(
    grad_output: torch.Tensor,
    output_size: Sequence[Any],  # noqa: ARG001 - the schema
    input_size: Sequence[Any],
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    """Make the gradient of what was interpolated, without data: where it was `input_size`."""
    return torch.empty(tuple(input_size), dtype=grad_output.dtype, device=grad_output.device, memory_format=suggested_format(grad_output))


def _of_sizes(
    target: Any, tensor: torch.Tensor, output_size: Sequence[Any] | None, *rest: Any, scale_factors: Sequence[float] | None = None
) -> Any:
    """Interpolate to the size that factors give, as overloads `vec` do."""
    *corners, factors = rest if scale_factors is None and rest else (*rest, scale_factors)
    if output_size is None:
        output_size = [
            size * int(factor) if int(factor) == factor else torch.sym_int(size * factor)  # type: ignore[no-untyped-call]  # torch has no annotations here
            for size, factor in zip(tensor.shape[2:], factors, strict=True)
        ]
    return target(tensor, output_size, *corners, *(factors or [None] * len(output_size)))


def is_one_in_ort(target: Any, tensor: torch.Tensor, output_size: Sequence[Any] | None, *rest: Any) -> bool:
    """Tell whether ONNX Runtime interpolates at the same places as PyTorch, and as fast.

    Of nearest elements it rounds some places wrongly, unless each is repeated. Between elements it divides where PyTorch multiplies,
    which is the same for powers of two.
    """
    given = [scale for item in rest for scale in (item if isinstance(item, (list, tuple)) else [item]) if isinstance(scale, float)]
    pairs = list(zip(output_size or (), tensor.shape[2:], strict=False))
    if target in _SLOW_IN_ORT:
        return False
    if target in _REPEATING:
        return all(scale.is_integer() for scale in given) and (
            bool(given) or all(statically_known_true(n % size == 0) for n, size in pairs)
        )
    if target not in _LINEAR_OVERLOADS or rest[0] or tensor.dtype is not torch.float32:
        return False
    if given and all(scale >= 1 and math.frexp(scale)[0] == 0.5 for scale in given):  # noqa: PLR2004 - so it is of powers of two
        return True
    if not all(isinstance(size, int) and size for pair in pairs for size in pair):
        return False
    factors = [many / size for many, size in pairs]
    return given in ([], factors) and all(math.frexp(factor)[0] == 0.5 for factor in factors)  # noqa: PLR2004 - same


facts.keeps_whole(*_TARGETS)
for _packet in _INTERPOLATIONS:
    facts.keeps_whole(_packet.vec, traced=functools.partial(_of_sizes, _packet.default))
facts.knows_result(
    *(getattr(_aten, f"{packet.__name__}_backward").default for packet in (*_INTERPOLATIONS, *_SMOOTHING)),
    made=_interpolated_from,
    when=lambda tracing: tracing.with_gradient,
)
facts.as_torch(*_REPEATING, unless=is_one_in_ort)
facts.leaves(*_TARGETS, when=facts.is_large_on_cpu, apart=facts.apart_unless(is_one_in_ort))


def _is_split_in_ort(call: Call) -> bool:
    arguments: Any = torch.fx.node.map_arg(call.node.args, lambda source: source.meta["val"])
    return not is_one_in_ort(call.node.target, *arguments)


# One thread, 256 images of 56 x 56 to 112 x 112: cubic 24 ms, by Resize 223 ms, by gathers 88 ms; linear 4.8, 4.4 and 27 ms.
facts.slow(
    *_TARGETS,
    reason="ONNX Runtime interpolates by such factors at slightly other places, or in 2 to 10 times the time",
    when=_is_split_in_ort,
)


def _scales_otherwise(call: Call) -> bool:
    sizes = zip(call["self"].shape[-2:], call["output_size"], (call["scales_h"], call["scales_w"]), strict=True)
    return not all(scale is None or _is_ratio(scale, size, wanted) for size, wanted, scale in sizes)


def _may_be_one_column(call: Call) -> bool:
    """Tell whether the result may have one column and several rows, of which PyTorch's kernel repeats the first (torch 2.13)."""
    value = call.result
    return value is None or not (statically_known_true(value.shape[-1] != 1) or statically_known_true(value.shape[-2] == 1))


def _is_ratio(scale: Any, size: Any, wanted: Any) -> bool:
    return all(isinstance(number, (int, float)) for number in (scale, size, wanted)) and scale * size == wanted


_ANTIALIASED = tuple(packet.default for packet in _SMOOTHING)
facts.wrong(*_ANTIALIASED, reason="rounds integers otherwise", when=facts.is_whole)  # PyTorch weighs with fixed points
facts.wrong(*_ANTIALIASED, reason="places the corners elsewhere when it smooths", when=lambda call: call["align_corners"])
facts.wrong(*_ANTIALIASED, reason="takes the ratio of the sizes for the scale factor when it smooths", when=_scales_otherwise)
facts.wrong(*_ANTIALIASED, reason="computes every row of a single column, where PyTorch repeats the first one", when=_may_be_one_column)
facts.wrong(_aten._upsample_bilinear2d_aa.default, reason=f"takes float16{facts.REFUSED}", when=facts.is_half_on_cpu)

_NEAREST, _BICUBIC = 1, 2

_ZEROS, _REFLECTION = 0, 2
_OUTSIDE, _FAR = 16.0, 1e6  # places that no element of an image is next to, and whole numbers far away


@torch_op(_aten.grid_sampler_2d.default)
def grid_sampler_2d(x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    registered = basics.registered(_aten.grid_sampler_2d.default)
    if interpolation_mode == _BICUBIC or padding_mode == _ZEROS:
        places = _bounded(grid, _OUTSIDE if padding_mode == _ZEROS else _FAR)
        sampled = registered(x, places, interpolation_mode, padding_mode, align_corners)
        return sampled if interpolation_mode == _NEAREST else op.Add(sampled, _nan_of(grid))
    if interpolation_mode == _NEAREST and padding_mode == _REFLECTION:
        return registered(x, _middles(grid, x, align_corners=align_corners), interpolation_mode, _ZEROS, align_corners=False)
    moved = _reflected(grid) if padding_mode == _REFLECTION else grid
    return registered(x, _inside(moved, x, align_corners=align_corners), interpolation_mode, _ZEROS, align_corners)


def _bounded(grid: Any, limit: float) -> Any:
    near = op.Clip(grid, basics.number(grid, -limit), basics.number(grid, limit))
    return basics.typed(op.Where(op.IsNaN(grid), basics.number(grid, -limit), near), int(grid.dtype), grid)


def _nan_of(grid: Any) -> Any:
    """NaN at the places that are infinite or NaN, else 0, as one channel."""
    nothing = op.ReduceSum(op.Mul(grid, basics.number(grid, 0.0)), op.Constant(value_ints=[-1]), keepdims=0)
    return op.Unsqueeze(nothing, op.Constant(value_ints=[1]))


def _reflected(grid: Any) -> Any:
    """Places between -1 and 1: a triangle wave with a period of 4."""
    two, one = basics.number(grid, 2.0), basics.number(grid, 1.0)
    period = op.Mod(op.Add(grid, one), basics.number(grid, 4.0), fmod=1)
    return basics.typed(op.Sub(one, op.Abs(op.Sub(two, op.Abs(period)))), int(grid.dtype), grid)


def _inside(grid: Any, x: Any, *, align_corners: bool) -> Any:
    """Places from the middle of the first element to that of the last one; PyTorch takes the first one for NaN."""
    grid = basics.typed(op.Where(op.IsNaN(grid), basics.number(grid, -1.0), grid), int(grid.dtype), grid)
    if align_corners:
        return op.Clip(grid, basics.number(grid, -1.0), basics.number(grid, 1.0))
    one = basics.number(grid, 1.0)
    high = op.Sub(one, op.Div(one, _sizes(x, grid)))
    raised = basics.typed(op.Max(grid, op.Neg(high)), int(grid.dtype), grid)
    return op.Min(raised, high)


def _sizes(x: Any, grid: Any) -> Any:
    """Return the sizes of images in the order of a place in a grid, which is (x, y), and in its type."""
    sizes = list(x.shape[-2:])
    if all(isinstance(size, int) for size in sizes):
        return op.Constant(value=ir.tensor([float(size) for size in reversed(sizes)], dtype=ir.DataType(int(grid.dtype))))
    turned = op.Gather(op.Shape(x), op.Constant(value_ints=[len(x.shape) - 1, len(x.shape) - 2]))
    return op.CastLike(turned, grid)


def _middles(grid: Any, x: Any, *, align_corners: bool) -> Any:
    """Move places, which are reflected at the borders, to the middle of the nearest element, step by step as PyTorch does.

    A place between two elements is that of the even one, to the last bit of these steps; in another order a third of them change sides.
    Source: `ComputeLocationBase` in `aten/src/ATen/native/cpu/GridSamplerKernel.cpp`.
    """

    def typed(made: Any) -> Any:
        return basics.typed(made, int(grid.dtype), grid)

    sizes, (zero, half, one, two) = _sizes(x, grid), (basics.number(grid, number) for number in (0.0, 0.5, 1.0, 2.0))
    last = op.Sub(sizes, one)
    span, edge = (op.Max(typed(op.Mul(last, two)), one), zero) if align_corners else (op.Mul(sizes, two), half)
    place = op.Sub(op.Mul(op.Add(grid, one), op.Div(last if align_corners else sizes, two)), edge)
    away = op.Abs(op.Add(place, edge))
    rest = op.Sub(away, op.Mul(op.Floor(op.Div(away, span)), span))
    inside = op.Sub(op.Min(typed(rest), op.Sub(span, rest)), edge)
    inside = op.Max(typed(op.Min(typed(inside), last)), zero)
    element = op.Round(op.Where(op.IsNaN(inside), zero, inside))
    return op.Sub(op.Div(op.Add(op.Mul(element, two), one), sizes), one)


@decomposes(_aten.affine_grid_generator.default)
def _affine_grid(theta: torch.Tensor, size: Sequence[Any], align_corners: bool) -> Any:
    """Compute places by the steps of the kernel: torch's decomposition differs in the last bit, which decides between neighbours."""
    batch, images = size[0], [*size[2:]]
    if not theta.is_floating_point() or theta.dim() != 3 or len(images) not in (2, 3):  # noqa: PLR2004 - PyTorch refuses others
        return STAYS
    lines = []
    for place, steps in enumerate(images):
        line = torch.linspace(-1, 1, steps, dtype=theta.dtype, device=theta.device) if steps > 1 else theta.new_zeros([steps])
        line = line if align_corners else line * (steps - 1) / steps
        lines.append(line.view([-1 if dim == place else 1 for dim in range(len(images))]).expand(images))
    base = torch.stack([*reversed(lines), theta.new_ones(images)], -1).view(1, -1, len(images) + 1)
    return base.expand(batch, -1, -1).bmm(theta.transpose(1, 2)).view([batch, *images, len(images)])


facts.wrong(_aten.grid_sampler_2d.default, reason="fails where there is nothing to sample", when=facts.lacks_elements("input", "grid"))


@decomposes(_aten.channel_shuffle.default)
def _channel_shuffle(tensor: torch.Tensor, groups: int) -> Any:
    """Copy the result of torch's decomposition, which is a view of the tensor where there is nothing to shuffle."""
    shuffled: torch.Tensor = _torch.decomposition_of(_aten.channel_shuffle.default)(tensor, groups)
    return _aten.clone.default(shuffled, memory_format=suggested_format(tensor))


facts.wrong(
    _aten.pixel_unshuffle.default,
    reason="fails where there are no elements, and PyTorch keeps their shape",
    when=facts.lacks_elements("self"),
)

_END = sys.maxsize


def _pad_of(target: Any) -> Callable[..., Any]:
    """Make a padding that removes elements where its amount is negative: after it has padded, because it may repeat what is removed."""

    def pad(x: Any, padding: Sequence[Any]) -> Any:
        known = [amount for amount in padding if isinstance(amount, int)]
        if len(known) < len(padding) or min(known) >= 0:
            return basics.registered(target)(x, padding)
        made = basics.registered(target)(x, [max(amount, 0) for amount in known]) if max(known) > 0 else x
        for place in range(0, len(known), 2):
            before, after, dim = known[place], known[place + 1], len(x.shape) - 1 - place // 2
            made = op.Slice(made, *(op.Constant(value_ints=[bound]) for bound in (max(-before, 0), min(after, 0) or _END, dim)))
        return made

    return pad


_REFLECTING = (_aten.reflection_pad1d.default, _aten.reflection_pad2d.default, _aten.reflection_pad3d.default)
_REPEATING_EDGES = (*_REFLECTING, _aten.replication_pad1d.default, _aten.replication_pad2d.default, _aten.replication_pad3d.default)
for _target in _REPEATING_EDGES:
    torch_op(_target)(_pad_of(_target))


def _may_pad_nothing(call: Call) -> bool:
    sizes = call["pad"]
    nothing = not any(isinstance(size, int) and size for size in sizes) and not all(isinstance(size, int) for size in sizes)
    return nothing and not call["self"].is_contiguous()


def _ends(name: str, call: Call) -> list[tuple[Any, ...]]:
    """List the sizes of dimensions that the example pads at one end and cuts at the other, with both amounts."""
    pad = [number.meta["val"] if isinstance(number, torch.fx.Node) else number for number in call[name]]
    ends = zip(reversed(call["self"].shape), pad[::2], pad[1::2], strict=False)
    return [(size, *both) for size, *both in ends if min(hints := [_torch.size_hint(end) for end in both]) < 0 < max(hints)]


def _may_cut_off_more(call: Call) -> bool:
    return not all(statically_known_true(size + end >= 0) for size, *ends in _ends("pad", call) for end in ends)


def _repeats_what_is_cut_off(call: Call) -> bool:
    """Tell whether an amount that follows from numbers is beside a negative one, which ONNX Runtime cuts off first."""
    return not all(isinstance(number, int) for number in call["padding"]) and bool(_ends("padding", call))


facts.wrong(_aten.constant_pad_nd.default, reason="fails for tensors without dimensions", when=facts.is_number)
facts.needs_known(_aten.constant_pad_nd.default, argument="value")
facts.wrong(_aten.constant_pad_nd.default, reason="may pad nothing, and then keeps the order in memory", when=_may_pad_nothing)
facts.wrong(_aten.constant_pad_nd.default, reason=f"may cut off more elements than there are{facts.REFUSED}", when=_may_cut_off_more)
facts.wrong(
    *_REPEATING_EDGES,
    reason="repeats only what negative amounts leave, where PyTorch repeats what they cut off",
    when=_repeats_what_is_cut_off,
)
facts.wrong(*_REFLECTING, reason=f"takes booleans{facts.REFUSED}", when=facts.is_boolean)

_CIRCULAR = _aten._pad_circular.default


@decomposes(_CIRCULAR)
def _pad_circular(tensor: torch.Tensor, pad: Sequence[Any]) -> Any:
    """Join the last numbers of each dimension, all of it, and the first, where PyTorch writes them into parts of an empty tensor."""
    joins = _repeats_what_is_left(tensor.shape, pad)
    for place in range(len(pad) // 2):
        before, after, dim = pad[2 * place], pad[2 * place + 1], -1 - place
        size = tensor.shape[dim]
        if not joins:
            cut, end = (torch.sym_max(-number, 0) for number in (before, after))  # type: ignore[no-untyped-call]  # in torch itself
            left = size - cut - end
            places = torch.arange(-before - cut, left + after + end, device=tensor.device) % torch.sym_max(left, 1)  # type: ignore[no-untyped-call]  # same
            tensor = tensor.index_select(dim, (places + cut) % size)
        elif before or after:
            left = tensor.narrow(dim, max(-before, 0), size + min(before, 0) + min(after, 0))
            last = [left.narrow(dim, left.shape[dim] - before, before)] if before > 0 else []
            tensor = torch.cat([*last, left, *([left.narrow(dim, 0, after)] if after > 0 else [])], dim)
    return tensor if joins and any(pad) else tensor.clone()


def _repeats_what_is_left(sizes: Sequence[Any], pad: Sequence[Any]) -> bool:
    """Tell whether circular padding is by known numbers, and repeats only what its negative numbers leave."""
    pairs = list(zip(pad[::2], pad[1::2], reversed(sizes), strict=False))
    return all(isinstance(number, int) for number in pad) and all(
        max(before, after, 0) <= size + min(before, 0) + min(after, 0) for before, after, size in pairs
    )


facts.keeps_whole(_CIRCULAR, when=lambda tracing: not tracing.with_gradient)
facts.keeps_whole(_CIRCULAR, traced=_pad_circular, when=lambda tracing: tracing.with_gradient)
facts.leaves(_CIRCULAR, when=lambda _, tensor, pad: facts.is_large_on_cpu(_, tensor) and _repeats_what_is_left(tensor.shape, pad))
# One thread, 128 images of 4 x 32 x 32, by one on each side: PyTorch 190 us, Concat 360 us.
facts.slow(_CIRCULAR, reason="PyTorch writes each number once, ONNX Runtime joins the parts dimension by dimension, in twice the time")
