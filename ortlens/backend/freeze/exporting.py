"""An exported program to the model to deploy, with the signature of the function that was traced."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ortlens import _torch
from ortlens._process import gc_paused
from ortlens.backend.deploy.conditions import reduced
from ortlens.backend.deploy.export import Boundary, export_graph
from ortlens.backend.deploy.signature import OPERATIONS, ConstantLeaf, Size, TensorLeaf
from ortlens.backend.freeze.arguments import Arguments, limits_of, refuse_constants, size_sources, sources_in, squeezed_sizes, tensor_leaf
from ortlens.backend.lowering.exported import paths_of, result_paths, state_value
from ortlens.backend.lowering.returned_views import outputs_of
from ortlens.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from torch.export import ExportedProgram

    from ortlens.backend.api import OrtBackend
    from ortlens.backend.deploy.export import ExportedModel, WeightSource
    from ortlens.backend.deploy.signature import Leaf
    from ortlens.backend.graph import PlannedGraph
    from ortlens.backend.lowering.entry import LoweredGraph


def export_program(  # noqa: PLR0913 - a program, how it was traced, and what to write
    program: ExportedProgram,
    backend: OrtBackend,
    path: str | os.PathLike[str],
    weights: WeightSource,
    *,
    least: int = 2,
    retrace: Callable[[dict[Any, list[int]]], ExportedProgram] | None = None,
) -> ExportedModel:
    """Write the model of a program, in which no size below `least` is checked for; the others are as for `export_graph`.

    `retrace` traces with sizes of 1, which it gets as dimensions by the keys that lead to an argument.
    """
    lowered_from = backend.compiler.lowered_from
    with gc_paused(), _torch.zero_and_one_open():
        decomposed, lowered = lowered_from(_torch.plain_program(program))
        if retrace is not None:
            decomposed = _open_to_one(decomposed, lambda ones: lowered_from(_torch.plain_program(retrace(ones)))[0])
        refuse_constants(program, decomposed)
        arguments = Arguments(decomposed, decomposed.module(check_guards=False).forward)
        graph = backend.compiler.deployed(
            lowered, [state_value(decomposed, spec.target) for spec in decomposed.graph_signature.input_specs]
        )
    return export_graph(graph, path, weights, boundary=boundary_of(program, decomposed, lowered, arguments, least=least))


def boundary_of(
    program: ExportedProgram, decomposed: ExportedProgram, lowered: LoweredGraph, arguments: Arguments, *, least: int = 2
) -> Boundary:
    """Describe the signature of a program for its model: names of sizes, where values are in a call, and what holds for sizes."""
    if not any(isinstance(node, torch.fx.Node) for node in outputs_of(program.graph)):
        raise UsageError(
            "there is no tensor among the results and nothing that is written to, and ONNX Runtime loads no model without outputs"
        )
    user = [str(spec.arg.name) for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    leaves = [leaf.name for leaf in arguments.signature.leaves]
    sources = size_sources(program, leaves)
    guards = (*arguments.guard_texts, *squeezed_sizes(program, sources))
    results = iter(f"result{text}" for text in result_paths(decomposed))
    paths = {
        name: next(results) if spec.kind is OutputKind.USER_OUTPUT else str(spec.target)
        for name, spec in zip(lowered.output_names, decomposed.graph_signature.output_specs, strict=True)
    }
    return Boundary(
        size_names=_size_names(arguments.signature.leaves, user, _torch.size_names(program)),
        paths=paths | dict(zip(user, leaves, strict=True)),
        arguments=user,
        conditions=_conditions(arguments.signature.leaves, arguments.signature.ranges, guards, least),
        numbers=_numbers(decomposed, sources, leaves),
    )


def _size_names(leaves: Sequence[Leaf], inputs: Sequence[str], named: Mapping[str, str]) -> dict[str, str]:
    """Name each size that varies: as the user did, else after the first input and dimension that has it."""
    names = dict(named)
    for leaf, name in zip(leaves, inputs, strict=True):
        for dim, size in enumerate(leaf.sizes if isinstance(leaf, TensorLeaf) else ()):
            if isinstance(size, Size) and size.name not in names and str(size) == size.name:
                made = f"{name}_dim_{dim}"
                while made in names.values():  # which a `Dim` may have
                    made += "_"
                names[size.name] = made
    return names


def _numbers(program: ExportedProgram, sources: Mapping[Any, str], leaves: Sequence[str]) -> dict[str, Any]:
    """Describe the results that are numbers made of sizes, by their nodes."""
    nodes = [node for node in outputs_of(program.graph) if isinstance(node, torch.fx.Node) and _torch.is_symbolic(node.meta.get("val"))]
    texts = {node.name: _torch.expression_over(node.meta["val"], sources) for node in nodes}
    return {name: guards_as_json([text], leaves)[0][1] for name, text in texts.items() if text is not None}


def _open_to_one(program: ExportedProgram, retrace: Callable[[dict[Any, list[int]]], ExportedProgram]) -> ExportedProgram:
    """Drop conditions by which a size is not 1 where the trace for 1 is the same graph: PyTorch asks so for the layout of memory.

    Two sizes are tried at most, apart and together.
    """
    leaves, known = _known_of(program)
    symbols, paths, accepted = [_not_one(condition, leaves) for condition in known], paths_of(program.call_spec.in_spec), list[str]()
    for symbol in list(dict.fromkeys(filter(None, symbols)))[:2]:
        for chosen in dict.fromkeys(((symbol,), (symbol, *accepted))):
            ones = {place: _dims_of(leaf, chosen) for place, leaf in enumerate(leaves) if _dims_of(leaf, chosen)}
            try:
                made = retrace({paths[place]: dims for place, dims in ones.items()})
            except (UsageError, KeyError, RuntimeError):  # there is no such trace
                break
            new = [condition for condition in _known_of(made)[1] if condition not in known]
            of_ones = all(dim in ones.get(place, ()) for condition in new for place, dim in _sizes_in(condition))
            if not of_ones or _form(made, ones) != _form(program, ones) or not _same_constants(made, program):
                break
        else:
            accepted.append(symbol)
    texts = zip(_torch.guard_texts(program), symbols, strict=True)
    kept = ((text, symbol in accepted) for text, symbol in texts if symbol not in accepted or " > " in text)
    opened: ExportedProgram = _torch.with_guards(program, [text.replace(" > 1", " >= 1") if is_open else text for text, is_open in kept])
    return opened


def _known_of(program: ExportedProgram) -> tuple[Sequence[Leaf], list[Any]]:
    leaves = Arguments(program, program.module(check_guards=False).forward).signature.leaves
    return leaves, [condition for _, condition in guards_as_json(_torch.guard_texts(program), [leaf.name for leaf in leaves])]


def _not_one(condition: Any, leaves: Sequence[Leaf]) -> str | None:
    """Return the size that is not 1 by a condition, if it is one of the arguments."""
    match condition:
        case ["and", ["!=" | ">", ["size", place, dim], 1]]:
            size = leaves[place].sizes[dim]
            return size.name if isinstance(size, Size) and str(size) == size.name else None
    return None


def _dims_of(leaf: Leaf, sizes: Sequence[str]) -> list[int]:
    return [dim for dim, size in enumerate(leaf.sizes if isinstance(leaf, TensorLeaf) else ()) if str(size) in sizes]


def _sizes_in(condition: Any) -> list[tuple[int, int]]:
    if not isinstance(condition, list):
        return []
    return [tuple(condition[1:])] if condition[0] == "size" else [size for operand in condition for size in _sizes_in(operand)]


def _form(program: ExportedProgram, ones: Mapping[int, Sequence[int]]) -> list[Any]:
    """Describe the nodes of a program that compute tensors; sizes in `ones`, dimensions by the place of an argument, are 1."""
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes if not _torch.is_symbolic(node.meta.get("val"))]
    places = {node: f"%{place}" for place, node in enumerate(nodes)}
    metas = {node.name: node.meta.get("val") for node in nodes}
    user = [str(spec.arg.name) for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    sources = size_sources(program, [f"argument{place}" for place in range(len(user))])
    sizes = (metas[user[place]].shape[dim] for place, dims in ones.items() for dim in dims)
    sources |= {scaled[0]: "1" for size in sizes if (scaled := _torch.scaled_term(size)) is not None}

    def text_of(node: torch.fx.Node) -> Any:
        text = places.get(node) or _torch.expression_over(node.meta["val"], sources) or node.name
        return int(text) if text.isdecimal() else text

    described = []
    for node in nodes:
        ranks = [value.dim() for value in _torch.flatten(metas[node.name])[0] if isinstance(value, torch.Tensor)]
        given = torch.fx.map_arg((node.args, node.kwargs), text_of)
        described.append((node.op, "" if node.op == "output" else str(node.target), str(given), ranks))
    return described


def _same_constants(one: ExportedProgram, other: ExportedProgram) -> bool:
    values = [(value, other.constants.get(name)) for name, value in one.constants.items()]
    tensors = all(isinstance(value, torch.Tensor) and not _torch.is_fake(value) for pair in values for value in pair)
    return len(values) == len(other.constants) and tensors and all(torch.equal(*pair) for pair in values)


def boundary_of_graph(graph: PlannedGraph, order: Sequence[str]) -> Boundary:
    """Describe what Dynamo compiled: sizes that vary are 2 at least, and what its guards say about sizes and numbers holds."""
    names, nodes = graph.outer_input_names(), graph.placeholders()
    arguments = [(names[place], node.meta["val"]) for place, node in enumerate(nodes) if place not in graph.lowered.static_inputs]
    tensors = [(name, meta) for name, meta in arguments if isinstance(meta, torch.Tensor)]
    sources = sources_in([*tensors, *((name, meta) for name, meta in arguments if _torch.is_symbolic(meta))])
    guards, ranges = _torch.found_about_sizes([meta for _, meta in arguments], sources)
    leaves = [tensor_leaf(name, meta) if isinstance(meta, torch.Tensor) else ConstantLeaf(name, meta) for name, meta in arguments]
    return Boundary(
        size_names=_size_names(leaves, [name for name, _ in arguments], {}),
        order=order,
        arguments=[name for name, _ in arguments],
        conditions=_conditions(leaves, limits_of(ranges), guards, least=1),
    )


def _conditions(
    leaves: Sequence[Leaf], ranges: Mapping[str, tuple[int | None, int | None]], guards: Sequence[str], least: int
) -> list[Any]:
    """List what holds for sizes: that those of one name are the same, bounds, and what tracing found."""
    places: dict[str, list[tuple[Any, Size]]] = {}
    for place, leaf in enumerate(leaves):
        sizes = enumerate(leaf.sizes) if isinstance(leaf, TensorLeaf) else ()
        for dim, size in sizes:
            if isinstance(size, Size):
                places.setdefault(size.name, []).append((["size", place, dim], size))
    bounds = {name: ranges.get(name, (None, None)) for name in places}
    bounds = {name: (None if low is None or low <= least else low, high) for name, (low, high) in bounds.items()}
    found = [condition for name, sizes in places.items() for condition in _of_size(sizes, *bounds[name])]
    same = [condition[1:] for condition in found if condition[0] == "same"]
    for _, guard in guards_as_json(guards, [leaf.name for leaf in leaves]):
        condition = reduced(guard, leaves)
        is_known = condition is True or condition in found
        is_of_names = not is_known and condition[0] == "==" and any(all(size in sizes for size in condition[1:]) for sizes in same)
        if not is_known and not is_of_names:
            found.append(condition)
    return found


_NO_LIMIT = 1 << 62


def _of_size(occurrences: Sequence[tuple[Any, Size]], least: int | None, most: int | None) -> list[Any]:
    plain = [place for place, size in occurrences if str(size) == size.name]
    multiples = [(place, size) for place, size in occurrences if str(size) != size.name]
    found: list[Any] = []
    if not plain:
        (place, size), *multiples = multiples
        base = ["//", ["-", place, size.offset], size.factor]
        found.append(["==", ["%", ["-", place, size.offset], size.factor], 0])
    else:
        base = plain[0]
        found += [["same", *plain]] if len(plain) > 1 else []
    found += [["==", place, ["+", ["*", base, size.factor], size.offset]] for place, size in multiples]
    found += [[">=", base, least]] if least is not None else []
    found += [["<=", base, most]] if most is not None and most < _NO_LIMIT else []
    return found


_FUNCTIONS = {
    "Mod": "%",
    "PythonMod": "%",
    "FloorDiv": "//",
    "Eq": "==",
    "Ne": "!=",
    "Lt": "<",
    "Le": "<=",
    "Gt": ">",
    "Ge": ">=",
    **dict.fromkeys(("max", "torch.sym_max"), "max"),  # the second since torch 2.15
    **dict.fromkeys(("min", "torch.sym_min"), "min"),
    "abs": "abs",
    "round": "round",
    "math.ceil": "ceil",
    "math.floor": "floor",
    "math.trunc": "trunc",
    "torch.sym_float": "float",
    "torch._sym_sqrt": "sqrt",
}


def guards_as_json(texts: Sequence[str], leaves: Sequence[str]) -> list[Any]:
    """Write each guard as a message and a condition for `signature.admits`; raise `UsageError` for what has no such form."""
    places, others = {}, {}
    for place, name in enumerate(leaves):
        base, bracket, rest = name.partition("[")
        first, _, number = base.rpartition("_")
        places[ast.unparse(ast.parse(f"L[{base!r}]{bracket}{rest}", mode="eval"))] = place
        others[f"L['flat_args'][{place}]"] = place  # in traces by Dynamo
        if number.isdecimal():  # of `*args`
            others[ast.unparse(ast.parse(f"L[{first!r}][{number}]{bracket}{rest}", mode="eval"))] = place
    places = others | places
    return [[f"Guard failed: {text}", _SizeGuard(text, places).json()] for text in texts]


_X = ast.Name("x")


class _SizeGuard:
    def __init__(self, text: str, places: Mapping[str, int]) -> None:
        self._text = text
        self._places = places

    def json(self) -> Any:
        return self._of(ast.parse(self._text, mode="eval").body)

    def _of(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)) and math.isfinite(node.value):
            return node.value
        if isinstance(node, ast.UnaryOp):
            inner = self._of(node.operand)
            return ["not", inner] if isinstance(node.op, ast.Not) else ["-", 0, inner] if isinstance(node.op, ast.USub) else self._refuse()
        if isinstance(node, ast.Compare):
            return self._compared(node)
        if isinstance(node, ast.BoolOp):
            return ["and" if isinstance(node.op, ast.And) else "or", *map(self._of, node.values)]
        return self._operation(node)

    def _operation(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp):
            return [self._symbol(ast.unparse(ast.BinOp(_X, node.op, _X))), self._of(node.left), self._of(node.right)]
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _FUNCTIONS:
            return [_FUNCTIONS[ast.unparse(node.func)], *map(self._of, node.args)]
        if isinstance(node, ast.IfExp):
            return ["if", *map(self._of, (node.test, node.body, node.orelse))]
        return self._size(node)

    def _compared(self, node: ast.Compare) -> Any:
        values = [self._of(value) for value in (node.left, *node.comparators)]
        symbols = [self._symbol(ast.unparse(ast.Compare(_X, [op], [_X]))) for op in node.ops]
        return ["and", *([symbol, values[place], values[place + 1]] for place, symbol in enumerate(symbols))]

    def _symbol(self, text: str) -> Any:
        """Return the operator of an operation such as `x + x`, if a loaded callable evaluates it."""
        symbol = text[1:-1].strip()
        return symbol if symbol in OPERATIONS else self._refuse()

    def _size(self, node: ast.expr) -> Any:
        """Read `L['x'].size()[0]`, or `L['n']` of a number."""
        text = ast.unparse(node)
        if text in self._places:
            return ["value", self._places[text]]
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.value, ast.Call):
            called = node.value.func
            place = self._places.get(ast.unparse(called.value)) if isinstance(called, ast.Attribute) and called.attr == "size" else None
            if place is not None:
                return ["size", place, node.slice.value]
        return self._refuse()

    def _refuse(self) -> Any:
        raise UsageError(f"the condition {self._text} on sizes cannot be saved; narrow dynamic_shapes so that tracing needs none")
