"""ONNX models on their way into Netron: weights taken out, the installed package read, whatever is wrong with either."""

import base64
import gzip
import html
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ortlens import CaptureError, OptionalDependencyError, UsageError
from ortlens.model_file import BYTES, FIXED32, FIXED64, VARINT, WireError, fields
from ortlens.trace import records as r
from ortlens.trace.records import Capture
from ortlens.views import netron
from ortlens.views.capture_view import SavedCapture
from ortlens.views.netron import embedding, page_policy
from ortlens.views.slim_model import KEPT_TENSOR_BYTES, field_bytes, slim_model
from tests.onnx_models import everything, model_of
from tests.recorded import FILES, recorded
from tests.unit.views.elements import Elements
from tests.unit.views.sample_captures import HOSTILE

NETRON = importlib.util.find_spec("netron")
needs_netron = pytest.mark.skipif(NETRON is None, reason="needs netron")


def capture_of(data: bytes | None, *, model_id: str = "m0", optimized: bytes | None = None, nodes: int = 1) -> Capture:
    members = {f"models/{model_id}.onnx": data, f"models/{model_id}.optimized.onnx": optimized}
    attachments = {name: held for name, held in members.items() if held is not None}
    return Capture(models=(r.Model(model_id=model_id, partition_id="p0", node_count=nodes),), attachments=attachments)


# ---- one model ----


@needs_netron
def test_a_partition_and_its_model_name_the_same_and_are_saved(tmp_path: Path) -> None:
    lens = SavedCapture(recorded("models"))
    models = lens.captured().attachments
    by_partition, by_model = lens.netron("p1"), lens.netron("m1")
    assert by_partition.name == by_model.name == "m1"
    assert by_partition.model == models["models/m1.onnx"]
    view = lens.netron("p0", optimized=True)
    assert view.save(tmp_path / "m0.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert view.save(tmp_path / "m0.onnx").read_bytes() == models["models/m0.optimized.onnx"]
    with pytest.raises(UsageError, match="only a profile records it"):
        SavedCapture(capture_of(everything())).netron("p0", optimized=True)


@needs_netron
def test_a_notebook_gets_a_frame_that_may_run_scripts_and_nothing_else() -> None:
    view = SavedCapture(recorded("models")).netron("p0")
    shown = view._repr_html_()
    assert re.findall(r"<iframe[^>]*? sandbox=\"([^\"]*)\"", shown) == ["allow-scripts"]
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1])  # type: ignore[index]
    assert "default-src 'none'" in page
    assert "Copyright (c) Lutz Roeder" in page
    assert not re.search(r"(?:src|href)=['\"]?https?:", page)
    assert "12 nodes" in shown
    assert ".save('m0.html')" in repr(view)
    assert shown == SavedCapture(recorded("models")).netron("p0")._repr_html_(), "equal captures give equal pages"


@needs_netron
def test_weights_are_not_in_the_page() -> None:
    secret = bytes(range(256)) * 64
    tensor = helper.make_tensor("w", TensorProto.UINT8, [len(secret)], secret, raw=True)
    lens = SavedCapture(capture_of(model_of(helper.make_node("Add", ["x", "w"], ["y"]), initializers=(tensor,))))
    packed = re.search(r"id='ortlens-model'[^>]*>([^<]*)<", lens.netron("m0")._page())
    assert packed is not None
    inside = gzip.decompress(base64.b64decode(packed[1]))
    assert secret[:64] not in inside
    assert b"(left out by ortlens)" in inside
    assert "without the values of 1 weight" in lens.netron("m0")._repr_html_()


@pytest.mark.parametrize("name", ["p7", "", None, "models/m0.onnx", "x" * 10_000, HOSTILE])
def test_a_wrong_name_lists_what_there_is(name: object) -> None:
    with pytest.raises(UsageError, match=r"it has p0 \(m0\), p1 \(m1\)$") as caught:
        SavedCapture(recorded("models")).netron(name)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


MANY = tuple(r.Model(model_id=f"m{n}", partition_id=f"p{n}", node_count=1) for n in range(40))


@needs_netron
@pytest.mark.parametrize(
    ("capture", "error", "message"),
    [
        (Capture(), UsageError, "this capture has none"),
        (Capture(models=MANY), UsageError, r"p11 \(m11\) and 28 more, see \.partitions$"),
        (capture_of(None), CaptureError, r"not in this capture, only its metadata.*Redacted captures leave models out"),
        (capture_of(everything()[:-100]), CaptureError, "model m0 in this capture is damaged: byte"),
    ],
)
def test_a_model_that_is_not_there_says_why(capture: Capture, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SavedCapture(capture).netron("m0" if len(capture.models) == 1 else "q")


def test_the_path_of_a_record_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(everything())
    capture = capture_of(None)
    capture = replace(capture, models=(replace(capture.models[0], path=str(tmp_path / "other.onnx")),))
    with pytest.raises(CaptureError, match="not in this capture"):
        SavedCapture(capture).netron("p0")


@needs_netron
def test_hostile_ids_are_inert(tmp_path: Path) -> None:
    lens = SavedCapture(capture_of(everything(), model_id=HOSTILE))
    shown = lens.netron("p0")._repr_html_() + lens.netron("p0").save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "\x1b" not in repr(lens.netron("p0"))
    assert set(Elements(shown).tags) == {"iframe", "p", "html", "head", "meta", "title", "style", "body", "div", "script"}


# ---- all of them ----


@needs_netron
def test_a_page_gets_the_viewer_once_and_every_model() -> None:
    packed = embedding(recorded("models"))
    assert list(packed.models) == ["m0", "m1", "m0.optimized", "m1.optimized"]
    assert packed.notes == ()
    assert "Lutz Roeder" in packed.licence
    page = gzip.decompress(packed.frame).decode()
    assert "ortlens-model'" not in page
    for data in packed.models.values():
        onnx.load_from_string(gzip.decompress(data))
    assert len(packed.frame) * 4 / 3 < 250_000, "reports have 1.5 MB for everything, Base64 and all"


@needs_netron
def test_only_operators_that_are_used_are_told() -> None:
    found = netron.operators_for(netron.installed_viewer("test"), {("ai.onnx", "Gemm"), ("com.microsoft", "Gelu")}, {("ai.onnx", 18)})
    assert [(one["module"], one["name"], one["version"]) for one in found] == [("ai.onnx", "Gemm", 13)]
    assert {argument["name"] for argument in found[0]["inputs"]} == {"A", "B", "C"}


def test_models_that_are_missing_or_damaged_are_sentences() -> None:
    good, bad = everything(), everything()[:-100]
    models = tuple(r.Model(model_id=f"m{n}", partition_id=f"p{n}", node_count=n) for n in range(3))
    packed = embedding(Capture(models=models, attachments={"models/m0.onnx": good, "models/m1.onnx": bad}))
    assert list(packed.models) == ["m0"]
    assert any("metadata of m2" in note for note in packed.notes)
    assert any("Damaged, and left out: m1 (byte" in note for note in packed.notes)
    none = embedding(capture_of(None))
    assert (none.frame, dict(none.models), none.licence, len(none.notes)) == (b"", {}, "", 1)
    assert embedding(Capture()).notes == ()


@needs_netron
def test_a_budget_keeps_large_models_first_and_says_what_it_left_out() -> None:
    capture = recorded("models")
    whole = embedding(capture)
    sizes = {name: len(data) for name, data in whole.models.items()}
    tight = embedding(capture, budget_bytes=len(whole.frame) + sizes["m0"] + sizes["m1"])
    assert list(tight.models) == ["m0", "m1"]
    assert len(tight.frame) + sum(map(len, tight.models.values())) <= len(whole.frame) + sizes["m0"] + sizes["m1"]
    assert "m0.optimized, m1.optimized" in tight.notes[0]
    small = embedding(capture, budget_bytes=50_000)
    assert (small.frame, small.licence, len(small.models)) == (b"", "", 4), "the viewer alone is larger; models can be saved"
    assert "does not fit into this page" in small.notes[0]
    assert not embedding(capture, budget_bytes=0).models


def test_a_model_with_its_weights_inside_is_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortlens.views.netron.MAX_MODEL_BYTES", 1000)
    packed = embedding(capture_of(everything()))
    assert not packed.models
    assert "left out: m0." in packed.notes[0]


def test_the_rules_of_a_page_name_the_script_of_the_frame() -> None:
    policy = page_policy()
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}=' blob:", policy["script-src"])
    assert policy["worker-src"] == "blob:"
    assert not any("http" in sources or "*" in sources for sources in policy.values())


# ---- the installed package ----


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the installed Netron, to be spoilt."""
    if NETRON is None or NETRON.origin is None:
        pytest.skip("needs netron")
    copy = tmp_path / "netron"
    copy.mkdir()
    for name in (*(f"{module}.js" for module in netron._MODULES), "index.html", "grapher.css", "onnx-metadata.json"):
        shutil.copy(Path(NETRON.origin).with_name(name), copy / name)
    monkeypatch.setattr(netron, "_folder", lambda: copy)
    netron._viewer.cache_clear()
    yield copy
    netron._viewer.cache_clear()


def test_without_netron_there_is_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netron, "_folder", lambda: None)
    monkeypatch.setitem(sys.modules, "netron", None)
    with pytest.raises(OptionalDependencyError, match="pip install netron"):
        SavedCapture(recorded("models")).netron("p0")
    packed = embedding(recorded("models"))
    assert (packed.frame, len(packed.models)) == (b"", 4)
    assert "pip install netron" in packed.notes[0]


@pytest.mark.parametrize(
    ("file", "spoil", "said"),
    [
        ("view.js", lambda text: text.replace("import * as base", "import { base }"), "view.js has unexpected syntax: import"),
        ("view.js", lambda text: text.replace("'./base.js'", "'./newbase.js'"), "view.js needs newbase"),
        ("dagre.js", lambda text: text.replace("export const", "const"), "dagre.js has unexpected syntax: it exports nothing"),
        ("index.html", lambda text: text.replace('id="sidebar"', ""), "index.html lacks parts"),
        ("onnx-metadata.json", lambda _: "{", "onnx-metadata.json is not JSON"),
        ("onnx-metadata.json", lambda _: "[1]", "onnx-metadata.json does not list operators"),
        ("base.js", None, "base.js cannot be read"),
    ],
)
def test_files_that_look_otherwise_leave_the_model_itself(installed: Path, file: str, spoil: object, said: str, tmp_path: Path) -> None:
    path = installed / file
    text = path.read_text(encoding="utf-8")
    path.unlink() if spoil is None else path.write_text(spoil(text), encoding="utf-8")  # type: ignore[operator]
    view = SavedCapture(recorded("models")).netron("p0")
    assert view.viewer is None
    assert said in view.trouble
    assert 'download="m0.onnx"' in view._repr_html_()
    assert ".save('m0.onnx') writes the model" in repr(view)
    assert view.save(tmp_path / "m0.onnx").read_bytes() == view.model
    assert 'download="m0.onnx"' in view.save(tmp_path / "m0.html").read_text(encoding="utf-8")
    packed = embedding(recorded("models"))
    assert (packed.frame, len(packed.models)) == (b"", 4)
    assert said.partition(":")[0] in packed.notes[0]


def test_an_untested_version_is_tried_and_says_so(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del installed
    monkeypatch.setattr(netron, "version_of", lambda _: "12.0.1")
    shown = html.unescape(SavedCapture(recorded("models")).netron("p0")._repr_html_())
    assert "ortlens was tested with Netron >=9.0,<9.4; this is 12.0.1." in shown
    assert embedding(recorded("models")).notes == ("ortlens was tested with Netron >=9.0,<9.4; 12.0.1 is installed.",)


@needs_netron
def test_netron_itself_is_never_imported(run_python: Callable[..., str]) -> None:
    code = (
        "import json, sys, ortlens\n"
        f"lens = ortlens.load({str(FILES['models'])!r})\n"
        "lens.netron('p0')._repr_html_()\n"
        "print(json.dumps([name for name in ('netron', 'onnx', 'torch', 'onnxruntime') if name in sys.modules]))"
    )
    assert json.loads(run_python(code)) == []


def tensors(model: onnx.ModelProto) -> list[TensorProto]:
    found: list[TensorProto] = []

    def walk(message: object) -> None:
        for descriptor, value in message.ListFields():  # type: ignore[attr-defined]
            for item in value if descriptor.is_repeated else [value]:
                if isinstance(item, TensorProto):
                    found.append(item)
                elif descriptor.message_type is not None:
                    walk(item)

    walk(model)
    return found


# ---- the wire ----


def test_fields_are_those_that_protobuf_reads() -> None:
    written = field_bytes(1, 0) + field_bytes(2, 300) + field_bytes(3, b"text") + b"\x21" + bytes(8) + b"\x2d" + bytes(4)
    assert [(field.number, field.kind, field.value) for field in fields(written)] == [
        (1, VARINT, 0),
        (2, VARINT, 300),
        (3, BYTES, b"text"),
        (4, FIXED64, bytes(8)),
        (5, FIXED32, bytes(4)),
    ]
    assert b"".join(field.raw for field in fields(written)) == written


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**20))
@settings(max_examples=50)
def test_numbers_of_any_size_come_back(value: int, number: int) -> None:
    assert [(field.number, field.value) for field in fields(field_bytes(number, value))] == [(number, value)]


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (b"\x0a\x05abc", "5 bytes expected, 3 left"),
        (b"\x08", "ends inside a number"),
        (b"\xff" * 12, "more than 10 bytes"),
        (b"\x0b\x00", "type 3"),
    ],
)
def test_damage_is_told(damaged: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        list(fields(damaged))


# ---- weights taken out ----


def test_large_tensors_become_references_wherever_they_are() -> None:
    before = onnx.load_from_string(everything())
    after = onnx.load_from_string(slim_model(everything()).data)
    held, slim = tensors(before), tensors(after)
    assert {tensor.name for tensor in held} == {"large", "small", "nested", "attribute", "in a function"}
    assert [(one.name, one.dims, one.data_type) for one in slim] == [(one.name, one.dims, one.data_type) for one in held]
    for tensor, whole in zip(slim, held, strict=True):
        if tensor.name == "small":
            assert tensor == whole
        else:
            assert (tensor.data_location, tensor.raw_data) == (TensorProto.EXTERNAL, b"")
            assert [entry.value for entry in tensor.external_data] == ["(left out by ortlens)"]


def test_the_rest_of_a_model_stays_as_it_was() -> None:
    converted = recorded("models").attachments["models/m0.onnx"]  # without weights inside
    assert onnx.load_from_string(slim_model(converted).data) == onnx.load_from_string(converted)
    before, after = onnx.load_from_string(everything()), onnx.load_from_string(slim_model(everything()).data)
    for tensor in (*tensors(before), *tensors(after)):
        name = tensor.name
        tensor.Clear()
        tensor.name = name
    assert after == before


def test_what_a_model_is_made_of_is_counted() -> None:
    slim = slim_model(everything())
    assert slim.node_count == 6  # those in both branches and in the function too
    assert slim.operators == {("ai.onnx", "Constant"), ("ai.onnx", "If"), ("com.microsoft", "Gelu"), ("ai.onnx", "Relu")}
    assert slim.opsets == (("ai.onnx", 18), ("com.microsoft", 1))
    assert slim.left_out_tensors == 5
    assert len(slim.data) < 2000 < KEPT_TENSOR_BYTES * 8


CUT = [everything()[:-cut] for cut in (1, 10, 200, 2000)]


@pytest.mark.parametrize("data", [*CUT, b"", b"PK\x03\x04zip", b"\x08\x0a", b'{"json": 1}', bytes(64)])
def test_other_files_and_parts_of_models_are_no_models(data: bytes) -> None:
    with pytest.raises(WireError):
        slim_model(data)


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_any_bytes_give_a_model_or_a_sentence(data: bytes) -> None:
    try:
        made = slim_model(data)
    except WireError:
        return
    assert list(fields(made.data))


def test_graphs_in_graphs_in_graphs_end() -> None:
    graph = b""
    for _ in range(40):  # by hand: protobuf itself refuses to go so deep
        branch = field_bytes(6, graph)
        graph = field_bytes(1, field_bytes(5, branch))
    with pytest.raises(WireError, match="nested deeper"):
        slim_model(field_bytes(7, graph))
