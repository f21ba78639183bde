"""What statements of random programs look like: templates that draw their operands.

Each takes a `Picker` and returns the right-hand side of an assignment, or a whole statement. A template need not be valid for every
operand: the generator runs each statement in PyTorch and drops those that raise.
"""

from collections.abc import Callable

from tests.fuzz.picker import Picker

Template = Callable[[Picker], str]

VIEWS: list[tuple[int, Template]] = [
    (8, lambda p: p.any() + p.slicing()),
    (3, lambda p: p.any() + p.slicing(step=True)),
    (3, lambda p: f"{p.any()}.narrow({p.dim()}, {p.small()}, {p.bound()})"),
    (3, lambda p: f"{p.any()}[{p.small()}]"),
    (3, lambda p: f"{p.any()}.select({p.dim()}, {p.small()})"),
    (2, lambda p: f"{p.any()}[..., {p.choice(('0', '-1', 'None', '1:'))}]"),
    (2, lambda p: f"{p.any()}[{p.choice(('None', 'None, :', ':, None', '(...)'))}]"),
    (6, lambda p: f"{p.any()}.transpose({p.dim()}, {p.dim()})"),
    (3, lambda p: f"{p.any()}.t()"),
    (2, lambda p: f"{p.any()}.mT"),
    (4, lambda p: f"{p.any()}.permute({p.order()})"),
    (2, lambda p: f"{p.any()}.movedim({p.dim()}, {p.dim()})"),
    (3, lambda p: f"{p.any()}.unsqueeze({p.dim()})"),
    (3, lambda p: f"{p.any()}.squeeze({p.choice(('', p.dim()))})"),
    (5, lambda p: f"{p.any()}.view(-1)"),
    (3, lambda p: f"{p.any()}.view({p.shape()})"),
    (4, lambda p: f"{p.any()}.reshape({p.shape()})"),
    (3, lambda p: f"{p.any()}.flatten({p.choice(('', p.dim()))})"),
    (2, lambda p: f"{p.any()}.unflatten({p.dim()}, ({p.choice(('2, -1', '-1, 2', '1, -1', '-1, 1'))}))"),
    (4, lambda p: f"{p.any()}.expand({p.choice(('2', '3', '1'))}, *{p.last()}.shape)"),
    (2, lambda p: f"{p.any()}.expand_as({p.any()})"),
    (2, lambda p: f"{p.any()}.broadcast_to({p.any()}.shape)"),
    (6, lambda p: f"{p.any()}.chunk({p.choice((2, 2, 3))}, {p.dim()})[{p.choice((0, 1, -1))}]"),
    (3, lambda p: f"{p.any()}.split({p.choice((1, 2, 3, p.bound()))}, {p.dim()})[{p.choice((0, 1, -1))}]"),
    (2, lambda p: f"{p.any()}.tensor_split({p.choice((2, 3))}, {p.dim()})[{p.choice((0, 1, -1))}]"),
    (3, lambda p: f"{p.any()}.unbind({p.dim()})[{p.choice((0, -1))}]"),
    (3, lambda p: f"{p.any()}.diagonal({p.choice(('', '1', '-1', 'dim1=-2, dim2=-1', '0, -1, -2'))})"),
    (3, lambda p: f"{p.any()}.unfold({p.dim()}, {p.choice((1, 2, 3))}, {p.choice((1, 2))})"),
    (2, lambda p: f"{p.any()}.as_strided({p.choice(('(2, 2), (1, 1)', '(3,), (2,)', '(2, 2), (2, 1), 1', '(), ()', '(2, 1), (1, 2)'))})"),
    (1, lambda p: f"{p.any()}.as_strided({p.last()}.shape, {p.last()}.stride(), {p.last()}.storage_offset())"),
    (3, lambda p: f"{p.any()}.detach()"),
    (1, lambda p: f"{p.any()}.data"),
    (2, lambda p: f"{p.any()}.view_as({p.any()})"),
    (2, lambda p: f"{p.any()}.contiguous()"),
    (1, lambda p: f"{p.any()}.view(torch.int32)"),
    (1, lambda p: f"{p.any()}.view(torch.float32)"),
    (1, lambda p: f"{p.any()}.view(torch.uint8)"),
    (2, lambda p: f"{p.any()}.to({p.dtype()})"),
    (2, lambda p: f"{p.any()}.float()"),
    (1, lambda p: f"torch.atleast_2d({p.any()})"),
    (1, lambda p: f"torch.broadcast_tensors({p.any()}, {p.any()})[{p.choice((0, 1))}]"),
    (1, lambda p: f"torch.meshgrid({p.any()}.view(-1), {p.any()}.view(-1), indexing='ij')[{p.choice((0, 1))}]"),
    (1, lambda p: f"{p.any()}.ravel()"),
    (1, lambda p: f"{p.any()}.swapaxes({p.dim()}, {p.dim()})"),
    (1, lambda p: f"{p.any()}.reshape_as({p.any()})"),
    (1, lambda p: f"torch.view_as_real(torch.complex({p.floating()}, {p.last()})){p.choice(('[..., 0]', '', '.mT'))}"),
    (1, lambda p: f"torch.complex({p.floating()}, {p.last()}).conj().{p.choice(('imag', 'real'))}"),
    (1, lambda p: f"{p.any()}.contiguous(memory_format=torch.channels_last)"),
]

FRESH: list[tuple[int, Template]] = [
    (10, lambda p: f"{p.any()} {p.choice('+-*')} {p.like()}"),
    (6, lambda p: f"{p.any()} {p.choice('+-*')} {p.scalar()}"),
    (4, lambda p: f"{p.scalar()} {p.choice('+-*')} {p.any()}"),
    (3, lambda p: f"{p.any()} * {p.last()}.shape[{p.dim()}]"),
    (2, lambda p: f"{p.any()} + {p.size()}"),
    (2, lambda p: f"torch.{p.choice(('add', 'sub'))}({p.any()}, {p.like()}, alpha={p.choice((2, -1, 3, 0.5))})"),
    (2, lambda p: f"torch.rsub({p.any()}, {p.like()})"),
    (2, lambda p: f"torch.{p.choice(('maximum', 'minimum'))}({p.any()}, {p.like()})"),
    (5, lambda p: f"{p.choice(('torch.neg', 'torch.abs', 'torch.relu', 'torch.square', 'torch.clone', '1 + '))}({p.any()})"),
    (2, lambda p: f"{p.any()}.clamp({p.choice(('-1, 1', 'min=0', 'max=1', '-0.5, 0.75', '1, -1'))})"),
    (2, lambda p: f"{p.any()}.clamp(min={p.like()})"),
    (2, lambda p: f"torch.where({p.boolean()}, {p.like()}, {p.like()})"),
    (2, lambda p: f"torch.where({p.boolean()}, {p.like()}, {p.scalar()})"),
    (2, lambda p: f"{p.any()}.masked_fill({p.boolean()}, {p.scalar()})"),
    (3, lambda p: f"{p.any()}.sum({p.choice(('', p.dim(), p.dim() + ', keepdim=True', 'dtype=torch.float64'))})"),
    (2, lambda p: f"{p.any()}.{p.choice(('amax', 'amin', 'any', 'all'))}({p.dim()}{p.choice(('', ', keepdim=True'))})"),
    (2, lambda p: f"{p.any()}.cumsum({p.dim()})"),
    (3, lambda p: f"torch.cat([{p.any()}, {p.like()}], {p.dim()})"),
    (2, lambda p: f"torch.stack([{p.any()}, {p.like()}], {p.dim()})"),
    (2, lambda p: f"{p.any()}.flip({p.dim()})"),
    (2, lambda p: f"{p.any()}.roll({p.choice((1, -1, 2))}, {p.dim()})"),
    (2, lambda p: f"{p.any()}.repeat(2, *[1] * {p.last()}.dim())"),
    (1, lambda p: f"{p.any()}.repeat_interleave(2, {p.dim()})"),
    (2, lambda p: f"F.pad({p.any()}, ({p.choice(('1, 0', '0, 2', '1, 1', '-1, 1', '0, 0, 1, 0'))}), value={p.choice((0, 1, 0.5))})"),
    (2, lambda p: f"{p.any()}.{p.choice(('tril', 'triu'))}({p.choice(('', '1', '-1'))})"),
    (2, lambda p: f"{p.any()}.index_select({p.dim()}, torch.tensor({p.choice(('[0, 0]', '[1]', '[0]'))}))"),
    (2, lambda p: f"{p.any()}[torch.tensor({p.choice(('[0, 1, 0]', '[-1]', '[[0], [1]]'))})]"),
    (1, lambda p: f"{p.any()}[:, torch.tensor({p.choice(('[0, 1, 0]', '[-1]', '[[0], [1]]'))})]"),
    (1, lambda p: f"{p.any()}.gather({p.dim()}, torch.zeros_like({p.last()}, dtype=torch.int64))"),
    (3, lambda p: f"torch.{p.choice(('zeros_like', 'ones_like', 'empty_like'))}({p.any()}).fill_({p.scalar()})"),
    (2, lambda p: f"{p.any()}.new_{p.choice(('zeros', 'ones'))}({p.last()}.shape)"),
    (2, lambda p: f"torch.arange({p.any()}.shape[{p.dim()}]{p.choice(('', ', dtype=torch.float32', ' + 1'))})"),
    (2, lambda p: f"torch.full(({p.size()},), {p.scalar()})"),
    (1, lambda p: f"torch.tensor({p.choice(('2.5', '3', 'True', '[1.0, 2.0]', '[[1], [2]]'))})"),
    (1, lambda p: f"torch.full_like({p.any()}, {p.scalar()})"),
    (2, lambda p: f"{p.any()} {p.choice(('>', '<=', '==', '!=', '>='))} {p.choice((p.like(), p.scalar()))}"),
    (1, lambda p: f"~{p.boolean()}"),
    (1, lambda p: f"{p.any()} {p.choice('&|^')} {p.like()}"),
    (1, lambda p: f"{p.any()}.logical_{p.choice(('and', 'or', 'xor'))}({p.like()})"),
    (1, lambda p: f"{p.any()} {p.choice(('//', '%'))} {p.choice((2, 3, 0.5, 1.5, -2))}"),
    (1, lambda p: f"torch.{p.choice(('floor', 'round', 'trunc', 'ceil', 'sign'))}({p.any()})"),
    (3, lambda p: f"{p.any()}.to({p.dtype()})"),
    (1, lambda p: f"{p.any()}.{p.choice(('long', 'int', 'bool', 'double', 'half'))}()"),
    (2, lambda p: f"{p.any()}.type_as({p.any()})"),
    (3, lambda p: f"{p.any()} @ {p.like()}.mT"),
    (2, lambda p: f"{p.any()}.mT @ {p.like()}"),
    (2, lambda p: f"{p.any()} @ {p.any()}"),
    (1, lambda p: f"torch.einsum('ij,ik->jk', {p.any()}, {p.like()})"),
    (1, lambda p: f"torch.einsum('ii->i', {p.any()})"),
    (1, lambda p: f"torch.outer({p.any()}, {p.any()})"),
    (1, lambda p: f"torch.diag({p.any()})"),
    (1, lambda p: f"{p.any()}.mean({p.choice(('', p.dim()))})"),
    (1, lambda p: f"{p.any()}.argmax({p.choice(('', p.dim()))})"),
    (1, lambda p: f"{p.any()}.take_along_dim({p.last()}.argmax({p.dim()}, keepdim=True), {p.dim()})"),
    (1, lambda p: f"{p.any()}.count_nonzero({p.choice(('', p.dim()))})"),
    (1, lambda p: f"{p.any()}.index_add({p.dim()}, torch.tensor([0, 1]), {p.like()})"),
    (1, lambda p: f"{p.any()}.scatter({p.dim()}, torch.zeros_like({p.last()}, dtype=torch.int64)[:1], {p.scalar()})"),
    (1, lambda p: f"{p.any()}.{p.choice(('select', 'diagonal', 'slice'))}_scatter({p.like()}, 0, 0)"),
    (1, lambda p: f"{p.any()}.addcmul({p.like()}, {p.like()}, value={p.choice((1, 2, 0.5))})"),
    (1, lambda p: f"F.one_hot({p.any()}.long().clamp(0, 2), 3)"),
    (1, lambda p: f"torch.tile({p.any()}, (2, 1))"),
    (1, lambda p: f"F.embedding({p.any()}.long().clamp(0, 3), {p.any()})"),
    (1, lambda p: f"{p.any()}.clamp(0, 1).clamp({p.choice(('min=0.5', '-1, 0.25', 'max=2', '0.5, 3'))})"),
    (1, lambda p: f"{p.any()}.clone(memory_format=torch.{p.choice(('contiguous_format', 'preserve_format'))})"),
]

MODULES: list[tuple[int, Template]] = [
    (3, lambda p: f"self.d({p.any()})"),
    (3, lambda p: f"self.g({p.floating()}.reshape(-1, 4))"),
    (1, lambda p: f"self.g({p.floating()}.reshape(-1, 4, 2))"),
]
"""What a module in train mode may hold."""

INEXACT: list[tuple[int, Template]] = [
    (5, lambda p: f"torch.{p.choice(('sin', 'sigmoid', 'tanh', 'cos', 'erf'))}({p.any()})"),
    (2, lambda p: f"F.{p.choice(('gelu', 'silu', 'softplus', 'elu', 'hardswish'))}({p.floating()})"),
    (2, lambda p: f"{p.any()}.{p.choice(('softmax', 'log_softmax', 'logsumexp'))}({p.dim()})"),
    (2, lambda p: f"{p.any()} / {p.choice((p.scalar(), '3', p.like() + '.abs().add(1)'))}"),
    (1, lambda p: f"({p.any()}.abs() + 1).{p.choice(('sqrt', 'rsqrt', 'log', 'reciprocal'))}()"),
    (1, lambda p: f"{p.any()}.{p.choice(('var', 'std'))}({p.dim()}, correction={p.choice((0, 1))})"),
    (1, lambda p: f"F.layer_norm({p.any()}, {p.last()}.shape[-1:])"),
    (1, lambda p: f"F.dropout({p.any()}, 0.5)"),
    (2, lambda p: f"F.linear({p.floating()}, {p.like()}, {p.any()})"),
    (1, lambda p: f"F.conv1d({p.floating()}, {p.floating()}[..., None])"),
    (1, lambda p: f"F.batch_norm({p.floating()}, None, None, training=True)"),
    (1, lambda p: f"{p.any()}.lerp({p.like()}, 0.25)"),
    (1, lambda p: f"{p.any()}.norm(dim={p.dim()})"),
    (1, lambda p: f"{p.any()} + torch.{p.choice(('rand', 'randn'))}_like({p.last()})"),
    (1, lambda p: f"F.scaled_dot_product_attention({p.floating()}, {p.last()}, {p.last()})"),
]

STAYS: list[tuple[int, Template]] = [
    (3, lambda p: f"{p.any()}.{p.choice(('cummax', 'cummin'))}({p.dim()}){p.choice(('[0]', '.values', '[1]'))}"),
    (1, lambda p: f"{p.any()}.kthvalue(1, {p.dim()}){p.choice(('[0]', '.values'))}"),
    (1, lambda p: f"{p.any()}.sort({p.dim()}, stable=True){p.choice(('[0]', '[1]'))}"),
    (1, lambda p: f"torch.heaviside({p.any()}, {p.like()})"),
    (1, lambda p: f"torch.logcumsumexp({p.any()}, {p.dim()})"),
    (1, lambda p: f"torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), {p.any()})"),
    (1, lambda p: f"torch.special.{p.choice(('i0', 'bessel_j0', 'ndtri'))}({p.any()})"),
    (1, lambda p: f"torch.fft.rfft({p.any()}).{p.choice(('real', 'imag', 'conj().imag'))}"),
    (1, lambda p: f"torch.nextafter({p.any()}, {p.like()})"),
    (1, lambda p: f"{p.any()}.nanmedian()"),
]


def _image(p: Picker) -> str:
    """Floats as they are, or as images or volumes that lie in one of several orders."""
    shape = p.choice(("1, 2, -1, 2", "2, 1, -1, 2", "2, 2, -1, 1", "1, 4, 2, -1", "1, -1, 1, 2", "2, 2, -1", "1, 2, -1, 2, 1"))
    laid = p.choice(
        (".contiguous(memory_format=torch.channels_last)", ".permute(*range({d})[::-1])", ".transpose(0, 1)", ".mT", "[:, :1]", "")
    )
    name = p.floating()
    return str(p.choice((name, name, name, f"{name}.reshape({shape}){laid.format(d=shape.count(',') + 1)}")))


LAID_OUT: list[tuple[int, Template]] = [
    (3, lambda p: f"F.adaptive_{p.choice(('avg', 'max'))}_pool{p.choice('223')}d({_image(p)}, {p.choice((1, 2))})"),
    (3, lambda p: f"F.{p.choice(('avg', 'max'))}_pool{p.choice('1223')}d({_image(p)}, {p.choice((1, 2))}, {p.choice((1, 2))})"),
    (2, lambda p: f"F.lp_pool2d({_image(p)}, 2, {p.choice((1, 2))})"),
    (4, lambda p: f"F.pad({_image(p)}, ({p.choice(('1, 1', '1, 0, 0, 1', '1, 0, 1, 1, 0, 1'))}), mode={_mode(p)})"),
    (2, lambda p: f"F.conv2d({_image(p)}, torch.ones({p.choice((1, 2))}, {p.last()}.shape[1], 1, {p.choice((1, 2))}))"),
    (1, lambda p: f"F.conv_transpose2d({_image(p)}, torch.ones({p.last()}.shape[1], 2, 1, 2))"),
    (3, lambda p: f"F.interpolate({_image(p)}, scale_factor=2{p.choice(('', ', mode=' + repr('bilinear'), ', mode=' + repr('bicubic')))})"),
    (1, lambda p: f"F.interpolate({_image(p)}, size={p.choice(('3', '(2, 3)', '(1, 2, 3)'))}, mode='nearest-exact')"),
    (1, lambda p: f"F.{p.choice(('batch_norm', 'instance_norm'))}({_image(p)}, None, None, {p.choice(('True', 'use_input_stats=True'))})"),
    (1, lambda p: f"F.group_norm({_image(p)}, 1)"),
    (1, lambda p: f"F.layer_norm({_image(p)}, {p.last()}.shape[1:])"),
    (1, lambda p: f"F.normalize({_image(p)}, dim={p.dim()})"),
    (1, lambda p: f"{_image(p)}.{p.choice(('softmax', 'log_softmax', 'cumsum', 'cumprod'))}({p.dim()})"),
    (3, lambda p: f"torch.{p.choice(('cat', 'stack'))}([{_image(p)}, {p.last()}], {p.dim()})"),
    (2, lambda p: f"{_image(p)} @ {p.last()}.mT"),
    (1, lambda p: f"torch.einsum('...ij,...kj->...ik', {_image(p)}, {p.last()})"),
    (1, lambda p: f"F.pixel_{p.choice(('shuffle', 'unshuffle'))}({_image(p)}, {p.choice((1, 2))})"),
    (1, lambda p: f"F.channel_shuffle({_image(p)}, {p.choice((1, 2))})"),
    (1, lambda p: f"F.unfold({_image(p)}, {p.choice((1, 2))})"),
    (2, lambda p: f"{_image(p)} {p.choice('+*-')} {p.choice((p.like(), '2', p.last() + '[:1]', p.last() + '[..., :1]'))}"),
    (2, lambda p: f"torch.where({_image(p)} > 0, {p.last()}, {p.choice(('0.5', p.like()))})"),
    (2, lambda p: f"{_image(p)}.{p.choice(('relu', 'abs', 'sigmoid', 'isfinite', 'double'))}()"),
    (1, lambda p: f"{_image(p)}.{p.choice(('sum', 'mean', 'amax'))}({p.dim()}, keepdim=True)"),
    (1, lambda p: f"{_image(p)}.{p.choice(('flip', 'cumsum', 'argsort', 'diff'))}({p.dim()})"),
    (1, lambda p: f"{_image(p)}.{p.choice(('roll', 'repeat_interleave'))}(1, {p.dim()})"),
    (1, lambda p: f"{_image(p)}.masked_fill({p.last()} > 0, 1.0)"),
    (1, lambda p: f"{_image(p)}.index_select({p.dim()}, torch.tensor([0, 0]))"),
    (1, lambda p: f"{_image(p)}.clone(memory_format=torch.{p.choice(('channels_last', 'preserve_format', 'contiguous_format'))})"),
]
"""Operators whose kernels choose how their results lie in memory."""


def _mode(p: Picker) -> str:
    return repr(p.choice(("circular", "replicate", "reflect", "constant")))


def _reshaped(p: Picker) -> str:
    name, dim = p.any(), p.example().dim()
    ways = ("reshape(-1)", "flatten()", "ravel()", "reshape(2, -1)", f"reshape({p.last()}.shape[0], -1)", f"flatten({min(1, dim - 1)})")
    return f"{name}.{p.choice((*ways, 'flatten(0, -2)', f'reshape({p.shape()})'))}"


WRITTEN_RESHAPES: list[tuple[int, Template]] = [
    (
        4,
        lambda p: (
            f"{_reshaped(p)}.{p.choice(('mul_(0)', 'add_(1)', 'zero_()', 'fill_(2)', 'neg_()', 'copy_(' + p.last() + '.flatten())'))}"
        ),
    ),
    (1, lambda p: f"{_reshaped(p)}[{p.choice(('0', '-1', ':1', '1:'))}] = {p.scalar()}"),
    (1, lambda p: f"{_reshaped(p)}[{p.choice(('..., 0', '0', '...'))}] += 1"),
]
"""Writes into what is a view, or a copy where the layout of a tensor allows none."""

DECIDED: list[tuple[int, Template]] = [
    (4, lambda p: f"{p.any()}.reshape({p.choice(('-1', p.shape()))})"),
    (2, lambda p: f"{p.any()}.{p.choice(('flatten', 'ravel', 'contiguous'))}()"),
    (1, lambda p: f"{p.any()}.view({p.choice(('-1', p.shape()))})"),
]
"""Views, or copies where the layout of a tensor allows none."""

SIZED: list[tuple[int, Template]] = [
    (3, lambda p: f"{p.any()}[{p.boolean()}]"),
    (2, lambda p: f"{p.any()}.nonzero()"),
    (2, lambda p: f"{p.any()}.masked_select({p.boolean()})"),
    (1, lambda p: f"torch.unique({p.any()})"),
    (1, lambda p: f"{p.any()} * {p.any()}.sum().item()"),
    (1, lambda p: f"torch.arange(int({p.any()}.ne(0).sum()))"),
    (1, lambda p: f"{p.any()}[:int({p.any()}.gt(0).any())]"),
]

WRITES: list[tuple[int, Template]] = [
    (8, lambda p: f"{p.any()}.{p.choice(('add_', 'mul_', 'sub_'))}({p.choice((p.scalar(), p.like()))})"),
    (5, lambda p: f"{p.any()}.copy_({p.like()})"),
    (4, lambda p: f"{p.any()}{p.slicing()} = {p.choice((p.scalar(), p.any()))}"),
    (4, lambda p: f"{p.any()}{p.slicing()} {p.choice(('+=', '*=', '-='))} {p.choice((p.scalar(), p.any()))}"),
    (3, lambda p: f"{p.any()}{p.slicing()}.{p.choice(('zero_()', 'add_(1)', 'mul_(2)', 'neg_()', 'fill_(3)'))}"),
    (3, lambda p: f"{p.any()}.{p.choice(('zero_()', 'fill_(2)', 'neg_()', 'relu_()', 'abs_()', 'clamp_(-1, 1)', 'square_()'))}"),
    (3, lambda p: f"{p.any()}.transpose({p.dim()}, {p.dim()}).{p.choice(('add_(1)', 'mul_(2)', 'zero_()'))}"),
    (2, lambda p: f"{p.any()}.view(-1)[{p.choice(('0', '-1', '1:3', '::2'))}] = {p.scalar()}"),
    (2, lambda p: f"{p.any()}.diagonal().{p.choice(('add_(1)', 'zero_()', 'mul_(3)', 'copy_(' + p.any() + ')'))}"),
    (2, lambda p: f"{p.any()}[{p.boolean()}] = {p.scalar()}"),
    (2, lambda p: f"{p.any()}.masked_fill_({p.boolean()}, {p.scalar()})"),
    (2, lambda p: f"{p.any()}[torch.tensor([0, -1])] = {p.choice((p.scalar(), p.any()))}"),
    (1, lambda p: f"{p.any()}.index_fill_({p.dim()}, torch.tensor([0]), {p.scalar()})"),
    (1, lambda p: f"{p.any()}.index_add_({p.dim()}, torch.tensor([0, 0]), {p.like()})"),
    (1, lambda p: f"{p.any()}.index_copy_({p.dim()}, torch.tensor([1, 0]), {p.like()})"),
    (1, lambda p: f"{p.any()}.index_put_((torch.tensor([0, 0]),), {p.like()}, accumulate=True)"),
    (1, lambda p: f"{p.any()}.scatter_({p.dim()}, torch.zeros_like({p.last()}, dtype=torch.int64)[:1], {p.scalar()})"),
    (1, lambda p: f"{p.any()}.scatter_add_({p.dim()}, torch.zeros_like({p.last()}, dtype=torch.int64), {p.like()})"),
    (2, lambda p: f"{p.any()}.{p.choice(('t_()', 'unsqueeze_(0)', 'squeeze_()', 'transpose_(0, -1)', 'swapaxes_(0, 1)'))}"),
    (1, lambda p: f"{p.any()}.fill_diagonal_({p.scalar()})"),
    (1, lambda p: f"{p.any()}.{p.choice(('triu_', 'tril_'))}()"),
    (1, lambda p: f"torch.add({p.any()}, {p.like()}, out={p.any()})"),
    (1, lambda p: f"torch.mul({p.any()}, {p.scalar()}, out={p.last()})"),
    (1, lambda p: f"F.relu({p.any()}, inplace=True)"),
    (1, lambda p: f"torch._foreach_add_([{p.any()}, {p.any()}], {p.scalar()})"),
    (1, lambda p: f"{p.any()}.detach().{p.choice(('add_(1)', 'zero_()', 'mul_(2)'))}"),
    (1, lambda p: f"{p.any()}.data.{p.choice(('add_(1)', 'mul_(2)'))}"),
    (1, lambda p: f"{p.any()}.unbind({p.dim()})[0].{p.choice(('add_(1)', 'zero_()'))}"),
    (1, lambda p: f"{p.any()}.chunk(2, {p.dim()})[1].{p.choice(('add_(1)', 'copy_(' + p.any() + ')'))}"),
    (1, lambda p: f"{p.any()}.addcmul_({p.like()}, {p.like()})"),
    (1, lambda p: f"{p.any()}.{p.choice(('sin_', 'sigmoid_', 'tanh_'))}()"),
    (1, lambda p: f"{p.any()}.copy_({p.any()}.flip(0))"),
    (1, lambda p: f"{p.any()}.cumsum_({p.dim()})"),
    (1, lambda p: f"{p.any()}.logical_not_()"),
    (1, lambda p: f"{p.any()}.eq_({p.scalar()})"),
    (1, lambda p: f"{p.any()}.{p.choice(('bernoulli_(0.5)', 'uniform_()', 'normal_()'))}"),
]

_DIVISORS = ("2", "3", "-2", "-3", "4", "-7")
_LARGE = ("208067", "2**31", "2**40 + 1", "-(2**33)", "1000003")

NUMBERS: list[tuple[int, Template]] = [
    (6, lambda p: f"{p.whole()} {p.choice(('//', '//', '%'))} {p.choice(_DIVISORS)}"),
    (4, lambda p: f"-(-{p.whole()} // {p.choice(('2', '3'))})"),
    (4, lambda p: f"({p.whole()} - {p.choice(('6', '5', '9'))}) {p.choice(('//', '%'))} {p.choice(_DIVISORS)}"),
    (2, lambda p: f"{p.whole()} {p.choice(('//', '%'))} ({p.whole()} + {p.choice(('1', '2', '-30'))})"),
    (2, lambda p: f"divmod({p.whole()} - 6, {p.choice(_DIVISORS)})[{p.choice((0, 1))}]"),
    (4, lambda p: f"{p.whole()} {p.choice('+-*')} {p.choice((p.whole(), '1', '-3', '7', 'True'))}"),
    (2, lambda p: f"{p.choice(('-', 'abs', '+', '~', 'int', 'float', 'bool', 'torch.sym_float', 'not '))}({p.number()})"),
    (2, lambda p: f"{p.whole()} ** {p.choice((2, 3))}"),
    (2, lambda p: f"{p.choice((2, -2, 3, 1))} ** ({p.whole()} % 5)"),
    (
        3,
        lambda p: f"{p.choice(('min', 'max', 'torch.sym_max', 'torch.sym_min'))}({p.number()}, {p.choice((p.number(), '4', '-1', '5.5'))})",
    ),
    (1, lambda p: f"torch.sym_ite({p.whole()} > 4, {p.whole()}, {p.choice(('3', '-1'))})"),
    (2, lambda p: f"{p.whole()} {p.choice(('<<', '>>', '&', '|', '^'))} {p.choice((1, 2, 3))}"),
    (1, lambda p: f"({p.whole()} - 7) >> 1"),
    (2, lambda p: f"{p.number()} {p.choice(('<', '>=', '==', '!='))} {p.choice((p.number(), '5', '4.5'))}"),
    (3, lambda p: f"{p.number()} / {p.choice(('2', '-2', '3', '0.3', '7'))}"),
    (2, lambda p: f"{p.number()} * {p.choice(('0.5', '-1.5', '0.3', '0.1'))}"),
    (3, lambda p: f"round({p.number()} {p.choice(('/ 2', '/ 4', '/ -2', '* 0.3'))}{p.choice(('', '', ', 1'))})"),
    (3, lambda p: f"int({p.number()} {p.choice(('/ 2', '/ -2', '* 0.3', '- 5.5', '** 0.5 if True else 0'))})"),
    (3, lambda p: f"math.{p.choice(('floor', 'ceil', 'trunc'))}(({p.number()} - 6) / {p.choice(('2', '3', '-4'))})"),
    (1, lambda p: f"math.{p.choice(('sqrt', 'log2', 'exp', 'sin', 'atan', 'tanh'))}(abs({p.number()}) % 9 + 1)"),
    (1, lambda p: f"math.{p.choice(('gcd', 'isqrt', 'comb', 'copysign', 'pow', 'fmod'))}({p.whole()}, {p.choice(('3', '2'))})"),
    (2, lambda p: f"{p.whole()} * {p.choice(_LARGE)} {p.choice(('', '// 3', '% 1009', '// -7', '- 1'))}"),
    (1, lambda p: f"({p.whole()} + {p.choice(_LARGE)}) ** 2 {p.choice(('', '// 2', '% 97'))}"),
    (1, lambda p: f"({p.whole()} * {p.choice(_LARGE)}) / 3"),
    (1, lambda p: f"{p.whole()} if {p.whole()} > 4 else {p.whole()}"),
    (1, lambda p: f"{p.whole()} and {p.number()}"),
    (1, lambda p: f"sum(({p.whole()}, {p.whole()}, -3)) // 2"),
    (1, lambda p: f"torch.Size(({p.whole()}, 3)).numel() // 2"),
    (1, lambda p: f"{p.any()}.stride({p.dim()}) // 2"),
    (1, lambda p: f"{p.any()}.shape[1:].numel() - 7"),
]
"""Python numbers that follow from sizes and whole arguments; the generator keeps those that 64 bits hold."""

NUMBERS_OF_DATA: list[tuple[int, Template]] = [
    (3, lambda p: f"int({p.any()}.sum())"),
    (2, lambda p: f"{p.any()}.sum().item()"),
    (2, lambda p: f"{p.any()}.ne(0).sum().item() {p.choice(('// 2', '- 5', '% 3', '* 2'))}"),
    (1, lambda p: f"bool({p.any()}.gt(0).any())"),
    (1, lambda p: f"{p.any()}.view(-1)[0].item()"),
    (1, lambda p: f"{p.any()}.shape[{p.dim()}] - int({p.any()}.ne(0).sum())"),
]

NUMBERED: list[tuple[int, Template]] = [
    (5, lambda p: f"{p.any()}[{p.choice(('', '-'))}{p.whole()}:]"),
    (5, lambda p: f"{p.any()}[: {p.choice(('', '-'))}{p.whole()}]"),
    (3, lambda p: f"{p.any()}[..., {p.whole()} : {p.whole()}]"),
    (2, lambda p: f"{p.any()}[-(-{p.last()}.shape[0] // 2) :]"),
    (2, lambda p: f"{p.any()}[:: max({p.whole()} % 3, 1)]"),
    (2, lambda p: f"{p.any()}[{p.whole()} % {p.last()}.shape[0]]"),
    (3, lambda p: f"F.pad({p.any()}, ({p.whole()} % 3, {p.choice(('0', '-(' + p.whole() + ' % 2)', p.whole() + ' // 4'))}))"),
    (2, lambda p: f"F.pad({p.any()}, (-(({p.last()}.shape[-1] - 1) // 2), {p.whole()}))"),
    (3, lambda p: f"torch.arange({p.choice(('', '-'))}{p.whole()} // 2, {p.whole()})"),
    (2, lambda p: f"torch.arange({p.whole()}, {p.whole()}, {p.choice(('-1', '2', '-2'))})"),
    (2, lambda p: f"torch.arange({p.number()})"),
    (2, lambda p: f"{p.any()}.split(max({p.whole()}, 1), {p.dim()})[{p.choice((0, -1))}]"),
    (2, lambda p: f"{p.any()}.split([{p.last()}.shape[0] // 3, {p.last()}.shape[0] - {p.last()}.shape[0] // 3])[1]"),
    (2, lambda p: f"{p.any()}.narrow({p.dim()}, 0, {p.whole()})"),
    (1, lambda p: f"{p.any()}.chunk(max({p.whole()} % 4, 1), {p.dim()})[0]"),
    (2, lambda p: f"{p.any()}.roll({p.whole()}, {p.dim()})"),
    (1, lambda p: f"{p.any()}.reshape({p.choice(('-1, ' + p.whole(), p.whole() + ', -1'))})"),
    (1, lambda p: f"{p.any()}.expand({p.whole()}, *{p.last()}.shape)"),
    (1, lambda p: f"{p.any()}.repeat({p.whole()} % 3, *[1] * {p.last()}.dim())"),
    (1, lambda p: f"{p.any()}.{p.choice(('tril', 'triu', 'diagonal'))}({p.whole()})"),
    (1, lambda p: f"{p.any()}.unfold({p.dim()}, {p.whole()}, {p.choice(('1', p.whole()))})"),
    (6, lambda p: f"{p.any()} {p.choice('+-*')} {p.number()}"),
    (3, lambda p: f"{p.number()} {p.choice('+-*')} {p.any()}"),
    (2, lambda p: f"{p.any()}.long() {p.choice('+-*')} {p.whole()}"),
    (2, lambda p: f"{p.any()} {p.choice(('//', '%'))} {p.number()}"),
    (2, lambda p: f"{p.any()} {p.choice(('>', '<=', '=='))} {p.number()}"),
    (1, lambda p: f"{p.any()}.clamp({p.choice(('min', 'max'))}={p.number()})"),
    (1, lambda p: f"torch.where({p.boolean()}, {p.like()}, {p.number()})"),
    (2, lambda p: f"torch.full(({p.whole()} % 5, {p.whole()} // 3), {p.number()})"),
    (1, lambda p: f"torch.{p.choice(('ones', 'zeros', 'eye'))}({p.whole()})"),
    (1, lambda p: f"{p.any()}.new_full(({p.whole()},), {p.number()})"),
    (2, lambda p: f"torch.{p.choice(('tensor', 'scalar_tensor'))}({p.number()})"),
    (1, lambda p: f"torch.tensor([{p.number()}, {p.number()}])"),
    (1, lambda p: f"{p.any()}.sum() * {p.whole()} // {p.choice(_DIVISORS)}"),
    (1, lambda p: f"torch.add({p.any()}, {p.like()}, alpha={p.number()})"),
]
"""Tensors whose sizes, bounds or values are Python numbers."""

CREATED: list[tuple[int, Template]] = [
    (3, lambda p: f"torch.{p.choice(('ones', 'zeros'))}({p.any()}.shape)"),
    (3, lambda p: f"torch.full(({p.size()},), {p.choice(('0.5', '2', 'True', '-1.25'))})"),
    (2, lambda p: f"torch.{p.choice(('tensor', 'scalar_tensor'))}({p.choice(('2.5', '-0.5', '3'))})"),
    (2, lambda _: "torch.tensor([1.0, -2.5])"),
    (2, lambda p: f"torch.arange({p.choice(('0.5, 3', '0, 2, 0.5', '4.0'))})"),
    (1, lambda p: f"torch.linspace({p.choice(('0, 1, 5', '-2, 2, 9'))})"),
    (1, lambda _: "torch.eye(3)"),
    (1, lambda p: f"torch.empty({p.any()}.shape).fill_({p.scalar()})"),
    (3, lambda p: f"{p.any()}.long() * {p.choice(('0.5', '1.0', '-0.25'))}"),
    (2, lambda p: f"{p.any()}.long() / {p.choice(('2', '4'))}"),
    (1, lambda p: f"({p.any()} > 0) + {p.choice(('0.5', '1'))}"),
    (1, lambda p: f"torch.where({p.boolean()}, {p.choice(('0.5', '1.0'))}, {p.choice(('0.25', '-1.0'))})"),
    (1, lambda p: f"torch.rand({p.any()}.shape)"),
    (1, lambda p: f"torch.cat([torch.zeros(2), {p.any()}.flatten()])"),
    (1, lambda p: f"torch.true_divide({p.any()}.int(), 2)"),
    (1, lambda _: "torch.hann_window(4, periodic=False).round()"),
]
"""Tensors of the default dtype."""

CHECKED: list[tuple[int, Template]] = [
    (4, lambda p: f"{p.any()}[{p.place()}]"),
    (2, lambda p: f"{p.any()}[:, {p.place()}]"),
    (3, lambda p: f"{p.any()}.index_select({p.dim()}, {p.place()})"),
    (8, lambda p: f"F.embedding({p.place()}, {p.any()})"),
    (2, lambda p: f"{p.any()}.gather({p.dim()}, {p.place()}.view([-1] + [1] * ({p.any()}.dim() - 1)))"),
    (2, lambda p: f"torch.gather({p.any()}, 0, {p.place()})"),
    (2, lambda p: f"{p.any()}.take({p.place()})"),
    (1, lambda p: f"torch.take_along_dim({p.any()}, {p.place()})"),
    (2, lambda p: f"F.one_hot({p.place()}, 3)"),
    (2, lambda p: f"F.nll_loss({p.any()}, {p.place()}, reduction={p.choice((repr('sum'), repr('none')))})"),
    (2, lambda p: f"F.cross_entropy({p.any()}, {p.place()}, reduction={p.choice((repr('sum'), repr('mean')))})"),
    (1, lambda p: f"F.multi_margin_loss({p.any()}, {p.place()})"),
    (2, lambda p: f"{p.choice((7, -5))} {p.choice(('//', '%'))} ({p.place()} + 1)"),
    (1, lambda p: f"torch.{p.choice(('fmod', 'remainder', 'floor_divide'))}({p.any()}.long(), {p.place()} + 1)"),
    (1, lambda p: f"torch.div(torch.full_like({p.place()}, 5), {p.last()} + 1, rounding_mode={p.choice((repr('floor'), repr('trunc')))})"),
    (1, lambda p: f"torch.bernoulli({p.place()}.float())"),
    (1, lambda p: f"torch.normal(0.0, {p.place()}.float())"),
    (1, lambda p: f"torch.multinomial({p.place()}.float() + 1, 1)"),
    (3, lambda p: f"torch.linalg.cholesky(torch.eye(2) * ({p.place()}.view(-1)[0] + 1))"),
    (1, lambda p: f"torch.linalg.inv(torch.eye(2) * ({p.place()}.view(-1)[0] + 1))"),
    (1, lambda p: f"F.binary_cross_entropy({p.place()}.float(), torch.ones({p.last()}.shape))"),
    (1, lambda p: f"F.embedding_bag({p.place()}.view(1, -1), {p.any()}, mode={p.choice((repr('sum'), repr('max')))})"),
    (1, lambda p: f"torch.repeat_interleave({p.any()}, {p.place()} * 0 + {p.last()}.clamp(max=0) + 1, 0, output_size={p.last()}.shape[0])"),
    (1, lambda p: f"F.max_unpool1d({p.any()}.flatten()[:2].view(1, 1, 2), {p.place()}.flatten()[:1].expand(2).view(1, 1, 2), 2)"),
    (2, lambda p: f"{p.any()}.index_put(({p.place()},), {p.choice(('torch.tensor(3.0)', 'torch.ones(())'))})"),
    (1, lambda p: f"{p.any()}.scatter(0, {p.place()}, {p.scalar()})"),
    (1, lambda p: f"{p.any()}.scatter_add(0, {p.place()}, torch.ones({p.last()}.shape))"),
    (1, lambda p: f"{p.any()}.index_add({p.dim()}, {p.place()}, {p.any()})"),
    (1, lambda p: f"{p.any()}.index_fill({p.dim()}, {p.place()}, {p.scalar()})"),
    (1, lambda p: f"{p.any()}.put({p.place()}, torch.ones({p.last()}.shape))"),
]
"""What looks at the values of positions, and raises for some."""

CHECKED_WRITES: list[tuple[int, Template]] = [
    (12, lambda p: f"{p.largest()}[:, {p.place()}.clamp(0, 1)] = {p.scalar()}"),
    (6, lambda p: f"{p.largest()}.{p.choice(('mul_(2)', 'mul_(0.5)', 'add_(1)', 'neg_()'))}.{p.choice(('add_', 'sub_'))}({p.scalar()})"),
    (3, lambda p: f"{p.any()}[{p.place()}] = {p.scalar()}"),
    (2, lambda p: f"{p.any()}.index_fill_({p.dim()}, {p.place()}, {p.scalar()})"),
    (2, lambda p: f"{p.any()}.index_add_({p.dim()}, {p.place()}, {p.any()})"),
    (1, lambda p: f"{p.any()}.scatter_(0, {p.place()}, {p.scalar()})"),
]

BRANCHES: list[tuple[int, Template]] = [
    (3, lambda p: f"cond({_chosen(p)}, lambda y: y {_does(p)}, lambda y: y {_does(p)}, ({p.any()},))"),
    (3, lambda p: f"cond({_chosen(p)}, lambda y: y * {p.like()}, lambda y: y + {p.like()}, ({p.any()},))"),
    (
        2,
        lambda p: (
            f"cond({_chosen(p)}, lambda y, z: (y + z, z * 2), lambda y, z: (y - z, z + 1), ({p.any()}, {p.last()}))[{p.choice((0, 1))}]"
        ),
    ),
    (1, lambda p: f"cond({_chosen(p)}, lambda y: y.cumsum(0).cos(), lambda y: y.sin(), ({p.floating()},))"),
    (1, lambda p: f"cond({_chosen(p)}, lambda y: y.sum(0), lambda y: y.amax(0), ({p.any()},))"),
    (1, lambda p: f"cond({_chosen(p)}, lambda y: y[1:], lambda y: y[:-1] * 2, ({p.any()},))"),
]
"""Branches on data or sizes."""

LOOPS: list[tuple[int, Template]] = [
    (3, lambda p: f"loop(lambda j, y: j < {p.choice((1, 3, 0))}, lambda j, y: (j + 1, y {_does(p)}), (torch.tensor(0), {p.any()}))[1]"),
    (1, lambda p: f"loop(lambda y: y.sum() < 20, lambda y: (y.abs() + 1,), ({p.any()},))[0]"),
    (2, lambda p: f"loop(lambda j, y: j < 2, lambda j, y: (j + 1, y + {p.like()}), (torch.tensor(0), {p.any()} * 1))[1]"),
    (3, lambda p: f"scanned(lambda c, x: (c + x, c * x), {p.any()}[0] * 1, {p.last()})[{p.choice((0, 1))}]"),
    (1, lambda p: f"scanned(lambda c, x: (c * 0.5 + x.sum(), x {_does(p)}), torch.tensor(0.0), {p.any()})[{p.choice((0, 1))}]"),
]
"""Loops, which have no gradients here."""


def _chosen(p: Picker) -> str:
    return str(
        p.choice((f"{p.any()}.sum() > {p.choice(('0', '1', '-1'))}", f"{p.any()}.shape[{p.dim()}] > 4", f"{p.any()}.view(-1)[0] > 0"))
    )


def _does(p: Picker) -> str:
    return str(p.choice(("* 2", "+ 1", "- 3", "* -1.5", "+ 0.25")))


EXACT: list[tuple[int, Template]] = [
    (4, lambda p: f"{p.any()} {p.choice('+-*/')} {_fraction(p)}"),
    (3, lambda p: f"{_fraction(p)} {p.choice('+-*')} {p.any()}"),
    (1, lambda p: f"torch.div({p.any()}, {_fraction(p)}, rounding_mode={p.choice((repr('floor'), repr('trunc')))})"),
    (1, lambda p: f"{p.any()} {p.choice(('//', '%'))} {_fraction(p)}"),
    (1, lambda p: f"torch.{p.choice(('fmod', 'remainder', 'floor_divide', 'rsub', 'xlogy', 'eq', 'ge', 'lt'))}({p.any()}, {_fraction(p)})"),
    (1, lambda p: f"{p.any()}.clamp({p.choice(('min=' + _fraction(p), 'max=' + _fraction(p), '-0.123, 1.7'))})"),
    (1, lambda p: f"F.{p.choice(('leaky_relu', 'hardshrink', 'softshrink', 'elu', 'celu', 'softplus'))}({p.any()}, 0.123)"),
    (1, lambda p: f"F.{p.choice(('threshold', 'hardtanh'))}({p.any()}, -0.123, 1.7)"),
    (1, lambda p: f"torch.where({p.any()} > 0, {p.last()}, {_fraction(p)})"),
    (1, lambda p: f"{p.any()}.masked_fill({p.last()} > 0, {_fraction(p)})"),
    (1, lambda p: f"{p.any()} ** {p.choice(('2', '3', '2.5', '-1', '0.123'))}"),
    (1, lambda p: f"{p.choice(('2', '0.7'))} ** {p.any()}"),
    (1, lambda p: f"torch.full_like({p.any()}, {_fraction(p)})"),
    (1, lambda p: f"torch.nan_to_num({p.any()}, {_fraction(p)})"),
]
"""One operator on a tensor and a Python number.

A number divided by a tensor is left out: that is two operators, a reciprocal and a product. So is `alpha`: PyTorch rounds `alpha * y` to
16 bits for single elements and the ends of rows, and not in between. So are `lerp`, `addcmul` and `addcdiv`, whose fused products
PyTorch rounds once.
"""


def _fraction(p: Picker) -> str:
    return str(p.choice(("0.123", "-0.3", "(1 / 0.877)", "1.1", "3", "-7", "1e-3", "100.7", "2049", "0.5")))


PARTS: list[tuple[int, Template]] = [
    (3, lambda p: f"{p.any()}.chunk(2, {p.dim()})"),
    (1, lambda p: f"{p.any()}.split([1, {p.last()}.shape[{p.dim(fixed=True)}] - 1], {p.same_dim()})"),
    (1, lambda p: f"{p.any()}.tensor_split(2, {p.dim()})"),
    (1, lambda p: f"torch.aminmax({p.any()})"),
    (1, lambda p: f"{p.any()}.max({p.dim()})"),
    (1, lambda p: f"torch.broadcast_tensors({p.any()}, {p.any()})"),
    (1, lambda p: f"({p.any()}, {p.any()})"),
]
"""Templates that give two tensors at once."""
