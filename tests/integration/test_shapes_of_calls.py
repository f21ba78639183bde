"""`ortlens.dynamic_shapes`: what it says of a few calls lets a trace, a frozen callable and a compiled model take sizes of calls unseen."""

import pytest
import torch
from torch import ones

import ortlens
from tests.integration.small_models import SMALL_MODELS

CONVOLUTION = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).eval()


class WithPast(torch.nn.Sequential):
    """A decoder whose keys and values of earlier tokens are pairs of tensors in a list."""

    def forward(self, tokens: torch.Tensor, past: list[object], mask: torch.Tensor) -> object:  # type: ignore[override]  # of one argument
        from transformers import DynamicCache

        return self[0](tokens, past_key_values=DynamicCache(past), attention_mask=mask).logits


def decoding(batch: int, new: int, old: int) -> dict[str, object]:
    return {"tokens": ones(batch, new).long(), "past": [(torch.rand(batch, 4, old, 16),) * 2] * 2, "mask": ones(batch, old + new)}


BERT = [{"input_ids": ones(shape).long(), "attention_mask": ones(shape)} for shape in ((1, 5), (2, 7), (3, 9))]
GPT2 = [decoding(2, 3, 5), decoding(1, 1, 9), decoding(3, 2, 8)]
IMAGES = [{"input": torch.rand(batch, 3, high, wide)} for batch, high, wide in ((2, 12, 9), (3, 8, 10), (4, 20, 7))]
CASES = [("bert", BERT, "batch input_ids_1"), ("gpt2", GPT2, "batch tokens_1 past_0_0_2 mask_1"), ("", IMAGES, "batch input_2 input_3")]


@pytest.mark.parametrize(("name", "calls", "sizes"), CASES)
def test_what_is_made_of_two_calls_takes_another(name: str, calls: list[dict[str, object]], sizes: str) -> None:
    built, lens = SMALL_MODELS[name].build().eval() if name else CONVOLUTION, ortlens.Lens()
    model = WithPast(built) if name == "gpt2" else built
    found = ortlens.dynamic_shapes(model, calls[:2])
    assert " ".join(dict.fromkeys(found.sizes.name)) == sizes
    given, open_sizes = found.example[1], found.dynamic_shapes
    with torch.no_grad():
        program = torch.export.export(model, (), given, dynamic_shapes=open_sizes).module()
        made = program, ortlens.freeze(model, dynamic_shapes=open_sizes, **given), torch.compile(model, backend=lens)
        for tensor, dims in found.marks:
            torch._dynamo.mark_dynamic(tensor, dims)
        made[2](**given)
        for each in made:
            torch.testing.assert_close(each(**calls[2]), model(**calls[2]), atol=1e-4, rtol=1e-4)
    assert (len(lens.graphs), len(lens.recompiles)) == (1, 0)


def test_the_onnx_model_has_the_names() -> None:
    found = ortlens.dynamic_shapes(CONVOLUTION, IMAGES)
    program = torch.onnx.export(CONVOLUTION, kwargs=found.example[1], dynamic_shapes=found.names, dynamo=True, verbose=False)
    assert str(program.model.graph.inputs[0].shape) == "[batch,3,input_2,input_3]"  # type: ignore[union-attr]  # a file was not asked for


def both(x: object, *more: object, mask: object = None, **named: object) -> object:
    return x, more, mask, named


def test_sizes_vary_together_unless_a_call_says_otherwise() -> None:
    calls = [((ones(rows, wide), [ones(rows, less)]), {"y": ones(wide)}) for rows, wide, less in ((2, 5, 5), (3, 7, 7), (4, 9, 8))]
    for count, last in ((2, "x_1"), (3, "more_0_0_1")):
        names = ortlens.dynamic_shapes(both, calls[:count]).names
        assert names == {"x": {0: "batch", 1: "x_1"}, "more": ([{0: "batch", 1: last}],), "y": {0: "x_1"}}


def test_what_no_trace_leaves_open_has_a_row() -> None:
    found = ortlens.dynamic_shapes(both, [(ones(4), 2), {"x": ones(6, 4), "mask": None}, ((ones(4), 3), {"mask": ones(5)})])
    assert (repr(found), found.dynamic_shapes) == ("DynamicShapes(no size varies, all are fixed)", {"x": None, "more": (None,)})
    kinds = ["torch.float32 of rank 1, torch.float32 of rank 2", "2, not passed, 3", "not passed, None, torch.float32 of rank 1"]
    assert list(found.sizes.note.str.partition(":")[0]) == kinds


def test_calls_that_do_not_say_enough_are_refused() -> None:
    x, small = ones(4, 5), ones(1, 2)
    assert ortlens.dynamic_shapes(both, [(small,), (x,), (ones(9, 0),)]).example == ((x,), {})
    wrong = {"not of 1": [(x,)], "not Tensor": [(x,), x], "argument: 'x'": [(x,), {}], r"in x.shape\[0\]": [(small,), (small.T,)]}
    for message, calls in wrong.items():
        with pytest.raises(ortlens.UsageError, match=message):
            ortlens.dynamic_shapes(both, calls)  # type: ignore[arg-type]  # what it refuses
