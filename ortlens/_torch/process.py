"""What torch does to a whole process: OpenMP threads, code that Dynamo gave up on, guards of devices, cached artifacts."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import os
import pathlib
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

from ortlens._process import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType


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
    return f"{pathlib.Path(torch.__file__).parent}{os.sep}"  # torchvision beside it is none of it


def computes_bfloat16() -> bool | None:
    """Tell whether the CPU has instructions for bfloat16 (`torch/cpu/__init__.py`); None, as torch does not say, if it is no x86-64."""
    import platform

    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


_TRACING_CUDA = threading.RLock()
_REGISTER = "_ZN3c104impl24DeviceGuardImplRegistrarC1ENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
"""`DeviceGuardImplRegistrar(DeviceType, const DeviceGuardImplInterface*)`, which keeps the pointer in the table of guards."""
_CUDA = 1  # `DeviceType::CUDA`
_MOST_METHODS = 64  # of a guard; it has about 30


@contextlib.contextmanager
def tracing_cuda() -> Iterator[bool]:
    """Let fake CUDA tensors be traced inside the block where there is no GPU; yield whether that is possible.

    It changes three things of the process until the block ends: the guard below; what AOTAutograd makes of `tensor.cuda()`, for which it
    asks the driver for the current device (`torch/_subclasses/functional_tensor.py`); and that tracing computes small constants such as
    `torch.tensor(1.0, device="cuda")` on their device (`torch/fx/experimental/proxy_tensor.py`).
    """
    from torch._subclasses.functional_tensor import FunctionalTensor
    from torch.fx.experimental import proxy_tensor

    def cuda(tensor: Any, device: Any = None, *rest: Any, **more: Any) -> Any:
        return tensor.to(device or "cuda", *rest, **more)

    with (
        _TRACING_CUDA,
        _fake_cuda_guard(),
        replaced(FunctionalTensor, "cuda", cuda),
        replaced(proxy_tensor, "CONSTANT_NUMEL_LIMIT", -1),
    ):
        yield _has_cuda_guard()


@contextlib.contextmanager
def _fake_cuda_guard() -> Iterator[None]:
    """Give a build of torch without CUDA a guard for CUDA devices that does nothing, until the block ends.

    torch asks for the guard of a tensor's device at each slice and copy, even where the tensor has no data; without one it raises, or ends
    the process where gradients are traced. In builds with CUDA, each `FakeTensorMode` has torch put a guard that does nothing in the place
    of one that counts no devices (`c10/core/impl/DeviceGuardImplInterface.cpp`). A build without CUDA has none at all, so here one that
    answers 0 to every question is there for as long as torch takes to replace it. Nothing happens in builds with CUDA, and
    where the library does not show the function.
    """
    register = None if torch._C._has_cuda else _guard_register()
    if register is None or _has_cuda_guard():  # that of an outer block
        yield
        return
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    methods = (ctypes.c_void_p * _MOST_METHODS)(*[ctypes.cast(answer, ctypes.c_void_p).value] * _MOST_METHODS)
    counting_none = ctypes.c_void_p(ctypes.addressof(methods))  # an object of C++ without members: the address of its methods
    register(ctypes.byref(ctypes.c_void_p()), _CUDA, ctypes.byref(counting_none))
    try:
        torch._C._ensureCUDADeviceGuardSet()
        yield
    finally:
        register(ctypes.byref(ctypes.c_void_p()), _CUDA, None)


def _guard_register() -> Callable[..., None] | None:
    library = next((file for name in ("libc10.so", "libc10.dylib") if (file := pathlib.Path(torch_folder(), "lib", name)).is_file()), None)
    try:
        register: Any = None if library is None else getattr(ctypes.CDLL(str(library)), _REGISTER)
    except (OSError, AttributeError):
        return None
    if register is not None:
        register.argtypes, register.restype = [ctypes.c_void_p, ctypes.c_int8, ctypes.c_void_p], None
    return register  # type: ignore[no-any-return]  # a function of C


def _has_cuda_guard() -> bool:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        tensor = torch.empty(1, device="cuda")
        try:
            tensor[:1]
        except RuntimeError:
            return False
    return True


def trace_again(target: object) -> None:
    """Let Dynamo trace the code of a function, a method or a module with its submodules again, where it may be marked to be skipped.

    The mark cannot be read. What was compiled stays; other compiled functions of the same code are traced once more, then marked as before.
    What a user marked with `torch._dynamo.skip` keeps its mark, and so does torch's own code, but for its wrapper of modules such as
    `torch.nn.Sequential`. Rejected: `reset_code`, which drops what was compiled, and `torch.compiler.reset`, which does so process-wide.
    """
    from torch._C._dynamo import eval_frame
    from torch._dynamo.convert_frame import input_codes
    from torch._dynamo.external_utils import wrap_inline

    usual = eval_frame._FrameExecStrategy(eval_frame._FrameAction.DEFAULT, eval_frame._FrameAction.DEFAULT)
    codes = {code for code in _codes_of(target) if not code.co_filename.startswith(torch_folder())}
    for code in {*codes, wrap_inline(_nothing).__code__}:
        if code in input_codes:
            eval_frame.set_code_exec_strategy(code, usual)


def _nothing() -> None:
    """Stand for the callables of libraries that Dynamo wraps in one function, whose code, and mark, all of them share."""


def _codes_of(target: object) -> Iterator[CodeType]:
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


_TYPE = "ortlens"
_loaded: dict[str, bytes] = {}  # what `load_cache_artifacts` brought, by key


@functools.cache
def register_artifacts() -> None:
    """Let torch know entries of our cache, once: otherwise it loads nothing of what was saved with them."""
    from torch.compiler._cache import CacheArtifact, CacheArtifactFactory

    class ModelArtifact(CacheArtifact):
        def populate_cache(self) -> None:
            _loaded[self.key] = self.content

        @staticmethod
        def type() -> str:
            return _TYPE

    CacheArtifactFactory.register(ModelArtifact)


def record_artifact(key: str, data: bytes) -> None:
    """Give torch an entry that was used, for `save_cache_artifacts`."""
    from torch.compiler._cache import CacheArtifactManager

    register_artifacts()
    CacheArtifactManager.record_artifact(_TYPE, key, data)


def loaded_artifact(key: str) -> bytes | None:
    """Return an entry that `load_cache_artifacts` brought; nothing of it has been checked."""
    return _loaded.get(key)
