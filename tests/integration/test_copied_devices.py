"""Tensors on a device that ONNX Runtime has no binding for are copied to the CPU and back, at a price that is told."""

from collections.abc import Callable

# In a process of its own, since no device can be unregistered. This one computes on the CPU; all of its tensors claim to be contiguous.
PROGRAM = """
import copy, functools, ortlens, torch
from ortlens.backend.runtime import devices
held, library, each_tensor = {}, torch.library.Library("_", "IMPL"), functools.partial(torch.utils._pytree.tree_map_only, torch.Tensor)
def values(tensor):
    return held[tensor.untyped_storage()._cdata][0] if tensor.device.type == "far" else tensor
def far(values):
    made = torch._C._acc.create_empty_tensor(tuple(values.shape), values.dtype)
    held[made.untyped_storage()._cdata] = values, made
    return made
def computed(operator, *args, device=None, **kwargs):
    if operator is torch.ops.aten._copy_from.default:
        return values(args[1]).copy_(values(args[0]))
    return each_tensor(far, operator(*each_tensor(values, args), **each_tensor(values, kwargs)))
torch.utils.backend_registration._setup_privateuseone_for_python_backend("far")
library.fallback(computed, "PrivateUse1")
torch.accelerator.synchronize, devices._KINDS["far"] = lambda *_: None, devices._KINDS["mps"]
def call(net, x):
    made = net(x).tanh()
    x.add_(1)
    return made, x.shape[0], (made > 0).nonzero() * 2
lens, here = ortlens.Lens(), [torch.nn.Linear(3, 40).requires_grad_(False), torch.randn(8, 3)]
there, fast = [copy.deepcopy(each).to("far") for each in here], torch.compile(call, backend=lens, dynamic=True)
for rows in (4, 5, 4, 6):
    got, wanted = fast(there[0], there[1][:rows]), call(here[0], here[1][:rows])
    assert got[0].device.type == got[2].device.type == "far"
    torch.testing.assert_close([got[0].cpu(), got[1], got[2].cpu(), there[1].cpu()], [*wanted, here[1]])
found = lens.findings[lens.findings.rule == "device_copy"]
assert sorted(found.subject) == ["p0", "p1"] and (found.gain_ns > 0).all() and not len(lens.fallbacks), lens.findings
assert lens.sessions.frozen_bytes.iloc[0] == 640 and found.title.str.contains("bytes, there and back; moving them takes").all(), found
"""


def test_a_call_is_pytorchs_and_has_a_price(run_python: Callable[..., str]) -> None:
    run_python(PROGRAM)
