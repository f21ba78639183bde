"""No part of the project grows: each keeps to its lines of code and its files, and a budget goes up only where another goes down."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.budgets import BUDGETS, ROOT, Size, code_lines, exceeded, lowered, measured, raised, read

TEXT = """
[rooms]
"ortlens" = [100, 4]
"ortlens/lens" = [60, 2]
"ortlens/views" = [40, 2]
"tests" = [200, 9]
"""


def test_every_part_keeps_to_its_budget() -> None:
    assert exceeded(measured(), read(BUDGETS.read_text(encoding="utf-8"))[0]) == []


def test_no_budget_went_up() -> None:
    """Against the commit at which this branch began, or the version before, where there is one."""
    now = BUDGETS.read_text(encoding="utf-8")
    before = earlier(now)
    assert before is None or raised(before, now) == []


def earlier(now: str) -> str | None:
    """The budgets that a change begins from; None where git does not have them."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return None
    name = BUDGETS.relative_to(ROOT).as_posix()
    head = git("rev-parse", "HEAD")
    bases = (git("merge-base", "HEAD", branch) for branch in ("origin/HEAD", "origin/main", "main"))
    base = next((found for found in bases if found and found != head), None)
    versions = [base] if base else git("log", "-2", "--format=%H", "--", name).split()
    texts = [text for version in versions if (text := git("show", f"{version}:{name}"))]
    return next((text for text in texts if text != now), None)


def git(*arguments: str) -> str:
    return subprocess.run([str(shutil.which("git")), *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def test_a_file_too_many_is_seen(tmp_path: Path) -> None:
    room = tmp_path / "ortlens" / "lens"
    room.mkdir(parents=True)
    (room / "one.py").write_text("x = 1\n", encoding="utf-8")
    budgets = measured(tmp_path)
    assert budgets == {"ortlens": Size(1, 1), "ortlens/lens": Size(1, 1)}
    (room / "planted.py").write_text('"""Nothing but words."""\n', encoding="utf-8")
    assert exceeded(measured(tmp_path), budgets) == ["ortlens/lens: 2 files for 1"]
    (room / "one.py").write_text("x = 1\ny = 2\n", encoding="utf-8")
    (room / "inner").mkdir()
    (room / "inner" / "new.py").write_text("", encoding="utf-8")
    assert exceeded(measured(tmp_path), budgets) == [
        "ortlens/lens/inner: has no budget",
        "ortlens/lens: 2 lines for 1, 2 files for 1",
    ]


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        (("[60, 2]", "[59, 2]"), []),
        (("[60, 2]", "[61, 2]"), ["ortlens: its folders have more than it has itself"]),
        (("[40, 2]", "[40, 3]"), ["ortlens: its folders have more than it has itself"]),
        (('[60, 2]\n"ortlens/views" = [40, 2]', '[50, 1]\n"ortlens/views" = [50, 3]'), []),
        (('"ortlens/views" = [40, 2]', '"ortlens/views" = [40, 2]\n"ortlens/views/pages" = [30, 1]'), []),
        (("[100, 4]", "[150, 4]"), ["ortlens: 50 lines more, 0 granted"]),
        (("[200, 9]", '[230, 9]\n[granted."More providers"]\ntests = [30, 0]'), []),
        (("[200, 9]", '[230, 9]\n[granted."More providers"]\ntests = [20, 0]'), ["tests: 30 lines more, 20 granted"]),
    ],
)
def test_a_budget_goes_up_only_where_another_goes_down_or_lines_are_granted(change: tuple[str, str], fails: list[str]) -> None:
    after = TEXT.replace(*change)
    assert after != TEXT
    assert raised(TEXT, after) == fails


def test_lines_are_granted_once() -> None:
    granted = TEXT + '[granted."More providers"]\ntests = [30, 0]\n'
    assert raised(granted, granted.replace("[200, 9]", "[230, 9]")) == ["tests: 30 lines more, 0 granted"]


def test_what_counts_as_code() -> None:
    source = '"""A module."""\n\n# why\nx = 1  # so\n\ndef f():\n    """Do it.\n\n    At once.\n    """\n    return """a\nb"""\n'
    assert code_lines(source, ".py") == 4
    assert code_lines("/* a\n   b */\nlet x = 1; // so\n\n// why\n", ".js") == 1
    assert code_lines("# Title\n\nText\n", ".md") == 2


def test_budgets_follow_what_was_taken_away() -> None:
    sizes = {"ortlens": Size(90, 5), "ortlens/lens": Size(50, 2), "tests": Size(200, 9)}
    assert read(lowered(TEXT, sizes))[0] == {"ortlens": Size(90, 4), "ortlens/lens": Size(50, 2), "tests": Size(200, 9)}
