"""The register of rewrites and kernels of ONNX Runtime that are known to give wrong results."""
