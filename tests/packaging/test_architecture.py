"""The architecture page names rooms and files that exist, and its walks stay short."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ortlens"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w./-]+\.py|[\w./-]+/)`")
MOST_NAMED, MOST_STEPS = 5, 8


def rooms() -> dict[str, list[str]]:
    """The rows of the room tables: room -> the names in its row, relative to the room."""
    found: dict[str, list[str]] = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = NAMED.findall(cells[0])
        if line.startswith("|") and names:
            for name in names:
                found.setdefault(name, [])
            found[names[0]] += NAMED.findall(" ".join(cells[2:]))
    return found


def walks() -> dict[str, list[str]]:
    """The walks: title -> the file at the head of each step."""
    text = PAGE[PAGE.index("## Three walks") : PAGE.index("## How a graph becomes sessions")]
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    return {section.partition("\n")[0]: re.findall(r"^\d+\. `([\w./]+\.py)`:", section, flags=re.MULTILINE) for section in sections}


def test_every_room_and_every_file_on_the_page_exists() -> None:
    missing = [room for room in rooms() if not (PACKAGE / room).exists()]
    missing += [f"{room}{name}" for room, names in rooms().items() for name in names if not (PACKAGE / room / name).exists()]
    missing += [name for names in walks().values() for name in names if not (PACKAGE / name).is_file()]
    assert missing == []


def test_every_folder_of_the_package_has_a_row_that_names_five_files_at_most() -> None:
    folders = {f"{path.parent.relative_to(PACKAGE).as_posix()}/" for path in PACKAGE.rglob("*.py")} - {"./"}
    assert folders - set(rooms()) == set()
    assert {room: len(names) for room, names in rooms().items() if len(names) > MOST_NAMED} == {}


def test_the_test_of_each_assumption_exists() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    known = {*(path.name for path in files), *re.findall(r"^def (test_\w+)", text, flags=re.MULTILINE)}
    named = re.findall(r"`(?:tests/\w+/)?(test_\w+(?:\.py)?)`", PAGE[PAGE.index("## What compiled code assumes") :])
    assert named
    assert set(named) - known == set()


def test_decisions_are_linked_from_the_page() -> None:
    linked = set(re.findall(r"\(adr/([\w-]+\.md)\)", PAGE))
    assert linked == {path.name for path in (ROOT / "docs" / "adr").glob("*.md")}


def test_no_walk_is_long_or_goes_back() -> None:
    assert {title: files for title, files in walks().items() if not 0 < len(files) <= MOST_STEPS or len(set(files)) < len(files)} == {}


def imports() -> set[tuple[str, str]]:
    """The pairs of rooms, of two levels at most, of which the first imports the second."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): _room(path) for path in PACKAGE.rglob("*.py")}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        statements = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom))
        names = {name for node in statements for name in (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))}
        found |= {(_room(path), modules[name]) for name in names & modules.keys()}
    return found


def _room(path: Path) -> str:
    return "/".join(path.relative_to(PACKAGE).parts[:-1][:2])


def test_rooms_do_not_import_each_other() -> None:
    found = imports()
    assert {pair for pair in found if pair[::-1] in found and pair[0] < pair[1] and pair[0]} == set()
