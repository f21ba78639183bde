"""The only package of ortlens that uses private names of torch.

Each entry gives its place in torch 2.13 and the reason why no public name does, so that a new version of torch is checked here and
nowhere else. torch is imported with it; what torch itself imports late, and ONNX Script, on first use.

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
| the nodes that a decomposition makes, and the depth of one | `torch/fx/experimental/proxy_tensor.py` | no public name |
| shapes that depend on data for some arguments | `torch/_subclasses/fake_impls.py` | public names serve custom operators alone |
| the mode that sees every operator | `torch/utils/_python_dispatch.py` | the same |
| modes, levels and tracers that are active; frames that Dynamo skips | `ortlens/_torch/interpreters.py` lists them | no public name |
| the entry of every `torch.compile`, in `ortlens/_process.py` | `torch/_dynamo/eval_frame.py` | public names are bound too early |
| the guards of devices | `c10/core/impl/DeviceGuardImplInterface.h` | a build without CUDA has none for fake CUDA tensors |
| trees of guards, and the entries that hold them | `torch/_C/_dynamo/guards.pyi`, `torch/_dynamo/eval_frame.py` | no public name |
| what torch compiles ahead, keeps and writes | `ortlens/_torch/ahead.py` lists them | the same |
| regions of `nested_compile_region` where they are exported | `torch/_higher_order_ops/invoke_subgraph.py` | no public name |
| objects as trees, for as long as a trace takes | `torch/utils/_pytree.py` | no public name undoes a registration |
| sizes that may be 0 and 1; names of sizes | `torch/fx/experimental/_config.py`, `symbolic_shapes.py` | no public name |
| artifacts of caches | `torch/compiler/_cache.py` | no public name registers another kind |
| Inductor's table, which lists composite operators for the whole process | `torch/_inductor/decomposition.py` | no public name lists them |
| times of Dynamo's cache look-ups | `torch/autograd/profiler_legacy.py` | public but deprecated; the new profiler writes to stderr |
"""

# ruff: noqa: F403 - what a module of this package defines without an underscore is what others call here
# mypy: implicit-reexport

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

from ortlens._torch.aot import *
from ortlens._torch.dynamo import *
from ortlens._torch.exported import *
from ortlens._torch.exporter import *
from ortlens._torch.guards import *
from ortlens._torch.interpreters import *
from ortlens._torch.process import *
from ortlens._torch.regions import *
from ortlens._torch.retracing import *
from ortlens._torch.tensors import *
