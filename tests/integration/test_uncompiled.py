"""Functions that PyTorch cannot compile at all: whatever is asked for, the answer says so."""

from __future__ import annotations

import pytest
import torch

import ortlens
from ortlens.job.request import Request
from ortlens.job.work import explained, new_lens


class Tagger(torch.nn.Module):
    """Dynamo leaves a module that calls an LSTM uncompiled."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.layer(x)[0]
        return h


def test_profile_and_verify_say_that_pytorch_ran_the_function() -> None:
    x = torch.ones(1, 2, 4)
    lens = ortlens.explain(Tagger(), calls=1)(x)
    for asked in (lens.profile, lens.verify):
        with pytest.raises(ortlens.UsageError, match="PyTorch could not trace the function and ran it as it is"):
            asked(x)


@pytest.mark.parametrize("target", [Tagger(), torch.special.bessel_j0], ids=["nothing is compiled", "nothing runs in ONNX Runtime"])
def test_a_request_to_look_closer_goes_on(target: torch.nn.Module) -> None:
    request = Request(profile=True, verify=True, calls=1)
    lens = new_lens(request, "target")
    explained(request, lens, target, (torch.ones(1, 2, 4),), {})
    assert "Look first at" in lens.summary()
    assert lens.kernels.empty


def test_what_only_verify_called_has_no_time_per_call() -> None:
    model, x = torch.nn.Conv2d(1, 2, 3), torch.rand(1, 1, 8, 8)
    lens = ortlens.explain(model)(x)
    lens.verify(x)
    (row,) = lens.fallbacks[lens.fallbacks.target == "aten.convolution_backward.default"].to_dict("records")
    assert (row["calls"], row["total_ns"]) == (0, 0)
    assert "convolution_backward" not in lens.summary().partition("Look first at")[2]
