"""Two ONNX models that compute the same, value by value."""
