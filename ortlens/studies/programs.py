"""The program of a bisection: the ONNX models that a call runs, with their weights and inputs. It is made in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.errors import SessionError, UsageError
from ortlens.studies.bisect_run import write_values
from ortlens.studies.child import stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from ortlens.job.targets import Inputs
    from ortlens.lens.lens import Lens
    from ortlens.lens.repro.case import ReproCase, Subject


def program_of(folder: str, target: str, texts: Sequence[str], seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write the models of a target and their inputs; return their files, the lines that nodes come from, versions and results.

    The target is `MODULE:NAME` or an ONNX file. Raises `UsageError` where nothing of it runs in ONNX Runtime.
    """
    from ortlens.job.request import is_onnx_file
    from ortlens.job.targets import inputs_from_texts
    from ortlens.lens.repro.evidence import versions

    inputs = inputs_from_texts(texts)
    read = _from_file if is_onnx_file(target) else _from_target
    return {**read(target, inputs, seed, options, Path(folder)), "versions": versions()}


def _from_file(file: str, inputs: Inputs, seed: int, options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    import onnx
    import onnxruntime

    from ortlens.lens.explain import explain
    from ortlens.lens.onnx_model.graph_records import user_line
    from ortlens.lens.onnx_model.source import source_of, with_names

    if options:
        raise UsageError("options of the backend have no effect on an ONNX model; leave out --option")
    if source_of(file).structure is None:
        raise UsageError(
            f"{file} is in ONNX Runtime's own format, of which no node can be cut out; give the .onnx file that it was made from"
        )
    args, kwargs = inputs.arrays(seed)
    stage("running the model")
    try:
        lens = explain(file, calls=1)(*args, **kwargs)
    except SessionError as error:  # maybe at this level of optimisation alone
        plain = onnxruntime.SessionOptions()
        plain.log_severity_level, plain.graph_optimization_level = 4, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            lens = explain(file, calls=1, options={"ort_session_options": plain})(*args, **kwargs)
        except SessionError:
            raise error from error.__cause__
    model = with_names(onnx.load(file))
    places = {node.name: user_line(node) for node in model.graph.node}
    lines = {name: f"{Path(place).name}:{number}" for name, (place, number, _) in places.items() if place is not None}
    return {"parts": [_part(model, lens.inputs, folder, "model", lines)], "results": None}


def _from_target(target: str, inputs: Inputs, seed: int, options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    import torch

    from ortlens import _torch
    from ortlens.job.targets import target_from_text
    from ortlens.lens.lens import Lens
    from ortlens.lens.repro.case import case_of
    from ortlens.lens.repro.evidence import subjects_of, values_seen

    torch.manual_seed(seed)
    function = target_from_text(target)
    args, kwargs = inputs.made(seed)
    lens = Lens(options=dict(options) or None)
    stage("compiling")
    with torch.no_grad():
        results = torch.compile(function, backend=lens)(*args, **kwargs)
        stage("reading the models")
        targets = lens.compilations.targets
        graphs = [row.graph_id for row in lens.captured().graphs if row.partition_count]
        subjects = [subject for graph_id in graphs for subject in subjects_of(targets.graphs(), graph_id)]
        if not subjects:
            raise UsageError(f"nothing of {target} runs in ONNX Runtime; `ortlens explain` has the reasons")
        seen = values_seen(targets, subjects, args, kwargs)
        cases = [case_of(subject, seen[subject.name], real_inputs=True, weights=True, source=False) for subject in subjects]
    parts = [_part_of(case, subject, _lines(lens, subject), folder) for case, subject in zip(cases, subjects, strict=True)]
    tensors = {
        f"result {place}": tensor.detach().float() if tensor.dtype is torch.bfloat16 else tensor.detach()
        for place, tensor in enumerate(_torch.tensors_of(results))
    }
    return {"parts": parts, "results": write_values({name: tensor.numpy() for name, tensor in tensors.items()}, folder / "results.npz")}


def _lines(lens: Lens, subject: Subject) -> dict[str, str]:
    """Map the ONNX nodes of a partition to the user's lines, as far as they are known."""
    return {
        name: f"{Path(node.file).name}:{node.line}"
        for node in lens.captured().nodes
        if node.partition_id == subject.name and node.file is not None
        for name in node.onnx_nodes
    }


def _part_of(case: ReproCase, subject: Subject, lines: dict[str, str], folder: Path) -> dict[str, Any]:
    import onnx
    import torch

    if case.model is None:
        raise UsageError(f"{subject.name} has no ONNX model")
    given = {item["name"]: torch.tensor(item["value"]) for item in case.facts["inputs"] if "value" in item} | case.values
    for tensor in case.model.graph.initializer:
        if tensor.name in case.facts["frozen"]:
            plain = given[tensor.name].detach().contiguous()
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    feed = {}
    for value in case.model.graph.input:
        if given[value.name].dtype is torch.bfloat16:
            raise UsageError(f"{subject.name} has an input of bfloat16, which no array of numpy holds; bisect it in float32")
        feed[value.name] = given[value.name].numpy()
    return _part(case.model, feed, folder, subject.name, lines)


def _part(model: onnx.ModelProto, feed: Mapping[str, Any], folder: Path, name: str, lines: dict[str, str]) -> dict[str, Any]:
    path = folder / f"{name}.onnx"
    save(model, path)
    return {"name": name, "model": str(path), "feed": write_values(feed, folder / f"{name}-inputs.npz"), "lines": lines}


_LARGE = 1 << 30  # bytes of a model whose weights go into a file of their own


def save(model: onnx.ModelProto, path: Path) -> str:
    """Write a model and return its path as text."""
    import onnx

    apart = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _LARGE
    onnx.save(model, path, save_as_external_data=apart, location=f"{path.name}.data" if apart else None)
    return str(path)
