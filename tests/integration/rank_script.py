"""What a rank of the tests runs under `torchrun`: it trains a model, with the named fault on the last rank."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Two layers; on the rank of a fault it does something else."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.up, self.down, self.fault = nn.Linear(16, 32), nn.Linear(32, 4), fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From [rows, 16] to [rows, 4]."""
        x = self.up(x).relu()
        if self.fault == "break":
            torch._dynamo.graph_break()
        made: torch.Tensor = self.down(x)
        return made


def main() -> None:
    """Train."""
    (fault,) = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mine = fault if dist.get_rank() == dist.get_world_size() - 1 else ""
    torch.manual_seed(0)
    model = Net(mine)
    model.compile(backend="aot_eager")
    wrapped = DistributedDataParallel(model)
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    for _ in range(16):
        if mine == "delay":
            time.sleep(0.1)
        loss = wrapped(torch.ones(4, 16)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
