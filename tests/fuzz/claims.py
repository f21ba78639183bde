"""Programs whose answers, gradients, memory and state are PyTorch's in every respect: what the backend claims, subject by subject."""

from functools import partial

from tests.fuzz.program import program, strict

_FILL = "[out.fill_(place + 7) for place, out in enumerate(outs)]"
"""The caller writes into each output, which reaches what it shares memory with."""
_WHOLE = "outs.extend([out.as_strided((out.untyped_storage().nbytes() // out.itemsize,), (1,), 0) for out in outs[:]])"
"""The memory that each output lies in is compared as well, with its place in it."""
_DIRTY = ("torch.full((4, 8), 7.0)", "torch.full((24,), 7.0)", "call(5)") * 3
"""Memory that is not zero is free before each call."""
_trained = partial(program, steps=("call(4)", "backward()") * 2, trains=True)
_SIZES = ("call(4)", "call(5)", "call(7)", "call(12)", "call(13)")

VIEWS = {
    "views of an argument under changing sizes": program(
        "*a.chunk(2, -1)",
        "a.unflatten(1, (2, -1)).transpose(1, 2)[:, 1:]",
        "a.diagonal()",
        "a.select(1, a.shape[1] - 1)",
        "a[1:]",
        a="values(30, 3, n)",
        steps=("call(8)", _FILL, "call(10)", _FILL, "call(12)", _FILL),
    ),
    "views of results under changing sizes": program(
        *("b", "b[:, 1 : a.shape[1] - 1]", "b.t()", "a.mm(a.t()).t()", "c.t()[1:]", "(c * 2).sum()", "torch.cos(c)"),
        a="values(31, 3, n)",
        body=("b = torch.relu(a)", "c = torch.sin(a)[:, a.shape[1] // 2 :]"),
        steps=("call(8)", _FILL, "call(10)", _FILL, "call(12)", _FILL),
    ),
    "views under changing sizes, in training": program(
        *("*a.chunk(2, -1)", "b", "b[:, 1 : a.shape[1] - 1]", "b.t()", "c.t()[1:]", "(c * 2).sum()"),
        *("a.unflatten(1, (2, -1)).transpose(1, 2)[:, 1:]", "a.diagonal()", "a.expand(4, *a.shape)[:, :, 2:]", "a.unfold(1, 4, 2)"),
        *("a.mm(a.t()).t()", "a.select(1, a.shape[1] - 1)"),
        a="leaf(values(30, 3, n))",
        body=("b = torch.relu(a)", "c = torch.sin(a)[:, a.shape[1] // 2 :]"),
        steps=("call(8)", "backward()", "call(10)", "backward()", "call(12)", "backward()"),
        trains=True,
    ),
    "expanded and unfolded under changing sizes": program(
        "a.expand(4, *a.shape)[:, :, 2:]", "a.unfold(1, 4, 2)", a="values(30, 3, n)", steps=("call(8)", "call(10)", "call(12)")
    ),
    "pieces of values made here": program(
        "*torch.full((4,), 7).chunk(2, 0)", "*(a * 2).split([1, 2], 1)", "*torch.sin(a).unbind(1)", a="values(89, 4, 3)", dynamic=False
    ),
    **{
        f"parts lie in the memory of their values, {way}": program(
            "(a > 0)[..., :3]",
            "(a * 2).t()[1:3]",
            "(a * 2).diagonal()",
            a=("leaf({})" if way == "training" else "{}").format("values(40, n, 8)"),
            steps=("call(5)", _WHOLE),
            trains=way == "training",
            dynamic=way == "dynamic",
            road="frozen" if way == "frozen" else "compile",
        )
        for way in ("training", "dynamic", "frozen")
    },
    **{
        f"windows that are written to, {dynamic=}": program(
            "torch.slice_scatter(a[:, ::2], a[:1, ::2] * 2, 0, 0, 1)",
            "torch.as_strided_scatter(a[..., 1], a[0, :2], (2,), (1,)).view(5, 1)",
            "torch.as_strided_scatter(a[..., 1], a[0, :2], (2,), (1,)).broadcast_to(3, 5)",
            a="values(40, n, 8)",
            steps=("call(5)", _WHOLE),
            dynamic=dynamic,
        )
        for dynamic in (False, True)
    },
    "between the elements of a value that crosses a break": program(
        "b.as_strided((2, 2), (2, 1), 0)",
        a="values(41, 4, 8)",
        body=("b = (a > 9)[..., :3]", "torch._dynamo.graph_break()"),
        steps=("torch.full((4, 8), True)", "call(5)") * 6,
    ),
    # Their operators return views of their argument, though their schemas do not say so.
    **{
        f"views that no schema declares, {dynamic=}": program(
            "*torch.unsafe_chunk(a + 1, 2)",
            "torch.ops.aten._unsafe_view(b[1:3], [4])",
            "torch.unsafe_chunk(c, 2)[1].as_strided((2,), (1,), 0)",
            "torch.ops.aten._unsafe_view((a + 1)[1:3], [4]).as_strided((2,), (1,), 0)",
            a="values(42, 4, 2)",
            b="values(43, 4, 2)",
            c="values(44, 4, 2)",
            steps=("call(5)", _FILL),
            dynamic=dynamic,
        )
        for dynamic in (False, True)
    },
    "views of inputs with an offset that were written to": program(
        *("a[:, 1 : a.shape[1] - 1]", "t0", "c.view(-1)[2:].view(2, -1)"),
        **dict.fromkeys("abc", "torch.arange(6.0 * n).reshape(6, n)[2:]"),
        body=("a.add_(1)", "t0 = b.view_as(b)", "b.view(-1)[-1] = 7", "c.view(-1)[1:] += 1"),
        steps=("call(4)", "call(6)"),
        dynamic=True,
    ),
    # Without `flatten`, which returns its two-dimensional argument itself, Dynamo leaves the change to Python. With varying sizes, or where
    # the number of dimensions changes, its guards fail at once, whatever the backend.
    **{
        f"inputs with an offset whose strides change stay where they are, {trains=}": program(
            *("a.flatten(1).transpose_(0, 1)", "b.flatten(1).t_() @ k", "c.flatten(1).transpose_(0, 1)[1:]", "k * 2"),
            *("i[1:] * 2", "i.flatten(1).swapaxes_(0, 1)", "k"),
            **dict.fromkeys("abci", "torch.arange(200.0).reshape(10, 20)[2:6, 3:7]"),
            k=("leaf({})" if trains else "{}").format("values(45, 4, 4)"),
            trains=trains,
            dynamic=False,
        )
        for trains in (False, True)
    },
    "a buffer with an offset that is transposed in place stays where it is": program(
        "t0 + a",
        a="values(46, 4, 4)",
        state=("self.register_buffer('b', torch.arange(24.0).reshape(6, 4)[1:5])",),
        body=("t0 = self.b.flatten(1)", "t0.transpose_(0, -1)"),
    ),
    "results of later calls are memory of their own": program(
        *("a * 2", "a.t() + 1", "a.sum(0)"),
        a="values(47, n, 8)",
        steps=(*(text for n in (3, 4, 5, 3) for text in (f"call({n})", "ins[0].zero_()")), _FILL, "call(3)"),
    ),
    "results of later calls are memory of their own, preallocated": program(
        *("a * 2", "a.t() + 1", "a.sum(0)"),
        a="values(47, n, 8)",
        steps=(*(text for n in (3, 4, 5, 3) for text in (f"call({n})", "ins[0].zero_()")), _FILL, "call(3)"),
        options={"preallocate_output": True},
    ),
    "writes to results that are constants do not reach the model": program(
        *("a @ self.w", "self.w * 1", "self.w * 2 + 1", "self.w + 0"),
        a="values(48, 3, 64)",
        state=("self.w = nn.Parameter(torch.ones(64, 64))",),
        steps=("call(3)", "[out.mul_(5) for out in outs]") * 3,
    ),
}

_ODD = tuple(
    f'given(4, a="{text}")'
    for text in (
        "relaid(values(50, 4, 6), 'negative')",
        "relaid(values(50, 6, 4), 'negative').t()",
        "torch._efficientzerotensor(4, 6)",
        "values(50, 1, 6).expand(4, 6)",
        "torch.tensor(-0.5).expand(4, 6)",
        "torch.arange(-5.0, 11.0).as_strided((4, 6), (3, 1))",
    )
)
ODD_TENSORS = {
    **{
        f"arguments that are not what their memory holds, {road}": strict(
            "a.relu() + 1", a="values(50, 4, 6)", steps=("call(4)", *_ODD, "call(4)"), road=road
        )
        for road in ("compile", "exported")
    },
    "gradients that are not what their memory holds": program(
        "(a.relu() * 2).sin()",
        a="leaf(values(50, 4, 6))",
        steps=tuple(text for odd in _ODD for text in ("call(4)", f"outs[0].backward({odd[12:-2]})")),
        trains=True,
    ),
    **{
        f"negative views as weights, {freeze=}": program(
            "(a * self.w).exp() + self.b",
            a="values(50, 4, 6)",
            state=(
                "self.w = nn.Parameter(relaid(values(50, 4, 6), 'negative'), requires_grad=False)",
                "self.register_buffer('b', relaid(values(51, 4, 6), 'negative'))",
            ),
            options={"freeze_weights": freeze, "on_error": "raise"},
        )
        for freeze in ("auto", False)
    },
    "negative views inside a graph": program(
        "torch.relu(torch.fft.rfft(a).conj().imag)",
        *("torch._neg_view(a).relu() + 1", "torch._neg_view(a * 2).exp() + torch._neg_view(a).relu()", "torch._neg_view(a * 2)"),
        a="values(52, n, 6)",
        steps=("call(4)", "call(3)", "call(2)"),
    ),
    "transposed products of nothing": program(
        *("a.mT @ b * 0.5", "a.mT @ c * 0.5", "i.mT @ k * 0.5"),
        a="torch.ones(3, 0, 2)",
        b="torch.ones(0, 4)",
        c="torch.ones(3, 0, 4)",
        i="torch.ones(0, 2)",
        k="torch.ones(2, 3, 0, 4)",
        steps=_DIRTY,
    ),
    "other transposed products of nothing": program(
        *("a.mT @ b * 0.5", "c.mT @ b * 0.5"), a="torch.ones(0, 2, 3)", b="torch.ones(2, 1)", c="torch.ones(2, 0, 2, 3)", steps=_DIRTY
    ),
}

_MODEL = "self.w = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 3)).eval()"
_CHANGES = (
    "self.w[0].weight.add_(1)",
    "self.w[0].weight[1:3].mul_(-2)",
    "self.w[0].weight.data = values(61, 5, 6)",
    "self.w.load_state_dict({name: value * 2 + 1 for name, value in self.w.state_dict().items()})",
    "self.w.load_state_dict({name: value * 2 + 1 for name, value in self.w.state_dict().items()}, assign=True)",
    "self.w[0].weight = nn.Parameter(values(62, 5, 6))",
    "self.w[3] = nn.Linear(5, 3, bias=False).requires_grad_(False); self.w[3].weight.copy_(values(59, 3, 5))",
    "self.w[2].running_mean.add_(0.5)",
    "self.w[2].running_var = values(63, 5).abs() + 0.5",
    "self.w[0].weight = nn.Parameter(values(64, 6, 5).t())",
)
WEIGHTS = {
    # At most two: weights that change more often are no longer constants.
    **{
        f"changed weights are seen by the very next call, {first} and {second}, {freeze=}": program(
            "self.w(a)",
            a="values(60, 4, 6)",
            state=("torch.manual_seed(0)", _MODEL),
            steps=("call(4)", first, "call(4)", "call(4)", second, "call(4)", "call(4)"),
            options={"freeze_weights": freeze, "on_error": "raise"},
        )
        for first, second, freeze in (
            *((*pair, "auto") for pair in zip(_CHANGES[::2], _CHANGES[1::2], strict=True)),
            *((_CHANGES[2], _CHANGES[0], way) for way in (True, False)),
        )
    },
    "weights of other dtypes, and one of no elements": strict(
        "torch.where(self.b, a * self.c, a + self.w) + self.g.sum()",
        a="values(65, 2, 3)",
        state=(
            "self.register_buffer('b', torch.tensor([True, False, True]))",
            "self.register_buffer('c', torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64))",
            "self.register_buffer('w', torch.tensor([1.0, 2.0, 3.0]).half())",
            "self.register_buffer('g', torch.empty(0))",
        ),
        steps=("call(2)", "self.b.logical_not_()", "call(2)"),
    ),
    # ONNX Runtime rearranges weights, in torch's memory where it shares them.
    **{
        f"products of rearranged weights, {prepack=}": program(
            "torch.relu(a.t() + self.w).t()",
            "torch.relu(torch.where(a.t() > 0, a.t(), self.w)).t()",
            "torch.cat([a.t(), self.w]).t()",
            "torch.relu(a.t() + self.w).t() @ self.w",
            "(a.t() @ self.w).t() + self.w.t()",
            "torch.relu((a.t() @ self.w).t())",
            "torch.relu((self.w @ a.t()).t())",
            "F.linear(a.t(), self.w, self.w[0]).t()",
            "(a.reshape(2, 8, 16) @ self.w).transpose(1, 2) @ self.w[:8]",
            a="values(66, 16, 16)",
            state=("self.w = nn.Parameter(values(67, 16, 16))",),
            steps=("call(4)", "again()"),
            options={"prepack_weights": prepack, "on_error": "raise"},
        )
        for prepack in (True, False)
    },
    "shared weights that are written to": program(
        "F.linear(torch.relu(F.linear(a, self.c)), self.w)",
        a="values(68, 3, 512)",
        state=("self.w = nn.Parameter(values(69, 512, 512))", "self.c = nn.Parameter(values(70, 512, 512))"),
        steps=(
            *("call(4)", "self.w.numpy()[7, 11:13] += 100", "call(4)", "self.w.data.mul_(0.5)", "call(4)"),  # which torch does not count
            *("self.w.data = values(71, 512, 512)", "call(4)", "self.w.zero_()", "call(4)"),
        ),
        options={"prepack_weights": False, "on_error": "raise"},
    ),
}

TRAINING = {
    **{
        f"products of a matrix and a vector, and their gradients, {dynamic=}": program(
            *("a @ b", "c.t() @ b", "b @ c", "torch.mv(k[0, :5].t(), b)", "torch.addmv(a[:, 0], c.t(), b, beta=0.5, alpha=2)"),
            *("torch.addr(c, b, a[:, 0])", "i @ k", "k.mT @ i"),
            a="leaf(values(80, 7, 5))",
            b="leaf(values(81, 5))",
            c="leaf(values(82, 5, 7))",
            i="leaf(values(83, 10))",
            k="leaf(values(84, 5, 10, 5))",
            steps=("call(4)", "backward()"),
            trains=True,
            dynamic=dynamic,
        )
        for dynamic in (False, True)
    },
    # Gradients add up over calls.
    "layers": _trained(
        "self.w(a)",
        a="leaf(values(85, 4, 6))",
        state=("torch.manual_seed(0)", "self.w = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))"),
    ),
    "a convolution with batch normalisation": _trained(
        "self.w(a)",
        a="leaf(values(86, 2, 3, 8, 8))",
        state=(
            "torch.manual_seed(0)",
            "self.w = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))",
        ),
    ),
    "attention": _trained(
        "F.scaled_dot_product_attention(b, c, t0, is_causal=True)",
        "F.scaled_dot_product_attention(b, c, t0, attn_mask=self.b)",
        "F.scaled_dot_product_attention(b, c[:, :1], t0[:, :1], is_causal=True, enable_gqa=True)",
        a="leaf(values(87, 2, 6, 16))",
        state=(
            "torch.manual_seed(0)",
            "self.w = nn.Linear(16, 48)",
            "self.register_buffer('b', torch.ones(6, 6, dtype=torch.bool))",
            "self.b[:, 4:] = False",
            "self.b[2] = False",  # a row with nothing to look at
        ),
        body=("b, c, t0 = (part.view(2, 6, 4, 4).transpose(1, 2) for part in self.w(a).chunk(3, -1))",),
    ),
    "tied embeddings": _trained(
        "self.w(i).tanh() @ self.w.weight.t()",
        i="torch.tensor([[1, 2, 3], [3, 3, 10]])",
        state=("torch.manual_seed(0)", "self.w = nn.Embedding(11, 8)"),
    ),
}

OTHERS = {
    "random numbers": program(
        "a.clone().exponential_() + 1",
        "a.clone().uniform_().uniform_(-1, 3) + 1",
        "a.clone().normal_().uniform_().normal_().exponential_().uniform_().bernoulli_(0.3).uniform_() + 1",
        "F.gumbel_softmax(a)",
        a="values(90, 4, 4)",
    ),
    "what torch's table decomposes otherwise": program(
        *("b", "a.cumprod(0) + 1", "torch.addmv(a[0] * torch.nan, a, a[1], beta=0)"),
        a="values(91, 4, 4)",
        body=("b = a @ a.T", "b.diagonal().add_(0.1)", "b.diagonal(1).zero_()"),
    ),
    "numbers of sizes, in training": program(
        "a[: -(-a.shape[0] // 2)] * 2",
        "F.pad(a, (a.shape[0] // -3, -(a.shape[0] // 4))) * 2",
        a="leaf(torch.arange(1.0, n + 1))",
        steps=tuple(text for call in _SIZES[:3] for text in (call, "backward()")),
        trains=True,
    ),
    **{
        f"numbers of sizes, {road}": program(
            "a[: -(-a.shape[0] // 2)] * 2",
            "F.pad(a, (a.shape[0] // -3, -(a.shape[0] // 4))) * 2",
            "torch.arange(-a.shape[0] // 2, a.shape[0], 3) * 2",
            a="torch.arange(1.0, n + 1)",
            steps=("call(11)", "call(6)", "call(7)", "call(9)", "call(12)", "call(13)"),
            dynamic=True,
            road=road,
        )
        for road in ("frozen", "loaded")
    },
    "sizes that follow from negative arguments": program(
        "a.new_ones(max(k, 0) + 2) * a",
        a="torch.ones(1)",
        k="3",
        steps=("call(4)", *(f'given(4, k="{k}")' for k in (-3, -1, 5))),
        dynamic=True,
    ),
    "powers of booleans": program("torch.pow(a, False) | a", "torch.pow(a, True) | a", a="torch.tensor([False, True])"),
    **{
        f"{dtype} bounds that cross or are NaN": program(
            *(f"{function}(a, {pair})" for pair in ("math.nan, 2.0", "0.0, math.nan") for function in ("torch.clamp", "F.hardtanh")),
            *("a.clamp(3.0, 1.0)", "a.clamp_min(math.nan)", "a.clamp_max(math.nan)", "torch.logit(a / 4, 0.9)", "torch.logit(a / 4, 0.1)"),
            a=f"torch.tensor([-2.0, 0.0, 1.0, 2.5, 4.0, math.nan]).{dtype}()",
        )
        for dtype in ("float", "half")
    },
    "permuted inputs of every kind": program(
        "torch.relu(a + 1) @ b",
        a="values(92, 3, n, 5).permute(2, 0, 1)",
        b="values(93, 7, n).t()",
        steps=tuple(
            f"{way}({n}{more})"
            for n in (8, 9)
            for way, more in (("call", ""), ("given", ', a="a.contiguous()"'), ("given", ', b="b.contiguous()"'))
        ),
    ),
    "permuted inputs of every kind and size": program(
        "torch.relu(a + 1) @ b",
        "(i @ k).view(2, -1, 4)",
        a="values(92, 3, n, 5).permute(2, 0, 1)",
        b="values(93, 7, n).t()",
        i="values(94, n, 5)",
        k="values(95, 5, 4)",
        steps=tuple(
            f"{way}({n}{more})"
            for n in (8, 10)
            for way, more in (("call", ""), ("given", ', a="a.contiguous()"'), ("given", ', b="b.contiguous()"'))
        ),
        dynamic=True,
    ),
    # What stays in PyTorch promises one layout and may give another.
    "a permuted input that comes contiguous after all": program(
        "(torch.mode(a, dim=0, keepdim=True).values.transpose(0, 1) + a.t()) * 2", a="values(96, 64, 32)"
    ),
    "results of training in another memory order": program(
        "a * 2",
        a="leaf(values(97, 2, 3, 4, 4).contiguous(memory_format=torch.channels_last))",
        steps=("call(4)", "outs[0].add_(1)"),
        trains=True,
    ),
}
CLAIMS = {**VIEWS, **ODD_TENSORS, **WEIGHTS, **TRAINING, **OTHERS}
