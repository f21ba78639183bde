"""What a rank of the tests runs under `torchrun`: it trains a model, which has a graph break on rank 1."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.breaks = nn.Linear(16, 32), nn.Linear(32, 4), dist.get_rank() == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From [rows, 16] to [rows, 4]."""
        x = self.up(x).relu()
        if self.breaks:
            torch._dynamo.graph_break()
        made: torch.Tensor = self.down(x)
        return made


def main() -> None:
    """Train for a step."""
    dist.init_process_group("gloo")
    model = Net()
    model.compile(backend="aot_eager")
    DistributedDataParallel(model)(torch.ones(4, 16)).square().mean().backward()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
