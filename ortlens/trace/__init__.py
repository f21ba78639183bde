"""What happened, as plain data: records, the recorder that collects them, files, and pandas frames."""
