"""A partition's ATen graph to an ONNX model."""
