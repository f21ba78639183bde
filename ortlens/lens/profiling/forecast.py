"""What execution providers would run in a dry run: for those of phones by the rules that ONNX Runtime ships, for others by their own word.

The rules are `onnxruntime.tools.mobile_helpers.usability_checker`, which is in every wheel, and it decides about nodes and partitions. It
takes or declines whole operators. Of the notes on operators, which it only prints, those about an attribute `mode` are applied: a node
that one of them excludes is shown to it as an operator that it does not know.
"""

from __future__ import annotations

import copy
import functools
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
import onnxruntime

from ortlens import _ort
from ortlens.analysis.placement import short_name
from ortlens.backend.basis import placements
from ortlens.backend.basis.node_provenance import iter_nodes
from ortlens.backend.basis.options import named_providers
from ortlens.errors import UsageError
from ortlens.lens.profiling.kernel_records import size_of, with_outside_values
from ortlens.trace import records as r
from ortlens.trace.guard import lens_guard

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.trace.recorder import Recorder

Provider: TypeAlias = "tuple[str, Mapping[str, Any]]"
"""A provider with its options."""

_NOTES = {"NeuralNetwork": "coreml_supported_neuralnetwork_ops.md", "MLProgram": "coreml_supported_mlprogram_ops.md"}
_UNKNOWN = "They know operators, sizes and dimensions, but not data types, the device, or what their notes on operators say."
_COREML, _ = RULED = ("CoreMLExecutionProvider", "NnapiExecutionProvider")
"""The providers for which ONNX Runtime ships rules."""


def provider_to_forecast(options: OrtBackendOptions) -> Provider | None:
    """Return the first provider that options prefer, None for the CPU; raise `UsageError` for one without rules that is not available."""
    named = [(name, settings) for _, name, settings in named_providers(options, "preferred_execution_providers")]
    for name, settings in named:
        if name in RULED:
            _rules_of(name, settings)
        else:
            _ort.require_provider(name, "preferred_execution_providers", onnxruntime.get_available_providers())
    return next((pair for pair in named if pair[0] != _ort.CPU), None)


def record_partitions(recorder: Recorder) -> None:
    """Record what the preferred provider would run of each partition; raise `UsageError` as `provider_to_forecast`."""
    from ortlens.backend.observed import graphs_of  # here, since an ONNX model needs no torch

    graphs = [(graph, provider) for graph in graphs_of(recorder) if (provider := provider_to_forecast(graph.options)) is not None]
    for found, provider in graphs:
        for partition in found.partitions():
            with lens_guard(recorder, "asking what a provider would run"), tempfile.TemporaryDirectory(prefix="ortlens-") as folder:
                make = functools.partial(onnxruntime.InferenceSession, Path(folder) / "model.onnx")
                _write_with_constants(partition.model, partition.constants, Path(folder))
                record_forecast(recorder, partition.partition_id or "", partition.model, provider, make)


def _write_with_constants(model: onnx.ModelProto, names: Collection[str], folder: Path) -> None:
    """Write a model whose inputs of these names are constants: all of them lie in one file of zeros, which takes no room on the disk."""
    made, _ = with_outside_values(copy.deepcopy(model), names)
    with (folder / "weights").open("wb") as file:
        file.truncate(max(map(size_of, made.graph.initializer), default=0))
    onnx.save(made, folder / "model.onnx")


def record_forecast(recorder: Recorder, partition_id: str, model: onnx.ModelProto, provider: Provider, make: Callable[..., Any]) -> None:
    """Record what a provider would run of the model of a partition, whose id stands for that of a session.

    `make` makes an `InferenceSession` with options and `providers`, which is not run.
    """
    options = onnxruntime.SessionOptions()
    if provider[0] in onnxruntime.get_available_providers():
        _ort.record_assignments(options)
        made = make(options, providers=[provider, (_ort.CPU, {})])
        placements.record(recorder, _stand_in(partition_id), made, (provider[0], _ort.CPU), model)
        return
    # As it does before it asks a provider, ONNX Runtime folds constants and rewrites the model.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix="ortlens-") as folder, _ort.watched(options, Path(folder), ours=True, with_model=True):
        make(options, providers=[(_ort.CPU, {})])
        seen = onnx.load(Path(folder) / "optimized.onnx", load_external_data=False)
    makers = {value: node.name for node in iter_nodes(model.graph) for value in node.output if value}
    known = set(makers.values())
    for number, node in enumerate(iter_nodes(seen.graph)):
        origins = [node.name] if node.name in known else [makers[value] for value in node.output if value in makers]
        node.name = f"{(*origins, '')[0]}/{number}"  # rewrites leave equal names, and none
    _record_by_rules(recorder, partition_id, model, onnx.shape_inference.infer_shapes(seen), provider)


def _stand_in(partition_id: str) -> r.Session:
    """Make the record of a session that a dry run does not make."""
    return r.Session(session_id=partition_id, partition_id=partition_id)


def _record_by_rules(recorder: Recorder, partition_id: str, model: onnx.ModelProto, seen: onnx.ModelProto, provider: Provider) -> None:
    """Record what the rules say of a model as they see it, rewritten, with shapes, and with the names of its nodes."""
    name, (check, what) = provider[0], _rules_of(*provider)
    _mark_modes(seen, check(seen, require_fixed_input_sizes=False).supported_ops_checker)
    fixed, found = (check(seen, require_fixed_input_sizes=strictly) for strictly in (False, True))
    subgraphs = [_ort.Assignment(name, tuple(node.name for node in group)) for group in found.supported_groups or [()]]
    taken = {name for each in subgraphs for name in each.nodes}
    left = [node for node in iter_nodes(seen.graph) if node.name not in taken]
    reasons = {node.name.rpartition("/")[0]: f"{_reason(node, found)} {node.op_type}" for node in left}
    subgraphs += [_ort.Assignment(_ort.CPU, (node.name,)) for node in left]
    onnx.NodeProto.__hash__ = None  # type: ignore[method-assign, assignment]  # the rules make nodes hashable for good
    placements.record(recorder, _stand_in(partition_id), subgraphs, (name, _ort.CPU), model, reasons)
    then = f"; pieces with fixed sizes: {fixed.num_partitions}" if fixed.num_partitions != found.num_partitions else ""
    title = f"what {short_name(name)} would run is by the rules{what} in onnxruntime {onnxruntime.__version__}{then}"
    notes = "; ".join(found.supported_ops_checker.get_caveats())[:2000]
    finding = r.Finding(rule="provider_rules", severity="info", subject=partition_id, title=title, evidence=notes, hazard=_UNKNOWN)
    recorder.add(finding)


def _reason(node: onnx.NodeProto, found: Any) -> str:
    unknown = not found.supported_ops_checker.is_op_supported(node)
    deep = any(operator.endswith(f":{node.op_type}") for operator in found.ops_with_unsupported_rank)
    return "has no rule for" if unknown else "takes fewer dimensions than an input of" if deep else "takes no input without a fixed size of"


def _mark_modes(model: onnx.ModelProto, checker: Any) -> None:
    """Make operators that the rules do not know of nodes in a `mode` that the notes on their operators exclude."""
    notes = (note.split(":", 2) for note in checker.get_caveats())
    modes = {operator: match["mode"] for _, operator, text in notes if (match := re.search(r"\b[Oo]nly (?P<mode>\w+) mode\b", text))}
    for node in iter_nodes(model.graph):
        given = [entry.s.decode() for entry in node.attribute if entry.name == "mode"]
        if given and modes.get(node.op_type, given[0]) != given[0]:
            node.op_type += f" in mode {given[0]}"


def _rules_of(name: str, settings: Mapping[str, Any]) -> tuple[Callable[..., Any], str]:
    """Return the function that has the rules of a provider, and what they are for; raise `UsageError` for an unknown format of models."""
    from onnxruntime.tools.mobile_helpers import usability_checker as rules

    if name != _COREML:
        return rules.check_nnapi_partitions, ""
    form = settings.get("ModelFormat", "NeuralNetwork")
    if form not in _NOTES:
        raise UsageError(f"ModelFormat of {_COREML} is {' or '.join(_NOTES)}, not {form!r}")
    return functools.partial(rules.check_coreml_partitions, config_filename=_NOTES[form]), f" for {form} models"
