"""Dynamo's breaks, recompiles and guards, read from its structured log."""
