import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import ortlens
from ortlens import cli
from ortlens.job.targets import target_from_text
from tests.answers import answered

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 8), nn.Linear(8, 4)
        self.drop = nn.Dropout(0.9)
    def forward(self, ids, mask=None):
        x = self.drop(self.out(self.embed(ids)))
        return x if mask is None else x * mask.unsqueeze(-1)

class Needs(nn.Module):
    def __init__(self, width):
        super().__init__()

net = Net()
number = 3

def make():
    return Net()

def scaled(a, by=2.0):
    return torch.relu(a) * by

def fails():
    raise RuntimeError("no weights here")

def breaks(a):
    return a.no_such_thing()

def late(a):
    a = torch.relu(a)
    torch._dynamo.graph_break()
    raise KeyError("late")

def constant():
    return torch.ones(3) * 2

class holder:
    inner = net
"""


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "somemodels.py").write_text(MODELS, encoding="utf-8")
    (tmp_path / "needy.py").write_text("import not_installed_at_all\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("somemodels", "needy", "broken"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["somemodels:net", "--input", "i64[2,7]:50", "mask=f32[2,7]"],
        ["somemodels:scaled", "--input", "f32[8]", "3"],
        ["somemodels:constant"],
    ],
)
def test_a_target_is_compiled_called_and_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *arguments, "--calls", "1"]) == 0
    streams = capsys.readouterr()
    assert streams.out.startswith(f"{arguments[0]}: torch.compile with backend ortlens")
    assert "In ONNX Runtime" in streams.out
    assert "everything: " in streams.out


def test_a_target_is_named_by_its_module_or_file_and_may_be_a_class_or_inside_one() -> None:
    found = [target_from_text(text) for text in ("somemodels:Net", "somemodels.py:net", "somemodels:holder.inner")]
    assert [type(target).__name__ for target in found] == ["Net"] * 3
    assert target_from_text("torch:relu") is torch.relu


def test_profile_verify_report_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--html", "run.html", "--save", "run.ortlens"]
    assert (
        cli.main(["explain", "somemodels:make", "--input", "i64[2,7]:50", "--calls", "1", "--profile", "--verify", "--json", *files]) == 0
    )
    streams = capsys.readouterr()
    assert answered(streams.out)["graph_count"] == 1
    assert "run.html" in streams.err
    saved = ortlens.load(tmp_path / "run.ortlens")
    assert len(saved.kernels) > 0
    assert saved.numerics.ok.all()
    assert (tmp_path / "run.html").stat().st_size > 10_000
    assert set(saved.graphs.phase) == {"inference"}
    assert not saved.nodes.target.str.contains("dropout|bernoulli|rand").any(), "it runs in evaluation mode"


def test_wrong_numbers_exit_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortlens.trace.records import Numeric

    def planted(lens: ortlens.Lens, *_: object) -> None:
        lens._recorder.add(Numeric(partition_id="p0", node="linear", onnx_value="out", ok=False))

    monkeypatch.setattr(ortlens.Lens, "verify", planted)
    assert cli.main(["explain", "somemodels:net", "--input", "i64[2,7]", "--calls", "1", "--verify"]) == 1


def test_a_dry_run_makes_the_model_without_memory(tmp_path: Path) -> None:
    (tmp_path / "somemodels.py").write_text("from torch import nn\ndef huge():\n    return nn.Linear(10**6, 10**6)\n", encoding="utf-8")
    assert cli.main(["explain", "somemodels:huge", "--input", "f32[1,1000000]", "--dry-run", "-o", "run.ortlens"]) == 0
    saved = ortlens.load(tmp_path / "run.ortlens")
    assert saved.partitions.weight_bytes.sum() > 4 * 10**12
    assert len(saved.sessions) == 0


def test_a_dry_run_is_planned_for_another_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["explain", "somemodels:net", "--input", "i64[2,7]", "--dry-run", "--device"]
    assert cli.main([*asked, "cpu", "-o", "run.ortlens"]) == 0
    assert ortlens.load(tmp_path / "run.ortlens").captured().figures.planned_for == ()
    capsys.readouterr()
    assert cli.main([*asked, "mps"]) == 2
    assert "only for 'cuda' and 'cpu'" in capsys.readouterr().err


def test_another_backend_and_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "somemodels:scaled", "--input", "f32[8]", "--calls", "1", "--backend", "eager"]) == 0
    assert "with backend eager" in capsys.readouterr().out
    assert cli.main(["explain", "somemodels:scaled", "--input", "f32[8]", "--calls", "1", "--option", "min_partition_nodes=9"]) == 0
    assert "Stays in PyTorch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["somemodels"], "write MODULE:NAME"),
        (["somemodel:net"], "Did you mean somemodels?"),
        (["gone.py:net"], "there is no file 'gone.py'"),
        (["needy:net"], "imports 'not_installed_at_all', which is not installed"),
        (["broken:net"], "importing broken failed: ZeroDivisionError"),
        (["somemodels:nett"], "has no 'nett'. Did you mean"),
        (["somemodels:net.embedd"], "Did you mean embed"),
        (["somemodels:number"], "is an int, which cannot be called"),
        (["somemodels:Needs"], "is a class that needs width"),
        (["somemodels:fails"], "creating the model with somemodels:fails failed: RuntimeError: no weights here"),
        (["somemodels:net"], "give the types and sizes: ortlens explain somemodels:net --input "),
        (["somemodels.py"], "ortlens run somemodels.py"),
        (["somemodels:breaks", "--input", "f32[2]"], "calling somemodels:breaks with f32[2] failed"),
        (["somemodels:net", "--input", "f33[2]"], "^^^"),
        (["somemodels:net", "--input", "f32[999999999999999]"], "creating the inputs failed: MemoryError"),
        (["somemodels:net", "--option", "nope=1"], "unknown option 'nope'"),
        (["somemodels:net", "--option", "nope"], "key=value"),
        (["somemodels:net", "--option", "a=1", "--option", "a=2"], "given twice"),
        (["somemodels:net", "--dry-run", "--profile"], "--profile needs a real run"),
        (["somemodels:net", "--device", "cuda"], "add --dry-run"),
        (["model.onnx", "--dry-run", "--device", "cuda"], "--device are for what torch.compile compiles"),
        (["somemodels:net", "--backend", "eager", "--verify"], "--verify needs ONNX Runtime"),
        (["somemodels:net", "--html", "gone/run.html"], "there is no folder"),
        (["somemodels:net", "--html", "somemodels.py"], "is not an ortlens report, so it is not overwritten"),
        (["somemodels:net", "--redact"], "--report FILE"),
        (["somemodels:net", "--calls", "0"], "'0' is not a whole number from 1"),
        (["somemodels:net", "--budget", "5"], "--profile and --verify"),
    ],
)
def test_what_cannot_be_is_one_message(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *arguments]) == 2
    streams = capsys.readouterr()
    assert said in streams.err
    assert streams.err.startswith("ortlens: ")
    assert "unexpected" not in streams.err
    assert "Traceback" not in streams.err


def test_an_error_of_the_model_names_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["explain", "somemodels:fails"])
    assert f'{tmp_path / "somemodels.py"}:28: raise RuntimeError("no weights here")' in capsys.readouterr().err


def test_what_was_captured_before_an_error_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "somemodels:late", "--input", "f32[4]", "--save", "run.ortlens"]) == 2
    assert "KeyError: 'late'" in capsys.readouterr().err
    assert len(ortlens.load(tmp_path / "run.ortlens").graphs) == 1


def test_an_interrupt_keeps_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ortlens.Lens, "profile", interrupted)
    arguments = ["--input", "f32[4]", "--calls", "1", "--profile", "--save", "run.ortlens"]
    assert cli.main(["explain", "somemodels:scaled", *arguments]) == 130
    assert len(ortlens.load(tmp_path / "run.ortlens").sessions) == 1


def test_a_slip_in_the_inputs_does_not_wait_for_torch(run_python: Callable[..., str]) -> None:
    program = "import sys; from ortlens.cli import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    assert run_python(program, "explain", "a:b", "--input", "f33[2]") == "2 False\n"


DATA = Path(__file__).resolve().parents[2] / "data" / "onnx"
MODEL = str(DATA / "pytorch_torchscript.onnx")
REFERENCE = f"{DATA / 'make_pytorch.py'}:made"


def test_an_onnx_model_needs_no_input_and_is_verified_against_its_module(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["explain", MODEL, "--calls", "2", "--profile", "-o", str(tmp_path / "run.ortlens")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("pytorch_torchscript.onnx: ONNX model in onnxruntime")
    assert "Kernels" in said
    assert not ortlens.load(tmp_path / "run.ortlens").kernels.empty
    assert cli.main(["explain", MODEL, "--calls", "1", "--json", "--input", "x=f32[2,3,8,8]:-1:1"]) == 0
    assert answered(capsys.readouterr().out)["onnx"]["inputs"] == "x=f32[2,3,8,8]"
    assert cli.main(["explain", MODEL, "--calls", "1", "--verify", "--reference", REFERENCE]) == 0
    assert "verified" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([MODEL, "--verify"], "needs what it was made from: --reference MODULE:NAME, model.onnx or program.pt2"),
        ([MODEL, "--backend", "eager"], "an ONNX model is run as it is"),
        (["missing.onnx"], "missing.onnx does not exist"),
        (["missing.pt2"], "there is no file 'missing.pt2'"),
        ([MODEL, "--input", "x=i64[2,3,8,8]"], "'x' is int64, and the model takes f32[2,3,8,8]"),
        ([MODEL, "--input", "x=bf16[2,3,8,8]"], "bf16 has no numpy type"),
    ],
)
def test_files_that_cannot_be_explained_are_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *options]) == 2
    assert message in capsys.readouterr().err


def test_an_exported_program_is_called_with_its_own_inputs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2).eval(), (torch.ones(3, 4),)), path)
    assert cli.main(["explain", str(path), "--calls", "1"]) == 0
    assert "In ONNX Runtime" in capsys.readouterr().out
    assert cli.main(["explain", str(path), "--calls", "1", "--input", "f32[5]"]) == 2
