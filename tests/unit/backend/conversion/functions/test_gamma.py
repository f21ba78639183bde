"""The logarithm of the gamma function and its derivatives: they stay in PyTorch, which is faster; deployed models contain them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ortlens import Lens
from ortlens.backend.conversion.functions import own_functions
from tests.integration.test_export_onnx import run_bare
from tests.opinfo.extremes import extremes
from tests.unit.backend.conversion.functions.one_graph import differing, left

if TYPE_CHECKING:
    import pathlib

CASES: dict[str, Any] = {
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "psi": lambda x: torch.polygamma(0, x),
    "trigamma": lambda x: torch.polygamma(1, x),
    "several": lambda x: torch.mvlgamma(x.abs() + 2, 3),
}
IN_ORT = {target: functools.partial(function) for target, function in own_functions().items() if "gamma" in str(target)}
POLES = torch.tensor([-1e6 - 0.5, -3.0, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 1 + 2**-23, 1 - 2**-24, 2 + 2**-22, 2 - 2**-23, 10.0])


@pytest.mark.parametrize("grad", [False, True])
def test_they_stay_in_pytorch(*, grad: bool) -> None:
    found, capture = differing(CASES, torch.linspace(0.1, 9, 40), grad=grad)
    assert found == {}
    stays = {row.target: row.reason_code for row in capture.fallbacks}
    assert {code for target, code in stays.items() if "gamma" in target} == {"policy"}
    assert {"aten.lgamma.default", "aten.digamma.default", "aten.polygamma.default"} <= left(capture)


@pytest.mark.parametrize(("dtype", "dynamic"), [(torch.float32, False), (torch.float32, True), (torch.float16, False)], ids=str)
def test_the_onnx_form_is_right(dtype: torch.dtype, *, dynamic: bool) -> None:
    x = torch.cat([extremes(torch.float32), torch.linspace(-12, 12, 2001), POLES]).to(dtype)
    lens = Lens(options={"custom_translation_table": IN_ORT})
    compiled = torch.compile(lambda x: [case(x) for case in CASES.values()], backend=lens, dynamic=dynamic)
    with torch.no_grad():
        made = dict(zip(CASES, compiled(x), strict=True))
    rtol = 2e-6 if dtype is torch.float32 else 2e-3
    torch.testing.assert_close(made, {name: case(x) for name, case in CASES.items()}, rtol=rtol, atol=5e-7, equal_nan=True)
    assert not [row for row in lens.captured().fallbacks if "gamma" in row.target]


def test_it_keeps_its_digits_at_its_zeros() -> None:
    near = torch.tensor([1 + 2**-23, 1 - 2**-24, 2 + 2**-22, 2 - 2**-23])
    compiled = torch.compile(torch.lgamma, backend=Lens(options={"custom_translation_table": IN_ORT}))
    torch.testing.assert_close(compiled(near), torch.lgamma(near.double()).float(), rtol=1e-6, atol=0)


def test_what_the_series_are_too_short_for_stays() -> None:
    lens = Lens(options={"on_error": "raise"})
    x = torch.linspace(0.1, 9, 40)
    compiled = torch.compile(lambda x, y: (torch.lgamma(x), torch.polygamma(3, y)), backend=lens)
    torch.testing.assert_close(compiled(x.double(), x), (torch.lgamma(x.double()), torch.polygamma(3, x)))


def test_a_deployed_model_contains_them(tmp_path: pathlib.Path) -> None:
    class Likelihood(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.lgamma(x) + torch.digamma(x) + torch.polygamma(1, x)

    x, lens = torch.linspace(0.1, 9, 40), Lens()
    torch.compile(Likelihood(), backend=lens)(x)
    path = lens.export_onnx(tmp_path / "gamma.onnx")
    (made,) = run_bare(path, {"x": x}).values()
    torch.testing.assert_close(made, Likelihood()(x))
