"""A plug-in of ONNX Runtime, onnxruntime-ggml, on every road: `make test-providers`, in an environment of its own."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import onnxruntime_ggml
import pytest
import torch
from torch import nn

import ortlens
from ortlens import SessionError, UsageError, cli, doctor
from ortlens.job.providers import register
from ortlens.views.capture_view import CaptureView

GGML = onnxruntime_ggml.EP_NAME
_CLOSE: Mapping[str, Any] = {"atol": 2e-2, "rtol": 2e-2}  # it keeps weights in 16 bits


@pytest.fixture(autouse=True)
def _registers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package does not see whether another has registered its library, as the command line does."""
    path = str(onnxruntime_ggml.library_path())
    monkeypatch.setattr(onnxruntime_ggml, "register", lambda name=GGML: register(name, path))


class Asinh(nn.Module):
    """An operator that the provider lacks, so that it takes nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.asinh()


MODELS: Mapping[str, tuple[nn.Module, torch.Tensor]] = {
    "mlp": (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), torch.randn(2, 16)),
    "transformer": (nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), torch.randn(2, 5, 32)),
    "asinh": (nn.Sequential(nn.Linear(16, 32), Asinh(), nn.Linear(32, 4)), torch.randn(2, 16)),
    "convolution": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)), torch.randn(2, 3, 8, 8)),
}

REFUSED = {"convolution": r"Conv\("}
"""Model -> what the provider says in a call: it takes the operator, and fails at it."""


def test_a_library_that_is_not_registered_is_named_and_seen_once_it_is() -> None:
    model, x = MODELS["mlp"]
    options = {"preferred_execution_providers": [GGML]}
    with torch.no_grad():
        torch.compile(model, backend="ortlens")(x)
        if GGML not in onnxruntime.get_available_providers():  # no test before this one has registered it
            with pytest.raises(UsageError, match=r"register_execution_provider_library\('ggml', "):
                ortlens.explain(model, options=options)(x)
            assert [check.status for check in doctor.examine() if check.name == "ORT plug-ins"] == ["info"]
        onnxruntime_ggml.register()
        lens = ortlens.explain(model, options=options)(x)
    assert lens.sessions.providers[0][0] == GGML
    assert [check.status for check in doctor.examine() if check.name == "ORT plug-ins"] == ["ok"]
    assert not any("uninstall" in check.advice for check in doctor.examine())


def by_name() -> dict[str, Any]:
    return {"preferred_execution_providers": [(GGML, {"threads": "1"})]}


def by_devices() -> dict[str, Any]:
    return {"ort_session_options": onnxruntime_ggml.session_options({"threads": 1})}


@pytest.mark.parametrize("options", [by_name, by_devices])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_every_road_takes_it(name: str, options: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    onnxruntime_ggml.register()
    model, x = MODELS[name][0].eval(), MODELS[name][1]
    lens = ortlens.Lens(options=options())
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(torch.compile(model, backend=lens)(x), expected, **_CLOSE)
        explained = ortlens.explain(model, options=options())(x)
        frozen = ortlens.freeze(model, x, options=options())
        torch.testing.assert_close(frozen(x), expected, **_CLOSE)
        frozen.save(tmp_path / "saved")
        loaded = ortlens.load_frozen(tmp_path / "saved")
        torch.onnx.export(model, (x,), file := str(tmp_path / "model.onnx"), dynamo=True, verbose=False)
        if name in REFUSED:  # PyTorch runs what the provider fails at, where PyTorch is there
            with pytest.raises(SessionError, match=REFUSED[name]):
                loaded(x)
            assert lens.findings.evidence.str.contains(REFUSED[name]).any()
            with pytest.raises(SessionError, match=REFUSED[name]):
                ortlens.explain(file, options=options())(x)
        else:
            torch.testing.assert_close(loaded(x), expected, **_CLOSE)
    seen_as = [lens, explained, *([] if name in REFUSED else [ortlens.explain(file, options=options(), calls=1)(x)])]
    for seen in seen_as:
        assert seen.sessions.providers.map(lambda providers: providers[0] == GGML).all()
        assert_placed(seen, declined=name == "asinh")
        assert [any("Asinh x1" in text for text in said) for said in seen.sessions.messages] == [name == "asinh"]
    assert loaded.session.get_providers()[0] == GGML


def test_the_command_line_and_its_children_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = "CASES = {'net': {'target': net, 'inputs': ['f32[2,16]']}}"
    (tmp_path / "net.py").write_text(f"from torch import nn\ndef net(): return nn.Linear(16, 4)\n{cases}")
    target, library = [f"{tmp_path}/net.py:net", "--input", "f32[2,16]"], ["--provider-library", "ggml=onnxruntime-ggml"]
    assert cli.main(["explain", *target, *library, "--provider", "GGML:threads=1", "-o", str(tmp_path / "seen.ortlens")]) == 0
    assert ortlens.load(tmp_path / "seen.ortlens").sessions.providers[0][0] == GGML
    assert cli.main(["survey", f"{tmp_path}/net.py", *library, "--provider", "ggml"]) == 0
    capsys.readouterr()
    cli.main(["bisect", *target, *library, "--json", "--providers", "CPU", "ggml:threads=1", "ggml:threads=2", "--seconds", "1"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["status"], row["pieces"]) for row in rows] == [("ok", None), ("ok", 1), ("ok", 1)]


def assert_placed(lens: CaptureView, *, declined: bool) -> None:
    """All nodes on one side, on the first screen too; what declined them is the first problem."""
    rows = lens.placements.set_index("provider")
    assert (rows.nodes[GGML] == 0, rows.pieces[GGML], rows.copies.tolist()) == (declined, not declined, [0, 0])
    assert set(lens.nodes.provider[lens.nodes.onnx_nodes.map(bool)]) == {"CPUExecutionProvider" if declined else GGML}
    assert f"{GGML}: {rows.nodes[GGML]} of {rows.nodes.sum()} nodes" in lens.summary()
    first = "".join(lens.actions.subject[:1])
    assert declined == (f"{GGML} runs none of the" in first)
    if declined:
        assert "because of Asinh" in first
        assert "1 of 3 nodes use ops this provider lacks: Asinh x1" in rows.reason[GGML]


BODIES: Mapping[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mlp": (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), (2, 16)),
    "wide": (nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 4)), (3, 16)),
    "softmax": (nn.Sequential(nn.Linear(16, 16), nn.Softmax(-1)), (2, 16)),
    "norm": (nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)), (2, 4, 16)),
    "transformer": (nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), (2, 5, 32)),
}
AROUND: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "whole": lambda body: body,
    "first": lambda body: nn.Sequential(Asinh(), body),
    "last": lambda body: nn.Sequential(body, Asinh()),
    "both": lambda body: nn.Sequential(Asinh(), body, Asinh()),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.filterwarnings("ignore")
def test_placements_are_those_of_the_profile_node_for_node(body: str, around: str, tmp_path: Path) -> None:
    onnxruntime_ggml.register()
    (module, shape), path = BODIES[body], str(tmp_path / "model.onnx")
    torch.onnx.export(AROUND[around](module).eval(), (torch.randn(shape),), path, dynamo=True, verbose=False)
    made = onnxruntime.SessionOptions()
    made.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # no rewrite after nodes have providers
    chosen = [(GGML, {"partial": "1"}), "CPUExecutionProvider"]
    lens = ortlens.explain(path, options={"preferred_execution_providers": chosen, "ort_session_options": made}, calls=1)()
    made.enable_profiling, made.profile_file_prefix = True, str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(path, made, providers=chosen)
    session.run(None, lens.inputs)
    events = [event for event in json.loads(Path(session.end_profiling()).read_text("utf-8")) if event["name"].endswith("_kernel_time")]
    ran = {
        provider: {each["name"] for each in events if each["args"]["provider"] == provider} for provider in (GGML, "CPUExecutionProvider")
    }
    rows = lens.placements.set_index("provider")
    assert rows.pieces[GGML] == len(ran[GGML])
    assert rows.nodes["CPUExecutionProvider"] == len(ran["CPUExecutionProvider"])
    kept = {node.name for node in onnx.load(path).graph.node}
    elsewhere = {name for name, provider in zip(lens.nodes.node, lens.nodes.provider, strict=True) if provider == "CPUExecutionProvider"}
    assert {f"{name}_kernel_time" for name in elsewhere & kept} == ran["CPUExecutionProvider"]
