"""The records of a capture: frozen, JSON-able, no tensors and no frames inside.

This file is the one table of columns: each field of a record is a column of the frame of that name, and carries
its unit and its meaning. `schema.py` reads the pandas dtypes and the JSON checks from the annotations here, and the
reference page in the docs is generated from the same place, so nothing about a column is written down twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

SCHEMA_VERSION = 3

Phase: TypeAlias = Literal["inference", "forward", "backward"]
ReasonCode: TypeAlias = Literal[
    "no_converter",
    "converter_raised",
    "dtype",
    "layout",
    "device",
    "dynamic_shape",
    "side_effect",
    "too_small",
    "policy",
    "session_refused",
]
FallbackCause: TypeAlias = Literal["random", "bfloat16", "complex"]
Confidence: TypeAlias = Literal["exact", "fused", "inferred", "none"]
Severity: TypeAlias = Literal["error", "warning", "info"]
Kind: TypeAlias = Literal["finding", "for_training", "slower", "nothing_runs", "break", "fallback", "recompile", "rule"]
GainConfidence: TypeAlias = Literal["measured", "estimated", "unknown"]
NodeKind: TypeAlias = Literal["compute", "size", "effect"]
LedgerPartName: TypeAlias = Literal["guards", "bind", "run", "output", "foreign", "eager", "residual", "wait"]
StepRole: TypeAlias = Literal["tokenizer", "encode", "prefill", "decode", "python"]
FrameStatus: TypeAlias = Literal["compiled", "skipped", "failed"]
FrameCause: TypeAlias = Literal["loop", "position", "limit", "generator"]
SessionCause: TypeAlias = Literal["first", "sizes", "weights", "precision"]
Refusal: TypeAlias = Literal["no_kernel", "opset", "dtype", "chosen", "compiles", "unlisted"]
GraphUse: TypeAlias = Literal["replayed", "slower", "threads", "many", "large", "failed", "refused", "waiting"]
WeightsChange: TypeAlias = Literal["written", "replaced", "other_module"]
NumericScope: TypeAlias = Literal["output", "value", "op", "call"]
Pairing: TypeAlias = Literal["name", "structure", "content"]
SideVerdict: TypeAlias = Literal["reference", "faster", "slower", "same", "unmeasured"]
ProcessStatus: TypeAlias = Literal["ok", "failed", "crashed", "timeout", "memory", "lost"]
SideStatus: TypeAlias = Literal[ProcessStatus, "refused", "uninstalled", "skipped"]


OUTSIDE = "outside of nodes"
"""`op_type` of work on a device that no node launched."""

_SETTINGS = "Lines of Python that make the change as a setting."
_TRAITS = (
    "What the advice depends on besides: `number_becomes_size` a line below takes the number as a size, and so on for `index`, `text` and "
    "an `argument` of `math`, or `number_decides` what runs; `argument_size` and so on the same of an argument that is a number; "
    "`decides_by_size` the program decides by the size of the result; `in_data_loop` the line is in a loop that ends when values of "
    "tensors say so; `jumps` it is an `if` with a `continue` or `break`; `gru_in_inference` a GRU is called without gradients, "
    "`gru_in_training` with them, and so on for `lstm` and `rnn`; "
    "`constant_size` the code makes the size a constant; `library_alone` the function of a library was compiled by itself."
)


def column(meaning: str, *, unit: str = "", brief: int = 0, **defaults: Any) -> Any:  # noqa: ANN401 - a field() in disguise
    """Declare a record field with the meaning of its column, in a sentence, and its unit: `ns`, `bytes`, `flops`, or none.

    `brief` is its place, from 1, among the columns that are shown where there is no room for all; `file` stands for `line` too.
    """
    metadata = {"meaning": meaning, "unit": unit, "brief": brief}
    return field(metadata=metadata, **defaults)


def optional(meaning: str, *, unit: str = "", brief: int = 0) -> Any:  # noqa: ANN401 - likewise
    """Declare a field that is None where its value is not known."""
    return column(meaning, unit=unit, default=None, brief=brief)


def same(record: object, *names: str) -> dict[str, Any]:
    """Take fields of a record for another one that has them too."""
    return {name: getattr(record, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One FX graph that Dynamo handed to the backend, per phase."""

    graph_id: str = column("Id of this graph and phase within the capture.", brief=1)
    compile_id: str | None = optional("Dynamo's `frame/attempt` id; `0/1` is the second compilation of frame 0.", brief=2)
    phase: Phase = column("`inference`, `forward` or `backward`.", brief=3)
    name: str | None = optional("Name of the compiled Python function.", brief=4)
    file: str | None = optional("File of the compiled Python function.", brief=5)
    line: int | None = optional("First line of the compiled Python function.")
    node_count: int | None = optional("Compute nodes after decomposition; empty for a backend other than ours.", brief=6)
    op_count: int = column("Operations in Dynamo's own graph, before decomposition; 0 for a backward graph.")
    partition_count: int | None = optional("Partitions that run in ONNX Runtime.", brief=7)
    fallback_count: int | None = optional("Nodes that stay in PyTorch.", brief=8)
    coverage: float | None = optional("Share of the operators of the graph that ONNX Runtime runs, 0 to 1.", brief=9)
    dynamic_shapes: bool = column("True when the graph has symbolic sizes.", default=False)
    recompile_of: str | None = optional("The compile id whose guard failed, when this is a recompile.")
    dynamo_ns: int | None = optional("Dynamo's share of the compilation: tracing and guards.", unit="ns")
    aot_ns: int | None = optional("AOTAutograd's share: functionalising, decomposing, splitting off the backward.", unit="ns")
    partition_ns: int | None = optional("Deciding support and partitioning.", unit="ns")
    convert_ns: int | None = optional("Turning the partitions into ONNX.", unit="ns")
    optimize_ns: int | None = optional("Optimising the ONNX models.", unit="ns")
    session_ns: int | None = optional("Creating ONNX Runtime sessions.", unit="ns")
    compile_ns: int | None = optional("All of the above together, and `loading_ns`.", unit="ns", brief=10)
    loading_ns: int | None = optional("Loading of ONNX functions and decompositions by ortlens, once per process.", unit="ns")
    inputs: tuple[str, ...] = column("Names of the graph's inputs, weights among them.", default=())
    input_sizes: tuple[int, ...] = column("Bytes of each of these inputs; hints stand in for symbolic sizes.", default=())
    weights: tuple[str, ...] = column("Those of these inputs that are parameters or buffers.", default=())
    min_partition_nodes: int = column("Partitions with fewer operators were left to PyTorch.", default=1)
    target: str | None = optional(
        "The compiled function or module whose call led to it; several of one name are numbered. Empty where it is not known."
    )
    entries_per_call: float | None = optional(
        "How often a call of the model enters it: the median of the calls that were measured; where none was, the mean of those that "
        "`explain` made. Empty where nobody counted calls."
    )
    ort_ns: int | None = optional(
        "One entry as compiled, with copies back into inputs that it changes; the shortest, in turns with `torch_ns`. Empty: not timed.",
        unit="ns",
    )
    torch_ns: int | None = optional("One entry in PyTorch, operator by operator as the program wrote it.", unit="ns")
    is_slower: bool | None = optional(
        "Whether it is slower as compiled: in three of four pairs, and by 3 % at least; empty where not timed."
    )
    role: StepRole | None = optional(
        "In a generation of tokens: `decode` takes a cache and computes one position, `prefill` is another graph of the same function, "
        "`encode` one of the encoder. Empty elsewhere."
    )
    only_verified: bool = column(
        "True when only `verify` ran it, such as a backward that the program has not called: it counts in no coverage.", default=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One distinct place where Dynamo stopped a graph."""

    break_id: str = column("Id of the break within the capture.")
    gb_id: str | None = optional("PyTorch's id of this kind of break, as in its graph break registry.")
    reason: str = column("What stopped the graph, in one line.", brief=1)
    explanation: str | None = optional("PyTorch's explanation.")
    hints: tuple[str, ...] = column("PyTorch's hints, one per item.", default=())
    file: str | None = optional("File of the user line that broke the graph.", brief=2)
    line: int | None = optional("Number of that line.")
    function: str | None = optional("Function that the line is in.")
    source: str | None = optional("Text of that line.", brief=5)
    user_stack: tuple[str, ...] = column("User frames at the break, outermost first, as `file:line function`.", default=())
    occurrences: int = column("How many graph boundaries this break makes; at least 1.", default=1, brief=6)
    compile_ids: tuple[str, ...] = column("Compilations that ran into it.", default=())
    cost_ns: int | None = optional(
        "What the break costs per call: `overhead_ns` and `entering_ns`, or `saved_ns` where that is more. Empty where not measured.",
        unit="ns",
        brief=3,
    )
    overhead_ns: int | None = optional("Of that, Dynamo's look-up, guards and gathering of inputs.", unit="ns", brief=7)
    entering_ns: int | None = optional(
        "Of that, what entering the graphs behind the break takes: binding and outputs of one partition, and the code around it. It goes "
        "with the break where what is before and behind it would be one graph.",
        unit="ns",
    )
    between_ns: int | None = optional(
        "Besides, time per call of PyTorch and Python between the graphs that the break parts: the program's own, and what leads to it. "
        "It stays when the break goes, except for what is compiled then, such as a function that was given up.",
        unit="ns",
    )
    advice: str | None = optional("What to change, in one sentence.", brief=4)
    settings: tuple[str, ...] = column(_SETTINGS, default=())
    stop_source: str | None = optional(
        "Text of the line that stops the graph, which may be one of a library behind the user's line, with the first line of an `if`. It "
        "is empty text where it could not be read."
    )
    stop_function: str | None = optional("Function that this line is in.")
    traits: tuple[str, ...] = column(_TRAITS, default=())
    refused_guard: str | None = optional("Where PyTorch stopped recompiling the function: the last guard that failed.")
    refused_reason: str | None = optional("Dynamo's full reason for that recompile.")
    refused_values: tuple[str, ...] = column("The values seen by that guard.", default=())
    removed_by: tuple[str, ...] = column(
        "Changes with which `explain` traced the call again, without running it, and the line broke no graph, the most useful first: lines "
        "of settings, and kinds of advice for the line as `actions.patch` has it; a line that only reports was left out.",
        default=(),
    )
    kept_despite: tuple[str, ...] = column(
        "Changes that were tried likewise, with which the line broke the graph all the same, another one did, compilation failed, or the "
        "call raised or took no less time.",
        default=(),
    )
    saved_ns: int | None = optional(
        "Time per call that the first of `removed_by` saves: `explain` compiled the call with it too, and timed both in turns. 0 where no "
        "difference was seen; of several lines that were changed together, a share. Empty where it was not timed.",
        unit="ns",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompile:
    """A second compilation of the same code because a guard failed."""

    compile_id: str = column("The new compilation.", brief=6)
    of_compile_id: str | None = optional("The compilation whose guard failed.", brief=7)
    function: str | None = optional("Name of the recompiled function.", brief=1)
    file: str | None = optional("File of the recompiled function.", brief=3)
    line: int | None = optional("First line of the recompiled function.")
    guard: str | None = optional("The guard that failed, or what it guarded.", brief=2)
    reason: str = column("Dynamo's full reason, with expected and actual values.")
    values: tuple[str, ...] = column("The values seen, the one compiled for first, as far as the reason tells them.", default=(), brief=5)
    varying: tuple[str, ...] = column(
        "The sizes in which this version differs from earlier ones, or these from each other, as `x.size()[1]`; none that was 0 or 1.",
        default=(),
    )
    advice: str | None = optional("What to change, in one sentence.", brief=4)
    settings: tuple[str, ...] = column(_SETTINGS, default=())
    traits: tuple[str, ...] | None = optional(_TRAITS + " Missing where it was not recorded.")
    dynamo_ns: int | None = optional("Dynamo's own time for it; of a function without a graph, all that it took.", unit="ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFrame:
    """One Python function that was compiled, or that runs as it is."""

    frame: str = column("Its qualified name, as `ViT.forward`; behind a graph break with the line: `ViT.forward after line 12`.", brief=1)
    file: str | None = optional("File of the function.", brief=2)
    line: int | None = optional("Its first line.")
    status: FrameStatus = column(
        "`compiled`; `failed`: PyTorch gave it up, and runs it as it is; `skipped`: PyTorch found nothing to compile in it, or never "
        "tried, as with `torch.compiler.disable`.",
        brief=3,
    )
    reason: str | None = optional("Why it was given up, in PyTorch's words.", brief=6)
    operators: int | None = optional("Operators of PyTorch that it runs outside of graphs in a call; empty where not counted.", brief=4)
    ops: tuple[str, ...] = column("These operators with their counts, most frequent first, as `aten.mm.default:2`.", default=(), brief=5)
    cause: FrameCause | None = optional(
        "What made PyTorch give it up: a graph break in a `loop`, or at a `position` behind which it cannot go on, as in a `try` block; "
        "its `limit` of recompiles. Of a function that was skipped: `generator`."
    )
    break_id: str | None = optional("The graph break because of which it was given up.")
    compile_id: str | None = optional("Dynamo's id of the last compilation; empty where PyTorch never tried.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """A line that runs operators in a call, as the program and as compiled; one row for each line of the target that leads to it."""

    file: str | None = optional("File of the line: the innermost one of the program, or of a model in a library.", brief=1)
    line: int | None = optional("Its number.")
    source: str | None = optional("Its text.", brief=4)
    function: str = column("Qualified name of the function.", default="")
    entry_file: str | None = optional("File of the target, the function that was compiled first; empty where the line runs outside of it.")
    entry_line: int | None = optional("Line of the target which leads to it.")
    operators: int = column("Operators that PyTorch runs for it in a call in eager PyTorch, counted below autograd.", brief=2)
    outside: int = column("Of these, the ones that it runs outside of graphs in a compiled call.", default=0, brief=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInput:
    """One input of a graph: an argument, a parameter or a buffer."""

    graph_id: str = column("Graph that takes it.", brief=1)
    input: str = column("Its name in the graph, as in `graphs.inputs`.", brief=2)
    name: str = column("Its name in the program, as `encoder.0.weight`; the same as `input` where that is not known.", brief=3)
    dtype: str | None = optional("Its dtype.", brief=4)
    shape: tuple[int | str, ...] | None = optional("Its shape; symbolic sizes as text.", brief=5)
    low: float | None = optional("Of a frozen weight of 64 values or more: the smallest of 8,192 at most, in two digits.", brief=6)
    high: float | None = optional("The largest of them, likewise.", brief=7)
    histogram: tuple[int, ...] = column("How many of them are in each of 16 equal intervals from `low` to `high`.", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One ATen-level FX node after decomposition."""

    graph_id: str = column("Graph the node is in.", brief=7)
    node: str = column("Name of the node in its graph.", brief=1)
    target: str = column("Operator, as `aten.add.Tensor`.", brief=2)
    module: str | None = optional("Path of the nn.Module that made it, as `layers.0.attn`.", brief=3)
    module_type: str | None = optional("Class of that module.")
    file: str | None = optional("File of the user line.", brief=6)
    line: int | None = optional("Number of the user line.")
    source: str | None = optional("Text of the user line.")
    dtype: str | None = optional("dtype of the (first) output.")
    shape: tuple[int | str, ...] | None = optional("Shape of the (first) output; symbolic sizes as text.")
    partition_id: str | None = optional("Partition that runs the node; empty when PyTorch runs it.", brief=4)
    supported: bool = column("True when ONNX Runtime runs the node.")
    reason_code: ReasonCode | None = optional("Why not, as a code.", brief=5)
    reason: str | None = optional("Why not, in words.")
    flops: int | None = optional("Floating-point operations by PyTorch's flop counter; 0 for ops it does not count.", unit="flops")
    bytes: int | None = optional("Bytes of all tensor inputs and outputs; hints stand in for symbolic sizes.", unit="bytes")
    onnx_nodes: tuple[str, ...] = column("Names of the ONNX nodes made from it.", default=())
    kind: NodeKind = column("`compute` makes tensors, `size` makes a number, `effect` makes nothing (a check).", default="compute")
    inputs: tuple[str, ...] = column(
        "Nodes and graph inputs that it reads, each once; an item of a tuple stands under the node that made the tuple.", default=()
    )
    output_bytes: int | None = optional("Bytes of its tensor outputs alone; likewise.", unit="bytes")
    is_output: bool = column("Whether the graph returns what it makes.", default=False)
    mutates: bool = column("Whether it writes into what it reads; nothing after it may run before it.", default=False)
    onnx_confidences: tuple[str, ...] = column(
        "How sure that is, for each: `exact`, `fused` where a rewrite made it from several, `inferred` where a rewrite left it without "
        "an origin and it has that of a neighbour.",
        default=(),
    )
    onnx_ops: tuple[str, ...] = column("Operators of these ONNX nodes, in the same order.", default=())
    items: tuple[str, ...] = column("Names of the items that are taken of the tuple it makes; empty where it makes none.", default=())
    item_sizes: tuple[int, ...] = column("Bytes of each of these items.", default=())
    item_outputs: tuple[str, ...] = column("Those of these items that the graph returns.", default=())
    item_inputs: tuple[str, ...] = column("Items of tuples among what it reads; `inputs` names their makers.", default=())
    in_place: bool = column(
        "Whether ONNX Runtime writes its result over an input of the graph that the program updates, instead of returning a copy.",
        default=False,
    )
    roaming: bool = column("Whether it is a number made of input sizes alone, which is computed wherever it is needed.", default=False)
    provider: str | None = optional(
        "The execution provider that runs it, where ONNX Runtime tells; `reason` says why it is not the preferred one. Empty elsewhere."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A set of supported nodes that became one ONNX model."""

    partition_id: str = column("Id of the partition within the capture.", brief=1)
    graph_id: str = column("Graph it was cut from.", brief=2)
    node_count: int = column("Compute nodes in it.", brief=3)
    input_count: int = column("Tensors and numbers that enter it, weights included.")
    output_count: int = column("Tensors and numbers that leave it.")
    input_bytes: int | None = optional("Bytes entering per call, weights apart; hints for symbolic sizes.", unit="bytes", brief=5)
    output_bytes: int | None = optional("Bytes leaving per call.", unit="bytes", brief=6)
    weight_bytes: int | None = optional("Bytes of parameters and buffers it reads.", unit="bytes", brief=4)
    flops: int | None = optional("Floating-point operations per call by PyTorch's flop counter.", unit="flops")
    model_id: str | None = optional("The ONNX model made from it.", brief=7)
    ort_ns: int | None = optional(
        "One run in ONNX Runtime, binding and outputs included; the shortest, timed in turns with `torch_ns`. Empty where not timed.",
        unit="ns",
    )
    torch_ns: int | None = optional("One run of the same nodes in PyTorch, on the same inputs.", unit="ns")
    is_slower: bool | None = optional("Whether ONNX Runtime is slower: in three of four pairs, and by 3 % at least; empty where not timed.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A node that stays in PyTorch, with the reason."""

    graph_id: str = column("Graph the node is in.", brief=6)
    node: str = column("Name of the node in its graph.")
    target: str = column("Operator, as `aten.cumsum.default`.", brief=1)
    reason_code: ReasonCode = column("Why it stays, as a code.", brief=7)
    reason: str = column("Why it stays, in words.", brief=2)
    file: str | None = optional("File of the user line.", brief=3)
    line: int | None = optional("Number of the user line.")
    source: str | None = optional("Text of the user line.")
    calls: int = column("How often PyTorch ran it while observed.", default=0, brief=4)
    total_ns: int = column("Time PyTorch spent in it, clock read around the op; on a GPU the launch only.", unit="ns", default=0, brief=5)
    exception: str | None = optional("What was raised when it was converted or handed to ONNX Runtime, with its class.")
    call_ns: int | None = optional(
        "Time in it per call of the model, mean over the calls that the ledger averages; empty where none was.", unit="ns"
    )
    cause: FallbackCause | None = optional(
        "What else is known of why: it draws `random` numbers; ONNX Runtime's CPU provider does not compute in `bfloat16`, or knows no "
        "`complex` numbers."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The ONNX model of a partition."""

    model_id: str = column("Id of the model within the capture.", brief=1)
    partition_id: str = column("Partition it was made from.", brief=2)
    path: str | None = optional("File it was dumped to, or its name inside a saved capture.")
    opset: int | None = optional("Version of the default ONNX operator set.")
    node_count: int = column("ONNX nodes after the ONNX Script optimiser.", brief=3)
    ops: tuple[str, ...] = column("Operator types with their counts, most frequent first, as `MatMul:12`.", default=(), brief=4)
    initializer_bytes: int = column("Bytes of the constants inside the model, frozen weights included.", unit="bytes", default=0, brief=5)
    size_bytes: int = column("Bytes of the serialised model without frozen weights.", unit="bytes", default=0, brief=6)
    sha256: str | None = optional("Digest of the serialised model without frozen weights.")
    cached: bool = column("Whether it was converted by an earlier process and came from `cache_dir`.", default=False)
    optimized_node_count: int | None = optional("Nodes left after ONNX Runtime's own fusions; empty where not asked for.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One `onnxruntime.InferenceSession`, made for a partition and an input signature."""

    session_id: str = column("Id of the session within the capture.", brief=1)
    partition_id: str = column("Partition it runs.", brief=2)
    model_id: str | None = optional("Model it was made from.")
    providers: tuple[str, ...] = column("Execution providers that ONNX Runtime registered, in order.", default=(), brief=9)
    input_signature: str = column("dtypes and shapes of the inputs it accepts, as `f32[2,8] i64[s0]`.", default="", brief=3)
    create_ns: int = column("Creating the session.", unit="ns", default=0, brief=8)
    held_bytes: int | None = optional(
        "Heap that making it took: weights that ONNX Runtime packed or folded into copies of its own, and its own structures; "
        "empty where the C library does not tell.",
        unit="bytes",
    )
    threads: int | None = optional(
        "Threads that work on one operator; 0: ONNX Runtime chooses, and takes no more than there are usable processors."
    )
    spinning: bool | None = optional("Whether they wait actively while a run goes on; empty when not recorded.")
    threads_reason: str = column("Why so many threads, and why they spin or not.", default="")
    calls: int = column("How often it ran.", default=0, brief=4)
    total_ns: int = column("Sum over all calls, bind to output.", unit="ns", default=0, brief=7)
    mean_ns: int | None = optional("Mean of a call; empty before the first.", unit="ns")
    p50_ns: int | None = optional("Median of a call, from a histogram with buckets of at most 3.2 %.", unit="ns", brief=5)
    p90_ns: int | None = optional("90th percentile, same source.", unit="ns", brief=6)
    p99_ns: int | None = optional("99th percentile, same source.", unit="ns")
    max_ns: int | None = optional("Slowest call.", unit="ns")
    cause: SessionCause | None = optional(
        "Why it was made: the `first` of its partition, for `sizes` that no other serves, because frozen `weights` had changed, or "
        "because PyTorch's setting of the `precision` of float32 had."
    )
    weights_change: WeightsChange | None = optional(
        "For the cause `weights`: the tensors were `written` to, `replaced` by others, or those of an `other_module` came, which shares "
        "the code, while the earlier ones still belong to a module that is running. Empty when not recorded."
    )
    changed_weights: tuple[str, ...] = column("The weights that this was about, as in `named_parameters()`.", default=())
    changed_file: str | None = optional("File of the line that changed them, where only one line can have.")
    changed_line: int | None = optional("Number of that line.")
    frozen_bytes: int | None = optional("Bytes of weights that it holds as constants.", unit="bytes")
    copied_bytes: int | None = optional(
        "Of these, what it does not read in PyTorch's memory: weights that ONNX Runtime packs or rearranges, those that are not "
        "contiguous, and all with `ort_session_options`.",
        unit="bytes",
    )
    shareable_bytes: int | None = optional(
        "Of the constants, what it would read in PyTorch's memory with `prepack_weights=False`: weights of matrix products.", unit="bytes"
    )
    integer_bytes: int | None = optional("Of the constants, what are 8-bit integers; empty when not recorded.", unit="bytes")
    table_bytes: int | None = optional(
        "Bytes of weights that stay inputs because the model only looks them up, as embeddings.", unit="bytes"
    )
    arena_bytes: int | None = optional(
        "Peak of what ONNX Runtime's allocators held for activations while profiled; of a watched session, the heap that its runs took.",
        unit="bytes",
    )
    kept_bytes: int | None = optional(
        "What a second session like it took from the system for activations in its first runs, and keeps from run to run; measured by "
        "`explain` and `measure` where values alive at the same time take 32 MiB or more, and of watched sessions. Empty elsewhere.",
        unit="bytes",
    )
    calls_by_sizes: tuple[str, ...] = column(
        "Of a watched session: its calls by the sizes of inputs, and the memory after the one that raised it most.", default=()
    )
    cuda_graph: GraphUse | None = optional(
        "Whether calls replay a CUDA graph: `replayed`; or why the latest sizes do not: it was `slower`, several `threads` call, `many` "
        "graphs were captured already, its inputs and outputs are too `large`, capturing `failed`, ONNX Runtime `refused` a session that "
        "captures, or too few calls yet: `waiting`. Empty where the session cannot have one, or the option `cuda_graph` is off."
    )
    replayed: int = column("Of the calls, those that replayed a CUDA graph.", default=0)
    replay_saved_ns: int | None = optional(
        "How much shorter a replay was than a run when the last graph was captured, waiting for the device; empty if it was not timed.",
        unit="ns",
    )
    device_busy_ns: int | None = optional(
        "Time per run in which its device works: the union of its kernels and copies. Empty on the CPU and where not profiled.",
        unit="ns",
    )
    device_idle_ns: int | None = optional(
        "Time per run in which its device is idle between its first and last work; at most what an unprofiled run leaves. Empty likewise.",
        unit="ns",
    )
    launch_ns: int | None = optional(
        "Time per run that the host spends in the calls that launch this work; torch's profiler lengthens them. Empty likewise.",
        unit="ns",
    )
    launches: int | None = optional("Number of these calls per run; a replayed CUDA graph is one. Empty likewise.")
    messages: tuple[str, ...] = column(
        "What ONNX Runtime and its providers said at warning level or above when a session like it was made once more, in a process of its "
        "own. Asked only where the first provider left nodes and has no table of kernels that says why; not of a session that is watched.",
        default=(),
    )
    load_ns: int | None = optional(
        "Of `create_ns`, by `profile`, shared out as in a session like it in a process of its own, with its log on: reading the model.",
        unit="ns",
    )
    optimize_ns: int | None = optional("Likewise: rewriting the model, and all that is not counted elsewhere.", unit="ns")
    provider_ns: int | None = optional("Likewise: starting the providers, and compiling what they take.", unit="ns")
    kernels_ns: int | None = optional("Likewise: placing weights, creating kernels, and packing weights for them.", unit="ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What one execution provider runs of one session."""

    session_id: str = column("Session, as in `sessions`; in a dry run, which makes none, the partition.", brief=1)
    provider: str = column("Execution provider.", brief=2)
    requested: int | None = optional("Its place among those that were asked for, from 1; empty where ONNX Runtime added it.", brief=3)
    nodes: int = column("Nodes that it runs, by ONNX Runtime's own record, after its first rewrites.", brief=4)
    pieces: int = column("Separate subgraphs that these make: those that the provider compiled, or else nodes that are connected.", brief=5)
    copies: int | None = optional(
        "Values that cross its border, in either direction, without inputs and outputs of the model. Empty where a rewrite hides them.",
        brief=6,
    )
    reason: str | None = optional(
        "Why it does not run more: the session's message that names the cause, else what its table of kernels says. Empty of any other.",
        brief=7,
    )
    lacking: tuple[str, ...] = column(
        "Operators that keep it from running more: those that this message names, else those for which it has no kernel, or of which it "
        "took no node. Shapes that ONNX Runtime computes on the CPU on purpose are not among them.",
        default=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One call of a session, or of a whole graph when the backend is not ours."""

    session_id: str | None = optional("Session that ran; empty for a backend other than ours.", brief=1)
    call: int = column("Number of the call, from 0; the latest calls are kept, exact sums are in `sessions`.", brief=3)
    start_ns: int = column("Start, on the clock of `time.perf_counter_ns`.", unit="ns")
    bind_ns: int = column("Binding inputs and outputs, copies of unfit layouts included.", unit="ns", default=0, brief=4)
    run_ns: int = column(
        "Inside ONNX Runtime. On a GPU, time of the host: the run returns before the device is done.",
        unit="ns",
        default=0,
        brief=5,
    )
    output_ns: int = column("Handing the outputs back to PyTorch.", unit="ns", default=0, brief=6)
    total_ns: int = column("The three together.", unit="ns", brief=7)
    thread: int = column("Identifier of the thread, as of `threading.get_ident`.", default=0)
    graph_id: str | None = optional("Graph that ran.", brief=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One node that ONNX Runtime really executed, after its own fusions."""

    session_id: str = column("Session it ran in.", brief=7)
    kernel: str = column("Name of the executed node; of work on a device that no node launched, its own name.")
    op_type: str = column(
        f"Its operator; `{OUTSIDE}` for work on a device that no node launched, such as copies of inputs and replays of a CUDA graph.",
        brief=1,
    )
    provider: str = column("Execution provider that ran it.")
    calls: int = column(f"How often it ran while profiled; for `{OUTSIDE}`, how many runs it was in.", default=0)
    total_ns: int = column(
        "Time, rescaled from its profiled share to the unprofiled total. On a GPU, the device's own time by torch's profiler, and 0 for a "
        "node that launched nothing; the finding `launch_times` says where it is that of the launches.",
        unit="ns",
        default=0,
    )
    mean_ns: int | None = optional("The same per call.", unit="ns", brief=2)
    share: float | None = optional("Share of the session's kernel time, 0 to 1.", unit="of session", brief=3)
    node: str | None = optional(
        "FX node that its time is charged to; of several (`nodes`), that with the most operations, else that which makes its output.",
        brief=4,
    )
    module: str | None = optional("nn.Module path it came from.", brief=6)
    file: str | None = optional("File of the user line.", brief=5)
    line: int | None = optional("Number of the user line.")
    confidence: Confidence = column("How sure the way back is: `exact`, `fused`, `inferred`, `none`.", default="none", brief=8)
    bytes: int | None = optional(
        "Bytes of what it reads and writes per run, weights included: by ONNX Runtime's profile, and the model for weights that it packed.",
        unit="bytes",
    )
    nodes: tuple[str, ...] = column("Every FX node that it computes.", default=())
    onnx_nodes: tuple[str, ...] = column("Nodes of the ONNX model, as it was before ONNX Runtime's rewrites, that it computes.", default=())
    onnx_ops: tuple[str, ...] = column("Operators of these nodes, in the same order.", default=())
    low_ns: int | None = optional(
        "`mean_ns` by the fastest stretch of the profile's repeats alone: with `high_ns` its noise. Empty below 8 repeats. On a GPU, by "
        "the shortest and the longest run.",
        unit="ns",
    )
    high_ns: int | None = optional("`mean_ns` by the slowest stretch.", unit="ns")
    device_kernels: tuple[str, ...] = column(
        "Names of the kernels, copies and fills that it launched on its device, in the order of their first launches; empty on the CPU.",
        default=(),
    )
    refusal: Refusal | None = optional(
        "Of a kernel on the CPU in a session of another provider: why that one does not run it, by its own table of kernels. `no_kernel`; "
        "`opset` and `dtype`, of which `refused` has the operator sets or types; `chosen`: it has a kernel, and ONNX Runtime chose the "
        "CPU, as for shapes; `compiles`: it compiles graphs and has no table; `unlisted`: its kernels could not be listed."
    )
    refused: tuple[str, ...] = column("What `refusal` is about.", default=())
    copies_ns: int | None = optional("Of such a kernel: time per call of the copies between devices next to it.", unit="ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeric:
    """One compared value, of ONNX Runtime and PyTorch or of two models; one compared as computed and as returned has two rows."""

    partition_id: str | None = optional("Partition the value is in; empty for a part of the whole call.")
    node: str = column(
        "FX node that makes the value; for scope `call` the name of the part, as `result[0]` or `x after the call`.", brief=1
    )
    onnx_value: str | None = optional("Name of the value in the ONNX model.")
    max_abs: float | None = optional("Largest absolute difference.", brief=3)
    max_rel: float | None = optional(
        "Largest difference relative to the larger of the element and the root mean square of PyTorch's value.",
        brief=4,
    )
    ok: bool | None = optional("True when within tolerance; empty when not checked.", brief=2)
    first_divergence: bool = column("True for the first value, in graph order, that is out of tolerance.", default=False)
    closer_to_fp64: str | None = optional("Which side is closer to a double-precision run: `ort`, `eager`, `equal`.", brief=7)
    scope: NumericScope = column(
        "What was compared: an `output` of the session that runs, a `value` inside it, one `op` converted on its own, or a part of the "
        "whole `call`: a result, what it wrote, a gradient, the random state.",
        default="value",
        brief=6,
    )
    atol: float | None = optional("Largest absolute difference that was let pass.")
    rtol: float | None = optional("The same, relative to the value.")
    nonfinite: str | None = optional(
        "Which sides hold NaN or Inf: `ort`, `eager`, `both`; `origin` where this node is the first to make one of finite inputs."
    )
    file: str | None = optional("File of the user line.", brief=5)
    line: int | None = optional("Number of the user line.")
    note: str = column("Why it was not checked, or what was found out about a divergence, as which rewrite made it.", default="", brief=8)
    why: str = column("Of that, why there is no verdict.", default="")
    paired: Pairing | None = optional(
        "Between two ONNX models, how the reference's value was found: by its `name`, the `structure` around it, or its `content`."
    )
    reference_value: str | None = optional("Likewise, the name of the value in the reference.")
    sqnr_db: float | None = optional(
        "Likewise, the power of the reference's value over that of the difference, in decibels; infinite where they are equal.",
    )
    cosine: float | None = optional("Likewise, the cosine of the angle between the two values.")
    own_sqnr_db: float | None = optional(
        "The same as `sqnr_db`, where the part of the model up to the values compared before gets the reference's own values: what "
        "this part itself adds.",
    )
    is_undecided: bool = column(
        "Whether it was compared and differs, and PyTorch leaves the answer open, or narrower types do.", default=False
    )
    left_out: bool = column(
        "Whether the time of `verify` was over before it, or some calls of its partition, were compared.", default=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDigest:
    """Figures of one value of a call, by which it is compared with that of another capture; without its elements."""

    graph_id: str = column("Graph that it is in.", brief=2)
    node: str = column("Node that computes it, as in `nodes`; of an input its name in the graph.", brief=1)
    place: int = column("Which of the results of the node it is, or of the inputs of the graph besides weights; from 0.")
    is_input: bool = column("Whether it is an input of the graph.")
    dtype: str = column("Element type, as `float32`.", brief=3)
    shape: tuple[int, ...] = column("Its shape.", brief=4)
    norm: float = column("Square root of the sum of squares of the elements; here and below, of those that are finite.", brief=5)
    low: float | None = optional("Smallest element; empty without any.", brief=6)
    high: float | None = optional("Largest element, likewise.", brief=7)
    nonfinite: int = column("How many elements are NaN or infinite.", brief=8)
    checksum: int = column("CRC-32 of the bytes: that of another value is another one.")
    sketch: tuple[float, ...] = column("Sums of the elements with fixed random signs, by which two values are compared.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something the user should know, with its evidence."""

    rule: str = column("Name of the rule that found it.")
    severity: Severity = column("`error`, `warning` or `info`.", brief=1)
    title: str = column("What was found, in one line.", brief=2)
    file: str | None = optional("File of the user line.", brief=3)
    line: int | None = optional("Number of the user line.")
    evidence: str = column("The recorded facts behind it.", default="")
    hazard: str = column("Why it matters.", default="")
    mitigation: str = column("What to do.", default="", brief=4)
    gain_ns: int | None = optional("What the mitigation saves per call; empty where unknown.", unit="ns", brief=5)
    measured: bool = column("True when the gain was measured, False when estimated or unknown.", default=False, brief=6)
    at_most: bool = column(
        "True when the gain is a limit: what was found is more than that part of a call takes, besides the gains of findings above.",
        default=False,
    )
    subject: str | None = optional("Id or name of what it is about: a graph, node, partition, session, break or operator.")
    todo: str = column("The first sentence of `mitigation`, without a full stop; empty where it has only one.", default="")
    settings: tuple[str, ...] = column(_SETTINGS, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPart:
    """One part of the wall time of a call."""

    graph_id: str = column("Graph that was called.", brief=1)
    part: LedgerPartName = column(
        "`guards` entering compiled code: Dynamo's look-up and guards, AOTAutograd's wrappers, cold caches; `bind`, `run` and `output` of "
        "its sessions; `foreign` the whole graph under another backend; `eager` its nodes that PyTorch ran, and Python between graphs; "
        "`residual` what is left; `wait` from the return of the call until the device was done, which is absent on the CPU. On a GPU, the "
        "other parts are times of the host. Where no call was measured, `guards` and `residual` are absent.",
        brief=2,
    )
    ns: int = column("Time of the part per call of the model, over all entries of the graph.", unit="ns", brief=3)
    share: float = column(
        "Share of the wall time of the call, 0 to 1; all graphs and parts add to 1. Where no call was measured, of the sum of the rows.",
        unit="of call",
        brief=4,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one kind of step takes in a call of `generate`; the rows add up to the wall time of the call."""

    role: StepRole = column(
        "`tokenizer` from text to tokens and back; `encode` calls of the encoder; `prefill` the first call of the model, and others with "
        "several positions; `decode` calls with one position; `python` the rest: Python of `generate` around the model.",
        brief=1,
    )
    calls: float = column("Calls of the model in one call of `generate`; 0 for `python`.", default=0.0, brief=2)
    tokens: float = column(
        "Tokens that they compute, or positions that an encoder does: by rows of the batch, beams included.", default=0.0, brief=3
    )
    ns: int = column("Time per call of `generate`, the mean over the calls of the ledger.", unit="ns", default=0, brief=4)
    uncompiled_ns: int | None = optional("The same in eager PyTorch, in calls made in turns; empty where not measured.", unit="ns", brief=5)
    graph_ids: tuple[str, ...] = column("Graphs that these calls entered.", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What to do about one cause, ranked."""

    rank: int = column("Place in the order of usefulness, from 1.", brief=1)
    kind: Kind = column(
        "What it is about: a `break`, a `fallback` (`nothing_runs` where no operator runs in ONNX Runtime), a `recompile`; a `finding` of "
        "the lens itself, graphs compiled `for_training`, what is `slower` than PyTorch, or what another `rule` reports.",
        brief=2,
    )
    subject: str = column("The reason of the break, the operator, the guard that failed, or the title of the finding.")
    subject_id: str | None = optional("What to select for it: `lens.show(selected=...)`.")
    file: str | None = optional("File of the user line; of several lines, the costliest.", brief=3)
    line: int | None = optional("Number of the user line.")
    do: str = column("What to change.", brief=4)
    gain_ns: int | None = optional("Time per call that the change saves; empty where no change was timed or estimated.", unit="ns", brief=5)
    cost_ns: int | None = optional("Time per call that a break costs, or that an operator takes in PyTorch.", unit="ns", brief=6)
    confidence: GainConfidence = column("How these are known: `measured`, `estimated`, or `unknown`.", brief=7)
    tried: bool = column(
        "Whether the change was made: `explain` traced the call with it and the graph did not break there, or timed it.",
        default=False,
    )
    settings: tuple[str, ...] = column("Lines of Python that make the change as a setting, one per item.", default=())
    patch: str | None = column("The line as it would be; empty text deletes it, and a missing value says that no rule can write it.")
    consequences: tuple[str, ...] = column("What follows from it, or is alike: titles of findings, and operators.", default=())


Record: TypeAlias = (
    Graph
    | Break
    | Recompile
    | PythonFrame
    | CallLine
    | GraphInput
    | Node
    | Partition
    | Fallback
    | Model
    | Session
    | Placement
    | Run
    | Kernel
    | Numeric
    | ValueDigest
    | Finding
    | LedgerPart
    | Step
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideResult:
    """One way of running a program, timed in turns with others, against the base of the comparison."""

    way: str = column("Its name; of `ortlens bench`: `eager`, `inductor`, `ortlens`, `frozen` (`ortlens.freeze`), `exported`.", brief=1)
    verdict: SideVerdict = column(
        "`faster` or `slower` than the base, the `reference`, if the ratio's interval is, by 3 %; `same`; `unmeasured`: no ten rounds.",
        brief=6,
    )
    status: SideStatus = column(
        "`ok`, or why there are no times: `failed` raised an error, `crashed`, `timeout`, `memory` and `lost` are ends of its process, "
        "`refused` is what ONNX Runtime breaks by itself, `uninstalled` is what pip could not get, `skipped` was not tried.",
        default="ok",
    )
    call_ns: int | None = optional(
        "Time of a call: of the base the median over the rounds, of others that times `ratio`.", unit="ns", brief=2
    )
    ratio: float | None = optional("Times as long as the base: the median over the rounds of the ratio within a round.", brief=3)
    ratio_low: float | None = optional("Lower end of its 99 % interval; empty for less than ten rounds.", brief=4)
    ratio_high: float | None = optional("Upper end of it.", brief=5)
    cpu_ns: int | None = optional("CPU time of a call, in all threads of its process.", unit="ns", brief=2)
    spin_ns: int | None = optional("CPU time that its threads use after some calls, before they rest.", unit="ns", brief=6)
    first_ns: int | None = optional("Time of the first call, with what it takes to make it callable.", unit="ns", brief=10)
    max_abs: float | None = optional("Largest absolute difference of a result from eager; infinite for other shapes or NaN.", brief=9)
    peak_bytes: int | None = optional("The most memory that its processes held; empty in this process.", unit="bytes")
    rounds: int = column("Rounds; in each, every way is timed once.", default=0)
    note: str = column("Why there are no times, or what else is to be known.", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePeak:
    """What the machine reached on one number of threads."""

    dtype: str | None = optional("Element type of the matrix product; empty for reading and writing memory.")
    threads: int = column("Threads that worked on it; 0 on a device of its own.")
    per_s: float = column("Floating-point operations per second; of memory, bytes.")
    provider: str = column("Execution provider whose kernels are compared with it.", default="CPUExecutionProvider")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardCost:
    """Guards that Dynamo checks before each call of the measured function, for one thing that it reads."""

    source: str = column("What is read, as Dynamo writes it: `L['self'].table`; `L` for all that the function reads.")
    count: int = column("How many guards there are.")
    ns: int = column("What checking them adds to a call: the median difference to calls that do not.", unit="ns")
    file: str | None = optional("File of the function.")
    line: int | None = optional("Number of the line that reads it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured or counted about a whole capture, and what was chosen for it; empty where it was not."""

    dry_run: bool = column("Whether nothing was run.", default=False)
    planned_for: tuple[str, ...] = column("Execution providers of a dry run's tensors, beside the CPU's.", default=())
    planned_without: tuple[str, ...] = column(
        "What a dry run for CUDA could not plan without a GPU: `gradients`; `attention`, for which a GPU may choose an operator.",
        default=(),
    )
    rank: int | None = optional("Rank of the process in a distributed job.")
    cpu_count: int | None = optional("Processors of the machine.")
    cpu_usable: int | None = optional("Processors that the process may use, by its affinity and quota.")
    cpu_quota: float | None = optional("How many processors' time its control groups allow the process; empty without a quota.")
    throttled: int | None = optional("How often the kernel stopped it while it was recorded, as that quota was used up.")
    throttled_ns: int | None = optional("What all its processors lost by that.", unit="ns")
    cpu_bfloat16: bool | None = optional("Whether the processor has instructions for bfloat16.")
    torch_threads: int | None = optional("Threads of PyTorch.")
    option_upcast: tuple[str, ...] = column("Element types that are computed in float32, by the option `upcast`.", default=())
    explain_calls: int | None = optional("How often `explain` called what was compiled.")
    explain_uncompiled_calls: int | None = optional("How often it called the target as it is.")
    explain_inputs: int | None = optional("How many inputs it was given, if several; the first is measured, the others called once.")
    ledger_calls: int | None = optional("Calls that the ledger averages.")
    ledger_spread: float | None = optional("Median of the calls that the ledger's time is of over the shortest.")
    ledger_walls: tuple[int, ...] = column(
        "Wall times of calls as compiled, in their order, in ns: of those that the ledger's time is of, and of others if few.", default=()
    )
    ledger_cpu_ns: int | None = optional("CPU time of a call as compiled, in all threads of the process: the median.", unit="ns")
    ledger_others: float | None = optional("Cores that other processes had meanwhile.")
    ledger_idle: float | None = optional("Cores that were idle.")
    ledger_made: int | None = optional("Where no call counts: how many were made.")
    ledger_compiling: int | None = optional("How many of them compiled code.")
    ledger_creating: int | None = optional("How many compiled nothing, but created a session.")
    uncompiled_ns: int | None = optional("Time of a call in eager PyTorch, the median of turns with compiled calls.", unit="ns")
    first_token_ns: int | None = optional(
        "Of a generation of tokens, the time until the call of the model that computes the first.", unit="ns"
    )
    cache_bytes: int | None = optional("Size of the cache of an ONNX model in the last step of a generation.", unit="bytes")
    cache_copied_bytes: int | None = optional("What that step copies of it into new tensors although it stays the same.", unit="bytes")
    cache_new_bytes: int | None = optional("What it adds to it.", unit="bytes")
    turns_low: float | None = optional(
        "Times as long as a call in eager PyTorch: the lowest ratio of the medians of the first half of these turns, of those of the "
        "second, and of the shortest calls."
    )
    turns_high: float | None = optional("The highest of these.")
    dropped: tuple[str, ...] = column(
        "Functions that PyTorch was set to leave out of compiled code, such as `logging.Logger.warning`, and that a call without it ran.",
        default=(),
    )
    peak_bytes: int | None = optional(
        "The most that PyTorch's allocator on the CPU held at a time of what it allocated in a call, as compiled; outputs count, and what "
        "sessions keep does not. Measured where `kept_bytes` of sessions is.",
        unit="bytes",
    )
    allocations: int | None = optional("How often it allocated memory in that call.")
    uncompiled_peak_bytes: int | None = optional("The same as `peak_bytes` in eager PyTorch.", unit="bytes")
    uncompiled_allocations: int | None = optional("The same as `allocations` in eager PyTorch.")
    fresh_mib_ns: float | None = optional(
        "What writing a MiB of fresh memory takes longer than writing it again. Measured where a graph returns 32 MiB.",
        unit="ns",
    )
    guards: tuple[GuardCost, ...] = column(
        "The guards of the function that was measured, all of them first, then the containers with most; empty where not timed.", default=()
    )
    freeze_call: str | None = optional(
        "The call of `ortlens.freeze` for the measured function, where entering compiled code takes much of it and freezing works."
    )
    freeze_gain_ns: int | None = optional("What a frozen call saves, measured in turns; empty where it was not timed.", unit="ns")
    freeze_refused: str | None = optional("Where it was tried and does not work, or takes longer: why.")
    freeze_untried: Literal["tracing", "calls"] | None = optional(
        "Where it was not tried: `tracing` the function took more than 2 s, or whoever measured gave the number of `calls`."
    )
    peaks: tuple[MachinePeak, ...] = column("What the machine reached, on as many threads as the profiled sessions have.", default=())
    ways: tuple[SideResult, ...] = column("The ways of running the model that `bench` measured.", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Everything that was recorded. All views, frames and analyses are functions of it.

    Attributes:
        name: Name given by the user, or of the observed model.
        backend: Name of the observed backend.
        created: Time of the snapshot, ISO 8601, UTC.
        environment: Versions, names and options, by name; `facts.facts_of` adds the figures as text.
        figures: What was measured or counted about all of it.
        attachments: Bytes that belong to records, by name inside the saved file (`models/m0.onnx`).
        memo: What was computed from it, by function; not saved.
    """

    name: str = ""
    backend: str = "ortlens"
    created: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    figures: Figures = Figures()
    graphs: tuple[Graph, ...] = ()
    breaks: tuple[Break, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    frames: tuple[PythonFrame, ...] = ()
    call_lines: tuple[CallLine, ...] = ()
    graph_inputs: tuple[GraphInput, ...] = ()
    nodes: tuple[Node, ...] = ()
    partitions: tuple[Partition, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    models: tuple[Model, ...] = ()
    sessions: tuple[Session, ...] = ()
    placements: tuple[Placement, ...] = ()
    runs: tuple[Run, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    numerics: tuple[Numeric, ...] = ()
    values: tuple[ValueDigest, ...] = ()
    findings: tuple[Finding, ...] = ()
    ledger: tuple[LedgerPart, ...] = ()
    steps: tuple[Step, ...] = ()
    attachments: Mapping[str, bytes] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
