"""Tracing a call without running it: nothing of the function runs, and nothing is kept of what was compiled."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import logging
import threading
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch

from ortlens._torch.dynamo import filtered, writes_no_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_BUILTINS = "__builtins_dict__"  # the one global that Dynamo may not take back when its code is freed
_FRAME = -1  # an id that Dynamo gives to no frame, so that its own go on counting as before


def retrace(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], backend: Callable[..., Any]) -> None:
    """Have Dynamo compile one call of a Python function, up to its first graph break, and throw it away; raises what compiling raises.

    `ConvertFrame` of `torch/_dynamo/convert_frame.py` is what Dynamo calls with each new frame: it returns what to run, and runs nothing.
    The frame is made up, of a copy of the function's code, on which nothing was compiled yet.
    """
    from torch._dynamo.convert_frame import convert_frame
    from torch._dynamo.hooks import Hooks
    from torch._dynamo.utils import CleanupManager

    hooks = Hooks()
    with torch._dynamo.config.patch(enable_compiler_collectives=False), _unseen():  # other ranks trace nothing now
        frame = _frame(function, args, kwargs)
        known = frozenset(frame.f_globals)
        try:
            convert_frame(backend, hooks)(frame, None, hooks, {"_id": _FRAME})  # type: ignore[arg-type]  # a frame by its fields
        finally:
            hooks_of = list(CleanupManager.instance.values.values())  # these run when the code is freed, and raise if the global is gone
            awaited = {hook.name for cleanups in hooks_of for hook in cleanups}
            for name in [name for name in frame.f_globals if name not in known and name.startswith(_BUILTINS) and name not in awaited]:
                del frame.f_globals[name]


def dynamo_settings(settings: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Change settings of `torch._dynamo.config` while the block lasts."""
    return torch._dynamo.config.patch(dict(settings))  # type: ignore[no-any-return]  # torch has no annotation of it


def has_side_effects() -> bool:
    """Tell whether what the running compilation traced leaves Python objects that were there before changed, or hooks a tensor."""
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationExisting

    output = InstructionTranslator.current_tx().output
    effects, code = output.side_effects, output.root_tx.f_code
    own = {f"L[{name!r}]" for name in code.co_varnames[code.co_argcount + code.co_kwonlyargcount :]}  # `*args`, `**kwargs`: of this call
    kinds = AttributeMutationExisting | ValueMutationExisting
    known = (item for item in effects.id_to_variable.values() if isinstance(item.mutation_type, kinds) and effects.is_modified(item))
    left = (item for item in known if not _is_put_back(item, effects.store_attr_mutations.get(item, {})))
    return bool(effects.tensor_hooks) or any(item.source is None or item.source.name not in own for item in left)


def _is_put_back(item: Any, attributes: Mapping[str, Any]) -> bool:
    """Tell whether all that a trace changes of an object are attributes that it sets to what they were, such as a flag."""

    def is_as_before(name: str, value: Any) -> bool:
        before, after = getattr(item.value, name, attributes), value.as_python_constant() if value.is_python_constant() else item
        return type(before) is type(after) and bool(before == after)

    return bool(attributes) and hasattr(item, "value") and all(is_as_before(name, value) for name, value in attributes.items())


def dynamo_setting(name: str) -> Any:
    """Return a setting of `torch._dynamo.config`."""
    return getattr(torch._dynamo.config, name)


def dropped_functions() -> Mapping[types.CodeType, str]:
    """Name the functions of Python that Dynamo is set to leave out, by their code."""
    listed = (inspect.unwrap(getattr(each, "__func__", each)) for each in dynamo_setting("ignore_logging_functions"))
    return {each.__code__: f"{each.__module__}.{each.__qualname__}" for each in listed if isinstance(each, types.FunctionType)}


def _frame(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> types.SimpleNamespace:
    """Make up the frame of a call: `_get_frame` of `torch/_dynamo/convert_frame.py` does the same for an export."""
    owner, plain = getattr(function, "__self__", None), getattr(function, "__func__", function)
    return types.SimpleNamespace(
        f_code=plain.__code__.replace(),
        f_globals=plain.__globals__,
        f_locals=variables_of_call(plain, args if owner is None else (owner, *args), kwargs),
        f_builtins=vars(builtins),
        closure=plain.__closure__ or (),
    )


def variables_of_call(function: types.FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables with which a call of a Python function begins: its arguments, and those of the functions around it.

    Raises TypeError for arguments that do not fit, ValueError for a variable that has no value yet.
    """
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    free = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {**bound.arguments, **{name: cell.cell_contents for name, cell in free}}


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Keep what Dynamo reports and counts of this thread's compilations from everybody but our listener."""
    from torch._dynamo import utils

    counters = {name: dict(counts) for name, counts in utils.counters.items()}
    reasons, thread = len(utils.graph_break_reasons), threading.get_ident()
    loggers = [logger for name, logger in logging.Logger.manager.loggerDict.items() if name.partition(".")[0] == "torch"]
    every = (handler for logger in loggers for handler in getattr(logger, "handlers", ()))  # torch gives several of its loggers one each
    handlers = [handler for handler in every if not writes_no_trace(handler)]
    try:
        with filtered(handlers, lambda record: record.thread != thread), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        del utils.graph_break_reasons[reasons:]
        for name, counts in utils.counters.items():
            counts.clear()
            counts.update(counters.get(name, {}))
