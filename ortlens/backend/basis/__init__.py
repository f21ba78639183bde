"""What every step of the backend stands on: options, how tensors lie in memory, passes over a graph, texts of errors."""
