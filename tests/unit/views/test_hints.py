"""A screen suggests only what its reader can type where it is shown."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ortlens
from ortlens.lens.lens import Lens
from ortlens.trace.records import Capture
from ortlens.views.capture_view import SavedCapture
from ortlens.views.payload import payload_from_capture
from ortlens.views.rendering import mimebundle, summary
from ortlens.views.wording import COMMAND, LENS, MAGIC, SAVED, WANTS, Hints
from tests.recorded import FILES
from tests.unit.views.sample_captures import SAMPLES, captured

PLACES: dict[str, Hints] = {hints.place: hints for hints in (LENS, MAGIC, COMMAND, SAVED)}
METHOD = re.compile(r"\b(?:lens|tune|what_if|profile|verify|measure)(?:\.\w+)?\([^)]*\)")
"""A call that only somebody with a lens can make."""

ONLY = {
    "lens": r"(?!)",
    "magic": METHOD.pattern,
    "command": rf"{METHOD.pattern}|%ortlens",
    "saved": r"ortlens explain|%ortlens|(?<!; )\blens\.\w+\(",
}
"""What nobody can type there."""


def screens(capture: Capture, hints: Hints) -> Iterator[str]:
    yield summary(capture, width=120, hints=hints)
    yield from mimebundle(lambda: capture, hints).values()
    yield json.dumps(payload_from_capture(capture, hints=hints)["overview"])


@pytest.mark.parametrize("place", PLACES)
# Without `hostile`, whose names are calls, and `huge`, which repeats what the others show.
@pytest.mark.parametrize("name", [*sorted(SAMPLES.keys() - {"hostile", "huge"}), *FILES])
def test_no_view_suggests_what_cannot_be_typed_there(name: str, place: str) -> None:
    for text in screens(captured(name), PLACES[place]):
        assert re.search(ONLY[place], text) is None


def test_the_lens_is_named_as_the_user_named_it() -> None:
    assert "net.verify(x)" in summary(captured("split"), hints=Hints("lens", "net"))
    assert [Hints("lens", "net").text(want, is_onnx=True) for want in WANTS] == [
        'net = ortlens.explain("model.onnx")()',
        "",
        "net.profile()",
        "net.verify(module)",
    ]


def test_a_page_outlives_its_lens_and_a_loaded_capture_never_had_one(tmp_path: Path) -> None:
    lens = Lens()
    assert (lens.hints, SavedCapture(captured("split")).hints) == (LENS, SAVED)
    page = lens.report(tmp_path / "run.html").read_text(encoding="utf-8")
    assert not re.search(r"<code>lens\.", page)


def test_what_a_finding_says_to_do_names_no_lens() -> None:
    """Who reads it may have none."""
    found = []
    for path in sorted(Path(ortlens.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            given = [keyword.value for keyword in node.keywords if keyword.arg in ("mitigation", "hazard", "title")]
            given += node.args if isinstance(node.func, ast.Name) and node.func.id == "remedy" else []
            texts = [
                each.value for part in given for each in ast.walk(part) if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
            found += [(path.name, text) for text in texts if re.search(r"\blens\.\w|\w+\(\) again|backend=lens", text)]
    assert found == []
