"""Objects that pytrees do not know, such as caches of keys and values: taken apart by their attributes while a call is traced."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_CACHE_LAYER = {"keys": "key", "values": "value"}  # attributes of a layer in the caches of transformers -> their names in a signature
_DEPTH = 6


class _Parts:
    """The context of an object in a tree: the names of its parts, and the object itself, to be copied."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.attributes = [name for name, value in _attributes(owner).items() if _holds_tensors(value, _DEPTH)]
        first = _attributes(owner)[self.attributes[0]] if len(self.attributes) == 1 else None
        self.is_list = isinstance(first, list)  # one that holds nothing but a list is passed off as the list
        names = [_CACHE_LAYER.get(name, name) for name in self.attributes] if {*self.attributes} == {*_CACHE_LAYER} else self.attributes
        self._fields: tuple[Any, ...] = tuple(range(len(first))) if isinstance(first, list) else tuple(names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parts) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Parts:
        return self  # PyTorch copies specs, and the object may hold tensors of a trace

    def taken(self) -> list[Any]:
        values = [_attributes(self.owner)[name] for name in self.attributes]
        return list(values[0]) if self.is_list else values

    def put(self, values: Sequence[Any]) -> Any:
        made = copy.copy(self.owner)
        for name, value in zip(self.attributes, [list(values)] if self.is_list else values, strict=True):
            if isinstance(made, dict):
                made[name] = value
            else:
                object.__setattr__(made, name, value)
        return made


@contextlib.contextmanager
def objects_as_trees() -> Iterator[Callable[[Any], None]]:
    """Yield a function that has pytrees take apart the objects in a structure that hold tensors; undone at the end of the block."""
    from torch.utils import _pytree

    added: list[type] = []

    def note(tree: Any) -> None:
        for leaf in _pytree.tree_leaves(tree):
            if type(leaf) in _pytree.SUPPORTED_NODES or not (_attributes(leaf) and _holds_tensors(leaf, _DEPTH)):
                continue
            added.append(type(leaf))
            _pytree._private_register_pytree_node(
                type(leaf),
                _flattened,
                lambda values, parts: parts.put(list(values)),
                serialized_type_name=f"ortlens.{type(leaf).__module__}.{type(leaf).__qualname__}",
                flatten_with_keys_fn=_flattened_with_keys,
            )
            note(leaf)

    try:
        yield note
    finally:
        for cls in added:
            _pytree._deregister_pytree_node(cls)


def without_objects(program: Any, keys_of: Callable[[Any], Sequence[Any] | None]) -> Any:
    """Return a shallow copy of a program with dicts and lists for the objects among its arguments, and its results in a tuple."""
    from torch.utils import _pytree

    def plain(spec: Any) -> Any:
        if spec.is_leaf():
            return spec
        children = list(map(plain, spec.children()))
        if spec.type in _pytree.BUILTIN_TYPES:
            return _pytree.TreeSpec(spec.type, spec.context, children)
        keys = keys_of(spec)
        return _pytree.TreeSpec(list, None, children) if keys is None else _pytree.TreeSpec(dict, list(keys), children)

    given, returned = program.call_spec
    return with_structures(program, (plain(given), _pytree.tree_structure((0,) * returned.num_leaves)))


def with_structures(program: Any, specs: tuple[Any, Any]) -> Any:
    """Return a shallow copy of a program with other structures of its arguments and results."""
    first, *rest = program.module_call_graph
    signature = dataclasses.replace(first.signature, in_spec=specs[0], out_spec=specs[1])
    made = copy.copy(program)
    made._module_call_graph = [dataclasses.replace(first, signature=signature), *rest]
    return made


def _flattened(owner: Any) -> tuple[list[Any], _Parts]:
    parts = _Parts(owner)
    return parts.taken(), parts


def _flattened_with_keys(owner: Any) -> tuple[list[tuple[Any, Any]], _Parts]:
    from torch.utils import _pytree

    parts = _Parts(owner)
    key_type: Any = _pytree.SequenceKey if parts.is_list else _pytree.MappingKey
    return [(key_type(key), value) for key, value in zip(parts._fields, parts.taken(), strict=True)], parts


def _attributes(value: Any) -> dict[str, Any]:
    """Return what an object is made of; nothing for tensors, modules, classes and functions."""
    import torch

    if isinstance(value, (torch.Tensor, torch.nn.Module, type)) or callable(value):
        return {}
    return dict(value) if isinstance(value, dict) else dict(getattr(value, "__dict__", {}))


def _holds_tensors(value: Any, depth: int) -> bool:
    import torch

    if isinstance(value, torch.Tensor) or not depth:
        return isinstance(value, torch.Tensor)
    parts = value if isinstance(value, (list, tuple)) else _attributes(value).values()
    return any(_holds_tensors(part, depth - 1) for part in parts)
