"""Watching `torch.compile`: the Lens, `explain` and `capture`."""
