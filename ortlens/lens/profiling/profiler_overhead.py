"""Overhead of ONNX Runtime's profiler per kernel, measured on this machine.

The profiler records sizes and shapes between its two readings of the clock, so that it reports 2 us for a kernel of 0.2 us.
Models of nothing but such kernels show how much that is: the difference between two lengths, run without the profiler, is the
true time of the additional kernels, without the overhead of a run.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from ortlens.errors import SessionError
from ortlens.lens.profiling.profiles import quiet_mean

_SHORT, _LONG = 16, 80  # kernels
_ROUNDS = 40
_WARM = 5


class Cost(NamedTuple):
    """What the profiler costs per call of a kernel, in ns."""

    in_event: float  # what it adds to the reported time of the kernel
    # what it takes after its second reading of the clock: reported as part of the kernel of control flow, if the kernel runs in the body of
    # one
    after_event: float


def measure_cost() -> Cost:
    """Measure the overhead of the profiler, about 1800 and 2500 ns on common machines; takes about 0.15 s.

    Raises SessionError if there is no room for the profile.
    """
    short, long = _session(_SHORT, None), _session(_LONG, None)
    with tempfile.TemporaryDirectory(prefix="ortlens-profile-", ignore_cleanup_errors=True) as folder:
        profiled = _session(_LONG, folder)
        times: dict[int, list[int]] = {_SHORT: [], _LONG: []}
        watched: list[int] = []
        feed = _feed()
        for _ in range(_ROUNDS):  # in turns, so that other load affects all of them alike
            for length, session in ((_SHORT, short), (_LONG, long)):
                started = time.perf_counter_ns()
                session.run(None, feed)
                times[length].append(time.perf_counter_ns() - started)
            started = time.perf_counter_ns()
            profiled.run(None, feed)
            watched.append(time.perf_counter_ns() - started)
        written = Path(profiled.end_profiling())
        try:
            events = json.loads(written.read_bytes())
        except ValueError as error:
            raise SessionError(
                f"ONNX Runtime's profiler could not write {written} to its end; free some space there, or set TMPDIR to another folder"
            ) from error
    reported = [1000 * int(event["dur"]) for event in events if event.get("cat") == "Node"][_LONG * _WARM :]
    true = (quiet_mean(times[_LONG][_WARM:]) - quiet_mean(times[_SHORT][_WARM:])) / (_LONG - _SHORT)
    if not reported:
        return Cost(0.0, 0.0)
    inside = max(quiet_mean(reported) - max(true, 0.0), 0.0)
    whole = (quiet_mean(watched[_WARM:]) - quiet_mean(times[_LONG][_WARM:])) / _LONG
    return Cost(in_event=inside, after_event=max(whole - inside, 0.0))


def _session(length: int, folder: str | None) -> Any:
    import onnx
    import onnxruntime

    nodes = [onnx.helper.make_node("Add" if i % 2 else "Mul", [f"v{i}", "c"], [f"v{i + 1}"]) for i in range(length)]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8]) for name in ("v0", f"v{length}")]
    constant = onnx.helper.make_tensor("c", onnx.TensorProto.FLOAT, [8], [1.5] * 8)
    graph = onnx.helper.make_graph(nodes, "cost", ends[:1], ends[1:], [constant])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if folder is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "cost")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _feed() -> dict[str, Any]:
    import numpy as np

    return {"v0": np.ones(8, dtype=np.float32)}
