"""How sessions on CUDA are configured and called; see tests/fake_cuda.py for what is real here."""

from collections.abc import Iterator
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import ortlens
from ortlens.analysis.speed import AbTiming
from ortlens.backend.runtime import call, cuda, devices, generated, session, session_forms, weights
from ortlens.studies import tune
from tests import fake_cuda

STEP = ["record torch", "wait own", "run", "record own", "wait torch"]


@pytest.fixture(autouse=True)
def _default_precision() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    allow_in_cudnn("tf32")


def allow_in_cudnn(precision: str) -> None:
    """By the new names: PyTorch's own test helpers, once imported, forbid to set the old one."""
    torch.backends.cudnn.conv.fp32_precision = precision  # type: ignore[attr-defined]  # torch's annotations lack it
    torch.backends.cudnn.rnn.fp32_precision = precision  # type: ignore[attr-defined]  # as above


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def compiled(model: Any, **options: Any) -> tuple[Any, ortlens.Lens]:  # noqa: ANN401 - a module or a function
    lens = ortlens.Lens(options=options)
    return torch.compile(model, backend=lens), lens


def calls_of(given: dict[str, Any], *kinds: str, index: int = 0, waits: bool = False, replays: bool = True) -> cuda.DeviceCalls:
    return cuda.DeviceCalls(torch.device("cuda", index), given, kinds, cuda.CallNeeds(waits=waits, plain=False, replays=replays))


def model_of(*operators: str) -> onnx.ModelProto:
    return onnx.ModelProto(graph=onnx.GraphProto(node=[onnx.NodeProto(op_type=name) for name in operators]))


def test_precision_follows_pytorch_and_the_stricter_setting_of_a_model_that_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.install(monkeypatch, sessions=False)
    assert cuda.tf32_kinds(model_of("Relu", "Gemm", "Conv", "MatMul")) == ("conv", "matmul")
    assert cuda.tf32_kinds(model_of("Relu")) == ()

    def allowed() -> list[str]:
        return [calls_of({}, *kinds).settings["use_tf32"] for kinds in (("matmul",), ("conv",), ("conv", "matmul"), ("rnn",))]

    assert allowed() == ["0", "1", "0", "1"], "PyTorch's defaults"
    torch.set_float32_matmul_precision("high")
    assert allowed() == ["1", "1", "1", "1"]
    allow_in_cudnn("ieee")
    assert allowed() == ["1", "0", "0", "0"]
    torch.backends.cuda.matmul.fp32_precision = "ieee"  # PyTorch's own getters raise from here on
    assert allowed() == ["0", "0", "0", "0"]
    assert calls_of({"use_tf32": 1}, "matmul").settings["use_tf32"] == 1, "what the user says"


def test_the_settings_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_cuda.install(monkeypatch, sessions=False)
    first, second = calls_of({}), calls_of({"cudnn_conv_algo_search": "HEURISTIC"}, index=1, replays=False)
    assert first.settings == {"use_tf32": "1", "user_compute_stream": str(fake.own[0].cuda_stream), "enable_cuda_graph": "1"}
    assert second.settings == {
        "use_tf32": "1",
        "device_id": "1",
        "user_compute_stream": str(fake.own[1].cuda_stream),
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    assert not calls_of({}, waits=True).replays, "what waits for the device cannot replay"
    varying = cuda.DeviceCalls(torch.device("cuda:0"), {}, (), cuda.CallNeeds(waits=False, plain=True, replays=True, varies=True))
    assert varying.settings == {"use_tf32": "1", "cudnn_conv_algo_search": "HEURISTIC"}
    given = calls_of({"user_compute_stream": "7"})
    assert not given.replays
    assert given.settings == {"use_tf32": "1", "user_compute_stream": "7"}
    assert len(fake.own) == 3, "the user's stream needs none of ours"


def test_a_session_on_a_device_gets_them_and_falls_back_to_what_onnx_runtime_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = _factory_of(net(), torch.rand(3, 8))
    fake_cuda.install(monkeypatch, sessions=False)
    monkeypatch.setattr(devices, "available", lambda: (cuda.PROVIDER, devices.CPU))
    asked: list[dict[str, Any]] = []

    def refuse(config: session.SessionConfig, _serialized: bytes) -> Any:  # noqa: ANN401 - never returns
        asked.append(dict(config.providers)[cuda.PROVIDER])
        raise session.ModelRefused("not with these")

    monkeypatch.setattr(session.SessionConfig, "session", refuse)
    with FakeTensorMode():
        for node in (*factory.partition.inputs, *factory.partition.outputs):
            node.meta["val"] = torch.empty(node.meta["val"].shape, device="cuda")
    with pytest.raises(session.ModelRefused):
        factory.session([], {}, cause="first")
    assert [sorted(settings) for settings in asked] == [
        ["enable_cuda_graph", "use_tf32", "user_compute_stream"],
        ["use_tf32", "user_compute_stream"],
        ["use_tf32"],
    ]
    assert {settings["use_tf32"] for settings in asked} == {"0"}


def _factory_of(model: nn.Module, x: torch.Tensor) -> session.SessionFactory:
    backend = ortlens.OrtBackend()
    with torch.no_grad():
        torch.compile(model, backend=backend)(x)
    (graph,) = backend.compiler.graphs
    return graph.runners[0].factory


def test_a_run_is_a_step_of_the_current_stream_and_the_host_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_cuda.install(monkeypatch)
    model = net()
    fast, _ = compiled(model, cuda_graph=False)
    x = torch.rand(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
        (calls,) = fake.made
        assert fake.order(calls) == STEP
        assert fake.current.waits == 0
        entry = calls._options.get_run_config_entry("disable_synchronize_execution_providers")
    assert entry == "1"
    assert calls_of({}, waits=True)._options is None, "values of the host are there when the call returns"


def test_the_current_stream_waits_for_a_run_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_cuda.install(monkeypatch, sessions=False)
    calls = calls_of({})

    class Failing:
        fence = None
        native = None

        def run(self, *_: object) -> None:
            fake.done.append(("run",))
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        calls.run(Failing())  # type: ignore[arg-type]  # stands for a binding
    assert fake.order(calls) == STEP


def test_values_of_the_host_are_bound_anew_in_each_call() -> None:
    """To bind them to a session on a device is to copy them, and a later change at the same address would be missed."""
    written: list[str] = []

    def noted(name: str, source: str, scope: dict[str, Any]) -> Any:  # noqa: ANN401 - a function
        written.append(source)
        return generated.function_from_source(name, source, scope)

    with pytest.MonkeyPatch.context() as patched:
        fake_cuda.install(patched, waits=True)
        patched.setattr(call, "function_from_source", noted)
        fast, _ = compiled(lambda x, n: x * n.to(x.dtype) + x.shape[0], cuda_graph=False)
        x, n = torch.rand(3, 8), torch.tensor(2)
        with torch.no_grad():
            for value in (2, 5, 7):
                n.fill_(value)
                torch.testing.assert_close(fast(x, n), x * value + 3)
    assert any("bind_input" in source for source in written)
    assert not any("inputs_at" in source for source in written)


def test_inside_a_capture_of_pytorch_the_call_goes_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_cuda.install(monkeypatch)
    monkeypatch.setattr(devices, "capturing", lambda _: fake.capturing)  # it asks for tensors on CUDA
    model, x = net(), torch.rand(3, 8)
    fast, lens = compiled(model)
    frozen = ortlens.freeze(model, x)
    with torch.no_grad():
        fake.capturing = True
        torch.testing.assert_close(fast(x), model(x))
        assert len(lens.sessions) == 0, "a session could not be made"
        fake.capturing = False
        fast(x)
        before = len(fake.done)
        assert fake.handles, "within a capture, PyTorch could not create one"
        fake.capturing = True
        for run in (fast, frozen):
            torch.testing.assert_close(run(x), model(x))
        assert len(fake.done) == before, "no session ran"
    assert lens.findings.rule.tolist() == ["called_in_capture"]
    assert not len(lens.fallbacks), "the next call is in ONNX Runtime again"


def test_another_precision_makes_another_session(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.install(monkeypatch)
    weight, lens = nn.Parameter(torch.rand(16, 8)), ortlens.Lens()
    fast = torch.compile(lambda x: torch.relu(nn.functional.conv1d(x, weight[:, :, None])), backend=lens)
    x = torch.rand(1, 8, 5)
    with torch.no_grad():
        fast(x)
        allow_in_cudnn("ieee")  # Dynamo has no guard for it
        fast(x)
        fast(x)
    assert lens.sessions.cause.tolist() == ["first", "precision"]
    assert lens.sessions.weights_change.isna().all()


@pytest.mark.parametrize("frozen", [False, True])
def test_replays_compute_what_the_model_does_for_each_size(monkeypatch: pytest.MonkeyPatch, frozen: bool) -> None:  # noqa: FBT001 - a parameter
    fake = fake_cuda.install(monkeypatch)
    model = net()
    options = {"cuda_graph": True}
    lens = ortlens.Lens(options=options)
    fast = ortlens.freeze(model, torch.rand(3, 8), options=options) if frozen else torch.compile(model, backend=lens, dynamic=False)
    with torch.no_grad():
        kept = []
        for rows in (3, 3, 3) if frozen else (3, 5, 3, 5, 3):
            x = torch.rand(rows, 8)
            kept.append((fast(x), model(x)))
        for got, wanted in kept:
            torch.testing.assert_close(got, wanted)
    calls = fake.made[0]
    assert calls.facts()["cuda_graph"] == "replayed"
    assert calls.replayed == 3
    assert fake.order(calls).count("run") == len(fake.done) // 6 or not frozen
    if not frozen:
        assert lens.sessions.replayed.tolist() == [3, 2]


def timed(run_ns: int, replay_ns: int) -> Any:  # noqa: ANN401 - a function of any arguments
    return lambda *_: AbTiming((run_ns,) * 5, (replay_ns,) * 5)


def test_auto_replays_from_the_sixth_call_on_what_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = []
    for run_ns, replay_ns in ((100, 40), (100, 99)):
        with monkeypatch.context() as patched:
            fake = fake_cuda.install(patched)
            patched.setattr(cuda._CapturedGraph, "compared", timed(run_ns, replay_ns))
            fast, lens = compiled(net())
            with torch.no_grad():
                for calls in range(1, 9):
                    fast(torch.rand(3, 8))
                    uses.append((calls, fake.made[-1].facts()))
            assert lens.sessions.calls.tolist() == [8]
        torch._dynamo.reset()
    waiting = {"cuda_graph": "waiting", "replayed": 0, "replay_saved_ns": None}
    assert [facts for _, facts in uses[:5]] == [waiting] * 5
    assert uses[7] == (8, {"cuda_graph": "replayed", "replayed": 3, "replay_saved_ns": 60})
    assert uses[15] == (8, {"cuda_graph": "slower", "replayed": 0, "replay_saved_ns": None})


def test_the_times_that_are_compared_are_of_real_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_cuda.install(monkeypatch)
    fast, lens = compiled(net())
    with torch.no_grad():
        for _ in range(7):
            fast(torch.rand(3, 8))
    assert fake.made[0].facts()["cuda_graph"] in ("replayed", "slower")
    assert ("synchronize",) in fake.done, "both sides wait for the device"
    assert lens.sessions.calls.tolist() == [7], "calls of the trial do not count"


def test_threads_replay_only_what_they_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda._CapturedGraph, "compared", timed(100, 40))
    fake = fake_cuda.install(monkeypatch)
    model, x = net(), torch.rand(3, 8)
    fast, _ = compiled(model)
    with torch.no_grad():
        for _ in range(7):
            fast(x)

        def elsewhere() -> torch.Tensor:
            with torch.no_grad():
                result: torch.Tensor = fast(x)
                return result

        torch.testing.assert_close(fake_cuda.in_another_thread(elsewhere), model(x))
        assert fake.made[0].replayed == 2
        torch._dynamo.reset()
        fast, lens = compiled(model)
        for _ in range(7):
            fast(x)
    assert lens.sessions.cuda_graph.tolist() == ["threads"], "another thread might allocate memory meanwhile"


def test_a_failed_capture_is_reported_once_and_the_session_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    fake_cuda.install(monkeypatch)
    monkeypatch.setattr(cuda._CapturedGraph, "replay", fail)
    model, x = net(), torch.rand(3, 8)
    fast, lens = compiled(model, cuda_graph=True)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="capturing a CUDA graph of partition 0 failed.*not permitted"):
        torch.testing.assert_close(fast(x), model(x))
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert lens.sessions[["cuda_graph", "replayed", "calls"]].values.tolist() == [["failed", 0, 2]]
    assert lens.findings.rule.tolist() == ["cuda_graph_failed"]


def test_the_number_and_the_memory_of_graphs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_cuda.install(monkeypatch)
    monkeypatch.setattr(cuda, "MAX_GRAPHS", 2)
    model = net()
    fast, lens = compiled(model, cuda_graph=True)
    with torch.no_grad():
        torch._dynamo.mark_dynamic(x := torch.rand(3, 8), 0)
        fast(x)
        for rows in (4, 5, 6, 7, 6):
            x = torch.rand(rows, 8)
            torch.testing.assert_close(fast(x), model(x))
    assert len(lens.sessions) == 1
    assert (fake.made[-1].captured, lens.sessions.cuda_graph.tolist(), lens.sessions.replayed.tolist()) == (2, ["replayed"], [2])
    torch._dynamo.reset()
    monkeypatch.setattr(cuda, "MAX_GRAPH_BYTES", 100)
    fast, lens = compiled(model, cuda_graph=True)
    with torch.no_grad():
        fast(torch.rand(3, 8))
    assert lens.sessions.cuda_graph.tolist() == ["large"]


def test_functions_over_one_session_never_share_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime would replay that of the other function, on its buffers."""
    fake = fake_cuda.install(monkeypatch)
    fast, lens = compiled(net(), cuda_graph=True)
    with torch.no_grad():
        fast(torch.rand(3, 8))
    calls = fake.made[0]
    places = [cuda.BoundPlace(name="x", device=None, element=1)]
    numbers: list[int] = []

    class Graph:
        def __init__(self, *_: object, number: int) -> None:
            numbers.append(number)

        def replay(self, *_: object) -> None:
            """Take the place of the real one."""

    monkeypatch.setattr(cuda, "_CapturedGraph", Graph)
    for _ in range(2):
        graphs = cuda.Graphs(calls, places, places, new_binding=lambda: None, always=True)  # type: ignore[arg-type,return-value]
        graphs._captured([torch.rand(1)], [(torch.rand(1), (1,))])
    assert numbers == [2, 3]
    assert not graphs.replay([torch.rand(0)], [(torch.rand(0), (0,))]), "a buffer without elements has no address"
    assert numbers == [2, 3]
    assert lens.sessions.cuda_graph.tolist() == ["replayed"]


def test_sums_of_weights_on_a_device_notice_writes_that_torch_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def sums(tensors: Any) -> Any:  # noqa: ANN401 - of the real one
        values = tuple(int(tensor.view(torch.int32).sum(dtype=torch.int64)) for tensor in tensors)
        return lambda: values

    kind = devices.kind_of(torch.device("cpu"))
    changed = devices.DeviceKind(**{**{name: getattr(kind, name) for name in kind.__slots__}, "checksums": sums})
    monkeypatch.setitem(devices._KINDS, "cpu", changed)
    model, x = net(), torch.rand(3, 8)
    fast, lens = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        next(model.parameters()).data[0] += 1  # a write past the count
        with pytest.warns(RuntimeWarning, match="torch does not count"):
            calls = next(count for count in range(1, 1000) if torch.allclose(fast(x), model(x), atol=1e-5))
    assert weights.CALLS / 2 < calls <= 2 * weights.CALLS
    assert "uncounted_write" in lens.findings.rule.tolist()


def test_verify_names_tf32_and_the_setting_that_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.install(monkeypatch, rounds=True)
    torch.set_float32_matmul_precision("high")
    fast, lens = compiled(lambda x: x @ x)
    x = torch.rand(8, 8) * 3
    with torch.no_grad():
        fast(x)
        assert not lens.verify(x)["ok"].all()
    (finding,) = (found for found in lens.captured().findings if found.rule == "loses_accuracy")
    assert "computed in TF32" in finding.title
    assert "torch.backends.cuda.matmul.fp32_precision" in finding.evidence
    assert 'torch.set_float32_matmul_precision("highest")' in finding.mitigation
    torch.set_float32_matmul_precision("highest")
    torch._dynamo.reset()
    fast, lens = compiled(lambda x: x @ x)
    with torch.no_grad():
        fast(x)
        assert lens.verify(x)["ok"].all()


def test_tune_tries_a_graph_where_tensors_are_on_cuda() -> None:
    with FakeTensorMode():
        asked = {device: tune._candidates(ortlens.OrtBackendOptions(), [torch.empty(2, device=device)], 1) for device in ("cpu", "cuda")}
    assert {device: "cuda_graph" in {found.option for found in candidates} for device, candidates in asked.items()} == {
        "cpu": False,
        "cuda": True,
    }


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
def test_linear_layers_read_the_weight_as_it_lies_and_add_the_bias_last(monkeypatch: pytest.MonkeyPatch, *, dynamic: bool) -> None:
    fake_cuda.install(monkeypatch)
    seen: list[onnx.ModelProto] = []

    def noted(model: onnx.ModelProto) -> onnx.ModelProto:
        seen.append(session_forms.with_layers_for_cuda(model))
        return seen[-1]

    monkeypatch.setattr(session, "with_layers_for_cuda", noted)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8, bias=False), nn.LayerNorm(8))
    fast = torch.compile(model, backend="ortlens", dynamic=dynamic)
    with torch.no_grad():
        for x in (torch.randn(2, 5, 8), torch.randn(3, 7, 8)):
            torch.testing.assert_close(fast(x), model(x))
    kinds = [node.op_type for node in seen[0].graph.node]
    factors = {name for node in seen[0].graph.node if node.op_type == "FusedMatMul" for name in node.input[1:]}
    assert kinds.index("Add") == kinds.index("FusedMatMul") + 1
    assert kinds.count("FusedMatMul") == 2
    assert {"Gemm", "MatMul", "Reshape", "Transpose"}.isdisjoint(kinds)
    assert factors
    assert factors <= weights.shareable(seen[0])


def test_layers_that_read_rows_in_another_shape_get_them_in_that_of_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.install(monkeypatch)

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.out(x.transpose(1, 2).reshape(2, 5, 8)).relu()
            return made

    torch.manual_seed(0)
    model, x = Heads(), torch.randn(2, 4, 5, 2)
    fast, lens = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
        kernels = lens.profile(x)
    assert set(kernels.node[kernels.op_type == "FusedMatMul"]) == {"addmm"}


@pytest.mark.parametrize(
    ("element", "rank", "also", "faster"),
    [(10, 4, "MaxPool", True), (1, 4, "MaxPool", False), (10, 3, "MaxPool", False), (10, 4, "Resize", False)],
    ids=["images of float16", "of float32", "of one dimension", "with what was not tried"],
)
def test_convolutions_of_float16_are_computed_with_channels_last(element: int, rank: int, also: str, *, faster: bool) -> None:
    weight = onnx.TensorProto(name="w", data_type=element, dims=[1] * rank)
    nodes = [onnx.NodeProto(op_type="Conv", input=["x", "w"]), onnx.NodeProto(op_type=also, input=["y"])]
    model = onnx.ModelProto(graph=onnx.GraphProto(node=nodes, initializer=[weight]))
    assert cuda.is_faster_with_channels_last(model) is faster


def test_the_layout_of_convolutions_is_a_setting_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_cuda.install(monkeypatch)
    monkeypatch.setattr(cuda, "_IMAGES_OF_HALVES", (1, 4))  # the CPU has no convolution of float16
    model, x = nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8)
    fast, _ = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert fake.made[-1].settings["prefer_nhwc"] == "1"


def test_products_with_a_vector_and_other_gemms_stay_as_they_are() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (float[8] x, float[3,8] m, float[4,8] w, float[3,1] b) => (float[4] y, float[3,4] z, float[3,4] u) {
        t = Transpose<perm = [1, 0]>(w)
        y = MatMul(x, t)
        z = Gemm<transB = 1>(m, w, b)
        u = Gemm<transB = 1, alpha = 2.0>(m, w)
    }"""
    model = onnx.parser.parse_model(text)
    assert session_forms.with_layers_for_cuda(model) is model
