"""Entries of the list of actions: one per cause, with what follows from it, and none that refers to nothing or contradicts another."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from ortlens.analysis.problems.stream import RULES, findings_of, problems_of
from ortlens.trace.records import Break, Capture, Finding, Recompile
from ortlens.trace.schema import TABLES
from ortlens.views.payload import payload_from_capture
from ortlens.views.rendering import summary
from ortlens.views.sentences import consequence_sentences
from tests.recorded import FILES, recorded
from tests.unit.analysis import test_findings_rules
from tests.unit.analysis.hand_made import FILE, MICRO, clean, fallback, graph, node, session
from tests.unit.views.sample_captures import SAMPLES

CAPTURES = {
    **SAMPLES,
    **{name: recorded(name) for name in FILES},
    **{f"{rule}-{number}": fires for number, (rule, fires, *_) in enumerate(test_findings_rules.CASES)},
    **{f"worded-{number}": capture for number, (_, capture) in enumerate(test_findings_rules.WORDED)},
}


def finding(rule: str, subject: str = "g0", **about: Any) -> Finding:  # noqa: ANN401 - fields of the record
    return Finding(rule=rule, subject=subject, **{"severity": "warning", "title": f"{rule} of {subject}", "mitigation": rule} | about)


def entries(capture: Capture) -> dict[str, list[str]]:
    """What follows from each entry, by what both are about."""
    return {look.rule: [item.rule for item in look.consequences] for look in problems_of(capture)}


def staying(*found: Finding, ns: int = 100 * MICRO, **about: Any) -> Capture:  # noqa: ANN401 - fields of a fallback
    row = fallback("n", calls=100, total_ns=100 * ns, call_ns=ns, **about)
    capture = clean(graphs=(graph(fallback_count=1, partition_count=2),), fallbacks=(row,), findings=found)
    return replace(capture, sessions=(session(spinning=False),))


SLOW = finding("slower_than_torch", gain_ns=80 * MICRO, measured=True)
BROKEN = Break(break_id="b0", reason="data", file=FILE, line=7, occurrences=2, advice="Rewrite it")
SHARED = tuple(session(n, "p0", cause="weights" if n else "first", weights_change="other_module" if n else None) for n in range(3))


@pytest.mark.parametrize(
    ("capture", "expected"),
    [
        (staying(SLOW), {"fallback": ["slower_than_torch"]}),
        (staying(SLOW, ns=30 * MICRO), {"slower_than_torch": [], "fallback": []}),  # which is not what makes it slower
        (staying(replace(SLOW, subject="p0")), {"slower_than_torch": [], "fallback": []}),  # a partition, which the operator is not in
        (staying(SLOW, reason_code="policy"), {"slower_than_torch": ["fallback"]}),  # nothing is known to be gained by bringing it in
        (
            replace(
                staying(finding("float64_nodes"), reason_code="session_refused"),
                nodes=(node("n", dtype="float64", supported=False, partition_id=None),),
            ),
            {"float64_nodes": ["fallback"]},
        ),
        (clean(sessions=SHARED, breaks=(BROKEN,)), {"break": ["weights_changed"]}),
        (clean(sessions=SHARED), {"weights_changed": []}),
        (clean(findings=(finding("slower_call"), finding("training_forward"))), {"training_forward": ["slower_call"]}),
        (clean(findings=tuple(finding("session_churn", f"p{n}") for n in range(3))), {"session_churn": ["session_churn"] * 2}),
        (
            clean(findings=(finding("call_differs", severity="error"), finding("numbers_differ", severity="error"))),
            {"numbers_differ": ["call_differs"]},
        ),
    ],
)
def test_what_follows_from_a_cause_is_under_it(capture: Capture, expected: dict[str, list[str]]) -> None:
    assert entries(capture) == expected


@pytest.mark.parametrize("name", [name for name in CAPTURES if name != "huge"])  # whose findings are all the same
def test_each_finding_has_one_place_and_no_two_entries_say_the_same(name: str) -> None:
    looks = problems_of(CAPTURES[name])
    places = [item.index for look in looks for item in (look, *look.consequences) if item.index is not None]
    assert len(places) == len(set(places))
    said = [(look.rule, look.mitigation, look.advice or look.title, look.file) for look in looks if look.mitigation]
    assert len(said) == len(set(map(repr, said)))
    assert all(not inner.consequences for look in looks for inner in look.consequences)


def test_a_screen_says_what_to_do_once() -> None:
    item = Recompile(compile_id="0/1", function="f", file=FILE, line=3, guard="self.step == 1", reason="self.step == 1")
    again = (item, replace(item, compile_id="0/2"))
    text = summary(clean(breaks=(BROKEN,), recompiles=again, findings=(finding("heavy_guards", title="many guards"),)), width=120)
    assert [text.lower().count(words) for words in ("rewrite it", "pass `self.step`", "many guards")] == [1, 1, 1]
    assert text.count("To do: see ") == 2


def test_what_is_faster_without_onnx_runtime_says_so_under_its_cause() -> None:
    (look,) = problems_of(staying(replace(SLOW, todo="Leave it uncompiled")))
    assert consequence_sentences(look) == ["or leave it uncompiled; saves 80.0 µs per run, measured; slower_than_torch of g0"]
    assert look.title == "aten.median.dim"


def test_a_finding_names_the_action_that_mends_it() -> None:
    capture = staying(SLOW)
    facts = payload_from_capture(capture)["overview"]
    assert [(row.rule, cause) for row, cause in zip(findings_of(capture), facts["causes"], strict=True)] == [
        ("slower_than_torch", 1),
        *((row.rule, None) for row in findings_of(capture)[3:]),
    ]


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
