"""Reports what the backend does to the recorder, as records."""
