"""Sentences of findings and advice, each asserted once, in wording.txt: `kind: sentence`."""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ortlens.analysis.answers.verdict import numbers_of
from ortlens.analysis.problems.stream import problems_of
from ortlens.views.sentences import numbers_sentence, partitions_sentence, problem_sentence, recompiles_sentence, wrong_sentence
from ortlens.views.tiles import tiles_of
from ortlens.views.time_sentences import call_sentences, generation_sentences, ledger_sentence
from tests.unit.analysis import (
    test_advice,
    test_findings_calls,
    test_findings_rules,
    test_generation,
    test_numbers,
    test_overview,
    test_timing,
)
from tests.unit.analysis.hand_made import found

WORDING = Path(__file__).with_name("wording.txt")


def findings() -> Iterator[str]:
    told = [(rule, fires) for rule, fires, *_ in test_findings_rules.CASES]
    for worded in (test_findings_rules.WORDED, test_findings_calls.WORDED_BESIDE_TORCH, test_findings_calls.WORDED):
        told += worded
    for rule, capture in told:
        for item in found(capture, rule):
            yield f"{rule}: {item.title} | {item.evidence} | {item.hazard} | {item.mitigation}"


def advised() -> Iterator[str]:
    versions: defaultdict[tuple[str, str | None], list[str]] = defaultdict(list)
    for version, subject, advice in test_advice.recorded():
        versions[subject, advice.sentence() if advice else None].append(version)
    for (subject, sentence), those in versions.items():
        only = "" if set(those) == set(test_advice.VERSIONS) else f" ({' '.join(sorted(set(those)))})"
        yield f"{subject}{only}: {sentence}"
    yield from (f"{subject}: {advice and advice.sentence()}" for subject, advice in test_advice.other_advice())


def overviews() -> Iterator[str]:
    for capture in (*test_overview.WORDED, test_generation.past_the_limit()):
        yield from (f"look at {look.kind}: {problem_sentence(look)}" for look in problems_of(capture)[:3])
    for capture in test_generation.WORDED:
        said = (partitions_sentence(capture), recompiles_sentence(capture), *generation_sentences(capture))
        yield f"generation: {' | '.join(said)}"
    yield f"time of a call: {ledger_sentence(test_generation.AROUND)}"
    yield from (f"time per call: {said}" for said in call_sentences(test_timing.two_functions()))
    for capture in test_numbers.WORDED:
        numbers = numbers_of(capture)
        assert numbers is not None
        yield f"numbers: {numbers_sentence(numbers)} | {wrong_sentence(numbers)} | {tiles_of(capture)[-1].detail}"


def test_sentences_are_those_of_the_file() -> None:
    """With ORTLENS_WRITE_WORDING=1, write the file anew; read the difference before it is committed."""
    lines = [line.replace("\n", "; ") for line in dict.fromkeys([*findings(), *overviews(), *advised()])]
    if os.environ.get("ORTLENS_WRITE_WORDING"):
        WORDING.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert WORDING.read_text(encoding="utf-8").splitlines() == lines
