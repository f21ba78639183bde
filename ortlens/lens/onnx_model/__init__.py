"""Any ONNX model, and running sessions: the same records as of a compiled function, without PyTorch."""
