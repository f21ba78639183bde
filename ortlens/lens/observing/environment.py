"""The head of a capture: versions, the machine with its peak speed, chosen options, and the recorder of a lens, which puts them there.

Peaks are floating-point operations and bytes per second, measured with ONNX Runtime, and on a GPU with torch. A kernel is compared with
what the same library reaches on the same cores with the same number of threads, not with a data sheet; on a GPU, where both call the same
libraries, with what torch reaches. Peaks are measured on demand, once per process, element type and number of threads; every later
capture contains them.
"""

from __future__ import annotations

import functools
import os
import platform
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from ortlens import _versions
from ortlens._process import cpu_quota, throttling, usable_cores
from ortlens.analysis.index import grouped
from ortlens.analysis.roofline import CPU, is_worth_comparing
from ortlens.lens.observing.session_memory import SessionMemory
from ortlens.trace import records as r
from ortlens.trace.guard import lens_guard
from ortlens.trace.journal import Journal
from ortlens.trace.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.trace.runlog import RunLog


_MAX_TEXT = 300
_MAX_VALUE = 12


def machine_facts() -> dict[str, str]:
    """Collect versions and names of the machine, for the head of a capture."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        **{f"version_{package}": version for package, version in _loaded_versions().items()},
    }


def machine_figures() -> dict[str, Any]:
    """Collect the figures of the machine that are known without torch, by their names in `Figures`."""
    return {"cpu_count": os.cpu_count(), "cpu_usable": usable_cores(), "cpu_quota": cpu_quota(), "peaks": known_peaks()}


def rank_of_process() -> int | None:
    """Return the rank of this process in a distributed job; None if it has none."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else None


# What a process has loaded stays, and reading the metadata of all distributions takes milliseconds.
_loaded_versions = functools.cache(_versions.installed)


def chosen_options(options: OrtBackendOptions) -> dict[str, str]:
    """Describe the options of our backend that differ from their defaults, as `option_<name>`; `upcast` is among the figures."""
    chosen = ((field.name, getattr(options, field.name), field.default) for field in fields(options))
    differ = ((name, value) for name, value, default in chosen if value is not default and value != default)
    return {f"option_{name}": option_text(value) for name, value in differ if name != "upcast"}


def option_text(value: object) -> str:
    """Write an option of any backend as text; long values inside of mappings, which may be keys or paths, are cut."""
    if isinstance(value, str | int | float | os.PathLike | None) or hasattr(value, "__dataclass_fields__"):
        text = str(value)
    elif isinstance(value, Mapping):
        text = ", ".join(f"{key}: {_short(option_text(item))}" for key, item in value.items())
    elif isinstance(value, Sequence):
        text = ", ".join(filter(None, map(option_text, value)))
    else:
        text = str(getattr(value, "__qualname__", None) or f"an object of type {type(value).__name__}")
    return text[:_MAX_TEXT]


def _short(text: str) -> str:
    """Cut a long option of a provider, which may be a key or a path."""
    return text if len(text) <= _MAX_VALUE and not set("/\\").intersection(text) else f"{text[:4]}…"


class LensRecorder(Recorder):
    """A recorder that knows the head of its captures."""

    def __init__(
        self, lens: Any, backend: str, figures: Callable[[], dict[str, Any]], journal: str | os.PathLike[str] | None = None
    ) -> None:
        """Start empty. A lens has a `name`; `figures` are those of the machine; all that comes is written to the file `journal` at once."""
        super().__init__()
        self.backend = backend
        self.facts: dict[str, str] = {}  # what the lens adds to the environment, such as chosen options
        self._lens = weakref.ref(lens)
        self._figures_of_machine = figures
        self._throttling = throttling()
        self.memories: dict[str, SessionMemory] = {}  # by session, or by the graph of another backend
        if journal is not None:
            self.journal = Journal(journal, self._head, self)
            weakref.finalize(lens, self.journal.close)  # also when the interpreter exits

    def _head(self) -> dict[str, Any]:
        """Return name, backend and environment as they are now; nothing once the lens is gone."""
        lens = self._lens()
        if lens is None:
            return {}
        facts: dict[str, str] = {}
        with lens_guard(self, "reading the environment"):
            facts = machine_facts()
            self.note(**self._figures_of_machine())
            if self.figures.cpu_quota is not None:
                times, ns = (now - before for now, before in zip(throttling(), self._throttling, strict=True))
                self.note(throttled=times, throttled_ns=ns)
        return {"name": lens.name, "backend": self.backend, "environment": {**facts, **self.facts}}

    def run_log(self, session_id: str | None, graph_id: str | None) -> RunLog:
        """Return the log of a session, which looks at the memory of the process now and then."""
        log, key = super().run_log(session_id, graph_id), str(session_id or graph_id)
        log.on_room = self.memories.setdefault(key, SessionMemory(key, self)).look
        return log

    def captured(self) -> r.Capture:
        """Freeze what was recorded so far, with its head; recording goes on."""
        with lens_guard(self, "reading the memory of the process"):
            for memory in tuple(self.memories.values()):
                memory.report()
        return self.capture(**self._head())


_SIZE = 512  # rows and columns of the product: 0.27 GFLOP on 3 MB; the best or nearly the best of 384 to 1536 on the machines tried
_LENGTH = 16 << 20  # elements that are read and written: 64 MiB each way, beyond any cache
_REPEATS = 12
_BUDGET_NS = 400_000_000

_DEVICES = {"CUDAExecutionProvider": "cuda"}
"""torch's name of the device of a provider, where torch measures its peaks."""
_DEVICE_SIZE = 8192  # rows and columns: an H100 takes a few ms in half precision
_DEVICE_LENGTH = 64 << 20  # elements of 4 bytes that are copied: 256 MiB each way
_DEVICE_DTYPES = ("bfloat16", "float16", "float32", "float64")

_MEASURED: dict[tuple[str, str | None, int], r.MachinePeak] = {}
_PRECISIONS: dict[str, str] = {}  # of products of float32 when they were measured, by provider: TF32 or not changes the peak
_LOCK = threading.Lock()


def known_peaks() -> tuple[r.MachinePeak, ...]:
    """Return the peaks so far."""
    return tuple(_MEASURED.values())


def measure_cpu(dtypes: set[str], threads: int) -> None:
    """Measure the CPU's peaks that are not known yet, half a second each, in the two types that ONNX Runtime computes others in."""
    with _LOCK:
        for dtype in (*sorted(dtypes & {"float32", "float64"}), None):
            if (CPU, dtype, threads) not in _MEASURED:
                per_s = _bytes(threads) if dtype is None else _flops(dtype, threads)
                _MEASURED[CPU, dtype, threads] = r.MachinePeak(dtype=dtype, threads=threads, per_s=per_s)


def measure_device(provider: str, dtypes: set[str]) -> None:
    """Measure the peaks of a provider's present device that are not known yet, with products as torch's settings allow them (TF32)."""
    import torch

    device = _DEVICES[provider]
    precision = torch.get_float32_matmul_precision()
    with _LOCK:
        if _PRECISIONS.setdefault(provider, precision) != precision:
            _MEASURED.pop((provider, "float32", 0), None)
            _PRECISIONS[provider] = precision
        for dtype in (*(name for name in _DEVICE_DTYPES if name in dtypes), None):
            if (provider, dtype, 0) not in _MEASURED:
                per_s = device_bytes(device, _DEVICE_LENGTH) if dtype is None else device_flops(device, dtype, _DEVICE_SIZE)
                _MEASURED[provider, dtype, 0] = r.MachinePeak(dtype=dtype, threads=0, per_s=per_s, provider=provider)


def device_flops(device: str, dtype: str, size: int) -> float:
    """Measure operations per second of a square product by torch."""
    import torch

    left, right = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    out = torch.empty_like(left)
    with torch.no_grad():
        return 2.0 * size**3 * 1e9 / _best(partial(torch.mm, left, right, out=out), left)


def device_bytes(device: str, length: int) -> float:
    """Measure bytes per second of a copy by torch; each element is read and written."""
    import torch

    source = torch.zeros(length, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2.0 * source.nbytes * 1e9 / _best(partial(target.copy_, source), source)


def measure_peaks(recorder: Recorder) -> None:
    """Measure the peaks that the kernels of a profile are compared with, if one is long. A failure becomes a finding."""
    kernels = grouped((kernel.session_id, kernel) for kernel in recorder.records(r.Kernel))
    with lens_guard(recorder, "measuring what the machine reaches"):
        for provider in (CPU, *_DEVICES):
            sessions = [
                session for session in recorder.records(r.Session) if is_worth_comparing(kernels.get(session.session_id, ()), provider)
            ]
            parts = {session.partition_id for session in sessions}
            dtypes = {node.dtype for node in recorder.records(r.Node) if node.partition_id in parts and node.flops and node.dtype}
            if sessions and provider != CPU:
                measure_device(provider, dtypes)
            else:
                for threads in {session.threads or usable_cores() for session in sessions}:
                    measure_cpu(dtypes, threads)


def _flops(dtype: str, threads: int) -> float:
    """Measure operations per second of a square product whose right side is a constant, as a layer's weights are."""
    import onnx

    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((_SIZE, _SIZE)).astype(dtype) for _ in range(2))
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    session = _session(node, left, {"w": right}, threads)
    return 2.0 * _SIZE**3 * 1e9 / _fastest(session, left)


def _bytes(threads: int) -> float:
    """Measure bytes per second, the better of ONNX Runtime (reading and writing every element once) and a plain copy by torch."""
    import onnx
    import torch

    values = np.ones(_LENGTH, np.float32)
    session = _session(onnx.helper.make_node("Neg", ["x"], ["y"]), values, {}, threads)
    source, target = torch.from_numpy(values), torch.empty(_LENGTH, dtype=torch.float32, device="cpu")
    fastest = min(_fastest(session, values), _best(lambda: target.copy_(source)))
    return 2.0 * values.nbytes * 1e9 / fastest


def _session(node: Any, example: np.ndarray[Any, Any], constants: Mapping[str, np.ndarray[Any, Any]], threads: int) -> Any:
    import onnx

    from ortlens.backend.observed import session_options  # it loads torch, which a profile of short kernels does without

    element = onnx.helper.np_dtype_to_tensor_dtype(example.dtype)
    ends = [onnx.helper.make_tensor_value_info(name, element, list(example.shape)) for name in ("x", "y")]
    held = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = onnx.helper.make_graph([node], "peak", ends[:1], ends[1:], held)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    options = session_options(threads, spinning=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _fastest(session: Any, example: np.ndarray[Any, Any]) -> int:
    """Time the shortest run, with input and output in memory of their own, so that nothing is allocated or copied in it."""
    binding = session.io_binding()
    output = onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(example))
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(example))
    binding.bind_ortvalue_output("y", output)
    try:
        return _best(partial(session.run_with_iobinding, binding))
    finally:
        del binding  # before its session: the other order crashes the process


def _best(run: Callable[[], object], *on: Any) -> int:
    """Time the shortest run; the devices of the tensors `on` are waited for."""
    from ortlens.backend.basis.ab_timing import clocked, take_turns, waiting_for  # it loads torch: as above

    timed = clocked(run, waiting_for(*on))
    timed()
    deadline = time.perf_counter_ns() + _BUDGET_NS
    (times,) = take_turns((timed,), fewest=3, most=_REPEATS, is_over=lambda: time.perf_counter_ns() >= deadline)  # two may be disturbed
    return max(min(times), 1)
