"""The register: every known fault of ONNX Runtime, from `faults.toml`, and the versions in which each was looked for.

`python -m tests.faults --versions` measures the ranges; tests hold the register against the version that is installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx


Outcome: TypeAlias = Literal["wrong", "right", "refused"]
"""What a version makes of a fault's model; `refused` when it raises, unless that is the fault."""

_ANSWER = """
import sys
from tests.faults.register import FAULTS
next(fault for fault in FAULTS if fault.name == sys.argv[1]).answer(without=sys.argv[2:])
"""
_RAISED = 1  # exit status of Python after an exception
_CONTENT = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))

MEASURED: tuple[str, ...] = tuple(_CONTENT["measured"])
"""The versions of onnxruntime in which every fault was looked for, in order."""


def _value(text: str, names: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Evaluate an expression of numpy's names and others."""
    found: np.ndarray[Any, Any] = eval(text, {**vars(np), **names})  # noqa: S307 - the text is our own
    return found


_SHARED = {name: _value(text, {}) for name, text in _CONTENT["values"].items()}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault, as in `faults.toml`, which describes the fields."""

    kind: Literal["rewrite", "kernel"]
    name: str
    culprit: str
    form: str
    graph: str
    inputs: Mapping[str, np.ndarray[Any, Any]]
    expected: Sequence[str]
    avoided: Sequence[str] = ()
    first: str = MEASURED[0]
    last: str | None = None
    issue: str = ""
    rtol: float = 0.0
    relatives: Sequence[str] = ()
    crashes: bool = False
    raises: bool = False

    def covers(self, version: str) -> bool:
        """Tell whether a version is in the range in which the fault was seen; one newer than all measured counts as the newest."""
        return _numbers(self.first) <= _numbers(version) and (self.last is None or _numbers(version) <= _numbers(self.last))

    def text(self) -> str:
        """Write the model in ONNX's text format, for `onnx.parser.parse_model`."""
        return f'<ir_version: 9, opset_import: ["" : 18]>\n{self.graph}'

    def model(self) -> onnx.ModelProto:
        """Parse the model."""
        from onnx import parser

        return parser.parse_model(self.text())

    def right(self) -> list[np.ndarray[Any, Any]]:
        """Compute the right outputs, in order."""
        return [_value(text, {**_SHARED, **self.inputs}) for text in self.expected]

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
        return "right" if all(self._agree(got, want) for got, want in zip(found, self.right(), strict=True)) else "wrong"

    def ends_process(self, *, without: Sequence[str] = ()) -> bool:
        """Tell whether running the model, in another process, ends it; False, without a run, for a fault that does not crash."""
        if not self.crashes:
            return False
        command = [sys.executable, "-c", _ANSWER, self.name, *without]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode not in (0, _RAISED)

    def _agree(self, got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> bool:
        if got.shape != want.shape or got.dtype != want.dtype:
            return False
        if self.rtol:
            return np.allclose(got, want, rtol=self.rtol, atol=0, equal_nan=True)
        return np.array_equal(got, want, equal_nan=got.dtype.kind == "f")


def _numbers(version: str) -> list[int]:
    """Return the first three numbers of a version such as `1.32.0.dev20261101`."""
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


FAULTS = tuple(
    Fault(kind=kind, name=name, **row | {"inputs": {item: _value(text, _SHARED) for item, text in row["inputs"].items()}})
    for kind in ("rewrite", "kernel")
    for name, row in _CONTENT[kind].items()
)


def faults_of(version: str) -> tuple[Fault, ...]:
    """Return the known faults of a version of onnxruntime; one newer than all measured ones counts as the newest."""
    return tuple(fault for fault in FAULTS if fault.covers(version))
