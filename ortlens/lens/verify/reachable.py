"""Finds what a function can read or write: tensors and containers reachable from it, from its arguments, or from its results."""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import random
import sys
import types
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ortlens import _torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Named: TypeAlias = tuple[str, Any]

_MAX_OBJECTS = 50_000  # objects looked at, nearest first: a data set with a million entries is no state of a model
_MAX_ARRAY_BYTES = 64 << 20  # an array of NumPy beyond this is rather a data set

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_OPAQUE = frozenset(sys.stdlib_module_names) | {"torch", "ortlens", "onnxruntime", "onnx", "onnxscript", "numpy", "pandas", "IPython"}
_OPEN = (torch.nn.Module, torch.optim.Optimizer, types.SimpleNamespace)
_OWN_OF_MODULES = frozenset(vars(torch.nn.Module()))


class Reachable:
    """What is reachable from some roots."""

    def __init__(self, roots: Iterable[Named], *, with_plain: bool = False) -> None:
        """Look around from named objects; `with_plain` collects numbers, strings and None as well."""
        # every tensor with data of its own, by the first name it was found under; gradients among them
        self.tensors: dict[str, torch.Tensor] = {}
        # numbers, strings and None, likewise; only if they were asked for, and then tensors are listed under all their names
        self.plain: dict[str, Any] = {}
        self.generators: list[Any] = []  # random generators of torch, Python and NumPy
        # dictionaries, lists, sets, cells, NumPy's arrays and the like that hold any of these, and may be changed
        self.containers: list[Any] = []
        self.globals: list[tuple[dict[str, Any], str]] = []  # functions' namespaces, with the global names that each function uses
        self._with_plain = with_plain
        self._seen: dict[int, object] = {}  # holds on to what was seen, so that no id is used twice
        waiting = collections.deque(roots)
        while waiting and len(self._seen) < _MAX_OBJECTS:
            waiting.extend(self._look(*waiting.popleft()))

    def _look(self, name: str, value: Any) -> Iterator[Named]:
        if isinstance(value, _PLAIN):
            if self._with_plain:
                self.plain[name] = value
            return
        if id(value) in self._seen:
            if self._with_plain and isinstance(value, torch.Tensor):  # a result that is returned twice is two results
                self.tensors[name] = value
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            yield from self._tensor(name, value)
        elif isinstance(value, (torch.Generator, random.Random)) or _is_of_numpy(value, "Generator", "RandomState"):
            self.generators.append(value)
        elif _is_of_numpy(value, "ndarray"):
            self.containers.append(value)
        else:
            yield from self._parts(name, value)

    def _tensor(self, name: str, value: torch.Tensor) -> Iterator[Named]:
        if _torch.is_fake(value) or value.layout is not torch.strided or value.device.type == "meta":
            return
        while name in self.tensors:
            name += "'"
        self.tensors[name] = value
        if value.is_leaf and value.grad is not None:
            yield f"grad of {name}", value.grad

    def _parts(self, name: str, value: Any) -> Iterator[Named]:
        if isinstance(value, torch.nn.Module):
            yield from self._module(name, value)
        elif isinstance(value, torch.optim.Optimizer):
            self.containers += [value.state, value.param_groups]
            yield from ((f"{name}.state", value.state), (f"{name}.param_groups", value.param_groups))
        elif isinstance(value, dict):
            self.containers.append(value)
            for place, (key, item) in enumerate(list(value.items())):
                yield f"{name}[{key!r}]" if isinstance(key, (str, int)) else f"{name}[#{place}]", item
        elif isinstance(value, (list, tuple, collections.deque)):
            self.containers += [] if isinstance(value, tuple) else [value]
            fields = getattr(value, "_fields", None)
            yield from ((f"{name}.{fields[n]}" if fields else f"{name}[{n}]", item) for n, item in enumerate(list(value)))
        elif isinstance(value, set):
            self.containers.append(value)
        elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            yield from self._function(name, value)
        elif not _is_opaque(value):
            yield from self._attributes(name, value)

    def _module(self, name: str, module: torch.nn.Module) -> Iterator[Named]:
        own = vars(module)
        tables = (module._parameters, module._buffers, module._modules)  # noqa: SLF001 - what `register_buffer` changes
        self.containers += [own, *tables]
        for table in tables:
            yield from ((_joined(name, key), item) for key, item in list(table.items()))
        yield from ((_joined(name, key), item) for key, item in list(own.items()) if key not in _OWN_OF_MODULES)
        yield name, type(module).forward  # for the global variables that it uses

    def _function(self, name: str, function: Any) -> Iterator[Named]:
        if isinstance(function, functools.partial):
            yield from ((name, function.func), (f"{name}.args", function.args), (f"{name}.keywords", function.keywords))
        elif isinstance(function, types.MethodType):
            yield from ((name, function.__self__), (name, function.__func__))
        elif hasattr(function, "__wrapped__"):  # torch wraps modules that it does not trace into
            yield name, function.__wrapped__
            yield from self._names_of(function)
        elif (function.__module__ or "").partition(".")[0] not in _OPAQUE:
            yield from self._names_of(function)

    def _names_of(self, function: types.FunctionType) -> Iterator[Named]:
        for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.containers.append(cell)
            if _content(cell) is not cell:
                yield free, _content(cell)
        for used in _global_names(function.__code__):
            if used in function.__globals__ and not isinstance(function.__globals__[used], (types.ModuleType, type)):
                self.globals.append((function.__globals__, used))
                yield used, function.__globals__[used]
        yield f"{function.__name__}.defaults", (function.__defaults__, function.__kwdefaults__)

    def _attributes(self, name: str, value: Any) -> Iterator[Named]:
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            self.containers.append(own)
            everything = dataclasses.is_dataclass(value)
            kept = [(key, item) for key, item in own.items() if isinstance(key, str) and (everything or not isinstance(item, _PLAIN))]
            yield from ((_joined(name, key), item) for key, item in kept)
        for slot in (slot for kind in type(value).__mro__ for slot in _slots(kind)):
            if isinstance(inspect.getattr_static(value, slot, None), types.MemberDescriptorType) and hasattr(value, slot):
                yield _joined(name, slot), getattr(value, slot)


def argument_roots(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Named]:
    """Name the arguments of a call like the function's parameters; `args[0]` without a signature."""
    names = _parameter_names(target)
    placed = [(names[place] if place < len(names) else f"args[{place}]", value) for place, value in enumerate(args)]
    return [*placed, *kwargs.items()]


def _parameter_names(target: Any) -> list[str]:
    target = inspect.unwrap(target) if callable(target) else target
    function = getattr(target, "forward", target) if isinstance(target, torch.nn.Module) else target
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module) and getattr(function, "__name__", "") in ("_call_impl", "_wrapped_call_impl", "__call__"):
        function = owner.forward
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    ordered = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in ordered]


def _joined(name: str, part: str) -> str:
    return part if not name or name == "_orig_mod" else name if part == "_orig_mod" else f"{name}.{part}"


def _is_opaque(value: Any) -> bool:
    """Tell whether an object's inside is no state of a model, as for those of libraries, classes and modules."""
    is_open = isinstance(value, _OPEN) or (type(value).__module__ or "").partition(".")[0] not in _OPAQUE
    return isinstance(value, (type, types.ModuleType)) or not is_open


def _is_of_numpy(value: Any, *names: str) -> bool:
    return type(value).__name__ in names and type(value).__module__.partition(".")[0] == "numpy"


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slot for slot in slots if isinstance(slot, str))


def _content(cell: Any) -> Any:
    """Return what a cell holds; the cell itself while it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


@functools.lru_cache(maxsize=1024)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    nested = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return tuple(dict.fromkeys([*code.co_names, *(name for inner in nested for name in _global_names(inner))]))


def restorer_of(container: Any) -> Callable[[], bool | None] | None:
    """Note what a container holds, and return a function that puts it back and may tell whether that changed it.

    None for a type that may do more than hold.
    """
    if type(container) in (dict, collections.OrderedDict, collections.defaultdict, collections.Counter, list, collections.deque, set):
        return functools.partial(_put_back, container, container.copy(), _inside(container))
    if _is_of_numpy(container, "ndarray") and container.flags.writeable and container.nbytes <= _MAX_ARRAY_BYTES:
        return functools.partial(container.__setitem__, ..., container.copy())
    if isinstance(container, types.CellType) and _content(container) is not container:
        return functools.partial(setattr, container, "cell_contents", _content(container))
    return None


def _inside(container: Any) -> list[int] | set[int]:
    """Return the identities of what is in a container, with those of the keys of a dictionary; their order counts, but in a set."""
    if isinstance(container, dict):
        return [id(part) for item in container.items() for part in item]
    return set(map(id, container)) if isinstance(container, set) else list(map(id, container))


def _put_back(container: Any, before: Any, inside: list[int] | set[int]) -> bool:
    if _inside(container) == inside:
        return False
    is_changed = not _is_same(container, before)
    container.clear()
    (container.update if isinstance(container, (dict, set)) else container.extend)(before)
    return is_changed


def _is_same(container: Any, before: Any) -> bool:
    """Tell whether a container holds the same objects in the same structure; an export leaves copies of containers."""
    if isinstance(container, set):
        return bool(container == before)
    (leaves, spec), (old_leaves, old_spec) = map(_torch.flatten, (container, before))
    return spec == old_spec and all(leaf is old for leaf, old in zip(leaves, old_leaves, strict=True))
