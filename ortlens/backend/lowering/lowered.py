"""The result of lowering: an ATen graph and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.fx

    from ortlens.backend.lowering.returned_views import ReturnedViews
    from ortlens.trace.records import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredGraph:
    """An ATen graph, ready to be partitioned.

    Attributes:
        module: The graph: functional, its nodes with `meta["val"]`. It is never changed.
        phase: `inference`, `forward` or `backward`.
        static_inputs: Positions of the inputs that are parameters or buffers.
        compile_id: Dynamo's id; None for an exported program.
        op_count: Number of operations before decomposition.
        aot_ns: Time that decomposition took, in ns.
        input_names: Names of the inputs in a deployed model; empty to use the names of the nodes.
        output_names: Names of the outputs in a deployed model; empty to number them.
        is_plain: Whether it has the inputs and outputs of Dynamo's graph, so that Dynamo may call it directly.
        views: The outputs that PyTorch makes as views; None when there are none.
        mutated: Positions of the inputs whose new values are the first outputs, in that order.
        checks_signs: Whether inputs may be negative or conjugate views, which tracing did not see.
    """

    module: torch.fx.GraphModule
    phase: Phase
    static_inputs: frozenset[int]
    compile_id: str | None
    op_count: int
    aot_ns: int
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    is_plain: bool = False
    views: ReturnedViews | None = None
    mutated: tuple[int, ...] = ()
    checks_signs: bool = False

    @property
    def partitioned(self) -> torch.fx.GraphModule:
        """The graph without the views that it returns."""
        return self.module if self.views is None else self.views.module
