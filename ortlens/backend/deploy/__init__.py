"""A covered graph to one ONNX model that needs nothing of ortlens."""
