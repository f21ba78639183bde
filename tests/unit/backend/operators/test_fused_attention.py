"""PyTorch's fused operators of attention: the numbers of the decompositions, and the shapes of all their outputs.

There is no CUDA here: numbers are those of tensors on the CPU, with the dtype of products on CUDA, and shapes those of fake tensors.
"""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import ortlens
from ortlens import OrtBackendOptions
from ortlens.backend.compiler import GraphCompiler
from ortlens.backend.lowering import passes
from ortlens.backend.operators import attention, registry
from ortlens.backend.runtime import devices
from tests.unit.backend.graphs import traced

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention.default
EFFICIENT = aten._scaled_dot_product_efficient_attention.default
CUDNN = aten._scaled_dot_product_cudnn_attention.default
CPU = aten._scaled_dot_product_flash_attention_for_cpu.default
COMMON = "aten::_scaled_dot_product_"
BACKWARD = {forward: getattr(aten, f"{forward._schema.name.split('::')[1]}_backward").default for forward in (FLASH, EFFICIENT, CUDNN, CPU)}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "product_dtype", lambda query: query.dtype)


def decomposed(target: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = registry.decompositions()[target]
    return found


def as_it_is(target: Any) -> Any:
    return target


def called(target: Any, operands: Sequence[Any], mask: Any = None, *, by: Callable[[Any], Any] = decomposed, **named: Any) -> Any:
    """Call a fused operator, decomposed or as it is."""
    if target is EFFICIENT or target is CUDNN:
        return by(target)(*operands, mask, True, **named)  # noqa: FBT003 - the log-sum-exp, by the schema
    return by(target)(*operands, **({} if mask is None else {"attn_mask": mask}), **named)


def gradients_of(  # noqa: PLR0913 - what the backward reads
    target: Any, grad: Any, operands: Sequence[Any], made: Any, mask: Any = None, *, by: Callable[[Any], Any] = decomposed, **named: Any
) -> Any:
    """Call the backward of a fused operator, as autograd does with what the forward returned."""
    out, logsumexp, *rest = made
    backward, causally = by(BACKWARD[target]), named.pop("is_causal", False)
    if target is EFFICIENT:
        flags = [True, True, True, mask is not None]
        return backward(grad, *operands, mask, out, logsumexp, *rest, 0.0, flags, causally, **named)
    if target is CUDNN:
        return backward(grad, *operands, out, logsumexp, *rest[4:6], mask, *rest[:4], 0.0, causally, **named)
    if target is FLASH:
        return backward(grad, *operands, out, logsumexp, *rest[:4], 0.0, causally, *rest[4:6], **named)
    return backward(grad, *operands, out, logsumexp, 0.0, causally, attn_mask=mask, **named)


def exactly(operands: Sequence[torch.Tensor], mask: torch.Tensor | None, scale: float | None) -> torch.Tensor:
    """Attention written out in float64; a row that sees nothing gives 0."""
    query, key, value = (operand.double() for operand in operands)
    key, value = (shared.repeat_interleave(query.shape[1] // shared.shape[1], 1) for shared in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is None:
        return torch.softmax(scores, -1) @ value
    blind = (mask == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores + torch.where(blind, 0.0, mask), -1)
    return torch.where(blind, 0.0, weights) @ value


def random_mask(*sizes: int) -> torch.Tensor:
    """Leave about a third out, and for the first row everything."""
    mask = torch.randn(sizes).masked_fill(torch.rand(sizes) < 0.3, -torch.inf)
    mask[..., 0, :] = -torch.inf
    return mask


def causal(rows: int, keys: int, before: int = 0) -> torch.Tensor:
    return torch.full((rows, keys), -torch.inf).triu(1 + before)


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, dict[str, Any]]] = {
    # query; heads, rows and features of the key; features of the value; options
    "plain": ((2, 4, 5, 16), (4, 7, 16), 16, {}),
    "mask": ((2, 4, 5, 16), (4, 7, 16), 16, {"mask": (2, 4, 5, 7)}),
    "mask of all heads": ((2, 4, 5, 16), (4, 7, 16), 16, {"mask": (2, 1, 5, 7)}),
    "mask of all": ((2, 4, 5, 16), (4, 7, 16), 16, {"mask": (5, 7)}),
    "expanded mask": ((2, 4, 5, 16), (4, 7, 16), 16, {"mask": (2, 1, 5, 7), "expanded": True}),
    "causal": ((2, 4, 6, 16), (4, 6, 16), 16, {"is_causal": True}),
    "causal, more keys": ((2, 4, 5, 16), (4, 7, 16), 16, {"is_causal": True}),
    "causal, more rows": ((2, 4, 7, 16), (4, 5, 16), 16, {"is_causal": True}),
    "causal and mask": ((2, 4, 5, 16), (4, 7, 16), 16, {"is_causal": True, "mask": (2, 1, 5, 7)}),
    "shared heads": ((2, 6, 5, 16), (2, 7, 16), 16, {}),
    "large heads": ((1, 2, 5, 320), (2, 7, 320), 320, {}),
    "scale": ((2, 4, 5, 16), (4, 7, 16), 16, {"scale": 0.3}),
    "other values": ((2, 4, 5, 16), (4, 7, 16), 24, {}),
    "token with a cache": ((2, 4, 1, 16), (4, 32, 16), 16, {"mask": (1, 1, 1, 32)}),
}
REFUSES = {FLASH: ("mask", "cache", "other"), EFFICIENT: ("shared",), CUDNN: (), CPU: ("other",)}  # words of the cases


def cases() -> list[Any]:
    taken = [(target, name) for target, name in itertools.product(REFUSES, CASES) if not any(word in name for word in REFUSES[target])]
    return [pytest.param(target, name, id=f"{target._schema.name.removeprefix(COMMON)}: {name}") for target, name in taken]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("target", "name"), cases())
@pytest.mark.usefixtures("as_on_cuda")
def test_numbers_and_gradients_are_those_of_attention(target: Any, name: str, dtype: torch.dtype) -> None:
    sizes, (heads, keys, width), last, options = CASES[name]
    named = {key: options[key] for key in ("is_causal", "scale") if key in options}
    shapes = (sizes, (sizes[0], heads, keys, width), (sizes[0], heads, keys, last))
    operands = [torch.randn(shape).to(dtype) for shape in shapes]
    mask = random_mask(*options["mask"]).to(dtype) if "mask" in options else None
    given = mask if mask is None or "expanded" not in options else mask.expand(*sizes[:3], keys)
    before = keys - sizes[2] if target is FLASH else 0
    added = [part.double() for part in (mask, causal(sizes[2], keys, before) if "is_causal" in options else None) if part is not None]
    exact = [operand.double().requires_grad_() for operand in operands]
    bias = functools.reduce(torch.add, added) if added else None
    expected = exactly(exact, bias, options.get("scale"))
    made = called(target, operands, given, **named)
    grad = torch.randn_like(made[0])
    wanted = torch.autograd.grad(expected, exact, grad.double())
    found = gradients_of(target, grad, operands, made, given, **named)
    tolerance = TOLERANCE[dtype]
    for value, right in zip((made[0], *found[:3]), (expected, *wanted), strict=True):
        assert value.dtype is dtype
        torch.testing.assert_close(value.double(), right, rtol=0, atol=tolerance * max(1.0, float(right.detach().abs().max())))


@pytest.mark.usefixtures("as_on_cuda")
def test_the_gradient_of_a_mask_is_that_of_the_scores() -> None:
    operands = [torch.randn(2, 4, 5, 16) for _ in range(3)]
    mask = torch.randn(2, 1, 5, 5).expand(2, 4, 5, 5)
    made = called(EFFICIENT, operands, mask)
    grad = torch.randn_like(made[0])
    leaf = mask.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(
        functional.scaled_dot_product_attention(operands[0], operands[1], operands[2], attn_mask=leaf), leaf, grad
    )
    torch.testing.assert_close(gradients_of(EFFICIENT, grad, operands, made, mask)[3], wanted)


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("target", [EFFICIENT, CUDNN])
def test_float16_does_not_overflow_where_a_mask_holds_its_least_number(target: Any) -> None:
    """Scores below -16 beside the least number would be -inf, and a row of such numbers NaN."""
    query, key, value = (torch.full((1, 1, 2, 16), number, dtype=torch.float16) for number in (-8.0, 8.0, 1.0))
    mask = torch.full((1, 1, 2, 2), torch.finfo(torch.float16).min, dtype=torch.float16)
    mask[0, 0, 1, 0] = 0
    result = called(target, (query, key, value), mask)[0]
    torch.testing.assert_close(result, torch.ones_like(result))
    large = [200 * torch.ones(1, 1, 2, 64, dtype=torch.float16) for _ in range(3)]  # products of 2.6e6, scores of 2.6e3
    scaled = called(target, large, scale=1e-3)[0]
    torch.testing.assert_close(scaled, large[2])


LAYOUTS = {"heads first": (0, 1, 2, 3), "rows first": (0, 2, 1, 3), "odd": (2, 0, 1, 3)}


def facts(value: Any) -> Any:
    return (tuple(value.shape), value.dtype, str(value.device), value.stride()) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("order", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("target", [FLASH, EFFICIENT, CUDNN])
def test_outputs_are_those_of_the_shape_functions(target: Any, order: tuple[int, ...]) -> None:
    """Sizes, dtypes, devices and strides, on CUDA, of the operator and its backward: AOTAutograd saves them, later code views them."""
    with FakeTensorMode():
        for rows, keys, compute in ((33, 7, True), (33, 7, False), (64, 64, True), (5, 40, False)):
            heads, last = (2, 16) if target is FLASH else (4, 24) if target is EFFICIENT else (2, 24)
            sizes = ((2, 4, rows, 16), (2, heads, keys, 16), (2, heads, keys, last))
            operands = [torch.empty_permuted(shape, order, dtype=torch.float16, device="cuda") for shape in sizes]
            mask = None if target is FLASH else torch.empty(2, 1, rows, keys, dtype=torch.float16, device="cuda").expand(2, 4, rows, keys)
            args = (*operands, *(() if target is FLASH else (mask, compute)))
            expected, made = target(*args), decomposed(target)(*args)
            assert list(map(facts, made)) == list(map(facts, expected))
            given = (target, torch.empty_like(expected[0]), operands, expected, mask)
            assert list(map(facts, gradients_of(*given))) == list(map(facts, gradients_of(*given, by=as_it_is)))


@pytest.mark.parametrize("target", [FLASH, EFFICIENT, CUDNN, CPU])
def test_dropout_stays(target: Any) -> None:
    operands = [torch.randn(1, 2, 3, 8) for _ in range(3)]
    assert called(target, operands, dropout_p=0.5) is NotImplemented
    assert called(target, operands, dropout_p=0.0) is not NotImplemented


def test_an_expanded_mask_is_read_before_it_is_expanded() -> None:
    def masked(query: torch.Tensor, mask: torch.Tensor) -> Any:
        return EFFICIENT(query, query, query, mask.expand(2, 4, 5, 5), False)[0]  # noqa: FBT003 - by the schema

    for sizes in ((2, 1, 5, 5), (5, 5), (1, 1, 1, 5)):
        module = traced(masked, torch.randn(2, 4, 5, 8), torch.randn(sizes), decomposition_table=registry.decompositions())
        passes.read_unexpanded(module.graph)
        module.graph.eliminate_dead_code()
        module.recompile()
        mask = next(node for node in module.graph.nodes if node.op == "placeholder" and node.meta["val"].shape == sizes)
        assert not [user for user in mask.users if user.target is aten.expand.default]
        query, values = torch.randn(2, 4, 5, 8), torch.randn(sizes)
        torch.testing.assert_close(module(query, values), functional.scaled_dot_product_attention(query, query, query, attn_mask=values))


def trained(target: Any, *, is_causal: bool) -> Callable[..., Any]:
    """Make a function that calls a fused operator and its backward, as the graph of a training step does."""

    def step(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grad: torch.Tensor) -> Any:
        mask = None
        if target is not FLASH:  # as PyTorch expands it
            mask = torch.ones(query.shape[2], key.shape[2], dtype=query.dtype, device=query.device).expand(
                2, 4, query.shape[2], key.shape[2]
            )
        made = called(target, (query, key, value), mask, by=as_it_is, is_causal=is_causal)
        gradients = gradients_of(target, grad, (query, key, value), made, mask, by=as_it_is, is_causal=is_causal)
        return made[0].transpose(1, 2).flatten(2) * 2, [gradient * 2 for gradient in gradients if gradient is not None]

    return step


@pytest.mark.parametrize(
    ("dtype", "dynamic"), [(torch.float32, False), (torch.float16, True), (torch.bfloat16, False)], ids=["float32", "float16", "bfloat16"]
)
def test_a_graph_on_cuda_is_whole(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, *, dynamic: bool) -> None:
    monkeypatch.setattr(devices, "available", lambda: ("CUDAExecutionProvider", devices.CPU))
    steps = [trained(target, is_causal=True) for target in (FLASH, EFFICIENT, CUDNN)]
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        operands = [[torch.empty(2, 4, 6, 16, dtype=dtype, device="cuda") for _ in range(4)] for _ in steps]
        call = lambda *given: [step(*each) for step, each in zip(steps, given, strict=True)]  # noqa: E731
        capture = ortlens.explain(call, dry_run=True, dynamic=dynamic, calls=1)(*operands).captured()
    assert [(row.target, row.reason) for row in capture.fallbacks] == []
    assert len(capture.partitions) == 1
    made = [kind for row in capture.nodes for kind in row.onnx_ops]
    assert made.count("MatMul") == 6 * len(steps)  # the backward multiplies no query by a key again


@pytest.mark.parametrize("target", [FLASH, EFFICIENT, CUDNN])
def test_products_on_cuda_are_made_without_conversions(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: ("CUDAExecutionProvider", devices.CPU))

    def attended(*operands: torch.Tensor) -> Any:
        return called(target, operands, by=as_it_is)[0] * 2

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        for dtype in TOLERANCE:
            operands = [torch.empty(2, 4, 6, 16, dtype=dtype, device="cuda") for _ in range(3)]
            capture = ortlens.explain(attended, dry_run=True, calls=1)(*operands).captured()
            assert not {row.target for row in capture.nodes} & {"prims.convert_element_type.default", "aten._to_copy.default"}


@pytest.mark.parametrize("target", [FLASH, EFFICIENT, CUDNN])
@pytest.mark.usefixtures("as_on_cuda")
def test_onnx_runtime_computes_what_pytorch_does(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: ("CUDAExecutionProvider", devices.CPU))
    operands = [torch.randn(2, 4, 6, 16) for _ in range(4)]
    explained = ortlens.explain(trained(target, is_causal=True), calls=1)(*operands)
    assert not explained.captured().fallbacks
    leaves = [operand.clone().requires_grad_() for operand in operands[:3]]
    expected = functional.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=True)
    result, gradients = explained.result
    torch.testing.assert_close(result, expected.transpose(1, 2).flatten(2) * 2)
    wanted = torch.autograd.grad(expected, leaves, operands[3])
    for gradient, right in zip(gradients[:3], wanted, strict=True):
        torch.testing.assert_close(gradient, right * 2)


def test_no_bfloat16_is_compared() -> None:
    """ONNX Runtime 1.31 has a kernel of Equal for every float but bfloat16 on CUDA."""

    def masked(query: torch.Tensor, mask: torch.Tensor) -> Any:
        return EFFICIENT(query, query, query, mask, False)[0]  # noqa: FBT003 - by the schema

    operands = torch.randn(1, 2, 3, 8).bfloat16(), torch.randn(1, 2, 3, 3).bfloat16()
    graph = traced(masked, *operands, decomposition_table=registry.decompositions()).graph
    compared = [
        source.meta["val"].dtype for node in graph.find_nodes(op="call_function", target=aten.ne.Scalar) for source in node.all_input_nodes
    ]
    assert compared == [torch.float32]


def test_attention_stays_fused_where_onnx_runtime_has_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GraphCompiler(OrtBackendOptions())
    for providers, planned, expected in (
        ((devices.CPU,), False, False),
        ((devices.CPU,), True, True),
        (("CUDAExecutionProvider", devices.CPU), False, True),
    ):
        monkeypatch.setattr(devices, "available", lambda providers=providers: providers)
        table = compiler.decompositions(planned=planned)
        assert CPU in table
        assert [target in table for target in (FLASH, EFFICIENT, CUDNN, BACKWARD[FLASH])] == [expected] * 4
