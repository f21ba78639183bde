"""Sessions: the configuration of one, and what is known about it once it has been created."""

from __future__ import annotations

import contextlib
import enum
import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import onnxruntime
import torch

from ortlens import _ort
from ortlens._process import at_cost
from ortlens.backend.basis import dtypes
from ortlens.backend.basis.memory_order import memory_order
from ortlens.backend.runtime import binding, cuda, devices, in_place, threads, weights
from ortlens.backend.runtime.binding import BoundInput, Output
from ortlens.backend.runtime.packed_weights import with_packed_weights
from ortlens.backend.runtime.processor import exact_products, stalls_at_denormals
from ortlens.backend.runtime.rewrites import unwanted_rewrites
from ortlens.backend.runtime.session_forms import with_layers_for_cuda, with_normal_weights, with_overflow_checks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx

    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.backend.partitioning.plan import GraphPartition
    from ortlens.backend.runtime.threads import ThreadChoice
    from ortlens.backend.runtime.weights import FrozenWeight
    from ortlens.trace.records import SessionCause


Providers: TypeAlias = list[tuple[str, dict[str, Any]]]

_QUIET = 4  # ONNX Runtime's severity "fatal": errors are raised with their reason anyway


class ModelRefused(Exception):  # noqa: N818 - a verdict on a model; the graph is then planned again
    """ONNX Runtime rejects a model; its own exception is the cause."""


class ProviderNotLoaded(Exception):  # noqa: N818 - PyTorch runs the graph then
    """A session was to run on a device, and ONNX Runtime could not load the provider for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Everything that ONNX Runtime needs to create a session."""

    model: onnx.ModelProto  # the model, with frozen weights as initializers
    options: onnxruntime.SessionOptions
    providers: Providers  # names and options of the execution providers, in order; none where `options` name devices
    threads: threads.ThreadChoice  # threads of the session, and why these
    weights: Sequence[Any] = ()  # values that the options refer to; the session is given them to keep alive
    calls: cuda.DeviceCalls | None = None  # how the session is called; None: without more ado

    def session(self, serialized: bytes, *, without: Sequence[str] = ()) -> onnxruntime.InferenceSession:
        """Create the session, with `without` disabled as well.

        Raise `ModelRefused` if ONNX Runtime rejects the model, `ProviderNotLoaded` if it has no provider for the device.
        """
        try:
            with contextlib.nullcontext() if self.calls is None else _ort.quiet():
                made = onnxruntime.InferenceSession(
                    serialized,
                    self.options,
                    providers=self.providers or None,
                    enable_fallback=0,
                    disabled_optimizers=[*self.disabled(), *without],
                )
        except Exception as error:
            raise ModelRefused(str(error)) from error
        if self.calls is not None and cuda.PROVIDER not in made.get_providers():
            raise ProviderNotLoaded(f"ONNX Runtime could not load {cuda.PROVIDER}; `ortlens doctor` says which library it lacks")
        _ort.keep_with(made, self.weights, self.calls)
        return made

    def disabled(self) -> list[str]:
        """Name the rewrites of ONNX Runtime that are disabled: ours, and the user's, which names passed with the session replace."""
        by_user = filter(None, _ort.config_entry(self.options, _DISABLED_ENTRY).split(";"))
        return [*unwanted_rewrites(self.model, self.providers), *by_user]


def default_session_options(choice: threads.ThreadChoice) -> onnxruntime.SessionOptions:
    """Make the options of one session for when the user gives no `ort_session_options`."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    for entry in exact_products():
        options.add_session_config_entry(*entry)
    choice.apply(options)
    return options


_DISABLED_ENTRY = "optimization.disable_specified_optimizers"


class Extras(enum.IntEnum):
    """What a session on a device has beside its model. Where ONNX Runtime refuses one, the next is tried."""

    NONE = 0  # calls wait for the device
    STREAM = 1  # a stream of its own, and weights in PyTorch's memory
    GRAPHS = 2  # and it may capture CUDA graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session with its inputs and outputs. The first eight fields are those of PyTorch's removed backend."""

    input_names: tuple[str, ...]  # names of the inputs that are bound in each call
    output_names: tuple[str, ...]
    input_value_infos: tuple[onnx.ValueInfoProto, ...]  # ONNX types and shapes of the inputs
    output_value_infos: tuple[onnx.ValueInfoProto, ...]  # ONNX types and shapes of the outputs
    input_devices: tuple[torch.device, ...]  # torch devices of the partition's inputs
    output_devices: tuple[torch.device, ...]  # torch devices of the partition's outputs
    providers: tuple[str, ...]  # execution providers that ONNX Runtime registered
    session: onnxruntime.InferenceSession
    wanted_providers: tuple[str, ...]  # execution providers that were requested
    create_ns: int  # time to create the session
    frozen: tuple[FrozenWeight, ...]  # weights that the session holds as constants
    # Sizes that the session is fixed to, by the name of the symbolic dimension; empty for a session of all sizes.
    dimensions: Mapping[str, int]
    threads: ThreadChoice  # threads of the session, and why these
    held_bytes: int | None  # heap memory that creating the session took; None where the C library does not report it
    cause: SessionCause  # why the session was created, as in the column `cause` of the frame `sessions`
    copied_bytes: int  # size of the frozen weights that the session does not read in torch's memory: packed, rearranged or inside the model
    shareable_bytes: int  # size of the frozen weights that it would read there with `prepack_weights=False`
    extras: Extras  # what it has beside its model
    calls: cuda.DeviceCalls | None  # how it is called; None: without more ado


def signature_text(info: SessionInfo, partition: GraphPartition) -> str:
    """Write the dtypes and shapes that a session accepts, such as `f32[2,8] i64[s0]`, without frozen weights."""
    frozen = {weight.name for weight in info.frozen}
    return " ".join(_value_text(node.meta["val"]) for node in partition.inputs if node.name not in frozen)


def _value_text(meta: Any) -> str:
    if not isinstance(meta, torch.Tensor):
        return type(meta).__name__.removeprefix("Sym").lower()
    sizes = ",".join(str(size) for size in meta.shape)
    return f"{dtypes.ELEMENT_TYPES[meta.dtype].short}[{sizes}]"


_ADVICE = "; pre_ort_model_transforms must keep the inputs by name, and the order and types of the outputs"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SessionFactory:
    """Everything that the sessions of a partition have in common."""

    partition: GraphPartition
    model: onnx.ModelProto  # its ONNX model, with weights as inputs
    permutations: Sequence[tuple[int, ...] | None]  # memory order of each output; None where an output is contiguous
    options: OrtBackendOptions
    alternates: bool  # whether PyTorch computes something before or after the partition in every call
    work: int | None  # amount of computation, as counted by `threads.work_of`
    weight_inputs: frozenset[int] = frozenset()  # positions of the inputs that are parameters or buffers
    freezes: bool = False  # whether these may become constants of a session
    updates: Mapping[int, int] = field(default_factory=dict)  # see `in_place.updates_of`; without, each run returns new tensors
    cached: bool = False  # whether an earlier process converted the model
    replays: bool = False  # whether its sessions may capture CUDA graphs
    threads: ThreadChoice | None = None  # threads for every session; None: chosen anew for each one
    output_names: Sequence[str] = ()  # names of the outputs as converted, before the user's transforms; empty if they are not known

    def input_names(self) -> list[str]:
        """List the names of all inputs of the partition, in the order of its arguments."""
        return [node.name for node in self.partition.module.graph.nodes if node.op == "placeholder"]

    def bound_names(self) -> set[str]:
        """List the names of the inputs that the model takes: the optimizer may have removed others."""
        return {value.name for value in self.model.graph.input}

    def weight_nodes(self) -> frozenset[torch.fx.Node]:
        """Return the inputs that are parameters or buffers."""
        return frozenset(self.partition.inputs[place] for place in self.weight_inputs)

    def updated_in_place(self) -> frozenset[torch.fx.Node]:
        """Find the outputs of the partition that its sessions may write over the old values, if no inputs overlap."""
        names, given = [value.name for value in self.model.graph.output], self.input_names()
        safe = in_place.safe_pairs(self.model, {names[new]: given[old] for new, old in self.updates.items()})
        return frozenset(self.partition.outputs[new] for new in self.updates if names[new] in safe)

    def outputs_in_place(self, session: onnxruntime.InferenceSession, frozen: Sequence[FrozenWeight]) -> list[Output]:
        """Return the outputs of a session of this model, of which some take the memory of inputs."""
        return in_place.with_memory_of_inputs(self.outputs(session), self.inputs(frozen), self.updates, self.model)

    def with_copies(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Copy the inputs that runs update in place, so that a run can be repeated; a copy of a weight would be another weight."""
        updated = set(self.updates.values())
        return tuple(arg.clone() if place in updated else arg for place, arg in enumerate(args))

    def check_boundary(self) -> None:
        """Raise `ModelRefused` if a user's transform changed inputs or outputs, so that calls would fail or mix up outputs."""
        inputs = {name: node.meta["val"] for name, node in zip(self.input_names(), self.partition.inputs, strict=True)}
        outputs = [node.meta["val"] for node in self.partition.outputs]
        if said := mismatch(self.model, inputs, outputs, self.output_names):
            raise ModelRefused(said)

    def dimensions(self, args: Sequence[Any]) -> dict[str, int]:
        """Map each symbolic dimension, by its name in the model, to its size in some arguments."""
        sizes: dict[str, int] = {}
        for node, arg in zip(self.partition.inputs, args, strict=True):
            if isinstance(arg, torch.Tensor):
                for meta, size in zip(node.meta["val"].shape, arg.shape, strict=True):
                    if not isinstance(meta, int):
                        sizes[str(meta.node.expr)] = size
        return sizes

    def config(
        self,
        frozen: Sequence[FrozenWeight],
        dimensions: Mapping[str, int],
        model: onnx.ModelProto | None = None,
        *,
        extras: Extras = Extras.STREAM,
    ) -> SessionConfig:
        """Choose the model, options, execution providers and threads of a session.

        `dimensions` are ignored with the user's own `SessionOptions`, which serve many sessions. `model` replaces the partition's own, and
        has weights as inputs. `extras` count for a session on a device.
        """
        # The user's SessionOptions serve many sessions and must not collect their weights: then the bytes go into the model.
        given = self.options.ort_session_options
        made = self._session_model(frozen, model, extras, -1 if given is None else math.inf)
        chosen = self._threads()
        options = given or default_session_options(chosen)
        for name, size in dimensions.items() if given is None else ():
            options.add_free_dimension_override_by_name(name, size)
        values: list[Any] = []
        if frozen and given is None:
            read = {tensor.name for tensor in made.graph.initializer}
            shared = self._shareable(made) if extras or self.device_of_calls() is None else frozenset()
            try:
                values = weights.add_initializers([weight for weight in frozen if weight.name in read], options, shared)
            except (RuntimeError, TypeError) as error:  # a build that cannot read the memory of the device
                raise ModelRefused(str(error)) from error
        if given is None and not self.options.prepack_weights:  # kernels read weights as they are
            options.add_session_config_entry("session.disable_prepacking", "1")
        wanted = devices.providers_for(self._devices(), self.options)
        if [name for name, _ in wanted] != [devices.CPU]:
            _ort.record_assignments(options)
        calls, wanted = self._calls(made, wanted, extras, dimensions)
        return SessionConfig(model=made, options=options, providers=wanted, threads=chosen, weights=values, calls=calls)

    def _session_model(
        self, frozen: Sequence[FrozenWeight], model: onnx.ModelProto | None, extras: Extras, inline_bytes: float
    ) -> onnx.ModelProto:
        plain = model or binding.without_last_reshapes(self.model)
        made = weights.with_frozen(plain, list(frozen), inline_bytes=inline_bytes) if frozen else plain
        if frozen and self.options.ort_session_options is None and self._is_on_cpu():  # the user's options may disable folding
            made = with_packed_weights(made, frozen)
        if self._is_on_cpu() and stalls_at_denormals():
            made = with_normal_weights(made, frozen)
        if self._is_on_cpu():
            made = with_overflow_checks(made)
        if extras and self.device_of_calls() is not None:
            made = with_layers_for_cuda(made)
        return binding.with_permuted_inputs(made, self._orders(frozen))

    def request(self, info: SessionInfo, model_id: str) -> _ort.SessionRequest:
        """Describe one of its sessions, so that another process can make one like it: large weights are zeros, which take no disk."""
        options, wanted = _ort.options_of(info.session), devices.providers_for(self._devices(), self.options)

        def written(folder: Path) -> tuple[str, list[str]]:
            made = self._session_model(info.frozen, None, min(info.extras, Extras.STREAM), weights.WHOLE_BYTES)
            with (folder / weights.LOCATION).open("ab") as file:
                file.truncate(max([file.tell(), *(weight.contiguous.nbytes for weight in info.frozen)]))
            (path := folder / f"{model_id}.onnx").write_bytes(made.SerializeToString())
            config = SessionConfig(model=made, options=options or onnxruntime.SessionOptions(), providers=wanted, threads=info.threads)
            return str(path), config.disabled()

        return _ort.SessionRequest(model_id, wanted or _ort.requested_of(info.session), options, written, info.dimensions)

    def _calls(
        self, model: onnx.ModelProto, wanted: Providers, extras: Extras, dimensions: Mapping[str, int]
    ) -> tuple[cuda.DeviceCalls | None, Providers]:
        """Choose how a session is called, if it is one on a device, and complete the options of its provider."""
        found = self.device_of_calls()
        if found is None or found[1].provider not in dict(wanted):
            return None, wanted
        device, kind = found
        metas = [node.meta["val"] for node in (*self.partition.inputs, *self.partition.outputs)]
        waits = any(isinstance(meta, torch.Tensor) and meta.device.type == "cpu" for meta in metas)
        waits |= any(not isinstance(node.meta["val"], torch.Tensor) for node in self.partition.outputs)
        given = dict(wanted)[kind.provider]
        needs = cuda.CallNeeds(
            waits=waits,
            plain=not extras,
            replays=extras is Extras.GRAPHS,
            varies=self.partition.has_symbolic_sizes and not dimensions,
            channels_last=bool(extras) and cuda.is_faster_with_channels_last(model),
        )
        calls = kind.calls(device, given, cuda.tf32_kinds(model), needs)  # type: ignore[misc]  # it has them
        return calls, [(name, calls.settings if name == kind.provider else settings) for name, settings in wanted]

    def device_of_calls(self) -> tuple[torch.device, devices.DeviceKind] | None:
        """Return the device that decides how sessions are called; None if they are called without more ado."""
        kinds = ((device, devices.kind_of(device)) for device in self._devices())
        return next((found for found in kinds if found[1].calls is not None), None)

    def session(self, frozen: Sequence[FrozenWeight], dimensions: Mapping[str, int], *, cause: SessionCause) -> SessionInfo:
        """Create a session, on a device with all the extras that ONNX Runtime takes. Raise `ModelRefused` if it rejects the model."""
        wanted = self.options.cuda_graph
        replays = self.replays and (wanted is True or (wanted == "auto" and not self.partition.has_symbolic_sizes))
        on_device = (Extras.GRAPHS, Extras.STREAM, Extras.NONE)[not replays :]
        refused = False
        for extras in (Extras.NONE,) if self.device_of_calls() is None else on_device:
            try:
                made = self._session_with(extras, frozen, dimensions, cause)
            except ModelRefused:
                if not extras:
                    raise
                refused |= extras is Extras.GRAPHS
                continue
            if refused and made.calls is not None:
                made.calls.graph_use = "refused"
            return made
        raise AssertionError("the last attempt returns or raises")

    def _session_with(
        self, extras: Extras, frozen: Sequence[FrozenWeight], dimensions: Mapping[str, int], cause: SessionCause
    ) -> SessionInfo:
        """Create a session with some extras, and measure the time and memory that this takes."""
        config = self.config(frozen, dimensions, extras=extras)
        serialized = config.model.SerializeToString()
        session, create_ns, held_bytes = at_cost(functools.partial(config.session, serialized))
        shareable = self._shareable(config.model)
        unpacked = bool(extras) or not self.options.prepack_weights
        return SessionInfo(
            input_names=tuple(value.name for value in config.model.graph.input),
            output_names=tuple(value.name for value in config.model.graph.output),
            input_value_infos=tuple(config.model.graph.input),
            output_value_infos=tuple(config.model.graph.output),
            input_devices=tuple(_device(node.meta["val"]) for node in self.partition.inputs),
            output_devices=tuple(_device(node.meta["val"]) for node in self.partition.outputs),
            providers=tuple(session.get_providers()),
            session=session,
            wanted_providers=tuple(name for name, _ in config.providers) or tuple(session.get_providers()),
            create_ns=create_ns,
            frozen=tuple(frozen),
            dimensions=dimensions,
            threads=config.threads,
            held_bytes=held_bytes,
            copied_bytes=weights.copied_bytes(frozen, shared=shareable if unpacked else frozenset()),
            shareable_bytes=weights.shareable_bytes(frozen, shareable) if self._is_on_cpu() else 0,
            cause=cause,
            extras=extras,
            calls=config.calls,
        )

    def inputs(self, frozen: Sequence[FrozenWeight]) -> list[BoundInput]:
        """Describe the inputs of a call of a session: one per input of the partition, in the order of its arguments."""
        bound, orders, by_name = self.bound_names(), self._orders(frozen), {weight.name: weight for weight in frozen}
        return [
            BoundInput(
                name=name,
                meta=node.meta["val"],
                frozen=by_name.get(name),
                bound=name in bound,
                permutation=orders.get(name),
                guarded=node.op == "placeholder",
            )
            for name, node in zip(self.input_names(), self.partition.inputs, strict=True)
        ]

    def outputs(self, session: onnxruntime.InferenceSession) -> list[Output]:
        """Describe the outputs of a call of a session: one per output of the partition, in order."""
        shapes = {value.name: value.shape for value in session.get_outputs()}
        names = [value.name for value in self.model.graph.output]
        made = []
        for name, node, order in zip(names, self.partition.outputs, self.permutations, strict=True):
            meta = node.meta["val"]
            sizes = list(meta.shape) if isinstance(meta, torch.Tensor) else []
            shape = binding.given_shape(shapes[name], sizes if order is None else [sizes[dim] for dim in order])
            made.append(Output(name=name, meta=meta, permutation=order, shape=shape))
        return made

    def _shareable(self, model: onnx.ModelProto) -> frozenset[str]:
        """Find the weights that a session can read in torch's memory; none with the user's own options, which hold no weights."""
        ours = self.options.ort_session_options is None and devices.runs_on_cpu_alone(self.options)
        return weights.shareable(model) if ours else frozenset()

    def _is_on_cpu(self) -> bool:
        return devices.runs_on_cpu_alone(self.options) and all(device.type == "cpu" for device in self._devices())

    def _orders(self, frozen: Sequence[FrozenWeight]) -> dict[str, tuple[int, ...]]:
        """Return the memory order of the inputs that are not contiguous. Of frozen weights the session has contiguous copies."""
        bound = self.bound_names() - {weight.name for weight in frozen}
        orders = {name: memory_order(node.meta["val"]) for name, node in zip(self.input_names(), self.partition.inputs, strict=True)}
        return {name: order for name, order in orders.items() if order is not None and name in bound}

    def _threads(self) -> ThreadChoice:
        given = self.options.ort_session_options
        if self.threads is not None:
            return self.threads
        return threads.choose(self.work, alternates=self.alternates) if given is None else threads.of_the_user(given)

    def _devices(self) -> list[torch.device]:
        given = [node for node in self.partition.inputs if isinstance(node.meta["val"], torch.Tensor)]
        return [devices.memory_of(_device(node.meta["val"])) for node in given or self.partition.outputs]


def _device(meta: Any) -> torch.device:
    return meta.device if isinstance(meta, torch.Tensor) else torch.device("cpu")


def mismatch(model: onnx.ModelProto, inputs: Mapping[str, Any], outputs: Sequence[Any], names: Sequence[str]) -> str | None:
    """Describe how a model's inputs and outputs differ from its partition's, and what to do; None if they do not.

    A transform may rename an output that it computes in another way, and drop an input. It may not reorder outputs, because they are
    returned by position, nor change element types or numbers of dimensions.
    """
    unknown = [value.name for value in model.graph.input if value.name not in inputs]
    if unknown:
        return f"the model has inputs {sorted(unknown)} that the partition has not{_ADVICE}"
    if len(model.graph.output) != len(outputs):
        return f"the model has {len(model.graph.output)} outputs, the partition {len(outputs)}{_ADVICE}"
    found = [value.name for value in model.graph.output]
    for place, name in enumerate(found):
        if name in names and names[place] != name:
            return f"the outputs are reordered: {name} was output {names.index(name)} and is output {place}{_ADVICE}"
    boundary = [("input", value, inputs[value.name]) for value in model.graph.input]
    boundary += [("output", value, meta) for value, meta in zip(model.graph.output, outputs, strict=True)]
    return next((said for kind, value, meta in boundary if (said := _difference(kind, value, meta))), None)


def _difference(kind: str, value: onnx.ValueInfoProto, meta: Any) -> str | None:
    if not isinstance(meta, torch.Tensor):
        return None
    tensor = value.type.tensor_type
    wanted, rank = dtypes.ELEMENT_TYPES[meta.dtype].onnx, meta.dim()
    if tensor.elem_type not in (0, wanted):
        return f"{kind} {value.name} has element type {tensor.elem_type} of ONNX, PyTorch expects {wanted} ({meta.dtype}){_ADVICE}"
    if tensor.HasField("shape") and len(tensor.shape.dim) != rank:
        return f"{kind} {value.name} has {len(tensor.shape.dim)} dimensions, PyTorch expects {rank}{_ADVICE}"
    return None
