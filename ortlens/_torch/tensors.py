"""Tensors during tracing: symbolic sizes, fake tensors and tensor subclasses."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils import _python_dispatch, _pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


def has_symbols(tensor: torch.Tensor) -> bool:
    """Tell whether a size or a stride of a tensor is symbolic."""
    return any(is_symbolic(number) for number in (*tensor.shape, *tensor.stride()))


def is_symbolic(value: object) -> bool:
    """Tell whether a value is a symbolic number: SymInt, SymFloat or SymBool."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def expression_of(value: object) -> str:
    """Return the Python expression of a size, such as `s0 // 4`, which evaluates with the symbols as names and `math` in scope."""
    node = getattr(value, "node", None)
    if node is None:
        return repr(value)
    from torch.utils._sympy.printers import PythonPrinter

    return str(PythonPrinter().doprint(node.expr))


def scaled_term(value: object) -> tuple[object, int, int] | None:
    """Split a size `offset + factor * term` into the term, an expression of sympy, the offset and the factor; None for what is none."""
    expr: Any = getattr(getattr(value, "node", None), "expr", None)
    if not hasattr(expr, "as_coeff_Add"):  # neither has a truth value
        return None
    offset, rest = expr.as_coeff_Add()
    factor, term = rest.as_coeff_Mul()
    whole = offset.is_Integer and factor.is_Integer and not term.is_number
    return (term, int(offset), int(factor)) if whole and not term.is_Add else None


def term_sources(pairs: Iterable[tuple[str, object]]) -> dict[Any, str]:
    """Map each symbol, or term such as `s0 // 2`, to the source of its value, from sources of numbers that hold it, scaled or in a sum."""
    sources: dict[Any, str] = {}
    for text, size in pairs:
        if (scaled := scaled_term(size)) is not None:
            term, offset, factor = scaled
            sources.setdefault(term, text if (offset, factor) == (0, 1) else f"(({text} - {offset}) // {factor})")
    return sources


def expression_over(value: object, sources: Mapping[Any, str]) -> str | None:
    """Return the Python expression of a size over terms whose values are known; it evaluates with `math` in scope.

    `sources` maps terms, as from `scaled_term`, to expressions of their values. None when the size holds other symbols.
    """
    expr = getattr(getattr(value, "node", None), "expr", None)
    if expr is None:
        return repr(value)
    if (scaled := scaled_term(value)) is not None and scaled[0] in sources:  # a product is no part of its multiple for `xreplace`
        term, offset, factor = scaled
        return sources[term] if (offset, factor) == (0, 1) else f"({offset} + {factor} * {sources[term]})"
    return _text_over(expr, sources)


def _text_over(expr: Any, sources: Mapping[Any, str]) -> str | None:
    from torch.utils._sympy.printers import PythonPrinter
    from torch.utils._sympy.symbol import SymT, make_symbol

    symbols = {
        term: make_symbol(SymT.TMP, place, integer=True, nonnegative=getattr(term, "is_nonnegative", None))
        for place, term in enumerate(sources)
    }
    known = expr.xreplace(symbols)
    if not known.free_symbols <= set(symbols.values()):
        return None
    texts = {str(symbol): sources[term] for term, symbol in symbols.items()}
    return re.sub(r"[A-Za-z_]\w*", lambda match: texts.get(match[0], match[0]), str(PythonPrinter().doprint(known)))


def found_about_sizes(values: Iterable[object], sources: Mapping[Any, str]) -> tuple[list[str], Mapping[Any, Any]]:
    """Return what was found about sizes since a compilation began: guards over `sources`, and the ranges of symbols.

    `values` are fake tensors and numbers of the compilation. Guards on symbols that are not in `sources` are left out, and so is what fake
    tensors asked about the layout of memory, which does not matter for values.
    """
    sizes: Iterator[Any] = (size for value in values for size in (value.shape if isinstance(value, torch.Tensor) else (value,)))
    env = next((size.node.shape_env for size in sizes if is_symbolic(size)), None)
    if env is None:
        return [], {}
    guards = [guard for guard in env.guards if "_prims_common" not in getattr(guard.sloc.framework_loc, "filename", "")]
    texts = (_text_over(env.replace(guard.expr), sources) for guard in guards)
    return [text for text in dict.fromkeys(texts) if text is not None and text != "True"], env.var_to_range


def size_hint(value: object, *, unknown: int = 1) -> int:
    """Return the value that a SymInt had during tracing, with `unknown` for each data-dependent size, which has no hint."""
    if isinstance(value, int):
        return value
    node = getattr(value, "node", None)
    hint = getattr(node, "hint", None)
    if hint is not None:
        return int(hint)
    expression = getattr(node, "expr", None)
    if node is None or expression is None:
        return unknown
    known = node.shape_env.backed_var_to_val  # without those that depend on data
    found = expression.xreplace({symbol: known.get(symbol, unknown) for symbol in expression.free_symbols})
    return int(found) if isinstance(found, int) or found.is_number else int(bool(found))  # a truth value of sympy is no number


def depends_on_data(value: object) -> bool:
    """Tell whether a number, or a size of a tensor, is known only once the program has read data, as after `.item()` or `nonzero`."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(value))


def version_of(tensor: torch.Tensor) -> int:
    """Return the version counter of a tensor, the number of in-place writes to it; tensors made in inference mode have none."""
    return tensor._version


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is one of the zeros without memory that automatic differentiation makes; copies of them have memory."""
    return bool(tensor._is_zerotensor())


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Leave all modes: tensors that the backend makes must be real while AOTAutograd traces, and not on the user's default device."""
    with _python_dispatch._disable_current_modes():
        modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
        try:
            yield
        finally:
            for mode in reversed(modes):
                torch._C._push_on_torch_function_stack(mode)


def is_fake(value: object) -> bool:
    """Tell whether a value is a fake tensor, which has no data."""
    return isinstance(value, FakeTensor)


def share_storage(one: Any, other: Any) -> bool:
    """Tell whether two tensors, or the tensors of two lists, lie in one storage; fake ones have storages, too."""
    first, second = ({tensor.untyped_storage()._cdata for tensor in tensors_of(value)} for value in (one, other))
    return not first.isdisjoint(second)


def is_fake_of(value: object, mode: object) -> bool:
    """Tell whether a value is a fake tensor of this mode; those of different modes must not be mixed."""
    return getattr(value, "fake_mode", None) is mode


def qualified_name(target: object) -> str | None:
    """Return a name by which another process finds the same function, such as `torch.nn.functional.gelu`; None if it has none."""
    from torch.fx.node import _get_qualified_name

    try:
        return str(_get_qualified_name(target))  # type: ignore[arg-type]  # raises for a function without a name
    except (RuntimeError, AttributeError, NotImplementedError):
        return None


def is_wrapper(value: torch.Tensor) -> bool:
    """Tell whether a tensor is a wrapper subclass, whose inner tensors AOTAutograd unpacks."""
    return bool(_python_dispatch.is_traceable_wrapper_subclass(value))


def has_own_operators(value: torch.Tensor) -> bool:
    """Tell whether a tensor's subclass computes operators in its own way, in `__torch_dispatch__`; False for fake tensors."""
    plain = (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)
    return type(value).__torch_dispatch__ not in plain and not is_fake(value)


def fake_tensor(dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """Make a fake tensor of the CPU, which has no data."""
    with real_tensors(), FakeTensorMode():
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)


def fake_mode_of(values: Iterable[object]) -> Any:
    """Return a fake tensor mode: that of the first fake tensor, else a new one that also accepts real tensors."""
    found = next((value for value in values if isinstance(value, FakeTensor)), None)
    return FakeTensorMode(allow_non_fake_inputs=True) if found is None else found.fake_mode


def without_data(tensor: torch.Tensor, mode: Any) -> torch.Tensor:
    """Return a fake tensor of the same shape, strides and device; a fake one, and one that is not dense, as it is."""
    is_dense = str(tensor.layout) == "torch.strided" and not (tensor.is_quantized or tensor.is_nested)
    made: torch.Tensor = mode.from_tensor(tensor, static_shapes=True) if is_dense and not is_fake(tensor) else tensor
    return made


def with_room(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with memory, but no values, for a fake one."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device) if is_fake(tensor) else tensor


def marked_dims(value: object) -> dict[int, tuple[int | None, int | None]]:
    """Return the dimensions of a tensor that `torch._dynamo.mark_dynamic` marked, with their bounds; none of anything else."""
    ranges = {marked.dim: (marked.min, marked.max) for marked in getattr(value, "_dynamo_dynamic_range", ())}
    return {dim: ranges.get(dim, (None, None)) for dim in getattr(value, "_dynamo_dynamic_indices", ())}


def needs_data(error: BaseException) -> bool:
    """Tell whether an error says that a fake tensor has no values to decide on."""
    return isinstance(error, (DataDependentOutputException, DynamicOutputShapeException))


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """Apply a function to every tensor in a pytree."""
    return _pytree.tree_map_only(torch.Tensor, function, tree)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Collect all tensors in a structure, in its order."""
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Take a structure apart into its leaves and the tree spec, which has their order."""
    return _pytree.tree_flatten(tree)


def flatten_as(spec: Any, tree: Any) -> list[Any]:
    """Return a structure's leaves in the order of a spec, a subtree in a leaf's place as one; raises ValueError for another structure."""
    leaves: list[Any] = spec.flatten_up_to(tree)
    return leaves


def named_leaves(tree: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the leaves of a structure, each after the keys that lead to it, such as an index or a key of a dict."""
    pairs, _ = _pytree.tree_flatten_with_path(tree)
    return [(tuple(_key_of(entry) for entry in path), leaf) for path, leaf in pairs]


def _key_of(entry: Any) -> Any:
    return next((getattr(entry, name) for name in ("idx", "key", "name") if hasattr(entry, name)), str(entry))


def shallow_spec(spec: Any) -> Any:
    """Return a spec of the same type whose children are all leaves; not for the spec of a leaf."""
    return _pytree.TreeSpec(spec.type, spec.context, [_pytree.treespec_leaf()] * spec.num_children)


def unflatten(values: list[Any], spec: Any) -> Any:
    """Put values back into a structure."""
    return _pytree.tree_unflatten(values, spec)


def copy_all(into: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy tensors into others of the same dtypes, shapes and device, in few kernels."""
    if into:
        torch._foreach_copy_(list(into), list(values))


def allows_tf32(kind: str) -> bool:
    """Tell whether PyTorch may round float32 factors of a kind (`matmul`, `conv` or `rnn`) to TF32 on CUDA.

    The public settings raise once a program has used both the old and the new names of a setting; this one never does.
    """
    return bool(torch._C._get_fp32_precision_getter("cuda", kind) == "tf32")


def convolution_is_in_onednn(tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *arguments: Any) -> bool:
    """Tell whether PyTorch passes an `aten.convolution` on the CPU to oneDNN, at the sizes of tracing, instead of computing it itself."""
    with FakeTensorMode():
        like = [None if each is None else torch.empty([*map(size_hint, each.shape)], dtype=each.dtype) for each in (tensor, weight, bias)]
        chosen = torch._C._select_conv_backend(*like, *arguments)
    return not str(chosen).rpartition(".")[2].startswith("Slow")
