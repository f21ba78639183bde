"""Kernel times: profiles of ONNX Runtime, corrected and traced back to FX nodes."""
