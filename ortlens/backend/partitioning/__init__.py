"""Which nodes go to ONNX Runtime, in which partitions, and the graph of each partition."""
