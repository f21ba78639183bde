"""From ONNX models to sessions, and the generated code that calls them."""
