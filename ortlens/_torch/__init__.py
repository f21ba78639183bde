"""The only package of ortlens that touches private names of torch.

Each entry says why there is no public way and where the thing lives in torch 2.13, so that the next version's
changes are looked for here and nowhere else. torch is imported on first use: `import ortlens` stays light.

| what | torch 2.13 | why private |
| --- | --- | --- |
| ONNX functions and their dispatcher | `torch/onnx/_internal/exporter/_registration.py`, `_dispatching.py` | no public per-node entry |
| the recorder of ONNX Script calls | `torch/onnx/_internal/exporter/_building.py` | same |
| the type promotion pass | `torch/onnx/_internal/fx/passes/type_promotion.py` | same |
| AOTAutograd for backends | `torch/_dynamo/backends/common.py` | the documented way for custom backends, underscore and all |
| compile ids, static inputs, fake mode | `torch/_guards.py` | Dynamo publishes them nowhere else |
| counts of what could not be traced | `torch/_dynamo/utils.py` | all that torch 2.9 keeps of some breaks |
| the structured trace | `torch/_logging/_internal.py` | the log that tlparse reads |
| times of Dynamo's look-ups | `torch/autograd/profiler_legacy.py` | public, but on its way out; the newer one writes to stderr |
"""

from __future__ import annotations

from ortlens._torch.aot import (
    aot_backend,
    autocasts,
    example_of,
    input_sources,
    lookup_backend,
    mutated_input_indices,
    returns_plainly,
    static_input_indices,
)
from ortlens._torch.dynamo import (
    TRACE_LOGGER,
    code_being_compiled,
    compiled_apart,
    compiled_callable,
    current_compile_id,
    dynamo_backend,
    dynamo_entry,
    graph_break_hints,
    graph_break_registry,
    lookups_heard,
    recompiled_scope,
    told_code,
    untold_failures,
)
from ortlens._torch.exporter import (
    NodeRecorder,
    add_opset_imports,
    decomposition_table,
    dispatch,
    insert_type_promotion,
    is_custom,
    quiet,
    registry_with,
    shared_registry,
)
from ortlens._torch.process import thread_rester, torch_folder
from ortlens._torch.programs import (
    composite_decompositions,
    exported_guards,
    exported_inputs,
    with_guards_of_its_own_names,
    without_tokens,
)
from ortlens._torch.tensors import (
    expression_of,
    fake_mode_of,
    fake_tensor,
    is_fake,
    is_fake_of,
    is_symbolic,
    is_wrapper,
    map_tensors,
    needs_data,
    qualified_name,
    real_tensors,
    size_hint,
    symbols_of,
    tensors_of,
    unflatten,
    version_of,
)

__all__ = [
    "TRACE_LOGGER",
    "NodeRecorder",
    "add_opset_imports",
    "aot_backend",
    "autocasts",
    "code_being_compiled",
    "compiled_apart",
    "compiled_callable",
    "composite_decompositions",
    "current_compile_id",
    "decomposition_table",
    "dispatch",
    "dynamo_backend",
    "dynamo_entry",
    "example_of",
    "exported_guards",
    "exported_inputs",
    "expression_of",
    "fake_mode_of",
    "fake_tensor",
    "graph_break_hints",
    "graph_break_registry",
    "input_sources",
    "insert_type_promotion",
    "is_custom",
    "is_fake",
    "is_fake_of",
    "is_symbolic",
    "is_wrapper",
    "lookup_backend",
    "lookups_heard",
    "map_tensors",
    "mutated_input_indices",
    "needs_data",
    "qualified_name",
    "quiet",
    "real_tensors",
    "recompiled_scope",
    "registry_with",
    "returns_plainly",
    "shared_registry",
    "size_hint",
    "static_input_indices",
    "symbols_of",
    "tensors_of",
    "thread_rester",
    "told_code",
    "torch_folder",
    "unflatten",
    "untold_failures",
    "version_of",
    "with_guards_of_its_own_names",
    "without_tokens",
]
