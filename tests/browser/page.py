"""The smallest page that shows the explorer, under the rules that a report sets itself."""

import base64
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import ViewportSize

from ortlens.trace.records import Capture
from ortlens.views.payload import payload_bytes

CHROMIUM = shutil.which("chromium")
BROWSER_MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium fonts-dejavu-core"),
    # playwright's own loop, when the last page is closed
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
WIDE: ViewportSize = {"width": 1280, "height": 800}
STATIC = Path(__file__).parents[2] / "ortlens" / "views" / "static"
_RULES = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
_STYLE = "body{margin:0;background:Canvas;color:CanvasText;color-scheme:light dark;--ortlens-height:100vh}"


def page_from_captures(*captures: Capture | bytes) -> str:
    """A page with a view per capture."""
    css = (STATIC / "explorer.css").read_text(encoding="utf-8")
    script = (STATIC / "explorer.report.js").read_text(encoding="utf-8").replace("</script", "<\\/script")
    packed = [capture if isinstance(capture, bytes) else payload_bytes(capture) for capture in captures]
    data = [base64.b64encode(one).decode() for one in packed]
    views = "".join(
        f'<div data-ortlens-payload="data{n}"></div><script type="text/plain" id="data{n}">{text}</script>' for n, text in enumerate(data)
    )
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_RULES}"><title>explorer</title>'
    body = f"<body>{views}<script>{script}</script></body>"
    return f"<!doctype html><html lang='en'><head>{head}<style>{_STYLE}</style><style>{css}</style></head>{body}</html>"
