"""Which outputs of a session may take the memory of an input, and that calls with overlapping inputs take new memory."""

from dataclasses import replace
from functools import partial

import onnx
import pytest
import torch

from ortlens.backend.basis.memory_order import are_disjoint, merged
from ortlens.backend.runtime.binding import without_last_reshapes
from ortlens.backend.runtime.in_place import safe_pairs
from tests.unit.backend.runtime.test_call import Session


def model_of(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> agraph {text}')


SAFE = {
    "an update": "(float[4,4] x, float[4,4] g) => (float[4,4] y) { y = Add(x, g) }",
    "read before by what the update needs": "(float[4,4] x, float[4,4] g) => (float[4,4] y) { a = Mul(x, g) b = Sqrt(a) y = Sub(x, b) }",
    "the new value is read": "(float[4,4] x, float[4,4] g) => (float[4,4] y, float[4,4] z) { y = Add(x, g) z = Mul(y, y) }",
}
HEAD = "(float[4,8] x, int64[2,1] i, float[2,8] g, float[8,4] w, bool c)"
BODY = "If(c) <then_branch = then () => (t) {{ t = MatMul({0}, w) }}, else_branch = other () => (e) {{ e = MatMul({0}, w) }}>"
SAFE |= {
    "rows written beside other operators": HEAD
    + " => (float[4,8] y, float[4,4] z) { a = Relu(g) y = ScatterND(x, i, a) z = MatMul(y, w) }",
    "rows written beside a body that reads something else": HEAD
    + f" => (float[4,8] y, float[2,4] z) {{ y = ScatterND(x, i, g) z = {BODY.format('g')} }}",
    "elements written": "(float[4,8] x, int64[2,8] i, float[2,8] g) => (float[4,8] y) { y = ScatterElements<axis = 0>(x, i, g) }",
}
UNSAFE = {
    "selected from intermediate values": "(float[4,4] x, bool[4,4] c) => (float[4,4] y) { a = Exp(x) b = Neg(x) y = Where(c, a, b) }",
    "rows are written, and a body reads the old value": HEAD
    + f" => (float[4,8] y, float[4,4] z) {{ y = ScatterND(x, i, g) z = {BODY.format('x')} }}",
    "rows are written, and the old value is read": HEAD
    + " => (float[4,8] y, float[4,4] z) { a = Relu(g) y = ScatterND(x, i, a) z = MatMul(x, w) }",
    "rows are written of what is made of the old value": HEAD
    + " => (float[4,8] y) { a = Gather(x, i) b = Squeeze(a) y = ScatterND(x, i, b) }",
    "rows are added to": HEAD + ' => (float[4,8] y) { a = MatMul(g, w) y = ScatterND<reduction = "add">(x, i, g) }',
    "rows are written into the transposed value": HEAD + " => (float[4,8] y) { a = Transpose(x) b = Transpose(a) y = ScatterND(b, i, g) }",
    "the rows written are the result's operand alone": HEAD
    + " => (float[4,8] y) { a = ScatterND(x, i, g) b = MatMul(a, w) y = MatMul(b, a) }",
    "the old value is read beside": "(float[4,4] x, float[4,4] g) => (float[4,4] y, float[4,4] z) { y = Add(x, g) z = Mul(x, g) }",
    "what reads the old value is read beside": "(float[4,4] x, float[4,4] g) => (float[4,4] y, float[4,4] z)"
    " { a = Mul(x, g) y = Add(x, a) z = Exp(a) b = Neg(x) w = Exp(b) }",
    "a kernel that may write before it reads": "(float[4,4] x, bool[4,4] c, float[4,4] g) => (float[4,4] y) { y = Where(c, x, g) }",
    "the same behind a conversion": "(float[4,4] x, bool[4,4] c, float[4,4] g) => (float[4,4] y) { a = CastLike(x, g) y = Where(c, a, g) }",
    "a product, which reads all elements for each": "(float[4,4] x, float[4,4] g) => (float[4,4] y) { y = MatMul(x, g) }",
    "a transposition, which others may take in": "(float[4,4] x, float[4,4] g) => (float[4,4] y) { a = Transpose(g) y = Add(x, a) }",
    "the value itself": "(float[4,4] x, float[4,4] g) => (float[4,4] y) { y = Identity(x) }",
}


@pytest.mark.parametrize("name", [*SAFE, *UNSAFE])
def test_what_may_be_written_over_its_input(name: str) -> None:
    assert safe_pairs(model_of({**SAFE, **UNSAFE}[name]), {"y": "x"}) == ({"y"} if name in SAFE else frozenset())


@pytest.mark.parametrize(("read", "dropped"), [("x", 1), ("p", 0), ("y", 0)])
def test_a_last_reshape_is_left_out_unless_a_body_reads_what_it_renames(read: str, dropped: int) -> None:
    body = f"If(c) <then_branch = then () => (t) {{ t = Neg({read}) }}, else_branch = other () => (e) {{ e = Abs({read}) }}>"
    head = "(float[4,8] x, float[8,4] w, bool c) => (float[1,4,4] y, float z) <float[4,4] p, int64[1] first = {0}>"
    model = model_of(f"{head} {{ p = MatMul(x, w) y = Unsqueeze(p, first) z = {body} }}")
    assert len(model.graph.node) - len(without_last_reshapes(model).graph.node) == dropped


def test_an_input_that_overlaps_another_or_is_not_contiguous_is_left_alone() -> None:
    session = Session(lambda x, y: (x + y, y * 2), torch.rand(4), torch.rand(4), preallocate=True)
    session.outputs[0] = replace(session.outputs[0], in_place=0)
    run = session.made(preallocate=True)
    x, y = torch.rand(4), torch.rand(4)
    expected = x + y
    for _ in range(2):  # the second time at known addresses
        assert run(x, y)[0] is x
        torch.testing.assert_close(x, expected)
        expected = x + y
    base = torch.arange(5.0)
    made = run(base[1:], base[:4])[0]
    torch.testing.assert_close((made, base), (torch.tensor([1.0, 3, 5, 7]), torch.arange(5.0)))
    same = run(x, x)[0]
    assert same.data_ptr() != x.data_ptr()
    torch.testing.assert_close(same, x * 2)
    wide = torch.arange(8.0)
    torch.testing.assert_close((run(wide[::2], wide[1::2])[0], wide), (wide[::2] + wide[1::2], torch.arange(8.0)))
    assert not session.failures


def test_what_is_written_over_must_overlap_neither_inputs_nor_frozen_weights() -> None:
    frozen = merged([(100, 10), (110, 5), (300, 50), (320, 10)])
    assert frozen == [(100, 115), (300, 350)]
    apart = partial(are_disjoint, {0}, frozen)
    assert apart(0, 100, 115, 20, 120, 40)  # others may overlap each other
    assert apart(115, 185, 90, 25)
    starts = ((0, 101), (114, 1), (200, 101), (349, 1), (290, 80), (310, 5), (0, 50, 49, 5), (0, 50, 0, 50), (20, 5, 0, 90), (10, 9, 0, 11))
    assert [blocks for blocks in starts if apart(*blocks)] == []
    assert not are_disjoint({0, 1}, [], 0, 10, 9, 10)
