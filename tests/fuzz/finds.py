"""Programs that the backend got wrong once, as small as they could be made; each names its cause."""

from functools import partial

from tests.fuzz.program import program, strict

_frozen = partial(program, road="frozen")
_exported = partial(strict, road="exported")

FINDS = {
    # The graph that makes returned views held the size too, and took it for an output of its own: the results moved by one place.
    "a size and a view that reads it": program(
        "a.shape[0]",
        "t0",
        "c",
        a="values(60, 3, 2)",
        body=("a.view(-1)[-1] = 2", "b, c = a.split([1, 1], 1)", "t0 = torch.sin(a)"),
        dynamic=True,
    ),
    # torchlib's `copy` returns the source in its own shape: with symbolic sizes this was a silently wrong shape.
    "a copy that broadcasts": program("c", a="values(1, n, 4)", b="values(2, 1, 4)", body=("c = a * 2", "c.copy_(b)"), dynamic=True),
    # The gradient of the copied slice was computed in the shape of the source.
    "a copy that broadcasts, in training": program(
        "a",
        "t0.float()",
        a="leaf(values(69, n)) * 1",
        b="values(99, 1)",
        body=("c, t0 = a.tensor_split(2, 0)", "c.copy_(b)"),
        steps=("call(4)", "backward()"),
        trains=True,
        dynamic=True,
    ),
    # To ask a tensor of data-dependent size whether it is contiguous is to guard on that size.
    "the layout of a size known at run time only": program(
        "b.ravel()", "b.t()", "b * 2", "b[:, :1]", a="values(99, n, 3)", body=("b = a.nonzero()",), captures=True, dynamic=True
    ),
    # AOTAutograd asks Dynamo by an exception to trace once more; it was taken for a failure of our decompositions.
    "a number that changes between calls": program(
        "b", a="values(72, n)", body=("b = a.clamp(max=a.sum().item())",), steps=("call(4)", "call(5)", "call(6)")
    ),
    # The session writes a 0-d output, and the empty tuple of its sizes was taken for none: every run failed, and PyTorch computed it.
    "one number in two dimensions": program("(a * 2).view(1, 1)", a="values(1)"),
    # Outputs in another memory order were permuted views; PyTorch refuses writes to views that a training graph returns.
    "a write into a permuted output, in training": program(
        "a * 2",
        a="leaf(values(65, 2, 3, n, 2).contiguous(memory_format=torch.channels_last)) * 1",
        steps=("call(8)", "outs[0].zero_()"),
        trains=True,
    ),
    # AOTAutograd makes the view anew from the input, with the storage offset that the new value of the input has: it was 0.
    "a view of an input with an offset that was written to": program(
        "t0", a="values(16, n, 4)[1:]", body=("b = a[:, 1 : a.shape[1] // 2 + 1]", "b.copy_(b)", "c, t0 = b.chunk(2, 1)"), dynamic=True
    ),
    # ONNX's NonZero gives one number a dimension: the result had the shape (0, 1).
    "the places of one number": program("b", a="values(1)", body=("b = (a * 0).nonzero()",)),
    # ONNX Runtime's ScatterND adds no floats of 16 bits; that showed in each run only.
    "sums of bfloat16 at indices": program("a.index_add(-1, torch.tensor([0, 1]), a)", a="values(59, 2 * n, 2, dtype=torch.bfloat16)"),
    # torch's shape function keeps the input's memory order, the kernel does not.
    "batch normalisation of a permuted input": program(
        "b", "b // a[:1]", a="values(30, 3, n).t()", body=("b = F.batch_norm(a, None, None, training=True)",), steps=("call(8)",)
    ),
    # Only pieces of inputs were made as views: those of other values had memory of their own each.
    "pieces of a constant": program("c", "b", a="values(89, n)", body=("b, c = torch.full((4,), 7).chunk(2, 0)",)),
    # A partition whose input has n // 2 + 1 columns did not know n // 2, which the strides of its result depend on.
    "strides of a part of complex numbers": program(
        "b.conj().imag", "b.real", a="values(33, n, 4)", body=("b = torch.fft.rfft(a)",), dynamic=True
    ),
    # A number below one was made whole on its way to a truth value: it became False.
    "a fraction as a truth value": program(
        "a", "a.masked_fill(a, -0.5)", a="values(28, 4, dtype=torch.bool)", body=("a.scatter_(0, torch.tensor([0]), 0.25)",)
    ),
    # torch's decomposition takes the offset of a tensor that begins later in its storage for 0.
    "a window of a tensor with an offset": program("torch.as_strided_scatter(a, a[:2], (2,), (1,))", a="values(1, 5)[1:]"),
    # torch's decomposition reads the number, which no trace knows.
    "the bucket of one number": program("torch.bucketize(a, torch.tensor([-1.0, 0.0, 0.5]), right=True)", a="values(68)"),
    # Its dtype was that of the numbers.
    "the buckets of no boundaries": program("torch.bucketize(a, torch.tensor([]), out_int32=True)", a="values(68, n)"),
    # ONNX's ScatterND takes no tensor without dimensions; that showed in each run only.
    "a masked write into one number": program("a.masked_scatter(a > -9, a + 1)", a="values(9)"),
    # The decomposition checks the indices of a tensor that has no elements.
    "nothing to fill at an index": program("a", a="values(83, n, n)", body=("a.index_fill_(1, torch.tensor([0]), 2)",), steps=("call(0)",)),
    # The result shared the memory of the argument.
    "channels that stay where they are": program("F.channel_shuffle(a, 1)", a="values(12, 1, 4, n, 1)"),
    # Windows were gathered, with the strides of the gathered values.
    "a window of a value": program("(a + 1).as_strided((3,), (2,))", "(a * 2).as_strided((2, 2), (1, 1))", a="values(54, 3, 4)"),
    # The kernels make contiguous memory, torch's shape functions keep the order.
    "contiguous results of permuted arguments": program("F.logsigmoid(a)", "2**a", "torch.isin(a, 1)", a="values(44, n, 4).mT"),
    # ONNX's Split cannot halve what has no elements; that showed in each run only.
    "a gate of nothing": program("F.glu(a * 0, 0)", a="values(90, 0, 4)"),
    # The kernel concatenates two pieces, which keeps channels-last memory unless one is empty.
    "channels-last memory that is rolled": program(
        "a.roll(-1, -2)",
        "a.roll((1, 0), (1, 2))",
        "a.roll(2, 0)",
        "a.roll((1, 1), (0, 1))",
        a="values(27, 2, 3, n, 2).contiguous(memory_format=torch.channels_last)",
    ),
    # What was written over all of a tensor took the place of the result, with its memory, dtype and strides.
    "a write over all of a tensor": program(
        "b",
        "b.slice_scatter(b, 0, 0)",
        "b.slice_scatter(c, 0, 0)",
        "b.slice_scatter(t0, 0, 0)",
        a="values(88, 4, n)",
        body=("b = a * 2", "c = (a + 1).to(torch.int32)", "t0 = (a + 1).t().contiguous().t()"),
    ),
    # Known of bfloat16 alone.
    "sums of float16 at indices": program("a.index_add(-1, torch.tensor([0, 1]), a)", a="values(40, 2 * n, 2, dtype=torch.float16)"),
    # torch's decomposition promotes as if a tensor without dimensions were a row.
    "a number among the blocks of a matrix": program(
        "torch.block_diag(b, a)",
        "torch.block_diag(a)",
        "torch.block_diag(c, a, b)",
        "torch.block_diag(c, a)",
        "torch.block_diag(c)",
        a="values(10, dtype=torch.float64)",
        b="values(49, n)",
        c="values(3, 2, dtype=torch.int64)",
    ),
    # ONNX Runtime's DivMulFusion makes z / y of (1 / y) * z, also of integers; it showed where the dividend is a frozen 1.
    "the remainder of one": program(
        "torch.fmod(self.b, self.b.abs() + 1)",
        "torch.div(1, a.abs() + 2, rounding_mode='trunc') * a",
        a="values(4, n, dtype=torch.int64)",
        state=("self.register_buffer('b', torch.tensor(1))",),
    ),
    # Powers convert their operands, which torch's table of promotions lacks: sessions were refused, or failed in each run.
    "powers of other dtypes": strict(
        "a ** 0",
        "a ** 3",
        "a ** 0.5",
        "a ** b",
        "2.5 ** a",
        "b ** 0.5",
        "b ** a.float()",
        "2.5 ** b",
        "c.abs() ** b.float()",
        a="values(0, n, dtype=torch.bool)",
        b="values(27, n, dtype=torch.int32).abs() + 1",
        c="values(9, n).half()",
    ),
    # ONNX Runtime compares no booleans.
    "steps and signs of booleans": strict(
        "torch.heaviside(a, b)",
        "torch.signbit(a)",
        a="values(97, 4, dtype=torch.bool)",
        b="values(3, 4, dtype=torch.bool)",
    ),
    # torch's decomposition makes a pool that refuses a tensor without channels.
    "an adaptive pool of no channels": program("F.adaptive_avg_pool2d(a, 2)", a="values(66, 1, 0, 2, 2, dtype=torch.float64)"),
    # The shape function is torch's decomposition, which returns a permuted view; the kernel makes contiguous memory.
    "windows of a column": program(
        "F.unfold(a.reshape(1, 1, 4, -1), (1, 2), padding=1, stride=2)", "F.unfold(a.reshape(1, 1, 4, 1), 2, padding=1)", a="values(35, 4)"
    ),
    # A write through a view makes `_unsafe_view` of the value for each result, whose schema says nothing of shared memory.
    "parts of complex numbers that were written to": program(
        "b",
        "c",
        a="values(60, n, 4).mT",
        body=("b = torch.view_as_complex(a.reshape(-1, 2).contiguous()).imag", "c = b[0:]", "c.add_(1)"),
        steps=("call(3)", "outs[0].zero_()"),
    ),
    # ScatterND of nothing is refused once ONNX Runtime has moved the transposition of its updates; that showed in each run only.
    "a write into nothing": program(
        "a * 2",
        a="values(42, n, 1)",
        body=("b = torch.argmax(a, 1, keepdim=True)", "c, t0 = a.split([1, a.shape[1] - 1], 1)", "t0.copy_(b)"),
    ),
    # ONNX Runtime's InstanceNormalization reads the first of no elements; where another operator computed them, the process ended.
    "groups of nothing": program("F.group_norm(b.reshape(1, -1, 2, 2), 1)", a="values(7, 0, n)", body=("b = a.trunc()",)),
    # PyTorch does not look at indices where there is nothing to write; that showed in each run only.
    "nothing to write at an index": program("(a * 2).index_put((torch.tensor([1, 0]),), a)", a="values(72, 1, n, 0, 2)"),
    # The kernel returns what it is given, in another shape than the shape function says, and ONNX's function fails: seen in runs only.
    "pixels of nothing": program(
        "F.pixel_unshuffle(b, 2)",
        "F.pixel_unshuffle(c, 1)",
        "F.pixel_unshuffle(c.reshape(0, 4, 2, 2), 2)",
        a="values(44, 1, 0, 2, 2)",
        c="values(33, 2, 4, 0, 2)",
        body=("b = a + 1",),
    ),
    # ONNX Runtime has no kernel for it, which is no error.
    "means of float64 windows": strict("F.avg_pool2d(a, 2)", "torch.cosh(a)", a="values(13, 1, 2, n, 4, dtype=torch.float64)"),
    # The shape function looks at the tensor alone, the kernel's iterator at the indices as well.
    "values at permuted indices": program(
        "a[:, torch.tensor([0, 1, 0]), torch.tensor([0])]",
        "c[b, torch.tensor([0])]",
        "c[:, b]",
        "torch.take(c, b)",
        a="values(18, 2, n, 3).unfold(0, 2, 1)",
        b="values(3, n, 4).t().abs().long()",
        c="values(4, 3, n).mT",
        steps=("call(4)",),
    ),
    # The end of a slice was taken for a number that float16 does not hold: it was computed in float32, in other strides.
    "a slice of float16": program("b[:, :, :, -2::3]", a="values(37, 2, 3, n, 2).half()", body=("b = a.clone()",)),
    # It wraps; the number in a tensor of that dtype raised.
    "a number beyond a byte": program("torch.rsub(a, 2**20)", "300 - a", "a + 300", a="values(96, n, dtype=torch.uint8)"),
    # Sums convert the number to float16 first; products do not.
    "numbers beyond float16": program(
        "1e5 - a", "a - 1e5", "a + 1e5", "a * 1e5", "a < 1e5", "a.clamp(max=torch.inf)", a="values(96, n).half() * 2e4"
    ),
    # Chunks of no elements: the process ended when ONNX Runtime read the model.
    "a split of nothing": program("b.split(0, 0)[-1] + 1", "b.chunk(3)[0].sum()", a="values(5, 0, 4)", body=("b = a * 2",)),
    # The first window had become a gather, whose result has a storage of its own.
    "a window of a window": program(
        "self.b.as_strided((), ()).as_strided((2, 1), (1, 2)) + a",
        a="values(5, n)",
        state=("self.register_buffer('b', values(16, 9)[5:])",),
    ),
    # The ONNX function's mean of nothing is 0.
    "squared differences of nothing": program("F.mse_loss(a, a + 1)", a="values(34, 0, n)"),
    # Its result lies as a copy of the query does, not as the query.
    "attention of an expanded query": program(
        "F.scaled_dot_product_attention(a, a, a)", a="values(24, n)[None].expand(3, -1, -1)[..., None]"
    ),
    # torch's decomposition keeps the strides of dense memory only.
    "filled rows of a part": program(
        "a.split([1, a.shape[0] - 1], 0)[1].index_fill(0, torch.tensor([0, -1]), 1)", a="values(40, 4, n).t()"
    ),
    # A write through a view copies the whole storage of an input; the window was read from ONNX Runtime's copy, which begins at 0.
    "a window of an input with an offset that was written to": program(
        "torch.view_as_real(torch.complex(b, b))",
        a="values(45, n)[1:]",
        body=("b = a.as_strided((2, 2), (2, 1), 1)", "a.select(0, 2).mul_(2)"),
        steps=("call(8)", "moved(8)"),
    ),
    # ONNX Runtime's MaxPool begins with the lowest finite number.
    "the largest of minus infinities": program(
        "F.max_pool1d(b[0], 2)",
        "F.max_pool2d(b, 2)",
        "F.max_pool3d(b, (1, 2, 2), return_indices=True)[1]",
        a="values(5, 1, 2, 4, n)",
        body=("b = torch.where(a > 2, a, -torch.inf)",),
    ),
    # The parts kept their dtypes; that showed in each run only.
    "parts of several dtypes in a stack": strict(
        "torch.stack([a, b])",
        "torch.stack([b.bool(), b, a.half()], 1)",
        a="values(7, n)",
        b="values(8, n, dtype=torch.int64)",
    ),
    # ONNX Runtime moves the neighbours of a place to the border, and weighs an infinite one with 0.
    "infinity at the border of an image": program(
        "F.grid_sample(b, c, align_corners=True, padding_mode='border')",
        "F.grid_sample(b, c * 2, padding_mode='reflection')",
        a="values(58, 4)",
        body=("b = torch.where(a > -1, a, torch.inf).reshape(1, 2, -1, 2)", "c = torch.linspace(-1, 1, 12).reshape(1, 2, 3, 2)"),
    ),
    # ONNX Runtime refuses to convolve no channels in each run.
    "a convolution of no channels": program(
        "F.conv1d(a, a.t()[..., None])",
        "F.grid_sample(b, b.movedim(1, -1))",
        a="values(87, 0, n)",
        b="values(3, 0, 2, 4, 4)",
        steps=("call(3)",),
    ),
    # PyTorch's decomposition of programs puts the source in the place of a copy: the result was of int32, contiguous, or the source.
    "a parameter that another tensor is copied into": program(
        "self.w",
        "self.b",
        "self.w.t()",
        "self.w // 2",
        a="values(35, n)",
        state=("self.register_buffer('b', values(11, 4, 4, dtype=torch.int32))", "self.w = nn.Parameter(values(76, 4, 4).t())"),
        body=("self.w.copy_(self.b)",),
        steps=("call(8)", "outs[1].add_(1)"),
        road="exported",
    ),
    # ONNX Runtime looks for a zero before it knows that nothing is divided by it.
    "nothing divided by zero": program(
        *("torch.remainder(a, i)", "torch.fmod(a, i)", "a // i", "torch.div(a, i, rounding_mode='trunc')", "a + i"),
        a="values(7, 0, dtype=torch.int64)",
        i="places(4, 1) * 0",
        steps=("call(3)",),
    ),
    # NumPy says 0 for an integer divided by 0, with no more than a warning.
    "a constant divided by zero": program(
        "torch.full((3,), 5) // torch.tensor([1, 0, 2])", "a", a="values(7, n)", steps=("given(4, a='spoilt(a, 3)')",)
    ),
    # What programs traced once do as the program does, never found wrong: attention, state, odd memory.
    "attention of an exported program, masked by rows": _exported(
        "F.scaled_dot_product_attention(a, b, b, attn_mask=torch.tensor([[True, False, True], [False] * 3, [True] * 3, [False] * 3]))",
        "F.scaled_dot_product_attention(a, a, a[..., :3])",
        "F.scaled_dot_product_attention(c, c, c).transpose(1, 2).view(1, 4, 16)",
        a="values(41, 1, 2, 4, 8)",
        b="values(42, 1, 2, 3, 8)",
        c="values(43, 1, 4, 16).unflatten(-1, (2, -1)).transpose(1, 2)",
    ),
    "attention of any batch, of an exported program": _exported(
        "F.scaled_dot_product_attention(b, b, b).transpose(1, 2).view(a.shape)",
        "F.linear(a, self.w)",
        a="values(43, n, 3, 8)",
        body=("b = a.unflatten(-1, (2, -1)).transpose(1, 2)",),
        state=("self.w = nn.Parameter(values(9, 3, 8))",),
        steps=("call(2)", "call(5)", "call(64)"),
        dynamic=True,
    ),
    "numbers and nothing, of an exported program": _exported(
        "torch.where(b, a, -a)",
        "c * a",
        "c.sum(0) + i",
        "i // 2",
        "torch.ones(2) + torch.tensor(2.0)",
        "F.dropout(k, 0.5)",
        "k",
        "None",
        "'a'",
        "[k, k]",
        a="torch.tensor(2.5)",
        b="torch.tensor(True)",
        c="torch.empty(0, 3)",
        i="torch.tensor(7)",
        k="values(3, n)",
    ),
    "writes to arguments and a parameter, of an exported program": _exported(
        "a",
        "b.sum()",
        "a * 2",
        "k * self.w",
        a="values(5, n)",
        b="values(6, n)",
        k="values(8, 3)",
        state=("self.w = nn.Parameter(values(7, 3))",),
        body=("a.add_(b)", "b[1:].mul_(2)", "with torch.no_grad(): self.w.mul_(0.5)"),
        steps=("call(4)", "other(4)", "again()"),
    ),
    "a graph within the graph, of an exported program": _exported(
        "cond(a.sum() > 0, lambda x: (x @ self.w).sin(), lambda x: x.cos(), (a,)) + t0",
        a="values(5, n, 3).abs()",
        state=("self.w = nn.Parameter(values(7, 3, 3))",),
        body=("with torch.no_grad(): t0 = (a @ self.w).sin()",),
        steps=("call(2)", "given(2, a='-a')"),
    ),
    "sizes that depend on each other, of an exported program": _exported(
        "torch.cat([a, b]).reshape(a.shape[0] * 2, -1) + a.shape[1]",
        "a.shape[0] + 1",
        a="values(5, n, n + 1)",
        b="values(6, n, n + 1)",
        steps=("call(3)", "call(7)", "call(2)"),
        dynamic=True,
    ),
    "state of a frozen callable": _frozen(
        "a + self.b * self.g",
        "t0",
        a="values(4, 4, 8)",
        state=(
            "self.register_buffer('b', torch.zeros(8))",
            "self.c = nn.Buffer(torch.tensor(0), persistent=False)",
            "self.g = nn.Buffer(torch.ones(8))",
        ),
        body=("t0 = self.b.clone()", "self.b.mul_(0.9).add_(a.mean(0))", "self.c += 1"),
        steps=("call(4)", "other(4)", "state('b').zero_()", "call(4)"),
    ),
    # It is written in place, where a smaller one is copied.
    "a large state of a frozen callable": _frozen(
        "self.b.sum(0)",
        "self.b.sum(1)[:2]",
        a="values(4, 1, 8)",
        state=("self.register_buffer('b', torch.zeros(512, 1024))",),
        body=("self.b.index_copy_(0, a[:, 0].ne(0).long(), a.repeat(1, 128))",),
        steps=("call(4)", "other(4)", "state('b').zero_()", "call(4)"),
    ),
    "arguments of a frozen callable that lie otherwise": _frozen(
        "F.layer_norm(F.gelu(a @ self.w), (4,))",
        "a.shape[0] * 2",
        "torch.zeros(a.shape[0], 3) + a.sum()",
        a="values(5, n, 4)",
        state=("self.w = nn.Parameter(values(7, 4, 4))",),
        steps=(
            "call(3)",
            "ins[0].zero_()",
            "again()",
            "outs[0].fill_(1)",
            "given(3, a='relaid(a, \"permuted\")')",
            "given(3, a='relaid(a, \"expanded\")')",
            "given(3, a='relaid(a, \"gaps\")')",
            "given(3, a='relaid(a, \"negative\")')",
            "call(64)",
            "call(2)",
            "call(7)",
        ),
        dynamic=True,
    ),
    "nothing, numbers and rows out of range, of a frozen callable": _frozen(
        "F.embedding(i, self.w)",
        "torch.cat([a, a + b])",
        "a.sum() + b",
        "b * 2",
        "torch.arange(3) + 1",
        a="values(5, 0, 2)",
        b="values(6)",
        i="places(4, n, 2)",
        state=("self.w = nn.Parameter(values(7, 3000, 3))",),
        steps=("call(3)", "given(3, i='spoilt(i, 3000)')", "given(3, i='spoilt(i, 2999)')", "call(3)"),
    ),
    "PyTorch between the partitions of a frozen callable": _frozen(
        "(b * k.sum()).sum(0)",
        "torch.linalg.det(b + k[:4]).exp()",
        a="values(5, 4, 4)",
        body=("b = (a @ a).softmax(-1)", "k = torch.linalg.svdvals(b)"),
        steps=("call(4)", "other(4)"),
    ),
    # ONNX Runtime's fused normalisations have an epsilon of their own, and nothing over the root of nothing would be NaN.
    "an epsilon that is no constant, and one that is small": program(
        "a / torch.sqrt(a.pow(2).mean(-1, keepdim=True) + b) * 2",
        "c / torch.sqrt(c.pow(2).mean(-1, keepdim=True) + b) * torch.arange(16.0) + 1",
        "k * torch.rsqrt(k.pow(2).mean(-1, keepdim=True) + 1e-8)",
        a="values(5, 3, 16) * 1e-3",
        b="torch.tensor(1e-2)",
        k="torch.tensor([[0.0], [1e-4]]).expand(2, 4).contiguous()",
        body=("c = a - a.mean(-1, keepdim=True)",),
    ),
    # A number that changes is asked for as a constant, by an exception that is a request to trace once more, and no failure.
    "numbers that Dynamo tries to keep symbolic": program(
        "F.interpolate(a[None, None], scale_factor=b)",
        "a.clamp(max=b)",
        a="values(5, n)",
        b="2.0",
        steps=("call(7)", "given(7, b='2.5')", "given(7, b='0.5')"),
        dynamic=True,
    ),
    # Rules of onnxscript took one bound for both, and looked at products without the rows that they multiply.
    "bounds within bounds": program(
        "a.clamp(0, 1).clamp(2, 3)",
        "torch.relu(a.clamp(-3, -1))",
        "torch.minimum(torch.maximum(a, torch.full((1, 1), -1.0)), torch.full((1, 1), 1.0))",
        "(b.reshape(6, 2) @ c.reshape(2, 10)).reshape(4, 3, 5)",
        a="values(4, n)",
        b="values(5, 4, 3, 1)",
        c="values(6, 4, 1, 5)",
    ),
    # Zeros of both signs were one constant, and a zero was added to none.
    "zeros of both signs": program(
        "a / 0.0", "a / -0.0", "1 / (a * 0.0)", "1 / (a * -0.0)", "1 / (b + 0.0)", a="values(3, n) + 9", b="values(4, n) * 0.0"
    ),
    "orders of one number": strict("a.flip(0)", "a.flip(-1)", "F.pad(a, ())", a="values(8)"),
}

GRAPH_FINDS = {
    # The strides are twice a product of terms; neither the product nor its factors were found in the sizes.
    "every second number, of a size that is a product": program(
        "torch.complex(b, b).conj().imag",
        a="values(36, n)",
        state=("self.w = nn.Parameter(values(52, 4), requires_grad=False)",),
        body=("b = F.pixel_unshuffle(self.w.reshape(1, -1, 2, 2), 2)",),
        dynamic=True,
    ),
    # The offset of a part that ONNX Runtime computes is 0, in fresh memory.
    "a window at the offset of a part": program(
        "b.as_strided(b.shape, b.stride(), b.storage_offset())", "b * 2", a="values(56, 4)", body=("b = a.chunk(2, 0)[1]",), dynamic=True
    ),
    # Of sizes not known as numbers one was 0, so that the whole counted as unknown, and the least of no elements was gathered.
    "the median of nothing": program(
        "self.b.nanmedian()", a="values(38, n)", state=("self.register_buffer('b', values(80, 0, 4, dtype=torch.float64))",), dynamic=True
    ),
    # ONNX takes an index into a tensor without dimensions for one into all its numbers, and finds the last where PyTorch raises.
    "an index into a number": program(
        "torch.gather(self.b, 0, i)",
        i="places(91, n)",
        state=("self.register_buffer('b', torch.tensor(0))",),
        steps=('given(3, i="spoilt(i, 2)")',),
    ),
    # Numbers of sizes may be 0: PyTorch then copies, and keeps the order of the strides.
    "a padding of nothing": program(
        "F.pad(b, (i.shape[-1] % 3, -(c.shape[1] % 2)))",
        b="values(73, n, 4).unfold(0, 2, 1)",
        c="values(1, n, 4)",
        i="places(41, 3)",
        dynamic=True,
    ),
    # PyTorch takes no complex numbers, of which it compares none; the decomposition compared them.
    "buckets of no complex numbers": program(
        "torch.bucketize(a, torch.tensor([-1.0, 0.0, 0.5]), right=True)", a="values(82, 0, n, dtype=torch.complex64)"
    ),
}
"""Those that show only where the graph is compiled alone: Dynamo or AOTAutograd hides them."""
