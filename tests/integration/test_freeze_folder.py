"""A saved frozen callable runs without torch and ortlens, and a damaged or hostile folder is refused before anything runs."""

import copy
import hashlib
import itertools
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime import OrtValue
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from torch.export import Dim
from torch.utils import _pytree

import ortlens
from ortlens.backend.deploy.signature import admits
from ortlens.backend.freeze import loader
from ortlens.errors import CaptureError, UsageError
from tests.integration.test_assumed_memory import step, write_through_reshape
from tests.integration.test_freeze import Counting, mlp, same


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen") / "mlp"
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()).eval()
    return ortlens.freeze(model, torch.randn(3, 16), dynamic=True).save(folder)


_ALONE = """
import sys
sys.path.insert(0, {folder!r})
from loader import load_frozen
import numpy as np
frozen = load_frozen({folder!r})
x = np.load({given!r})
np.save({out!r}, frozen(x))
import onnxruntime
value = frozen(onnxruntime.OrtValue.ortvalue_from_numpy(x))
assert isinstance(value, onnxruntime.OrtValue) and (value.numpy() == frozen(x)).all()
assert not {{"torch", "onnx", "ortlens"}} & set(sys.modules), "loaded"
sys.path[:0] = {paths!r}
import ortlens
ortlens.load_frozen({folder!r})
assert not {{"torch", "onnx", "pandas"}} & set(sys.modules), "loaded"
"""


def test_a_fresh_process_needs_onnxruntime_and_numpy_only(saved: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(5, 16)).astype(np.float32)
    given, out = tmp_path / "given.npy", tmp_path / "out.npy"
    np.save(given, x)
    code = _ALONE.format(folder=str(saved), given=str(given), out=str(out), paths=sys.path)
    subprocess.run([sys.executable, "-B", "-c", code], check=True, env={}, cwd=tmp_path, timeout=60)
    frozen = ortlens.load_frozen(saved)
    result = frozen(x)
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(np.load(out), result)
    same(frozen(torch.from_numpy(x)), torch.from_numpy(result))
    for shape in ((1, 16), (3, 15), (3, 16, 1)):
        with pytest.raises(UsageError, match="input"):
            frozen(np.zeros(shape, np.float32))


class _Mixed(torch.nn.Module):
    """Writes to an argument and to state, and returns floats, bools and whole numbers."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor, mask: torch.Tensor, *, n: int) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        self.total += x.sum()
        x *= 2
        return x.half() + n, ~mask, {"ids": mask.long().cumsum(0), "total": self.total + 1}


def test_ort_values_in_and_out(tmp_path: Path) -> None:
    x, mask = torch.randn(4), torch.tensor([True, False, True, True])
    frozen = ortlens.freeze(_Mixed(), x.clone(), mask, n=3)
    folder = frozen.save(tmp_path / "mixed")
    loaded, plain = ortlens.load_frozen(folder), ortlens.load_frozen(folder)
    for _ in range(2):
        arrays, value = [x.clone().numpy(), mask.numpy()], OrtValue.ortvalue_from_numpy(x.numpy())
        expected = _pytree.tree_leaves(plain(*arrays, n=3))
        made = _pytree.tree_leaves(loaded(value, OrtValue.ortvalue_from_numpy(mask.numpy()), n=3))
        assert [type(item) for item in made] == [OrtValue] * 4
        for one, other in zip(made, expected, strict=True):
            np.testing.assert_array_equal(one.numpy(), other, strict=True)
        np.testing.assert_array_equal(value.numpy(), arrays[0])
        np.testing.assert_array_equal(loaded.state["total"], plain.state["total"])
    mixed = loaded(x.clone(), OrtValue.ortvalue_from_numpy(mask.numpy()), n=3)
    assert [type(item) for item in _pytree.tree_leaves(mixed)] == [torch.Tensor] * 4
    same(mixed[1], ~mask)
    with pytest.raises(UsageError, match=r"x: expected f32\[4\], given f32\[3\]"):
        loaded(OrtValue.ortvalue_from_numpy(x.numpy()[:3]), mask.numpy(), n=3)
    with pytest.raises(UsageError, match="x: expected f32"):
        loaded(OrtValue.ortvalue_from_numpy(mask.numpy()), mask.numpy(), n=3)
    with pytest.raises(UsageError, match=r"OrtValue of tensor\(bfloat16\)|expected f32"):
        loaded(OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(4, np.uint16), onnx.TensorProto.BFLOAT16), mask.numpy(), n=3)


def test_an_ort_value_that_is_written_shares_memory_with_no_other(tmp_path: Path) -> None:
    loaded = ortlens.load_frozen(ortlens.freeze(step, torch.zeros(4), torch.zeros(4)).save(tmp_path / "frozen"))
    value = OrtValue.ortvalue_from_numpy(np.ones(4, np.float32))
    with pytest.raises(UsageError, match="b shares memory with a"):
        loaded(value, value)


def test_memory_is_bound_where_it_is(saved: Path) -> None:
    """The way of CUDA tensors, with memory of the CPU."""
    loaded, x = ortlens.load_frozen(saved), torch.randn(3, 16)
    (made,) = loaded._run_bound([x], [x], loader._Home(device=x.device, place=("cpu", 0))).values()
    same(loader._as_tensor(made, x.device), loaded(x))
    turned = x.t()[::2]
    layout = loader._layout_of(turned.data_ptr(), tuple(turned.shape), np.dtype("float32"), tuple(4 * step for step in turned.stride()))
    array = turned.numpy()
    assert (layout.dtype, layout.shape, layout.strides, layout.ctypes.data) == (array.dtype, array.shape, array.strides, array.ctypes.data)
    assert np.shares_memory(layout, x.numpy())
    assert not layout.flags.c_contiguous
    assert layout.flags.writeable


def test_a_tensor_without_values_is_refused(saved: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be passed on: .*meta"):
        ortlens.load_frozen(saved)(torch.ones(3, 16, device="meta"))


CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@pytest.mark.parametrize(
    ("manifest", "here", "wanted", "chosen"),
    [
        ({}, [CUDA, CPU], None, [(CPU, {})]),  # as saved before providers were
        ({"providers": [CPU]}, [CUDA, CPU], None, [(CPU, {})]),
        ({"providers": [CUDA, CPU]}, [CPU], None, [(CPU, {})]),
        ({"providers": [CUDA, CPU], "tf32": False}, [CUDA, CPU], None, [(CUDA, {"use_tf32": "0"}), (CPU, {})]),
        ({"providers": [CUDA, CUDA], "tf32": True}, [CUDA, CPU], None, [(CUDA, {"use_tf32": "1"}), (CPU, {})]),
        ({"providers": [CUDA, CPU], "tf32": True}, [CUDA, CPU], [CPU], [(CPU, {})]),
        ({"providers": [CPU]}, [CUDA, CPU], [(CUDA, {"device_id": 1}), CPU], [(CUDA, {"device_id": 1, "use_tf32": "0"}), (CPU, {})]),
        ({"providers": [CPU]}, [CUDA, CPU], [(CUDA, {"use_tf32": "1"})], [(CUDA, {"use_tf32": "1"})]),
    ],
)
def test_the_providers_are_those_of_freezing(
    manifest: dict[str, Any], here: list[str], wanted: list[Any] | None, chosen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: here)
    monkeypatch.setattr("onnxruntime.preload_dlls", lambda: loads.append("libraries"))
    monkeypatch.setattr("torch.version.cuda", None)
    assert loader._chosen(manifest, wanted) == chosen
    assert len(loads) == (chosen[0][0] == CUDA)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    assert loader._chosen(manifest, wanted) == chosen
    assert len(loads) == (chosen[0][0] == CUDA)  # torch has loaded them


def test_a_manifest_names_its_providers_and_need_not(saved: Path, tmp_path: Path) -> None:
    manifest = json.loads((saved / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["providers"], manifest["tf32"]) == ([CPU], False)
    older = shutil.copytree(saved, tmp_path / "older")
    _manifest(lambda manifest: [manifest.pop(key) for key in ("providers", "tf32")])(older)
    x = torch.randn(3, 16)
    same(ortlens.load_frozen(older)(x), ortlens.load_frozen(saved)(x))
    _manifest(lambda manifest: manifest.update(providers=5))(older)
    with pytest.raises(CaptureError, match="holds no sound"):
        ortlens.load_frozen(older)


SLICES_ALL_SIZES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
CONDITIONS: list[Callable[[int, int], bool]] = [
    lambda n, m: max(n, m) != 13,
    lambda n, m: torch.sym_min(n, m) != 2,
    lambda n, m: abs(n - m) != 5,
    lambda n, m: math.ceil(n / 4) + m != 10,
    lambda n, m: math.floor(n / 3) - m != -7,
    lambda n, m: math.trunc((n - m) / 3) != -2,
    lambda n, m: round(n / 4) * m != 8,
    lambda _, m: round(m / 7, 1) != 0.6,
    lambda n, m: 2**n + m != 71,
    lambda n, m: (1 << m) - n != 1016,
    lambda n, m: n / m != 1.5,
    lambda n, m: n**0.5 + m != 12.0,
    lambda n, m: torch.sym_ite(n > 5, n, m) != 11,
    lambda n, m: (n ^ m) != 3,
    lambda n, m: (m & 3) + n != 15,
]
"""Each is broken alone by some sizes below 14."""


def _doubled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for condition in CONDITIONS:
        if not condition(x.shape[0], y.shape[0]):
            return x
    return x * 2 + y.sum()


def test_conditions_on_sizes_are_those_of_python(tmp_path: Path) -> None:
    loaded = ortlens.load_frozen(ortlens.freeze(_doubled, torch.ones(7), torch.ones(6), dynamic=True).save(tmp_path / "frozen"))
    for n, m in itertools.product(range(2, 14), repeat=2):
        if all(condition(n, m) for condition in CONDITIONS):
            same(loaded(torch.ones(n), torch.ones(m)), torch.full((n,), 2.0 + m))
        else:
            with pytest.raises(UsageError, match="Guard failed"):
                loaded(torch.ones(n), torch.ones(m))


def test_what_decomposing_assumes_of_sizes(tmp_path: Path) -> None:
    """PyTorch exports this slice for all sizes, and before 2.15 decomposes it for one."""
    frozen = ortlens.freeze(lambda x: (x * 2, x[:-3] * 1), torch.zeros(3, 0), dynamic=True)
    calls: tuple[Callable[..., Any], ...] = (frozen, ortlens.load_frozen(frozen.save(tmp_path / "frozen")))
    for call in calls:
        assert [tuple(item.shape) for item in call(torch.zeros(3, 0))] == [(3, 0), (0, 0)]
        if SLICES_ALL_SIZES:
            assert [tuple(item.shape) for item in call(torch.zeros(8, 0))] == [(8, 0), (5, 0)]
        else:
            with pytest.raises(UsageError, match=r"expected f32\[3,0\], given f32\[8,0\]"):
                call(torch.zeros(8, 0))


def test_a_condition_that_is_not_defined_or_too_long_does_not_hold() -> None:
    x = (np.zeros(3),)
    size = ["size", 0, 0]
    for guard in ([">", ["%", 7, ["-", size, 3]], 0], [">", ["sqrt", ["-", 0, size]], 0], [">", ["**", ["float", -1], 0.5], 0]):
        assert not admits(guard, x)
    assert not admits([">", ["**", size, 1 << 40], 0], x)


def test_state_goes_on_from_where_it_was_saved(tmp_path: Path) -> None:
    model, x = Counting(), torch.randn(4, 8)
    plain, frozen = copy.deepcopy(model), ortlens.freeze(model, x)
    frozen(x)
    plain(x)
    loaded = ortlens.load_frozen(frozen.save(tmp_path / "counting"))
    kept = [(loaded(x * turn), tuple(item.clone() for item in plain(x * turn))) for turn in (2, 3, 4)]
    for actual, expected in kept:
        same(actual, expected)
    assert (int(loaded.state["calls"]), int(frozen.state["calls"])) == (4, 1)


def test_larger_weights_are_a_file_of_their_own_which_is_checked_too(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).eval()
    x = torch.randn(2, 512)
    with torch.no_grad():
        expected = model(x)
    folder = ortlens.freeze(model, x).save(tmp_path / "larger")
    data = folder / "model.data"
    assert (folder / "model.onnx").stat().st_size < 65_536 < 2 * 512 * 512 * 4 <= data.stat().st_size
    torch.testing.assert_close(ortlens.load_frozen(folder)(x), expected, atol=1e-5, rtol=1e-5)
    raw = bytearray(data.read_bytes())
    raw[-1] ^= 1
    data.write_bytes(raw)
    with pytest.raises(CaptureError, match=r"model\.data has sha256 .* was changed"):
        ortlens.load_frozen(folder)
    data.unlink()
    with pytest.raises(CaptureError, match="missing"):
        ortlens.load_frozen(folder)


def _read_only() -> np.ndarray[Any, Any]:
    made = np.zeros(4, dtype=np.float32)
    made.flags.writeable = False
    return made


def _constants(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 2, torch.tensor([1.0, -2.5]).new_full((3,), 2)  # a constant and a result of the same name


FOUR = np.arange(8, dtype=np.float32)
REPEATED = np.lib.stride_tricks.as_strided(FOUR, (4,), (0,))
TURNED = FOUR.reshape(4, 2).T
ARRAYS: dict[str, tuple[Callable[..., Any], list[tuple[tuple[Any, ...], str | None]]]] = {
    "two arguments, one of them written": (
        step,
        [
            ((FOUR[:4], FOUR[:4]), "b shares memory with a"),
            ((FOUR[:4], FOUR[2:6]), "b shares memory with a"),
            ((torch.from_numpy(FOUR)[:4], torch.from_numpy(FOUR)[2:6]), "b shares memory with a"),
            ((_read_only(), FOUR[:4]), "a is written to, and read-only"),
            ((REPEATED, FOUR[4:].copy()), "several of its elements share memory"),
            ((FOUR[::2], FOUR[1::2]), None),
            ((FOUR[3::-1], FOUR[4:]), None),
            ((FOUR[:4], _read_only()), None),
        ],
    ),
    "written through a reshape": (write_through_reshape, [((TURNED,), "x: expected a contiguous array"), ((FOUR.reshape(2, 4),), None)]),
    "reshaped": (lambda a: a.reshape(-1) * 2, [((TURNED,), None)]),
    "reshaped and returned": (lambda a: a.reshape(-1), [((TURNED,), None)]),
    "constants": (_constants, [((FOUR[:3],), None)]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_call_with_arrays_does_what_pytorch_does_or_is_refused(name: str, tmp_path: Path) -> None:
    function, calls = ARRAYS[name]
    like = [torch.zeros(*array.shape) for array in calls[0][0]]
    loaded = ortlens.load_frozen(ortlens.freeze(function, *like).save(tmp_path / "frozen"))
    before = FOUR.copy()
    for given, refused in calls:
        if refused is not None:
            with pytest.raises(UsageError, match=refused):
                loaded(*given)
            np.testing.assert_array_equal(FOUR, before)
            continue
        tensors = [torch.from_numpy(array.copy()) for array in given]
        made, expected = loaded(*given), function(*tensors)
        for array, tensor in zip((*_pytree.tree_leaves(made), *given), (*_pytree.tree_leaves(expected), *tensors), strict=True):
            np.testing.assert_allclose(array, tensor.numpy())
        FOUR[:] = before


def test_what_cannot_be_saved_is_listed_and_nothing_is_written(tmp_path: Path) -> None:
    for function, dtype, said in (
        (lambda x: x * 2, torch.bfloat16, "bfloat16"),
        (lambda x: (x.bfloat16() * 2).float(), torch.float32, "stay in PyTorch.*bfloat16"),
        (lambda _: None, torch.float32, "no tensor among the results"),
        (lambda _: (3, {"a": "text"}), torch.float32, "no tensor among the results"),
    ):
        with pytest.raises(UsageError, match=said):
            ortlens.freeze(function, torch.ones(2, dtype=dtype)).save(tmp_path / "refused")
    model = mlp()
    changed = ortlens.freeze(model, torch.randn(3, 16))
    assert changed.changed_weights() == ()
    with torch.no_grad():
        model.get_parameter("0.weight").add_(1.0)
    assert changed.changed_weights() == ("0.weight",)
    with pytest.raises(UsageError, match=r"written to since freeze \(0.weight\)"):
        changed.save(tmp_path / "changed")
    assert not list(tmp_path.iterdir())


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest))

    return damage


def _text(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "manifest.json").write_text(text)


def _model(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.onnx").write_bytes(change((folder / "model.onnx").read_bytes()))


def _replaced(folder: Path, raw: bytes) -> None:
    """Another model, with the right hash."""
    (folder / "model.onnx").write_bytes(raw)
    entry = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    _manifest(lambda manifest: manifest["files"].update({"model.onnx": entry}))(folder)


def _outside(location: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        model = onnx.load(str(folder / "model.onnx"))
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        _replaced(folder, model.SerializeToString())

    return damage


def _hidden(folder: Path) -> None:
    """External data in a tensor of a branch of an If, in a function."""
    tensor = onnx.TensorProto(name="t", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../secret")
    inner = onnx.GraphProto(name="inner", initializer=[tensor])
    node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner)
    model = onnx.load(str(folder / "model.onnx"))
    model.functions.add(name="f", domain="d").node.append(node)
    _replaced(folder, model.SerializeToString())


def _endless(folder: Path) -> None:
    """A function that calls itself."""
    model = onnx.load(str(folder / "model.onnx"))
    model.graph.node.append(onnx.helper.make_node("f", ["x"], ["never"], domain="d"))
    model.functions.add(name="f", domain="d", input=["x"], output=["y"]).node.append(onnx.helper.make_node("f", ["x"], ["y"], domain="d"))
    _replaced(folder, model.SerializeToString())


def _linked(folder: Path) -> None:
    (folder.parent / "elsewhere.onnx").write_bytes((folder / "model.onnx").read_bytes())
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to(folder.parent / "elsewhere.onnx")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "missing"),
        (_text(""), "holds no sound frozen callable"),
        (_text("[" * 100_000), "holds no sound frozen callable"),
        (_text("{}"), "no manifest"),
        (_manifest(lambda m: m.update(schema=99)), "schema 99"),
        (_manifest(lambda m: m.pop("files")), "holds no sound frozen callable"),
        (_manifest(lambda m: m.update(model="../model.onnx")), "no hash for the model"),
        (_manifest(lambda m: m["files"].update({"../up": {"bytes": 1, "sha256": ""}})), "no name of a file"),
        (_manifest(lambda m: m["files"].update({"gone": {"bytes": 1, "sha256": ""}})), "missing"),
        (_manifest(lambda m: m["files"]["model.onnx"].update(sha256="0" * 64)), "was changed"),
        (_manifest(lambda m: m["feeds"][0].update(leaf=7)), "does not fit"),
        (_manifest(lambda m: m["returned"][0].update(output="nothing")), "does not fit"),
        (_manifest(lambda m: m["returned"][0].update(output=[0])), "holds no sound"),
        (_manifest(lambda m: m["returned"][0].update(number=True)), "of a kind"),  # it has dimensions
        (_manifest(lambda m: m["returned"][0].update(leaf=0)), "of a kind"),
        (_manifest(lambda m: m["returned"][0].pop("output")), "of a kind"),
        (_manifest(lambda m: m["feeds"][0].pop("leaf")), "of a kind"),
        (_manifest(lambda m: m.update(returned=["constant"])), "holds no sound"),
        (_manifest(lambda m: m.update(updates=[{"leaf": 0}])), "holds no sound"),
        (_manifest(lambda m: m.update(result=["exec", ["*"]])), "no structure"),
        (_manifest(lambda m: m.update(arguments="*")), "holds no sound frozen callable"),
        (_manifest(lambda m: m["signature"]["leaves"][0].update(sizes=[["s", 0, 0]])), "no size"),
        (_manifest(lambda m: m.update(state={"x": {"file": "/etc/hostname", "dtype": "uint8", "shape": [1]}})), "no name of a file"),
        (_manifest(lambda m: m.update(state={"x": {"file": "model.onnx", "dtype": "object", "shape": [1]}})), "holds no sound"),
        (_model(lambda raw: raw[:-7]), "was changed"),
        (_model(lambda raw: raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:]), "was changed"),
        (_linked, "no plain file"),
        (_outside("../../etc/passwd"), "does not list"),
        (_hidden, "'../secret'"),
        (_endless, "calls itself"),
        (lambda folder: _replaced(folder, b"\x80\x04\x95 a pickle"), "holds no sound frozen callable|refuses"),
    ],
)
def test_a_damaged_or_hostile_folder_is_refused(saved: Path, tmp_path: Path, damage: Callable[[Path], object], said: str) -> None:
    folder = shutil.copytree(saved, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    damage(folder)
    with pytest.raises(CaptureError, match=said):
        ortlens.load_frozen(folder)


class Returning(torch.nn.Module):
    """Has a weight and two buffers, of which calls change one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]), requires_grad=False)
        self.calls, self.kept = torch.nn.Buffer(torch.zeros(2)), torch.nn.Buffer(torch.ones(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:  # noqa: ANN401 - of any structure
        return self.function(self, x, y)


RETURNED: dict[str, Callable[..., Any]] = {
    "an argument that nothing reads": lambda _, x, y: (x * 2, y),
    "an argument that is read": lambda _, x, y: (x * y, y, {"x": x}),
    "one result twice": lambda _, x, y: [x * y] * 2,
    "constants": lambda _, x, y: (3, None, x + y, 2.5, "text", True),
    "arguments alone": lambda _, x, y: (y, x, x),
    "a weight that is read": lambda self, x, _: (x * self.weight, self.weight),
    "a weight and a buffer alone": lambda self, *_: (self.weight, self.kept),
    "state": lambda self, x, y: (self.calls.add_(x), y),
    "an argument that is written": lambda _, x, y: (y.add_(x), x),
    "an argument that becomes another": lambda _, x, y: y.copy_(x),
}


@pytest.mark.parametrize("name", RETURNED)
def test_results_that_no_model_computes(name: str, tmp_path: Path) -> None:
    """They are those of the callable that was saved, and what is one object there is one object."""
    model, frozen = Returning(RETURNED[name]), ortlens.freeze(Returning(RETURNED[name]), torch.ones(2), torch.ones(2))
    folder = frozen.save(tmp_path / "frozen")
    arrays, tensors = ortlens.load_frozen(folder), ortlens.load_frozen(folder)
    for step_ in range(2):
        given = [[torch.tensor([1.0, 2.0 + step_]), torch.tensor([3.0, 4.0])] for _ in range(4)]
        passed: list[list[Any]] = [*given[:3], [value.numpy() for value in given[3]]]
        runs: list[Callable[..., Any]] = [model, frozen, tensors, arrays]
        made = [run(*values) for run, values in zip(runs, passed, strict=True)]
        leaves = [[value for value in _pytree.tree_leaves(result) if value is not None] for result in made]
        for values, results in zip(given[1:], leaves[1:], strict=True):
            same([torch.as_tensor(value) if isinstance(value, np.ndarray) else value for value in results], leaves[0])
            same(values, given[0])  # what is written to
        known = [[id(value) for value in (*values, *results)] for values, results in zip(passed[1:], leaves[1:], strict=True)]
        one, *others = [[list(map(ids.index, ids)) for ids in known][place] for place in range(3)]
        assert others == [one, one]


@pytest.mark.parametrize("rounded", [math.ceil, math.floor, math.trunc, round])
def test_sizes_by_way_of_python_floats(rounded: Callable[[float], int], tmp_path: Path) -> None:
    function = lambda x: x[: rounded(x.shape[0] / 3)] * rounded(x.shape[0] / 7)  # noqa: E731 - used three times
    frozen = ortlens.freeze(function, torch.ones(16, 2), dynamic=True)
    loaded = ortlens.load_frozen(frozen.save(tmp_path / "frozen"))
    for rows in (7, 10, 21, 24, 100):
        x = torch.randn(rows, 2)
        same((frozen(x), loaded(x)), (function(x),) * 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1, x.shape[0] * 2),
        lambda x: x.shape[0],
        lambda x: (x, x.shape[0] / 7),
        lambda x: {"a": x, "b": x.shape[0] > 2, "c": x.shape[0] > 2},
    ],
)
def test_a_result_that_is_a_number_made_of_sizes(function: Callable[..., Any], tmp_path: Path) -> None:
    loaded = ortlens.load_frozen(ortlens.freeze(function, torch.ones(4, 2), dynamic_shapes=({0: Dim("rows")},)).save(tmp_path / "frozen"))
    for given in (torch.ones(7, 2), np.ones((7, 2), np.float32)):
        made, expected = _pytree.tree_leaves(loaded(given)), _pytree.tree_leaves(function(torch.ones(7, 2)))
        same([torch.as_tensor(value) for value in made], [torch.as_tensor(value) for value in expected])
        numbers = [[value for value in values if isinstance(value, (bool, int, float))] for values in (made, expected)]
        assert [(type(value), value) for value in numbers[0]] == [(type(value), value) for value in numbers[1]]


@dataclass
class Parts:
    first: Any
    second: Any = None


class Pair(NamedTuple):
    first: Any
    second: Any


class Bag:
    """An object without names for its parts."""

    def __init__(self, parts: list[Any], note: str | None = None) -> None:
        self.parts, self.note = parts, note


torch.export.register_dataclass(Parts, serialized_type_name="test_freeze_folder.Parts")
_pytree.register_pytree_node(
    Bag,
    lambda bag: (bag.parts, bag.note),
    lambda parts, note: Bag(list(parts), note),
    serialized_type_name="test_freeze_folder.Bag",
    flatten_with_keys_fn=lambda bag: ([(_pytree.SequenceKey(place), part) for place, part in enumerate(bag.parts)], bag.note),
)


def test_objects_come_back_as_dicts_and_lists(tmp_path: Path) -> None:
    function = lambda parts, pair, bag: (Parts(pair.first + 1), Pair(bag.parts[0] * 2, parts.first), Bag([parts.first - pair.second]))  # noqa: E731 - used twice
    one, two = torch.ones(3), torch.arange(3.0)
    loaded = ortlens.load_frozen(ortlens.freeze(function, Parts(one), Pair(one, two), Bag([two])).save(tmp_path / "frozen"))
    for parts, pair in ((Parts(two), Pair(one, one)), ({"first": two}, {"first": one, "second": one})):
        results = loaded(parts, pair, [one])
        assert torch.equal(results[0].pop("first"), one + 1)
        assert results[0] == {}
        assert [torch.equal(results[1]["first"], one * 2), results[1]["second"] is two] == [True, True]
        assert [torch.equal(*both) for both in zip(results[2], [two - one], strict=True)] == [True]
    for wrong in (Parts(two, one), Parts, Pair(one, one), [two]):
        with pytest.raises(UsageError, match=r"expected .*'first'"):
            loaded(wrong, Pair(one, one), [one])
    with pytest.raises(UsageError, match="a Bag cannot be saved"):
        ortlens.freeze(lambda x: Bag([x * 2], "noted"), one).save(tmp_path / "noted")


def _leaves(run: Callable[..., Any], x: torch.Tensor) -> list[Any] | None:
    """Return the leaves of a result; None where the call is refused."""
    try:
        return _pytree.tree_leaves(run(x))
    except (UsageError, InvalidArgument):
        return None


_BATCH = {"dynamic_shapes": ({0: Dim("batch")},)}


@pytest.mark.parametrize(
    ("function", "opened"),
    [
        (lambda x: x * 2 if x.shape[0] == 1 else x * 3, {"dynamic": True}),
        (lambda x: x * 2 if x.shape[0] else x.sum(), {"dynamic": True}),
        (lambda x: x.squeeze(0) * 2, _BATCH),
        (lambda x: (x.squeeze(), x * 2), _BATCH),
        (lambda x: x.cumsum(0), _BATCH),
        (lambda x: x.cumsum(0), {"dynamic_shapes": ({0: Dim("batch", min=2, max=4)},)}),
    ],
)
def test_a_callable_its_folder_and_a_plain_session_agree_on_sizes(
    function: Callable[..., Any], opened: dict[str, Any], tmp_path: Path
) -> None:
    """Each gives PyTorch's answer or refuses, and the folder refuses what the model does."""
    frozen = ortlens.freeze(function, torch.ones(3, 2), **opened)
    loaded = ortlens.load_frozen(frozen.save(tmp_path / "frozen"))
    session = onnxruntime.InferenceSession(str(tmp_path / "frozen" / "model.onnx"))
    for rows in range(6):
        x = torch.randn(rows, 2)
        given = [_leaves(run, x) for run in (frozen, loaded, lambda x: list(map(torch.as_tensor, session.run(None, {"x": x.numpy()}))))]
        assert (given[1] is None) == (given[2] is None)
        assert rows != 3 or None not in given  # as in tracing
        for results in filter(None, given):
            same(results, _pytree.tree_leaves(function(x)))


def test_sizes_of_arguments_of_any_number(tmp_path: Path) -> None:
    function = lambda x, *parts: x * parts[0].view(-1, 2) + parts[1]["a"]  # noqa: E731 - used twice
    frozen = ortlens.freeze(function, torch.ones(2), torch.ones(6, 4), {"a": torch.ones(12, 2)}, dynamic=True)
    loaded = ortlens.load_frozen(frozen.save(tmp_path / "frozen"))
    given = torch.randn(2), torch.randn(8, 6), {"a": torch.randn(24, 2)}
    same(loaded(*given), function(*given))
    with pytest.raises(UsageError, match=r"'parts'\]\[0\]"):
        loaded(given[0], torch.randn(3, 3), given[2])
