"""The names that inputs have in a deployed model: those of parameters and arguments."""

from __future__ import annotations

import pytest

from ortlens.backend.lowering.provenance import input_name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['x']", "x"),
        ('L["x"]', "x"),
        ("L['self']._modules['layers']._modules['0']._parameters['weight']", "layers.0.weight"),
        ("L['fn']._modules['up']._parameters['bias']", "up.bias"),
        ("L['mod']._buffers['running_mean']", "running_mean"),
        ("L['self']._parameters['scale']", "scale"),
        ("G['model']._modules['head']._parameters['weight']", "head.weight"),
        ("L['model']._modules['head']._buffers['mask']", "head.mask"),
        ("L['kwargs']['input_ids']", "input_ids"),
        ("L['kwargs']", "kwargs"),
        ("L['pair'][1]", "pair.1"),
        ("L['given']['x']", "given.x"),
        (None, "input_4"),
        ("", "input_4"),
        ("L", "input_4"),
    ],
)
def test_names_read_as_in_the_users_code(source: str | None, name: str) -> None:
    assert input_name(source, 4) == name
