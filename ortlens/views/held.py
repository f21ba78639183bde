"""Bytes that the browser needs, held once per kernel however many outputs need them: the explorer's code, and captures.

An ipywidgets model of its own, which outputs name by its id. Saved with the widget state, a notebook of ten outputs carries the
code once; so it does when it is sent to a page that opens.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import ipywidgets
import traitlets

from ortlens.views.payload import payload_bytes

if TYPE_CHECKING:
    from ortlens.trace.records import Capture

_STATIC = Path(__file__).parent / "static"
_HELD: dict[str, SharedBlob] = {}


class SharedBlob(ipywidgets.Widget):  # type: ignore[misc]  # ipywidgets has no types
    """Bytes in the browser."""

    content = traitlets.Bytes().tag(sync=True)

    def __init__(self, digest: str, content: bytes, capture: Capture | None) -> None:
        """Send the content; `capture` is the one that was packed, if it is one."""
        super().__init__(content=content)
        self.digest = digest
        self.capture = capture
        self.users: set[object] = set()


def hold_code(user: object) -> SharedBlob:
    """Hold the explorer's code for a user of it until `release`; all users share one model."""
    return _hold(code(), user)


def hold_capture(capture: Capture, user: object) -> SharedBlob:
    """Hold a packed capture for a user of it until `release`; equal snapshots are packed and sent once."""
    twin = next((held for held in _HELD.values() if held.capture is not None and _same(held.capture, capture)), None)
    return _hold(twin.content if twin else payload_bytes(capture), user, capture)


def _hold(content: bytes, user: object, capture: Capture | None = None) -> SharedBlob:
    digest = sha256(content).hexdigest()[:16]
    held = _HELD.get(digest)
    if held is None or held.comm is None:  # closed from outside, by `Widget.close_all`
        held = _HELD[digest] = SharedBlob(digest, content, capture)
    held.users.add(user)
    return held


def release(user: object) -> None:
    """Release everything that a user held; what has no user left is removed from the browser."""
    for digest, held in list(_HELD.items()):
        held.users.discard(user)
        if not held.users:
            del _HELD[digest]
            held.close()


@cache
def code() -> bytes:
    """Return the explorer's code and style sheet as gzip'd JSON; the same bundles give the same bytes."""
    parts = {"js": _text("explorer.widget.js"), "css": _text("explorer.css")}
    return gzip.compress(json.dumps(parts, separators=(",", ":")).encode(), mtime=0)


@cache
def loader() -> str:
    """Return the JavaScript module that every output carries, which finds the code and runs it."""
    return _text("explorer.loader.js")


def _same(one: Capture, other: Capture) -> bool:
    """Tell whether snapshots differ in their time alone, as those of a lens that saw nothing new do."""
    return one is other or replace(one, created="") == replace(other, created="")


def _text(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")
