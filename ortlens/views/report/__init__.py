"""The report: one self-contained HTML file with the explorer, and everything that matters as text, tables and figures beside it."""
