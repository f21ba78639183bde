"""lens.profile on real models: whose time it is, what it leaves alone, and what it does when something goes wrong."""

import functools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import onnxscript
import pandas as pd
import pytest
import torch
from onnxscript import opset18 as op

import ortlens
from ortlens.errors import UsageError
from ortlens.lens.observing import time_budget
from ortlens.lens.profiling import profiles
from tests.integration.marked_lines import line_of
from tests.integration.small_models import SMALL_MODELS


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Profiles go to the temporary folder, and are gone afterwards; nothing is written where the user stands."""
    for folder in ("temporary", "here"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert not list((tmp_path / "temporary").glob("ortlens*"))
    assert not list((tmp_path / "here").iterdir())


def explained(target: Callable[..., Any], *args: Any, **options: Any) -> ortlens.Lens:  # noqa: ANN401 - any target
    with torch.no_grad():
        return ortlens.explain(target, calls=1, options=options or None)(*args)


def profiled(lens: ortlens.Lens, *args: Any, repeat: int = 3, **kwargs: Any) -> pd.DataFrame:  # noqa: ANN401 - any target
    with torch.no_grad():
        return lens.profile(*args, repeat=repeat, **kwargs)


def test_profiling_leaves_the_answer_and_the_log_of_calls_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    lens = explained(model, x)
    before = int(lens.sessions.calls.sum())
    executed = lens._targets.graphs()[0].of.session_calls()
    profiled(lens, x)
    assert int(lens.sessions.calls.sum()) == before + 1
    assert len(lens.runs) == before + 1
    assert lens._targets.graphs()[0].of.session_calls() == executed + 1
    with torch.no_grad():
        torch.testing.assert_close(lens.call_target((x,), {}), model(x))
        next(model.parameters()).fill_(1.0)
        torch.testing.assert_close(lens.call_target((x,), {}), model(x))
        profiled(lens, x)
    assert set(lens.kernels.session_id) == {"s0", "s1"}, "the session of the changed weights is another"


def test_rows_are_replaced_and_long_runs_are_repeated_less_often_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(8, 8)
    lens = explained(lambda t: torch.relu(t @ t), x)
    monkeypatch.setattr(time_budget, "STABLE_S", 300.0)
    with torch.no_grad():
        first = lens.profile(x)
        assert set(first.calls) == {20}
        monkeypatch.setattr(time_budget, "STABLE_S", 0.0)
        second = lens.profile(x)
        assert set(second.calls) == {5}
        assert set(lens.profile(x, repeat=7).calls) == {7}
    assert list(first.kernel) == list(second.kernel)
    assert len([name for name in lens.captured().attachments if name.endswith(".optimized.onnx")]) == 1


def test_a_target_in_several_graphs_and_partitions() -> None:
    def target(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ x)
        torch._dynamo.graph_break()
        z = torch.special.bessel_j0(y)  # stays in PyTorch
        return torch.sigmoid(y + z)

    x = torch.randn(16, 16)
    lens = explained(target, x)
    kernels = profiled(lens, x)
    assert len(lens.sessions) >= 2
    assert set(kernels.session_id) == set(lens.sessions.session_id)
    assert kernels.groupby("session_id").share.sum().to_numpy() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("dynamic", "options", "sizes", "profiled_size", "session"),
    [
        (False, {}, (4,), 5, "s1"),  # compiled anew
        (True, {}, (4, 5, 6), 100, "s0"),  # one session for all sizes
        (True, {"export_options": {"dynamic_shapes": False}}, (4, 5), 5, "s1"),  # a session per size
    ],
)
def test_sizes_are_profiled_in_their_session(
    *, dynamic: bool, options: dict[str, Any], sizes: tuple[int, ...], profiled_size: int, session: str
) -> None:
    lens = ortlens.Lens(options=options)
    fast = torch.compile(lambda t: torch.softmax(t @ t.T, -1), backend=lens, dynamic=dynamic)
    with torch.no_grad():
        for size in sizes:
            fast(torch.randn(size, 8))
        kernels = lens.profile(torch.randn(profiled_size, 8), repeat=2)
        assert set(kernels.session_id) == {session}
        assert kernels.bytes.max() >= profiled_size**2 * 4
        lens.profile(torch.randn(4, 8), repeat=2)
    assert list(dict.fromkeys(lens.kernels.session_id)) == sorted({"s0", session})


def test_a_training_step_is_profiled_forward_and_backward() -> None:
    model = torch.nn.Linear(8, 4)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        scaled = torch.tanh(model(x))  # the forward line
        return scaled.pow(2).mean()

    fast = torch.compile(loss_of, backend=(lens := ortlens.Lens()))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = fast(x)
        loss.backward()
        return loss

    x = torch.randn(3, 8)
    step(x)
    lens._targets.callables[0] = lens._targets.callables[0]._replace(
        function=step, compiled=step
    )  # a target that calls backward itself, as a training loop does
    model.zero_grad()
    kernels = lens.profile(x, repeat=2)
    assert model.weight.grad is not None
    got = model.weight.grad.clone()
    model.zero_grad()
    loss_of(x).backward()
    torch.testing.assert_close(got, model.weight.grad)
    phases = lens.links().set_index("kernel").phase
    backward = kernels[[phases.loc[[name]].eq("backward").any() for name in kernels.kernel]]
    assert not backward.empty
    forward_line = line_of("the forward line", __file__)
    assert forward_line in set(backward.line)
    assert set(backward.line.dropna()) <= {forward_line, forward_line + 1}
    assert backward.share.sum() == pytest.approx(1.0)


def test_the_optimised_model_is_kept_without_weights() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).eval()
    x = torch.randn(2, 256)
    for options in ({}, {"ort_session_options": quiet()}):
        lens = explained(model, x, **options)
        profiled(lens, x, repeat=1)
        data = lens.captured().attachments["models/m0.optimized.onnx"]
        assert len(data) < 20_000, f"{len(data)} bytes of a model with {4 * 256 * 256 * 4} bytes of weights"
        loaded = onnx.load_from_string(data)
        assert len(loaded.graph.node) == lens.models.optimized_node_count.iloc[0]
        torch.compiler.reset()


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def test_the_users_session_options_are_as_before(capfd: pytest.CaptureFixture[str]) -> None:
    options = quiet()
    options.profile_file_prefix = "mine"
    x = torch.randn(8, 8)
    lens = explained(lambda t: torch.relu(t @ t), x, ort_session_options=options)
    assert not profiled(lens, x).empty
    assert (options.enable_profiling, options.profile_file_prefix, options.optimized_model_filepath) == (False, "mine", "")
    assert capfd.readouterr().err == "", "ONNX Runtime complained"


library = torch.library.Library("ortlens_profile_test", "DEF")
library.define("pick(Tensor x) -> Tensor")
library.impl("pick", lambda x: torch.relu(x @ x) + 1 if x.sum() > 0 else -x, "CPU")
library.impl("pick", torch.empty_like, "Meta")


@onnxscript.script(onnxscript.values.Opset("ortlens_profile_test", 1), default_opset=op)
def pick_onnx(x: onnxscript.FLOAT) -> onnxscript.FLOAT:
    if op.Greater(op.ReduceSum(x, keepdims=0), op.Constant(value_float=0.0)):  # type: ignore[type-var]  # read, never run
        y = op.Add(op.Relu(op.MatMul(x, x)), op.Constant(value_float=1.0))  # type: ignore[type-var]  # likewise
    else:
        y = op.Neg(x)
    return y  # type: ignore[return-value]  # likewise


def test_kernels_in_a_branch_count_once_and_lead_back() -> None:
    pick = torch.ops.ortlens_profile_test.pick
    x = torch.rand(128, 128)
    lens = explained(lambda t: torch.tanh(pick(t * 2)), x, custom_translation_table={pick.default: pick_onnx})
    assert lens.fallbacks.empty
    kernels = profiled(lens, x, repeat=10).set_index("op_type")
    assert kernels.node["If"] == kernels.node["MatMul"] == kernels.node["Relu"] == "pick"
    assert "Neg" not in kernels.index, "the branch that was not taken"
    assert kernels.total_ns["If"] < kernels.total_ns["MatMul"], "the branch's kernels are counted in the If again"
    assert kernels.share.sum() == pytest.approx(1.0)
    gone = lens.fusions().query("change == 'gone'")
    assert any(nodes == ("pick",) for nodes in gone.nodes)


def test_a_profile_that_cannot_be_read_becomes_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> profiles.Profile:
        raise profiles.ProfileIncomplete("the profile holds 1 of 9 runs")

    monkeypatch.setattr(profiles, "read_profile", refuse)
    x = torch.randn(8, 8)
    lens = explained(lambda t: torch.relu(t @ t), x)
    assert profiled(lens, x).empty
    (finding,) = [row for row in lens.captured().findings if row.rule == "profile_failed"]
    assert finding.subject == "p0"
    assert "1 of 9 runs" in finding.evidence
    torch.testing.assert_close(lens.call_target((x,), {}), torch.relu(x @ x))


def test_what_cannot_be_profiled_is_said() -> None:
    with pytest.raises(UsageError, match="nothing was compiled"):
        ortlens.Lens().profile(torch.ones(2))
    x = torch.ones(3)
    lens = explained(torch.special.bessel_j0, x)
    with pytest.raises(UsageError, match="no partition ran in ONNX Runtime"):
        profiled(lens, x)
    for repeat in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="repeat must be"):
            lens.profile(x, repeat=repeat)  # type: ignore[arg-type]  # on purpose
    lens = explained(functools.partial(lambda x, repeat: torch.relu(x) * repeat, repeat=3), x)
    assert not profiled(lens, x).empty, "an argument of the target's own that is called repeat"


def test_an_exported_program_is_profiled() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    x = torch.randn(2, 8)
    lens = ortlens.explain(torch.export.export(model, (x,)), calls=1)(x)
    assert {"relu", "addmm"} & {name for nodes in lens.profile(x, repeat=2).nodes for name in nodes}


class Looked(torch.nn.Module):
    """A table that one row is read of, and a weight that is read as a whole and packed before."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = torch.nn.Embedding(5000, 512), torch.nn.Linear(512, 2048)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(self.table(ids))
        return made


def test_bytes_are_those_that_a_kernel_touches() -> None:
    ids = torch.tensor([3, 7])
    kernels = profiled(explained(Looked(), ids), ids).set_index("op_type").bytes
    row, weight = 512 * 4, 4 * 512 * 2048
    assert kernels["Gather"] == 2 * 8 + 2 * (2 * row)
    assert kernels[["Gemm"]].iloc[0] == 2 * row + weight + 4 * 2048 + 2 * 4 * 2048


class Planted(torch.nn.Module):
    """A light product and a heavy one, each with an activation that ONNX Runtime fuses with it."""

    def __init__(self, *, convolutions: bool) -> None:
        super().__init__()
        if convolutions:
            self.light: torch.nn.Module = torch.nn.Conv2d(16, 16, 3, padding=1)
            self.heavy: torch.nn.Module = torch.nn.Conv2d(16, 160, 3, padding=1)
        else:
            self.light, self.heavy = torch.nn.Linear(256, 256), torch.nn.Linear(256, 768)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        light = self.light(x)  # the light product
        light = torch.relu(light)  # the light activation
        heavy = self.heavy(x)  # the heavy product
        heavy = torch.relu(heavy)  # the heavy activation
        return light, heavy


def shares_by_text(lens: ortlens.Lens) -> dict[str, float]:
    """Share of each commented line of `Planted.forward`."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    found: defaultdict[str, float] = defaultdict(float)
    for kernel in lens.captured().kernels:
        found[lines[(kernel.line or 1) - 1].partition("# ")[2]] += kernel.share or 0.0
    return found


@pytest.mark.serial
@pytest.mark.timed
@pytest.mark.parametrize("convolutions", [False, True])
def test_time_is_charged_to_the_products_and_most_to_the_heavy_one(*, convolutions: bool) -> None:
    torch.manual_seed(0)
    model = Planted(convolutions=convolutions).eval()
    x = torch.randn(1, 16, 24, 24) if convolutions else torch.randn(48, 256)  # short runs are seldom interrupted
    lens = explained(model, x)
    profiled(lens, x, repeat=60)
    found = shares_by_text(lens)
    # An activation has what brings the result of a convolution into order; the fused kernel itself would be most of the time.
    assert found["the light activation"] + found["the heavy activation"] < found["the heavy product"]
    assert found["the heavy product"] > found["the light product"] > 0


def test_kernel_time_of_an_architecture_goes_back_to_user_lines() -> None:
    torch.manual_seed(0)
    small = SMALL_MODELS["resnet"]
    model, inputs = small.build().eval(), small.inputs(2)
    with torch.no_grad():
        lens = ortlens.explain(model, calls=1)(**inputs)
        kernels = lens.profile(repeat=3, **inputs)
    known = kernels[kernels.line.notna() & kernels.node.notna()]
    assert known.share.sum() >= 0.95 * lens.sessions.shape[0], kernels[kernels.line.isna()]
    assert kernels.groupby("session_id").share.sum().to_numpy() == pytest.approx(1.0)
    assert set(kernels.session_id) == set(lens.sessions.session_id)
    assert (known.confidence != "none").all()
    names = {node.node for node in lens.captured().nodes}
    assert all(set(nodes) <= names for nodes in kernels.nodes), "a kernel leads to a node that there is not"
    assert (lens.sessions.arena_bytes > 0).all()
    assert (lens.models.optimized_node_count < lens.models.node_count).all()
