"""From Dynamo's graph, or an exported program, to the ATen graph that is partitioned."""
