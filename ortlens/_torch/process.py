"""What torch does to the whole process: its OpenMP threads, code that Dynamo gave up on, and every `torch.compile`."""

from __future__ import annotations

import ctypes
import functools
import importlib.abc
import importlib.util
import inspect
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType


@functools.cache
def openmp_pause() -> Callable[[], Any] | None:
    """Return a function that ends the OpenMP threads which PyTorch's operators have started for the calling thread.

    The threads of GNU OpenMP, which torch uses on Linux, keep spinning for a while after their work; the duration is fixed when the library
    is loaded. `omp_pause_resource_all` (OpenMP 5.0, 3.2.44) ends them; the next parallel operator starts new ones. None if torch does not
    use GNU OpenMP, or a version without it.
    """
    library = next(pathlib.Path(torch_folder(), "lib").glob("libgomp*.so*"), None)
    if library is None or sys.platform != "linux":
        return None
    try:
        pause = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all
    except (OSError, AttributeError):  # another library is in use, or one before OpenMP 5.0
        return None
    pause.argtypes = [ctypes.c_int]
    return functools.partial(pause, 1)  # omp_pause_soft


def torch_folder() -> str:
    """Return the folder of the installed torch, to distinguish its frames from the user's."""
    import torch

    return str(pathlib.Path(torch.__file__).parent)


def computes_bfloat16() -> bool | None:
    """Tell whether the CPU has instructions for bfloat16 (x86-64, `torch/cpu/__init__.py` of torch 2.13); None if torch does not say."""
    import platform

    import torch

    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    asked = [ask for name in names if (ask := getattr(torch.cpu, name, None)) is not None]
    return any(ask() for ask in asked) if asked and platform.machine() in ("x86_64", "AMD64") else None


def trace_again(target: object) -> None:
    """Let Dynamo trace the code of a function, a method or a module with its submodules again, where it may be marked to be skipped.

    The mark cannot be read. What was compiled stays; other compiled functions of the same code are traced once more, then marked as before.
    What a user marked with `torch._dynamo.skip` keeps its mark, and so does torch's own code, but for its wrapper of modules such as
    `torch.nn.Sequential`. Rejected: `reset_code`, which drops what was compiled, and `torch.compiler.reset`, which does so process-wide.
    """
    from torch._C._dynamo import eval_frame
    from torch._dynamo.convert_frame import input_codes
    from torch._dynamo.external_utils import wrap_inline

    set_strategy = getattr(eval_frame, "set_code_exec_strategy", None)
    if set_strategy is None:
        return
    usual = eval_frame._FrameExecStrategy(eval_frame._FrameAction.DEFAULT, eval_frame._FrameAction.DEFAULT)
    codes = {code for code in _codes_of(target) if not code.co_filename.startswith(torch_folder())}
    for code in {*codes, wrap_inline(_nothing).__code__}:
        if code in input_codes:
            set_strategy(code, usual)


def _nothing() -> None:
    """Stand for the callables of libraries that Dynamo wraps in one function, whose code, and mark, all of them share."""


def _codes_of(target: object) -> Iterator[CodeType]:
    import torch

    while isinstance(target, functools.partial):
        target = target.func
    owner = getattr(target, "__self__", target)
    functions: list[Any] = [target, type(target).__call__]
    if isinstance(owner, torch.nn.Module):
        functions += [module.forward for module in owner.modules()]
    for function in functions:
        yield from _codes_behind(function)


def _codes_behind(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function, and of those that it decorates."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        plain = getattr(function, "__func__", function)
        code = getattr(plain, "__code__", None)
        if inspect.iscode(code) and not getattr(plain, "_torchdynamo_disable", False):
            yield code
        function = getattr(function, "__wrapped__", None)


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
