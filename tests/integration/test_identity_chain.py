"""The identity chain on compiled models: from a line to kernels and back, forward and backward, live and loaded."""

import linecache
from pathlib import Path

import onnx
import onnxruntime
import pandas as pd
import pytest
import torch

import ortlens
from ortlens.analysis.memory import memory
from ortlens.backend.basis.node_provenance import FX_NODE_KEY, iter_nodes, provenance_of, with_input_names
from ortlens.lens.observing.compilations import KeptSources
from ortlens.trace.recorder import Recorder
from ortlens.trace.records import Break
from ortlens.trace.sources import sources_of
from ortlens.views.payload import payload_from_capture
from ortlens.views.redaction import redacted_capture
from tests.integration.marked_lines import line_of
from tests.integration.test_secrets import loaded


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)  # the line of norm
        y = self.up(y)  # the line of up
        y = torch.nn.functional.gelu(y)  # the line of gelu
        made: torch.Tensor = x + self.down(y)  # the line of down
        return made


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(scope="module")
def lens() -> ortlens.Lens:
    model, x = Model().eval(), torch.randn(4, 16)
    with torch.no_grad():
        found = ortlens.explain(model, calls=1)(x)
        found.profile(x, repeat=2)
    return found


def test_inputs_have_the_names_and_values_of_the_program(lens: ortlens.Lens) -> None:
    weights = {name: weight.detach() for name, weight in lens._targets.first().__self__.named_parameters()}
    inputs = lens.graph_inputs.set_index("name")
    assert set(inputs.index) == {"x", *weights}
    for name, weight in weights.items():
        row = inputs.loc[name]
        is_large = weight.numel() >= 64
        assert (row["shape"], sum(row.histogram)) == (tuple(weight.shape), weight.numel() * is_large)
        assert (row.low, row.high) == pytest.approx((float(weight.min()), float(weight.max())), rel=0.05) or not is_large
    assert pd.isna(inputs.loc["x"].low)
    assert not any(row.histogram or row.low is not None for row in redacted_capture(lens.captured()).graph_inputs)
    for optimized in (False, True):
        model = onnx.load_from_string(lens.netron("p0", optimized=optimized).model)
        if not optimized:  # whose weights are outside
            onnx.checker.check_model(model)
        named = {value.name for value in (*model.graph.input, *model.graph.initializer)}
        assert {name for name in named if name in inputs.index} >= {"x", "blocks.0.norm.weight", "blocks.1.down.bias"}
        assert not any(name.startswith("arg") for node in iter_nodes(model.graph) for name in node.input)


def test_a_name_that_a_model_has_already_is_not_given_to_an_input() -> None:
    given = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[2] a, float[2] b, float[2] w) => (float[2] y) { x = Add(a, b) y = Mul(x, w) }'
    )
    named = with_input_names(given, {"a": "x", "b": "fc.weight", "w": "fc.weight"})
    assert [value.name for value in named.graph.input] == ["a", "b", "fc.weight"]
    assert [list(node.input) for node in named.graph.node] == [["a", "b"], ["x", "fc.weight"]]
    assert [value.name for value in given.graph.input] == ["a", "b", "w"]


def test_from_a_line_to_its_kernels_and_back(lens: ortlens.Lens) -> None:
    gelu = lens.links(line=f"{Path(__file__).name}:{line_of('the line of gelu', __file__)}")
    assert set(gelu.module) == {"blocks.0", "blocks.1"}
    assert set(gelu.op_type) == {"Gelu"}
    assert set(gelu.kernel_confidence) == {"fused"}, "Gelu is made of several ONNX nodes"
    for kernel in set(gelu.kernel):
        assert set(lens.links(kernel=kernel).line) == {line_of("the line of gelu", __file__)}
    assert set(lens.links(line=f"{Path(__file__).name}:{line_of('the line of norm', __file__)}").op_type) >= {"LayerNormalization"}
    assert set(lens.links(module="blocks.1").module) == {f"blocks.1{rest}" for rest in ("", ".norm", ".up", ".down")}


def test_every_link_of_a_chain_finds_the_same_row(lens: ortlens.Lens) -> None:
    whole = lens.links()
    row = whole[(whole.op_type == "Gemm") & (whole.module == "blocks.1.up")].iloc[0]
    ways = {
        "line": lens.links(line=f"{row.file}:{row.line}"),
        "module": lens.links(module=row.module),
        "node": lens.links(node=row.node),
        "partition": lens.links(partition=row.partition_id),
        "onnx_node": lens.links(onnx_node=row.onnx_node),
        "kernel": lens.links(kernel=row.kernel),
    }
    for name, found in ways.items():
        same = found[(found.node == row.node) & (found.kernel == row.kernel) & (found.onnx_node == row.onnx_node)]
        assert len(same) == 1, name


def test_a_saved_capture_tells_the_same(lens: ortlens.Lens, tmp_path: Path) -> None:
    loaded = ortlens.load(lens.save(tmp_path / "run.ortlens"))
    for name in ("links", "fusions", "memory"):
        live, saved = getattr(lens, name)(), getattr(loaded, name)()
        assert not live.empty
        assert live.equals(saved), name
    assert "models/m0.optimized.onnx" in loaded.captured().attachments


def test_onnx_names_in_the_chain_are_those_of_the_model(lens: ortlens.Lens) -> None:
    model = onnx.load_from_string(lens.captured().attachments["models/m0.onnx"])
    labels = {node.name: provenance_of(node) for node in iter_nodes(model.graph)}
    found = lens.links()
    known = found[found.onnx_node.notna()]
    for node, name, confidence in zip(known.node, known.onnx_node, known.onnx_confidence, strict=True):
        assert node in labels[name].nodes
        assert confidence == labels[name].confidence
    assert set(found.onnx_node.dropna()) == set(labels)


def test_weights_are_packed_into_copies_by_default(lens: ortlens.Lens) -> None:
    whole, partition = memory(lens.captured())
    size = sum(parameter.nbytes for parameter in Model().parameters())
    assert whole.weight_bytes == partition.weight_bytes == size
    assert (partition.shared_bytes, partition.copied_bytes) == (0, size)
    assert partition.input_bytes == partition.output_bytes == 4 * 16 * 4
    # Up's output and what it was made of, at least; at most every value at once.
    assert partition.live_bytes in range(4 * 32 * 4, int(lens.nodes.output_bytes.sum()) + 1)
    assert partition.arena_bytes is not None
    assert partition.arena_bytes > 0


class Turned(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16, 8).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weight)


@pytest.mark.parametrize(
    ("model", "options", "size"),
    [(torch.nn.Linear(8, 16), {"ort_session_options": onnxruntime.SessionOptions()}, 9 * 16 * 4), (Turned(), None, 16 * 8 * 4)],
    ids=["inside the model", "not contiguous"],
)
def test_weights_that_cannot_be_shared_are_copied(model: torch.nn.Module, options: dict[str, object] | None, size: int) -> None:
    with torch.no_grad():
        lens = ortlens.explain(model, calls=1, options=options)(torch.randn(2, 8))
    _, partition = memory(lens.captured())
    assert (partition.shared_bytes, partition.copied_bytes) == (0, size)


def test_backward_nodes_lead_to_forward_lines() -> None:
    model = Model()
    lens = ortlens.Lens()
    fast = torch.compile(model, backend=lens)
    fast(torch.randn(4, 16)).sum().backward()
    found = lens.links()
    backward = found[found.phase == "backward"]
    assert not backward.empty
    known = backward[backward.line.notna()]
    assert len(known) >= 0.9 * len(backward), backward[backward.line.isna()][["node", "target"]]
    assert {line_of(f"the line of {name}", __file__) for name in ("norm", "up", "gelu", "down")} <= set(known.line)
    gelu = known[known.line == line_of("the line of gelu", __file__)]
    assert {"blocks.0", "blocks.1"} <= set(gelu.module), "backward nodes have the module of their forward node"


def test_rewrites_name_all_that_they_took() -> None:
    class Merged(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.reshape(2, 8)  # the line of first
            return y.reshape(4, 4) + 1  # the line of second

    lens = ortlens.explain(Merged(), calls=1)(torch.randn(16))
    model = onnx.load_from_string(lens.captured().attachments["models/m0.onnx"])
    (reshape,) = [node for node in model.graph.node if node.op_type == "Reshape"]
    names = dict(zip(lens.nodes.node, lens.nodes.line, strict=True))
    label = provenance_of(reshape)
    assert {names[name] for name in label.nodes} == {line_of("the line of first", __file__), line_of("the line of second", __file__)}
    assert names[label.node] == line_of("the line of second", __file__), "the one that makes its output"
    assert [entry.value for entry in reshape.metadata_props if entry.key == FX_NODE_KEY] == [label.node]
    links = lens.links(onnx_node=reshape.name)
    assert set(links.onnx_confidence) == {"fused"}


PROGRAM = "SECRET = 1\n\n\ndef double(x):\n    return x * 2\n"
KEPT = [None, None, None, "def double(x):", "    return x * 2"]


def test_the_function_that_ran_is_in_the_capture_and_not_in_a_redacted_page(tmp_path: Path) -> None:
    file = tmp_path / "program_of_ada.py"
    file.write_text(PROGRAM, encoding="utf-8")
    module = loaded(file.stem, file)
    lens = ortlens.explain(module.double, calls=1)(torch.ones(2))
    lens.save(tmp_path / "run.ortlens")
    capture = ortlens.load(tmp_path / "run.ortlens").captured()
    assert sources_of(capture.attachments) == {str(tmp_path / "program_of_ada.py"): KEPT}
    assert payload_from_capture(capture)["sources"] == sources_of(capture.attachments)
    assert "def double" not in str(payload_from_capture(capture, redact=True))


def test_a_file_that_changed_after_its_lines_were_recorded_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text(PROGRAM, encoding="utf-8")
    module = loaded(file.stem, file)
    assert linecache.getline(str(file), 5)
    records = (Break(break_id="b0", reason="r", file=str(file), line=5, source="return x * 2"),)
    file.write_text(PROGRAM.replace("x * 2", "x * 3"), encoding="utf-8")
    linecache.clearcache()
    recorder = Recorder()
    KeptSources(recorder).note(records)
    assert recorder.capture().attachments == {}
    file.write_text(PROGRAM, encoding="utf-8")
    linecache.clearcache()
    KeptSources(recorder).note(records)
    assert len(recorder.capture().attachments) == 1
    assert module.double(2) == 4
