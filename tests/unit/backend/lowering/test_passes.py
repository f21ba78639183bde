"""The passes over a lowered graph: what they ensure is checked in every compilation, and a broken promise is seen."""

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ortlens.backend.basis.pass_runner import Pass, PassError
from ortlens.backend.lowering import passes
from ortlens.backend.lowering.passes import GraphCondition

_aten = torch.ops.aten


def traced() -> torch.fx.GraphModule:
    return make_fx(lambda x, y: (x + y) * 2, tracing_mode="fake")(torch.ones(3), torch.ones(3))


def drops_a_value(copy: passes.Prepared) -> None:
    next(iter(copy.module.graph.find_nodes(op="call_function", target=_aten.add.Tensor))).meta.clear()


def turns_round(copy: passes.Prepared) -> None:
    (output,) = copy.module.graph.find_nodes(op="output")
    next(iter(copy.module.graph.nodes)).prepend(output.all_input_nodes[0])


def leaves_dead_code(copy: passes.Prepared) -> None:
    node = next(iter(copy.module.graph.find_nodes(op="call_function", target=_aten.add.Tensor)))
    with copy.module.graph.inserting_after(node):
        copy.module.graph.call_function(_aten.neg.default, (node,)).meta = dict(node.meta)


@pytest.mark.parametrize(
    ("change", "condition"),
    [(drops_a_value, GraphCondition.VALUED), (turns_round, GraphCondition.ORDERED), (leaves_dead_code, GraphCondition.READ)],
)
def test_a_pass_that_breaks_what_holds_is_seen(
    change: Callable[[passes.Prepared], None], condition: GraphCondition, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = passes.prepared(traced(), lambda _: True)
    assert prepared.failures == {}
    assert all(each.holds(prepared.module.graph) for each in GraphCondition)
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES, Pass(name="planted", run=change)))
    with pytest.raises(PassError, match=condition.value):
        passes.prepared(traced(), lambda _: True)
