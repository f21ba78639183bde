"""Dynamo's texts and guards taken apart: real ones, recorded, and what is left of them when they are damaged."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ortlens.analysis.identity import plain_function
from ortlens.lens.observing.break_texts import BreakText, break_from_text, recompile_from_text, value_text
from ortlens.lens.observing.compilations import BreakReason, ExplainOutput

FOLDER = Path(__file__).parents[3] / "data" / "dynamo_texts"
BREAKS: dict[str, list[str]] = json.loads((FOLDER / "breaks.json").read_text(encoding="utf-8"))
RECOMPILES: dict[str, list[str]] = json.loads((FOLDER / "advice-2.13.json").read_text(encoding="utf-8"))["recompiles"]
SOURCE = (FOLDER / "record.py").read_text(encoding="utf-8").splitlines()
ALL = [(name, number) for name, texts in BREAKS.items() for number in range(len(texts))]


def parsed(name: str, number: int = 0) -> BreakText:
    return break_from_text(BREAKS[name][number])


def line_of(said: BreakText) -> str:
    assert said.file == "/home/ada/model.py"
    assert said.line is not None
    return SOURCE[said.line - 1].split("#", maxsplit=1)[0].strip()


@pytest.mark.parametrize(
    ("name", "gb_id", "reason", "line", "more"),
    [
        (
            *("explicit_in_a_call", "GB0025", "Call to `torch._dynamo.graph_break()`", 'torch._dynamo.graph_break(msg="on purpose")'),
            ("User-inserted graph break. Message: on purpose", 1, "Remove the `torch._dynamo.graph_break()` call."),
        ),
        (
            *("branching", "GB0170", "Data-dependent branching", "if x.sum() > 0:"),
            ("Detected data-dependent branching", 3, "For the common pattern"),
        ),
        (
            *("item", "GB0124", "Unsupported Tensor.item() call with capture_scalar_outputs=False", "return x * x.sum().item()"),
            ("Dynamo does not support tracing `Tensor.item()`", 1, "Set `torch._dynamo.config.capture_scalar_outputs = True`"),
        ),
    ],
)
def test_a_text_is_taken_apart(name: str, gb_id: str, reason: str, line: str, more: tuple[str, int, str]) -> None:
    said = parsed(name)
    function = "inner" if name == "explicit_in_a_call" else name
    assert (said.gb_id, said.reason, said.function) == (gb_id, reason, function)
    assert line_of(said) == line
    assert said.frames[-1] == ("/home/ada/model.py", said.line, function)
    assert said.frames[0].function == "<module>"
    explanation, hints, first_hint = more
    assert (said.explanation or "").startswith(explanation)
    assert len(said.hints) == hints
    assert said.hints[0].startswith(first_hint)


@pytest.mark.parametrize(("name", "number"), ALL)
def test_every_text_is_plain_lines_without_debug_notes(name: str, number: int) -> None:
    said = parsed(name, number)
    of_frames = (part for frame in said.frames for part in (frame.file, frame.function))
    for text in (said.reason, said.explanation or "", *said.hints, *of_frames):
        unwanted = ("\n", "Developer debug context", "meta-pytorch.github.io", "site-packages/torch")
        assert [part for part in unwanted if part in text] == []


def test_a_function_that_dynamo_resumed_has_the_users_name() -> None:
    said = parsed("resumed", 1)
    assert said.function == "resumed"
    assert line_of(said) == 'print(end="")'
    assert plain_function("torch_dynamo_resume_in_forward_at_16") == "forward"
    assert plain_function("torch_dynamo_resume_in_a_at_b_at_3") == "a_at_b"
    assert plain_function("forward") == "forward"


def test_the_source_line_is_read_when_there_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("\n".join(SOURCE), encoding="utf-8")
    said = break_from_text(BREAKS["item"][0].replace("/home/ada/model.py", str(file)))
    assert said.statement() == "return x * x.sum().item()"
    assert parsed("item").statement() is None
    assert break_from_text("Graph break in user code at a\x00b.py:3\nGraph Break Reason: broken").statement() is None


def test_a_text_of_another_shape_keeps_its_first_line() -> None:
    said = break_from_text("\n\nGraph Break Reason: something new\nand more")
    assert said == BreakText(reason="something new", gb_id=None, explanation=None, hints=(), file=None, line=None, function=None, frames=())


@pytest.mark.parametrize("empty", ["", "\n \n", "Traceback (most recent call last):", "\nTraceback (most recent call last):\n  File"])
def test_a_text_that_says_nothing_still_has_a_reason(empty: str) -> None:
    assert break_from_text(empty).reason


@settings(max_examples=150)
@given(st.data())
def test_damaged_texts_never_raise(data: st.DataObject) -> None:
    name, number = data.draw(st.sampled_from(ALL))
    text = BREAKS[name][number]
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
    noise = data.draw(st.text(max_size=20))
    for damaged in (text[:start], text[start:stop], text[:start] + noise + text[stop:], text.replace("\n", "\r\n")[start:]):
        said = break_from_text(damaged)
        assert said.reason
        assert "\n" not in said.reason
        assert said.line is None or said.line >= 0
        said.statement()


_LONG = """
import sys
from ortlens.lens.observing.break_texts import break_from_text
break_from_text("  Explanation: " + "Hint: a\\n" * 200_000 + "\\n" + sys.argv[1])
"""


def test_a_long_text_is_no_trap(run_python: Callable[..., str]) -> None:
    """A pattern that is quadratic in what users put into messages takes hours, which ends at the limit of every program."""
    run_python(_LONG, BREAKS["branching"][0])


def test_recorded_recompiles() -> None:
    parsed_by_name = {name: [recompile_from_text(text) for text in texts] for name, texts in RECOMPILES.items()}
    for said in (said for texts in parsed_by_name.values() for said in texts):
        assert said is not None
        assert said.of_compile_id
        assert said.of_compile_id.count("/") == 1
        assert said.guard
        assert "\n" not in said.guard
    (size,), (dtype,) = parsed_by_name["size"], parsed_by_name["dtype"]
    assert size
    assert dtype
    assert "size mismatch at index 0" in (size.guard or "")
    assert "dtype mismatch" in (dtype.guard or "")
    assert "expected" in size.reason


@pytest.mark.parametrize(
    ("text", "of", "guard"),
    [
        ("0/0: tensor 'x' size mismatch at index 0. expected 3, actual 4", "0/0", "tensor 'x' size mismatch at index 0"),
        ('["1/1: n == 3  # return x * n", "1/0: n == 2"]', "1/1", "n == 3"),
        ("no id at all", None, "no id at all"),
        ("", None, ""),
        ("[]", None, None),
        ("[1, 2", None, "[1, 2"),
        ("guard on x: it failed", None, "guard on x: it failed"),
        ("0/0: ", "0/0", ""),
        ("3", None, "3"),
        ('["0/1: BACKEND_MATCH", "0/0: n == 2"]', "0/0", "n == 2"),
        ("0/0: BACKEND_MATCH", None, None),  # another backend is no recompile
        ('["0/1: x BACKEND_MATCH", "0/0: y BACKEND_MATCH z"]', None, None),
    ],
)
def test_texts_of_recompiles(text: str, of: str | None, guard: str | None) -> None:
    said = recompile_from_text(text)
    if guard is None:
        assert said is None or said.of_compile_id is None
    else:
        assert said is not None
        assert (said.of_compile_id, said.guard) == (of, guard)


@given(
    st.one_of(st.text(max_size=200), st.recursive(st.none() | st.text(max_size=9) | st.integers(), st.lists, max_leaves=6).map(json.dumps))
)
def test_any_reason_at_all(text: Any) -> None:
    said = recompile_from_text(text)
    assert said is None or isinstance(said.reason, str)


def test_the_reason_behind_what_was_traced() -> None:
    text = """Graph break in user code at /lib/torch/nn/utils/rnn.py:465
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Could not guard on data-dependent expression u1 > u0 (unhinted: u1 > u0).  (Size-like symbols: u0, u1)

User code traceback:
  File "/home/ada/model.py", line 7, in f
    u = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
"""
    said = break_from_text(text)
    assert said.reason.startswith("Could not guard on data-dependent expression u1 > u0")
    only = "Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):"
    assert break_from_text(only).reason == "Dynamo gave no reason"


class Watched:
    """Every way in which asking it for something would be noticed."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = 3

    @property
    def asked(self) -> int:
        raise AssertionError("a property ran")

    def __getattr__(self, name: str) -> int:
        raise AssertionError(f"asked for {name}")

    def __len__(self) -> int:
        raise AssertionError("asked for its length")


class Keyed(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        raise AssertionError("asked for an item")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 7
        self.drop = nn.Dropout()


SCOPE: dict[str, Any] = {
    "n": 3,
    "scale": 2.5,
    "mode": "a" * 100,
    "x": torch.ones(4, 5),
    "items": [1, {"a": (True, None)}],
    "watched": Watched(),
    "keyed": Keyed(a=1),
    "self": Model(),
    "f": lambda x: x,
    "dtype": torch.float32,
    "G": {"factor": 9},
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("n", "3"),
        (" scale ", "2.5"),
        ("items[1]['a'][0]", "True"),
        ("items[1]['a'][1]", "None"),
        ("len(items)", "2"),
        ("list(dict.keys(items[1]))[0]", "'a'"),
        ("x.size()[1]", "5"),
        ("G['factor']", "9"),
        ("self.steps", "7"),
        ("self._modules['drop'].training", "True"),
        ("self._modules['drop']", "<class 'Dropout'>"),
        ("watched.kept", "3"),
        ("dtype", "torch.float32"),
        ("f.__code__", "<class 'code'>"),
        ("x", "<class 'Tensor'>"),
    ],
)
def test_values_that_can_be_looked_up(expression: str, value: str) -> None:
    assert value_text(expression, SCOPE) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("absent", "n.absent", "items[9]", "watched.asked", "watched.absent", "len(watched)", "keyed['a']", "len(keyed)"),
        *("n +", "n + 1", "f(1)", "__import__('os')", "x.sum()", "(x.size()[0] % 2)", "", "items[n]", "n\x00"),
        "tensor 'x' size mismatch at index 0",
    ],
)
def test_what_would_run_code_or_is_not_there_is_left_alone(expression: str) -> None:
    assert value_text(expression, SCOPE) is None


def test_long_values_are_cut_and_classes_named() -> None:
    assert len(value_text("mode", SCOPE) or "") == 60
    assert value_text("self", SCOPE, kind=True) == "<class 'Model'>"
    assert value_text("absent", SCOPE, kind=True) is None


BREAK = BreakReason(reason="Call to `f`", user_stack=("a.py:1 outer", "a.py:9 inner"), occurrences=3)


def test_text() -> None:
    output = ExplainOutput(graphs=(), graph_count=4, graph_break_count=3, recompile_count=2, break_reasons=(BREAK,), op_count=7)
    assert str(output) == (
        "Graph Count: 4\nGraph Break Count: 3\nRecompile Count: 2\nOp Count: 7\nBreak Reasons:\n"
        "  Break Reason 1 (x3):\n    Reason: Call to `f`\n    User Stack:\n      a.py:1 outer\n      a.py:9 inner"
    )


HOSTILE = "<script>alert(1)</script>\u202e" + "x" * 10_000


def many(count: int, text: str) -> ExplainOutput:
    reason = BreakReason(reason=text, user_stack=(f"a.py:1 {text}", f"b.py:2 {text}"), occurrences=3)
    return ExplainOutput(
        graphs=(), graph_count=count + 1, graph_break_count=count, recompile_count=1, break_reasons=(reason,) * count, op_count=5
    )


def test_a_notebook_gets_a_table_in_which_hostile_names_stay_text_and_many_rows_stay_few() -> None:
    html = many(1, "a reason")._repr_html_()
    assert [
        part for part in ("2 graphs, 1 graph break, 1 recompile, 5 operations", "<td>a reason</td>", "b.py:2 a reason") if part not in html
    ] == []
    assert "<table>" not in many(0, "")._repr_html_()
    assert repr(many(2, "a reason")) == "<ExplainOutput 3 graphs, 2 graph breaks, 1 recompile, 5 operations>"
    html = many(1000, HOSTILE)._repr_html_()
    assert "<script" not in html
    assert "\u202e" not in html
    assert "more rows in <code>.break_reasons</code>" in html
    assert len(html) < 20_000


def test_drawing_never_raises() -> None:
    broken = ExplainOutput(graphs=(), graph_count=1, graph_break_count=1, recompile_count=0, break_reasons=(None,), op_count=1)  # type: ignore[arg-type]
    assert "could not draw this: AttributeError" in broken._repr_html_()
