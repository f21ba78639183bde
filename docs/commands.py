"""What to ask which command, for people and for assistants, made from the parsers that print the help."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from docs.json_schema import ANSWERS
from ortlens.cli.entry import commands_of, parser
from ortlens.magic.magics import parser_of
from ortlens.views.wording import first_sentence

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

_ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")

_PAGE = """# What to ask which command

{table}

`ortlens COMMAND --help` prints the same. [`--json`](cli.md#json) prints the answer as JSON. [In a shell](cli.md) says more about each.

{commands}

## The magics

{magics}
"""
_LLMS = """# ortlens

> {summary}

Ask with `ortlens COMMAND --json`: one object per answer, whose `recommendations` are what to do, the most useful first, each with file,
line and time. `ortlens explain MODULE:NAME --input f32[8,64] --json` answers most questions about a model; commands that read a capture
need neither torch nor ONNX Runtime. The exit code is 0, 1 for a negative answer, 2 for a wrong command or an error, which is one line on
stderr.

## Commands

{commands}

## Schemas

- [JSON Schema](reference/json.schema.json): what `--json` of each command prints, with a sentence and a unit per key
- [Frames and columns](reference/columns.html): the tables of a capture, as pandas frames and as rows of `ortlens show --table`

{pages}
"""


def commands_page() -> str:
    """Write the page: questions, then each command with its arguments and examples."""
    known = commands_of(parser())
    rows = [f"| {question} | [`ortlens {name}`](#ortlens-{name}) |" for name, command in known.items() for question in _asks(command)]
    table = "\n".join(["| question | command |", "|---|---|", *rows])
    magics = [f"`{magic}` takes\n\n{_arguments(parser_of(magic))}" for magic in ("%ortlens", "%%ortlens")]
    commands = (_command(name, command) for name, command in known.items())
    return _PAGE.format(table=table, commands="\n\n".join(commands), magics="\n\n".join(magics))


def _asks(command: argparse.ArgumentParser) -> tuple[str, ...]:
    found: tuple[str, ...] = getattr(command, "asks", ())
    return found


def _text(command: argparse.ArgumentParser) -> str:
    return " ".join((command.description or "").split())


def _command(name: str, command: argparse.ArgumentParser) -> str:
    examples = (command.epilog or "").partition("examples:\n")[2]
    lines = "\n".join(line[2:] for line in examples.splitlines())
    answer = f"\n\nIts answer has the schema `ortlens/{name}/1`." if name in ANSWERS else ""
    return f"## ortlens {name}\n\n{_text(command)}\n\n{_arguments(command)}{answer}\n\n```bash\n{lines}\n```"


def _arguments(command: argparse.ArgumentParser) -> str:
    return "\n".join(["| argument | meaning |", "|---|---|", *(_argument(action) for action in command._actions if action.dest != "help")])


def _argument(action: argparse.Action) -> str:
    shown = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.option_strings and action.nargs != 0:
        shown += f" {action.metavar or action.dest.upper()}"
    said = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    return f"| `{shown}` | {said.replace('|', chr(92) + '|')} |"


def llms_txt(generated: Mapping[str, Callable[[], str]]) -> str:
    """Write the file for assistants, in the form of llmstxt.org; `generated` are the pages that are not files."""
    settings = (_ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(re.search(r"^nav:\n(?:[ -].*\n)+", settings, flags=re.MULTILINE)[0])["nav"]  # type: ignore[index]  # there is one
    known = commands_of(parser())
    commands = [
        f"- [ortlens {name}](commands.html#ortlens-{name}): {_text(command)} Answers: {' '.join(_asks(command))}"
        for name, command in known.items()
    ]
    sections = [f"## {name}\n\n" + "\n".join(_pages(pages, generated)) for part in nav for name, pages in part.items()]
    summary = first_sentence(_plain(_prose((_ROOT / "docs" / "index.md").read_text(encoding="utf-8"))))
    return _LLMS.format(summary=summary, commands="\n".join(commands), pages="\n\n".join(sections))


def _pages(pages: list[dict[str, str]], generated: Mapping[str, Callable[[], Any]]) -> Iterator[str]:
    for page in pages:
        for title, name in page.items():
            text = generated[name]() if name in generated else (_ROOT / "docs" / name).read_text(encoding="utf-8")
            yield f"- [{title}]({name.removesuffix('.md')}.html): {first_sentence(_plain(_prose(text)))}"


def _prose(text: str) -> str:
    """Return the first paragraph below the heading, that is no picture, table or code."""
    parts = (part.strip() for part in text.split("\n\n")[1:])
    return next((part for part in parts if part and part[0] not in "|`#!<["), "")


def _plain(markdown: str) -> str:
    return " ".join(_LINK.sub(r"\1", markdown).split())
