"""The hot path: bind the inputs, run the session, return the outputs.

Everything known when the session is created is written into the source of one straight-line function per session: names,
devices, element types, sizes. What remains per call is a pointer and a shape per input, an allocation per output, the run,
and four clock readings. A binding remembers where tensors of fixed sizes lay: what lies there still is not bound again.

A binding serves one call at a time. Free bindings wait in a list whose `pop` and `append` are atomic, so that threads never
share one and no lock is needed.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from ortlens import _ort, _torch
from ortlens.backend.basis import dtypes
from ortlens.backend.basis.memory_order import (
    are_disjoint,
    has_fixed_sizes,
    has_odd_strides,
    inverse_order,
    merged,
    needs_restride,
    reorder,
    restride,
)
from ortlens.backend.runtime import cuda, devices
from ortlens.backend.runtime.binding import Binding, number_buffer, permuted_name
from ortlens.backend.runtime.generated import Emitter, bytes_text, function_from_source, listed, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnxruntime

    from ortlens.backend.runtime.binding import BoundInput, Output
    from ortlens.backend.runtime.generated import Lines
    from ortlens.trace.runlog import RunLog

_KEPT_ADDRESSES = 16  # calls whose inputs lay elsewhere, of which it is known whether they overlap


class HalfWrittenError(Exception):
    """A run failed that may have updated some of its inputs already: no second run computes what it was to compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpec:
    """What a call of a session is to do."""

    inputs: Sequence[BoundInput]  # what it takes
    outputs: Sequence[Output]  # it returns a tuple of all
    on_stale: Callable[[tuple[Any, ...]], tuple[Any, ...]]  # called instead when a frozen weight has changed, as far as `intact` looks
    on_failure: Callable[[tuple[Any, ...], Exception], tuple[Any, ...]]  # likewise when ONNX Runtime raises
    count: Callable[[], object]
    log: RunLog | None = None
    preallocate: bool = False  # outputs of symbolic size too, where their sizes follow from the inputs
    rest: Callable[[], object] | None = None  # called before a run
    intact: Callable[[], bool] | None = None
    constants: Sequence[tuple[BoundInput, torch.Tensor]] = ()  # further inputs, which stay
    replays: bool | Literal["auto"] = False  # the option `cuda_graph`


def make_call(session: onnxruntime.InferenceSession, spec: CallSpec) -> Callable[..., tuple[Any, ...]]:
    """Generate the function that calls a session."""

    def new_binding() -> Binding:
        return Binding(session, spec.inputs, spec.outputs, spec.constants)

    writer, log = _Writer(session, spec), spec.log
    source = writer.source()
    scope = {
        **writer.constants,
        **writer.graphs(new_binding),
        "free": [],
        "new_binding": new_binding,
        "clock": time.perf_counter_ns,
        "thread": threading.get_ident,
        "empty": torch.empty,
        "tensor_over": _ort.tensor_over,
        "with_memory": _with_memory,
        "empty_in_order": torch.empty_permuted,
        "reorder": reorder,
        "restride": restride,
        "math": math,
        "on_stale": spec.on_stale,
        "on_failure": spec.on_failure,
        "count": spec.count,
        "rest": spec.rest,
        "intact": spec.intact,
        "log": None if log is None else log.record,
        "unlogged": None if log is None else log.on_failure,
    }
    return function_from_source("call", source, scope)


class _Writer:
    """Writes the source of one call. All names in it are made here; user names appear as constants only."""

    def __init__(self, session: onnxruntime.InferenceSession, spec: CallSpec) -> None:
        self._spec, self._inputs, self._outputs = spec, spec.inputs, spec.outputs
        self._passed = {index: item for index, item in enumerate(spec.inputs) if item.frozen is None and item.bound}  # in each call
        self._calls: cuda.DeviceCalls | None = _ort.calls_of(session)
        # With calls of a device, ONNX Runtime's memory would be copied.
        self._sizes = _Sizes(spec.inputs, symbolic=spec.preallocate or self._calls is not None)
        self._replays = spec.replays if self._can_replay() else False
        self._varying = self._inputs_by_size(session) if self._calls is None else []
        self._emitter = Emitter()
        self.constants = self._emitter.scope

    def _inputs_by_size(self, session: onnxruntime.InferenceSession) -> list[int]:
        """List inputs that tell how large a call is: one for each size that varies."""
        shapes = {value.name: value.shape for value in session.get_inputs()}
        known: set[str] = set()
        found = []
        for index, item in self._passed.items():
            sizes = {str(size) for size in shapes.get(_input_name(item), ()) if not isinstance(size, int)}
            if sizes - known and isinstance(item.meta, torch.Tensor):
                known |= sizes
                found.append(index)
        return found

    def _can_replay(self) -> bool:
        """Tell whether buffers can take the place of all inputs and outputs."""
        if self._calls is None or not self._calls.replays:
            return False
        device = self._calls.device
        metas = [item.meta for item in self._passed.values()] + [item.meta for item in self._outputs]
        on_device = all(isinstance(meta, torch.Tensor) and meta.device == device and 0 not in meta.shape for meta in metas)
        return on_device and all(self._sizes.shape(output) is not None for output in self._outputs)

    def graphs(self, new_binding: Callable[[], Binding]) -> dict[str, Any]:
        """Return the global that replays CUDA graphs, if the calls do."""
        if not self._replays or self._calls is None:
            return {}
        inputs = [_place(_input_name(item), item.meta, is_steady=item.steady) for item in self._passed.values()]
        outputs = [_place(output.name, output.meta) for output in self._outputs]
        made = cuda.Graphs(self._calls, inputs, outputs, new_binding, always=self._replays is True)
        return {"replay": made.replay}

    def source(self) -> str:
        recording = self._spec.log is not None
        params = listed(f"a{i}" for i in range(len(self._inputs)))
        head = ["t0 = clock()"] if recording else []
        if self._calls is not None:
            self.constants |= {"capturing": cuda.is_capturing, "captured": cuda.CalledInCapture}
            head.append(f"if capturing(): return on_failure(({params}), captured())")
        checks = self._staleness()
        checks += ["if not intact(): break"] if self._spec.intact is not None else []
        body = [*self._body(recording=recording), "count()"]
        # A failure to record the run is none of the run.
        body += ["try: log(t0, t1, t2, clock(), thread())", "except Exception as error: unlogged(error)"] if recording else []
        body.append(f"return ({listed(f'r{i}' for i in range(len(self._outputs)))})")
        guarded: Lines = ["try:", body, f"except Exception as error: return on_failure(({params}), error)"]
        if checks:  # all leave the block: with a call in each, the source would grow with the square of the weights
            guarded = ["while True:", [*checks, *guarded], f"return on_stale(({params}))"]
        return source_of(f"call({params})", [*head, *guarded])

    def _body(self, *, recording: bool) -> Lines:
        """Bind the inputs in `a0`, `a1`, ..., run, and leave the outputs in `r0`, `r1`, ..."""
        taken = [(self._take_input(index, item), self._bind_input(index, item)) for index, item in self._passed.items()]
        made = [(self._make_output(index, output), self._bind_output(index, output)) for index, output in enumerate(self._outputs)]
        ready = [] if not self._replays else [line for lines, _ in (*taken, *made) for line in lines]
        binding = [line for take, bind in taken for line in (*(() if ready else take), *bind)]
        if self._varying:
            binding += [f"elements = {' + '.join(f'i{index}.numel()' for index in self._varying)}"]
            binding += ["if elements != b.elements: b.resize(elements)", "spares = b.spares"]
        binding += self._apart()
        binding += [line for make, bind in made for line in (*(() if ready else make), *bind)]
        pop = ["try: b = free.pop()", "except IndexError: b = new_binding()", "bind_input = b.bind_input", "bind_output = b.bind_output"]
        pop += ["inputs_at = b.inputs_at"] if any("inputs_at[" in line for line in binding) else []
        pop += ["outputs_at = b.outputs_at"] if any("outputs_at[" in line for line in binding) else []
        body = [*pop, *self._ranged("bind", binding)]
        body += ["rest()"] if self._spec.rest is not None else []  # after binding, which may copy inputs with PyTorch's threads
        body += ["t1 = clock()"] if recording else []
        body += self._ranged("run", self._run())
        body += ["t2 = clock()"] if recording else []
        if not self._replays:
            return [*body, *self._ranged("output", self._collect()), "free.append(b)"]
        timed = [*ready, "t1 = clock()"] if recording else ready
        inputs, outputs = listed(f"i{index}" for index in self._passed), listed(f"(r{i}, {self._bound(i)})" for i in range(len(made)))
        replayed = f"if replay(({inputs}), ({outputs})): {'t2 = clock()' if recording else 'pass'}"
        return [*timed, replayed, "else:", [*body, "free.append(b)"], *self._collect()]

    def _run(self) -> list[str]:
        if self._calls is not None:
            self.constants["run"] = self._calls.run
            return ["run(b)"]
        if all(output.in_place is None or output.repeatable for output in self._outputs):
            return ["b.run(b.native, None)"]
        self.constants["half_written"] = HalfWrittenError
        failed = ["except Exception as error:", "    if apart: raise half_written(str(error)) from error", "    raise"]
        return ["try: b.run(b.native, None)", *failed]

    def _ranged(self, part: str, lines: list[str]) -> list[str]:
        """Put lines inside a range of the device's profiler, if there is one."""
        if (ranges := devices.profiler_ranges()) is None:
            return lines
        self.constants.update(zip(("range_push", "range_pop"), ranges, strict=True))
        return [f"range_push('ortlens {part}')", *lines, "range_pop()"]

    def _staleness(self) -> list[str]:
        checks = []
        for index, item in enumerate(self._inputs):
            if item.frozen is not None:
                weight = self._emitter.constant(item.frozen.tensor, "w")
                same = (
                    f"a{index} is {weight} and a{index}._version == {item.frozen.version} and a{index}.data_ptr() == {item.frozen.pointer}"
                )
                if item.frozen.sample is not None:
                    same += f" and {self._emitter.constant(item.frozen.sampled, 'q')} == {self._emitter.constant(item.frozen.sample, 's')}"
                checks.append(f"if not ({same}): break")
        return checks

    def _take_input(self, index: int, item: BoundInput) -> list[str]:
        """Arrange an input as the session takes it."""
        if not isinstance(item.meta, torch.Tensor):
            return []
        # PyTorch's operators do not always return the dtype of the trace (statistics of norms under autocast).
        dtype = self._emitter.constant(item.meta.dtype, "k")
        turn = ".resolve_neg()" if item.meta.is_neg() else ""  # the memory of a negative view holds the values before the sign changed
        turn += "" if item.permutation is None else f".permute({item.permutation!r})"
        given = f"(a{index} if a{index}.dtype is {dtype} else a{index}.to({dtype}))"
        given += ".cpu()" * devices.kind_of(item.meta.device).is_copied
        return [f"i{index} = {given}{turn}", f"if not i{index}.is_contiguous(): i{index} = i{index}.contiguous()"]

    def _bind_input(self, index: int, item: BoundInput) -> list[str]:
        name = self._emitter.constant(_input_name(item), "n")
        if not isinstance(item.meta, torch.Tensor):
            filled = f"b.numbers[{name}].fill_(a{index})"
            if self._calls is None:
                return [filled]
            # To bind a value of the host to a session on a device is to copy it.
            device, buffer = self._emitter.constant(devices.ort_device(torch.device("cpu")), "d"), number_buffer(item.meta)
            return [filled, f"bind_input({name}, {device}, {dtypes.ELEMENT_TYPES[buffer.dtype].onnx}, (), b.numbers[{name}].data_ptr())"]
        device = self._emitter.constant(devices.ort_device(item.meta.device), "d")
        element = dtypes.ELEMENT_TYPES[item.meta.dtype].onnx
        bind = f"bind_input({name}, {device}, {element}, i{index}.shape, p{index})"
        stays = item.guarded and (self._calls is None or item.meta.device.type != "cpu")  # likewise
        return [
            f"p{index} = i{index}.data_ptr()",
            f"if not p{index}: i{index} = with_memory(i{index}); p{index} = i{index}.data_ptr(){self._or_scratch(item.meta)}",
            *(_bound_at(item.meta, f"inputs_at[{index}]", f"p{index}", bind) if stays else [bind]),
        ]

    def _apart(self) -> list[str]:
        """Find out whether inputs overlap, or frozen weights, if an output is to take the memory of one; addresses change rarely."""
        if all(output.in_place is None for output in self._outputs):
            return []
        places = [(index, item.meta) for index, item in self._passed.items() if isinstance(item.meta, torch.Tensor)]
        weights = [item.frozen.contiguous for item in self._inputs if item.frozen is not None]
        frozen = merged((weight.data_ptr(), weight.nbytes) for weight in weights)
        written = frozenset(at for at, (index, _) in enumerate(places) if any(output.in_place == index for output in self._outputs))
        check = functools.partial(are_disjoint, written, frozen)
        self.constants["are_disjoint"] = functools.lru_cache(maxsize=_KEPT_ADDRESSES)(check)
        blocks = "".join(f"p{index}, {bytes_text(f'i{index}', meta)}, " for index, meta in places)
        return [f"apart = are_disjoint({blocks.removesuffix(', ')})"]

    def _make_output(self, index: int, output: Output) -> list[str]:
        """Allocate an output, if its size is known before the run."""
        if not isinstance(output.meta, torch.Tensor):
            dtype = self._emitter.constant(number_buffer(output.meta).dtype, "y")
            return [f"r{index} = empty((), dtype={dtype}, device={self._emitter.constant(torch.device('cpu'), 'place')})"]
        shape = self._sizes.shape(output)
        if shape is None:
            return []
        dtype = self._emitter.constant(output.meta.dtype, "y")
        memory = self._emitter.constant(devices.memory_of(output.meta.device), "place")
        place = f"device={memory}"  # said, as the user may have set a default device
        made = f"empty(z{index}, dtype={dtype}, {place})"
        if output.permutation is not None:  # not a permuted view: PyTorch refuses in-place writes to views that a training graph returns
            made = f"empty_in_order({self._sizes.text(output.meta.shape)}, {output.permutation!r}, dtype={dtype}, {place})"
        fresh = [f"z{index} = {shape}", f"r{index} = {made}"]
        if output.in_place is not None:
            taken = f"r{index}, g{index}, z{index} = i{output.in_place}, p{output.in_place}, {shape}"
            return [f"if apart: {taken}", f"else: {'; '.join((*fresh, self._address(index, output)))}"]
        return fresh

    def _address(self, index: int, output: Output) -> str:
        return f"g{index} = r{index}.data_ptr(){self._or_scratch(output.meta)}"

    def _bound(self, index: int) -> str:
        """Write the source of the shape that the session writes."""
        shape = self._outputs[index].shape
        return f"z{index}" if shape is None else repr(shape)

    def _bind_output(self, index: int, output: Output) -> list[str]:
        name = self._emitter.constant(output.name, "o")
        if not isinstance(output.meta, torch.Tensor):
            device = self._emitter.constant(devices.ort_device(torch.device("cpu")), "e")
            element = dtypes.ELEMENT_TYPES[number_buffer(output.meta).dtype].onnx
            return [f"bind_output({name}, {device}, {element}, (), r{index}.data_ptr())"]
        device = self._emitter.constant(devices.ort_device(output.meta.device), "e")
        if self._sizes.shape(output) is None:
            sizes = self._spared_sizes(output)
            if sizes is None:
                return [f"bind_output({name}, {device})"]
            dtype, element = self._emitter.constant(output.meta.dtype, "y"), dtypes.ELEMENT_TYPES[output.meta.dtype].onnx
            place = self._emitter.constant(devices.memory_of(output.meta.device), "place")
            made = f"z{index} = {sizes}; r{index} = empty(z{index}, dtype={dtype}, device={place}); {self._address(index, output)}"
            spared = f"{made}; bind_output({name}, {device}, {element}, z{index}, g{index})"
            return [f"if spares: {spared}", f"else: bind_output({name}, {device})"]
        element = dtypes.ELEMENT_TYPES[output.meta.dtype].onnx
        bind = f"bind_output({name}, {device}, {element}, {self._bound(index)}, g{index})"
        address = [] if output.in_place is not None else [self._address(index, output)]
        return [*address, *_bound_at(output.meta, f"outputs_at[{index}]", f"g{index}", bind)]

    def _or_scratch(self, meta: torch.Tensor) -> str:
        """Write another address for tensors that may be empty: these have none, and ONNX Runtime requires one."""
        if all(isinstance(size, int) and size > 0 for size in meta.shape):
            return ""
        scratch = self.constants.setdefault("scratch", torch.empty(1, dtype=torch.float64, device=devices.memory_of(meta.device)))
        return f" or {scratch.data_ptr()}"

    def _collect(self) -> list[str]:
        """Turn the outputs of the session into what PyTorch expects."""
        lines = []
        if any(self._by_run(output) for output in self._outputs):
            lines.append("values = b.get_outputs()")
        for index, output in enumerate(self._outputs):
            if not isinstance(output.meta, torch.Tensor):
                lines.append(f"r{index} = r{index}.item()")
                continue
            if self._by_run(output):
                made = f"tensor_over(values[{index}], {self._emitter.constant(output.meta.dtype, 'y')})"
                if self._calls is not None and output.meta.device.type != "cpu":
                    self.constants["adopted"], made = self._calls.adopted, f"adopted({made})"
                lines.append(f"r{index} = {made}" if self._spared_sizes(output) is None else f"if not spares: r{index} = {made}")
                if output.permutation is not None:
                    lines.append(f"r{index} = reorder(r{index}, {inverse_order(output.permutation)!r})")
            copies = needs_restride(output.meta)
            odd = not copies and has_odd_strides(output.meta, output.permutation)
            if (copies or odd) and (strides := self._sizes.strides(f"r{index}", output)) is not None:
                lines.append(f"r{index} = restride(r{index}, {strides})" if copies else f"r{index}.as_strided_(r{index}.shape, {strides})")
            if devices.kind_of(output.meta.device).is_copied:
                self.constants["moved"] = _moved
                lines.append(f"r{index} = moved(r{index}, {self._emitter.constant(output.meta.device, 'place')})")
        return lines

    def _spared_sizes(self, output: Output) -> str | None:
        """Write the source of the sizes of what PyTorch allocates where a run gives memory back: in the arena it would keep a region."""
        return self._sizes.text(output.meta.shape) if self._varying and output.permutation is None else None

    def _by_run(self, output: Output) -> bool:
        return isinstance(output.meta, torch.Tensor) and self._sizes.shape(output) is None


class _Sizes:
    """Writes the sources of sizes, which follow from those of the inputs."""

    def __init__(self, inputs: Sequence[BoundInput], *, symbolic: bool) -> None:
        self._inputs, self._symbolic = inputs, symbolic
        self._terms = _torch.term_sources(pair for index, item in enumerate(inputs) for pair in _sizes_of(f"a{index}", item.meta))

    def shape(self, output: Output) -> str | None:
        """Write the source of the shape that the session writes; None when it is known only after the run."""
        sizes = list(output.meta.shape)
        if output.permutation is not None:
            sizes = [sizes[d] for d in output.permutation]
        if not self._symbolic and not all(isinstance(size, int) for size in sizes):
            return None
        return self.text(sizes)

    def text(self, sizes: Sequence[Any], further: Mapping[Any, str] | None = None) -> str | None:
        """Write the source of a tuple of sizes; None when neither the inputs nor what is known further determine them."""
        sources = {**(further or {}), **self._terms}
        texts = [_torch.expression_over(size, sources) for size in sizes]
        known = [text if text.isdecimal() else f"int({text})" for text in texts if text is not None]
        return None if len(known) < len(texts) else f"({''.join(f'{text}, ' for text in known)})"

    def strides(self, name: str, output: Output) -> str | None:
        """Write the source of the strides of a result: of its own sizes too, and of strides of what it would be a view of."""
        pairs = _sizes_of(name, output.meta)
        tensors = [(place, item.meta) for place, item in enumerate(self._inputs) if isinstance(item.meta, torch.Tensor)]
        pairs += [(f"a{place}.stride({dim})", stride) for place, meta in tensors for dim, stride in enumerate(meta.stride())]
        return self.text(output.meta.stride(), _torch.term_sources(pairs))


def _place(name: str, meta: torch.Tensor, *, is_steady: bool = False) -> cuda.BoundPlace:
    element = dtypes.ELEMENT_TYPES[meta.dtype].onnx
    return cuda.BoundPlace(name=name, device=devices.ort_device(meta.device), element=element, is_steady=is_steady)


def _input_name(item: BoundInput) -> str:
    return item.name if item.permutation is None else permuted_name(item.name)


def _bound_at(meta: torch.Tensor, known: str, pointer: str, bind: str) -> list[str]:
    """Bind a tensor, unless it has fixed sizes and lies where the binding has it already."""
    if not has_fixed_sizes(meta):
        return [bind]
    return [f"if {known} != {pointer}: {bind}; {known} = {pointer}"]


def _sizes_of(name: str, meta: Any) -> list[tuple[str, Any]]:
    """Pair the source of each size of a named tensor, or of the number itself, with what it is in the trace."""
    return [(f"{name}.shape[{dim}]", size) for dim, size in enumerate(meta.shape)] if isinstance(meta, torch.Tensor) else [(name, meta)]


def _moved(result: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a result to a device, where it lies in memory as here."""
    return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=device).copy_(result)


def _with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor to bind in place of one at address 0: one without elements, or one of zeros that has no memory."""
    if _torch.is_zero_tensor(tensor):
        return tensor.clone()
    if tensor.numel():
        raise ValueError("an input has elements and no memory")
    return tensor
