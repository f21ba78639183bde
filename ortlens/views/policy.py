"""The Content-Security-Policy of every page that is written: nothing is loaded, and of inline scripts only those run that it names."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def script_source(script: str) -> str:
    """Return the hash that allows one inline script in `script-src`; `script` is the text between its tags."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def policy(scripts: Iterable[str] = (), more: Mapping[str, str] | None = None) -> str:
    """Write the policy of a page for its `meta` element, without double quotes; `more` has sources by directive, separated by spaces."""
    sources = {"default-src": ["'none'"], "script-src": [script_source(script) for script in scripts], "style-src": ["'unsafe-inline'"]}
    for directive, added in (more or {}).items():
        found = sources.setdefault(directive, [])
        found += [source for source in added.split() if source not in found]
    rules = [f"{directive} {' '.join(found)}" for directive, found in sources.items() if found]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])
