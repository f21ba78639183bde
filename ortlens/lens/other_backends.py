"""Backends that a lens wraps: finding one, standing in for one, and recording the graphs and calls of others than ours."""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.api import OrtBackend, ortlens_backend, torch_compile_backend
from ortlens.errors import UsageError, near_hint
from ortlens.trace.recorder import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortlens.lens.lens import Lens

_FORWARDED = ("__name__", "compiler_name", "get_compiler_config", "reset")  # what Dynamo asks a backend for besides calling it
_OWN_NAMES = ("ortlens", "onnxrt")
_OWN_FUNCTIONS = (ortlens_backend, torch_compile_backend)


def is_ours(backend: object) -> bool:
    """Tell whether a backend is one of our functions or any `OrtBackend`."""
    return backend in _OWN_FUNCTIONS or isinstance(backend, OrtBackend)


def resolve_backend(backend: str | Callable[..., Any], options: Any) -> tuple[str, OrtBackend | None, Callable[..., Any]]:
    """Find the backend to wrap: its name, the backend itself if it is ours (else None), and its callable; raise UsageError if wrong."""
    if (isinstance(backend, str) and backend in _OWN_NAMES) or backend in _OWN_FUNCTIONS:
        ours = OrtBackend.get_cached_instance_for_options(options)
        return "ortlens", ours, ours
    if options is not None:
        raise UsageError(f"options are for the ortlens backend by name; {backend!r} takes none through a Lens")
    if isinstance(backend, OrtBackend):
        return "ortlens", backend, backend
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    try:
        return name, None, _torch.lookup_backend(backend)
    except Exception as error:
        near = near_hint(name, (*_OWN_NAMES, *torch.compiler.list_backends()))
        raise UsageError(f"there is no backend {name!r}.{near}" if near else f"unknown backend {backend!r}: {error}") from error


class WatchedBackend:
    """A backend that is recorded. Equal to another one of an equal backend, so that `torch.compile` shares compiled code as before."""

    def __init__(self, lens: Lens, backend: Any) -> None:
        """Put a lens before a backend."""
        self.lens, self._backend = lens, backend
        # No __getattr__: Dynamo's evaluator asks for attributes of a backend where it must not meet Python code, and the process crashes.
        for name in _FORWARDED:
            if hasattr(backend, name):
                setattr(self, name, getattr(backend, name))

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        """Compile a graph; called by Dynamo."""
        if not is_ours(_torch.innermost_backend(self._backend)):
            return self.lens.compilations.elsewhere(self._backend, graph_module, example_inputs, kwargs)
        # Where the program has a lens of its own, that one records.
        with self.lens.compilations.by_our_backend() if CURRENT.get() is None else contextlib.nullcontext():
            compiled: Callable[..., Any] = self._backend(graph_module, example_inputs, **kwargs)
        return compiled

    def __reduce__(self) -> tuple[Any, tuple[tuple[Any]]]:
        """Pickle as the backend itself: the lens belongs to this process."""
        return operator.itemgetter(0), ((self._backend,),)

    def __eq__(self, other: object) -> bool:
        """Compare the backends."""
        return isinstance(other, WatchedBackend) and bool(self._backend == other._backend)

    def __hash__(self) -> int:
        """Hash the kind of backend: torch's own wrappers compare, and have no hash."""
        return hash(type(self._backend))
