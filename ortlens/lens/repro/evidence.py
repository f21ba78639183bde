"""Writes a folder that reproduces a partition, or one operator, in PyTorch and in ONNX Runtime, without ortlens.

By default the folder contains no data of the user: inputs and weights are random numbers with the recorded statistics, and the
program holds operators only. `ISSUE.md` is a text to paste: versions, command, expected and actual result. The files are written to a
temporary folder beside the target, which is renamed when complete.
"""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import platform
import re
import runpy
import sys
import threading
import warnings
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ortlens import _torch
from ortlens._files import whole_folder
from ortlens._versions import version_of
from ortlens.backend.basis.error_text import without_colours
from ortlens.backend.observed import in_all
from ortlens.errors import UsageError
from ortlens.lens.repro.case import ReproCase, Subject, case_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ortlens.backend.observed import ObservedGraph
    from ortlens.lens.observing.compilations import CompiledTargets


_TEMPLATES = ("repro", "test_repro", "bench_repro")
_RTOL = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Tolerance, relative to the larger of the value and the root mean square of its tensor."""

_CHECK_LIMIT = 1 << 30  # bytes of inputs and weights above which the folder is not tested: they would be in memory twice


def write_repro(  # noqa: PLR0913 - the arguments of `Lens.repro`
    targets: CompiledTargets,
    subject_id: object,
    folder: str | os.PathLike[str],
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any],
    *,
    source: bool,
    **kept: bool,
) -> pathlib.Path:
    """Write a reproduction and return its absolute path; see `Lens.repro`. Without `args`, no call is made."""
    target = checked_folder(pathlib.Path(folder).absolute())
    if kept["real_inputs"] and args is None:
        raise UsageError("real_inputs=True keeps the inputs of a call: say which one with args=(...)")
    subjects = subjects_of(targets.graphs(), subject_id)
    seen = {} if args is None else values_seen(targets, subjects, args, kwargs)
    cases = [case_of(subject, seen.get(subject.name), source=source, **kept) for subject in subjects]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(target, mark="ISSUE.md") as made:
            _fill(made, cases)
            (made / "ISSUE.md").write_text(issue_of(cases, _checked(made, cases), source=source), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the reproduction cannot be written to {target}: {error.strerror or error}; nothing is left there") from error
    return target


def checked_folder(target: pathlib.Path) -> pathlib.Path:
    """Return a folder to be written; raise `UsageError` where something is."""
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file, and what is written is a folder: name one that does not exist yet")
    if target.is_dir() and any(target.iterdir()):
        raise UsageError(f"the folder {target} is not empty; name one that does not exist yet, nothing is overwritten")
    return target


def subjects_of(graphs: Sequence[ObservedGraph], subject_id: object) -> list[Subject]:
    """Find what an id, a node's name, `(graph_id, node)` or a row with these names; a UsageError lists what there is."""
    reported = {graph.graph_id: graph for graph in graphs if graph.graph_id is not None}
    if not reported:
        raise UsageError("there is nothing to reproduce: no graph was compiled through this lens by the ortlens backend")
    whole = {name: subject for graph in reported.values() for names, subject in _partitions(graph) for name in names}
    if isinstance(subject_id, str) and subject_id in whole:
        return [whole[subject_id]]
    if isinstance(subject_id, str) and subject_id in reported:
        return _all_of(reported[subject_id], subject_id)
    graph_id, node = _node_meant(subject_id, whole, reported)
    places = [name for name in reported if graph_id in (None, name)]
    found = [_node_subject(reported[name], node) for name in places]
    known = [(name, subject) for name, subject in zip(places, found, strict=True) if subject is not None]
    if len(known) > 1:
        raise UsageError(f"{node} is in {', '.join(name for name, _ in known)}; say which: ({known[0][0]!r}, {node!r})")
    if not known:
        there = ", ".join([*whole, *reported])
        raise UsageError(f"there is no {subject_id!r} to reproduce; there are {there}, and their nodes, as in the frame nodes")
    return [known[0][1]]


def _partitions(graph: ObservedGraph) -> Iterator[tuple[list[str], Subject]]:
    for partition in graph.partitions():
        if (identity := partition.identity) is not None:
            names = [name for name in (identity.partition_id, identity.session_id) if name is not None]
            yield names, Subject(name=identity.partition_id, graph=graph, part=partition.part, partition=partition)


def _all_of(graph: ObservedGraph, graph_id: str) -> list[Subject]:
    found = [subject for _, subject in _partitions(graph)]
    if not found:
        names = ", ".join(node.name for node in graph.nodes_in_torch()) or "none"
        raise UsageError(f"graph {graph_id} has no partition; name one of its nodes that stay in PyTorch: {names}")
    return found


def _node_meant(subject_id: object, whole: Mapping[str, Subject], reported: Mapping[str, ObservedGraph]) -> tuple[str | None, str]:
    """Return the graph, if it is given, and the node."""
    if isinstance(subject_id, str):
        return None, subject_id
    if isinstance(subject_id, tuple) and not hasattr(subject_id, "node") and len(subject_id) == 2:  # noqa: PLR2004 - graph and node
        return str(subject_id[0]), str(subject_id[1])
    node = getattr(subject_id, "node", None)
    if not isinstance(node, str):
        raise UsageError(
            f"{subject_id!r} names nothing to reproduce: give an id, the name of a node, (graph_id, node), or a row with a node"
        )
    graph_id = getattr(subject_id, "graph_id", None)
    owner = whole.get(getattr(subject_id, "partition_id", None) or getattr(subject_id, "session_id", None) or "")
    if graph_id is None and owner is not None:
        graph_id = next(name for name, graph in reported.items() if graph == owner.graph)
    return graph_id, node


def _node_subject(graph: ObservedGraph, node: str) -> Subject | None:
    if (found := graph.cut_out(node)) is None:
        return None
    part, verdict = found
    stays = None if verdict.code is None else (verdict.code, verdict.reason or "")
    return Subject(name=node, graph=graph, part=part, reason=stays)


def values_seen(
    targets: CompiledTargets, subjects: list[Subject], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Collect the inputs of the subjects in one call of the target."""
    seen: dict[str, list[Any]] = {}
    graph, thread = subjects[0].graph, threading.get_ident()
    noting = ((subject.partition or graph).around(partial(_noting, subject, seen, thread)) for subject in subjects)
    with in_all(noting), _gradients_for(targets, graph):
        result = targets.call(args, kwargs)
        if graph.phase == "backward" and not seen:
            _backward(result)
    missing = [subject.name for subject in subjects if subject.name not in seen]
    if missing:
        raise UsageError(
            f"the call did not run {', '.join(missing)}: these arguments take another graph; give some like those it was compiled for, "
            "with gradients on or off as then, or leave args out"
        )
    return seen


def _noting(subject: Subject, seen: dict[str, list[Any]], thread: int, inner: Callable[..., Any], args: Any) -> Any:
    """Note the inputs of a subject before a run of its partition, or before a call of the graph that holds its node."""
    is_partition = subject.partition is not None
    if threading.get_ident() == thread and subject.name not in seen:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            values = args if is_partition else subject.graph.inputs_of(subject.part, args)
            seen[subject.name] = [  # copies, because the run may write into them
                value.detach().clone() if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter) else value
                for value in values
            ]
    return inner(*args) if is_partition else inner(args)


def _gradients_for(targets: CompiledTargets, graph: ObservedGraph) -> contextlib.AbstractContextManager[object]:
    """Switch gradients on or off as when the graph was compiled; otherwise Dynamo would compile another graph."""
    if graph.phase != "inference":
        return torch.enable_grad()
    trained = any(isinstance(value, torch.Tensor) and value.requires_grad for _, value in graph.weights().values())
    known = {False} if trained else targets.grad_modes
    return torch.set_grad_enabled(next(iter(known))) if len(known) == 1 else contextlib.nullcontext()


def _backward(result: Any) -> None:
    """Run the backward graphs of a result, without adding to any gradient."""
    roots = [value for value in _torch.tensors_of(result) if value.grad_fn is not None]
    leaves: dict[int, torch.Tensor] = {}
    queue, known = [root.grad_fn for root in roots], set[Any]()
    while queue:
        step = queue.pop()
        if step is None or step in known:
            continue
        known.add(step)
        if hasattr(step, "variable"):
            leaves[id(step.variable)] = step.variable
        queue.extend(following for following, _ in step.next_functions)
    if roots and leaves:
        torch.autograd.grad(roots, list(leaves.values()), [torch.ones_like(root) for root in roots], allow_unused=True)


def _fill(folder: pathlib.Path, cases: Sequence[ReproCase]) -> None:
    for case in cases:
        suffix = "" if len(cases) == 1 else f"_{case.subject.name}"
        model, values = None if case.model is None else f"model{suffix}.onnx", f"values{suffix}.pt" if case.values else None
        case.facts.update(program=f"program{suffix}.py", model=model, values=values)
        (folder / case.facts["program"]).write_text(case.program, encoding="utf-8")
        if case.model is not None:
            (folder / case.facts["model"]).write_bytes(case.model.SerializeToString())
        if case.values:
            try:
                torch.save(case.values, folder / case.facts["values"])
            except RuntimeError as error:  # what torch makes of a full disk
                raise OSError(str(error)) from error
    spec = {"versions": versions(), "rtol": _RTOL, "cases": [case.facts for case in cases]}
    (folder / "spec.json").write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
    for name in _TEMPLATES:
        text = resources.files("ortlens.lens.repro").joinpath("bundle").joinpath(f"{name}.txt").read_text(encoding="utf-8")
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


def _checked(folder: pathlib.Path, cases: Sequence[ReproCase]) -> list[Outcome]:
    """Run the comparison of the folder; for each case its rows, or why there are none."""
    if sum(8 * math.prod(item.get("shape", ())) for case in cases for item in case.facts["inputs"]) > _CHECK_LIMIT:
        return ["not run while this was written: its inputs and weights are larger than 1 GiB"] * len(cases)
    scope = runpy.run_path(str(folder / "repro.py"))
    return [_outcome(scope["compare"], case) for case in scope["CASES"]]


def _outcome(compare: Callable[[Any], list[dict[str, Any]]], case: Any) -> Outcome:
    try:
        with _torch.quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compare(case)
    except Exception as error:  # noqa: BLE001 - the exception is the outcome to report
        return f"raised {type(error).__name__}: {without_paths(str(error))}"


Outcome: TypeAlias = list[dict[str, Any]] | str  # a row per compared output, or a text that says why there are none


def versions() -> dict[str, str]:
    """Return the versions that the result depends on, by name."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for package in ("torch", "onnxruntime", "onnx", "onnxscript"):
        # The module's own version includes the build, such as `2.13.0+cpu`.
        known = getattr(sys.modules.get(package), "__version__", None) or version_of(package)
        if known is not None:
            found[package] = known
    return found


def without_paths(text: str) -> str:
    """Remove folders and colours from a text, such as the message of an exception; bare file names stay."""
    return re.sub(r"(?:[A-Za-z]:)?(?:[/\\][\w.@~+-]+)+[/\\](?=[\w.@~+-])", "", without_colours(text))


def issue_of(cases: Sequence[ReproCase], outcomes: Sequence[Outcome], *, source: bool) -> str:
    """Write an issue in Markdown."""
    lines = [f"# {cases[0].facts['title']}" + (f", and {len(cases) - 1} more" if len(cases) > 1 else ""), "", "## Versions", ""]
    lines += [f"- {name} {version}" for name, version in versions().items()]
    lines += ["", "## To reproduce", "", "With the attached folder:", "", "```", "python repro.py", "```", ""]
    lines += ["`bench_repro.py` times both sides; nothing was timed for this text.", ""]
    for case, outcome in zip(cases, outcomes, strict=True):
        lines += _case_lines(case, outcome)
    lines += ["## What the folder holds", "", *_contents(cases, source=source), ""]
    return "\n".join(lines)


def _case_lines(case: ReproCase, outcome: Outcome) -> list[str]:
    reason = case.subject.reason
    expected = "ONNX Runtime gives what PyTorch gives." if case.model is not None else "`torch.onnx.export` converts the operator."
    lines = [
        f"## {case.subject.name}",
        "",
        f"Expected: {expected}",
        "",
        f"Actual, on the inputs that `repro.py` makes: {_said(case, outcome)}",
        "",
    ]
    if reason is not None:
        lines += [f"It stays in PyTorch ({reason[0]}): {without_paths(reason[1])}", ""]
    if not isinstance(outcome, str) and outcome:
        lines += ["| output | max abs | max rel | allowed rel | |", "|---|---|---|---|---|"]
        verdicts = ["ok" if row["ok"] else "**differs**" if row["same_kind"] else "**NaN or infinity on one side**" for row in outcome]
        lines += [
            f"| {row['output']} | {row['max_abs']:.3g} | {row['max_rel']:.3g} | {row['rtol']:.3g} | {verdict} |"
            for row, verdict in zip(outcome, verdicts, strict=True)
        ]
        lines.append("")
    return [*lines, "Operators: " + ", ".join(f"`{name}` {count}" for name, count in case.ops.items()), ""]


def _said(case: ReproCase, outcome: Outcome) -> str:
    if isinstance(outcome, str):
        return outcome
    if case.model is None:
        return "it does."
    wrong = sum(not row["ok"] for row in outcome)
    return f"{wrong} of {len(outcome)} outputs differ." if wrong else "it does, within the tolerance."


def _contents(cases: Sequence[ReproCase], *, source: bool) -> list[str]:
    items = [item for case in cases for item in case.facts["inputs"]]
    kept = {name for case in cases for name in case.values}
    drawn = [item for item in items if "source" in item and item["name"] not in kept]
    standard = [item["name"] for item in drawn if item["source"] == "standard"]
    made = [item["name"] for item in drawn if item["source"] == "recorded"]
    lines = []
    if made:
        lines.append(f"- Random values with recorded statistics (range, mean, spread, shares of NaN and infinity): {', '.join(made)}")
    if standard:
        lines.append(f"- Random values of standard statistics, since no values were seen: {', '.join(standard)}")
    if kept:
        lines.append(f"- Values as they were: {', '.join(sorted(kept))}")
    elsewhere = {name for case in cases for name in case.facts["ran_on"]} - {"CPUExecutionProvider"}
    if elsewhere:
        lines.append(
            f"- The folder runs on the CPU; the model ran on {', '.join(sorted(elsewhere))}, so the figures above are not from there"
        )
    lines.append(f"- The operators as PyTorch runs them, {'with' if source else 'without'} the lines they come from")
    return lines
