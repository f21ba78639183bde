"""The user's functions in a capture: the text that ran, without its strings, and nothing from a damaged attachment."""

import json

from ortlens.trace.records import Break, Fallback, Node
from ortlens.trace.sources import MAX_TOTAL, attachment_of, is_own, kept_lines, recorded_lines, sources_of

PROGRAM = '''TOKEN = "hunter2"


class Model:
    key = "hunter2"

    @staticmethod
    def forward(x, options):
        """Says hunter2,

        twice."""
        # a remark
        scale = options["hunter2"] if options[f"hunter2 {x}"] else 2
        return x * scale + options["bias"]

    def other(self):
        return 1
'''


def test_a_function_is_kept_whole_without_what_stands_in_its_strings() -> None:
    kept = kept_lines(PROGRAM, {14: 'return x * scale + options["bias"]'})
    assert [number for number, line in enumerate(kept, start=1) if line is not None] == [4, *range(7, 15)]
    assert kept[3] == "class Model:"
    assert kept[8:12] == ['        """…"""', "", "", "        # a remark"]
    assert (kept[12] or "").startswith('        scale = options["…"] if options[f"')
    assert kept[13] == '        return x * scale + options["bias"]', "recorded lines are in the capture anyway"
    assert "hunter2" not in str(kept)


def test_what_has_other_lines_than_ran_or_is_no_python_is_not_kept() -> None:
    assert kept_lines(PROGRAM, {14: "return x"}) == []
    assert kept_lines(PROGRAM, {99: "return x"}) == []
    assert kept_lines("def f(:\n    return 1\n", {2: "return 1"}) == []
    assert kept_lines("a = 1\nb = f(a)\nc = 2\n", {2: "b = f(a)"}) == [None, "b = f(a)", None], "outside of functions"
    files = ("/home/ada/model.py", "<string>", "In[3]", "/v/lib/python3.11/site-packages/torch/nn.py", "C:\\x\\site-packages\\a.py")
    assert [is_own(file) for file in (*files, "/usr/lib/python3.11/contextlib.py")] == [True, *[False] * 5]


def test_a_file_comes_back_as_it_was() -> None:
    name, data = attachment_of("/home/ada/nét.py", [None, "x = '</script>'"])
    assert name.startswith("sources/")
    assert "/" not in name.removeprefix("sources/")
    assert sources_of({name: data, "models/m0.onnx": b"{}"}) == {"/home/ada/nét.py": [None, "x = '</script>'"]}


def test_what_is_no_source_file_is_left_out() -> None:
    said = [[], 3, {"file": 3, "lines": ["x"]}, {"file": "a"}, *({"file": "a", "lines": lines} for lines in ("x", [1], []))]
    odd = [b"", b"{", b"[" * 100_000, *(json.dumps(each).encode() for each in said)]
    assert sources_of({f"sources/{n}.json": data for n, data in enumerate(odd)}) == {}


def test_a_page_has_room_for_so_much() -> None:
    files = dict(attachment_of(f"{n}.py", ["x" * (MAX_TOTAL // 3)]) for n in range(4))
    assert len(sources_of(files)) == 2
    assert sources_of(dict([attachment_of("one.py", ["x" * MAX_TOTAL])])) == {}


def test_lines_are_those_that_records_quote() -> None:
    node = Node(graph_id="g0", node="a", target="t", supported=True, file="m.py", line=2, source="y = x + 1")
    fallback = Fallback(graph_id="g0", node="b", target="t", reason_code="dtype", reason="", file="m.py", line=3, source="return y")
    found = recorded_lines((node, fallback, Break(break_id="b0", reason="r", file="n.py", line=1)))
    assert found == {"m.py": {2: "y = x + 1", 3: "return y"}}
