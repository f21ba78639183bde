"""The page of the documentation that lists the register, and the text of an issue about one of its faults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.faults.register import FAULTS, MEASURED, faults_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.faults.register import Fault

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
