"""Tensors on a device that ONNX Runtime has no binding for are copied to the CPU and back, at a price that is told."""

from collections.abc import Callable

PROGRAM = """
import torch, ortlens
from ortlens.backend.runtime import devices
from tests import fake_device
fake_device.install()
devices._KINDS[fake_device.NAME] = devices._KINDS["mps"]
lens, linear, x = ortlens.Lens(), torch.nn.Linear(3, 40).requires_grad_(False), torch.randn(8, 3)
def call(weight, bias, x):
    made = torch.nn.functional.linear(x, weight, bias).tanh()
    x.add_(1)
    return made, x.shape[0], (made > 0).nonzero() * 2
here, there = [linear.weight, linear.bias, x], [each.to(fake_device.NAME) for each in (linear.weight, linear.bias, x)]
fast = torch.compile(call, backend=lens, dynamic=True)
for rows in (4, 5, 4, 6):
    got, wanted = fast(*there[:2], there[2][:rows]), call(*here[:2], x[:rows])
    assert {each.device.type for each in got[::2]} == {fake_device.NAME}
    torch.testing.assert_close([got[0].cpu(), got[1], got[2].cpu(), there[2].cpu()], [*wanted, x])
    if rows == 5:
        here[0].mul_(3), there[0].mul_(3)
found = lens.findings[lens.findings.rule == "device_copy"]
assert sorted(found.subject) == ["p0", "p1"] and (found.gain_ns > 0).all() and not len(lens.fallbacks), lens.findings
assert found.title.str.contains("bytes, there and back; moving them takes").all(), found
"""


def test_a_call_is_pytorchs_and_has_a_price(run_python: Callable[..., str]) -> None:
    run_python(PROGRAM)
