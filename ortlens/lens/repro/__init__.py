"""`Lens.repro`: a partition or an operator as a folder that runs without ortlens."""
