"""Pages that are made when the documentation is built: two from the code, four from the figures in docs/data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens._versions import SUPPORTED
from ortlens.analysis.actions import ActionRow
from ortlens.analysis.findings.registry import RECORDED, RULES
from ortlens.trace.schema import TABLES, table_from_record
from tests.conformance.lines import LINES
from tests.figures import read
from tests.versions import PART, PART_OF_PYTHON, PART_OF_TORCH, REQUIREMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ortlens.analysis.findings.rule import Rule
    from ortlens.trace.schema import Column


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (head, ["---"] * len(head), *rows))


def _text(text: str) -> str:
    """Escape what ends a cell of a table, or is taken for HTML or Markdown."""
    for letter in "|*_[":
        text = text.replace(letter, f"\\{letter}")
    return text.replace("<", "&lt;").replace("\n", " ")


def _measured(figures: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in figures["packages"].items())
    return f"Measured {figures['date']} with {packages}, Python {figures['python']}, {figures['machine']}, CPU provider."


# ------------------------------------------------------------------------------------------------ the frames

_COLUMNS = """# Frames and their columns

Each table below is an attribute of a lens and of a loaded capture, as a pandas DataFrame. Empty frames keep their
columns and dtypes. Times are integer nanoseconds, sizes integer bytes. "may be empty" says that a value can be missing.
"""


def columns() -> str:
    head = ("column", "dtype", "unit", "", "meaning")
    tables = (*TABLES.values(), table_from_record("actions", ActionRow))
    sections = (f"## {table.name}\n\n{table.meaning}\n\n{_table(head, map(_column, table.columns))}\n" for table in tables)
    return "\n".join([_COLUMNS, *sections])


def _column(column: Column) -> tuple[str, ...]:
    meaning = column.meaning
    if not all(f"`{choice}`" in meaning for choice in column.choices):
        meaning += f" One of {', '.join(f'`{choice}`' for choice in column.choices)}."
    return f"`{column.name}`", column.dtype, column.unit, "may be empty" if column.nullable else "", meaning.replace("|", "\\|")


# ------------------------------------------------------------------------------------------------ findings

_FINDINGS = """# Findings

What ortlens reports about a model is in one table, `lens.findings`; the summary shows the three most expensive. Each has a hazard
(why it matters), evidence (the recorded facts) and a mitigation (what to change). `gain_ns` is what the mitigation saves per call:
with `measured` it was measured on this machine by `lens.probe(*args)`, which really runs the alternative and compares medians of
interleaved calls; otherwise it is an estimate, and the evidence says how it was made. The column is empty where nothing is known.
No gain is more than the part of a call that it is about, nor are all together more than a call: what exceeds that is cut, and `at_most`
says so.

Rules are functions of what was recorded. They are evaluated on every access, also for a saved capture; a finding recorded by a
probe replaces the rule's own. A rule that fails becomes a finding itself (`rule_failed`).

## Rules
"""
_RECORDED = """## Recorded as it happens

These come from the backend, the lens and its probes, and are saved with a capture.
"""


def findings() -> str:
    recorded = _table(("name", "what happened"), ((f"`{name}`", meaning) for name, meaning in RECORDED.items()))
    return "\n".join([_FINDINGS, *map(_rule, RULES), _RECORDED, recorded, ""])


def _rule(rule: Rule) -> str:
    probe = f"- **Probe** {rule.probed}\n" if rule.probed else ""
    fires = f"{rule.fires[0].lower()}{rule.fires[1:]}"
    return f"### `{rule.name}`\n\n{rule.looks_for}\n\n- **Fires** {fires}\n- **Hazard** {rule.hazard}\n{probe}"


# ------------------------------------------------------------------------------------------------ operators

_OPERATORS = """# Operators

PyTorch's own operator database (`op_db` in `torch.testing._internal.common_methods_invocations`) through the backend. Each sample takes
three roads: static sizes, dynamic sizes, and training with the gradients of every input, in each element type that the operator and ONNX
Runtime's CPU provider have. Results, arguments after the call, and gradients are compared with eager. The tolerance is 2e-4 for float32,
1e-6 for float64, 2e-2 for float16, and zero for the others. `make sweep-opinfo` measures what is missing.
"""
_NUMBERS = """## Operations on numbers

What programs compute from sizes, int arguments and data: operators and functions of Python, and torch's own on symbolic numbers. Each
is called with small, negative, zero and large numbers, past 2^31, 2^53 and 2^62, as an int argument, as a size, as `item()` of a tensor, in
an exported ONNX model and in a saved frozen callable. Numbers are compared exactly with Python's, exceptions by their type. *Part*: Python
computes a number that may need more than the 64 bits of a model's int, or a float, before the session runs, and the session takes it.
`make sweep-numbers` measures this section anew.
"""
_CLASSES = {
    "whole": "right, whole in ONNX Runtime",
    "part": "right, some nodes in PyTorch",
    "torch": "right, all nodes in PyTorch",
    "excluded": "excluded, with a reason",
    "wrong": "wrong",
    "crash": "crash",
}
_EXCLUDED = {
    "declined": "a model without PyTorch is not made, or raises where an int needs more than 64 bits",
    "refused": "eager PyTorch raises for the sample",
    "control": "`torch.compile` with the backend `aot_eager` differs from eager too",
}


def operators() -> str:
    figures = read("operators")
    measured, missing = figures["operators"], figures["missing"]
    totals = {name: sum(row.get(name, 0) for row in measured.values()) for name in _CLASSES}
    outcomes = [(f"**{sum(totals.values()):,}**", f"cases of {len(measured) + len(missing)} operators")]
    outcomes += [(f"{count:,}", _CLASSES[name]) for name, count in totals.items()]
    excluded = ((f"`{row['operator']}`", row["cases"], _excluded(row), _text(row["detail"])) for row in figures["excluded"])
    parts = [
        f"{_OPERATORS}\n{_measured(figures['measured'])}",
        f"## Totals\n\n{_table(('Cases', 'Outcome'), outcomes)}",
        "## By element type and road",
        _table(("Type", "Road", "Cases", *_CLASSES.values()), ((row["dtype"], row["road"], *_counts(row)) for row in figures["by_type"])),
        f"## Excluded cases\n\n{_table(('Operator', 'Cases', 'Reason', 'First difference'), excluded)}",
        f"## Operator by operator\n\n{_by_operator(measured)}",
        f"{_NUMBERS}\n{_measured(figures['numbers_measured'])}\n\n{_by_operator(figures['numbers'])}",
    ]
    if missing:
        parts.append(f"## Not measured\n\nNo sample in these element types: {', '.join(f'`{name}`' for name in missing)}.")
    return "\n\n".join(parts) + "\n"


def _counts(row: Mapping[str, Any]) -> list[int]:
    counts = [row.get(name, 0) for name in _CLASSES]
    return [sum(counts), *counts]


def _excluded(row: Mapping[str, str]) -> str:
    return f"[{row['why']}]({row['link']})" if "link" in row else _EXCLUDED[row["why"]]


def _by_operator(figures: Mapping[str, Mapping[str, Any]]) -> str:
    head = ("Operator", "Cases", "whole", "part", "PyTorch", "excluded", "wrong", "crash", "What stays in PyTorch, or differs, and why")
    return _table(head, ((f"`{name}`", *_counts(row), _text("; ".join(row.get("reasons", ["-"])))) for name, row in figures.items()))


# ------------------------------------------------------------------------------------------------ the model zoo

_ZOO = """# Model zoo

Architectures of `transformers` through `torch.compile(model, backend=ortlens.Lens())`, with small random configs, float32, eval mode and
perturbed weights. Each runs in its own process: once eagerly, because the first call of some models installs hooks that would break the
graph, then twice compiled. Every output is compared with the eager one. The absolute tolerance is 1e-4, scaled by the largest value if that
is below one; the relative tolerance is 1e-3. `make sweep-zoo` measures all architectures.

{measured}

**{whole} of {count} run whole in one partition**; of {covered}, every node runs in ONNX Runtime (in several graphs where PyTorch breaks
them); {failed} fail.

{table}

Nodes are compute nodes after decomposition, in all graphs. Coverage is the share of them that ONNX Runtime runs. Graph breaks come from
PyTorch, where the code needs the value of a tensor; every backend gets the same graphs. See [the frames](reference/columns.md).
"""


def zoo() -> str:
    why = "What stays in PyTorch, what breaks the graph, and why"
    head = ("Family", "Architecture", "Nodes", "Graphs", "Breaks", "Partitions", "Coverage", why, "Max abs error")
    figures = read("zoo")
    rows = figures["architectures"]
    return _ZOO.format(
        measured=_measured(figures["measured"]),
        whole=sum((row["graphs"], row["partitions"], row["coverage"]) == (1, 1, 1.0) for row in rows.values()),
        count=len(rows),
        covered=sum(row["coverage"] == 1.0 for row in rows.values()),
        failed=sum(bool(row["problems"]) for row in rows.values()),
        table=_table(head, (_architecture(name, row) for name, row in rows.items())),
    )


def _architecture(name: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    why = [f"{count} x `{target}` ({_text(reason)})" for count, target, reason in row["fallbacks"]]
    why += [f"break: {_text(reason)}{f' (`{place}`)' if place else ''}" for reason, place in row["breaks"]]
    counts = (row["nodes"], row["graphs"], len(row["breaks"]), row["partitions"], f"{row['coverage']:.1%}".replace("%", " %"))
    error = f"**fails**: {_text('; '.join(row['problems']))}" if row["problems"] else f"{row['max_abs_error']:.1e}"
    return (row["family"], f"`{name}`", *counts, "; ".join(why) or "-", error)


# ------------------------------------------------------------------------------------------------ conformance

_CONFORMANCE = """# Conformance

Each line is a behaviour of the removed backend or of the exporter's own ONNX Runtime checks, with the result here. `make sweep-conformance`
runs `tests/conformance` with every operator case static, dynamic and exported, and keeps one column per version of torch. "works (12)"
means that all 12 tests pass, "**11 of 12**" that one fails. All columns are from CPU machines. Nothing here was run on a CUDA device;
choosing providers and naming devices is tested without one.
"""


def conformance() -> str:
    figures = read("conformance")
    runs, results = figures["runs"], figures["results"]
    titles = (f"torch {torch}, onnxruntime {run['onnxruntime']}, {run['date']}" for torch, run in runs.items())
    rows = ((line.name, line.claim, *(_outcome(results.get(line.name, {}).get(torch)) for torch in runs)) for line in LINES)
    return f"{_CONFORMANCE}\n{_table(('Line', 'What is promised', *titles), rows)}\n"


def _outcome(counts: Mapping[str, int] | None) -> str:
    if not counts:
        return "" if counts is None else "later"
    passed, failed, skipped = (counts.get(name, 0) for name in ("passed", "failed", "skipped"))
    outcome = f"works ({passed})" if passed and not failed else f"**{passed} of {passed + failed}**"
    return f"{outcome}, {skipped} skipped" if skipped else outcome


# ------------------------------------------------------------------------------------------------ versions

_VERSIONS = """# Versions

Which versions of other packages ortlens runs with, measured by a part of its tests: for torch {part_of_torch}; for Python {part_of_python};
for the others {part}. Each package is replaced alone, or with those beside it in the table; the rest is what `constraints.txt` has.
ortlens accepts torch {torch} and onnxruntime {onnxruntime}. Python {python} where nothing else is named, {machine}, without a GPU.

"not run" is a version that nobody measured for this page, and no verdict about it.

`make sweep-versions` runs all of it, `python -m tests.versions torch==2.14.1` one version. Torch comes with 5 GB of libraries per version;
its part takes two to three minutes on an idle core. `python==3.13` makes an environment with `python3.13` from the PATH.

Where tests fail with an older or newer torch, ortlens says less, or other words, because torch does:

- torch 2.9 leaves a function to Python without a word where it is told to skip it, marks a tensor dirty, or lists the values of a
  tensor; those breaks are not recorded. Breaks inside of `with` and `try` are, with the line of the statement, which may differ by one
  or two lines from that of newer versions. It calls autocast one guard, whatever of it changed.
- With Python 3.13.0, torch warns that guards may run slower and asks for 3.13.1. Where warnings are errors, Dynamo fails there, with any
  backend.
- torch 2.10, 2.11 and 2.12 fail some of the same tests of breaks and recompiles as torch 2.9. Of the conformance tests, torch 2.10
  fails one about conditions, for a warning of its own while it exports them. With 2.10 and 2.12, no break names the limit of recompiles.
- OpenVINO's own provider ran seven small models (dense, convolutions, attention, an embedding, integers, float16, a sort beside an
  operator that stays in PyTorch): results within 2e-7 of PyTorch's, no value outside the tolerance of `verify`. `lens.kernels`, and
  `nodes` of an ONNX model, name what ran on it and what on the CPU. Its kernel is a whole subgraph, whose nodes `lens.kernels` does not
  list. ONNX Runtime 1.24.1 refused the part with the sort there, which PyTorch computed.
- onnxruntime 1.24.1, OpenVINO's build of it included, refuses weights of an ONNX model that lie behind a link, as in Hugging Face's cache.
- matplotlib 3.8 calls a newer pyparsing by names that warn, and the tests take each warning for an error.

{table}
"""


def versions() -> str:
    figures = read("versions")
    pins = (Path(__file__).resolve().parents[1] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    other = {name: {"note": "pinned: every test runs with it" if name in pins else "not run"} for name in REQUIREMENTS}
    parts = {"part_of_torch": PART_OF_TORCH, "part_of_python": PART_OF_PYTHON, "part": PART}
    return _VERSIONS.format(
        **{name: ", ".join(f"`{path}`" for path in paths) for name, paths in parts.items()},
        torch=SUPPORTED["torch"],
        onnxruntime=SUPPORTED["onnxruntime"],
        python=figures["python"],
        machine=figures["machine"],
        table=_table(
            ("package", "tests", "failed"),
            (_version(name, figures["versions"].get(name, other[name])) for name in REQUIREMENTS),
        ),
    )


def _version(requirement: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    counts = [f"{row[outcome]:,} {outcome}" for outcome in ("failed", "error", "passed", "skipped") if outcome in row]
    tests = (f"`{name}`{f' ({count})' if count > 1 else ''}" for name, count in row.get("tests", {}).items())
    return requirement, ", ".join([*counts, *([_text(row["note"])] if "note" in row else [])]), ", ".join(tests)


PAGES: Mapping[str, Callable[[], str]] = {
    "findings.md": findings,
    "reference/columns.md": columns,
    "operators.md": operators,
    "zoo.md": zoo,
    "conformance.md": conformance,
    "versions.md": versions,
}
