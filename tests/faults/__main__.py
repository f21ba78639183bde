"""Hold the register of faults against onnxruntime: `python -m tests.faults`, with numpy, onnx and onnxruntime alone.

`--versions [VERSION ...]` installs other versions below `build/versions` and measures them; by default all that gave the ranges.
`--issue NAME` prints an issue about one fault.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.faults.register import FAULTS, MEASURED, issue
from tests.versions import environment_with

ROOT = Path(__file__).resolve().parents[2]


def complaints(version: str, outcomes: dict[str, str]) -> list[str]:
    """Where the register and a version of onnxruntime differ."""
    found = []
    for fault in FAULTS:
        expected, outcome = "wrong" if fault.covers(version) else "right", outcomes[fault.name]
        if outcome != expected and not (expected == "right" and fault.crashes and outcome == "refused"):
            advice = "set its `last` to an older version" if expected == "wrong" else "widen its range"
            found.append(f"{fault.name}: {outcome} in onnxruntime {version}, the register says {expected}; {advice}")
    return found


def measured() -> tuple[str, dict[str, str]]:
    """The version of the installed onnxruntime, and what it makes of every fault."""
    import onnxruntime

    with np.errstate(all="ignore"):
        return onnxruntime.__version__, {fault.name: fault.outcome() for fault in FAULTS}


def measured_in(version: str) -> tuple[str, dict[str, str]]:
    """The same for another version."""
    environment = environment_with(f"onnxruntime=={version}")
    if environment is None:
        raise SystemExit(f"onnxruntime {version} cannot be installed here")
    child = [sys.executable, "-m", "tests.faults", "--json"]
    said = subprocess.run(child, env=environment, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found, outcomes = json.loads(said.splitlines()[-1])
    return str(found), dict(outcomes)


def main() -> int:
    """Do what the arguments say; 1 when the register and a version differ."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.faults")
    parser.add_argument("--versions", nargs="*")
    parser.add_argument("--issue", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.issue:
        from ortlens.lens.repro.evidence import versions

        (fault,) = (fault for fault in FAULTS if fault.name == given.issue)
        sys.stdout.write(issue(fault, {name: version for name, version in versions().items() if not name.startswith("torch")}))
        return 0
    if given.json:
        sys.stdout.write(json.dumps(measured()) + "\n")
        return 0
    return _report([measured()] if given.versions is None else [measured_in(version) for version in given.versions or MEASURED])


def _report(results: list[tuple[str, dict[str, str]]]) -> int:
    for version, outcomes in results:
        wrong = sum(outcome == "wrong" for outcome in outcomes.values())
        sys.stdout.write(f"onnxruntime {version}: {wrong} of {len(FAULTS)} faults\n")
    found = [complaint for version, outcomes in results for complaint in complaints(version, outcomes)]
    sys.stdout.write("".join(f"{complaint}\n" for complaint in found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
