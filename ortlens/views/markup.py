"""Pages and fragments of HTML: one environment of templates, which escape what they are given, one shell of a page, one way to write it.

Templates and style sheets are in `pages/`. No page loads anything, and its own Content-Security-Policy forbids it to: only those
inline scripts run that it names. What a template marks as `safe` is ours: styles and scripts.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens._files import write_asked
from ortlens._versions import require
from ortlens.errors import UsageError
from ortlens.units import percent, time_from_ns
from ortlens.views.wording import clipped, place, short

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from jinja2 import Environment


MARK = '<meta name="generator" content="ortlens report">'  # near the top of every page; identifies it as one
_FOLDER = Path(__file__).with_name("pages")
_MAX_TEXT = 240
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def render(template: str, **about: object) -> str:
    """Fill a template; texts are escaped, and control characters in them written out."""
    return _environment().get_template(template).render(about)


def page_html(
    template: str,
    title: str,
    *,
    styles: Iterable[str],
    scripts: Iterable[str] = (),
    sources: Mapping[str, str] | None = None,
    **about: object,
) -> str:
    """Fill a template that extends `page.html`.

    `styles` are style sheets, `scripts` the inline scripts that may run, and `sources` what else the page's rules allow, by directive.
    """
    rules = policy(map(script_source, scripts), sources)
    return render(template, title=title, mark=MARK, rules=rules, sheets="\n".join(styles), **about)


def policy(scripts: Iterable[str] = (), more: Mapping[str, str] | None = None) -> str:
    """Write the policy of a page for its `meta` element, without double quotes; `more` has sources by directive, separated by spaces."""
    sources = {"default-src": ["'none'"], "script-src": [*scripts], "style-src": ["'unsafe-inline'"]}
    for directive, added in (more or {}).items():
        found = sources.setdefault(directive, [])
        found += [source for source in added.split() if source not in found]
    rules = [f"{directive} {' '.join(found)}" for directive, found in sources.items() if found]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def script_source(script: str) -> str:
    """Return the hash that allows one inline script in `script-src`; `script` is the text between its tags."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def asset(name: str) -> str:
    """Read a style sheet, script or text of the pages; style sheets come as one line."""
    text = (_FOLDER / name).read_text(encoding="utf-8")
    return _COMMENT.sub("", text).replace("\n", "") if name.endswith(".css") else text.strip()


@cache
def static(name: str) -> str:
    """Read a file that the frontend's build made."""
    return (_FOLDER.with_name("static") / name).read_text(encoding="utf-8")


def safe(text: str) -> str:
    """Cut text, write control characters out and escape markup: it is harmless in HTML, within tags and in attributes."""
    return escape(clipped(text, _MAX_TEXT), quote=True)


@cache
def _environment() -> Environment:
    require("jinja2", feature="HTML")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters: dict[str, Callable[..., str]] = {
        "clip": lambda text, width=_MAX_TEXT: clipped(text, width),
        "sentence": lambda text: f"{text[:1].upper()}{text[1:].rstrip('.')}.",
        "width": lambda share: f"{int(min(max(share, 0.0), 1.0) * 1000) / 10:.1f}%",  # of a bar; rounded down, so that a full bar means all
        "percent": percent,
        "place": lambda item: place(item.file, item.line),
        "short": short,
        "time": time_from_ns,
    }
    environment.filters |= filters
    environment.globals["asset"] = asset
    return environment


_HEAD = 4096  # bytes in which the mark is looked for


def write_report(path: str | os.PathLike[str], page: str) -> Path:
    """Write a page with `MARK` at its top, and return the absolute path; a file that is no report raises `UsageError`."""
    return write_asked(checked_target(path), page.encode("utf-8"), "the report")


_OTHER_FORMS = (".pdf", ".png", ".svg", ".jpg", ".md", ".docx", ".csv", ".json", ".ortlens")


def checked_target(path: str | os.PathLike[str]) -> Path:
    """Check that a report may be written there, before the work of making it, and return the absolute path."""
    try:
        target = Path(path).expanduser().resolve()
        if target.suffix.lower() in _OTHER_FORMS:
            raise UsageError(f"a report is HTML; write {target.with_suffix('.html').name}, which a browser prints to PDF")
        if target.is_dir():
            raise UsageError(f"{target} is a folder; name a file in it, such as {target / 'report.html'}")
        if not target.parent.is_dir():
            raise UsageError(f"there is no folder {target.parent}; create it first, or choose another file")
        if target.exists() and not _is_report(target):
            raise UsageError(f"{target} exists and is not an ortlens report, so it is not overwritten. Remove it, or choose another file")
    except (OSError, RuntimeError, TypeError, ValueError) as err:
        if isinstance(err, UsageError):
            raise
        raise UsageError(f"a report cannot be written to {path!r}: {err}") from err
    return target


def _is_report(target: Path) -> bool:
    if not target.is_file():  # a pipe or a device: reading it may never end
        return False
    with target.open("rb") as stream:
        head = stream.read(_HEAD)
    return not head or MARK.encode() in head
