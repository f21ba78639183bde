"""One fault of ONNX Runtime: when it happens, in which versions, how it is avoided, and a model that shows it.

Running the model takes numpy, onnx and onnxruntime only, so that any version of ONNX Runtime can be measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

Outcome: TypeAlias = Literal["wrong", "right", "refused"]
"""What a version makes of a fault's model; `refused` when it raises, unless that is the fault."""

_ANSWER = """
import sys
from ortlens.backend.faults.register import FAULTS
next(fault for fault in FAULTS if fault.name == sys.argv[1]).answer(without=sys.argv[2:])
"""
_RAISED = 1
"""Exit status of Python after an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault."""

    name: str  # unique
    culprit: str  # the optimizer of ONNX Runtime, as `disabled_optimizers` names it, or the ONNX operator whose kernel is wrong
    form: str  # when it happens
    avoided: tuple[str, str] | tuple[()]  # the file below `ortlens/backend` that avoids it, and how; empty if nothing does
    graph: str  # the graph of a model that shows it, in ONNX's text format
    inputs: Mapping[str, np.ndarray[Any, Any]]  # the inputs of the model, by name
    expected: Callable[[], Sequence[np.ndarray[Any, Any]]]  # the right outputs, in order
    kind: Literal["rewrite", "kernel"] = "kernel"  # what the culprit is
    first: str = "1.23.0"  # the oldest supported version in which it was seen
    last: str | None = None  # the newest one; None if the newest measured version has it, too
    issue: str = ""  # of ONNX Runtime, such as `microsoft/onnxruntime#1`; empty if none is known
    rtol: float = 0.0  # relative error that is allowed per element; 0 compares exactly, NaN with NaN
    opset: int = 18  # of the model
    relatives: tuple[str, ...] = ()  # optimizers that do the same as the culprit, in other versions or when it is disabled
    crashes: bool = False  # whether the wrong outcome is that the process ends; a version that raises instead does not have the fault
    raises: bool = False  # whether the wrong outcome is an exception

    def covers(self, version: str) -> bool:
        """Tell whether a version is in the range in which the fault was seen; one newer than all measured counts as the newest."""
        number = version_number(version)
        return version_number(self.first) <= number and (self.last is None or number <= version_number(self.last))

    def text(self) -> str:
        """Write the model in ONNX's text format, for `onnx.parser.parse_model`."""
        return f'<ir_version: 9, opset_import: ["" : {self.opset}]>\n{self.graph}'

    def model(self) -> onnx.ModelProto:
        """Parse the model."""
        from onnx import parser

        return parser.parse_model(self.text())

    def answer(self, *, without: Sequence[str] = ()) -> list[np.ndarray[Any, Any]]:
        """Run the model in the installed onnxruntime, with the optimizers in `without` disabled."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            self.model().SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,
            disabled_optimizers=list(without),
        )
        found: list[np.ndarray[Any, Any]] = session.run(None, dict(self.inputs))
        return found

    def outcome(self, *, without: Sequence[str] = ()) -> Outcome:
        """Tell what the installed onnxruntime makes of the model, with the optimizers in `without` disabled."""
        if self.ends_process(without=without):
            return "wrong"
        try:
            found = self.answer(without=without)
        except Exception:  # noqa: BLE001 - a version may raise whatever it likes; that is an outcome
            return "wrong" if self.raises else "refused"
        pairs = zip(found, self.expected(), strict=True)
        return "right" if all(self._agree(got, want) for got, want in pairs) else "wrong"

    def ends_process(self, *, without: Sequence[str] = ()) -> bool:
        """Tell whether running the model, in another process, ends it; False, without a run, for a fault that does not crash."""
        if not self.crashes:
            return False
        command = [sys.executable, "-c", _ANSWER, self.name, *without]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(command, env=environment, capture_output=True, check=False)  # noqa: S603 - Python with our own text
        return ended.returncode not in (0, _RAISED)

    def _agree(self, got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> bool:
        if got.shape != want.shape or got.dtype != want.dtype:
            return False
        if self.rtol:
            return np.allclose(got, want, rtol=self.rtol, atol=0, equal_nan=True)
        return np.array_equal(got, want, equal_nan=got.dtype.kind == "f")


def version_number(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version such as `1.32.0.dev20261101`."""
    parts = version.split("+", maxsplit=1)[0].split(".")[:3]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)
