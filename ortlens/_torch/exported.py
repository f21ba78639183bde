"""Programs of `torch.export`: how they are traced, what they say of themselves, and what their arguments are made of.

Objects that pytrees do not know, such as caches of keys and values, are taken apart by their attributes while a call is traced.

PyTorch takes sizes that vary for 2 at least, or for more than 0, and decides comparisons on that without a note: these are noted here.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import dataclasses
import inspect
import operator
import re
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree

from ortlens._process import process_wide, replaced, with_value
from ortlens._torch.exporter import quiet
from ortlens._torch.regions import inline_regions, region_calls
from ortlens._torch.tensors import expression_of, expression_over, is_symbolic, size_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Comparison = tuple[str, Any, Any]


def exported_inputs(program: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return all inputs of an exported program's graph: parameters, buffers, constants, then the user's inputs.

    Raises ValueError for another structure, RuntimeError for sizes outside the constraints.
    """
    inputs: tuple[Any, ...] = program._graph_module_flat_inputs(args, dict(kwargs))
    return inputs


def without_tokens(program: Any) -> Any:
    """Return a decomposed program without effect tokens, so that its assertions are plain nodes; a copy only if it has any."""
    if not any(spec.kind is InputKind.TOKEN for spec in program.graph_signature.input_specs):
        return program
    from torch.export._remove_effect_tokens_pass import _remove_effect_tokens

    return _remove_effect_tokens(program)


def copies_kept() -> contextlib.AbstractContextManager[None]:
    """Keep the copies that make new values of parameters and buffers when a program is decomposed.

    PyTorch puts their sources in their place everywhere, which may have another dtype, lie otherwise in memory, or be another input.
    Source: `_remove_unnecessary_copy_op_pass` in `torch/export/exported_program.py`.
    """
    from torch.export import exported_program

    return replaced(exported_program, "_remove_unnecessary_copy_op_pass", lambda module, signature: (module, signature))


def composite_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of operators that PyTorch implements by others: exported programs hold these, Dynamo's graphs do not."""
    table = torch.export.default_decompositions()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    named: Any = table
    return {op: function for op, function in named.items() if has_kernel(op.name(), "CompositeImplicitAutograd")}


def list_composites(*, for_inductor: bool) -> None:
    """Have torch list the operators that it implements by others, which it does once; Inductor's table has them with their kernels.

    The min-cut partitioner and `aot_compile` import that table. Made while `kept_whole` replaces kernels, both would stay wrong.
    """
    from torch._export import utils

    utils._collect_all_valid_cia_ops_for_aten_namespace()
    if for_inductor:
        import torch._inductor.decomposition  # noqa: F401 - makes the table


def plain_program(program: Any) -> Any:
    """Return the program, or a copy with regions inlined, in which `prims.device_put` that moves nothing is its argument, as in a call."""

    def idle_moves(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
        moves = module.graph.find_nodes(op="call_function", target=torch.ops.prims.device_put.default)
        return [node for node in moves if node.meta["val"].device == node.all_input_nodes[0].meta["val"].device]

    if not idle_moves(program.graph_module) and not region_calls(program.graph_module):
        return program

    made = copy.copy(program)
    module, signature = copy.deepcopy((program.graph_module, program.graph_signature))
    with module._set_replace_hook(signature.get_replace_hook()):
        inline_regions(module)
        for node in idle_moves(module):
            node.replace_all_uses_with(node.all_input_nodes[0])
            module.graph.erase_node(node)
    module.recompile()
    made._graph_module, made._graph_signature = module, signature
    return made


def zero_and_one_open() -> contextlib.AbstractContextManager[None]:
    """Trace sizes that vary as if they could be 0 and 1, as `torch.onnx.export` does: code that treats 1 otherwise leaves a guard."""
    from torch.fx.experimental import _config

    return _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined,no-any-return]  # torch has no annotation of it


def shapes_over(arguments: Mapping[str, Any], leaves: Sequence[Any]) -> Any:
    """Return `dynamic_shapes` for `torch.export.export` from what is to vary in each leaf of the arguments by name, in order."""
    from torch.export.dynamic_shapes import _tree_map_with_path

    rest = iter(leaves)
    return _tree_map_with_path(lambda *_: next(rest), arguments)


@contextlib.contextmanager
def keywords_named(module: torch.nn.Module, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Give a module a parameter for each argument that it takes by `**kwargs`: with dynamic shapes, torch.export counts these twice.

    See `_get_range_constraints` in `torch/export/_trace.py`.
    """
    forward = module.forward
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):  # builtins have no signature
        signature = inspect.Signature()
    kept = [parameter for parameter in signature.parameters.values() if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    if len(kept) == len(signature.parameters):
        yield
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    others = [name for name in kwargs if name not in {parameter.name for parameter in kept}]
    kept += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in others]
    call.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # as `inspect` documents
    with forward_as(module, call):
        yield


@contextlib.contextmanager
def forward_as(module: torch.nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Give a module another `forward` for as long as the block lasts, as users do who compile a model in place."""
    before, module.forward = vars(module).get("forward"), forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def size_names(program: Any) -> dict[str, str]:
    """Map symbols of a program, not decomposed, to the names that the user gave their sizes with `torch.export.Dim`."""
    nodes = program.graph.find_nodes(op="placeholder")
    values = {node.name: node.meta["val"] for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)}
    sizes = {f"L['{name}'].size()[{dim}]": size for name, value in values.items() for dim, size in enumerate(value.shape)}
    symbolic: dict[str, Any] = {source: size.node for source, size in sizes.items() if isinstance(size, torch.SymInt)}
    env = next((node.shape_env for node in symbolic.values()), None)
    given: Mapping[str, Any] = getattr(env, "source_name_to_debug_name", {})
    found = {source.name: symbol for symbol, sources in getattr(env, "var_to_sources", {}).items() for source in sources}
    found |= {source: symbol for source, node in symbolic.items() for symbol in node.expr.free_symbols if len(node.expr.free_symbols) == 1}
    names = ((str(symbol), _NAME.findall(str(given.get(str(source)) or ""))) for source, symbol in found.items())
    return {symbol: known[0] for symbol, known in names if len(known) == 1}


_NAME = re.compile(r"[A-Za-z_]\w*")  # `batch` in `2*batch`, the name of a size that is derived from another


def replaced_buffers(program: Any) -> frozenset[str]:
    """Find the placeholders of buffers that the traced code replaced, in a program not decomposed, which writes them at its end.

    It also writes those to which the code assigned what it had written in place, as `self.n += 1` does: these are the same tensors.
    """
    writes = [node for node in program.graph.nodes if node.name.startswith("copy__default")]  # a copy by the user's code is `copy_`
    return frozenset(node.args[0].name for node in writes if _written_in_place(node.args[1]) is not node.args[0])


def _written_in_place(value: Any) -> Any:
    """Return the node of the tensor that operators in place return."""
    while (schema := getattr(getattr(value, "target", None), "_schema", None)) is not None and schema.returns:
        returned, taken = schema.returns[0].alias_info, schema.arguments[0].alias_info
        if returned is None or taken is None or not returned.is_write or returned.before_set != taken.before_set:
            break
        value = value.args[0]
    return value


def with_guards(program: Any, texts: Sequence[str]) -> Any:
    """Return a shallow copy of a program with other guards, in the form of `guard_texts`."""
    made = copy.copy(program)
    made._guards_code = list(texts)
    return made


def guard_texts(program: Any) -> tuple[str, ...]:
    """Return what tracing found about input sizes, as Python over `L['name'].size()[0]`."""
    return tuple(program._guards_code)


def exported_guards(program: Any) -> Callable[..., Any] | None:
    """Return the function that checks a program's flat user inputs, and raises if a guard fails; None if there are no guards."""
    with quiet():
        return getattr(program.module(), "_guards_fn", None)


@process_wide
@contextlib.contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Create distributions without a check of their parameters, unless they are made with `validate_args=True`.

    Dynamo switches the check off for the rest of the process, when the first compiled function is called (`TorchPatcher.patch` in
    `torch/_dynamo/eval_frame.py`), and `torch.export` without Dynamo does not. Afterwards it is as it was, for other threads too, unless
    Dynamo switched it off in the meantime, which it does only once.
    """
    from torch._dynamo.eval_frame import TorchPatcher
    from torch.distributions import Distribution

    checked, before = Distribution._validate_args, TorchPatcher.patch.cache_info().currsize
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        if TorchPatcher.patch.cache_info().currsize == before:
            Distribution.set_default_validate_args(checked)


_OPERATORS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_METHODS = {"__eq__": "==", "__ne__": "!=", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">=", "__bool__": "!="}
_CHOICES = ("__sym_max__", "__sym_min__")  # of `max(size, 1)`, which is the size where that is 1 at least

_NOTES: contextvars.ContextVar[Callable[[Comparison], None] | None] = contextvars.ContextVar("notes of comparisons", default=None)


@contextlib.contextmanager
def sizes_compared(is_asked: Callable[[], bool]) -> Iterator[list[Comparison]]:
    """Collect the comparisons of sizes that vary, as `(">", size, 8)`, at which `is_asked` is true; for other threads nothing changes."""
    found: list[Comparison] = []
    with with_value(_NOTES, lambda comparison: found.append(comparison) if is_asked() else None), _methods_noted():
        yield found


@process_wide
@contextlib.contextmanager
def _methods_noted() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for method in (*_METHODS, *_CHOICES):
            original = getattr(torch.SymInt, method)
            noted = _noted(original, _METHODS[method]) if method in _METHODS else _noted_choice(original)
            stack.enter_context(replaced(torch.SymInt, method, noted))
        yield


def _noted(original: Callable[..., Any], symbol: str) -> Callable[..., Any]:
    def compared(size: Any, *other: Any) -> Any:
        if (note := _NOTES.get()) is not None:
            note((symbol, size, *(other or (0,))))  # a truth value is whether it is not 0
        return original(size, *other)

    return compared


def _noted_choice(original: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(size: Any, other: Any) -> Any:
        made = original(size, other)
        if (note := _NOTES.get()) is not None and expression_of(made) in (expression_of(size), expression_of(other)):
            note((">=", size, other))
        return made

    return chosen


def unnoted_guards(comparisons: Sequence[Comparison], sources: Mapping[Any, str], ranges: Mapping[Any, Any]) -> list[str]:
    """Write as guards what comparisons gave in a trace, if they give something else where a size is 0 or 1 and `ranges` allows that.

    `sources` is as for `expression_over`; `ranges` has the range of each symbol.
    """
    guards: list[str] = []
    for symbol, *sides in comparisons:
        texts = [expression_over(side, sources) for side in sides]
        if None in texts or not all(isinstance(side, (int, torch.SymInt)) for side in sides):
            continue
        held = _OPERATORS[symbol](*map(size_hint, sides))
        symbols = {name for side in sides if is_symbolic(side) for name in side.node.expr.free_symbols}
        others = [(name, small) for name in symbols for small in (0, 1) if name in ranges and small in ranges[name]]
        if any(_holds(symbol, sides, *other) == (not held) for other in others):
            guards.append(f" {symbol if held else _OPPOSITES[symbol]} ".join(map(str, texts)))
    return list(dict.fromkeys(guards))


def _holds(symbol: str, sides: Sequence[Any], name: Any, value: int) -> bool | None:
    """Make a comparison with another value of a symbol; None where its sides have none then, as of a division by 0."""
    try:
        return bool(_OPERATORS[symbol](*(_with(side, name, value) for side in sides)))
    except (ArithmeticError, TypeError, ValueError):
        return None


def _with(side: Any, name: Any, value: int) -> int:
    if isinstance(side, int):
        return side
    expression, hints = side.node.expr, side.node.shape_env.backed_var_to_val
    values = {symbol: hints.get(symbol, 1) for symbol in expression.free_symbols}
    return int(expression.subs(values | {name: value}))


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
    added: list[type] = []

    def note(tree: Any) -> None:
        for leaf in _pytree.tree_leaves(tree):
            if type(leaf) in _pytree.SUPPORTED_NODES or not (_attributes(leaf) and _holds_tensors(leaf, _DEPTH)):
                continue
            added.append(type(leaf))
            _pytree._private_register_pytree_node(
                type(leaf),
                lambda owner: ((parts := _Parts(owner)).taken(), parts),
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


def _flattened_with_keys(owner: Any) -> tuple[list[tuple[Any, Any]], _Parts]:
    parts = _Parts(owner)
    key_type: Any = _pytree.SequenceKey if parts.is_list else _pytree.MappingKey
    return [(key_type(key), value) for key, value in zip(parts._fields, parts.taken(), strict=True)], parts


def _attributes(value: Any) -> dict[str, Any]:
    """Return what an object is made of; nothing for tensors, modules, classes and functions."""
    if isinstance(value, (torch.Tensor, torch.nn.Module, type)) or callable(value):
        return {}
    return dict(value) if isinstance(value, dict) else dict(getattr(value, "__dict__", {}))


def _holds_tensors(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor) or not depth:
        return isinstance(value, torch.Tensor)
    parts = value if isinstance(value, (list, tuple)) else _attributes(value).values()
    return any(_holds_tensors(part, depth - 1) for part in parts)
