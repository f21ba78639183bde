"""The parts of the baseline: each a function that gives a dict of plain data."""

import dataclasses
import inspect
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import ortlens
from benchmarks import measure
from ortlens.trace import store
from ortlens.trace.schema import TABLES
from ortlens.views.capture_view import load
from ortlens.views.payload import payload_from_capture
from tests.sweep import ROOT, CaseT, rows_of_each

_LIMIT_S = 300
_EVERY_OPERATOR = 5
_FUNCTIONS = 40
_MODELS = 20
_COMMANDS = (
    "demo",
    "run",
    "watch",
    "explain",
    "show",
    "report",
    "export",
    "compare",
    "check",
    "bench",
    "tune",
    "survey",
    "doctor",
)


def names(folder: Path, *, fresh: bool) -> dict[str, Any]:
    """Public names with their signatures, columns of the tables, options, and the commands' help."""
    del folder, fresh
    made: dict[str, Any] = {f"table {name}": [column.name for column in table.columns] for name, table in TABLES.items()}
    for name in ortlens.__all__:
        value = getattr(ortlens, name)
        made[name] = _signature(value)
        if inspect.isclass(value):
            members = (member for member in dir(value) if not member.startswith("_"))
            made |= {f"{name}.{member}": _signature(getattr(value, member, None)) for member in members}
    for command in _COMMANDS:
        line = [sys.executable, "-m", "ortlens", *([command] if command else []), "--help"]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
        made[f"ortlens {command}".strip()] = done.stdout if done.returncode == 0 else f"exit status {done.returncode}"
    return made


def _signature(value: Any) -> str:  # noqa: ANN401 - anything public
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return type(value).__name__


def operators(folder: Path, *, fresh: bool) -> dict[str, Any]:
    """Verdicts of a fixed sample of PyTorch's operator database."""
    del folder, fresh
    from tests.opinfo.sweep import operators as known

    chosen = sorted(known())[::_EVERY_OPERATOR]
    rows = _rows(chosen, "tests.opinfo.sweep", "1", "float32,int64", "static,dynamic,backward", *chosen)
    return {f"{row['operator']} {row['dtype']} {row['road']} {row['sample']}": [row["verdict"], row["detail"]] for row in rows}


def conformance(folder: Path, *, fresh: bool) -> dict[str, Any]:
    """Outcomes of the conformance tests."""
    del folder, fresh
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-n", "2", f"--junit-xml={file}", "tests/conformance"]
        subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
        cases = list(ET.parse(file).iter("testcase"))  # noqa: S314 - of our own tests
    bad = ("failure", "error", "skipped")
    return {f"{case.get('classname')}::{case.get('name')}": next((kid.tag for kid in case if kid.tag in bad), "passed") for case in cases}


def zoo(folder: Path, *, fresh: bool) -> dict[str, Any]:
    """What each architecture of the zoo gives, but for times and errors in numbers."""
    del folder, fresh
    from tests.zoo.measure import measure as measured
    from tests.zoo.table import ARCHITECTURES

    made = {}
    for name, architecture in ARCHITECTURES.items():
        torch.compiler.reset()
        made[name] = {**dataclasses.asdict(measured(architecture)), "compile_s": 0, "max_abs_error": 0}
    return made


def programs(folder: Path, *, fresh: bool) -> dict[str, Any]:
    """Verdicts of random programs of fixed seeds."""
    del folder, fresh
    made: dict[str, Any] = {}
    for name, *flags in (("",), ("--graphs ", "--graphs")):
        for row in _rows(range(_FUNCTIONS), "tests.fuzz.sweep", "0", str(_FUNCTIONS), *flags, "--minimise", "0"):
            made.setdefault(f"{name}{row['seed']}", []).append([row["verdict"], row.get("count", 1)])
    return made


def views(folder: Path, *, fresh: bool) -> dict[str, Any]:
    """The explorer's payload and the summary of recorded captures and of models, which are recorded here once."""
    kept = folder / "captures"
    if fresh:
        _record_models(kept)
    files = [*(ROOT / "tests/data/captures").glob("**/*.ortlens"), *(ROOT / "tests/browser/captures").glob("*.ortlens"), *kept.glob("*")]
    made = {}
    for file in sorted(files):
        payload = payload_from_capture(store.load(file))
        made["/".join(file.parts[-3:])] = {"summary": load(file).summary(), "payload": json.loads(json.dumps(payload, default=str))}
    return made


def _record_models(folder: Path) -> None:
    from tests.zoo.table import ARCHITECTURES

    folder.mkdir(exist_ok=True)
    for name in sorted(ARCHITECTURES)[:: max(len(ARCHITECTURES) // _MODELS, 1)][:_MODELS]:
        torch.compiler.reset()
        architecture = ARCHITECTURES[name]
        with torch.no_grad():
            ortlens.explain(architecture.build(), name=name, calls=3)(**architecture.inputs()).save(folder / f"{name}.ortlens")


def ratios(folder: Path, *, fresh: bool) -> dict[str, Any]:
    """Time of a call of small programs to eager's, medians of turns with one thread; for people, who know the noise."""
    del folder, fresh
    torch.set_num_threads(1)
    x = torch.randn(8, 64)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).eval()
    encoder = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).eval()
    programs_: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
        "mlp": (net, x),
        "encoder": (encoder, x[None]),
        "one operator": (lambda y: y.relu(), x),
        "softmax": (lambda y: y.softmax(-1) * 2, x),
    }
    made: dict[str, Any] = {}
    with torch.no_grad():
        for name, (function, given) in programs_.items():
            torch.compiler.reset()
            compiled, frozen = torch.compile(function, backend="ortlens"), ortlens.freeze(function, given)
            ways: dict[str, Callable[..., Any]] = {"eager": function, "compiled": compiled, "frozen": frozen}
            turns = measure.take_turns(measure.called_with(ways, given), quick=False)
            made |= {f"{name} {key}": round(turns.ratio(key, "eager"), 2) for key in ("compiled", "frozen")}
    return made


def _rows(cases: Sequence[CaseT], *command: str) -> Iterator[dict[str, Any]]:
    """The rows of a sweep in a process of its own, which must come to its end."""
    for case, rows, ended in rows_of_each(cases, lambda _: command, limit_s=_LIMIT_S):
        if ended:
            raise RuntimeError(f"{case}: {ended}")
        yield from rows


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    part.__name__: part for part in (names, operators, conformance, zoo, programs, views, ratios)
}
