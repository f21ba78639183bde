"""Every fault of the register is still there in the installed version of ONNX Runtime, and ortlens gives PyTorch's answer nonetheless."""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional

from ortlens import doctor
from tests.faults.__main__ import complaints
from tests.faults.register import FAULTS, MEASURED, faults_of, script

ROOT = Path(__file__).resolve().parents[2]
HERE = onnxruntime.__version__
BY_NAME = {fault.name: fault for fault in FAULTS}


class Normalised(torch.nn.Module):
    """A product without bias, and a batch normalisation of what a function makes of it."""

    def __init__(self, moved: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(1.0, 9.0).reshape(4, 2))
        self.norm = torch.nn.BatchNorm1d(2)
        with torch.no_grad():
            self.norm.weight.copy_(torch.tensor([2.0, 3.0]))
        self.moved = moved
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalised: torch.Tensor = self.norm(self.moved(x @ self.weight))
        return normalised


def _norm(x: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    away = x - x.mean(-1, keepdim=True)
    return away / torch.sqrt(torch.add(eps, (away**2).mean(-1, keepdim=True)))


PROGRAMS: dict[str, Callable[..., Any]] = {
    "matrix_transposed_times_vector": lambda w, v: w.t() @ v,
    "transposed_product_of_nothing": lambda a, b: a.mT @ b,
    "moved_batch_cast": lambda x, w: x.transpose(0, 1).double() @ w,
    "float64_product_scaled": lambda a, b: (a @ b) * 0.1,
    "padded_before_max_pool": lambda x: functional.max_pool2d(functional.pad(x, (1, 1, 1, 1)), 2, stride=1),
    "integer_quotient_times": lambda x, z: torch.div(1, x, rounding_mode="trunc") * z,
    "quotient_times_identity": lambda x, z: torch.div(torch.ones(()), x) * z.clone(),
    "zero_added": lambda x: 1 / (-x + 0.0),
    "minus_zero_subtracted": lambda x: 1 / (-x - -0.0),
    "expanded_to_nothing": lambda x: -((-x).expand(0, 3)),
    "layer_norm_epsilon": lambda x, eps: _norm(x, eps) * torch.arange(1.0, 5.0) + torch.ones(4),
    "rms_norm_epsilon": lambda x, eps: x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * torch.arange(1.0, 5.0),
    "layer_norm_epsilon_first": lambda x: _norm(x, torch.tensor(1.0)) * torch.arange(1.0, 5.0) + torch.ones(4),
    "rms_norm_of_float64": lambda x: x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1) * torch.arange(1.0, 5.0, dtype=torch.float64),
    "rms_norm_scale_larger": lambda x: x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1) * torch.arange(1.0, 5.0),
    "layer_norm_scale_larger": lambda x: _norm(x, torch.tensor(1.0)) * torch.arange(1.0, 9.0).reshape(2, 4) + torch.zeros(4),
    "product_transposed_before_batch_norm": Normalised(lambda product: product.t().contiguous()),
    "product_folded_before_batch_norm": Normalised(lambda product: product.reshape(1, 2, 2)),
    "max_of_int64": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "min_of_int64": lambda x: torch.minimum(x, torch.zeros_like(x)),
    "relu_of_int64": torch.relu,
    "clip_of_int64": lambda x: x.clamp(min=0),
    "sign_of_int64": torch.sign,
    "largest_of_int64": lambda x: x.amax(1),
    "smallest_of_int64": lambda x: x.amin(1),
    "sum_of_int64": lambda x: x.sum(1),
    "product_of_int64": lambda x: x.prod(),
    "power_of_int64": lambda x, e: x**e,
    "fmod_of_int64": torch.fmod,
    "clip_of_infinity": lambda x: x.clamp(min=0),
    "largest_with_nan": lambda x: x.amax(),
    "smallest_with_nan": lambda x: x.amin(),
    "top_with_nan": lambda x: x.topk(4),
    "place_of_nan": lambda x: (x.argmax(), x.argmin()),
    "max_pool_of_nan": lambda x: functional.max_pool1d(x, 2, stride=1),
    "max_pool_of_minus_infinity": lambda x: functional.max_pool1d(x, 2, stride=1),
    "scattered_extremes_with_nan": lambda x, i, u: x.scatter_reduce(0, i, u, "amax"),
    "log_softmax_of_nan": lambda x: x.log_softmax(-1),
    "log_sum_exp_beside_infinity": lambda x: x.logsumexp(-1),
    "mean_of_nothing": lambda x: x.mean(0),
    "gemm_over_nothing": lambda a, b, c: torch.addmm(c, a, b, beta=2),
    "instance_norm_of_nothing": lambda x, w, b: functional.group_norm(x + x, 2, w, b),
    "split_of_nothing": lambda x: x.split(0)[0] + x,
    "long_sum": lambda x: x.sum(0),
    "long_mean": lambda x: x.mean(0),
    "long_running_sum": lambda x: x.cumsum(0),
    "sigmoid_below_minus_17": torch.sigmoid,
    "sigmoid_of_float64": torch.sigmoid,
    "tanh_beyond_one": lambda x: x.tanh().abs() > 1,
    "elu_of_small_numbers": functional.elu,
    "selu_of_small_numbers": functional.selu,
    "long_range": lambda start, end, step: torch.arange(0, 4096, 0.1) + start + end * step,
    "nearest_at_whole_places": lambda x: functional.interpolate(x.reshape(1, 1, -1), 5).flatten(),
    "float16_unrounded": lambda x, z: (x + z) == x,
}
"""The same in PyTorch, of the same inputs."""


@pytest.mark.parametrize("name", BY_NAME)
def test_the_register_says_what_the_installed_version_does(name: str) -> None:
    with np.errstate(all="ignore"):
        outcome = BY_NAME[name].outcome()
    found = [line for line in complaints(HERE, dict.fromkeys(BY_NAME, outcome)) if line.startswith(f"{name}:")]
    assert found == []  # a mended fault leaves the register by its `last`, so that no version is worked around for ever


@pytest.mark.parametrize("name", [fault.name for fault in faults_of(HERE) if fault.kind == "rewrite"])
def test_without_the_rewrite_the_result_is_right(name: str) -> None:
    assert BY_NAME[name].outcome(without=[BY_NAME[name].culprit, *BY_NAME[name].relatives]) == "right"


def _answers_as_pytorch(*names: str, dynamic: bool) -> None:
    inputs = {name: [torch.from_numpy(value.copy()) for value in BY_NAME[name].inputs.values()] for name in names}
    expected = {}
    for name in names:
        with contextlib.suppress(RuntimeError):  # torch 2.15 has no normalisation of nothing
            expected[name] = PROGRAMS[name](*inputs[name])

    def all_of_them(given: dict[str, list[torch.Tensor]]) -> dict[str, Any]:
        return {name: PROGRAMS[name](*given[name]) for name in expected}

    results = torch.compile(all_of_them, backend="ortlens", dynamic=dynamic)(inputs)
    for name, wanted in expected.items():
        found = functools.partial("{}: {}".format, name)
        torch.testing.assert_close(results[name], wanted, rtol=BY_NAME[name].rtol, atol=0, equal_nan=True, msg=found)


SIZES = pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])


@SIZES
@pytest.mark.parametrize("name", [fault.name for fault in FAULTS if fault.kind == "rewrite"])
@torch.no_grad()
def test_ortlens_gives_pytorchs_answer_where_a_rewrite_would_not(name: str, *, dynamic: bool) -> None:
    """Each in a model of its own: what is disabled for one would protect the others."""
    _answers_as_pytorch(name, dynamic=dynamic)


@SIZES
@torch.no_grad()
def test_ortlens_gives_pytorchs_answer_where_kernels_do_not(*, dynamic: bool) -> None:
    _answers_as_pytorch(*(fault.name for fault in FAULTS if fault.kind == "kernel"), dynamic=dynamic)


def test_every_fault_has_a_name_of_its_own_and_a_program() -> None:
    assert len(BY_NAME) == len(FAULTS)
    assert list(PROGRAMS) == list(BY_NAME)
    assert [fault.name for fault in FAULTS if not (ROOT / "ortlens" / "backend" / fault.avoided[0]).is_file()] == []


def test_the_doctor_names_the_versions_in_which_they_were_looked_for() -> None:
    oldest, newest = ([int(number) for number in MEASURED[place].split(".")[:2]] for place in (0, -1))
    assert str(doctor.LOOKED_FOR) == f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"


def test_a_mended_fault_and_a_new_one_are_both_said() -> None:
    current = {fault.name: "wrong" if fault.covers(HERE) else "right" for fault in FAULTS}
    assert complaints(HERE, current) == []
    mended = next(fault for fault in FAULTS if fault.covers(HERE))
    (line,) = complaints(HERE, {**current, mended.name: "right"})
    assert line == f"{mended.name}: right in onnxruntime {HERE}, the register says wrong; set its `last` to an older version"
    other = next(fault for fault in FAULTS if not fault.covers("1.32.0"))
    (line,) = complaints("1.32.0", {fault.name: "wrong" if fault.covers("1.32.0") or fault is other else "right" for fault in FAULTS})
    assert line.startswith(f"{other.name}: wrong in onnxruntime 1.32.0, the register says right")
    (raises,) = (fault.name for fault in FAULTS if fault.crashes and not fault.covers("1.32.0"))
    assert not [line for line in complaints("1.32.0", {**current, raises: "refused"}) if line.startswith(raises)]


@pytest.mark.parametrize("name", ["top_with_nan", "gemm_over_nothing", "long_mean", "float64_product_scaled"])
def test_the_script_of_an_issue_gives_the_models_answer(name: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(script(BY_NAME[name]).replace("print(", "found = ("), name, "exec"), names)  # noqa: S102 - the script is what is tested
    for found, answer in zip(names["found"], BY_NAME[name].answer(), strict=True):
        np.testing.assert_array_equal(found, answer)


def test_the_register_runs_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('the register may not need torch')", encoding="utf-8")
    found = os.pathsep.join([str(tmp_path), *sys.path[1:]])  # as here, where another onnxruntime may lie in front
    environment = {**os.environ, "PYTHONPATH": found}
    run = subprocess.run([sys.executable, "-m", "tests.faults"], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout.startswith(f"onnxruntime {HERE}: {len(faults_of(HERE))} of {len(FAULTS)} faults"), run.stdout + run.stderr
    assert run.returncode == 0
