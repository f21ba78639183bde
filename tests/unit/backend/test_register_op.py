"""The process-wide table of conversion functions, and what may stand in a translation table."""

import functools
from typing import Any

import pytest
import torch

import ortlens
from ortlens import OrtBackend, UsageError
from ortlens.backend.basis import options
from tests.threads import in_threads

pytestmark = pytest.mark.usefixtures("own_instances")
SIN, COS = torch.ops.aten.sin.default, torch.ops.aten.cos.default


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the process as it was: there is no way to take an operator back."""
    monkeypatch.setattr(options, "_registered", {})


def convert(x: Any) -> Any:  # noqa: ANN401 - an ONNX Script function is never called here
    return x


other = functools.partial(convert)


def test_the_last_word_counts_and_the_table_is_a_copy() -> None:
    assert options.registered_ops() == {}
    ortlens.register_op(SIN, convert)
    held = options.registered_ops()
    ortlens.register_op(SIN, other)
    assert held == {SIN: convert}
    assert options.registered_ops() == {SIN: other}


@pytest.mark.parametrize(
    ("target", "function", "message"),
    [
        (torch.ops.aten.sin, convert, r"name one of its overloads: .*aten\.sin\.default"),
        (torch.ops.aten, convert, "not an op overload"),
        (torch.sin, convert, "not an op overload"),
        ("aten::sin", convert, "'aten::sin' is not an op overload"),
        (None, convert, "None is not an op overload"),
        (SIN, None, r"aten\.sin\.default is a NoneType"),
        (SIN, "convert", "is a str, which is not callable"),
        (SIN, [convert], "is a list, which is not callable"),
    ],
)
def test_what_no_graph_could_use_is_refused_by_name(target: Any, function: Any, message: str) -> None:  # noqa: ANN401 - wrong on purpose
    with pytest.raises(UsageError, match=f"register_op: .*{message}"):
        ortlens.register_op(target, function)
    assert options.registered_ops() == {}
    with pytest.raises(UsageError, match=f"custom_translation_table: .*{message}"):
        OrtBackend({"custom_translation_table": {target: function}})


def test_a_table_that_is_none() -> None:
    for table in ([(SIN, convert)], SIN, "sin", 3):
        with pytest.raises(UsageError, match=f"custom_translation_table must map .* {type(table).__name__}"):
            options.check_table(table)


def test_a_backend_notices_what_is_registered_later_and_its_own_table_goes_first() -> None:
    backend, own = OrtBackend({"custom_translation_table": {}}), OrtBackend({"custom_translation_table": {SIN: other}})
    assert backend.compiler.tables()[0].get_decomps(SIN)[0].onnx_function is not convert
    ortlens.register_op(SIN, convert)
    ortlens.register_op(COS, convert)
    for compiler, functions in ((backend.compiler, [convert, convert]), (own.compiler, [other, convert])):
        assert [compiler.tables()[0].get_decomps(target)[0].onnx_function for target in (SIN, COS)] == functions
        assert compiler.tables() is compiler.tables()


def test_registering_from_many_threads_loses_nothing() -> None:
    targets = [getattr(torch.ops.aten, name).default for name in ("sin", "cos", "tan", "exp", "log", "abs", "neg", "relu")]
    in_threads(lambda number: ortlens.register_op(targets[number], convert), len(targets))
    assert set(options.registered_ops()) == set(targets)
