"""Writes a frozen callable as a folder: the ONNX model, a manifest, the state, and the loader."""

from __future__ import annotations

import math
import pathlib
import shutil
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx
import torch
from torch.export.graph_signature import ConstantArgument, TensorArgument

from ortlens import _process, model_file
from ortlens._files import whole_folder
from ortlens.backend.basis import saved_graph
from ortlens.backend.deploy import signature
from ortlens.backend.deploy.export import WeightSource, export_graph
from ortlens.backend.deploy.signature import ConstantLeaf, TensorLeaf, json_from_signature
from ortlens.backend.freeze import loader
from ortlens.backend.freeze.arguments import size_sources, squeezed_sizes
from ortlens.backend.freeze.exporting import boundary_of, guards_as_json
from ortlens.backend.lowering.exported import keys_of
from ortlens.backend.lowering.returned_views import outputs_of
from ortlens.backend.runtime import processor
from ortlens.backend.runtime.rewrites import unwanted_rewrites
from ortlens.errors import UsageError

if TYPE_CHECKING:
    import os

    from ortlens.backend.freeze.frozen import Frozen
    from ortlens.backend.freeze.steps import FrozenSteps
    from ortlens.backend.lowering.entry import LoweredGraph

_MODEL = "model.onnx"
_INLINE_BYTES = 1 << 20  # ONNX Runtime maps the weights of a second file; those in the model it reads and copies


def save(frozen: Frozen, folder: str | os.PathLike[str]) -> pathlib.Path:
    """Write a frozen callable to a new or empty folder and return its path; raise `UsageError`, and leave nothing, if that fails."""
    target = pathlib.Path(folder).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} exists and is no empty folder")
    if not target.parent.is_dir():
        raise UsageError(f"cannot write {target}: there is no folder {target.parent}")
    if changed := frozen.changed_weights():
        raise UsageError(f"weights were written to since freeze ({', '.join(changed[:8])}); freeze again, then save")
    try:
        with whole_folder(target, mark=saved_graph.MANIFEST) as made:
            _fill(frozen, made)
    except (OSError, UsageError) as error:
        cause = error.__cause__ if isinstance(error, UsageError) else error  # the model is exported to a folder beside it
        if not isinstance(cause, OSError):
            raise
        raise UsageError(f"the callable cannot be written to {target}: {cause.strerror or cause}; nothing is left there") from error
    return target


def _fill(frozen: Frozen, folder: pathlib.Path) -> None:
    """Write the model, the state, the loader, and last the manifest, which has the hashes."""
    manifest = _written(frozen, folder)
    names = sorted(path.name for path in folder.iterdir())
    for module in (loader, signature, model_file, processor, saved_graph, _process):
        shutil.copy(str(module.__file__), folder)
    saved_graph.write_manifest(folder, manifest, names)


def _written(frozen: Frozen, folder: pathlib.Path) -> dict[str, Any]:
    """Write the model and the state; the manifest without hashes."""
    steps, arguments = frozen.steps, frozen.arguments
    program = steps.program
    _refuse_dtypes(frozen)
    leaves = [leaf.name for leaf in arguments.signature.leaves]
    guards = (*arguments.guard_texts, *squeezed_sizes(frozen.program, size_sources(frozen.program, leaves)))
    boundary = replace(boundary_of(frozen.program, program, steps.graph.lowered, arguments, least=1), has_loader=True)
    export_graph(steps.graph, folder / _MODEL, WeightSource(), boundary=boundary, inline_bytes=_INLINE_BYTES)
    model = onnx.load(str(folder / _MODEL), load_external_data=False)
    sources = dict(zip(steps.graph.outer_input_names(), _sources(steps.graph.lowered), strict=True))
    state = {name: _state_file(folder, number, tensor) for number, (name, tensor) in enumerate(steps.state.items())}
    returned, updates = _outputs(steps)
    sessions = [runner.sessions[0] for runner in steps.graph.runners]
    # With one core, it would say nothing about the model, which may be loaded where there are more.
    one_thread = _process.usable_cores() > 1 and all(info.threads.count == 1 for info in sessions)
    on_cuda = [info.session.get_provider_options().get("CUDAExecutionProvider") for info in sessions]
    providers = list(dict.fromkeys(name for info in sessions for name in info.providers))
    return {
        "model": _MODEL,
        "threads": 1 if one_thread else None,
        "providers": providers,
        "tf32": {options.get("use_tf32") for options in on_cuda if options is not None} == {"1"},
        "disabled_optimizers": unwanted_rewrites(model, [(name, {}) for name in providers]),
        "signature": json_from_signature(arguments.signature),
        "parameters": list(arguments.positional()),
        "guards": guards_as_json(list(dict.fromkeys(guards)), leaves),
        "arguments": _tree(arguments.spec),
        "result": _tree(program.call_spec.out_spec),
        "feeds": [{"name": value.name, **sources[value.name]} for value in model.graph.input],
        "returned": returned,
        "updates": updates,
        "layouts": steps.memory.layouts_for_arrays(),
        "state": state,
    }


def _refuse_dtypes(frozen: Frozen) -> None:
    leaves = frozen.arguments.signature.leaves
    for leaf in leaves:
        if isinstance(leaf, ConstantLeaf) and not _is_plain(leaf.value):
            raise UsageError(f"{leaf.name} is {leaf.value!r}, which a manifest cannot hold")
    returned = [node.meta["val"] for node in outputs_of(frozen.steps.program.graph) if isinstance(node, torch.fx.Node)]
    dtypes = {str(value.dtype) for value in (*returned, *frozen.state.values()) if isinstance(value, torch.Tensor)}
    if "torch.bfloat16" in dtypes or any(isinstance(leaf, TensorLeaf) and leaf.dtype == "bfloat16" for leaf in leaves):
        raise UsageError("arguments, results and state must not be bfloat16, which numpy does not have; cast them inside the model")
    verdicts = frozen.graph.plan.verdicts
    if left := [f"{node.name}: {verdict.reason}" for node, verdict in verdicts.items() if verdict.cause == "bfloat16"]:
        raise UsageError(f"nodes stay in PyTorch: {left[0]} ({len(left)} such nodes)")


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))


def _state_file(folder: pathlib.Path, number: int, tensor: torch.Tensor) -> dict[str, Any]:
    array = tensor.detach().cpu().contiguous().numpy()
    name = f"state_{number}.bin"
    (folder / name).write_bytes(array.tobytes())
    return {"file": name, "dtype": str(array.dtype), "shape": list(array.shape)}


def _sources(lowered: LoweredGraph) -> list[dict[str, Any]]:
    """Tell where each input of the graph comes from."""
    leaves = {place: {"leaf": leaf} for leaf, place in enumerate(lowered.arguments)}
    return [leaves.get(place, {"state": name}) for place, name in enumerate(lowered.input_names)]


def _outputs(steps: FrozenSteps) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Tell where each leaf of the result comes from, and which outputs are new values of state or of arguments.

    Results that are arguments are these, and a tensor that is at several places of the result is one tensor.
    """
    signature_, lowered = steps.program.graph_signature, steps.graph.lowered
    sources, user = _sources(lowered), lowered.arguments
    inputs = {str(spec.arg.name): place for place, spec in enumerate(signature_.input_specs)}
    returned: list[dict[str, Any]] = []
    updates: list[dict[str, Any]] = []
    first: dict[str, dict[str, Any]] = {}
    for spec, result, name in zip(signature_.output_specs, steps.results, lowered.output_names, strict=True):
        if result.written is not None:
            updates.append({"output": name, **sources[result.written]})
        elif isinstance(spec.arg, ConstantArgument):
            returned.append({"constant": spec.arg.value})
        else:
            owner = result.owner if not result.is_view and result.owner in user else inputs.get(spec.arg.name)
            number = {} if isinstance(spec.arg, TensorArgument) else {"number": True}
            entry = sources[owner] if owner in user else {"output": name, **number}
            returned.append(first.setdefault(spec.arg.name, entry))
    return returned, updates


def _tree(spec: Any) -> Any:
    if spec.is_leaf():
        return "*"
    children = [_tree(child) for child in spec.children()]
    if spec.type in (tuple, list):
        return [spec.type.__name__, children]
    keys = keys_of(spec)
    if keys is None and spec.context is None:
        return ["tuple" if issubclass(spec.type, tuple) else "list", children]
    if keys is None:
        raise UsageError(f"a {spec.type.__name__} cannot be saved: it has no names of its parts, and is made of more than these")
    pairs = [[key, child] for key, child in zip(keys, children, strict=True)]
    return ["dict", pairs] if spec.type in (dict, OrderedDict) else ["object", spec.type.__name__, pairs]
