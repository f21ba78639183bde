"""What random programs found stays mended."""

import collections
from collections.abc import Callable, Mapping

import pytest

from tests.fuzz.claims import CLAIMS
from tests.fuzz.finds import FINDS, GRAPH_FINDS
from tests.fuzz.oracle import Verdict, judge, judge_graph
from tests.fuzz.program import Program, merged

_TOGETHER = 9


def batches(finds: Mapping[str, Program]) -> list[list[str]]:
    """The names of programs that one function can hold: they are called alike."""
    alike: dict[str, list[str]] = collections.defaultdict(list)
    for name, program in finds.items():
        alike[program.replace(inputs=(), state=(), body=(), returns=()).to_json()].append(name)
    return [names[place : place + _TOGETHER] for names in alike.values() for place in range(0, len(names), _TOGETHER)]


def assert_right(programs: Mapping[str, Program], judged: Callable[[Program], Verdict]) -> None:
    verdict = judged(merged(list(programs.values())))
    if verdict.word != "right":
        alone = {name: found.text() for name, program in programs.items() if (found := judged(program)).word != "right"}
        pytest.fail(f"{alone or 'together only'}\n{verdict.word}\n{verdict.text()}")


PROGRAMS = {**CLAIMS, **FINDS}


@pytest.mark.parametrize("names", batches(PROGRAMS), ids=lambda names: names[0])
def test_programs_are_pytorchs(names: list[str]) -> None:
    assert_right({name: PROGRAMS[name] for name in names}, judge)


@pytest.mark.parametrize("names", batches(GRAPH_FINDS), ids=lambda names: names[0])
def test_graphs_that_were_wrong(names: list[str]) -> None:
    assert_right({name: GRAPH_FINDS[name] for name in names}, judge_graph)
