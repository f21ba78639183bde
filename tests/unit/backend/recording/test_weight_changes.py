"""The line that changed a weight."""

from __future__ import annotations

import linecache

import pytest

from ortlens.backend.recording.records import changed_at

FILE = "/home/user/program.py"
PROGRAM = """\
class Net:
    def __init__(self):
        self.weight = made()
        self.table.weight = made()
def assign():
    net.layers[0].weight = made()
    net.head.bias, other = made(), 1
    setattr(net.head, "scale", made())
    net.register_buffer("state", made())
def write():
    net.head.weight.data.mul_(2)
    net.head.gain[0] = 1
    net.head.shift += 1
    torch.nn.init.zeros_(net.head.zero)
    net.twice.add_(1)
    net.twice.add_(1)
def call():
    return look()
"""


def line_of(weight: str, *, is_new: bool) -> int | None:
    """Find the line as a call from that file does."""
    linecache.cache[FILE] = (len(PROGRAM), None, PROGRAM.splitlines(keepends=True), FILE)
    names = {"look": lambda: changed_at([weight], is_new=is_new)}
    exec(compile("def call():\n    return look()", FILE, "exec"), names)  # noqa: S102 - a text of this file
    place = names["call"]()
    return place and place.line


@pytest.mark.parametrize(
    ("weight", "is_new", "line"),
    [
        ("layers.0.weight", True, 6),
        ("head.bias", True, 7),
        ("head.scale", True, 8),
        ("state", True, 9),
        ("head.weight", False, 11),
        ("head.gain", False, 12),
        ("head.shift", False, 13),
        ("head.zero", False, 14),
        ("twice", False, None),  # two lines can have
        ("layers.0.weight", False, None),  # that line is about another module
        ("table.weight", True, None),  # at first, in the constructor
        ("unknown", True, None),
    ],
)
def test_the_one_line_that_can_have_changed_a_weight(weight: str, is_new: bool, line: int | None) -> None:  # noqa: FBT001 - a row of the table
    assert line_of(weight, is_new=is_new) == line
