"""Code on which Dynamo gave up: it marks a code object to be skipped, for all compilations of the process."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from ortlens._torch.process import torch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType


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
