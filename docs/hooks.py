"""Add the pages of docs/pages.py while mkdocs builds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File
from pygments.formatters.html import HtmlFormatter

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

CODE = {"light": "default", "dark": "github-dark"}
"""Styles of Pygments that can be read on the grounds of the theme."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # mkdocs does not look for modules where it is called
    from docs.pages import PAGES

    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    for shade, style in CODE.items():
        files.append(File.generated(config, f"code-{shade}.css", content=HtmlFormatter(style=style).get_style_defs(".highlight")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:  # noqa: ANN401 - what mkdocs passes
    from docs.pages import libraries

    return markdown + libraries() if page.file.src_uri == "integrations.md" else markdown


def on_page_content(html: str, **_: Any) -> str:  # noqa: ANN401 - as above
    """Put each table into a box that scrolls, which the keyboard reaches as it does code."""
    boxed = html.replace("<table>", '<div class="wide" tabindex="0"><table>').replace("</table>", "</table></div>")
    return boxed.replace("<pre>", '<pre tabindex="0">')
