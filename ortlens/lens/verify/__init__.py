"""`Lens.verify`: compares ONNX Runtime's results with PyTorch's, with a run in double precision as the arbiter."""
