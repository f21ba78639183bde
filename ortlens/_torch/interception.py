"""Every `torch.compile` of a process, before its backend is looked up. torch need not have been imported yet."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_ENTRY = "torch._dynamo.eval_frame"  # `_optimize(rebuild_ctx, backend="inductor", *, ...)`: torch.compile passes its backend on to it


def replace_backends(replace: Callable[[object], object]) -> None:
    """Have every later `torch.compile` of this process use the backend that `replace` returns for the one passed, or its name.

    `torch._dynamo.optimize` in `torch/_dynamo/eval_frame.py` is where all of them meet, after modes and options were put into the backend.
    Tracing for `torch.export` takes another way.
    """

    def patch(module: Any) -> None:
        original = module._optimize

        def _optimize(rebuild_ctx: object, backend: object = "inductor", **options: Any) -> Any:
            return original(rebuild_ctx, replace(backend), **options)

        module._optimize = _optimize

    when_imported(_ENTRY, patch)


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Act on a module as soon as it has been executed, or at once if it is already there."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the others would, and acts on it once."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._act(module)

        loader.exec_module = exec_module
