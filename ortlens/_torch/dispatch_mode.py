"""The mode that sees every operator; in a file of its own because a base class imports torch at once."""

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode"]
