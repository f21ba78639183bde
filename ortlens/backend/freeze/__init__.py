"""Frozen callables: a traced program over its sessions, without Dynamo and without checks of weights; saved, and loaded without torch."""
