"""The user's source files in a capture: the text that ran, and nothing from a damaged attachment."""

from __future__ import annotations

import json

from ortlens.trace.records import Break, Fallback, Node
from ortlens.trace.sources import MAX_TOTAL, attachment_of, is_own, is_same_program, recorded_lines, sources_of


def test_a_file_comes_back_as_it_was() -> None:
    name, data = attachment_of("/home/ada/nét.py", "import torch\n\nx = '</script>'\n")
    assert name.startswith("sources/")
    assert "/" not in name.removeprefix("sources/")
    assert sources_of({name: data, "models/m0.onnx": b"{}"}) == {"/home/ada/nét.py": ["import torch", "", "x = '</script>'"]}


def test_what_is_no_source_file_is_left_out() -> None:
    odd = [b"", b"{", b"[]", b"3", json.dumps({"file": 3, "text": "x"}).encode(), json.dumps({"file": "a"}).encode(), b"[" * 100_000]
    assert sources_of({f"sources/{n}.json": data for n, data in enumerate(odd)}) == {}


def test_a_page_has_room_for_so_much() -> None:
    files = dict(attachment_of(f"{n}.py", "x" * (MAX_TOTAL // 2)) for n in range(3))
    assert len(sources_of(files)) == 2
    assert sources_of(dict([attachment_of("one.py", "x" * (MAX_TOTAL + 1))])) == {}


def test_only_files_of_the_user_are_theirs() -> None:
    assert is_own("/home/ada/model.py")
    for file in (
        "<string>",
        "In[3]",
        "/v/lib/python3.11/site-packages/torch/nn.py",
        "/usr/lib/python3.11/contextlib.py",
        "C:\\x\\site-packages\\a.py",
    ):
        assert not is_own(file)


def test_a_text_is_the_one_that_ran_if_it_has_the_recorded_lines() -> None:
    node = Node(graph_id="g0", node="a", target="t", file="m.py", line=2, source="y = x + 1")
    fallback = Fallback(graph_id="g0", node="b", target="t", reason_code="dtype", reason="", file="m.py", line=3, source="return y")
    lines = recorded_lines((node, fallback, Break(break_id="b0", reason="r", file="n.py", line=1)))
    assert lines == {"m.py": {2: "y = x + 1", 3: "return y"}}
    assert is_same_program("def f(x):\n    y = x + 1\n    return y\n", lines["m.py"])
    assert not is_same_program("def f(x):\n    y = x + 2\n    return y\n", lines["m.py"])
    assert not is_same_program("y = x + 1", lines["m.py"])
