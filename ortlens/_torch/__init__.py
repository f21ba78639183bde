"""The only package of ortlens that uses private names of torch.

Each entry gives its place in torch 2.13 and the reason why no public name does, so that a new version of torch is checked here and
nowhere else. torch is imported on first use: `import ortlens` stays light.

| what | torch 2.13 | why private |
| --- | --- | --- |
| ONNX functions and their dispatcher | `torch/onnx/_internal/exporter/_registration.py`, `_dispatching.py` | no public entry for one node |
| recording ONNX Script calls | `torch/onnx/_internal/exporter/_building.py` | the same |
| the type promotion pass | `torch/onnx/_internal/fx/passes/type_promotion.py` | the same |
| AOTAutograd for backends | `torch/_dynamo/backends/common.py` | documented for custom backends in spite of the underscore |
| compile ids, static inputs, fake mode, sizes that became constants | `torch/_guards.py` | not available elsewhere |
| the structured trace | `torch/_logging/_internal.py` | the log that tlparse reads has no public name |
| code that Dynamo skips from then on | `torch/_dynamo/convert_frame.py`, `torch/_C/_dynamo/eval_frame.pyi` | no public name |
| compiling a frame without running it; what it counts | `torch/_dynamo/convert_frame.py`, `torch/_dynamo/utils.py` | no public name |
| where `cond` and the like compile their bodies | `torch/_dynamo/utils.py` | `force_eager` stops that too, and their gradients raise |
| whether Dynamo switched checks of distributions off | `torch/_dynamo/eval_frame.py` | it does so once, unseen |
| levels of `torch.func` | `torch/_functorch/predispatch.py` | no public name says that a graph opens them |
| what rounds to TF32; copies of many tensors at once | `torch/_C/__init__.pyi` | public names raise after mixed settings; no public name |
| decompositions of single operators, and those made while tracing | `torch/_decomp/__init__.py`, `torch/_ops.py` | no public table |
| shapes that depend on data for some arguments | `torch/_subclasses/fake_impls.py` | public names serve custom operators alone |
| the mode that sees every operator | `torch/utils/_python_dispatch.py` | the same |
| modes, levels and tracers that are active; frames that Dynamo skips | `ortlens/_torch/interpreters.py` lists them | no public name |
| the entry of every `torch.compile` | `torch/_dynamo/eval_frame.py` | the public names are bound before anyone can replace them |
| the guards of devices | `c10/core/impl/DeviceGuardImplInterface.h` | a build without CUDA has none for fake CUDA tensors |
| trees of guards, and the entries that hold them | `torch/_C/_dynamo/guards.pyi`, `torch/_dynamo/eval_frame.py` | no public name |
| what torch compiles ahead, keeps and writes | `ortlens/_torch/ahead.py` lists them | the same |
| objects as trees, for as long as a trace takes | `torch/utils/_pytree.py` | no public name undoes a registration |
| sizes that may be 0 and 1; names of sizes | `torch/fx/experimental/_config.py`, `symbolic_shapes.py` | no public name |
| artifacts of caches | `torch/compiler/_cache.py` | no public name registers another kind |
| times of Dynamo's cache look-ups | `torch/autograd/profiler_legacy.py` | public but deprecated; the new profiler writes to stderr |
"""

# ruff: noqa: F401 - the names are here for others to import
# mypy: implicit-reexport

from __future__ import annotations

from ortlens._torch.aot import (
    aot_backend,
    autocasts,
    boxed,
    compiles_ahead,
    differentiable_results,
    example_of,
    fixes_a_value,
    gradient_inputs,
    holds_transforms,
    input_sources,
    kept_by_itself,
    know_shape,
    lookup_backend,
    mutated_input_indices,
    relaid_inputs,
    results_known,
    returns_outputs_unchanged,
    static_input_indices,
    taken_apart,
    tangent_indices,
    traced_sizes,
    untraced,
    user_outputs,
    varies_from_the_start,
    without_autocast,
)
from ortlens._torch.dynamo import (
    TRACE_LOGGER,
    code_being_compiled,
    code_wrapped_by_compiled,
    compiled_ahead,
    compiled_apart,
    compiled_callable,
    current_compile_id,
    display_code,
    dynamo_backend,
    dynamo_entry,
    graph_break_hints,
    graph_break_registry,
    innermost_backend,
    is_compiled_by_itself,
    is_of_dynamo,
    is_signal,
    is_traced,
    line_being_traced,
    modules_compiled_by,
    name_compiled_ahead,
    profiler_is_enabled,
    recompiled_scope,
    record_allocations,
    record_lookups,
    trace_artifact,
    traced_scope,
    uncompiled,
    wrapper_of,
)
from ortlens._torch.exported import (
    composite_decompositions,
    copies_kept,
    exported_guards,
    exported_inputs,
    guard_texts,
    keywords_named,
    objects_as_trees,
    replaced_buffers,
    shapes_over,
    size_names,
    sizes_compared,
    unchecked_distributions,
    unnoted_guards,
    with_guards,
    with_structures,
    without_idle_moves,
    without_objects,
    without_tokens,
    zero_and_one_open,
)
from ortlens._torch.exporter import (
    NodeRecorder,
    add_opset_imports,
    converted_operators,
    custom_functions,
    decomposition_of,
    decomposition_table,
    dispatch,
    insert_type_promotion,
    quiet,
    recorded,
    registry_with,
    shared_registry,
    unprinted,
)
from ortlens._torch.guards import GuardTime, checking, guard_times, trees_without_modules
from ortlens._torch.interpreters import (
    IS_INTERPRETED,
    UNGUARDED,
    interpreter_scope,
    is_interpreted,
    is_transformed,
    is_unguarded,
    skipped_by_dynamo,
    unrecorded,
)
from ortlens._torch.process import (
    computes_bfloat16,
    loaded_artifact,
    openmp_pause,
    record_artifact,
    register_artifacts,
    torch_folder,
    trace_again,
    tracing_cuda,
)
from ortlens._torch.retracing import dynamo_setting, dynamo_settings, has_side_effects, retrace, variables_of_call
from ortlens._torch.tensors import (
    allows_tf32,
    convolution_is_in_onednn,
    copy_all,
    depends_on_data,
    expression_of,
    expression_over,
    fake_mode_of,
    fake_tensor,
    flatten,
    flatten_as,
    found_about_sizes,
    has_own_operators,
    is_fake,
    is_fake_of,
    is_symbolic,
    is_wrapper,
    is_zero_tensor,
    map_tensors,
    marked_dims,
    named_leaves,
    needs_data,
    qualified_name,
    real_tensors,
    scaled_term,
    shallow_spec,
    share_storage,
    size_hint,
    tensors_of,
    unflatten,
    version_of,
    with_room,
    without_data,
)
