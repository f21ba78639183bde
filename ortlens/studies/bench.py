"""One model in several ways, in turns: eager, Inductor, ONNX Runtime through ortlens, frozen, and the exported model in a bare session."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._process import usable_cores
from ortlens.backend.basis.options import OrtBackendOptions
from ortlens.backend.observed import providers_for
from ortlens.errors import UsageError
from ortlens.lens.freeze import freeze
from ortlens.lens.lens import Lens
from ortlens.studies.engine import LocalSide, measured, start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.trace.records import Capture, SideResult

WAYS = ("eager", "inductor", "ortlens", "frozen", "exported")  # what is measured by default
_MOST_ROUNDS = 200


def bench(  # noqa: PLR0913 - those of `explain`, and what to measure
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    ways: Sequence[str] = WAYS,
    seconds: float = 10.0,
    options: Mapping[str, Any] | None = None,
    name: str = "",
) -> tuple[tuple[SideResult, ...], Capture]:
    """Measure a model in several ways; eager is always one of them, as the base.

    Calls the target some hundred times, with gradients as the caller has set them, in ten rounds or more, however short `seconds` is. The
    rows are also among the capture's figures, as `ways`.
    """
    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        raise UsageError(f"there is no way {unknown[0]!r}; the ways are: {', '.join(WAYS)}")
    lens = Lens(options=options, name=name)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        makers: Mapping[str, Callable[[], Callable[[], Any]]] = {
            "eager": lambda: lambda: target(*args, **kwargs),
            "inductor": lambda: partial(_torch.compiled_apart(target, "inductor"), *args, **kwargs),
            "ortlens": lambda: partial(_torch.compiled_apart(target, lens), *args, **kwargs),
            "frozen": lambda: partial(freeze(target, *args, options=options, **kwargs), *args, **kwargs),
            "exported": lambda: _exported(target, args, kwargs, OrtBackendOptions.from_any(options), Path(folder)),
        }
        given = (target, args, kwargs)
        sides = [LocalSide(name=way, make=makers[way], given=given) for way in WAYS if way in ("eager", *ways)]
        start(sides)
        deadline = time.perf_counter_ns() + round(seconds * 1e9)
        found = measured(sides, most=_MOST_ROUNDS, is_over=lambda: time.perf_counter_ns() > deadline)
    capture = lens.captured()
    return found, replace(capture, figures=replace(capture.figures, ways=found))


def _exported(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: OrtBackendOptions, folder: Path
) -> Callable[[], Any]:
    """Make what one writes without ortlens: torch.onnx.export, and a session with default optimisations and as many threads as ours have.

    It runs on the providers that the options name, or on the devices of their session options, which then are the session's.
    """
    import onnxruntime

    tensors = _torch.tensors_of((args, kwargs))
    if any(tensor.device.type != "cpu" for tensor in tensors):
        raise UsageError("inputs on the CPU only")
    module = target if isinstance(target, torch.nn.Module) else torch.nn.Module()
    if module is not target:
        module.forward = lambda *given, **named: target(*given, **named)  # noqa: PLW0108 - builtins have no signature
    with torch.no_grad():
        program: Any = torch.onnx.export(module, args, kwargs=dict(kwargs), dynamo=True, verbose=False)
    path = folder / "exported.onnx"
    program.save(path)
    providers = providers_for(tensors, options)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = min(torch.get_num_threads(), usable_cores())
    session = onnxruntime.InferenceSession(path, settings if providers else options.ort_session_options, providers=providers)
    names = [item.name for item in session.get_inputs()]
    if len(names) != len(tensors):
        raise UsageError(f"the exported model has {len(names)} inputs for {len(tensors)} tensors")
    feeds = {name: tensor.detach().numpy() for name, tensor in zip(names, tensors, strict=True)}
    return lambda: [torch.from_numpy(value) for value in session.run(None, feeds)]
