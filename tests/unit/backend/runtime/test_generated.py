"""Generated functions: a traceback shows their source, and nothing of it stays when they are gone."""

from __future__ import annotations

import linecache
import traceback
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ortlens
from ortlens.backend.runtime.generated import function_from_source

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = "def call(a0):\n    b = a0 + one\n    return b / zero\n"


def made() -> Callable[..., Any]:
    return function_from_source("call", SOURCE, {"one": 1, "zero": 0})


def test_a_traceback_shows_the_line_that_raised() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        made()(1)
    frame = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (frame.name, frame.lineno, frame.line) == ("call", 3, "return b / zero")


def test_the_source_outlives_a_check_of_the_cache_but_not_the_function() -> None:
    function = made()
    file = function.__code__.co_filename
    linecache.checkcache()
    assert "".join(linecache.getlines(file)) == SOURCE
    del function
    assert file not in linecache.cache


def test_functions_have_files_of_their_own() -> None:
    first, second = made(), made()
    assert first.__code__.co_filename != second.__code__.co_filename
    assert first.__code__.co_filename.startswith("<ortlens call ")


def test_an_operator_that_raises_in_a_graph_shows_its_line() -> None:
    """The check stays in PyTorch, between partitions, and is a line of the generated program."""

    def checked(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        torch._assert_async((index < 2).all(), "index out of range")
        return x.sin()

    compiled = torch.compile(checked, backend=ortlens.Lens(), fullgraph=True)
    with torch.no_grad():
        compiled(torch.ones(2), torch.tensor([1]))
        with pytest.raises(RuntimeError) as raised:
            compiled(torch.ones(2), torch.tensor([3]))
    (frame,) = [frame for frame in traceback.extract_tb(raised.value.__traceback__) if frame.filename.startswith("<ortlens program ")]
    assert frame.line is not None
    assert frame.line.startswith("v")
    assert "= c" in frame.line
