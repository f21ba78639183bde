"""`Lens.verify`: ONNX Runtime's numbers against PyTorch's, with a run in double precision as the arbiter."""
