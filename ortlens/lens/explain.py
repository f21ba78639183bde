"""`explain()`: run a target, and return the lens over it."""

from __future__ import annotations

import functools
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeGuard, TypeVar, overload

from ortlens._os_errors import clear_os_errors
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx
    import torch
    from torch.export import ExportedProgram

    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.lens.lens import Lens
    from ortlens.lens.onnx_model.onnx_lens import OnnxLens

_P = ParamSpec("_P")
_T = TypeVar("_T")


def curried(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function that returns a callable of the target's arguments: where it gets those itself, say how to pass them."""

    @functools.wraps(function)
    def behind(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as err:
            line = f"ortlens.{function.__name__}(model)(x)"
            raise UsageError(f"{function.__name__}(): {err}; arguments of the model go into a call of their own: {line}") from err
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    return behind


@overload
def explain(
    target: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    dry_run: bool = False,
    calls: int | None = None,
    name: str | None = None,
    keep_values: bool = False,
) -> Callable[..., OnnxLens]: ...
@overload
def explain(
    target: Callable[..., Any] | ExportedProgram,
    *,
    backend: str | Callable[..., Any] = "ortlens",
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    dry_run: bool = False,
    dynamic: bool | None = None,
    calls: int | None = None,
    name: str | None = None,
    device: str | torch.device | None = None,
    keep_values: bool = False,
) -> Callable[..., Lens]: ...


@clear_os_errors
@curried
def explain(  # noqa: PLR0913 - the contract's own signature
    target: Callable[..., Any] | ExportedProgram | str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    backend: str | Callable[..., Any] = "ortlens",
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    dry_run: bool = False,
    dynamic: bool | None = None,
    calls: int | None = None,
    name: str | None = None,
    device: str | torch.device | None = None,
    keep_values: bool = False,
) -> Callable[..., Lens] | Callable[..., OnnxLens]:
    """Compile a function or module, call it, and return the lens over it. Curried like `torch._dynamo.explain`.

    An ONNX model is run as it is, whatever made it, without PyTorch: `explain("model.onnx")(**inputs)`, see `OnnxLens`.

    Other compilations of the same function stay; where PyTorch gave up on its code earlier, they try once more. The caller's
    gradient mode applies: under `torch.no_grad()` the inference graph is compiled, otherwise the forward graph of a training step.
    Where PyTorch breaks a graph, what might avoid that is tried, for about a second: the call is traced with the change, and not run. What
    avoids it is then compiled and timed in turns with the present call, where the model compiled within three seconds.

    Args:
        target: A function, an `nn.Module`, or a `torch.export.ExportedProgram`, which is compiled without Dynamo. Of `model.generate`,
            the model is compiled, in place while the call lasts; prefill and decode are timed apart. Or an ONNX model: its path, an
            `onnx.ModelProto`, or its bytes. A model with external data is given by its path. Or what generates tokens with one: an
            `ORTModelForCausalLM` of optimum, or the folder of a model of onnxruntime-genai; options are theirs. A function that
            `aot_compile` compiled ahead of time, with our backend, is called as it is, in sessions that the lens records.
        backend: As for `Lens`.
        options: As for `Lens`. For an ONNX model, its execution providers and `ort_session_options`; without any, a session as ONNX
            Runtime makes it by default, on the GPU if it has CUDA, else on the CPU.
        dry_run: Analyse under fake tensors: graphs, partitions, reasons, FLOPs and bytes, without memory for weights and
            without running anything. The model may be real, on the meta device, or built under a fake tensor mode. If the
            model's own Python asks a tensor for its values, the analysis ends with a finding. Of an ONNX model: its nodes, types and
            shapes. Of a preferred execution provider: what it would run, see `placements`; that of CoreML and NNAPI by rules, installed or
            not. Tensors on CUDA, also fake ones, are planned for ONNX Runtime's CUDA provider, installed or not.
        dynamic: As for `torch.compile`.
        calls: Number of calls, including the first; by default until the figures are stable, at most about a second: up to 161 compiled
            calls, 100 of them in turns with as many of the target as it is, to compare with, and one of each in which operators are
            counted. Where entering compiled code takes much of a call, up to 650 more measure the guards and, in turns, a frozen call, and
            up to 410 each change that avoids a graph break. Each is a real call: what the target changes, such as a buffer, a running mean
            or a list, it changes as often as the summary says. Set 1 for targets with side effects.
        name: Name of the capture; by default the target's.
        device: With `dry_run`, `"cuda"` or `"cpu"`: plan as if the parameters and buffers of the target, and all tensors among the
            arguments, were there, on any machine; neither is changed. Without a GPU, gradients cannot be traced there, so that the
            inference graph is planned, and PyTorch writes attention out where a GPU may choose an operator for it; the summary says so.
        keep_values: Record the frame `values`, by which `compare` names the first value that differs from that of another capture: figures
            of 10,000 values at most, about 5 MB, without their elements; those of few elements, 16 or so, follow from the figures. After
            the other calls, the target is called once more, from its first state and with the random numbers of seed 0; then its state
            is put back. Memory: a copy of inputs, weights and buffers, and the values inside a partition once, in groups of 1 GiB.

    Returns:
        A callable of the target's arguments that returns the `Lens`. That of an ONNX model takes its inputs by place or by name, as numpy
        arrays or torch tensors, and returns an `OnnxLens`; without inputs, it makes them from the model's signature. That of a language
        model takes a prompt, as tokens or as a text (with optimum's, also `tokenizer=`), and what its package takes, as `max_new_tokens`.

    Raises:
        UsageError: `calls` is not a positive number, the target cannot be called or is a coroutine function, or there is no such file;
            `keep_values` is set in a dry run, for another backend, or for a model in ONNX Runtime's own format; `device` is another one, or
            is given without `dry_run` or for an ONNX model or an exported program; without a GPU, the installed torch cannot trace CUDA
            tensors (builds without CUDA on Windows).
        SessionError: ONNX Runtime refuses the ONNX model or cannot run it; raised when the callable is called.

    Example:
        >>> import torch, ortlens
        >>> lens = ortlens.explain(torch.nn.Linear(4, 2), calls=1)(torch.ones(3, 4))
        >>> float(lens.graphs.coverage.iloc[0])
        1.0
    """
    if calls is not None and (not isinstance(calls, int) or calls < 1):
        raise UsageError(f"calls must be a whole number from 1, not {calls!r}")
    if keep_values and (dry_run or (isinstance(backend, str) and backend not in ("ortlens", "onnxrt"))):
        raise UsageError("keep_values=True needs a run in ONNX Runtime: without dry_run=True, and by the ortlens backend")
    if is_onnx_model(target) or is_language_model(target):
        if backend != "ortlens" or dynamic is not None or device is not None:
            raise UsageError("an ONNX model is run as it is: backend=, dynamic= and device= are for what torch.compile compiles")
        return _explainer(target)(target, options=options, dry_run=dry_run, calls=calls, name=name, keep_values=keep_values)
    if not callable(target):  # an ExportedProgram is callable too: it raises when called
        raise UsageError(f"explain() takes a function, a module, an exported program or an ONNX model, not {type(target).__name__}")
    if isinstance(target, type):  # torch.compile would change the class for good
        raise UsageError(
            f"explain() takes a function or a module, and {target.__name__} is a class: ortlens.explain({target.__name__}())(x)"
        )
    if inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__):
        raise UsageError(
            f"explain() does not await, and {getattr(target, '__name__', type(target).__name__)} is a coroutine function; "
            "explain what it calls, or await it inside `with ortlens.capture()`, or in a notebook with %ortlens"
        )

    planned = planned_device(target, device, dry_run=dry_run)

    @clear_os_errors
    def run(*args: Any, **kwargs: Any) -> Lens:
        import torch

        from ortlens.lens.explain_torch import Wanted, explain_under, name_of
        from ortlens.lens.lens import Lens

        lens = Lens(backend, options=options, name=name or name_of(target), dry_run=dry_run)
        about: Any = {"options": options, "dry_run": dry_run, "dynamic": dynamic, "calls": calls, "name": name, "device": device}
        about |= {"keep_values": keep_values}
        had_gradients = torch.is_grad_enabled()

        def again(*args: Any, **kwargs: Any) -> Lens:
            with torch.set_grad_enabled(had_gradients):  # else inference would be compared with training
                return explain(target, backend=backend, **about)(*args, **kwargs)

        lens.explained = again
        explain_under(lens, target, args, kwargs, Wanted(dynamic, calls, planned, keep_values))
        return lens

    return run


def _explainer(target: object) -> Callable[..., Callable[..., OnnxLens]]:
    """Import what explains an ONNX model, or generates tokens with one."""
    if is_language_model(target):
        from ortlens.lens.onnx_model.language import explain_language

        return explain_language
    from ortlens.lens.onnx_model.explain import explain_model

    return explain_model


def planned_device(target: object, device: str | torch.device | None, *, dry_run: bool) -> torch.device | None:
    """Read `device`; raise `UsageError` if it is none that a dry run of this target plans for."""
    if device is None:
        return None
    import torch

    if not dry_run:
        raise UsageError(
            f"device={str(device)!r} is for dry runs, which plan for it on any machine: add dry_run=True; "
            "to run there, move the model and its arguments yourself"
        )
    if isinstance(target, torch.export.ExportedProgram):
        raise UsageError("an exported program stays on the device that it was exported for; leave out device=, or explain its module")
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as err:
        raise UsageError(f"device={device!r} is no device of PyTorch; a dry run plans for 'cuda' or 'cpu'") from err
    if place.type not in ("cuda", "cpu") or place.index:
        raise UsageError(f"a dry run cannot plan for device={str(place)!r}, only for 'cuda' and 'cpu', and the first of several GPUs")
    return place


def is_language_model(target: object) -> bool:
    """Tell whether a target is a model of optimum's for onnxruntime, its `generate`, or a folder of onnxruntime-genai."""
    if isinstance(target, (str, os.PathLike)):
        return Path(target).expanduser().joinpath("genai_config.json").is_file()
    model = getattr(target, "__self__", target) if getattr(target, "__name__", "generate") == "generate" else target
    return hasattr(model, "generate") and any(known.__module__.startswith("optimum.onnxruntime") for known in type(model).__mro__)


def is_onnx_model(target: object) -> TypeGuard[str | os.PathLike[str] | bytes | onnx.ModelProto]:
    """Tell whether a target is an ONNX model: a path, bytes or a `ModelProto`. Neither load onnx nor look at the file."""
    if isinstance(target, (str, os.PathLike, bytes, bytearray, memoryview)):
        return True
    return type(target).__name__ == "ModelProto" and hasattr(target, "opset_import")
