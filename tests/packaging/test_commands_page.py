"""What to ask which command: every command, argument and question is on the page, and llms.txt leads to pages that exist."""

import re
from pathlib import Path

from docs.pages import PAGES
from ortlens.cli.entry import commands_of, parser

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENTRY = re.compile(r"- \[[^\]]+\]\(([\w./-]+)(?:#([\w-]+))?\): \S.{9,}")


def test_the_page_has_every_command_argument_and_question() -> None:
    page = PAGES["commands.md"]()
    sections = dict(re.findall(r"^## ortlens (\w+)\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    commands = commands_of(parser())
    assert list(sections) == list(commands)
    for name, command in commands.items():
        options = [text for action in command._actions if action.dest != "help" for text in action.option_strings]
        assert [text for text in options if text not in sections[name]] == []
        assert all(f"| {question} | [`ortlens {name}`]" in page for question in command.asks)  # type: ignore[attr-defined]  # ours have it


def test_llms_txt_has_its_form_and_leads_to_what_there_is() -> None:
    title, summary, *lines = [line for line in PAGES["llms.txt"]().splitlines() if line]
    assert (title, summary[:2]) == ("# ortlens", "> ")
    entries = [line for line in lines if line.startswith("- ")]
    assert [line for line in entries if not ENTRY.fullmatch(line)] == []
    names = [*(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")), *PAGES]
    pages = {name.removesuffix(".md") for name in names}
    linked = [ENTRY.fullmatch(line) for line in entries]
    assert {match[1].removesuffix(".html") for match in linked if match} <= pages
    assert {match[2] for match in linked if match and match[2]} == {f"ortlens-{name}" for name in commands_of(parser())}
