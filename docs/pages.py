"""Pages that are made when the documentation is built, from the code or from the figures in docs/data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs.commands import commands_page, llms_txt
from docs.json_schema import json_schema
from ortlens._versions import SUPPORTED
from ortlens.analysis.problems.stream import RECORDED, RULES
from ortlens.trace.schema import SHOWN_TABLES
from tests.conformance.lines import LINES
from tests.faults.register import faults
from tests.figures import read
from tests.versions import PART, PART_OF_PYTHON, PART_OF_TORCH, REQUIREMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ortlens.analysis.problems.problem import ProblemRule
    from ortlens.trace.schema import Column


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (head, ["---"] * len(head), *rows))


def _text(text: str) -> str:
    """Escape what ends a cell of a table, or is taken for HTML or Markdown."""
    for letter in "|*_[":
        text = text.replace(letter, f"\\{letter}")
    return text.replace("<", "&lt;").replace("\n", " ")


def _cell(markdown: str) -> str:
    return markdown.replace("|", "\\|").replace("\n", " ")


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
    tables = SHOWN_TABLES.values()
    sections = (f"## {table.name}\n\n{table.meaning}\n\n{_table(head, map(_column, table.columns))}\n" for table in tables)
    return "\n".join([_COLUMNS, *sections])


def _column(column: Column) -> tuple[str, ...]:
    meaning = column.meaning
    if not all(f"`{choice}`" in meaning for choice in column.choices):
        meaning += f" One of {', '.join(f'`{choice}`' for choice in column.choices)}."
    return f"`{column.name}`", column.dtype, column.unit, "may be empty" if column.nullable else "", _cell(meaning)


# ------------------------------------------------------------------------------------------------ findings

_FINDINGS = """# Findings

What ortlens reports about a model is in one table, `lens.findings`; the summary shows the three most expensive. Each has a hazard
(why it matters), evidence (the recorded facts) and a mitigation (what to change). `gain_ns` is what the mitigation saves per call:
with `measured` it was measured on this machine, which really runs the alternative and compares medians of interleaved
calls; otherwise it is an estimate, and the evidence says how it was made. The column is empty where nothing is known.
No gain is more than the part of a call that it is about, nor are all together more than a call: what exceeds that is cut, and `at_most`
says so.

Rules are functions of what was recorded. They are evaluated on every access, also for a saved capture; a finding that was measured
replaces the rule's own. A rule that fails becomes a finding itself (`rule_failed`). What the rules `break`, `recompile`, `fallback`
and `nothing_runs` report has tables of its own, and is no row of `lens.findings`; `lens.actions` ranks all of it, with its consequences.

## Rules
"""
_RECORDED = """## Recorded as it happens

These come from the backend and the lens, and are saved with a capture.
"""


def findings() -> str:
    recorded = _table(("name", "what happened"), ((f"`{name}`", meaning) for name, meaning in RECORDED.items()))
    return "\n".join([_FINDINGS, *map(_rule, RULES.values()), _RECORDED, recorded, ""])


def _rule(rule: ProblemRule) -> str:
    fires = f"{rule.fires[0].lower()}{rule.fires[1:]}"
    return f"### `{rule.name}`\n\n{rule.looks_for}\n\n- **Fires** {fires}\n- **Hazard** {rule.hazard}\n"


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

- With Python 3.13.0, torch warns that guards may run slower and asks for 3.13.1. Where warnings are errors, Dynamo fails there, with any
  backend.
- OpenVINO's own provider ran seven small models (dense, convolutions, attention, an embedding, integers, float16, a sort beside an
  operator that stays in PyTorch): results within 2e-7 of PyTorch's, no value outside the tolerance of `verify`. `lens.kernels`, and
  `nodes` of an ONNX model, name what ran on it and what on the CPU. Its kernel is a whole subgraph, whose nodes `lens.kernels` does not
  list. ONNX Runtime 1.24.1 refused the part with the sort there, which PyTorch computed.
- OpenVINO's own build, of onnxruntime 1.24.1, refuses weights of an ONNX model that lie behind a link, as in Hugging Face's cache.

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


# ------------------------------------------------------------------------------------------------ workloads

_WORKLOADS = """# Workloads

Programs that people run every day, with random weights: `make sweep-workloads` measures them. A figure is a ratio of times of one step,
ways taking turns in one process (see [Benchmarks](benchmarks.md)), below 1 where ortlens is faster. Results are compared with eager's
first. "Dynamo alone" is `torch.compile(backend="eager")` to eager: its guards, and entering compiled code, are part of every call with any
backend. "In ONNX Runtime" counts compute nodes of the compiled graphs. Where ortlens takes {slower} times as long as eager or longer, the
last column is what `ortlens.explain` says first.

{steps}

## Generation

`generate` of models of transformers, two layers of width 512, in float32: two prompts of 16 tokens, and 16 new tokens each, with a dynamic
cache, with static caches for 64 and 2048 positions, sampling after a padded prompt, and with 3 beams; Mamba ignores static caches. Mistral
and every other layer of Gemma2 see 24 positions, less than there are in the end. The tokens are eager's in every case, else the command
fails. A figure is the time of a whole call to eager's; the goal is {goal:.2f}. In brackets, where decode is not one session without a graph
break: the share of its compute nodes in ONNX Runtime, and its partitions. The last column is eager with a dynamic cache.

{generation}

{met} of {count} meet the goal; in {whole}, decode is one session.

{remarks}

{measured} One thread.
"""
_SLOWER = 1.1
_GENERATE_GOAL = 0.8


def workloads() -> str:
    figures = read("workloads")
    cases = figures["generate"]
    models, ways = (list(dict.fromkeys(case.split(": ")[at] for case in cases)) for at in (0, 1))
    whole = {case for case, row in cases.items() if (row["coverage"], row["partitions"], row["breaks"]) == (1.0, 1, 0)}
    remarkable = [case for case, row in cases.items() if row["to_eager"] > _GENERATE_GOAL or case not in whole]
    head = ("workload", "to eager", "Dynamo alone", "to Inductor", "goal", "", "in ONNX Runtime", "graphs, partitions", "first finding")
    return _WORKLOADS.format(
        slower=_SLOWER,
        steps=_table(head, (_step(name, row) for name, row in figures["steps"].items())),
        goal=_GENERATE_GOAL,
        generation=_table(("model", *ways, "eager, per token"), (_generation(name, ways, cases, whole) for name in models)),
        met=sum(row["to_eager"] <= _GENERATE_GOAL for row in cases.values()),
        count=len(cases),
        whole=len(whole),
        remarks="\n".join(f"- {case}, {cases[case]['to_eager']:.2f}: {cases[case]['finding']}" for case in remarkable),
        measured=_measured(figures["measured"]),
    )


def _step(name: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    ratios = [f"{row[key]:.2f}" if key in row else "" for key in ("to_eager", "dynamo_to_eager", "to_inductor")]
    verdict = "met" if row[f"to_{row['goal_to']}"] <= row["goal"] else "missed"
    place = f"{row['coverage']:.0%}", f"{row['graphs']}, {row['partitions']}"
    finding = _cell(row["finding"]) if row["to_eager"] >= _SLOWER else ""
    return (name, *ratios, f"{row['goal']:.2f} to {row['goal_to']}", verdict, *place, finding)


def _generation(model: str, ways: Sequence[str], cases: Mapping[str, Mapping[str, Any]], whole: set[str]) -> list[str]:
    cells = [model]
    for case in (f"{model}: {way}" for way in ways):
        row = cases.get(case)
        apart = "" if row is None or case in whole else f" ({row['coverage']:.1%}, {row['partitions']})"
        cells.append("" if row is None else f"{row['to_eager']:.2f}{apart}")
    return [*cells, f"{cases[f'{model}: {ways[0]}']['eager_ns_per_token'] / 1e6:.2f} ms"]


# ------------------------------------------------------------------------------------------------ models of other libraries

_LIBRARIES = """
## Measured models

`make sweep-integrations` measures these models, small and with random weights. Each runs in its own process on one thread of the CPU, in
float32 and eval mode, without gradients; the last two train on two processes of gloo. Results are compared as in the
[model zoo](zoo.md); the difference is relative to the largest value of an output. Compute nodes are counted after decomposition.
Times are medians of calls in turns, ortlens to eager, below 1 where ortlens is faster. The load average was {load:.1f}: {noise}.

**{right} of {count} are right**; {whole} run in ONNX Runtime without a graph break, {faster} are faster than eager.

{table}

{measured}
"""
_BUSY = 1.5
"""Load average, with one thread of our own."""


def libraries() -> str:
    """Write the last section of the page about other libraries."""
    figures = read("libraries")
    rows = figures["models"]
    load = sorted(row["load"] for row in rows.values())[len(rows) // 2]
    busy = "the machine was busy, so ratios within a factor of two of each other are noise"
    head = (
        "library",
        "model",
        "difference",
        "nodes",
        "in ONNX Runtime",
        "graphs, breaks, partitions",
        "eager",
        "to eager",
        "first finding",
    )
    return _LIBRARIES.format(
        load=load,
        noise=busy if load > _BUSY else "the machine was quiet",
        right=sum(not row["wrong"] for row in rows.values()),
        count=len(rows),
        whole=sum((row["breaks"], row["coverage"]) == (0, 1.0) for row in rows.values()),
        faster=sum(0 < row["ortlens_ns"] < row["eager_ns"] for row in rows.values()),
        table=_table(head, (_library_model(name, row) for name, row in rows.items())),
        measured=_measured(figures["measured"]),
    )


def _library_model(name: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    library, _, model = name.partition(": ")
    difference = f"**{_text(row['wrong'])}**" if row["wrong"] else f"{row['difference']:.0e}"
    coverage = f"{row['coverage']:.0%}" if row["coverage"] in {0, 1} else f"{row['coverage']:.1%}"
    counts = f"{row['graphs']}, {row['breaks']}, {row['partitions']}"
    times = f"{row['eager_ns'] / 1e6:.1f} ms", f"{row['ortlens_ns'] / (row['eager_ns'] or 1):.2f}"
    return library, f"`{model}`", difference, row["nodes"], coverage, counts, *times, _cell(row["finding"])


PAGES: Mapping[str, Callable[[], str]] = {
    "llms.txt": lambda: llms_txt(PAGES),
    "commands.md": commands_page,
    "reference/json.schema.json": lambda: json.dumps(json_schema(), indent=1),
    "findings.md": findings,
    "reference/columns.md": columns,
    "operators.md": operators,
    "zoo.md": zoo,
    "conformance.md": conformance,
    "versions.md": versions,
    "faults.md": faults,
    "workloads.md": workloads,
}
