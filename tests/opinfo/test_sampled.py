"""A part of the operator database; `make sweep-opinfo` judges all of it."""

from __future__ import annotations

import random

import pytest
import torch

from tests.opinfo import sweep
from tests.opinfo.exceptions import EXCEPTIONS, reason_for

_PAIRS = 20
_DTYPES = (torch.float32, torch.int64)


def _chosen() -> list[tuple[str, torch.dtype]]:
    known = sweep.operators()
    pairs = [(name, dtype) for name, op in sorted(known.items()) for dtype in _DTYPES if dtype in op.supported_dtypes("cpu")]
    return sorted(random.Random(0).sample(pairs, _PAIRS), key=str)  # noqa: S311 - which operators are tested


def test_every_exception_is_an_operator_with_a_reason_and_a_link() -> None:
    assert not EXCEPTIONS.keys() - sweep.operators().keys()
    assert not [name for name, reason in EXCEPTIONS.items() if not reason.text or not reason.link.startswith("https://")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # operators warn of what they will deprecate
def test_a_part_of_the_database_is_right() -> None:
    wrong = []
    for name, dtype in _chosen():
        for outcome in sweep.outcomes_of(name, [dtype], ["static"], 1):
            torch.compiler.reset()
            if outcome.verdict in ("wrong", "crash") and reason_for(name, outcome.dtype) is None:
                wrong.append(f"{outcome.verdict} {name} {outcome.dtype} sample {outcome.sample}: {outcome.detail}")
    assert not wrong, "\n".join(wrong)
