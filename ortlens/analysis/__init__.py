"""Pure functions from a capture to answers; no pandas, no torch, no ONNX Runtime."""
