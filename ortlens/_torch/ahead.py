"""What torch compiles ahead of time, and how it writes graphs; imported where something is compiled ahead or loaded.

| what | torch 2.13 | why private |
| --- | --- | --- |
| what a backend returns under `aot_compile` | `torch/_dynamo/aot_compile_types.py` | documented there alone |
| what AOTAutograd keeps of a backend's graph | `torch/_inductor/output_code.py` | the same; torch's own backends use it |
| graphs as bytes | `torch/fx/_graph_pickler.py` | no public one keeps example values |
"""

# ruff: noqa: F401 - the names are here for others to import
# mypy: implicit-reexport

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.aot_compile_types import (
    BundledAOTAutogradSerializableCallable,
    GraphModuleSerializableCallable,
    SerializableCallable,
)
from torch._inductor.output_code import OutputCode
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv


class _Pickler(GraphPickler):
    """Torch's pickler, for all symbolic numbers: it writes those of ints alone."""

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, (torch.SymFloat, torch.SymBool)):
            return _symbolic, (type(obj), torch.SymInt(obj.node))  # type: ignore[no-untyped-call]  # torch's has no annotations
        return super().reducer_override(obj)


def _symbolic(kind: Any, number: torch.SymInt) -> Any:
    return kind(number.node)


def bytes_from_graphs(state: object) -> bytes:
    """Write graphs, with what notes of their nodes, beside anything that can be pickled."""
    return _Pickler.dumps(state, Options(ops_filter=None, node_metadata_key_filter=None))


def graphs_from_bytes(data: bytes) -> Any:
    """Read what `bytes_from_graphs` wrote; what it holds is executed."""
    return GraphPickler.loads(data, FakeTensorMode(shape_env=ShapeEnv()))
