"""The machine that is observed: `torch.compile` -> FX partitions -> ONNX -> ONNX Runtime sessions."""
