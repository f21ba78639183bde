"""The promises of the removed backend's successor, line by line, and the tests that hold each of them."""

import ast
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One promise.

    Attributes:
        name: Where it stands in the contract, and what it is about.
        claim: What is promised, in a sentence.
        tests: Beginnings of the names of the test functions that show it; empty for what is to come later.
    """

    name: str
    claim: str
    tests: tuple[str, ...]

    def holds(self, test: str) -> bool:
        """Whether a test belongs to this line: its name is one of the line's, or such a name with more words behind."""
        return any(test == own or test.startswith(f"{own}_") for own in self.tests)


def _line(name: str, claim: str, *tests: str) -> Line:
    return Line(name=name, claim=claim, tests=tests)


def _option(field: str, claim: str) -> Line:
    return _line(f"3.1 {field}", claim, f"test_3_1_{field}")


LINES = (
    _option(
        "preferred_execution_providers", "Names or (name, options) pairs, tried before the inferred ones; one that is missing is named."
    ),
    _option("infer_execution_providers", "Providers follow the devices of the inputs, else of the outputs: others, CUDA, CPU."),
    _option("default_execution_providers", "Last in line; the CPU provider when nothing is said."),
    _option("preallocate_output", "PyTorch allocates the outputs, ONNX Runtime writes into them."),
    _option("use_aot_autograd", "Forward and backward go to ONNX Runtime; switched off, what needs gradients stays in PyTorch."),
    _option("training", "Optimisers, BatchNorm buffers, bf16 autocast, accumulation and checkpoints follow eager over twenty steps."),
    _option("export_options", "ExportOptions, as dataclass or mapping: dynamic_shapes, opset_version."),
    _option("ort_session_options", "A SessionOptions of the user's is used as it is."),
    _line(
        "3.1 pre_ort_model_transforms",
        "Callables see each ONNX model, in order, before its session is made, and may change it.",
        "test_8_3",
    ),
    _option("freeze_weights", "Weights become constants of the session; a changed one is noticed."),
    _option("min_partition_nodes", "Smaller partitions stay in PyTorch, with reason too_small."),
    _option("on_error", "A failing partition goes back to PyTorch with a reason, or raises."),
    _option("custom_translation_table", "Op overload -> ONNX Script function, before the built-in ones."),
    _option("cache_dir", "Converted models are kept on disk and reused by another process."),
    _option("dump_path", "Numbered .onnx and .txt files per prefix; the environment variable too."),
    _option("mapping_or_dataclass", "A plain mapping is accepted wherever the frozen dataclass is."),
    _option("defaults", "Every option has the stated default."),
    _option(
        "equal_options",
        "Equal options give the same backend instance, of at most eight, oldest out; those that hold a SessionOptions equal no others.",
    ),
    _option("execution_count", "execution_count counts session calls."),
    _option("sessions_by_graph", "Each partition's GraphModule leads to its session infos, with the eight fields."),
    _line("3.1 one_dynamic_session", "One dynamic-shape session serves all sizes.", "test_8_1_elementwise"),
    _option("a_session_is_reused", "A session is reused whenever its input types and shapes accept the call."),
    _option("unknown_names", "Unknown option names raise an error that lists the valid ones."),
    _line("8.1 elementwise", "Elementwise functions match eager with changing sizes, both ways.", "test_8_1_elementwise"),
    _line("8.1 MLP", "An MLP matches eager with changing batch sizes, forward and backward.", "test_8_1_mlp"),
    _line("8.1 LLaMA", "A LLaMA block matches eager with changing batch sizes, forward and backward.", "test_8_1_llama"),
    _line("8.1 batch size 1", "Batch size 1 adds at most one graph.", "test_8_1_batch_size_one"),
    _line("8.2 outputs", "Several outputs; no inputs.", "test_8_2_several_outputs", "test_8_2_no_inputs"),
    _line("8.2 scalars", "int, float, bool and SymInt inputs and outputs.", "test_8_2_scalar"),
    _line("8.2 SymInt", "SymInt arithmetic and getitem inside a partition.", "test_8_2_symint", "test_8_2_getitem"),
    _line("8.2 devices", "Inputs on mixed devices; cpu, cuda and maia, others refused by name.", "test_8_2_mixed", "test_8_2_devices"),
    _line("8.2 NVTX", "NVTX ranges around bind, run and output where CUDA is present.", "test_8_2_nvtx"),
    _line("8.3 transforms", "Transforms see every model once, in order, and may change what runs.", "test_8_3"),
    _line("8.4 dumps", "Dumped files appear on first run only, numbered, with the graph's text beside them.", "test_3_1_dump_path"),
    _line("8.5 caching", "Options caching as in 3.1.", "test_3_1_equal_options"),
    _line("8.6 counting", "One break three calls deep is 8 graphs, 7 breaks, 8 ops; three shapes are 2 recompiles.", "test_8_6"),
    _line("8.7 dynamic dims", "ExportedPrograms with dynamic dimensions.", "test_8_7_dynamic"),
    _line("8.7 files", "Programs saved to and loaded from a file; retraced programs.", "test_8_7_saved"),
    _line("8.7 constants", "Constants specialised at tracing.", "test_8_7_constants"),
    _line("8.7 arguments", "None and keyword arguments in any order.", "test_8_7_none_and_keyword_arguments"),
    _line("8.7 nesting", "Nested tuple, list and dict inputs and outputs.", "test_8_7_nested"),
    _line("8.7 mutation", "Mutated buffers, persistent or not; mutated inputs.", "test_8_7_mutated", "test_8_7_batch_norm"),
    _line("8.7 lazy", "Lazy modules; conditions.", "test_8_7_lazy", "test_8_7_conditions"),
    _line(
        "8.8 operators",
        "The classic cases run in ONNX Runtime or stay with a stated reason; the numbers match: static, dynamic, exported.",
        "test_8_8_operators",
    ),
    _line("8.8 higher-order", "cond, while_loop, scan and flex attention stay in PyTorch, with a reason.", "test_8_8_higher_order"),
    _line("8.8 random", "Random numbers under a seed are PyTorch's.", "test_8_8_random", "test_8_8_dropout"),
    _line("8.8 broken code", "Code that Dynamo breaks gives right answers over several graphs.", "test_8_8_code", "test_8_8_a_module"),
    _line("8.9 per op", "Every node's converted op can be checked against PyTorch on its own."),
    _line("8.10 fake weights", "Analysed without memory for weights; real ones come from a checkpoint.", "test_8_10"),
)


def written_tests() -> tuple[str, ...]:
    """The names of the test functions of this suite that stand for a line."""
    statements = (node for path in sorted(HERE.glob("test_*.py")) for node in ast.parse(path.read_text(encoding="utf-8")).body)
    functions = (node.name for node in statements if isinstance(node, ast.FunctionDef))
    return tuple(name for name in functions if name.startswith(("test_3_1_", "test_8_")))
