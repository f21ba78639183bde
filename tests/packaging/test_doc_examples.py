"""Every Python example of the README, of the docs and of docstrings runs; on a page in the order in which a reader would type it.

The blocks of one file are one session in one fresh process and an empty folder. A block that cannot run in a test says
why, in a comment on the line before it: `<!-- not run: needs a GPU -->`.
"""

import doctest
import importlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"(?:^[ ]*<!-- not run: (?P<reason>[^\n]*?) -->\n)?"
    r"^(?P<indent>[ ]*)(?P<fence>```+|~~~+)[ ]*(?P<language>[A-Za-z0-9_+-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)(?P=fence)[ ]*$",
    flags=re.MULTILINE | re.DOTALL,
)
# Each block is compiled under the page's name with its first line's number, so that a traceback points into the page.
# A block that calls print, outside of its functions, has to show something: no empty line, and no table without rows.
SESSION = """
import ast, contextlib, io, json, sys
page, blocks = json.loads(sys.argv[1])
names = {"__name__": "__main__"}
for line, body in blocks:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile("\\n" * line + body, page, "exec"), names)
    statements = [node for node in ast.parse(body).body if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    calls = [node for part in statements for node in ast.walk(part) if isinstance(node, ast.Call)]
    printing = any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls)
    text = shown.getvalue()
    if printing and (not text.strip() or "Empty DataFrame" in text):
        raise AssertionError(f"{page}, line {line}: nothing is printed")
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


def pages_with_examples() -> Iterator[ParameterSet]:
    for page in PAGES:
        blocks = [(block.line, block.body) for block in python_blocks(page.read_text(encoding="utf-8")) if block.reason is None]
        if blocks:
            name = page.relative_to(ROOT).as_posix()
            yield pytest.param((name, blocks), id=name)


@pytest.mark.slow
@pytest.mark.parametrize("page", list(pages_with_examples()))
def test_the_examples_of_a_page_run(page: tuple[str, list[tuple[int, str]]], run_python: Callable[..., str]) -> None:
    # Not forked from a process with the imports: a lock that another thread holds at that moment would stay locked.
    run_python(SESSION, json.dumps(page), limit_s=300)


def test_a_block_that_is_not_run_says_why() -> None:
    wrong = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        left_out = [block for block in blocks_of(text) if block.reason is not None]
        wrong += [f"{page.name}:{block.line}" for block in left_out if len(block.reason or "") < 8]
        # A marker that no block follows, or that is misspelt, would be silence.
        if len(re.findall(r"<!--\s*not[ -_]?run", text, flags=re.IGNORECASE)) != len(left_out) + text.count("`<!-- not run: "):
            wrong.append(page.name)
    assert wrong == []


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


def test_blocks_are_found_and_what_fails_or_prints_nothing_is_named_with_its_line(run_python: Callable[..., str]) -> None:
    found = [(block.line, block.body, block.reason) for block in python_blocks(PAGE)]
    assert found == [(3, "x = 1\n", None), (8, "import no_such_package\n", "needs a GPU"), (14, "assert x == 1\n", None)]
    for blocks, said in (
        ([(3, "x = 1\n"), (14, "assert x == 2\n")], r'File "page.md", line 15'),
        ([(3, "import pandas\nprint(pandas.DataFrame(columns=['a']))")], r"page.md, line 3: nothing is printed"),
    ):
        with pytest.raises(AssertionError, match=said):
            run_python(SESSION, json.dumps(["page.md", blocks]))


FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples() -> list[str]:
    files = [path for path in sorted((ROOT / "ortlens").rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]


@pytest.mark.slow
@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_run(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # An example may save a file; it must not land in the checkout.
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert tried > 0
    assert failed == 0


def test_the_package_has_examples() -> None:
    assert {"ortlens", "ortlens._versions"} <= set(modules_with_examples())
