"""Every Python example of the README and of the docs runs, in the order in which a reader would type it.

The blocks of one file are one session in one fresh process and an empty folder. A block that cannot run in a test says
why, in a comment on the line before it: `<!-- not run: needs a GPU -->`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"(?:^[ ]*<!-- not run: (?P<reason>[^\n]*?) -->\n)?"
    r"^(?P<indent>[ ]*)(?P<fence>```+|~~~+)[ ]*(?P<language>[A-Za-z0-9_+-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)(?P=fence)[ ]*$",
    flags=re.MULTILINE | re.DOTALL,
)
# Each block is compiled under the page's name with its first line's number, so that a traceback points into the page.
SESSION = """
import json, sys
page, blocks = json.loads(sys.argv[1])
names = {"__name__": "__main__"}
for line, body in blocks:
    exec(compile("\\n" * line + body, page, "exec"), names)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    line: int
    language: str
    body: str
    reason: str | None


def blocks_of(text: str) -> list[Block]:
    """Find the fenced blocks of a Markdown text, in order; empty when there are none."""
    return [
        Block(
            line=text.count("\n", 0, match.start("fence")) + 1,
            language=match["language"].lower(),
            body=re.sub(f"^{match['indent']}", "", match["body"], flags=re.MULTILINE),
            reason=match["reason"],
        )
        for match in FENCE.finditer(text)
    ]


def python_blocks(text: str) -> list[Block]:
    return [block for block in blocks_of(text) if block.language in {"python", "py", "python3"}]


def test_the_readme_is_there() -> None:
    assert (ROOT / "README.md").is_file()


def test_the_readme_has_an_example_that_runs() -> None:
    assert [block for block in python_blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.reason is None]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_examples_of_a_page_run(page: Path, run_python: Callable[..., str]) -> None:
    blocks = python_blocks(page.read_text(encoding="utf-8"))
    runnable = [(block.line, block.body) for block in blocks if block.reason is None]
    if runnable:
        run_python(SESSION, json.dumps([page.name, runnable]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    left_out = [block for block in blocks_of(text) if block.reason is not None]
    assert [block.line for block in left_out if len(block.reason or "") < 8] == []
    # A marker that stands before no block, or is misspelt, would be silence.
    assert len(re.findall(r"<!--\s*not[ -_]?run", text, flags=re.IGNORECASE)) == len(left_out) + text.count("`<!-- not run: ")


PAGE = """# Title

```python
x = 1
```

<!-- not run: needs a GPU -->
```python
import no_such_package
```

- in a list:

  ```python
  assert x == 1
  ```

```text
not python
```
"""


def test_blocks_are_found_with_their_lines_and_reasons() -> None:
    found = [(block.line, block.body, block.reason) for block in python_blocks(PAGE)]
    assert found == [(3, "x = 1\n", None), (8, "import no_such_package\n", "needs a GPU"), (14, "assert x == 1\n", None)]


def test_a_broken_example_fails_and_names_its_line(run_python: Callable[..., str]) -> None:
    blocks = [(block.line, block.body) for block in python_blocks(PAGE.replace("x == 1", "x == 2")) if block.reason is None]
    with pytest.raises(AssertionError, match=r'File "page.md", line 15'):
        run_python(SESSION, json.dumps(["page.md", blocks]))
