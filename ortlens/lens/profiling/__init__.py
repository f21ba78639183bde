"""Kernel times: profiles of ONNX Runtime, corrected and led back to FX nodes."""
