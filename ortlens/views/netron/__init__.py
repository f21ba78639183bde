"""ONNX models as Netron draws them, without a server: in a notebook, in the explorer, in one file."""
