"""The smallest page that shows the explorer, under the rules that a report sets itself."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.views.payload import payload_bytes

if TYPE_CHECKING:
    from ortlens.trace.records import Capture

STATIC = Path(__file__).parents[2] / "ortlens" / "views" / "static"
_RULES = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
_STYLE = "body{margin:0;background:Canvas;color:CanvasText;color-scheme:light dark;--ortlens-height:100vh}"


def page_from_captures(*captures: Capture) -> str:
    """A page with a view per capture.

    Args:
        *captures: What to show.

    Returns:
        The HTML; it loads nothing.
    """
    css = (STATIC / "explorer.css").read_text(encoding="utf-8")
    script = (STATIC / "explorer.report.js").read_text(encoding="utf-8").replace("</script", "<\\/script")
    data = [base64.b64encode(payload_bytes(capture)).decode() for capture in captures]
    views = "".join(
        f'<div data-ortlens-payload="data{n}"></div><script type="text/plain" id="data{n}">{text}</script>' for n, text in enumerate(data)
    )
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_RULES}"><title>explorer</title>'
    body = f"<body>{views}<script>{script}</script></body>"
    return f"<!doctype html><html lang='en'><head>{head}<style>{_STYLE}</style><style>{css}</style></head>{body}</html>"
