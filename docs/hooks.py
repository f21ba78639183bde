"""Add the pages of docs/pages.py while mkdocs builds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # mkdocs does not look for modules where it is called
    from docs.pages import PAGES

    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:  # noqa: ANN401 - what mkdocs passes
    from docs.pages import libraries

    return markdown + libraries() if page.file.src_uri == "integrations.md" else markdown
