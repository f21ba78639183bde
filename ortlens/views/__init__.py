"""Views of a capture: text, HTML and the frames. They return strings; callers print and write files."""
