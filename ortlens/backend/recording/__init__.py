"""What the backend does, reported to the recorder as records."""
