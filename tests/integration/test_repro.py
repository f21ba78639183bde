"""Reproductions run where there is no ortlens, say what is so, and give nothing of the user's away."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from onnxscript import opset18 as op
from torch import nn

import ortlens
from ortlens import Lens, UsageError

Run: TypeAlias = Callable[..., list[tuple[int, str]]]
Compare: TypeAlias = Callable[..., list[list[str]]]

ONLY_TORCH_AND_ORT = """
import contextlib, io, json, os, runpy, sys
sys.modules.update(dict.fromkeys(["ortlens", "onnx", "onnxscript", "onnx_ir", "pandas", "pytest"]))  # as if they were not there
for script in sys.stdin:
    sys.argv, code, said = [script.strip(), "2"], 0, io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as error:
            code = error.code
        except AssertionError as error:
            print(error)
            code = 1
    print(json.dumps([code, said.getvalue()]), flush=True)
    sys.modules.pop("repro", None)
"""
"""Runs scripts where only torch and onnxruntime can be imported; a process each would take a minute."""


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """How each script ends, and what it prints."""
    with subprocess.Popen(
        [sys.executable, "-c", ONLY_TORCH_AND_ORT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        orders, answers = process.stdin, process.stdout
        assert orders is not None
        assert answers is not None

        def ran(*scripts: Path) -> list[tuple[int, str]]:
            orders.write("".join(f"{script}\n" for script in scripts))
            orders.flush()
            return [tuple(json.loads(answers.readline())) for _ in scripts]

        yield ran
        orders.close()


@pytest.fixture
def compares(run: Run) -> Compare:
    """Names of the outputs that agree, by folder; none may differ."""

    def compared(*folders: Path) -> list[list[str]]:
        found = []
        for code, text in run(*(folder / "repro.py" for folder in folders)):
            assert code == 0, text
            found.append([line.split()[1].rstrip(":") for line in text.splitlines() if line.startswith("  ok")])
        return found

    return compared


def spec_of(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    return made


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).eval()


def inference(target: Any, *args: Any, **options: Any) -> Lens:
    function: Callable[..., Any] = target
    with torch.no_grad():
        return ortlens.explain(function, calls=1, **options)(*args)


def test_a_partition_runs_without_ortlens(tmp_path: Path, run: Run) -> None:
    lens = inference(mlp(), x(6, 5))
    folder = lens.repro("p0", tmp_path / "made" / "repro", args=(x(6, 5) * 3 + 1,))
    files = {"repro.py", "test_repro.py", "bench_repro.py", "program.py", "model.onnx", "spec.json", "ISSUE.md"}
    assert {path.name for path in folder.iterdir()} == files
    compared, tested, timed = run(folder / "repro.py", folder / "test_repro.py", folder / "bench_repro.py")
    assert (compared[0], tested[0], timed[0]) == (0, 0, 0)
    assert "  ok       addmm_1: max abs " in compared[1]
    assert "p0 onnxruntime / torch: " in timed[1]
    assert {path.name for path in folder.iterdir()} == files  # nor does running leave anything behind
    (case,) = spec_of(folder)["cases"]
    (given,) = (item for item in case["inputs"] if item["kind"] == "input")
    assert (given["shape"], given["dtype"], given["source"]) == ([6, 5], "float32", "recorded")
    assert given["statistics"]["mean"] == pytest.approx(float((x(6, 5) * 3 + 1).mean()), rel=1e-2)
    assert given["statistics"]["max"] == pytest.approx(float((x(6, 5) * 3 + 1).max()), rel=1e-2)
    assert len(case["frozen"]) == 6
    issue = (folder / "ISSUE.md").read_text(encoding="utf-8")
    assert f"- torch {torch.__version__}" in issue
    assert "python repro.py" in issue
    assert "`aten.addmm.default` 2" in issue
    assert "it does, within the tolerance" in issue


def test_nothing_of_the_users_goes_in_unasked(tmp_path: Path, compares: Compare) -> None:
    learned = torch.full((3,), 0.12345678)  # a tensor that is no parameter, yet may be learned

    class Secretive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, a: torch.Tensor) -> Any:
            return self.linear(a) * torch.tensor([0.12345678, 0.87654321, 0.5]) + learned  # a confidential remark

    model = Secretive().eval()
    lens = inference(model, x(2, 3))

    def everything(folder: Path) -> bytes:
        return b"\n".join(path.read_bytes() for path in sorted(folder.iterdir()))

    plain = lens.repro("p0", tmp_path / "plain", args=(x(2, 3),))
    held = everything(plain)
    secrets = [*model.linear.weight.detach().numpy().reshape(-1), *x(2, 3).numpy().reshape(-1), learned.numpy()[0]]
    texts = [b"confidential", b"Secretive", str(tmp_path).encode(), __file__.encode(), b"0.1234", b"0.8765"]
    assert [secret for secret in secrets if secret.tobytes() in held] == []
    assert [text for text in texts if text in held] == []

    told = lens.repro("p0", tmp_path / "told", args=(x(2, 3),), real_inputs=True, weights=True, source=True)
    assert compares(plain, told) == [["add"], ["add"]]
    values = torch.load(told / "values.pt", weights_only=True)
    assert any(torch.equal(value, model.linear.weight) for value in values.values())
    assert any(torch.equal(value, x(2, 3)) for value in values.values())
    assert b"test_repro.py:" in everything(told)
    assert b"a confidential remark" in everything(told)


def kinds(a: torch.Tensor, index: torch.Tensor, mask: torch.Tensor, half: torch.Tensor) -> Any:
    best, where = torch.topk(torch.nn.functional.embedding(index, a), 2)
    low = (half * 2).to(torch.bfloat16)
    return best * a.shape[0], where, torch.where(mask, a, float("-inf")), low, low.float().sum(), a.t() @ a


def kinds_given(rows: int) -> tuple[torch.Tensor, ...]:
    return x(rows, 5), torch.arange(4).remainder(rows), x(rows, 5) > 0, x(rows, 3).to(torch.float16)


def test_every_kind_of_value(tmp_path: Path, compares: Compare) -> None:
    lens = inference(kinds, *kinds_given(6), dynamic=True)
    assert len(lens.partitions) == 1
    args = kinds_given(9)
    folder = lens.repro("g0", tmp_path / "seen", args=args)
    unseen = lens.repro("g0", tmp_path / "unseen")
    assert [len(outputs) for outputs in compares(folder, unseen)] == [lens.partitions.output_count.iloc[0]] * 2
    by_dtype = {item["dtype"]: item for item in spec_of(folder)["cases"][0]["inputs"] if "dtype" in item}
    assert by_dtype["int64"]["statistics"] == {"min": 0, "max": 3, "mean": 1.5}
    assert set(by_dtype) == {"float32", "int64", "bool", "float16"}
    assert by_dtype["float32"]["shape"][0] == len(args[0])
    assert {item["source"] for item in spec_of(unseen)["cases"][0]["inputs"] if "source" in item} == {"standard"}
    assert "standard statistics, since no values were seen" in (unseen / "ISSUE.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_what_is_not_finite_is_drawn_in_its_share(tmp_path: Path, compares: Compare) -> None:
    given = x(40, 50)
    given[:10] = float("nan")
    given[10:20] = float("-inf")
    lens = inference(lambda a: a * 2, given)
    folder = lens.repro("p0", tmp_path / "odd", args=(given,))
    assert compares(folder) == [["mul"]]
    (item,) = spec_of(folder)["cases"][0]["inputs"]
    assert (item["statistics"]["nan_share"], item["statistics"]["minus_inf_share"]) == (0.25, 0.25)
    scope = runpy.run_path(str(folder / "repro.py"))
    (drawn,) = scope["make_inputs"](scope["CASES"][0])
    assert 0.15 < drawn.isnan().double().mean() < 0.35


def test_a_backward_partition_leaves_gradients_alone(tmp_path: Path, compares: Compare) -> None:
    model = mlp().train()
    lens = ortlens.explain(model, calls=1)(x(6, 5))
    lens.result.sum().backward()
    before = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    backward = lens.graphs.graph_id[lens.graphs.phase == "backward"].item()
    folder = lens.repro(backward, tmp_path / "backward", args=(x(6, 5),))
    assert len(compares(folder)[0]) > 2
    assert {item.get("source") for item in spec_of(folder)["cases"][0]["inputs"]} == {"recorded"}
    assert before
    assert all(torch.equal(before[name], value.grad) for name, value in model.named_parameters() if value.grad is not None)
    assert len(lens.graphs) == 2


def split_in_two(a: torch.Tensor) -> Any:
    return torch.special.bessel_j0(a.sin() * 2).cos() + 1


@pytest.mark.slow
def test_graphs_nodes_and_dry_runs(tmp_path: Path, compares: Compare) -> None:
    with torch.no_grad():
        lens = ortlens.explain(mlp(), dry_run=True)(x(6, 5))
    dry = lens.repro("p0", tmp_path / "dry")
    with pytest.raises(UsageError, match="dry run"):
        lens.repro("p0", tmp_path / "called", args=(x(6, 5),))
    lens = inference(split_in_two, x(3))
    both = lens.repro("g0", tmp_path / "both", args=(x(3),))
    assert {"program_p0.py", "program_p1.py", "model_p0.onnx", "model_p1.onnx"} <= {path.name for path in both.iterdir()}
    session = lens.repro(lens.sessions.session_id.iloc[1], tmp_path / "session")
    node = lens.repro(("g0", "cos"), tmp_path / "node", args=(x(3),))
    row = lens.repro(next(lens.nodes[lens.nodes.node == "mul"].itertuples()), tmp_path / "row")
    assert compares(dry, both, session, node, row) == [["addmm_1"], ["mul", "add"], ["add"], ["cos"], ["mul"]]


@pytest.mark.slow
def test_an_operator_without_an_onnx_form_says_so(tmp_path: Path, run: Run) -> None:
    folder = inference(split_in_two, x(3)).repro("bessel_j0", tmp_path / "stays", args=(x(3),))
    assert not (folder / "model.onnx").exists()
    issue = (folder / "ISSUE.md").read_text(encoding="utf-8")
    assert "It stays in PyTorch (no_converter): prims.bessel_j0.default" in issue
    assert "\x1b" not in issue
    ((code, text),) = run(folder / "repro.py")
    assert code == 0
    assert "PyTorch runs it; not converted" in text


def test_a_wrong_conversion_is_caught_by_the_folder(tmp_path: Path, run: Run) -> None:
    def cosine_for_sine(a: Any) -> Any:
        return op.Cos(a)

    options = {"custom_translation_table": {torch.ops.aten.sin.default: cosine_for_sine}}
    lens = inference(lambda a: a.sin() + 1, x(7), options=options)
    folder = lens.repro("p0", tmp_path / "wrong", args=(x(7),))
    (code, text), (tested, said) = run(folder / "repro.py", folder / "test_repro.py")
    assert (code, tested) == (1, 1)
    assert "DIFFERS  add" in text
    assert "p0 differs from PyTorch" in said
    assert "1 of 1 outputs differ." in (folder / "ISSUE.md").read_text(encoding="utf-8")


def test_refusals_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lens = inference(split_in_two, x(3))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine", encoding="utf-8")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    refusals: list[tuple[Any, str, dict[str, Any], str]] = [
        ("p0", "taken", {}, r"taken is not empty"),
        ("p0", "taken/mine.txt", {}, r"mine\.txt is a file"),
        ("p9", "new", {}, r"there is no 'p9' to reproduce; there are p0, s0, p1, s1, g0"),
        (3, "new", {}, "names nothing to reproduce"),
        ("p0", "new", {"args": (x(3, 3, 3),)}, r"the call did not run p0.*another graph"),
        ("p0", "new", {"real_inputs": True}, "real_inputs=True keeps the inputs of a call"),
    ]
    for subject, folder, options, said in refusals:
        with pytest.raises(UsageError, match=said):
            lens.repro(subject, tmp_path / folder, **options)
    with pytest.raises(UsageError, match="nothing to reproduce: no graph"):
        Lens("eager").repro("p0", tmp_path / "new")
    monkeypatch.setattr("ortlens.lens.repro.evidence.issue_of", lambda *_args, **_options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lens.repro("p0", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_noise_is_no_difference_and_infinity_is(tmp_path: Path, compares: Compare, run: Run) -> None:
    def noise(a: torch.Tensor) -> Any:
        return (a - a.mean()).sum(), a.exp()  # the first is zero but for rounding

    lens = inference(noise, x(50, 50) * 100)
    folder = lens.repro("p0", tmp_path / "noise", args=(x(50, 50) * 100,))
    assert len(compares(folder)[0]) == 2
    (folder / "program.py").write_text(
        (folder / "program.py").read_text(encoding="utf-8").replace("exp.default(arg0_1)", "exp.default(arg0_1).clamp(max=3e38)")
    )
    ((code, text),) = run(folder / "repro.py")
    assert code == 1
    assert "DIFFERS  exp" in text
    assert "NaN or infinity on one side only" in text
