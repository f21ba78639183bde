"""A part of PyTorch's databases of modules and optimisers; `make sweep-opinfo` judges all of them."""

from __future__ import annotations

import pytest

from tests.opinfo.modules import cases, verdict_of

_EVERY = 40


@pytest.mark.slow
def test_modules_and_optimisers_answer_as_in_eager() -> None:
    found = {}
    for name, case in list(cases().items())[::_EVERY]:
        verdict, said = verdict_of(case)
        if verdict == "wrong":
            found[name] = said
    assert found == {}


def test_a_wrong_answer_and_a_warning_are_told() -> None:
    right = {"eager": [1.0], "other": [2.0]}
    assert verdict_of(lambda backend: right["other" if backend == "ortlens" else "eager"]) == ("wrong", "value 0: 2.0 instead of 1.0")
    assert verdict_of(lambda backend: right["eager" if backend is None else "other"])[0] == "control"
    assert verdict_of(lambda _: right["eager"]) == ("right", "")
