"""The report: one file, whole or not at all, the same for equal captures, and nothing in it that must not be."""

import base64
import gzip
import hashlib
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ortlens.analysis.onnx_model import fusions, optimised
from ortlens.errors import UsageError
from ortlens.trace import records as r
from ortlens.trace import store
from ortlens.trace.records import Capture
from ortlens.trace.schema import facts_of
from ortlens.views import report
from ortlens.views.capture_view import SavedCapture
from ortlens.views.markup import _environment
from ortlens.views.report import BUDGET_BYTES, _optimised, current_kernels, report_page
from tests.facts import head
from tests.onnx_models import model_of
from tests.recorded import FILES, recorded
from tests.unit.analysis.hand_made import graph, kernel, node, partition
from tests.unit.views.elements import Elements
from tests.unit.views.sample_captures import HOSTILE, SAMPLES, captured, hostile

PIECES = recorded("pieces")


@cache
def page_of(name: str) -> str:
    """The report of a capture, made once."""
    return report_page(captured(name))


def opened(page: str) -> str:
    """Everything that is in a page, what is packed included, as one text."""
    packed = [text for about, text in Elements(page).scripts if about.get("type") == "text/plain" and about.get("id") != "ortlens-licences"]
    return page + "".join(gzip.decompress(base64.b64decode(text)).decode("utf-8", "replace") for text in packed)


SITUATIONS = ("empty", "foreign", "training", "hostile", "huge", "told", "pieces", "bert", "models")


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_page_loads_nothing_and_runs_only_the_scripts_that_its_rules_name(name: str) -> None:
    page = page_of(name)
    assert len(page.encode()) <= BUDGET_BYTES
    elements = Elements(page)
    assert not {tag for tag, _ in elements.found} & {"img", "link", "iframe", "object", "embed", "audio", "video", "base", "form"}
    for tag, attributes in elements.found:
        assert not [key for key in attributes if key.startswith("on")], tag
        assert "src" not in attributes
        assert (attributes.get("href") or attributes.get("xlink:href") or "#").startswith("#")
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
    (rules,) = [about["content"] or "" for tag, about in elements.found if tag == "meta" and about.get("http-equiv")]
    policy = {rule.split()[0]: rule.split()[1:] for rule in rules.split("; ")}
    assert policy["default-src"] == ["'none'"]
    assert not {"'unsafe-inline'", "'unsafe-eval'"} & {*policy["script-src"]}
    running = {text for about, text in elements.scripts if about.get("type") != "text/plain"}
    assert len(running) == 3
    named = {f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in running}
    assert named <= set(policy["script-src"])


def test_hostile_names_are_text_everywhere() -> None:
    page = report_page(SAMPLES["hostile"], title=HOSTILE)
    assert not [text for text in ("<img", "\u202e", "\x1b") if text in page]
    assert "&lt;/script&gt;&lt;img src=x" in page
    assert len(re.findall("</script", page, re.IGNORECASE)) == len(Elements(page).scripts)
    assert len(report_page(hostile('<b>"' * 40)).encode()) < BUDGET_BYTES
    name = '"/><script>alert(1)</script>'
    kernels = report_page(replace(PIECES, kernels=tuple(replace(item, op_type=name) for item in PIECES.kernels)))
    assert "<script>alert" not in kernels
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in kernels.partition('id="tables"')[2]


def test_equal_captures_give_equal_pages() -> None:
    assert report_page(store.load(FILES["pieces"])) == page_of("pieces")


def test_nothing_of_a_redacted_page_tells_paths_or_sources() -> None:
    secret, line = "/home/ada/secret-project", "launch(codes=self.hidden_codes)"
    plain = PIECES
    path = f"{secret}/model.py"
    nodes = tuple(replace(item, file=path, source=line) for item in plain.nodes)
    capture = replace(
        plain,
        name=f"run of {path}",
        **head({**facts_of(plain), "option_cache_dir": f"{secret}/cache"}),
        nodes=nodes,
        graphs=tuple(replace(item, file=path) for item in plain.graphs),
        breaks=tuple(replace(item, file=path, source=line, explanation=f'File "{path}", line 3\n    {line}') for item in plain.breaks),
        fallbacks=tuple(replace(item, file=path, source=line, exception=f"ValueError: {line} in {path}") for item in plain.fallbacks),
        kernels=tuple(replace(item, file=path) for item in plain.kernels),
        numerics=tuple(replace(item, file=path, note=f"see {path}: {line}") for item in plain.numerics),
        findings=(r.Finding(rule="x", severity="info", title=f"{line} at {path}:3", file=path, line=3, evidence=line, mitigation=path),),
        attachments={"models/m0.onnx": f"{secret} {line}".encode()},
    )
    told = opened(report_page(capture))
    assert "secret-project" in told
    assert "hidden_codes" in told
    page = report_page(capture, redact=True)
    hidden = opened(page)
    assert "secret-project" not in hidden
    assert "hidden_codes" not in hidden
    assert "model.py" in hidden
    assert "Paths are shortened; source text, values in guards and messages, and ONNX models are left out." in page
    assert "data-ortlens-model" not in page.replace(report._bundle(), "")


ONE_NODE = r.Capture(graphs=(graph(node_count=1, op_count=1),), nodes=(node("add"),), partitions=(partition(node_count=1),))


def test_wrong_results_come_first_and_are_marked() -> None:
    right = r.Numeric(partition_id="p0", node="add", ok=True)
    differs = r.Numeric(partition_id=None, scope="call", node="result[1]", ok=False, file="/home/model.py", line=7)
    page = report_page(replace(ONE_NODE, numerics=(right, differs)))
    assert page.index('<p class="or-verdict or-wrong">Wrong results: result[1] differs') < page.index('<p class="ol-wrong" role="alert">')
    assert re.search(r"<td[^>]*>result\[1\]</td>.*<td[^>]*>call</td>", page)
    whole = report_page(replace(ONE_NODE, numerics=(right, replace(differs, ok=True))))
    assert "or-wrong" not in whole[whole.index("<body>") :].split("<script", 1)[0]


@pytest.mark.parametrize("error", [math.nan, -math.inf, 0.0, 5e-324])
def test_values_that_are_no_numbers_are_shown(error: float) -> None:
    values = tuple(
        r.Numeric(partition_id="p0", node=f"n{number}", max_abs=error, max_rel=error, ok=bool(number), atol=1e-7, rtol=1e-5)
        for number in range(3)
    )
    page = report_page(r.Capture(numerics=values, kernels=(kernel("Add", calls=1, mean_ns=5, share=error),)))
    assert "Compared results" in page
    rows = re.findall(r"<tr><td[^>]*>n\d</td><td[^>]*>(yes|no)</td>", page)
    assert rows == ["no", "yes", "yes"]


def test_tables_are_bounded_and_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortlens.views.payload.MAX_RUNS", 10)
    many = replace(PIECES, kernels=PIECES.kernels * 30)
    page = report_page(many)
    table = re.search(r"<caption><strong>Kernels of the newest.*?</table>", page, re.DOTALL)
    assert table is not None
    assert table[0].count("<tr>") == 61
    assert f"{len(current_kernels(many)) - 60:,} more rows in <code>.kernels</code>." in table[0]
    assert "The newest 10 of 400 runs are shown; the frame `.runs` has all." in page


def test_a_report_is_written_whole_and_replaces_only_reports(tmp_path: Path) -> None:
    view = SavedCapture(recorded("demo"))
    target = tmp_path / "run.html"
    assert view.report(str(target), "First & last") == target
    assert "<h1>First &amp; last</h1>" in target.read_text(encoding="utf-8")
    assert view.report(target).read_text(encoding="utf-8") == report_page(recorded("demo"))
    other = tmp_path / "mine.html"
    other.write_text("<p>not a report</p>", encoding="utf-8")
    with pytest.raises(UsageError, match=r"mine\.html exists and is not an ortlens report, so it is not overwritten"):
        view.report(other)
    assert other.read_text(encoding="utf-8") == "<p>not a report</p>"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.html", "run.html"]


def _with_model() -> r.Capture:
    """A capture that holds its model."""
    from onnx import helper

    model = model_of(helper.make_node("Relu", ["x"], ["y"], name="relu/Relu"))
    return replace(ONE_NODE, models=(r.Model(model_id="m0", partition_id="p0", node_count=1),), attachments={"models/m0.onnx": model})


def _held(page: str) -> list[str | None]:
    return [about["data-ortlens-model"] for about, _ in Elements(page).scripts if "data-ortlens-model" in about]


def test_models_are_in_the_page_unless_they_are_not_wanted() -> None:
    assert _held(report_page(_with_model())) == ["m0"]
    assert _held(report_page(_with_model(), models=False)) == []
    assert _held(report_page(_with_model(), redact=True)) == []


def test_what_does_not_fit_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("netron")
    whole = report_page(_with_model())
    bare = len(report_page(_with_model(), models=False).encode())
    room = bare + (len(whole.encode()) - bare) // 2
    monkeypatch.setattr(report, "BUDGET_BYTES", room)
    page = report_page(_with_model())
    assert len(page.encode()) <= room
    assert "does not fit into this page" in page


def shown(capture: Capture) -> str:
    """The panes as the report has them."""
    module: Any = _environment().get_template("panes.html").module
    return str(module.optimised(_optimised(capture)))


@pytest.mark.parametrize("name", ["bert", "resnet", "twelve"])
def test_every_kernel_and_every_node_is_there_once(name: str) -> None:
    capture = recorded(name)
    rows = optimised(capture)
    assert sorted((row.session_id, row.kernel.kernel) for row in rows if row.kernel) == sorted(
        (kernel.session_id, kernel.kernel) for kernel in capture.kernels
    )
    partitions = {session.session_id: session.partition_id for session in capture.sessions}
    for session in {row.session_id for row in rows}:
        made = {onnx for node in capture.nodes if node.partition_id == partitions[session] for onnx in node.onnx_nodes}
        shown = [node for row in rows if row.session_id == session for node, _ in row.onnx_nodes]
        assert made <= set(shown)
        assert len(set(shown)) == len(shown)
    changed = {(row.session_id, row.kernel.kernel) for row in rows if row.kernel and row.change}
    assert changed <= {(row.session_id, row.kernel) for row in fusions(capture)}
    assert sum(row.change == "gone" for row in rows) == sum(row.change == "gone" for row in fusions(capture))


def test_the_rows_are_in_the_order_of_the_model() -> None:
    capture = recorded("bert")
    order = list(dict.fromkeys(onnx for node in capture.nodes for onnx in node.onnx_nodes))
    firsts = [min(order.index(node) for node, _ in row.onnx_nodes) for row in optimised(capture)]
    assert firsts == sorted(firsts)


def test_fused_nodes_are_one_row_beside_their_kernel() -> None:
    rows = [row for row in optimised(recorded("bert")) if row.kernel is not None and row.kernel.op_type == "Gelu"]
    assert {(row.change, tuple(op for _, op in row.onnx_nodes)) for row in rows} == {("fused", ("Div", "Erf", "Add", "Mul", "Mul"))}
    assert shown(recorded("bert")).count("5 fused into 1") == len(rows)


def test_an_inserted_kernel_follows_the_one_before_it() -> None:
    capture = recorded("resnet")
    kernels = [kernel.kernel for kernel in capture.kernels]
    rows = [row.kernel.kernel for row in optimised(capture) if row.kernel is not None]
    for row in capture.kernels:
        if row.op_type == "ReorderOutput":
            assert rows[rows.index(row.kernel) - 1] == kernels[kernels.index(row.kernel) - 1]


def test_what_ran_as_it_was_has_no_panes() -> None:
    assert _optimised(recorded("models")) == []
    assert _optimised(SAMPLES["demo_like"]) == []


def test_hostile_names_are_text_and_much_is_counted() -> None:
    capture = recorded("bert")
    kernels = tuple(
        replace(item, op_type=HOSTILE, module=HOSTILE, onnx_nodes=tuple(name + HOSTILE for name in item.onnx_nodes))
        for item in capture.kernels
    )
    html = shown(replace(capture, kernels=kernels))
    assert "<img" not in html
    assert not {"\u202e", "\x00", "\x1b"}.intersection(html)
    many = tuple(replace(kernel, kernel=f"{kernel.kernel} {number}") for number in range(10) for kernel in capture.kernels)
    html = shown(replace(capture, kernels=many))
    assert re.search(r"and 1,\d{3} more rows: see <code>.fusions\(\)</code>", html)
    assert len(html) < 150_000


def test_a_node_that_several_kernels_may_compute_is_charged_to_none() -> None:
    rows = optimised(recorded("resnet"))
    (row,) = (row for row in rows if ("relu_3/Relu", "Relu") in row.onnx_nodes)
    assert (row.change, row.kernel) == ("shared", None)
    (conv,) = (row for row in rows if ("convolution_4/Conv", "Conv") in row.onnx_nodes)
    assert (conv.change, [op for _, op in conv.onnx_nodes]) == ("fused", ["Conv", "BatchNormalization", "Relu"])
