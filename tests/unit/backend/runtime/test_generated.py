"""Generated functions: a traceback shows their source, and nothing of it stays when they are gone."""

import linecache
import traceback

import pytest
import torch

import ortlens
from ortlens.backend.runtime.generated import function_from_source

SOURCE = "def call(a0):\n    b = a0 + one\n    return b / zero\n"


def test_a_traceback_shows_the_line_that_raised_and_the_source_goes_with_the_function() -> None:
    function, other = (function_from_source("call", SOURCE, {"one": 1, "zero": 0}) for _ in range(2))
    file = function.__code__.co_filename
    assert file != other.__code__.co_filename
    linecache.checkcache()
    try:
        function(1)
    except ZeroDivisionError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        assert (frame.name, frame.lineno, frame.line) == ("call", 3, "return b / zero")
        error.__traceback__ = None
    assert file in linecache.cache
    del function
    assert file not in linecache.cache


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
