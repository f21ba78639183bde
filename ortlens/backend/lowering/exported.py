"""Exported programs: decomposed and compiled like Dynamo's graphs, without Dynamo and AOTAutograd."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ortlens import _torch
from ortlens.backend.error_text import LOWERED_WITHOUT
from ortlens.backend.lowering.entry import count_ops
from ortlens.backend.lowering.lowered import LoweredGraph
from ortlens.backend.lowering.returned_views import without_returned_views
from ortlens.backend.memory_order import needs_restride
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.export import ExportedProgram

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_FUSED_DIMS = 4  # [batch, head, row, feature]
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


class CompiledProgram:
    """An exported program that runs through ONNX Runtime; called like `program.module()`, without gradients.

    It shares the program's state: buffers that a call changes are changed in the program.
    """

    def __init__(
        self,
        program: ExportedProgram,
        compile_graph: Callable[[LoweredGraph], Callable[..., Any]],
        *,
        decompositions: Mapping[Any, Callable[..., Any]],
        custom_targets: frozenset[Any],
        on_failure: Callable[[str, str, Exception], None] | None = None,
    ) -> None:
        """Decompose and compile.

        Args:
            program: As `torch.export.export` or `torch.export.load` returns it.
            compile_graph: Compiles an ATen graph to a boxed function.
            decompositions: The backend's: op overload -> function.
            custom_targets: Operators that are not decomposed because the user gave functions for them.
            on_failure: Reports that the program could not be decomposed and is compiled as it is; None to raise.

        Raises:
            UsageError: The program takes something that is neither a tensor nor a plain value.
        """
        program = _torch.with_renamed_guards(program)
        self._program, lowered = lower_program(program, decompositions=decompositions, custom_targets=custom_targets, on_failure=on_failure)
        inputs = self._program.graph_signature.input_specs
        self._run = compile_graph(lowered)
        self._guards = _torch.exported_guards(program)
        self._user_inputs = [place for place, spec in enumerate(inputs) if spec.kind is InputKind.USER_INPUT]
        self._apply = [_effect_of(self._program, spec) for spec in self._program.graph_signature.output_specs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Args:
            *args: As `program.module()` takes them.
            **kwargs: Likewise, in any order.

        Returns:
            What `program.module()` returns, in the same structure, without gradients.
        """
        flat = list(_torch.exported_inputs(self._program, args, kwargs))
        if self._guards is not None:
            self._guards(*(flat[place] for place in self._user_inputs))
        positions = {node.name: value for node, value in zip(_placeholders(self._program), flat, strict=True)}
        with torch.no_grad():
            results = self._run([_resolved(value) for value in flat])
            user = []
            for value, effect in zip(results, self._apply, strict=True):
                if effect is None:
                    user.append(value)
                else:
                    effect(positions, value)
        return _torch.unflatten(user, self._program.call_spec.out_spec)


def lower_program(
    program: ExportedProgram,
    *,
    decompositions: Mapping[Any, Callable[..., Any]],
    custom_targets: frozenset[Any],
    on_failure: Callable[[str, str, Exception], None] | None = None,
    returns_views: bool = False,
) -> tuple[ExportedProgram, LoweredGraph]:
    """Decompose an exported program.

    Args:
        program: As for `CompiledProgram`.
        decompositions: Likewise.
        custom_targets: Likewise.
        on_failure: Likewise.
        returns_views: Whether outputs that are views of inputs, or share memory with one another, are made as views by PyTorch.

    Returns:
        The decomposed program, and its graph. New values of mutated state come first among the outputs.

    Raises:
        UsageError: The program takes something that is neither a tensor nor a plain value.
    """
    _refuse_objects(program)
    table = _with_composite(decompositions)
    for target in custom_targets:
        table.pop(target, None)
    started = time.perf_counter_ns()
    made = _torch.without_tokens(_decomposed(program, table, on_failure))
    aot_ns = time.perf_counter_ns() - started
    inputs, outputs = made.graph_signature.input_specs, made.graph_signature.output_specs
    written = mutated_targets(made)
    static = frozenset(i for i, spec in enumerate(inputs) if spec.kind in _WEIGHTS and spec.target not in written)
    views = None
    mutated = _mutated_inputs(made) if returns_views else ()
    if returns_views:
        user = {place: False for place, spec in enumerate(outputs) if spec.kind is OutputKind.USER_OUTPUT}
        returned = next(iter(made.graph.find_nodes(op="output"))).args[0]
        gaps = [place for place in user if (value := _meta_of(returned[place])) is not None and needs_restride(value)]
        views = without_returned_views(made.graph_module, user, mutated, parts=gaps)
    return made, LoweredGraph(
        module=made.graph_module,
        phase="inference",
        static_inputs=static,
        compile_id=None,
        op_count=count_ops(program.graph_module),
        aot_ns=aot_ns,
        input_names=tuple(_input_name(spec) for spec in inputs),
        output_names=tuple(_output_name(spec, place) for place, spec in enumerate(outputs)),
        views=views,
        mutated=mutated,
    )


def _meta_of(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def mutated_targets(program: ExportedProgram) -> frozenset[str]:
    """The state and the inputs that a program writes to.

    Args:
        program: A decomposed program.

    Returns:
        Names of parameters, buffers and inputs, and of all other parameters and buffers that are the same tensor.
    """
    named = {spec.target for spec in program.graph_signature.output_specs if spec.kind in _MUTATIONS}
    tensors = {id(value) for name in named if (value := state_value(program, name)) is not None}
    specs = program.graph_signature.input_specs
    same = {spec.target for spec in specs if spec.kind in _WEIGHTS and id(state_value(program, spec.target)) in tensors}
    return frozenset(str(name) for name in {*named, *same})


def state_value(program: ExportedProgram, name: Any) -> torch.Tensor | None:
    """The tensor of a parameter, buffer or constant.

    Args:
        program: The program.
        name: Its name.

    Returns:
        The tensor; None if there is none of that name.
    """
    value = program.state_dict.get(name, program.constants.get(name))
    return value if isinstance(value, torch.Tensor) else None


def _mutated_inputs(program: ExportedProgram) -> tuple[int, ...]:
    """Positions of the inputs whose new values are the first outputs; empty if other outputs come first."""
    signature = program.graph_signature
    places: dict[Any, int] = {}
    for place, spec in enumerate(signature.input_specs):
        places[spec.target if spec.kind in _WEIGHTS else spec.arg.name] = place
    kinds = [spec.kind in _MUTATIONS for spec in signature.output_specs]
    count = sum(kinds)
    return tuple(places[spec.target] for spec in signature.output_specs[:count]) if all(kinds[:count]) else ()


def _decomposed(
    program: ExportedProgram, table: dict[Any, Callable[..., Any]], on_failure: Callable[[str, str, Exception], None] | None
) -> ExportedProgram:
    """Decompose a program; if a decomposition raises, only what PyTorch always decomposes."""
    try:
        return _decomposed_by(program, table)
    except Exception as error:
        if on_failure is None:
            raise
        try:
            plain = _decomposed_by(program, {})
        except Exception:  # noqa: BLE001 - PyTorch alone cannot decompose this program either
            raise error from None
        on_failure("lowering_failed", LOWERED_WITHOUT, error)
        return plain


def _decomposed_by(program: ExportedProgram, table: dict[Any, Callable[..., Any]]) -> ExportedProgram:
    with _torch.quiet():
        made: ExportedProgram = program.run_decompositions(table)
    return made


def _with_composite(own: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The backend's decompositions, and PyTorch's for composite operators where the backend has none."""
    composite = _torch.composite_decompositions()
    table = {**composite, **own}
    if _ATTENTION in own and _ATTENTION in composite:
        table[_ATTENTION] = _attention_laid_out_as_traced(composite[_ATTENTION], own[_ATTENTION])
    return table


def _attention_laid_out_as_traced(torchs: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Attention whose result has the memory layout that it had in tracing: the program may view it without a copy.

    On the CPU PyTorch chooses. The result of the fused operator has the layout of the query, the result of plain matrix products is
    contiguous. Both are decomposed further, as in a graph of Dynamo. Our own decomposition serves what is not fused because of its
    dimensions, and other devices, whose fused operators have no decomposition.
    """

    def attention(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        written_out = query.device.type != "cpu" or query.dim() != _FUSED_DIMS
        return (own if written_out else torchs)(query, *args, **kwargs)

    return attention


def _resolved(value: Any) -> Any:
    """A negative view has another sign than its memory. Tracing saw none, and the guards of a program check sizes only."""
    return value.resolve_neg() if isinstance(value, torch.Tensor) and value.is_neg() else value


def _placeholders(program: ExportedProgram) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def _input_name(spec: Any) -> str:
    return str(spec.arg.name if spec.kind is InputKind.USER_INPUT else spec.target)


def _output_name(spec: Any, place: int) -> str:
    if spec.kind in _MUTATIONS:
        return f"{spec.target}.updated"
    return str(getattr(spec.arg, "name", None) or f"output_{place}")


def _effect_of(program: ExportedProgram, spec: Any) -> Callable[[dict[str, Any], Any], None] | None:
    """The function that writes an output back to the state of the program; None for an output of the user's."""
    if spec.kind not in _MUTATIONS:
        return None
    by_target = {entry.target: entry.arg.name for entry in program.graph_signature.input_specs if entry.kind in _WEIGHTS}
    name = by_target.get(spec.target, spec.target)

    def write_back(positions: dict[str, Any], value: Any) -> None:
        positions[name].copy_(value)

    return write_back


def _refuse_objects(program: ExportedProgram) -> None:
    odd = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN)]
    if odd:
        raise UsageError(f"the exported program takes script objects or effect tokens ({', '.join(odd)}), which ortlens cannot run")
