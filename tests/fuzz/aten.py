"""Further operators for programs that are judged as graphs: templates like those of `operations`.

They reach what few people's models use: less common operators, scalars of each Python type, infinities and NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.operations import Template
    from tests.fuzz.picker import Picker

_EXACT = (
    "neg", "abs", "square", "sign", "sgn", "floor", "ceil", "round", "trunc", "frac", "isnan", "isinf", "isfinite", "isposinf", "isneginf",
    "signbit", "logical_not", "positive", "bitwise_not", "relu", "nan_to_num", "isreal", "real", "deg2rad", "clone", "fliplr", "flipud",
    "rot90", "atleast_1d", "atleast_3d", "diagflat", "hstack", "numel",
)  # fmt: skip
_SMOOTH = (
    "sin", "cos", "tanh", "sigmoid", "erf", "erfc", "exp", "expm1", "atan", "sinh", "cosh", "asinh", "exp2", "sinc", "special.expit",
    "special.i0e", "special.ndtr", "special.log_ndtr", "nn.functional.softsign", "nn.functional.logsigmoid", "nn.functional.mish",
    "nn.functional.selu", "nn.functional.celu", "nn.functional.tanhshrink", "nn.functional.gelu", "nn.functional.silu",
)  # fmt: skip
_POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma", "acosh", "special.entr", "logit")
_WITHIN_ONE = ("asin", "acos", "atanh", "erfinv")
_KINKED = (
    "hardsigmoid", "hardtanh", "relu6", "leaky_relu", "softshrink", "hardshrink", "hardswish", "elu", "softplus",
)  # fmt: skip
_PAIRS = (
    "add", "sub", "mul", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
    "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "copysign", "rsub", "isclose",
)  # fmt: skip
_NUMBERS = ("0", "1", "-1", "2", "3", "-3", "True", "False", "0.5", "-0.25", "-0.0", "1.75", "torch.inf", "torch.nan", "2**20")
_KINDS = ("float32", "float64", "int64", "int32", "float16", "bfloat16", "bool", "int8", "uint8", "int16")
_DIMS = ("0", "-1", "(0, 1)", "(-1, 0)", "(0, 2)", "(1, -1)", "1")


def _number(p: Picker) -> str:
    return str(p.choice(_NUMBERS))


def _dims(p: Picker) -> str:
    return str(p.choice(_DIMS))


def _keep(p: Picker) -> str:
    return str(p.choice(("", ", keepdim=True")))


def _double(p: Picker) -> str:
    return str(p.choice(("", ", dtype=torch.float64")))


def _kind(p: Picker) -> str:
    return f"torch.{p.choice(_KINDS)}"


def _images(p: Picker) -> str:
    """Floats as images of some channels."""
    return f"{p.floating()}.reshape({p.choice(('1, 1, -1, 4', '1, 2, -1, 2', '2, 1, -1, 3', '1, 1, 4, -1', '1, -1, 2, 2'))})"


def _matrix(p: Picker) -> str:
    return f"{p.floating()}.reshape({p.choice(('-1, 4', '4, -1', '-1, 2', '2, -1', '-1, 1'))})"


def _index(p: Picker) -> str:
    return str(p.choice(("[0, 1, 0]", "[-1]", "[[0], [1]]", "[1, -2]", "[0]", "[[0, 1], [1, 0]]")))


VALUES: list[tuple[int, Template]] = [
    (10, lambda p: f"torch.{p.choice(_EXACT)}({p.any()})"),
    (10, lambda p: f"torch.{p.choice(_PAIRS)}({p.any()}, {p.like()})"),
    (6, lambda p: f"torch.{p.choice(('add', 'sub', 'mul', 'eq', 'ne', 'lt', 'ge', 'rsub'))}({p.any()}, {_number(p)})"),
    (3, lambda p: f"torch.{p.choice(('remainder', 'fmod', 'floor_divide'))}({p.any()}, {p.like()}.abs() + 1)"),
    (3, lambda p: f"torch.{p.choice(('remainder', 'fmod', 'floor_divide'))}({p.any()}, {p.choice(('2', '-2', '3', '0.5', '-1.5'))})"),
    (2, lambda p: f"torch.div({p.any()}, {p.choice(('2', '-4', '0.5'))}, rounding_mode={p.choice((repr('floor'), repr('trunc')))})"),
    (2, lambda p: f"{p.any()} ** {p.choice(('2', '3', '0', '1', '2.0'))}"),
    (1, lambda p: f"{p.choice(('2', '1', '0.5'))} ** {p.any()}.clamp(0, 3)"),
    (2, lambda p: f"torch.{p.choice(('bitwise_left_shift', 'bitwise_right_shift'))}({p.any()}, {p.choice(('1', '2', p.like()))})"),
    (2, lambda p: f"torch.clamp({p.any()}, {p.choice(('0', '-1', '0.5', 'None'))}, {p.choice(('1', '2', '0.75', '-0.5'))})"),
    (2, lambda p: f"torch.clamp({p.any()}, {p.like()}, {p.like()})"),
    (3, lambda p: f"torch.where({p.boolean()}, {p.choice((p.like(), _number(p)))}, {p.choice((p.like(), _number(p)))})"),
    (2, lambda p: f"{p.any()}.masked_fill({p.boolean()}, {_number(p)})"),
    (1, lambda p: f"{p.any()}.masked_scatter({p.boolean()}, {p.last()})"),
    (2, lambda p: f"torch.heaviside({p.any()}, {p.like()})"),
    (2, lambda p: f"torch.threshold({p.any()}, {p.choice(('0', '0.5', '-1'))}, {p.choice(('3', '-2.5'))})"),
    (4, lambda p: f"torch.{p.choice(('sum', 'nansum', 'prod'))}({p.any()}{p.choice(('', ', dtype=' + _kind(p)))})"),
    (4, lambda p: f"torch.{p.choice(('sum', 'amax', 'amin', 'nansum', 'any', 'all'))}({p.any()}, {_dims(p)}{_keep(p)})"),
    (2, lambda p: f"torch.{p.choice(('prod', 'cumprod', 'cumsum'))}({p.any()}, {p.dim()}{p.choice(('', ', dtype=' + _kind(p)))})"),
    (3, lambda p: f"torch.{p.choice(('argmax', 'argmin'))}({p.any()}, {p.dim()}{_keep(p)})"),
    # Copied, as PyTorch's `median` along a dimension of stride 0 reads memory behind the tensor.
    (3, lambda p: f"torch.{p.choice(('max', 'min', 'median', 'cummax', 'cummin', 'mode'))}({p.any()}.clone(), {p.dim()})[0]"),
    (2, lambda p: f"torch.{p.choice(('max', 'min', 'median', 'any', 'all', 'count_nonzero', 'argmax'))}({p.any()})"),
    (2, lambda p: f"torch.sort({p.any()}, {p.dim()}, descending={p.choice((True, False))}, stable=True)[{p.choice((0, 1))}]"),
    (2, lambda p: f"torch.argsort({p.any()}, {p.dim()}, stable=True)"),
    (2, lambda p: f"torch.topk({p.any()}, {p.choice((1, 2))}, {p.dim()}, largest={p.choice((True, False))})[0]"),
    (1, lambda p: f"torch.diff({p.any()}, dim={p.dim()})"),
    (1, lambda p: f"torch.aminmax({p.any()}, dim={p.dim()}{_keep(p)})[{p.choice((0, 1))}]"),
    (1, lambda p: f"torch.trace({p.any()})"),
    (2, lambda p: f"torch.{p.choice(('tril', 'triu'))}({p.any()}, {p.choice((0, 1, -1, 2, -3))})"),
    (1, lambda p: f"torch.diag_embed({p.any()}, {p.choice((0, 1, -1))})"),
    (1, lambda p: f"torch.{p.choice(('tril_indices', 'triu_indices'))}({p.choice((2, 3))}, {p.choice((2, 4))}, {p.choice((0, 1, -1))})"),
    (2, lambda p: f"torch.flip({p.any()}, {p.choice(('(0,)', '(-1,)', '(0, 1)', '(-1, 0)'))})"),
    (2, lambda p: f"torch.roll({p.any()}, {p.choice(('1', '-1', '3'))}{p.choice(('', ', 0', ', -1'))})"),
    (1, lambda p: f"torch.roll({p.any()}, (1, -1), (0, 1))"),
    (1, lambda p: f"torch.rot90({p.any()}, {p.choice((1, 2, 3))}, {p.choice(('(0, 1)', '(1, 0)', '(-2, -1)'))})"),
    (2, lambda p: f"torch.hstack([{p.any()}, {p.like()}])"),
    (2, lambda p: f"torch.cat([{p.any()}, {p.any()}, {p.like()}], {p.dim()})"),
    (1, lambda p: f"torch.{p.choice(('vstack', 'dstack', 'column_stack'))}([{p.any()}, {p.like()}])"),
    (1, lambda p: f"torch.block_diag({p.any()}, {p.like()})"),
    (2, lambda p: f"torch.tile({p.any()}, {p.choice(('(2,)', '(1, 2)', '(2, 1, 1)', '(3, 2)'))})"),
    (1, lambda p: f"torch.repeat_interleave({p.any()}, {p.choice((1, 2, 3))}{p.choice(('', ', ' + p.dim()))})"),
    (1, lambda p: f"torch.repeat_interleave({p.any()}, torch.tensor([1, 0, 2, 1]), {p.dim()}, output_size=4)"),
    (2, lambda p: f"{p.any()}[torch.tensor({_index(p)}), ..., {p.choice(('0', 'None', '1:', '-1'))}]"),
    (1, lambda p: f"{p.any()}[torch.tensor({_index(p)}), torch.tensor({_index(p)})]"),
    (1, lambda p: f"{p.any()}[:, torch.tensor({_index(p)}), torch.tensor([0])]"),
    (1, lambda p: f"torch.take({p.any()}, torch.tensor({_index(p)}))"),
    (1, lambda p: f"torch.take_along_dim({p.any()}, torch.argsort({p.last()}, {p.dim()}, stable=True), {p.same_dim()})"),
    (1, lambda p: f"torch.gather({p.any()}, {p.dim()}, ({p.last()} > 0).long())"),
    (1, lambda p: f"torch.index_select({p.any()}, {p.dim()}, torch.tensor({p.choice(('[0, 0, 1]', '[1]', '[]'))}, dtype=torch.int32))"),
    (2, lambda p: f"{p.any()}.index_put((torch.tensor({_index(p)}),), {p.like()}, accumulate={p.choice((True, False))})"
     if p.choice((True, False)) else f"{p.any()}.index_put((torch.tensor([1, 0]),), {p.like()})"),
    (2, lambda p: f"{p.any()}.scatter_reduce({p.dim()}, ({p.last()} > 0).long(), {p.last()}, "
     f"{p.choice((repr('sum'), repr('amax'), repr('amin'), repr('prod')))}, include_self={p.choice((True, False))})"),
    (1, lambda p: f"{p.any()}.scatter_add({p.dim()}, ({p.last()} > 0).long(), {p.last()})"),
    (1, lambda p: f"{p.any()}.index_reduce({p.dim()}, torch.tensor([1, 0]), {p.like()}, {p.choice((repr('amax'), repr('prod')))})"),
    (1, lambda p: f"{p.any()}.index_fill({p.dim()}, torch.tensor([0, -1]), {_number(p)})"),
    (1, lambda p: f"{p.any()}.index_copy({p.dim()}, torch.tensor([1, 0]), {p.like()})"),
    (1, lambda p: f"{p.any()}.put(torch.tensor([0, 1]), {p.choice((p.last() + '.flatten()[:2]', p.last() + '.flatten()[-2:]'))})"),
    (1, lambda p: f"torch.isin({p.any()}, torch.tensor([0, 1, -1]))"),
    (1, lambda p: f"torch.bucketize({p.any()}, torch.tensor([-1.0, 0.0, 0.5]), right={p.choice((True, False))})"),
    (1, lambda p: f"torch.searchsorted(torch.tensor([-1, 0, 1]), {p.any()}, out_int32={p.choice((True, False))})"),
    (2, lambda p: f"F.pad({p.any()}, ({p.choice(('1, 1', '0, 1', '1, 0', '1, 1, 0, 1'))}), "
     f"mode={p.choice((repr('reflect'), repr('replicate')))})"),
    (1, lambda p: f"F.pad({p.any()}, ({p.choice(('-1, 0', '2, -1', '1, 1, -1, 2'))}), value={p.choice(('0', '-1', '0.5'))})"),
    (1, lambda p: f"F.pixel_shuffle({_images(p)}.repeat(1, 4, 1, 1), 2)"),
    (1, lambda p: f"F.pixel_unshuffle({_images(p)}, {p.choice((1, 2))})"),
    (1, lambda p: f"F.channel_shuffle({_images(p)}, {p.choice((1, 2))})"),
    (1, lambda p: f"F.unfold({_images(p)}, {p.choice(('2', '(1, 2)'))}, padding={p.choice((0, 1))}, stride={p.choice((1, 2))})"),
    (1, lambda p: f"F.fold({_matrix(p)}[None, :4, :3].repeat(1, 1, 1), (2, 4), (2, 2))"),
    (2, lambda p: f"F.max_pool2d({_images(p)}, 2, {p.choice((1, 2))}, ceil_mode={p.choice((True, False))})"),
    (1, lambda p: f"F.max_pool1d({_matrix(p)}[None], 2, {p.choice((1, 2))}, padding={p.choice((0, 1))})"),
    (1, lambda p: f"F.adaptive_max_pool2d({_images(p)}, {p.choice(('2', '(1, 3)', '(None, 1)'))})"),
    (1, lambda p: f"F.interpolate({_images(p)}, scale_factor=2, mode='nearest')"),
    (1, lambda p: f"F.interpolate({_images(p)}, size=({p.choice((3, 5))}, 2), mode={p.choice((repr('nearest'), repr('nearest-exact')))})"),
    (2, lambda p: f"torch.full_like({p.any()}, {p.choice(('0', '1', 'True', '2'))}, dtype={_kind(p)})"),
    (2, lambda p: f"{p.any()}.new_full((2, 3), {p.choice(('1', '0.5', 'True'))})"),
    (1, lambda p: f"torch.full({p.choice(('(2, 3)', '(0,)', '()', '(1,)'))}, {p.choice(('1', '0.5', 'True', '-3'))})"),
    (1, lambda p: f"torch.{p.choice(('zeros', 'ones'))}({p.any()}.shape, dtype={_kind(p)})"),
    (1, lambda p: f"torch.eye({p.any()}.shape[{p.dim()}]{p.choice(('', ', 3', ', dtype=' + _kind(p)))})"),
    (1, lambda p: f"torch.arange({p.choice(('0, 6, 2', '5, 0, -2', '0.5, 3', '4.0', '3'))}{p.choice(('', ', dtype=torch.float64'))})"),
    (1, lambda p: f"torch.linspace({p.choice(('0, 1, 5', '-2, 2, 9', '1, 1, 1'))})"),
    (4, lambda p: f"{p.any()}.to({_kind(p)})"),
    (1, lambda p: f"{p.any()}.to(torch.float64).sum().to({_kind(p)})"),
    (1, lambda p: f"torch.tensor({p.choice(('1', '2.5', 'True', '-1'))}) * {p.any()}"),
    (1, lambda p: f"torch.tensor({p.choice(('1', '2', '-1'))}, dtype={_kind(p)}) + {p.any()}"),
    (3, lambda p: f"torch.{p.choice(('matmul', 'inner', 'mm', 'bmm'))}({p.any()}, {p.any()})"),
    (1, lambda p: f"torch.addmm({p.any()}, {p.any()}, {p.any()}, beta={p.choice((1, 0, 2))}, alpha={p.choice((1, -1))})"),
    (1, lambda p: f"torch.baddbmm({p.any()}, {p.any()}, {p.any()})"),
    (1, lambda p: f"torch.addr({p.any()}, {p.any()}, {p.any()})"),
    (1, lambda p: f"torch.addmv({p.any()}, {p.any()}, {p.any()})"),
    (1, lambda p: f"torch.{p.choice(('mv', 'dot', 'vdot', 'outer', 'kron'))}({p.any()}, {p.any()})"),
    (1, lambda p: f"torch.tensordot({p.any()}, {p.like()}, {p.choice((1, 2))})"),
    (1, lambda p: f"torch.einsum('{p.choice(('...i,...i->...', 'i,j->ij', 'bij,bjk->bik', 'ij,jk->ki'))}', {p.any()}, {p.any()})"),
    (1, lambda p: f"torch.cross({p.any()}, {p.like()}, dim={p.dim()})"),
    (1, lambda p: f"torch.cartesian_prod({p.any()}.flatten()[:3], {p.last()}.flatten()[:2])"),
    (1, lambda p: f"torch.addcmul({p.any()}, {p.like()}, {p.like()}, value={p.choice(('2', '-1', '0.5', 'True'))})"),
    (1, lambda p: f"torch.{p.choice(('select', 'diagonal'))}_scatter({p.any()}, {p.like()}, {p.choice((0, 1, -1))}, {p.choice((0, 1))})"),
    (1, lambda p: f"torch.slice_scatter({p.any()}, {p.like()}, 0, {p.choice(('0', '1', '-2'))}, {p.choice(('None', '2', '-1'))})"),
    (1, lambda p: f"torch.as_strided_scatter({p.any()}, {p.last()}.flatten()[:2], (2,), (1,))"),
    (1, lambda p: f"F.embedding({p.any()}.long().clamp(0, 2), {_matrix(p)})"),
    (1, lambda p: f"F.embedding_bag(torch.tensor([[0, 1], [1, 0]]), {_matrix(p)}, mode={p.choice((repr('sum'), repr('max')))})"),
    (1, lambda p: f"F.one_hot({p.any()}.long().abs().clamp(0, 3), {p.choice((4, 5))})"),
    (1, lambda p: f"F.glu({p.floating()} * 0, {p.dim()})"),
    (1, lambda p: f"F.l1_loss({p.floating()}, {p.last()} + 1, reduction={p.choice((repr('sum'), repr('none')))})"),
    (1, lambda p: f"torch.ldexp({p.any()}, torch.tensor([1]))"),
    (1, lambda p: f"torch.gcd({p.any()}, {p.like()})"),
    (1, lambda p: f"torch.where({p.boolean()}, {p.like()}, float('{p.choice(('inf', '-inf', 'nan'))}'))"),
    (1, lambda p: f"torch.view_as_complex({p.floating()}.reshape(-1, 2).contiguous()).{p.choice(('real', 'imag', 'abs()'))}"),
    (1, lambda p: f"torch.nonzero_static({p.any()}, size=3)"),
]  # fmt: skip

INEXACT: list[tuple[int, Template]] = [
    (8, lambda p: f"torch.{p.choice(_SMOOTH)}({p.any()})"),
    (4, lambda p: f"torch.{p.choice(_POSITIVE)}({p.any()}.abs() + {p.choice((1.5, 2))})"),
    (2, lambda p: f"torch.{p.choice(_WITHIN_ONE)}({p.any()}.clamp(-0.75, 0.75))"),
    (4, lambda p: f"F.{p.choice(_KINKED)}({p.floating()})"),
    (1, lambda p: f"F.hardtanh({p.any()}, {p.choice((-1, -0.5))}, {p.choice((2, 0.75))})"),
    (1, lambda p: f"F.gelu({p.floating()}, approximate='tanh')"),
    (2, lambda p: f"torch.{p.choice(('atan2', 'hypot', 'logaddexp', 'logaddexp2', 'true_divide'))}({p.any()}, {p.like()}.abs() + 1)"),
    (1, lambda p: f"torch.xlogy({p.any()}, {p.like()}.abs() + 1)"),
    (2, lambda p: f"({p.any()}.abs() + 1) ** {p.choice(('0.5', '-0.5', '-1', '1.5', '-2', p.like() + '.clamp(-2, 2)'))}"),
    (2, lambda p: f"{p.any()} / {p.choice(('2', '3', '-4', '0.3', 'True'))}"),
    (1, lambda p: f"torch.lerp({p.floating()}, {p.last()} + 1, {p.choice(('0.25', '1.5', p.last()))})"),
    (1, lambda p: f"torch.addcdiv({p.floating()}, {p.like()}, {p.like()}.abs() + 1, value={p.choice(('2', '-0.5'))})"),
    (4, lambda p: f"torch.{p.choice(('mean', 'logsumexp', 'nanmean'))}({p.floating()}, {_dims(p)}{_keep(p)})"),
    (3, lambda p: f"torch.{p.choice(('var', 'std'))}({p.floating()}, {_dims(p)}, correction={p.choice((0, 1))}{_keep(p)})"),
    (1, lambda p: f"torch.var_mean({p.floating()}, {p.dim()}, correction=0)[{p.choice((0, 1))}]"),
    (2, lambda p: f"torch.linalg.vector_norm({p.floating()}, {p.choice(('1', '2', '3', '0', 'torch.inf'))}, {p.dim()}{_keep(p)})"),
    (3, lambda p: f"F.{p.choice(('softmax', 'log_softmax', 'softmin'))}({p.floating()}, {p.dim()}{_double(p)})"),
    (1, lambda p: f"F.normalize({p.floating()} + 5, dim={p.dim()})"),
    (1, lambda p: f"F.cosine_similarity({p.floating()} + 5, {p.last()} + 1, {p.dim()})"),
    (1, lambda p: f"F.pairwise_distance({p.floating()}, {p.last()} + 1)"),
    (1, lambda p: f"torch.cdist({_matrix(p)}, {p.last()}.reshape(-1, 4) + 3)"),
    (2, lambda p: f"F.layer_norm({p.floating()}, {p.last()}.shape[{p.choice((-1, -2))}:])"),
    (1, lambda p: f"F.rms_norm({p.floating()}, {p.last()}.shape[-1:])"),
    (1, lambda p: f"F.group_norm({_images(p)}, {p.choice((1, 2))})"),
    (1, lambda p: f"F.instance_norm({_images(p)})"),
    (1, lambda p: f"F.batch_norm({_matrix(p)}, torch.zeros(4), torch.ones(4), eps={p.choice((0.1, 1e-5))})"),
    (1, lambda p: f"F.local_response_norm({_images(p)}, 2)"),
    (2, lambda p: f"F.avg_pool2d({_images(p)}, 2, {p.choice((1, 2))}, ceil_mode={p.choice((True, False))}, padding={p.choice((0, 1))}, "
     f"count_include_pad={p.choice((True, False))})"),
    (1, lambda p: f"F.adaptive_avg_pool2d({_images(p)}, {p.choice(('1', '2', '(1, 3)', '(None, 2)'))})"),
    (1, lambda p: f"F.lp_pool2d({_images(p)}.abs() + 1, 2, 2)"),
    (2, lambda p: f"F.interpolate({_images(p)}, size=({p.choice((3, 5))}, 3), mode='{p.choice(('bilinear', 'bicubic', 'area'))}')"),
    (1, lambda p: f"F.interpolate({_images(p)}, scale_factor=2, mode='bilinear', align_corners={p.choice((True, False))})"),
    (1, lambda p: f"F.interpolate({_matrix(p)}[None], size={p.choice((3, 5))}, mode='linear', align_corners={p.choice((True, False))})"),
    (1, lambda p: f"F.grid_sample({_images(p)}[:1], torch.linspace(-1, 1, 12).reshape(1, 2, 3, 2), "
     f"align_corners={p.choice((True, False))}, padding_mode={p.choice((repr('zeros'), repr('border')))})"),
    (2, lambda p: f"F.conv2d({_images(p)}[:, :1], torch.full((2, 1, {p.choice(('1, 1', '2, 2', '1, 2'))}), 0.5), "
     f"padding={p.choice((0, 1))}, stride={p.choice((1, 2))})"),
    (1, lambda p: f"F.conv_transpose2d({_images(p)}[:, :1], torch.full((1, 2, 2, 2), 0.5), stride={p.choice((1, 2))})"),
    (1, lambda p: f"F.conv1d({_matrix(p)}[None, :1], torch.ones(3, 1, {p.choice((1, 2))}), dilation={p.choice((1, 2))}, padding='same')"),
    (1, lambda p: f"F.bilinear({_matrix(p)}, {p.last()}.reshape(-1, 4), torch.ones(3, 4, 4))"),
    (1, lambda p: f"F.linear({p.floating()}, {p.like()})"),
    (2, lambda p: f"F.scaled_dot_product_attention({p.floating()}, {p.last()}, {p.last()}, is_causal={p.choice((True, False))})"),
    (1, lambda p: f"F.mse_loss({p.floating()}, {p.last()} + 1, reduction={p.choice((repr('mean'), repr('sum'), repr('none')))})"),
    (1, lambda p: f"F.{p.choice(('smooth_l1_loss', 'huber_loss', 'soft_margin_loss'))}({p.floating()}, {p.last()} + 1)"),
    (1, lambda p: f"F.binary_cross_entropy_with_logits({p.floating()}, ({p.last()} > 0).to({p.last()}.dtype))"),
    (1, lambda p: f"F.cross_entropy({_matrix(p)}, {p.last()}.reshape(-1, 4).argmax(1), label_smoothing={p.choice((0, 0.1))})"),
    (1, lambda p: f"F.kl_div({p.floating()}, {p.last()}.softmax(-1), reduction='sum')"),
    (1, lambda p: f"torch.trapezoid({p.floating()}, dim={p.dim()})"),
    (1, lambda p: f"torch.polygamma({p.choice((0, 1))}, {p.floating()}.abs() + 1)"),
    (1, lambda p: f"torch.mvlgamma({p.floating()}.abs() + 2, 1)"),
    (1, lambda p: f"torch.logcumsumexp({p.floating()}, {p.dim()})"),
    (1, lambda p: f"F.prelu({_images(p)}, torch.tensor([0.25]))"),
    (1, lambda p: f"torch.renorm({p.floating()}, 2, {p.dim()}, 1.5)"),
]  # fmt: skip
