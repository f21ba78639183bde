"""From a function or module to an exported program, and what its code asks meanwhile, of which a trace has only one of the answers."""

from __future__ import annotations

import contextlib
import gc
import inspect
import operator
import re
import traceback
import types
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.overrides

from ortlens import _torch
from ortlens.backend.basis.provenance import StackFrame, innermost, is_model_code
from ortlens.backend.freeze.arguments import bound_arguments, named_arguments, parameters_of, size_sources
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.export import ExportedProgram


class DroppedWrite(UserWarning):
    """Calls of a target keep values elsewhere than in their results, and those of a program traced from it do not."""


class Untraceable(Exception):  # noqa: N818 - a verdict on the target; its cause says why
    """A target is no single graph, or PyTorch cannot trace it."""


def program_of(  # noqa: PLR0913 - a call, and how it is traced
    target: Callable[..., Any] | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
    *,
    strict: bool = False,
    on_result: Callable[[Any], None] | None = None,
) -> tuple[ExportedProgram, frozenset[str]]:
    """Trace a target once, without gradients; an exported program is returned as it is.

    The program shares parameters and buffers with the target. With it comes what the target's code asked about the layout of tensors.
    `dynamic_shapes` is as for `torch.export.export`, or True for all sizes that PyTorch can leave open, None for fixed sizes, or a
    function of the keys that lead to a leaf of the arguments, and the leaf, that returns what may vary in it. `on_result` gets what the
    target returns, before it is taken apart. Warns of results that the target's code keeps elsewhere, which calls of the program do not.
    """
    if isinstance(target, torch.export.ExportedProgram):
        if args or kwargs or dynamic_shapes is not None:
            raise UsageError("an exported program is frozen as it was traced: leave out arguments and dynamic_shapes")
        return target, frozenset()
    from ortlens.backend.operators.registry import results_known

    if not callable(target):
        raise UsageError(f"freeze() takes a function, a module or an exported program, not {type(target).__name__}")
    module = target if isinstance(target, torch.nn.Module) else _module_of(target)
    args, named = _apart((args, _in_order(module.forward, kwargs)))
    shapes: Any = _all_sizes if dynamic_shapes is True else dynamic_shapes
    questions, known, forward, kept = TracedCode(), results_known(), _torch.keywords_named(module, named), list[str]()

    def at_end(_module: torch.nn.Module, given: Any, made: Any) -> None:
        if on_result is not None:  # it may make classes known, whose objects are results
            on_result(made)
        kept.extend(questions.kept((given, made, dict(module.named_buffers()))))

    try:
        # What torch imports when a trace with `cond` fails for the first time draws random numbers.
        with (
            torch.random.fork_rng(devices=()),
            _torch.unprinted(),
            torch.no_grad(),
            _torch.unchecked_distributions(),
            _torch.regions_ignored(),
            questions,
            known,
            forward,
            module.register_forward_pre_hook(lambda *_: questions.computed.clear()),  # of objects in arguments
            module.register_forward_hook(at_end),
            _same_containers(module),
            _torch.sizes_compared(is_asked_by_model) as compared,
        ):
            if callable(shapes):
                chosen = [shapes(path, leaf) for path, leaf in _torch.named_leaves((args, named))]
                shapes = _torch.shapes_over(bound_arguments(module.forward, args, named), chosen) if any(chosen) else None
            program: ExportedProgram = torch.export.export(module, args, named, dynamic_shapes=shapes, strict=strict)
    except Exception as error:
        raise Untraceable(f"{type(error).__name__}{_place_of(error)}: {_said_by(error)}") from error
    if kept:
        text = f"a call keeps values beyond its results, from {', '.join(kept)}, and a frozen call does not; return those that are needed"
        warnings.warn(text, DroppedWrite, stacklevel=6)
    if compared:
        sources = size_sources(program, [name for name, _ in named_arguments(module.forward, args, named)])
        guards = _torch.unnoted_guards(compared, sources, program.range_constraints)
        program = _torch.with_guards(program, list(dict.fromkeys((*_torch.guard_texts(program), *guards)))) if guards else program
    return program, frozenset(questions.asked)


def _said_by(error: Exception) -> str:
    """Return what a trace raised, in a line, with what would trace instead where PyTorch says so."""
    said = str(error).strip().split("\n")[0]
    if (wanted := _NARROWER.search(str(error))) is not None:  # what a trace found about sizes that were to have any value
        lines = (line.strip() for line in wanted["lines"].splitlines())
        said = f"{said.partition('!')[0]}; it can be traced with {', '.join(lines)}"
    if (unknown := _UNKNOWN_TYPE.match(said)) is not None:
        name = unknown["name"].rpartition(".")[2]
        return (
            f"the target returns an object of the class {name}, which torch.export cannot take apart: register it with "
            f"torch.export.register_dataclass({name}) if it is a dataclass, or return a tuple or a dict"
        )
    return said


@contextlib.contextmanager
def _same_containers(module: torch.nn.Module) -> Iterator[None]:
    """Leave modules their own lists and dicts: torch.export puts equal ones in their place, for which compiled code is compiled again."""
    held = [
        (each.__dict__, name, value) for each in module.modules() for name, value in each.__dict__.items() if type(value) in (list, dict)
    ]
    before = [_items(value) for _, _, value in held]
    try:
        yield
    finally:
        for (attributes, name, value), items in zip(held, before, strict=True):
            if all(_is_same(_items(each), items) for each in (value, attributes.get(name))):
                attributes[name] = value


def _items(container: Any) -> list[Any]:
    return (
        [*container.keys(), *container.values()]
        if isinstance(container, dict)
        else list(container)
        if isinstance(container, list)
        else [None]
    )


def _is_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


_NARROWER = re.compile(r"Suggested fixes:\n(?P<lines>(?:[ \t]+\S.*\n?)+)")  # of torch/fx/experimental/symbolic_shapes.py
_UNKNOWN_TYPE = re.compile(
    r"Found <class '(?P<name>[^']+)'> in output, which is not a known type"
)  # of torch/_functorch/_aot_autograd/utils.py


def _apart(tree: Any) -> Any:
    """Give tensors among examples that share memory memory of their own: tracing takes them for separate ones, and so do calls."""
    storages: set[int] = set()

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or _torch.is_fake(leaf):
            return leaf
        known, address = len(storages), leaf.untyped_storage().data_ptr()
        storages.add(address)
        return leaf.detach().clone() if address and len(storages) == known else leaf

    leaves, spec = _torch.flatten(tree)
    return _torch.unflatten([own(leaf) for leaf in leaves], spec)


def _place_of(error: Exception) -> str:
    """Find the line of the model at which a trace stopped; empty where PyTorch did not run its code."""
    frames = [StackFrame(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    found = innermost([frame for frame in frames if is_model_code(frame) and not frame.file.startswith("<")])
    return "" if found is None else f" at {found.file}:{found.line}"


def _module_of(function: Callable[..., Any]) -> torch.nn.Module:
    """Wrap a function in a module with its signature; that of a method has the weights of the method's module, under their names."""
    made = torch.nn.Module()
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        vars(made).update({name: vars(owner)[name] for name in _OF_WEIGHTS})
    made.forward = function if parameters_of(function) else lambda *args, **kwargs: function(*args, **kwargs)  # noqa: PLW0108 - builtins have no signature
    return made


_OF_WEIGHTS = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules", "training")
"""Attributes of a module that hold its weights, of which the first four are shared with what else holds them."""


def _in_order(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Order named arguments as the function defines them."""
    names = [name for name in parameters_of(function) if name in kwargs]
    return {name: kwargs[name] for name in (*names, *kwargs)}


def _all_sizes(_path: tuple[Any, ...], leaf: Any) -> Any:
    return dict.fromkeys(range(leaf.dim()), torch.export.Dim.AUTO) if isinstance(leaf, torch.Tensor) else None


class TracedCode(torch.overrides.TorchFunctionMode):
    """Notes what the model's own code computes while it is traced, and asks about layouts, of which a trace has only one of the answers."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()
        self.asked: set[str] = set()
        self.computed: list[tuple[weakref.ref[torch.Tensor], str]] = []

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a question and answer it."""
        name = getattr(func, "__name__", "")
        if name in _QUESTIONS and is_asked_by_model():
            self.asked.add(name)
        if func is torch.Tensor.contiguous:  # which leaves no trace where it returns the tensor itself
            return torch.ops.aten.contiguous.default(*args, **(kwargs or {}))
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(each, torch.Tensor) and all(each is not given for given in args):
                self.computed.append((weakref.ref(each), _model_line()))
        return made

    def kept(self, known: Any) -> list[str]:
        """List the lines whose tensors something in Python still holds when the model's code has ended, but for those in `known`."""
        known = {id(leaf) for leaf in _torch.flatten(known)[0]}

        def held() -> list[str]:
            return list(dict.fromkeys(line for made, line in self.computed if id(made()) not in known and _is_held(made())))

        if held():  # else it is not worth a collection, which takes longer than a trace where there is much to look through
            gc.collect()
        return held()


def _is_held(value: object) -> bool:
    """Tell whether a value lives, and not only in PyTorch's memory, as the base of a view does, or in a frame that runs."""
    return value is not None and any(not isinstance(each, types.FrameType) for each in gc.get_referrers(value))


def _model_line() -> str:
    frames = (StackFrame(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_stack(None))
    return next((f"{frame.file}:{frame.line}" for frame in frames if is_model_code(frame)), "")


_QUESTIONS = frozenset({"is_contiguous", "stride", "storage_offset"})


def is_asked_by_model() -> bool:
    """Tell whether model code, not torch's, called what is being traced; other modes may lie in between."""
    frame = inspect.currentframe()
    while frame is not None and (frame.f_code.co_name == "__torch_function__" or frame.f_globals.get("__name__") in _BETWEEN):
        frame = frame.f_back
    return frame is not None and is_model_code(StackFrame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))


_BETWEEN = frozenset({__name__, "torch", "ortlens._torch.exported", "torch._export.non_strict_utils", "torch.overrides"})
