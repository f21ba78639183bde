"""Lines of a test that a comment at their end marks."""

from pathlib import Path


def line_of(mark: str, file: str) -> int:
    """Find the number of the one line of a file that ends with a comment."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
    return number
