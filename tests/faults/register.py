"""The register: every known fault of ONNX Runtime, from `faults.toml`, and the versions in which each was looked for.

`python -m tests.faults --versions` measures the ranges; tests hold the register against the version that is installed. The page of the
documentation, and the text of an issue about a fault, are made of it.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
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


_HEAD = """# Faults of ONNX Runtime

Some rewrites and kernels of ONNX Runtime give wrong results. ortlens avoids them: it disables a rewrite, writes an operator in another
way, or leaves it to PyTorch. This page lists the known ones. `ortlens doctor` says whether the installed version is one of those in
which they were looked for. If you run ONNX models without ortlens, nothing avoids them.

Each was looked for in onnxruntime {versions} on x86-64. "From" is the oldest and "to" the newest of these versions
that has the fault; without a "to", the newest version that was measured has it, too. PyTorch's results count as right. The version that
ortlens is tested with, {tested}, has {count} of the {all}.

`tests/faults/faults.toml` has them with a model that shows each. `python -m tests.faults` checks the list against the installed version,
`make sweep-faults` against all versions.
`python -m tests.faults --issue NAME` writes an issue with a script that shows a fault.

"""


def faults() -> str:
    """Write the page, for the version of onnxruntime that `constraints.txt` pins."""
    pins = (Path(__file__).resolve().parents[2] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (tested,) = (pin.removeprefix("onnxruntime==") for pin in pins if pin.startswith("onnxruntime=="))
    versions = f"{', '.join(MEASURED[:-1])} and {MEASURED[-1]}"
    text = _HEAD.format(versions=versions, tested=tested, count=len(faults_of(tested)), all=len(FAULTS))
    for kind, title in (("rewrite", "Rewrites"), ("kernel", "Kernels")):
        text += f"## {title}\n\n| {kind} | name | when | from | to | how ortlens avoids it |\n|---|---|---|---|---|---|\n"
        text += "".join(_row(fault) for fault in FAULTS if fault.kind == kind) + "\n"
    return text.rstrip() + "\n"


def _row(fault: Fault) -> str:
    issue = f" ({fault.issue})" if fault.issue else ""
    place, how = fault.avoided
    return f"| {fault.culprit} | `{fault.name}` | {fault.form} | {fault.first} | {fault.last or ''} | {how}{issue} (`{place}`) |\n"


def issue(fault: Fault, versions: Mapping[str, str]) -> str:
    """The text of an issue in Markdown, in the form that `lens.repro` writes."""
    expected, found = fault.right(), _answer(fault)
    counts = Counter(node.op_type for node in fault.model().graph.node)
    lines = [f"# {fault.culprit}: {fault.form}", "", "## Versions", "", *(f"- {name} {version}" for name, version in versions.items()), ""]
    lines += ["## To reproduce", "", "```python", script(fault), "```", "", f"## {fault.name}", ""]
    lines += [f"Expected: {_shown(expected)}", "", f"Actual: {found}", ""]
    if fault.kind == "rewrite":
        disabled = [fault.culprit, *fault.relatives]
        lines += [f"With `disabled_optimizers={disabled}`, the result is {fault.outcome(without=disabled)}.", ""]
    seen = f"- Seen from onnxruntime {fault.first} to {fault.last or MEASURED[-1]}, CPUExecutionProvider"
    return "\n".join([*lines, "Operators: " + ", ".join(f"`{name}` {count}" for name, count in counts.items()), "", seen, ""])


def _answer(fault: Fault) -> str:
    if fault.ends_process():
        return "the process ends"
    try:
        return _shown(fault.answer())
    except Exception as error:  # noqa: BLE001 - the message is the actual result
        return f"{type(error).__name__}: {error}"


def _shown(arrays: Sequence[np.ndarray]) -> str:
    return ", ".join(f"`{np.array2string(array, threshold=12)}`" for array in arrays)


def script(fault: Fault) -> str:
    """A script that shows the fault with numpy, onnx and onnxruntime alone; long arrays are written as what they repeat."""
    values = "\n".join(f"    {name!r}: {_written(array)}," for name, array in fault.inputs.items())
    return f'''import numpy as np
import onnx.parser
import onnxruntime

model = onnx.parser.parse_model("""{fault.text()}""")
inputs = {{
{values}
}}
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
print(session.run(None, inputs))'''


def _written(array: np.ndarray) -> str:
    made = f"np.{array.dtype.name}"
    if array.size > 64 or not array.size:
        fill = array.flat[0] if array.size else 0
        return f"np.full({array.shape}, {fill!s}, {made})"
    return f"np.array({str(array.tolist()).replace('nan', 'np.nan').replace('inf', 'np.inf')}, {made})"
