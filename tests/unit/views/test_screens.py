"""The words of every screen and page, asserted here alone: one file per renderer in `screens/`, nearly all from one rich capture.

After a change of wording, write them anew and read the difference: `python -m tests.unit.views.test_screens`
"""

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ortlens
from ortlens.analysis.answers.overview import SurveyRow, figures_of
from ortlens.analysis.compare.comparison import compared
from ortlens.views.comparison import comparison_html
from ortlens.views.comparison_screen import comparison_screen
from ortlens.views.payload import payload_from_capture
from ortlens.views.rendering import mimebundle, screen_text, summary
from ortlens.views.report import report_page
from ortlens.views.survey_page import survey_page
from tests.recorded import recorded
from tests.unit.views.sample_captures import SAMPLES, rich

FOLDER = Path(__file__).with_name("screens")
RICH = rich()
SPACES = (
    (r"<(script|style|svg)\b.*?</\1>", ""),
    (r"</?(?:a|b|code|em|small|span|strong)\b[^>]*>", " "),
    (r"<t[dh]\b[^>]*>", " | "),
    (r"</t[dh]>|\n", ""),
    (r"<[^>]+>", "\n"),
)
"""What becomes of the tags of a page."""


def words(page: str) -> str:
    """The text that a reader of a page sees, one block per line."""
    for pattern, text in SPACES:
        page = re.sub(pattern, text, page, flags=re.DOTALL)
    lines = (" ".join(line.split()).removeprefix("| ") for line in html.unescape(page).split("\n"))
    return "\n".join(filter(None, lines))


def said(value: object, name: str = "") -> Iterator[str]:
    """The sentences of plain data, each with its place."""
    if isinstance(value, str) and " " in value:
        yield f"{name}: {value}"
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, inner in pairs:
        yield from said(inner, f"{name}.{key}".lstrip("."))


def summaries() -> str:
    """The summary, and those of other situations."""
    small = (SAMPLES[name] for name in ("empty", "whole", "nothing_runs", "foreign", "no_compute", "training"))
    return "\n\n".join(summary(capture) for capture in (RICH, *small))


def comparison() -> str:
    """Two recordings of one program: times are compared where enough calls were recorded."""
    found = compared(*map(recorded, ("before", "after")))
    return f"{screen_text(comparison_screen(found))}\n\n{words(comparison_html(found))}"


def survey() -> str:
    rows = [
        SurveyRow(case="rich", status="ok", **figures_of(RICH)),
        SurveyRow(case="wrong", status="ok", coverage=0.5, partitions=2, breaks=1, ratio=1.5, wrong=1, max_abs=0.1),
        SurveyRow(case="crash", status="crashed", reason="SIGSEGV"),
    ]
    return words(survey_page(rows, lambda _: None, title="All", folder=Path()))


def report() -> str:
    """What the report says beyond the summary of a notebook, which is a part of it."""
    page = words(report_page(RICH, models=False)).replace(ortlens.__version__, "VERSION")
    return "\n".join(line for line in page.split("\n") if line not in words(mimebundle(lambda: RICH)["text/html"]).split("\n"))


SCREENS: dict[str, Callable[[], str]] = {
    "summary": summaries,
    "notebook": lambda: words(mimebundle(lambda: RICH)["text/html"]),
    "report": report,
    "comparison": comparison,
    "survey": survey,
    "explorer": lambda: "\n".join(said(payload_from_capture(RICH)["overview"])),
}


@pytest.mark.parametrize("name", SCREENS)
def test_the_words_of_a_screen(name: str) -> None:
    assert f"{SCREENS[name]()}\n" == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for name, text in SCREENS.items():
        (FOLDER / f"{name}.txt").write_text(f"{text()}\n", encoding="utf-8")
