"""One case of a reproduction: a partition or a single operator as plain torch code, as an ONNX model, and as facts about its inputs.

Inputs are described by shapes, dtypes and statistics instead of values.
"""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.analysis.roofline import CPU
from ortlens.backend.basis import provenance
from ortlens.backend.observed import disabled_rewrites, operators_of
from ortlens.errors import UsageError
from ortlens.lens.profiling.kernel_records import with_outside_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx

    from ortlens.backend.observed import ObservedGraph, ObservedPartition
    from ortlens.backend.partitioning.plan import GraphPartition


_PLAIN_GLOBALS = ("inf", "nan", "NoneType", "torch", "device", "fx_pytree", "pytree")
_HEAD = """\
# The operators as PyTorch runs them.

import torch
from math import inf, nan
from torch import device

NoneType = type(None)

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A partition or an operator to reproduce."""

    name: str  # its id in the records: `p0`, or the name of a node
    graph: ObservedGraph
    part: GraphPartition
    partition: ObservedPartition | None = None  # the whole partition, if it is one
    reason: tuple[str, str] | None = None  # why PyTorch runs it, as code and text; None if ONNX Runtime does


@dataclass(slots=True, kw_only=True)
class ReproCase:
    """The files of a subject, as data."""

    subject: Subject
    program: str  # text of a module with a function `forward`
    model: onnx.ModelProto | None  # the ONNX model; None where there is no ONNX function
    facts: dict[str, Any]  # the entry in `spec.json`
    values: dict[str, torch.Tensor] = field(default_factory=dict)  # values of inputs to keep, by name
    ops: dict[str, int] = field(default_factory=dict)  # operators with their counts, most frequent first


def case_of(subject: Subject, seen: Sequence[Any] | None, *, real_inputs: bool, weights: bool, source: bool) -> ReproCase:
    """Build the case of a subject; `seen` has the values of its inputs in a call, None without a call.

    `real_inputs` keeps these, except those of weights; `weights` keeps weights and constants; `source` names the user's line of each
    operator in the program. Raises UsageError if the case cannot be written as plain torch code.
    """
    module = _with_open_constants(subject.part)
    hidden = frozenset[str]() if weights else _private_constants(module)
    inputs = _inputs(subject, module, seen, hidden)
    made = _ModelOfCase(subject, hidden)
    given = [item for item, _ in inputs]
    targets = [provenance.target_name(node) for node in operators_of(subject.part)]
    facts = {
        "name": subject.name,
        "title": _title(subject, targets),
        "inputs": given,
        "outputs": made.outputs,
        "frozen": made.frozen,
        "providers": [CPU],
        "ran_on": list(made.providers),
        "threads": made.threads,
        "disabled_optimizers": made.disabled,
    }
    wanted = {"weight": weights, "constant": weights, "input": real_inputs}
    values = {
        item["name"]: value.detach().cpu().clone()
        for item, value in inputs
        if isinstance(value, torch.Tensor) and "value" not in item and wanted[item["kind"]] and not _torch.is_fake(value)
    }
    counts = {target: targets.count(target) for target in dict.fromkeys(targets)}
    ops = dict(sorted(counts.items(), key=lambda pair: -pair[1]))
    return ReproCase(subject=subject, program=_program(module, source=source), model=made.proto, facts=facts, values=values, ops=ops)


def _title(subject: Subject, targets: Sequence[str]) -> str:
    if subject.partition is None:
        return f"{targets[0]} in PyTorch and in ONNX Runtime"
    count = "1 operator" if len(targets) == 1 else f"{len(targets)} operators"
    phase = {"inference": "an inference"}.get(subject.graph.phase, f"a {subject.graph.phase}")
    return f"{count} of {phase} graph in PyTorch and in ONNX Runtime"


def _with_open_constants(part: GraphPartition, is_open: Callable[[str], bool] = lambda _name: True) -> torch.fx.GraphModule:
    """Rewrite the program of a partition with constants as arguments: all of them, or those of such names."""
    module, graph, mapping = part.module, torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            mapping[node] = graph.node_copy(node)
        elif node.op == "get_attr" and is_open(node.name):
            value = getattr(module, str(node.target))
            if not isinstance(value, torch.Tensor):
                raise UsageError(f"{part.nodes[0].name} runs graphs of its own, which cannot be written as plain torch code")
            mapping[node] = graph.placeholder(node.name)
            mapping[node].meta = {**node.meta, "val": node.meta.get("val", value), _CONSTANT: value}
    for node in module.graph.nodes:
        if node not in mapping:
            mapping[node] = graph.node_copy(node, mapping.__getitem__)
    return torch.fx.GraphModule(module, graph)


def _private_constants(module: torch.fx.GraphModule) -> frozenset[str]:
    """Name the constants that must stay private: one of more than one floating-point number may be learned."""
    opened = {node.name: node.meta[_CONSTANT] for node in module.graph.find_nodes(op="placeholder") if _CONSTANT in node.meta}
    return frozenset(name for name, value in opened.items() if value.dtype.is_floating_point and value.numel() > 1)


_CONSTANT = "ortlens_constant"


def _inputs(
    subject: Subject, module: torch.fx.GraphModule, seen: Sequence[Any] | None, hidden: frozenset[str]
) -> list[tuple[dict[str, Any], Any]]:
    """Describe each argument of the program: its entry in `spec.json`, and its value where it is known."""
    known = subject.graph.weights()
    outer = iter(zip(subject.part.inputs, seen if seen is not None else [None] * len(subject.part.inputs), strict=True))
    found: list[tuple[dict[str, Any], Any]] = []
    for node in module.graph.find_nodes(op="placeholder"):
        if _CONSTANT in node.meta:
            value = node.meta[_CONSTANT]
            is_public = node.name not in hidden and value.numel() <= _MAX_LITERAL and not _torch.is_fake(value)
            written = as_literal(node.name, value) if is_public else described(node.name, value, value, kind="constant")
            found.append((written, value))
            continue
        origin, value = next(outer)
        is_weight = origin.name in known
        value = known[origin.name][1] if value is None and is_weight else value
        found.append((described(node.name, origin.meta["val"], value, kind="weight" if is_weight else "input"), value))
    return found


_MAX_LITERAL = 4096  # elements of a constant that are written as literals


class _ModelOfCase:
    """The ONNX model of a subject, without weights, and the configuration of its session."""

    def __init__(self, subject: Subject, hidden: frozenset[str]) -> None:
        partition = subject.partition
        self.proto: onnx.ModelProto | None = None
        self.outputs: list[dict[str, Any]] = []
        self.frozen: list[str] = []
        self.providers: tuple[str, ...] = (CPU,)
        self.threads, self.disabled = 0, list[str]()
        if partition is not None and not hidden:
            self._take(subject, partition.model, partition.orders)
        elif subject.reason is None or subject.reason[0] in ("session_refused", "too_small"):
            source = _with_open_constants(subject.part, hidden.__contains__) if hidden else subject.part.module
            self._take(subject, *subject.graph.converted(source, "repro", optimized=True))
        if partition is not None and partition.sessions:
            info = partition.latest
            self.providers, self.threads = info.providers, info.threads.count
        if self.proto is not None:
            self._freeze(subject, hidden)
            self.disabled = disabled_rewrites(self.proto, self.providers)

    def _take(self, subject: Subject, model: onnx.ModelProto, orders: Sequence[Sequence[int] | None]) -> None:
        self.proto = _bare(model)
        names = [value.name for value in model.graph.output]
        self.outputs = [
            {"name": name, "node": node.name, "permutation": None if order is None else list(order)}
            for name, node, order in zip(names, subject.part.outputs, orders, strict=True)
        ]

    def _freeze(self, subject: Subject, hidden: frozenset[str]) -> None:
        """Make constants of the weights that were constants of the session, with values that are passed in memory."""
        graph, partition = subject.graph, subject.partition
        if partition is not None and partition.sessions:
            names = {weight.name for weight in partition.latest.frozen}
        else:
            frozen = graph.phase == "inference" and graph.options.freeze_weights is not False
            names = set(graph.weights()) if frozen else set[str]()
        self.proto, self.frozen = with_outside_values(self.proto, names | hidden)


def _bare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without metadata that refers to the user's code."""
    made = copy.deepcopy(model)
    items = [made, made.graph, *made.functions, *made.graph.input, *made.graph.output, *made.graph.initializer]
    items += [item for graph in (made.graph, *made.functions) for item in (*graph.node, *graph.value_info)]
    for item in items:
        item.ClearField("metadata_props")
        item.ClearField("doc_string")
    return made


def _program(module: torch.fx.GraphModule, *, source: bool) -> str:
    code = module.graph.python_code("self")
    odd = [name for name in code.globals if name not in _PLAIN_GLOBALS]
    imports = "".join(f"{_import_of(name, code.globals[name])}\n" for name in odd)
    text = re.sub(r"def forward\(self,? ?", "def forward(", code.src.strip("\n"))
    text = re.sub(r"device\(type='\w+'(, index=\d+)?\)", "device(type='cpu')", text)  # the folder runs everywhere
    comments = "".join(f"# {line}\n" for line in _user_lines(module)) if source else ""
    return f"{_HEAD}{imports}{comments}\n{text.rstrip()}\n"


def _import_of(name: str, value: Any) -> str:
    """Write the import of a global of FX's code; only torch and the standard library can be imported."""
    home = str(getattr(value, "__module__", None) or getattr(value, "__name__", ""))
    top = home.partition(".")[0]
    if top not in ("torch", "math", "operator", "_operator", "builtins"):
        raise UsageError(f"the program calls {home}.{name}, which a reproduction cannot bring along")
    if type(value).__name__ == "module":
        return f"import {value.__name__} as {name}"
    return f"from {home} import {value.__name__} as {name}"


def _user_lines(module: torch.fx.GraphModule) -> list[str]:
    lines = (provenance.user_line(node) for node in module.graph.nodes)
    found = dict.fromkeys((line.file.replace("\\", "/").rpartition("/")[2], line.line, line.source) for line in lines if line.file)
    return [f"{file}:{number}: {text}" for file, number, text in found]


STANDARD = "standard"  # statistics of inputs whose values were not seen: normal numbers, and integers of 0 and 1
RECORDED = "recorded"
_CHUNK = 1 << 20


def described(name: str, meta: Any, value: Any, *, kind: str) -> dict[str, Any]:
    """Describe one input as plain data; `meta` is a fake tensor or number, as in `meta["val"]`, and `value` None if it was not seen."""
    seen = value if value is not None and not (isinstance(value, torch.Tensor) and _torch.is_fake(value)) else None
    like = meta if seen is None else seen
    if not isinstance(like, torch.Tensor):
        return {"name": name, "kind": "number", "value": _torch.size_hint(like) if seen is None else seen}
    return {
        "name": name,
        "kind": kind,
        "dtype": str(like.dtype).removeprefix("torch."),
        "shape": [_torch.size_hint(size) for size in like.shape],
        "stride": [_torch.size_hint(stride) for stride in like.stride()],
        "source": STANDARD if seen is None else RECORDED,
        "statistics": _standard(like.dtype, kind) if seen is None else statistics_of(seen.detach()),
    }


def as_literal(name: str, value: torch.Tensor) -> dict[str, Any]:
    """Describe a constant by its elements, as plain data for JSON."""
    return {
        "name": name,
        "kind": "constant",
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "value": value.detach().cpu().reshape(-1).tolist(),
    }


def _standard(dtype: torch.dtype, kind: str) -> dict[str, Any]:
    if not dtype.is_floating_point:
        return {"min": 0, "max": 1, "mean": 0.5}
    spread = 0.05 if kind == "weight" else 1.0
    return {"min": -4 * spread, "max": 4 * spread, "mean": 0.0, "std": spread, "nan_share": 0.0, "inf_share": 0.0, "minus_inf_share": 0.0}


def statistics_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Compute statistics to draw random values from, over finite elements, in three digits, so that no figure is an element."""
    if not tensor.dtype.is_floating_point:
        if not tensor.numel():
            return {"min": 0, "max": 0, "mean": 0.0}
        whole = tensor.to(torch.int64)
        return {"min": int(whole.min()), "max": int(whole.max()), "mean": float(whole.double().mean())}
    return _float_statistics(tensor)


def _float_statistics(tensor: torch.Tensor) -> dict[str, Any]:
    flat, total = tensor.reshape(-1), max(tensor.numel(), 1)
    nans = infs = minus = count = 0
    low, high, first, second = math.inf, -math.inf, 0.0, 0.0
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK].double()
        finite = part[part.isfinite()]
        nans += int(part.isnan().sum())
        infs += int((part == math.inf).sum())
        minus += int((part == -math.inf).sum())
        if finite.numel():
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            first, second, count = first + float(finite.sum()), second + float(finite.square().sum()), count + finite.numel()
    mean = first / count if count else 0.0
    spread = math.sqrt(max(second / count - mean * mean, 0.0)) if count else 0.0
    return {
        "min": _rounded(low) if count else 0.0,
        "max": _rounded(high) if count else 0.0,
        "mean": _rounded(mean),
        "std": _rounded(spread),
        "nan_share": nans / total,
        "inf_share": infs / total,
        "minus_inf_share": minus / total,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
