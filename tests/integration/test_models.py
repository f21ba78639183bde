"""A real architecture through the backend: right numbers, whole coverage, full frames. tests/zoo has many."""

import torch

from ortlens import Lens
from ortlens.trace.schema import TABLES
from tests.integration.small_models import SMALL_MODELS

COMPUTE_NODES = 21
"""What the architecture is made of after decomposition: a change of torch or of the tables shows here first."""


def test_runs_whole_in_one_partition_matches_eager_and_fills_the_frames() -> None:
    torch.manual_seed(0)
    model, kwargs = SMALL_MODELS["resnet"].build().eval(), SMALL_MODELS["resnet"].inputs(2)
    lens = Lens()
    fast = torch.compile(model, backend=lens)
    with torch.no_grad():
        expected = model(**kwargs)
        for _ in range(3):
            torch.testing.assert_close(dict(fast(**kwargs)), dict(expected), atol=1e-4, rtol=1e-4)

    graphs = lens.graphs
    assert graphs.phase.tolist() == ["inference"]
    assert graphs.coverage.tolist() == [1.0]
    assert graphs.partition_count.tolist() == [1]
    if torch.__version__.startswith("2.13."):  # other versions decompose otherwise, or record other nodes
        assert graphs.node_count.tolist() == [COMPUTE_NODES]
    assert lens.fallbacks.empty, lens.fallbacks[["target", "reason_code", "reason"]].to_string()
    assert lens.breaks.empty
    assert not lens.captured().findings
    assert lens.sessions.calls.tolist() == [3]

    graph = lens.graphs.iloc[0]
    phases = ["loading_ns", "dynamo_ns", "aot_ns", "partition_ns", "convert_ns", "optimize_ns", "session_ns"]
    assert (graph[phases] > 0).all()
    assert graph.compile_ns == graph[phases].sum()
    assert graph.file.endswith(".py")

    nodes = lens.nodes
    assert nodes.supported.all()
    assert nodes.partition_id.eq("p0").all()
    from_user = nodes[nodes.file.notna()]
    assert len(from_user) >= 0.95 * len(nodes)  # type promotion and decompositions of constants have no line of their own
    assert from_user.source.notna().all()
    assert nodes.module.notna().mean() > 0.9
    assert nodes.flops.sum() > 0
    assert (nodes.onnx_nodes.map(len) > 0).mean() > 0.4  # views and constants fold away

    partition, model_row, session = lens.partitions.iloc[0], lens.models.iloc[0], lens.sessions.iloc[0]
    weights = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    assert 0 < partition.weight_bytes <= weights
    frozen = partition.weight_bytes - (session.table_bytes or 0)  # embedding tables stay inputs
    assert model_row.initializer_bytes >= frozen > 0.9 * partition.weight_bytes
    assert model_row.size_bytes < partition.weight_bytes  # frozen weights stay outside the model
    assert session.providers == ("CPUExecutionProvider",)

    runs = lens.runs
    assert (runs.total_ns == runs.bind_ns + runs.run_ns + runs.output_ns).all()
    assert runs.total_ns.sum() == session.total_ns
    for table in TABLES:
        assert list(getattr(lens, table).columns)
