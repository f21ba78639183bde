"""What the backend knows of operators: one file per family. The steps of a graph ask `registry`."""
