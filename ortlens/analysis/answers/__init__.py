"""Answers to what people ask first, of a capture or a study of several."""
