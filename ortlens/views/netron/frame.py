"""The page in the frame: Netron's modules packed, our script that runs them, and the rules that keep it from asking for anything."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.views.netron.viewer import LICENCE, Viewer, operators_for
from ortlens.views.policy import policy, script_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.views.netron.slim import SlimModel


@cache
def _own(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def page_policy() -> dict[str, str]:
    """List what a page must allow for the frame to work: a frame without its own URL inherits the page's rules.

    All these sources are made in the frame; nothing is loaded.
    """
    return {
        "script-src": f"{script_source(_own('frame.js'))} blob:",
        "worker-src": "blob:",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
    }


def frame_html(viewer: Viewer, models: Sequence[SlimModel], *, shown: tuple[str, bytes] | None = None) -> str:
    """Make the page that goes into the frame; it loads nothing, and its own rules forbid it to.

    `models` tell which operators it must know. It opens `shown` by itself; without, it waits for the page around to hand a model over.
    """
    used = {operator for model in models for operator in model.operators}
    opsets = {opset for model in models for opset in model.opsets}
    packed = {
        "version": viewer.version,
        "modules": viewer.modules,
        "styles": viewer.styles,
        "body": viewer.body,
        "operators": json.dumps(operators_for(viewer, used, opsets)),
    }
    code = _packed(json.dumps(packed).encode())
    # Not the script's hash: where a page around allows inline scripts only, the modules are run by one that the script makes.
    # That the nonce can be known is no matter: markup that got in through a name can hold no script that runs, only handlers.
    nonce = hashlib.sha256(code.encode()).hexdigest()[:32]
    rules = policy(more={"script-src": f"'nonce-{nonce}' blob:", "worker-src": "blob:", "img-src": "data:"})
    body = "<div id='ortlens-netron'></div><div id='ortlens-tools'></div><p id='ortlens-note' role='status'>Opening Netron…</p>"
    data = f"<script type='text/plain' id='ortlens-code'>{code}</script>"
    if shown:
        data += f"<script type='text/plain' id='ortlens-model' data-id='{escape(shown[0], quote=True)}'>{_packed(shown[1])}</script>"
    meta = f"<meta charset='utf-8'><meta http-equiv='Content-Security-Policy' content=\"{rules}\">"
    head = f"{meta}<title>Netron</title><style>{_own('frame.css')}</style>"
    return (
        f"<!doctype html>\n<!--\n{LICENCE}-->\n<html lang='en'><head>{head}</head><body class='welcome spinner'>{body}{data}"
        f"<script nonce='{nonce}'>{_own('frame.js')}</script></body></html>"
    )


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode("ascii")
