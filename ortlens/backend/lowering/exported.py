"""Exported programs: decomposed and compiled like Dynamo's graphs, without Dynamo and AOTAutograd."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ortlens import _torch
from ortlens.backend.lowering.entry import count_ops
from ortlens.backend.lowering.lowered import LoweredGraph
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
        on_failure: Callable[[Exception], None] | None = None,
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
        _refuse_objects(program)
        program = _torch.with_renamed_guards(program)
        table = _with_composite(decompositions)
        for target in custom_targets:
            table.pop(target, None)
        started = time.perf_counter_ns()
        self._program = _torch.without_tokens(_decomposed(program, table, on_failure))
        aot_ns = time.perf_counter_ns() - started
        inputs = self._program.graph_signature.input_specs
        mutated = {spec.target for spec in self._program.graph_signature.output_specs if spec.kind in _MUTATIONS}
        static = frozenset(i for i, spec in enumerate(inputs) if spec.kind in _WEIGHTS and spec.target not in mutated)
        self._run = compile_graph(
            LoweredGraph(
                module=self._program.graph_module,
                phase="inference",
                static_inputs=static,
                compile_id=None,
                op_count=count_ops(program.graph_module),
                aot_ns=aot_ns,
                input_names=tuple(_input_name(spec) for spec in inputs),
                output_names=tuple(_output_name(spec, place) for place, spec in enumerate(self._program.graph_signature.output_specs)),
            )
        )
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


def _decomposed(
    program: ExportedProgram, table: dict[Any, Callable[..., Any]], on_failure: Callable[[Exception], None] | None
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
        on_failure(error)
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
