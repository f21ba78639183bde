"""A compiled module is copied and pickled with its backend, whether that is a name, an `OrtBackend` or a lens."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ortlens import Lens, OrtBackend
from ortlens.lens.process import ProcessBackends

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.linspace(-1, 1, 8).reshape(2, 4)
BACKENDS = {
    "name": lambda: "ortlens",
    "OrtBackend": lambda: OrtBackend({"min_partition_nodes": 2}),
    "Lens": lambda: Lens(options={"min_partition_nodes": 2}, name="mine"),
    "Lens over another": lambda: Lens("eager"),
    "process": lambda: ProcessBackends().watched("ortlens"),
}


def pickled(held: Any) -> Any:  # noqa: ANN401 - whatever it is
    return pickle.loads(pickle.dumps(held))  # noqa: S301 - our own


@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, pickled], ids=["deepcopy", "copy", "pickle"])
@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_a_compiled_module_is_copied_and_pickled(make: Callable[[], Any], again: Callable[[Any], Any]) -> None:
    model = nn.Linear(4, 3)
    with torch.no_grad():
        compiled = torch.compile(model, backend=make())
        uncalled = again(compiled)
        torch.testing.assert_close(compiled(X), model(X))
        for each in (uncalled, again(compiled), compiled):
            torch.testing.assert_close(each(X), model(X))


def test_a_pickled_lens_is_a_new_one_over_the_same_backend() -> None:
    lens = Lens(options={"min_partition_nodes": 2}, name="mine")
    with torch.no_grad():
        compiled = pickled(torch.compile(nn.Linear(4, 3), backend=lens))
        compiled(X)
    made = pickled(lens)
    assert (made.name, made.captured().environment.get("option_min_partition_nodes", "2")) == ("mine", "2")
    assert lens.graphs.empty
