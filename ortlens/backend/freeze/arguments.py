"""The arguments of a frozen callable, where they are not exactly as traced: what means the same is rearranged, else the call is refused."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, SymIntArgument

from ortlens import _torch
from ortlens.backend.deploy.signature import ConstantLeaf, Given, NumberLeaf, Signature, Size, TensorLeaf, is_same_constant, value_text
from ortlens.backend.lowering.exported import paths_of, state_value
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch.export import ExportedProgram

    from ortlens.backend.deploy.signature import Leaf


def parameters_source(target: Callable[..., Any] | ExportedProgram) -> Callable[..., Any] | None:
    """Return the function whose signature a target has; None for an exported program."""
    if isinstance(target, torch.export.ExportedProgram):
        return None
    return target.forward if isinstance(target, torch.nn.Module) else target


def needed_arguments(target: Callable[..., Any] | ExportedProgram) -> list[str]:
    """List the arguments that a target needs in a call; `...` for what has no signature."""
    source, open_ended = parameters_source(target), (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        parameters = () if source is None else inspect.signature(source).parameters.values()
    except (TypeError, ValueError):
        return ["..."]
    return [each.name for each in parameters if each.default is each.empty and each.kind not in open_ended]


PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""The types that are passed on as they are."""

_MOST_SIZES = 4096  # combinations of sizes that are remembered as accepted; then all are forgotten


class Arguments:
    """The arguments that a program was traced with."""

    def __init__(self, program: ExportedProgram, traced: Callable[..., Any] | None) -> None:
        """Read the arguments from a program, decomposed or not; the parameters of `traced`, if it is known, name them."""
        self.spec: Any = program.call_spec.in_spec  # the pytree spec of `(args, kwargs)`
        self._guards = _torch.exported_guards(program)
        self.guard_texts = _torch.guard_texts(program)  # what tracing found about sizes, as Python expressions over `L['name'].size()[0]`
        self.traced = traced
        self._parameters = parameters_of(traced)
        self.signature = Signature(self._leaves(program), limits_of(program.range_constraints))  # the leaves

    def plain_signature(self) -> inspect.Signature | None:
        """Return the parameters without annotations, which may be of any kind; None where they have no names."""
        plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in self._parameters.values()]
        return inspect.Signature(plain) if plain else None

    def positional(self) -> tuple[str, ...]:
        """Return the names of the positional arguments, as far as they have names."""
        count = self.spec.children()[0].num_children
        names = [name for name, parameter in self._parameters.items() if parameter.kind is not _STAR]
        return tuple(names[:count]) if len(names) >= count else ()

    def admits(self, known: set[Any], sizes: Any, values: Sequence[Any]) -> bool:
        """Tell whether the program accepts sizes that were not passed before; accepted ones are added to `known`."""
        if self._differences(values, _given_of):
            return False
        if len(known) >= _MOST_SIZES:
            known.clear()
        known.add(sizes)
        return True

    def arranged(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, any_class: bool = False) -> list[Any]:
        """Order arguments as in tracing and return the leaves that calls take; raise `UsageError` that names what differs.

        With `any_class`, tensors may be of any class, such as fake ones.
        """
        args, kwargs = self._as_traced(args, kwargs)
        try:
            values = [_plain(leaf) for leaf in _torch.flatten_as(self.spec, (args, kwargs))]
        except ValueError as error:
            given = _shape_of(_torch.flatten((args, kwargs))[1])
            raise UsageError(f"another structure than in tracing: expected {_shape_of(self.spec)}, given {given}") from error
        if found := self._differences(values, _shape_given if any_class else _given_of):
            raise UsageError("; ".join(found))
        leaves = zip(self.signature.leaves, values, strict=True)
        return [leaf.value if isinstance(leaf, ConstantLeaf) else value for leaf, value in leaves]

    def _differences(self, values: Sequence[Any], given_of: Callable[[Any], Given | str | None]) -> list[str]:
        found = self.signature.differences(values, given_of)
        if not found and self._guards is not None:
            try:
                self._guards(*values)
            except (AssertionError, RuntimeError, ArithmeticError, ValueError, TypeError) as error:
                found.append(str(error).strip())
            except AttributeError:  # the checks read the sizes of what an argument is a view of
                found.append("expected a view of another tensor, as in tracing, given a tensor with memory of its own")
        return found

    def _as_traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positional, named = self.spec.children()
        names = list(named.context or ())
        if len(args) == positional.num_children and set(kwargs) == set(names):
            return args, {name: kwargs[name] for name in names}
        parameters = self._parameters
        first = list(parameters)[: positional.num_children]
        if len(first) < positional.num_children or any(parameters[name].kind in (_STAR, _STARS) for name in first):
            raise UsageError(f"expected {positional.num_children} positional arguments and {', '.join(names) or 'none'} by name")
        try:
            values = bound_arguments(self.traced, args, kwargs, defaults=True)
        except TypeError as error:
            raise UsageError(f"the arguments differ from those of tracing: {error}") from error
        made = tuple(values.pop(name) for name in first), {name: values.pop(name, None) for name in names}
        for name, value in values.items():
            default = () if parameters[name].kind is _STAR else parameters[name].default
            if not is_same_constant(default, value):
                left_out = "not passed" if default is inspect.Parameter.empty or default == () else f"left out, for {default!r},"
                raise UsageError(f"{name}: {left_out} in tracing, given {value_text(value)}")
        return made

    def _leaves(self, program: ExportedProgram) -> tuple[Leaf, ...]:
        names = [_leaf_name(self._parameters, path) for path in paths_of(self.spec)]
        return tuple(_leaf_of(name, argument, meta) for name, (argument, meta) in zip(names, _user_inputs(program), strict=True))


def size_sources(program: ExportedProgram, leaves: Sequence[str]) -> dict[Any, str]:
    """Map the terms of sizes and numbers that vary to the expressions by which guards read them, with the names of its arguments."""
    return sources_in((name, meta) for name, (_, meta) in zip(leaves, _user_inputs(program), strict=True))


def _user_inputs(program: ExportedProgram) -> list[tuple[Any, Any]]:
    metas = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    specs = program.graph_signature.input_specs
    return [(spec.arg, metas.get(spec.arg.name)) for spec in specs if spec.kind is InputKind.USER_INPUT]


def sources_in(arguments: Iterable[tuple[str, Any]]) -> dict[Any, str]:
    """Map terms to expressions, as `size_sources`, for arguments by name."""
    pairs: list[tuple[str, Any]] = []
    for name, meta in arguments:
        root, bracket, keys = name.partition("[")
        place = f"L[{root!r}]{bracket}{keys}"
        is_tensor = isinstance(meta, torch.Tensor)
        pairs += [(f"{place}.size()[{dim}]", size) for dim, size in enumerate(meta.shape)] if is_tensor else [(place, meta)]
    return _torch.term_sources(pairs)


_SQUEEZES = (torch.ops.aten.squeeze.default, torch.ops.aten.squeeze.dim, torch.ops.aten.squeeze.dims)


def squeezed_sizes(program: ExportedProgram, sources: Mapping[Any, str], *, of_all: bool = True) -> list[str]:
    """Write, as guards, that sizes which a program squeezes are not 1: tracing takes that for granted, and notes nothing.

    Those of a squeeze of all dimensions, which sessions make by the sizes of the call, are left out unless `of_all`.
    """
    found: list[str] = []
    for node in program.graph.nodes:
        if node.target in _SQUEEZES and (of_all or len(node.args) > 1):
            shape = node.args[0].meta["val"].shape
            chosen = node.args[1] if len(node.args) > 1 else range(len(shape))
            sizes = [shape[dim] for dim in ([chosen] if isinstance(chosen, int) else chosen)] if len(shape) else []
            texts = (_torch.expression_over(size, sources) for size in sizes if _torch.is_symbolic(size))
            found += [f"{text} != 1" for text in texts if text is not None]
    return list(dict.fromkeys(found))


_STAR, _STARS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


def named_arguments(traced: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Pair the leaves of arguments with the names that messages use, as `("parts['pair'][0]", tensor)`."""
    parameters = parameters_of(traced)
    return [(_leaf_name(parameters, path), leaf) for path, leaf in _torch.named_leaves((args, dict(kwargs)))]


def bound_arguments(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, defaults: bool = False) -> dict[str, Any]:
    """Map parameters to what a call passes, and what `**kwargs` takes by its own names; raises TypeError for arguments that do not fit."""
    parameters = parameters_of(function)
    bound = inspect.Signature(list(parameters.values())).bind(*args, **kwargs)
    if defaults:
        bound.apply_defaults()
    named: dict[str, Any] = bound.arguments.pop(next((name for name, each in parameters.items() if each.kind is _STARS), ""), {})
    return {**bound.arguments, **named}


def _leaf_name(parameters: Mapping[str, inspect.Parameter], path: tuple[Any, ...]) -> str:
    group, first, *rest = path
    star = next((place for place, each in enumerate(parameters.values()) if each.kind is _STAR), len(parameters))
    if group == 1:
        base = str(first)
    elif first < star:
        base = list(parameters)[first]
    else:
        base = f"{list(parameters)[star]}[{first - star}]" if star < len(parameters) else f"args[{first}]"
    return base + "".join(f"[{key!r}]" for key in rest)


def parameter_names(target: Any) -> tuple[str, ...]:
    """List the parameters of a function or module; none if they are not known."""
    return tuple(parameters_of(parameters_source(target))) if callable(target) else ()


def parameters_of(function: Callable[..., Any] | None) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function; none if they are not known."""
    try:
        return {} if function is None else inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins have no signature
        return {}


def _leaf_of(name: str, argument: Any, meta: Any) -> Leaf:
    if isinstance(argument, ConstantArgument):
        return ConstantLeaf(name, argument.value)
    if isinstance(argument, SymIntArgument):
        size = _size_of(meta)
        return ConstantLeaf(name, size) if isinstance(size, int) else NumberLeaf(name, size)
    if (form := form_text(meta)) is not None:  # of an exported program, which may come without examples
        raise UsageError(f"{name}: a frozen callable takes dense tensors, not {form}")
    if not isinstance(meta, torch.Tensor):
        raise UsageError(f"{name}: a frozen callable takes tensors, whole numbers that vary, and constants, not {type(meta).__name__}")
    return tensor_leaf(name, meta)


def tensor_leaf(name: str, meta: torch.Tensor) -> TensorLeaf:
    """Describe a tensor among the arguments."""
    return TensorLeaf(name, str(meta.dtype).removeprefix("torch."), tuple(map(_size_of, meta.shape)), meta.device.type)


def _size_of(value: Any) -> int | Size:
    if str(value).isdecimal():
        return int(value)
    scaled = _torch.scaled_term(value)
    term, offset, factor = scaled or (value, 0, 1)
    return Size(str(term), factor, offset)


def limits_of(ranges: Mapping[Any, Any]) -> dict[str, tuple[int | None, int | None]]:
    """Return the least and the largest value of each symbol, None for no limit."""
    return {str(symbol): (_bound(limits.lower), _bound(limits.upper)) for symbol, limits in ranges.items()}


def _bound(value: Any) -> int | None:
    """Return a limit as a number; None for an infinite one, which is an object of its own kind."""
    return int(value) if isinstance(value, int) or getattr(value, "is_Integer", False) else None


def _given_of(value: Any) -> Given | str | None:
    if (form := form_text(value)) is not None:
        return form
    return None if type(value) not in PLAIN else _shape_given(value)


def _shape_given(value: Any) -> Given | None:
    if not isinstance(value, torch.Tensor):
        return None
    return Given(str(value.dtype).removeprefix("torch."), tuple(value.shape), value.device.type)


def _plain(value: Any) -> Any:
    """Return a tensor without a subclass; anything else as it is."""
    if not isinstance(value, torch.Tensor) or form_text(value) is not None or _torch.is_fake(value):
        return value
    return value if type(value) in PLAIN else value.as_subclass(torch.Tensor)


def _shape_of(spec: Any) -> str:
    if spec.is_leaf():
        return "*"
    children = [_shape_of(child) for child in spec.children()]
    if spec.type is dict:
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in zip(spec.context, children, strict=True)) + "}"
    opened, closed = ("[", "]") if spec.type is list else ("(", ")")
    prefix = "" if spec.type in (list, tuple) else spec.type.__name__
    return f"{prefix}{opened}{', '.join(children)}{closed}"


def form_text(value: object) -> str | None:
    """Describe a tensor that is not dense, as `a sparse tensor (torch.sparse_coo)`; None for anything else."""
    form = _form(value)
    return None if form is None else form[0]


def _form(value: object) -> tuple[str, str] | None:
    """Return what a tensor that is not dense is, and what to do about it."""
    if not isinstance(value, torch.Tensor):
        return None
    if value.is_nested:
        return "a nested tensor", "pad it with torch.nested.to_padded_tensor()"
    if value.layout is not torch.strided:
        kind = "an oneDNN tensor" if value.is_mkldnn else "a sparse tensor"
        return f"{kind} ({value.layout})", "convert it with .to_dense()"
    if value.is_quantized:
        return f"a quantized tensor ({value.dtype})", "convert it with .dequantize()"
    if _torch.has_own_operators(value):
        return f"a tensor of the class {type(value).__name__}, which has its own operators", "pass the plain tensors that it holds"
    return None


def refuse_arguments(source: object, named: Iterable[tuple[str, object]]) -> None:
    """Raise `UsageError` for named arguments that are not dense tensors, before tracing."""
    _refuse(source, [(name, *form) for name, value in named if (form := _form(value)) is not None])


def refuse_weights(source: object) -> None:
    """Raise `UsageError` for weights that a trace would take for dense; sparse ones stay in PyTorch, subclasses are taken apart."""
    opaque = [(name, value) for name, value in _weights_of(source) if value.is_nested or value.is_quantized or value.is_mkldnn]
    _refuse(source, [(name, *form) for name, value in opaque if (form := _form(value)) is not None])


def refuse_constants(source: object, program: ExportedProgram) -> None:
    """Raise `UsageError` for a sparse tensor that a function holds outside parameters and buffers: PyTorch cannot lower it."""
    names = [spec.target for spec in program.graph_signature.input_specs if spec.kind is InputKind.CONSTANT_TENSOR]
    forms = [form for name in names if (form := _form(state_value(program, name))) is not None]
    _refuse(source, [("a variable that it reads", what, f"{do}, or register it as a buffer of a module") for what, do in forms])


def _weights_of(source: object) -> list[tuple[str, torch.Tensor]]:
    if isinstance(source, torch.export.ExportedProgram):
        return [(name, value) for name, value in source.state_dict.items() if isinstance(value, torch.Tensor)]
    owner: Any = source if isinstance(source, torch.nn.Module) else getattr(source, "__self__", None)
    return [*owner.named_parameters(), *owner.named_buffers()] if isinstance(owner, torch.nn.Module) else []


def _refuse(source: object, found: list[tuple[str, str, str]]) -> None:
    if found:
        name = getattr(source, "__name__", type(source).__name__)
        listed = "; ".join(f"{where} is {what}, not a dense one: {do}" for where, what, do in found)
        raise UsageError(f"{name} cannot be frozen: {listed}, or leave this part of the model to torch.compile")
