"""How a session on CUDA is configured and called: in PyTorch's precision, without waiting, and by CUDA graphs where these are faster.

ONNX Runtime does not take the default stream, on which most programs run, and a session serves one stream. So each session has a stream of
its own. That stream waits for what PyTorch has queued on the current one, and the current one waits for the run: on the device, by events,
while the host goes on. To PyTorch, the run is then a step of the current stream: its inputs may be freed or overwritten after the call.

ONNX Runtime captures a CUDA graph per thread, and forbids the other threads of the process to allocate memory of the device meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _ort, _torch
from ortlens.analysis.speed import WORTH_APART
from ortlens.backend.basis.ab_timing import clocked, compare_briefly
from ortlens.backend.basis.node_provenance import iter_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from ortlens.analysis.speed import AbTiming
    from ortlens.backend.runtime.binding import Binding
    from ortlens.trace.records import GraphUse

PROVIDER = "CUDAExecutionProvider"

MAX_GRAPHS = 8
"""How many CUDA graphs a session captures, one per combination of sizes."""
MAX_GRAPH_BYTES = 1 << 28
"""How many bytes the buffers of the inputs and outputs of one CUDA graph may have."""
_AFTER_CALLS = 5
"""Calls before a capture: the first ones warm up."""
_TRIAL_NS = 50_000_000

_NEVER_IN_A_GRAPH = "-1"  # the id for runs that neither capture nor replay
# What a user sets himself to choose the stream or the memory; ours would contradict it.
_STREAM_SETTINGS = frozenset({"user_compute_stream", "has_user_compute_stream", "gpu_external_alloc", "enable_cuda_graph"})
_TF32_KINDS = {
    "MatMul": "matmul",
    "FusedMatMul": "matmul",
    "Gemm": "matmul",
    "Einsum": "matmul",
    "Conv": "conv",
    "ConvTranspose": "conv",
    "LSTM": "rnn",
    "GRU": "rnn",
    "RNN": "rnn",
}
"""Operator -> the setting of PyTorch that says whether it may round float32 factors to TF32."""

_SETTINGS = {
    "matmul": "torch.backends.cuda.matmul.fp32_precision",
    "conv": "torch.backends.cudnn.conv.fp32_precision",
    "rnn": "torch.backends.cudnn.rnn.fp32_precision",
}
"""Kind -> its setting, which torch.set_float32_matmul_precision and torch.backends.cudnn.allow_tf32 change too."""
IN_FLOAT32 = (PROVIDER, {"use_tf32": "0"})
"""The provider with options by which factors keep all bits of float32."""

_threads: set[int] = set()  # those that have called a session on CUDA


class CalledInCapture(Exception):  # noqa: N818 - a state of the caller; PyTorch computes the call
    """PyTorch captures a CUDA graph. ONNX Runtime would end the process if it were called now."""


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no annotations here


def is_capturing() -> bool:
    """Tell whether the current stream captures a CUDA graph of PyTorch; only for a PyTorch with CUDA."""
    return torch.cuda.is_current_stream_capturing()


def tf32_kinds(model: onnx.ModelProto) -> tuple[str, ...]:
    """List the kinds of operators in a model whose float32 factors may be rounded to TF32: `matmul`, `conv`, `rnn`."""
    return tuple(sorted({_TF32_KINDS[node.op_type] for node in iter_nodes(model.graph) if node.op_type in _TF32_KINDS}))


_READ_BY_LAYOUT = frozenset(
    {
        *("AveragePool", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalMaxPool", "GridSample", "GroupNormalization"),
        *("InstanceNormalization", "LRN", "LpPool", "Resize", "SpaceToDepth", "Upsample"),
    }
)
"""Operators that ONNX Runtime has, or may have, another kernel for when it computes with channels last. None was tried on a GPU."""


def is_faster_with_channels_last(model: onnx.ModelProto) -> bool:
    """Tell whether a model has convolutions of images in float16, and nothing that was not seen to be right with channels last.

    cuDNN computes those so; with channels first, each is turned before and after.
    """
    shapes = {tensor.name: (tensor.data_type, len(tensor.dims)) for tensor in model.graph.initializer}
    for value in model.graph.input:
        shapes[value.name] = value.type.tensor_type.elem_type, len(value.type.tensor_type.shape.dim)
    nodes = list(iter_nodes(model.graph))
    filters = {shapes.get(node.input[1]) for node in nodes if node.op_type == "Conv"}
    return filters == {_IMAGES_OF_HALVES} and not any(node.op_type in _READ_BY_LAYOUT for node in nodes)


_IMAGES_OF_HALVES = (10, 4)  # float16, as ONNX numbers it; dimensions of the filters


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNeeds:
    """What the calls of a session on a device have to do, and may."""

    waits: bool  # a call returns or copies values of the host, so it waits for the device
    plain: bool  # use neither a stream of its own nor graphs; calls wait for the device then
    replays: bool  # the session may capture CUDA graphs
    varies: bool = False  # it serves several sizes
    channels_last: bool = False  # its convolutions are computed so


class DeviceCalls:
    """How one session on a CUDA device is called.

    Attributes:
        settings: Provider options of the session: those given, and ours.
        replays: Whether the session can capture CUDA graphs.
    """

    def __init__(self, device: torch.device, given: Mapping[str, Any], kinds: Sequence[str], needs: CallNeeds) -> None:
        """Choose the settings of a session that is still to be created.

        `given` are the user's provider options, `kinds` what `tf32_kinds` finds in the model.
        """
        self.device = device
        self.replays = needs.replays and not needs.waits
        self._computes = frozenset(kinds)
        self._kinds = () if "use_tf32" in given else tuple(kinds)
        self._is_rounding_chosen = bool(kinds) and str(given.get("use_tf32", "0")) == "1"  # by the user, whatever PyTorch does
        self._allowed = self._tf32_settings()
        self._stream: torch.cuda.Stream | None = None
        own = {"use_tf32": str(int(all(self._allowed)))}
        if device.index:
            own["device_id"] = str(device.index)
        if needs.varies:  # the default tries all algorithms of each convolution whenever a size is new
            own["cudnn_conv_algo_search"] = "HEURISTIC"
        if needs.channels_last:
            own["prefer_nhwc"] = "1"
        if not needs.plain and _STREAM_SETTINGS.isdisjoint(given):
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no annotations here
            own["user_compute_stream"] = str(self._stream.cuda_stream)
        self.replays &= self._stream is not None
        if self.replays:
            own["enable_cuda_graph"] = "1"
        self.settings: dict[str, Any] = {**own, **given}
        entries = {} if needs.waits or self._stream is None else {"disable_synchronize_execution_providers": "1"}
        self._options = _ort.run_options({**entries, **({"gpu_graph_id": _NEVER_IN_A_GRAPH} if self.replays else {})})
        self._has_run = False
        self.alone = threading.RLock()  # while a graph is captured, nothing else may be queued on the stream
        self.graph_use: GraphUse | None = "waiting" if self.replays else None
        self.captured = 0  # graphs, each of which has its number in the session
        self.replayed = 0  # calls
        self.saved_ns: int | None = None  # by the last graph that was timed, per call
        self.on_graph_failure: Callable[[Exception], object] = lambda _: None

    def is_current(self) -> bool:
        """Tell whether PyTorch's settings for TF32 are still those of the session, as far as its model is concerned."""
        return self._tf32_settings() == self._allowed

    def rounds_by(self) -> tuple[str, ...]:
        """Name the settings by which float32 factors of the model are rounded to TF32; none if they are not."""
        if not self._kinds:
            return ('the provider option "use_tf32"',) if self._is_rounding_chosen else ()
        return tuple(map(_SETTINGS.__getitem__, self._kinds)) if all(self._allowed) else ()

    def _tf32_settings(self) -> tuple[bool, ...]:
        return tuple(map(_torch.allows_tf32, self._kinds))

    def facts(self) -> dict[str, Any]:
        """Return the columns of the frame `sessions` that tell of CUDA graphs."""
        return {"cuda_graph": self.graph_use, "replayed": self.replayed, "replay_saved_ns": self.saved_ns}

    def run(self, binding: Binding) -> None:
        """Run the session on what is bound, as a step of the current stream."""
        _threads.add(threading.get_ident())
        current = torch.cuda.current_stream(self.device)
        if self._stream is None:
            current.synchronize()
            self._submit(binding, self._options)
            return
        if binding.fence is None:
            binding.fence = _event()
        with self.alone if self.replays else contextlib.nullcontext():
            self.between(current, binding.fence, binding, self._options)

    def between(self, current: torch.cuda.Stream, fence: torch.cuda.Event, binding: Binding, options: Any) -> None:
        """Queue a run after what the current stream has queued, and before what it will queue; `fence` is for one thread at a time."""
        fence.record(current)
        fence.wait(self._stream)
        try:
            self._submit(binding, options)
        finally:
            fence.record(self._stream)
            fence.wait(current)

    def _submit(self, binding: Binding, options: Any) -> None:
        before = torch.cuda.current_device()
        try:
            if self._has_run:
                binding.run(binding.native, options)
                return
            self._warm_up_torch()
            with _ort.quiet():
                binding.run(binding.native, options)
            self._has_run = True
        finally:
            if torch.cuda.current_device() != before:  # ONNX Runtime makes the session's device the current one
                torch.cuda.set_device(before)

    def _warm_up_torch(self) -> None:
        """Have PyTorch load what it computes products and convolutions with: within a capture, when it computes calls, it could not."""
        torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]  # torch has no annotations here
        if "conv" in self._computes:
            one = torch.zeros(1, 1, 1, 1, device=self.device)
            torch.conv2d(one, one)

    def keep(self, tensor: torch.Tensor) -> None:
        """Have PyTorch give the memory of a tensor to no other until the session's stream is through with it."""
        if tensor.is_cuda and self._stream is not None:
            tensor.record_stream(self._stream)

    def adopted(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a result from ONNX Runtime's memory, which it uses again once the tensor is gone, whatever still reads it."""
        copied = tensor.clone()
        torch.cuda.current_stream(self.device).synchronize()
        return copied


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPlace:
    """An input or output of a session, as it is bound."""

    name: str
    device: Any  # an `OrtDevice`
    element: int  # its type in ONNX
    is_steady: bool = False  # an input that keeps its address, such as a weight: a graph reads it where it is


class Graphs:
    """The CUDA graphs that one function replays: one per combination of sizes, with buffers that every replay reads and writes."""

    def __init__(
        self,
        calls: DeviceCalls,
        inputs: Sequence[BoundPlace],
        outputs: Sequence[BoundPlace],
        new_binding: Callable[[], Binding],
        *,
        always: bool,
    ) -> None:
        """Start without graphs. `always`: capture in the first call of new sizes, without comparing times."""
        self.calls = calls
        self.inputs, self.outputs, self.new_binding = inputs, outputs, new_binding
        self._always = always
        self._steady = [at for at, place in enumerate(inputs) if place.is_steady]
        self._known: dict[
            Any, _CapturedGraph | int | None
        ] = {}  # by sizes: a graph, the number of calls so far, or None: none will be captured

    def replay(self, inputs: Sequence[torch.Tensor], outputs: Sequence[tuple[torch.Tensor, tuple[int, ...]]]) -> bool:
        """Compute outputs, given with the shapes that the session writes, by replaying a graph; False: the session is to be run."""
        key = (*(tensor.shape for tensor in inputs), *(inputs[at].data_ptr() for at in self._steady))
        known = self._known.get(key, 0)
        if isinstance(known, int):
            known = self._after_another(key, known, inputs, outputs)
        if known is None or known.thread != threading.get_ident():
            return False
        known.replay(inputs, outputs)
        self.calls.replayed += 1
        return True

    def _after_another(self, key: Any, calls: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> _CapturedGraph | None:
        """Count a call; after enough of them, capture a graph, and keep it if it is faster."""
        if calls < _AFTER_CALLS and not self._always:
            if len(self._known) < _MAX_SIZES:
                self._known[key] = calls + 1
            return None
        if not all(tensor.numel() for tensor in (*inputs, *(tensor for tensor, _ in outputs))):  # a buffer needs an address
            self._known[key] = None
            return None
        _threads.add(threading.get_ident())
        with self.calls.alone:
            use = self._why_not(inputs, outputs)
            self._known[key] = made = self._captured(inputs, outputs) if use is None else None
        if use is not None and self.calls.graph_use != "replayed":
            self.calls.graph_use = use
        return made

    def _why_not(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> GraphUse | None:
        if not self._always and len(_threads) > 1:
            return "threads"
        if self.calls.graph_use == "failed":
            return "failed"
        if self.calls.captured >= MAX_GRAPHS:
            return "many"
        copied = [tensor for at, tensor in enumerate(inputs) if at not in self._steady] + [tensor for tensor, _ in outputs]
        return "large" if sum(tensor.nbytes for tensor in copied) > MAX_GRAPH_BYTES else None

    def _captured(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> _CapturedGraph | None:
        self.calls.captured += 1
        try:
            made = _CapturedGraph(self, inputs, outputs, number=self.calls.captured)
            made.replay(inputs, outputs)
            compared = None if self._always else made.compared(inputs, outputs)
        except Exception as error:  # noqa: BLE001 - whatever fails, the session can be run
            self.calls.graph_use = "failed"
            self.calls.on_graph_failure(error)
            return None
        if compared is not None and not _is_worth_it(compared):
            self.calls.graph_use = self.calls.graph_use if self.calls.graph_use == "replayed" else "slower"
            return None
        self.calls.graph_use = "replayed"
        if compared is not None:
            run_ns, replayed_ns = compared.least_ns
            self.calls.saved_ns = run_ns - replayed_ns
        return made


def _is_worth_it(compared: AbTiming) -> bool:
    """Tell whether a replay, timed second, is surely faster, and by a tenth at least."""
    run_ns, replayed_ns = compared.least_ns
    return compared.is_faster and run_ns >= WORTH_APART * replayed_ns


_MAX_SIZES = 64  # combinations of sizes whose calls are counted


class _CapturedGraph:
    """One captured graph: its buffers, and the binding over them."""

    def __init__(self, graphs: Graphs, inputs: Sequence[torch.Tensor], outputs: Sequence[tuple[torch.Tensor, Any]], *, number: int) -> None:
        self._calls = graphs.calls
        self.thread = threading.get_ident()  # ONNX Runtime keeps graphs per thread
        with torch.inference_mode(mode=False):  # buffers made in inference mode could not be written outside of it
            self._copied = [at for at, place in enumerate(graphs.inputs) if not place.is_steady]
            self._into = [torch.empty_like(inputs[at], requires_grad=False) for at in self._copied]
            self._out = [torch.empty_like(tensor, requires_grad=False) for tensor, _ in outputs]
        for buffer in (*self._into, *self._out):
            self._calls.keep(buffer)
        read = dict(zip(self._copied, self._into, strict=True))
        self._binding = graphs.new_binding()
        for at, place in enumerate(graphs.inputs):
            tensor = read.get(at, inputs[at])
            self._binding.bind_input(place.name, place.device, place.element, tensor.shape, tensor.data_ptr())
        for place, tensor, (_, shape) in zip(graphs.outputs, self._out, outputs, strict=True):
            self._binding.bind_output(place.name, place.device, place.element, shape, tensor.data_ptr())
        self._options = _ort.run_options({"disable_synchronize_execution_providers": "1", "gpu_graph_id": str(number)})
        self._fence, self._done = _event(), _event()
        self._last: torch.cuda.Stream | None = None  # the stream that has read the buffers last

    def replay(self, inputs: Sequence[torch.Tensor], outputs: Sequence[tuple[torch.Tensor, Any]]) -> None:
        """Copy the inputs into the buffers, replay, and copy the results out; the first time, ONNX Runtime captures."""
        current = torch.cuda.current_stream(self._calls.device)
        with self._calls.alone, torch.no_grad():
            if self._last is not None and self._last != current:
                self._done.wait(current)
            self._last = current
            _torch.copy_all(self._into, [inputs[at] for at in self._copied])
            self._calls.between(current, self._fence, self._binding, self._options)
            _torch.copy_all([tensor for tensor, _ in outputs], self._out)
            self._done.record(current)

    def compared(self, inputs: Sequence[torch.Tensor], outputs: Sequence[tuple[torch.Tensor, Any]]) -> AbTiming:
        """Time runs without the graph, and replays with their copies."""
        wait = functools.partial(torch.cuda.synchronize, self._calls.device)
        plain, replayed = clocked(lambda: self._calls.run(self._binding), wait), clocked(lambda: self.replay(inputs, outputs), wait)
        return compare_briefly(plain, replayed, _TRIAL_NS)


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Add up the elements of a tensor as integers, on its device."""
    return tensor.detach().view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64)


def checksums(tensors: Sequence[torch.Tensor]) -> Callable[[], tuple[int, ...] | None]:
    """Start to add up the bits of tensors of one device, without waiting; the function returned gives the sums once they are there."""
    with torch.cuda.device(tensors[0].device), torch.no_grad():
        sums = torch.stack([sum_of_bits(tensor) for tensor in tensors])
        host = torch.empty(len(tensors), dtype=torch.int64, device="cpu", pin_memory=True)
        host.copy_(sums, non_blocking=True)
        done = _event()
        done.record()
    return lambda: tuple(host.tolist()) if done.query() else None  # type: ignore[no-untyped-call]  # as above
