"""One program across versions: planted differences are named with their node. Versions are ONNX Runtime with a fault built around it."""

import ctypes
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import ortlens
from ortlens import cli
from ortlens.errors import UsageError
from ortlens.job.targets import inputs_from_texts
from ortlens.studies.bisect import Axes, BisectedSide, Bisection, growth_of
from ortlens.studies.bisect import bisected as bisected_in
from ortlens.studies.bisect_text import sentences, write_issue
from ortlens.studies.environments import install, pip_refusal, place_of
from tests.answers import answered
from tests.onnx_models import onnx_model

AROUND = """
import importlib.machinery, importlib.util, os, sys
here = os.path.dirname(os.path.dirname(__file__))
spec = importlib.machinery.PathFinder.find_spec("onnxruntime", [path for path in sys.path if path != here])
real = importlib.util.module_from_spec(spec)
sys.modules["onnxruntime"] = real
spec.loader.exec_module(real)
import onnx

class InferenceSession(real.InferenceSession):
    def __init__(self, path, *args, **kwargs):
        model = onnx.load(path)
        hidden = {name for node in model.graph.node for name in node.output} - {value.name for value in model.graph.output}
        for node in model.graph.node:
            change(node, hidden)
        super().__init__(model.SerializeToString(), *args, **kwargs)

def change(node, hidden):
    pass

real.InferenceSession = InferenceSession
real.__version__ = "FAULT"
"""
FAULTS = {
    "9.1.0": """
def change(node, hidden):
    node.op_type = {"Tanh": "Sin"}.get(node.op_type, node.op_type)
""",
    # Sqrt is Abs where the value that it reads is computed in the model and not returned.
    "9.2.0": """
def change(node, hidden):
    if node.op_type == "Sqrt" and hidden.intersection(node.input):
        node.op_type = "Abs"
""",
    "9.3.0": """
def change(node, hidden):
    if node.op_type == "Exp":
        os.abort()
""",
    "9.4.0": """
import ctypes
take = ctypes.CDLL(None).malloc
InferenceSession.run = lambda self, *args: (take(1000), super(InferenceSession, self).run(*args))[1]
""",
    "9.5.0": """
import random
InferenceSession.run = lambda self, *args: [value + random.random() for value in super(InferenceSession, self).run(*args)]
""",
    # A provider with options aborts.
    "9.6.0": """
class Breaking(InferenceSession):
    def __init__(self, path, options, providers, **kwargs):
        os.abort() if providers[0][1] else super().__init__(path, options, providers=providers, **kwargs)
real.InferenceSession = Breaking
""",
}


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("environments")
    for version, fault in FAULTS.items():
        package = place_of(f"onnxruntime=={version}", folder) / "onnxruntime"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(AROUND.replace("FAULT", version) + fault, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    chain = ["Neg", "Tanh", "Sigmoid", "Sqrt", "Exp", "Abs"]
    nodes = [helper.make_node(op, [f"v{place}"], [f"v{place + 1}"], name=f"n_{op}") for place, op in enumerate(chain)]
    x, y = ([(name, TensorProto.FLOAT, [2, 3])] for name in ("v0", f"v{len(chain)}"))
    path = tmp_path_factory.mktemp("model") / "chain.onnx"
    onnx.save(onnx_model(nodes, x, y), path)
    return str(path)


def bisected(target: str, folder: Path, work: Path, inputs: Sequence[str] = (), **axes: Any) -> Bisection:  # noqa: ANN401 - fields of Axes
    return bisected_in(target, inputs_from_texts(inputs), Axes(folder=folder, **axes), folder=work, runs=60, seconds=0.1)


@pytest.fixture(scope="module")
def result(versions: Path, model: str, tmp_path_factory: pytest.TempPathFactory) -> Bisection:
    return bisected(model, versions, tmp_path_factory.mktemp("work"), onnxruntime=[installed(), *FAULTS])


def installed() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


def side(result: Bisection, version: str) -> BisectedSide:
    return next(row for row in result.rows if row.way == f"onnxruntime {version}")


@pytest.mark.slow
def test_the_base_is_what_is_installed(result: Bisection) -> None:
    base = result.base
    assert (base.way, base.output, base.unsteady, base.status, bool(base.cpu_ns)) == (f"onnxruntime {installed()}", None, None, "ok", True)
    assert {kernel.op_type for kernel in base.kernels} >= {"Tanh", "Exp"}
    assert base.growth is not None
    assert base.growth.low <= 0, "what does not leak is not said to"
    assert result.differs


@pytest.mark.slow
@pytest.mark.parametrize(("version", "node"), [("9.1.0", "n_Tanh"), ("9.2.0", "n_Sqrt"), ("9.3.0", "n_Exp")])
def test_a_planted_difference_is_named_with_its_node(version: str, node: str, result: Bisection) -> None:
    row = side(result, version)
    assert row.first is not None
    assert row.first.node == node
    assert row.first.kind == ("fails" if version == "9.3.0" else "differs")
    assert row.status == ("crashed" if version == "9.3.0" else "ok")
    assert bool(row.first.note) is (version != "9.1.0"), "a crash has its reason, and a fusion says so"


@pytest.mark.slow
def test_the_smallest_model_is_that_of_the_worst_difference_and_runs_by_itself(result: Bisection, tmp_path: Path) -> None:
    assert (result.smallest_side, result.smallest and result.smallest.nodes) == ("onnxruntime 9.3.0", 1)
    written = tmp_path / "issue"
    smallest = write_issue(result, written, "ortlens bisect chain.onnx").smallest
    assert smallest is not None
    assert smallest.model == str(written / "model.onnx")
    text = (written / "ISSUE.md").read_text(encoding="utf-8")
    assert "n_Exp" in text
    assert str(tmp_path) not in text
    done = subprocess.run([sys.executable, "repro.py"], cwd=written, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "the installed version gives the results of the base"


@pytest.mark.slow
def test_a_fusion_is_cut_out_with_what_it_fuses_and_the_reference_tells_who_is_right(versions: Path, model: str, tmp_path: Path) -> None:
    result = bisected(model, versions, tmp_path, onnxruntime=["9.2.0"])
    assert result.smallest is not None
    assert (result.smallest.nodes, result.smallest.right) == (2, "base")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc"), reason="the leak is planted in the C library's malloc")
def test_a_leak_and_random_results_show_in_one_process(result: Bisection) -> None:
    leaking = side(result, "9.4.0").growth
    assert leaking is not None
    assert leaking.low > 0
    assert 900 < leaking.per_run < 1200
    assert (side(result, "9.4.0").output, side(result, "9.4.0").unsteady) == (None, None)
    row = side(result, "9.5.0")
    assert row.unsteady is not None
    assert row.unsteady_first is not None
    assert (row.unsteady.kind, row.unsteady_first.node) == ("differs", "n_Neg")


def test_growth_is_sure_only_if_nearly_every_stretch_grows() -> None:
    steady, step = [1000] * 100, [*[1000] * 50, *[9000] * 50]
    leak = [1000 + 10 * place + place % 3 for place in range(100)]
    assert [growth is not None and growth.low > 0 for growth in (growth_of(samples, "heap") for samples in (steady, step, leak))] == [
        *(False, False, True)
    ]
    assert growth_of(steady[:20], "heap") is None, "too few runs"
    assert growth_of([0] * 100, "heap") is None, "the system does not tell"


@pytest.mark.slow
def test_a_module_is_converted_once_and_its_levels_and_partitions_compared(
    versions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets.py").write_text("import torch\ndef net(x):\n    return torch.tanh(x @ x) + 1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    result = bisected("nets:net", versions, work, ["f32[4,4]"], onnxruntime=["9.1.0"], levels=["all", "disable"])
    wrong, level = result.rows[1:]
    assert wrong.first is not None
    assert (wrong.first.op_type, wrong.first.line) == ("Tanh", "nets.py:3")
    assert (level.way, level.level, level.output is None or level.output.kind == "rounding") == (
        f"{result.base.way}, level disable",
        "disable",
        True,
    )


def test_a_level_whose_rewrites_break_the_model_is_refused_and_the_others_go_on(versions: Path, tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["kept"]), helper.make_node("Div", ["one", "x"], ["q"], name="q")]
    nodes.append(helper.make_node("Mul", ["kept", "q"], ["y"], name="y"))
    x, y = ([(name, TensorProto.FLOAT, [2])] for name in "xy")
    onnx.save(onnx_model(nodes, x, y, {"one": np.array(1, np.float32)}), tmp_path / "broken.onnx")
    result = bisected(str(tmp_path / "broken.onnx"), versions, tmp_path, levels=["disable", "basic"])
    assert [(row.status, row.verdict) for row in result.rows] == [("ok", "reference"), ("refused", "unmeasured")]
    assert result.rows[1].note.startswith("DivMulFusion, ")
    assert not result.differs


def test_what_cannot_be_installed_or_used_is_a_row_with_the_reason(model: str, versions: Path, tmp_path: Path) -> None:
    place = tmp_path / "nothing"
    refusal = install("onnxruntime==0.0.1", place, pip_args=["--no-index"])
    assert refusal == "Could not find a version that satisfies the requirement onnxruntime==0.0.1"
    assert not place.exists()
    assert pip_refusal([sys.executable, "-c", "raise SystemExit('no module named pip')"]) == "no module named pip"
    axes: dict[str, Any] = {
        "onnxruntime": ["0.0.1", installed()],
        "providers": [("NoSuchExecutionProvider", {})],
        "pip_args": ["--no-index"],
    }
    result = bisected(model, versions, tmp_path, **axes)
    assert [(row.status, row.verdict) for row in result.rows] == [
        ("uninstalled", "unmeasured"),
        ("ok", "reference"),
        ("failed", "unmeasured"),
    ]
    assert result.rows[0].note == refusal
    assert "has no NoSuchExecutionProvider here" in result.rows[2].note
    assert result.rows[2].first is None, "no node is blamed for a provider that is not there"
    assert any("NoSuchExecutionProvider" in line for line in sentences(result))


def test_a_provider_that_ends_its_process_is_one_row(model: str, versions: Path, tmp_path: Path) -> None:
    rows = bisected(model, versions, tmp_path, onnxruntime=["9.6.0", installed()], providers=[("cpu", {"threads": "1"})]).rows
    assert [row.status for row in rows] == ["ok", "ok", "crashed"]
    assert rows[2].way == "onnxruntime 9.6.0, CPUExecutionProvider:threads=1"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--provider", "CPU", "--providers", "CPU", "ggml"], "compare several with --providers alone"),
        (["--onnxruntime", "new"], "write a version, such as 1.2.3"),
        (["--levels", "fast"], "the levels are: disable"),
        (["--environment", "old=/no/such/python"], "with the path of an interpreter that exists"),
        (["--torch", "2.14.1"], "has no effect on"),
        (["--package", "toy", "1"], "has no effect on"),
        (["--input", "f31[2]"], "f31"),
    ],
)
def test_a_slip_is_refused_with_what_to_write(words: list[str], hint: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bisect", model, *words]) == 2
    assert hint in capsys.readouterr().err


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Versions of a library of models, of which the second breaks the graph in line 7 and the third fails to import, and a program."""
    monkeypatch.chdir(tmp_path)
    lines = "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        y = torch.tanh(x)\n{}        return y @ y\n"
    versions = {"1.0": "", "2.0": "        y.sum().item()\n", "3.0": "        return :\n"}
    for version, line in versions.items():
        with zipfile.ZipFile(f"toy-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("toy/model.py", lines.format(line))
            wheel.writestr(f"toy-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: toy\nVersion: {version}\n")
            wheel.writestr(f"toy-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"toy-{version}.dist-info/RECORD", "")
    Path("toy_app.py").write_text("import toy.model\ndef net():\n    return toy.model.Net()\n", encoding="utf-8")
    return [f"toy-{version}-py3-none-any.whl" for version in versions]


@pytest.mark.slow
def test_a_version_of_a_package_that_adds_a_graph_break_is_named_with_its_line(
    wheels: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--input", "f32[4,4]", "--seconds", "0.1", "--environments", str(tmp_path / "made"), "--pip-args=--no-index"]
    assert cli.main(["bisect", "toy_app:net", "--package", "toy", *wheels, *words]) == 1
    said = capsys.readouterr().out
    assert "toy 2.0 adds a graph break at toy/model.py:7: Unsupported Tensor.item() call" in said
    assert "toy 1.0 adds" not in said
    assert "toy 3.0: failed: importing toy_app failed: SyntaxError" in said
    assert cli.main(["bisect", "torch:sin", "--package", "toy", *wheels[:2], *words]) == 2
    assert "the program imports nothing of it" in capsys.readouterr().err
    assert cli.main(["bisect", "toy_app:net", "--package", "toy", "0.5", "0.6", *words]) == 2
    assert "toy 0.5: Could not find a version that satisfies the requirement toy==0.5" in capsys.readouterr().err


def test_a_module_of_this_process_and_a_real_input_are_compared_in_python(
    versions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortlens.studies.bisect.default_folder", lambda: versions)
    x = torch.tensor([0.25, 0.5])
    found = ortlens.bisect(torch.nn.Tanh(), x, onnxruntime=["9.1.0"], runs=4, seconds=0.1, folder=tmp_path / "issue")
    assert (found.target, found.differs, list(found.frame["results"])) == ("Tanh", True, ["", "differs"])
    assert found.smallest is not None
    assert np.load(found.smallest.inputs)["arr_0"].tolist() == x.tolist()
    with pytest.raises(UsageError, match="write a function at the top of a module"):
        ortlens.bisect(torch.nn.Tanh(), torch.ones(3), package=("toy", "1.0", "2.0"))


@pytest.mark.slow
def test_the_command_prints_json_and_ends_with_1_where_sides_differ(
    model: str, versions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [model, "--onnxruntime", "9.1.0", "--environments", str(versions), "--seconds", "0.1", "--runs", "30"]
    assert cli.main(["bisect", *words, "--json", "-o", str(tmp_path / "issue")]) == 1
    found = answered(capsys.readouterr().out)
    assert found["rows"][1]["first"]["node"] == "n_Tanh"
    assert np.load(tmp_path / "issue" / "inputs.npz")["names"].tolist() == ["v1"]
    done = subprocess.run([sys.executable, "repro.py"], cwd=tmp_path / "issue", capture_output=True, text=True, check=False)
    assert done.returncode == 0
    with pytest.raises(UsageError, match="nothing of"):
        bisected("torch:is_tensor", versions, tmp_path, ["f32[2]"])
