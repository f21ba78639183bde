"""What an entry tells the reader to look at is there, and two entries of one screen do not tell opposite things."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ortlens.analysis.problems.stream import RULES, findings_of, problems_of
from ortlens.trace.schema import TABLES
from tests.recorded import FILES, recorded
from tests.unit.analysis import test_findings_rules
from tests.unit.views.sample_captures import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ortlens.trace.records import Capture

CAPTURES = {
    **SAMPLES,
    **{name: recorded(name) for name in FILES},
    **{f"{rule}-{number}": fires for number, (rule, fires, *_) in enumerate(test_findings_rules.CASES)},
    **{f"worded-{number}": capture for number, (_, capture) in enumerate(test_findings_rules.WORDED)},
}
NAMED = {
    "breaks": re.compile(r"\bgraph breaks?\b"),
    "recompiles": re.compile(r"\brecompiles\b"),
    "fallbacks": re.compile(r"\bthese operators\b|\boperators (?:between them|on the CPU|that stay in PyTorch)"),
    "kernels": re.compile(r"\bthese kernels\b"),
}
"""Words of advice for records of a table."""

TABLE = re.compile(rf"\b(?:table|frame) ({'|'.join(TABLES)})\b")
RULE = re.compile(rf"`({'|'.join(sorted(RULES))})`")
OPTION = re.compile(r'options=\{"(\w+)": (.+)\}\)$|^(torch\.[\w.]+) = (.+)$')


def advice_of(capture: Capture) -> Iterator[str]:
    """What the rules and the list of actions tell to do."""
    yield from (finding.mitigation for finding in findings_of(capture) if finding.rule in RULES)
    yield from (look.mitigation for look in problems_of(capture))


def void_references(capture: Capture) -> Iterator[tuple[str, str]]:
    """Advice that names what this capture does not have."""
    rules = {finding.rule for finding in findings_of(capture)}
    for text in advice_of(capture):
        tables = {name for name, words in NAMED.items() if words.search(text)} | set(TABLE.findall(text))
        yield from ((name, text) for name in tables if not getattr(capture, name))
        yield from ((rule, text) for rule in RULE.findall(text) if rule not in rules)


def settings_of(capture: Capture) -> dict[str, set[str]]:
    """The values that the entries of a screen set, by option or setting."""
    found = defaultdict[str, set[str]](set)
    entries: Iterable[tuple[str, ...]] = (
        *(finding.settings for finding in findings_of(capture)),
        *(look.settings for look in problems_of(capture)),
    )
    for line in (line for settings in entries for line in settings):
        if (match := OPTION.search(line)) is not None:
            found[match[1] or match[3]].add(match[2] or match[4])
    return found


@pytest.mark.parametrize("name", CAPTURES)
def test_nothing_void_is_referred_to(name: str) -> None:
    whole = CAPTURES[name]
    for table in (None, "breaks", "recompiles", "fallbacks", "kernels"):
        capture = whole if table is None else replace(whole, **{table: ()})  # type: ignore[arg-type]  # by name
        assert list(void_references(capture)) == [], table


@pytest.mark.parametrize("name", CAPTURES)
def test_no_two_entries_set_one_option_to_different_values_or_to_what_it_is(name: str) -> None:
    capture = CAPTURES[name]
    found = settings_of(capture)
    assert {option: values for option, values in found.items() if len(values) > 1} == {}
    assert [option for option, values in found.items() if capture.environment.get(f"option_{option}") in values] == []
