"""Writes the source of a frozen call: takes the arguments apart and checks them, runs, and builds the result.

The arguments' structure, dtypes and sizes are constants in the source. Whatever is not exactly as traced goes to `slow`, which
accepts what means the same, or says what differs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.deploy.signature import ConstantLeaf, NumberLeaf, Size, TensorLeaf
from ortlens.backend.freeze.arguments import PLAIN
from ortlens.backend.runtime.generated import Emitter, listed, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.backend.deploy.signature import Leaf
    from ortlens.backend.runtime.generated import Lines

_SLOW = "return slow(args, kwargs)"


class EntryWriter(Emitter):
    """Writes one function. All names in it are made here; the user's texts are constants only."""

    def __init__(self, in_spec: Any, leaves: Sequence[Leaf], names: Sequence[str]) -> None:
        """Prepare to write, with a local name for each leaf of the `(args, kwargs)` that `in_spec` describes."""
        self._spec = in_spec
        self._leaves = leaves
        self._names = names
        self.slow_if: list[str] = []  # further conditions under which a call is not as traced
        self.refuses_signs = True  # whether a negative or conjugate view is not as traced
        self.asks_interpreter = True  # whether a call is not as traced where PyTorch's kernels do not compute operators
        self._next = iter(names)
        super().__init__(  # the globals of the function, but for `slow` and `admits`
            tensors=PLAIN,
            strided=torch.strided,
            flatten=_torch.flatten,
            unflatten=_torch.unflatten,
            no_grad=torch.no_grad,
            copysign=math.copysign,
            **_torch.interpreter_scope(),
        )

    def source(self, body: Lines, result: str) -> str:
        """Write the function `call`, with the lines of `body` between the checks and the return."""
        first = [f"if {_torch.IS_INTERPRETED}: {_SLOW}"] if self.asks_interpreter else []
        lines = [*first, *self._arguments(), *self._checks(), *body, f"return {result}"]
        return source_of("call(self, /, *args, **kwargs)", lines)

    def result(self, out_spec: Any, texts: Sequence[str]) -> str:
        """Write an expression for the result, from the source of each leaf."""
        return self._built(out_spec, iter(texts))

    def _arguments(self) -> Lines:
        args, kwargs = self._spec.children()
        count = f"len(args) != {args.num_children}" if args.num_children else "args"
        named = f"len(kwargs) != {kwargs.num_children}" if kwargs.num_children else "kwargs"
        return [f"if {count} or {named}: {_SLOW}", *self._items("args", args), *self._entries("kwargs", kwargs)]

    def _items(self, source: str, spec: Any) -> Lines:
        targets, further = self._targets(spec)
        return [f"{listed(targets)}= {source}", *further] if targets else []

    def _entries(self, source: str, spec: Any) -> Lines:
        targets, further = self._targets(spec)
        lines = [f"{name} = {source}[{self._key(key)}]" for name, key in zip(targets, spec.context or (), strict=True)]
        return ["try:", lines, f"except KeyError: {_SLOW}", *further] if lines else []

    def _key(self, key: object) -> str:
        return repr(key) if type(key) in (str, int) else self.constant(key, "key")

    def _targets(self, spec: Any) -> tuple[list[str], Lines]:
        """Make a local name for each child, and the lines that take it apart further."""
        targets: list[str] = []
        lines: list[Any] = []
        for child in spec.children():
            if child.is_leaf():
                targets.append(next(self._next))
                continue
            targets.append(f"tree_{len(self.scope)}")
            self.scope[targets[-1]] = None  # keeps the name for this one
            lines += self._opened(targets[-1], child)
        return targets, lines

    def _opened(self, name: str, spec: Any) -> Lines:
        if spec.type in (tuple, list):
            return [f"if type({name}) is not {spec.type.__name__} or len({name}) != {spec.num_children}: {_SLOW}", *self._items(name, spec)]
        if spec.type is dict:
            return [f"if type({name}) is not dict or len({name}) != {spec.num_children}: {_SLOW}", *self._entries(name, spec)]
        leaves = [next(self._next) for _ in range(spec.num_leaves)]
        known = self.constant(spec, "spec")
        opened = [f"{listed(leaves)}= {name}"] if leaves else []
        return [f"{name}, structure = flatten({name})", f"if structure != {known}: {_SLOW}", *opened]

    def _checks(self) -> list[str]:
        lines, varying = [], []
        for name, leaf in zip(self._names, self._leaves, strict=True):
            if isinstance(leaf, TensorLeaf):
                lines += [f"try: differs = {' or '.join(self._against(name, leaf))}", "except RuntimeError: differs = True"]
                lines.append(f"if differs: {_SLOW}")  # the shape of a nested tensor raises
                varying += [f"{name}.shape"] if any(isinstance(size, Size) for size in leaf.sizes) else []
            elif isinstance(leaf, NumberLeaf):
                lines.append(f"if type({name}) is not int: {_SLOW}")
                varying.append(name)
            else:
                lines.append(f"if {self._not_constant(name, leaf)}: {_SLOW}")
        if varying:
            self.scope["known"] = set()
            together = varying[0] if len(varying) == 1 else f"({', '.join(varying)})"
            lines += [f"try: sizes = {together}", "except RuntimeError: sizes = None"]
            lines += [f"if sizes not in known and not admits(known, sizes, ({listed(self._names)})): {_SLOW}"]
        return [*lines, *(f"if {condition}: {_SLOW}" for condition in self.slow_if)]

    def _against(self, name: str, leaf: TensorLeaf) -> Iterator[str]:
        """List the conditions under which a tensor is not exactly as traced."""
        yield f"type({name}) not in tensors"
        yield f"{name}.dtype is not {self.constant(getattr(torch, leaf.dtype), 'dtype')}"
        if all(isinstance(size, int) for size in leaf.sizes):
            yield f"{name}.shape != {leaf.sizes!r}"
        else:
            yield f"{name}.dim() != {len(leaf.sizes)}"
        yield f"not {name}.is_cpu" if leaf.device == "cpu" else f"{name}.device.type != {leaf.device!r}"
        yield f"{name}.layout is not strided"
        if self.refuses_signs:
            yield f"{name}.is_neg()" + (f" or {name}.is_conj()" if "complex" in leaf.dtype else "")

    def _not_constant(self, name: str, leaf: ConstantLeaf) -> str:
        value = leaf.value
        if value is None or isinstance(value, bool):
            return f"{name} is not {value!r}"
        if value != value:  # noqa: PLR0124 - a NaN, of which only itself is certain to be the same
            return f"{name} is not {self.constant(value, 'value')}"
        if value == 0 and type(value) is float:
            return f"type({name}) is not float or {name} != 0.0 or copysign(1.0, {name}) != {math.copysign(1.0, value)}"
        if type(value) in (int, float, str):
            return f"type({name}) is not {type(value).__name__} or {name} != {self.constant(value, 'value')}"
        return f"{name} is not {self.constant(value, 'value')}"

    def _built(self, spec: Any, texts: Iterator[str]) -> str:
        if spec.is_leaf():
            return next(texts)
        items = [self._built(child, texts) for child in spec.children()]
        if spec.type is tuple:
            return f"({listed(items)})"
        if spec.type is list:
            return f"[{', '.join(items)}]"
        if spec.type is dict:
            return "{" + ", ".join(f"{self._key(key)}: {item}" for key, item in zip(spec.context, items, strict=True)) + "}"
        return f"unflatten([{', '.join(items)}], {self.constant(_torch.shallow_spec(spec), 'made')})"
