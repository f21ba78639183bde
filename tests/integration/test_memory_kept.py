"""What a call of far more rows than others takes is given back after it, however it is made, as in eager."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, gc, sys, tempfile, torch, ortlens
from torch.export import Dim

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(512))
    def forward(self, x):
        scaled = x * self.w
        return (scaled.tanh() + scaled.softmax(-1))[:, :{columns}]

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4 // 1024

net, few, many = Net().eval(), torch.randn(8, 512), torch.randn(32768, 512)
rows = ({{0: Dim("rows", min=2)}},)
with torch.no_grad():
    if sys.argv[1] == "compiled":
        torch._dynamo.mark_dynamic(few, 0)
        call = torch.compile(net, backend="ortlens")
    else:
        call = ortlens.freeze(net, few, dynamic_shapes=rows)
    if sys.argv[1] == "loaded":
        with tempfile.TemporaryDirectory() as folder:
            call.save(folder + "/net")
            call = ortlens.load_frozen(folder + "/net")
        few, many = few.numpy(), many.numpy()
    call(few)
    before = resident()
    for x in {calls}:
        call(x)
        print(resident() - before)
"""
LARGE = 48  # MiB; an activation has 64


def kept(way: str, columns: int, calls: str) -> list[bool]:
    """Tell after which calls much memory is kept."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(columns=columns, calls=calls), way], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [int(line) > LARGE for line in done.stdout.split()]


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize(("way", "columns"), [("compiled", 512), ("frozen", 512), ("loaded", 4)])
def test_the_memory_of_a_large_call_is_given_back(way: str, columns: int) -> None:
    first, second = kept(way, columns, "(many, many)")
    assert not second
    assert way == "loaded" or not first  # a result that is alive while a loaded model runs may keep its region until the next run


def test_that_of_a_size_that_comes_again_and_again_is_kept_until_a_small_call() -> None:
    assert kept("compiled", 4, "(*(many,) * 6, few)") == [False] * 4 + [True, True, False]
