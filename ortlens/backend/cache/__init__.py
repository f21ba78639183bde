"""Converted models on disk, for later processes."""
