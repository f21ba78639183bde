"""Exported programs: decomposed and compiled like Dynamo's graphs, without Dynamo and AOTAutograd."""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ortlens import _torch
from ortlens.backend.basis.error_text import LOWERED_WITHOUT
from ortlens.backend.basis.memory_order import last_place, needs_restride
from ortlens.backend.basis.provenance import count_ops, user_line
from ortlens.backend.lowering.entry import LoweredGraph, unique_names, unrolled
from ortlens.backend.lowering.layout_decisions import inputs_in_results
from ortlens.backend.lowering.returned_views import inputs_of, outputs_of, owner_of, without_returned_views
from ortlens.backend.lowering.wholes import noting
from ortlens.backend.operators.basics import for_all_sizes
from ortlens.backend.operators.facts import UNSAID_WRITES, by_name
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.export import ExportedProgram

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


class CompiledProgram:
    """An exported program in ONNX Runtime, called like `program.module()`, without gradients; calls change the program's buffers."""

    def __init__(
        self,
        program: ExportedProgram,
        decomposed: ExportedProgram,
        run: Callable[..., Any],
        assumptions_of: Callable[..., Any] | None = None,
    ) -> None:
        """Take a program, also as `lower_program` decomposed it, and what runs the graph of that.

        `assumptions_of` makes the check of what the program assumes about memory, see `runtime.memory_assumptions`; None: no check.
        """
        self._in_torch = functools.cache(functools.partial(in_torch, program))
        self._program, self._run = decomposed, run
        inputs = decomposed.graph_signature.input_specs
        self._guards = _torch.exported_guards(self._program)
        self._user_inputs = [place for place, spec in enumerate(inputs) if spec.kind is InputKind.USER_INPUT]
        self._results = results_of(self._program, inputs_in_results(program))
        state = {str(spec.target): value for spec in inputs if (value := state_value(self._program, spec.target)) is not None}
        names = [inputs[place].arg.name for place in self._user_inputs]
        written = mutated_inputs(self._program)
        self._memory = None
        if assumptions_of is not None:
            remedy = "export again with such arguments"
            self._memory = assumptions_of(program, written=written, state=state, names=names, remedy=remedy)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; raise UsageError for arguments that lie in memory in a way that it was not exported for."""
        flat = list(_torch.exported_inputs(self._program, args, kwargs))
        leaves = [flat[place] for place in self._user_inputs]
        if self._guards is not None:
            self._guards(*leaves)
        if _torch.is_interpreted() and not any(map(_torch.is_fake, flat)):  # on fake tensors, as in a dry run, the graph runs itself
            return self._in_torch()(*args, **kwargs)
        if self._memory is not None and not self._memory.holds(leaves) and (faults := self._memory.faults(leaves)):
            raise UsageError(f"these arguments are not as in the export: {'; '.join(faults)}")
        with torch.no_grad():
            results = self._run(list(flat))
            for value, result in zip(results, self._results, strict=True):
                if result.written is not None and value is not flat[result.written]:
                    flat[result.written].copy_(value)
            made = [(value, result) for value, result in zip(results, self._results, strict=True) if result.written is None]
            user = [value if result.owner is None else result.in_memory_of(flat[result.owner], value) for value, result in made]
        return _torch.unflatten(user, self._program.call_spec.out_spec)


def in_torch(program: ExportedProgram, state: Mapping[str, torch.Tensor] | None = None) -> Callable[..., Any]:
    """Make a function that runs a program as it was traced, for what interprets PyTorch's operators and does not see those of sessions.

    It does not check arguments. `state` takes the place of its buffers. Only a transform of `torch.func` differentiates results, and
    nothing the weights.
    """
    with _torch.real_tensors():
        module = program.module(check_guards=False)
        values = {name: weight.detach() for name, weight in module.named_parameters(remove_duplicate=False)} | dict(state or {})
    for name, value in values.items():
        owner, _, attribute = name.rpartition(".")
        delattr(module.get_submodule(owner), attribute)
        module.get_submodule(owner).register_buffer(attribute, value)

    def run(*args: Any, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if _torch.is_transformed() else torch.no_grad(), _torch.without_autocast():
            return module.forward(*args, **kwargs)  # arguments were checked

    return run


def lower_program(
    program: ExportedProgram,
    *,
    decompositions: Mapping[Any, Callable[..., Any]],
    custom_targets: frozenset[Any],
    on_failure: Callable[[str, str, Exception], None] | None = None,
    updates_in_place: bool = False,
) -> tuple[ExportedProgram, LoweredGraph]:
    """Decompose an exported program; new values of mutated state come first among the outputs of its graph.

    With `updates_in_place`, new values of state and inputs may take the memory of the old ones. Raises UsageError for an input that is
    neither a tensor nor a plain value.
    """
    from ortlens.backend.operators.registry import decompositions_of_programs

    odd = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN)]
    if odd:
        raise UsageError(f"the exported program takes script objects or effect tokens ({', '.join(odd)}), which ortlens cannot run")
    if (lost := _write_to_constant(program, said=False)) is not None:
        raise UsageError(lost)
    if (loop := unrolled(program.graph_module)) is not None:
        raise UsageError(f"{loop}, which would take minutes to convert: leave the loop outside of the program, or use torch.while_loop")
    table = decompositions_of_programs(decompositions)
    for target in custom_targets:
        table.pop(target, None)
    started = time.perf_counter_ns()
    made = _torch.without_tokens(_decomposed(program, table, on_failure))
    aot_ns = time.perf_counter_ns() - started
    inputs, outputs = made.graph_signature.input_specs, made.graph_signature.output_specs
    written = mutated_inputs(made)
    static = frozenset(i for i, spec in enumerate(inputs) if spec.kind in _WEIGHTS and spec.arg.name not in written)
    user = {place: False for place, spec in enumerate(outputs) if spec.kind is OutputKind.USER_OUTPUT}
    returned = outputs_of(made.graph)
    gaps = [place for place in user if (value := _meta_of(returned[place])) is not None and needs_restride(value)]
    mutated = _mutated_inputs(made)
    names = tuple(str(spec.arg.name if spec.kind is InputKind.USER_INPUT else spec.target) for spec in inputs)
    return made, LoweredGraph(
        module=made.graph_module,
        phase="inference",
        static_inputs=static,
        compile_id=None,
        op_count=count_ops(program.graph_module),
        aot_ns=aot_ns,
        input_names=names,
        output_names=unique_names(_output_names(made), (name for place, name in enumerate(names) if place not in static)),
        arguments=tuple(place for place, spec in enumerate(inputs) if spec.kind is InputKind.USER_INPUT),
        updates=frozenset(range(len(outputs))) - user.keys(),
        views=without_returned_views(made.graph_module, user, mutated, parts=gaps),
        mutated=mutated if updates_in_place else (),
        checks_signs=True,
    )


def _meta_of(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def mutated_inputs(program: ExportedProgram) -> frozenset[str]:
    """List, by names of graph inputs, the state and arguments that a decomposed program writes to, and state that is the same."""
    specs = program.graph_signature.input_specs
    written = {place for place in _written_places(program) if place is not None}
    tensors = {id(value) for place in written if (value := state_value(program, specs[place].target)) is not None}
    same = {place for place, spec in enumerate(specs) if spec.kind in _WEIGHTS and id(state_value(program, spec.target)) in tensors}
    return frozenset(specs[place].arg.name for place in written | same)


def _written_places(program: ExportedProgram) -> list[int | None]:
    """Find, for each output, the place of the input whose new value it is; None for a result of the user's."""
    signature = program.graph_signature
    weights = {spec.target: place for place, spec in enumerate(signature.input_specs) if spec.kind in _WEIGHTS}
    others = {spec.arg.name: place for place, spec in enumerate(signature.input_specs) if spec.kind not in _WEIGHTS}
    return [
        (others if spec.kind is OutputKind.USER_INPUT_MUTATION else weights)[spec.target] if spec.kind in _MUTATIONS else None
        for spec in signature.output_specs
    ]


@dataclass(frozen=True, slots=True)
class Result:
    """An output of a decomposed program."""

    written: int | None = None  # place of the input whose new value it is, which is written back; None for a result of the user's
    # Place of the input that the user's result is, or of a written one in whose memory it is to lie; None for all others.
    owner: int | None = None
    is_view: bool = False  # whether it is a view of that input, not the input itself

    def in_memory_of(self, given: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Place a result in the memory of its owner, as it lies in a copy of the new value; as it is where signs cannot be the owner's."""
        if not self.is_view:
            return given
        if any(tensor.is_conj() or tensor.is_neg() for tensor in (given, value)):
            if value.is_neg() or value.dtype is not given.dtype:
                return value
            placed = given.as_strided(value.shape, value.stride(), value.storage_offset())
            return placed.conj() if value.is_conj() else placed
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(given.untyped_storage(), value.storage_offset(), value.shape, value.stride())


def results_of(program: ExportedProgram, shared: Sequence[frozenset[str]]) -> list[Result]:
    """Describe each output of a decomposed program; `shared` comes from `inputs_in_results`."""
    signature = program.graph_signature
    outputs = outputs_of(program.graph)
    names = [spec.arg.name for spec in signature.input_specs]
    arguments = {spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT}
    new = _written_places(program)
    written = [(node, place) for node, place in zip(outputs, new, strict=True) if place is not None]
    values = [node for node, _ in written]
    # A value that several inputs get, or that is itself an input, says nothing about memory.
    owners = (
        {node: place for node, place in written if values.count(node) == 1 and node.op == "call_function"}
        if _mutated_inputs(program)
        else {}
    )
    rest = iter(shared)
    found: list[Result] = []
    for node, place in zip(outputs, new, strict=True):
        if place is not None:
            found.append(Result(written=place))
            continue
        inputs = next(rest, frozenset())
        if isinstance(node, torch.fx.Node) and node.name in arguments & inputs:
            found.append(Result(owner=names.index(node.name)))
            continue
        owner = owner_of(node, owners) if isinstance(node, torch.fx.Node) else node
        lies_in = owners.get(owner)
        found.append(Result(owner=lies_in, is_view=owner is not node) if lies_in is not None and names[lies_in] in inputs else Result())
    return found


def state_value(program: ExportedProgram, name: Any) -> torch.Tensor | None:
    """Find the tensor of a parameter, buffer or constant; None if there is none of that name."""
    value = program.state_dict.get(name, program.constants.get(name))
    return value if isinstance(value, torch.Tensor) else None


def _mutated_inputs(program: ExportedProgram) -> tuple[int, ...]:
    """List the positions of the inputs whose new values are the first outputs; empty if other outputs come first."""
    places = _written_places(program)
    first = [place for place in places if place is not None]
    return tuple(first) if places[: len(first)] == first else ()


def _decomposed(
    program: ExportedProgram, table: dict[Any, Callable[..., Any]], on_failure: Callable[[str, str, Exception], None] | None
) -> ExportedProgram:
    """Decompose a program; if a decomposition raises, only what PyTorch always decomposes."""
    try:
        return _decomposed_by(program, table)
    except Exception as error:
        try:
            plain = _decomposed_by(program, {})
        except Exception as alone:
            if (written := _write_to_constant(program)) is not None:
                raise UsageError(written) from alone
            text = f"{type(alone).__name__}: {str(alone).strip().split(chr(10))[0]}"
            raise UsageError(f"PyTorch cannot decompose the traced program ({text}): change what it names, or take a part of it") from alone
        if on_failure is None:
            raise
        on_failure("lowering_failed", LOWERED_WITHOUT, error)
        return plain


def _write_to_constant(program: ExportedProgram, *, said: bool = True) -> str | None:
    """Say which line writes to a tensor that is neither an argument nor a parameter or buffer; None where none does.

    Of what a schema does not say, PyTorch knows nothing: such a write would be lost. It refuses others, when it decomposes the program.
    """
    specs = program.graph_signature.input_specs
    constants = {spec.arg.name: str(spec.target) for spec in specs if spec.kind is InputKind.CONSTANT_TENSOR}
    owners: dict[torch.fx.Node, str] = {node: constants[node.name] for node in program.graph.nodes if node.name in constants}
    for node in program.graph.nodes:
        arguments, given = getattr(getattr(node.target, "_schema", None), "arguments", ()), by_name(node.target, node.args, node.kwargs)
        unsaid = UNSAID_WRITES.get(node.target, ()) if given.get("use_input_stats", given.get("training")) else ()
        for argument in arguments:
            value, alias = given.get(argument.name), argument.alias_info
            if not isinstance(value, torch.fx.Node) or value not in owners or not (argument.name in unsaid or (said and alias is not None)):
                continue
            if argument.name in unsaid or (alias is not None and alias.is_write):
                line = user_line(node)
                where = f"{line.file}:{line.line} writes" if line.file else "the program writes"
                name = "" if owners[value].startswith("lifted_tensor") else f", {owners[value]!r}"
                return (
                    f"{where} to a tensor that is neither an argument nor a parameter or buffer{name}: register it as a buffer of the "
                    "module, with register_buffer, or pass it as an argument"
                )
            owners[node] = owners[value]
    return None


def _decomposed_by(program: ExportedProgram, table: dict[Any, Callable[..., Any]]) -> ExportedProgram:
    """Decompose a program; its guards gain those on which decompositions depend, but not those of tracing the guards themselves."""
    from ortlens.backend.operators.registry import results_known

    known = _torch.guard_texts(program)
    with _torch.quiet(), _torch.copies_kept(), results_known(), _inputs_apart(program), for_all_sizes():
        apart = _torch.without_objects(_torch.with_guards(program, ()), keys_of)  # to build objects may add operators
        made = apart.run_decompositions(noting(table))
    texts = (*known, *_torch.guard_texts(made))
    complete: ExportedProgram = _torch.with_structures(_torch.with_guards(made, texts), program.call_spec)
    return complete


@contextlib.contextmanager
def _inputs_apart(program: ExportedProgram) -> Iterator[None]:
    """Take inputs whose examples shared memory for separate tensors: PyTorch decomposes no program that writes to one of them."""
    nodes = zip(inputs_of(program.graph), program.graph_signature.input_specs, strict=True)
    values = {node: value for node, spec in nodes if spec.kind is InputKind.USER_INPUT and (value := _meta_of(node)) is not None}
    earlier: list[torch.Tensor] = []
    try:
        for node, value in values.items():
            if _torch.share_storage(value, earlier):
                lengths = [1 if isinstance(size, int) and not size else size for size in value.shape]
                span = 1 + last_place(lengths, value.stride())
                with _torch.fake_mode_of((value,)):
                    room = torch.empty(value.storage_offset() + span, dtype=value.dtype, device=value.device)
                    node.meta["val"] = room.as_strided(value.shape, value.stride(), value.storage_offset())
            earlier.append(value)
        yield
    finally:
        for node, value in values.items():
            node.meta["val"] = value


def _output_names(program: ExportedProgram) -> list[str]:
    """Name results by the keys that lead to them, as `logits` or `cache.0.key`, and new values by what they replace."""
    results = (".".join(map(str, path)) for path in paths_of(program.call_spec.out_spec))
    texts = (f"output_{text or 0}" if not text or text[0].isdecimal() else text for text in results)
    return [f"{spec.target}.updated" if spec.kind in _MUTATIONS else next(texts) for spec in program.graph_signature.output_specs]


def result_paths(program: ExportedProgram) -> list[str]:
    """Write the keys that lead to each leaf of the result, as `['cache'][0]`."""
    return ["".join(f"[{key!r}]" for key in path) for path in paths_of(program.call_spec.out_spec)]


def paths_of(spec: Any) -> list[tuple[Any, ...]]:
    """List the keys that lead to each leaf of a structure; places where its parts have no names."""
    if spec.is_leaf():
        return [()]
    children = spec.children()
    keys = keys_of(spec) or range(len(children))
    return [(key, *path) for key, child in zip(keys, children, strict=True) for path in paths_of(child)]


def keys_of(spec: Any) -> Sequence[Any] | None:
    """Return the names of a structure's parts; None where they have none."""
    named = getattr(spec.context, "_fields", spec.context)  # a named tuple has its class there
    nested = [each for each in (named if isinstance(named, (list, tuple)) else ()) if isinstance(each, (list, tuple))]
    return next((keys for keys in (named, *nested) if _are_keys(keys, spec.num_children)), None)


def _are_keys(keys: Any, count: int) -> bool:
    return isinstance(keys, (list, tuple)) and len(keys) == count and all(isinstance(key, (str, int)) for key in keys)
