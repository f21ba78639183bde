"""Rules over a capture: what should be changed, why, and what it would save."""
