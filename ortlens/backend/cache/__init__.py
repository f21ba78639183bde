"""Converted models on disk, for the next process."""
