from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ortlens.errors import UsageError
from ortlens.job.targets import inputs_from_texts


def made(*texts: str, seed: int = 0) -> tuple[Any, ...]:
    args, kwargs = inputs_from_texts(texts).made(seed)
    assert not kwargs
    return args


TENSORS: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
    "f32[1,3,8,8]": (torch.float32, (1, 3, 8, 8)),
    "f16[2]": (torch.float16, (2,)),
    "bf16[2, 3]": (torch.bfloat16, (2, 3)),
    "f64[]": (torch.float64, ()),
    "i64[0,4]": (torch.int64, (0, 4)),
    "i32[4]": (torch.int32, (4,)),
    "i16[4]": (torch.int16, (4,)),
    "i8[4]": (torch.int8, (4,)),
    "u8[4]": (torch.uint8, (4,)),
    "bool[4]": (torch.bool, (4,)),
    "float32[4]": (torch.float32, (4,)),
    "F32[4]": (torch.float32, (4,)),
}


def test_tensors() -> None:
    assert {text: (tensor.dtype, tuple(tensor.shape)) for text in TENSORS for tensor in made(text)} == TENSORS
    first, again, other = made("f32[8]")[0], made("f32[8]")[0], made("f32[8]", seed=1)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(*made("f32[8]", "f32[8]"))


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("i64[4000]", 0, 1),
        ("i64[4000]:1000", 0, 999),
        ("i32[4000]:5:8", 5, 7),
        ("i64[4000]:-3:0", -3, -1),
        ("u8[40000]", 0, 255),
        ("i8[40000]", -128, 127),
        ("bool[100]", 0, 1),
    ],
)
def test_whole_numbers_fill_their_range_and_keep_to_it(text: str, low: int, high: int) -> None:
    (tensor,) = made(text)
    assert (int(tensor.min()), int(tensor.max())) == (low, high)


def test_floats() -> None:
    normal, uniform, above = made("f32[4000]", "f32[4000]:-1:1", "f64[100]:3")
    assert float(normal.std()) == pytest.approx(1, abs=0.1)
    assert (uniform >= -1).all()
    assert (uniform < 1).all()
    assert float(uniform.min()) < -0.9
    assert ((above >= 0) & (above < 3)).all()


VALUES: dict[str, object] = {
    "3": 3,
    "-3": -3,
    "2.5": 2.5,
    "1e-5": 1e-5,
    "true": True,
    "False": False,
    "none": None,
    "'a b'": "a b",
    "(1,2)": (1, 2),
}


def test_plain_values() -> None:
    assert {text: made(text)[0] for text in VALUES} == VALUES
    assert [inputs_from_texts([f"name={text}"]).named for text in VALUES] == [(("name", value),) for value in VALUES.values()]


def test_order_and_names() -> None:
    inputs = inputs_from_texts(["f32[1]", "mask=bool[2]", "7", "flag=true"])
    args, kwargs = inputs.made(0)
    assert (args[0].shape, args[1]) == ((1,), 7)
    assert (kwargs["mask"].dtype, kwargs["flag"]) == (torch.bool, True)
    with pytest.raises(UsageError, match="'x' is given twice"):
        inputs_from_texts(["x=1", "x=2"])


@pytest.mark.parametrize(
    ("text", "said", "marked"),
    [
        ("f33[2]", "Did you mean", "f33"),
        ("x=f33[2]", "Did you mean", "f33"),
        ("[2]x", "is not a value", "[2]x"),
        ("f32[2,x]", "'x' is not a size", "x"),
        ("f32[2,-1]", "'-1' is not a size", "-1"),
        ("f32[2x3]", "'2x3' is not a size", "2x3"),
        ("f32[2,,3]", "a size is missing", ""),
        ("f32[2,]", "a size is missing", ""),
        ("f32[٣]", "is not a size", "٣"),
        ("f32[2", "not closed", ""),
        ("f32[2]]", "a range", "]"),
        ("f32[2]:3:1", "the range from 3 to below 1 is empty", ":3:1"),
        ("i64[2]:0", "the range from 0 to below 0 is empty", ":0"),
        ("i64[2]:1.5", "whole numbers", ":1.5"),
        ("i64[2]:1:2:3", "a range", ":1:2:3"),
        ("i64[2]:true", "a range", ":true"),
        ("bool[2]:3", "bool takes no range", ":3"),
        ("f32", "f32[] for a single number", "f32"),
        ("long", "i64[] for a single number", "long"),
        ("hello", "needs its own quotes", "hello"),
        ("x=hello", "needs its own quotes", "hello"),
        ("", "is not a value", ""),
    ],
)
def test_a_slip_is_marked(text: str, said: str, marked: str) -> None:
    with pytest.raises(UsageError) as caught:
        inputs_from_texts([text])
    message = str(caught.value)
    assert said in message
    _, line, marks, _ = message.split("\n")
    start = marks.index("^")
    assert line == f"  {text}"
    assert line[start : start + len(marked)] == marked
    assert marks.count("^") == max(len(marked), 1)


@given(st.text(max_size=30))
def test_no_text_is_too_odd(text: str) -> None:
    try:
        inputs_from_texts([text])
    except UsageError as err:
        assert "--input: " in str(err)  # noqa: PT017 - both outcomes are right
