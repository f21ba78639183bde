from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ortlens.errors import UsageError
from ortlens.trace.schema import TABLES, table_by_name

if TYPE_CHECKING:
    from ortlens.trace import schema

# The public promise, written down a second time on purpose: a renamed column must fail here.
PROMISED = {
    "graphs": "graph_id compile_id phase name file line node_count op_count partition_count fallback_count coverage dynamic_shapes"
    " recompile_of dynamo_ns aot_ns partition_ns convert_ns optimize_ns session_ns compile_ns",
    "breaks": "break_id gb_id reason explanation hints file line function source user_stack occurrences compile_ids cost_ns",
    "recompiles": "compile_id of_compile_id function file line guard reason",
    "nodes": "graph_id node target module module_type file line source dtype shape partition_id supported reason_code reason flops"
    " bytes onnx_nodes",
    "partitions": "partition_id graph_id node_count input_count output_count input_bytes output_bytes weight_bytes flops model_id",
    "fallbacks": "graph_id node target reason_code reason file line source calls total_ns",
    "models": "model_id partition_id path opset node_count ops initializer_bytes size_bytes sha256 cached optimized_node_count",
    "sessions": "session_id partition_id model_id providers input_signature create_ns held_bytes threads spinning threads_reason "
    "calls total_ns mean_ns p50_ns p90_ns p99_ns max_ns",
    "runs": "session_id call start_ns bind_ns run_ns output_ns total_ns thread",
    "kernels": "session_id kernel op_type provider calls total_ns mean_ns share node module file line confidence",
    "numerics": "partition_id node onnx_value max_abs max_rel ok first_divergence closer_to_fp64",
    "findings": "rule severity title file line evidence hazard mitigation gain_ns measured",
    "ledger": "graph_id part ns share",
    "steps": "role calls tokens ns uncompiled_ns graph_ids",
}
COLUMNS = {f"{table.name}.{column.name}": column for table in TABLES.values() for column in table.columns}


def test_tables_are_the_promised_ones_in_order() -> None:
    assert list(TABLES) == list(PROMISED)


def test_promised_columns_come_first_and_in_order() -> None:
    promised = {name: columns.split() for name, columns in PROMISED.items()}
    assert {name: [column.name for column in TABLES[name].columns][: len(columns)] for name, columns in promised.items()} == promised


def test_every_column_says_what_it_means() -> None:
    meanings = {name: column.meaning for name, column in COLUMNS.items()}
    assert {name: text for name, text in meanings.items() if not (text.endswith(".") and len(text) > len("An id."))} == {}


def test_units_follow_from_names() -> None:
    def follows(column: schema.Column) -> bool:
        for unit in ("ns", "bytes"):
            if column.name == unit or column.name.endswith(f"_{unit}"):
                return (column.unit, column.kind) == (unit, "int")
        return column.unit in {"", "flops"}

    assert [name for name, column in COLUMNS.items() if not follows(column)] == []


def test_dtypes_follow_from_annotations() -> None:
    expected = {
        "graphs.op_count": ("int64", False),
        "graphs.line": ("Int64", True),
        "graphs.coverage": ("float64", True),
        "graphs.dynamic_shapes": ("bool", False),
        "graphs.phase": ("string", False),
        "numerics.ok": ("boolean", True),
        "nodes.reason_code": ("string", True),
        "nodes.shape": ("object", True),
        "breaks.hints": ("object", False),
        "ledger.share": ("float64", False),
    }
    assert {name: (COLUMNS[name].dtype, COLUMNS[name].nullable) for name in expected} == expected


def test_unknown_table_is_refused_with_the_list() -> None:
    assert table_by_name("runs").record is TABLES["runs"].record
    with pytest.raises(UsageError, match=r"there is no table 'graph'; the tables are: graphs, breaks"):
        table_by_name("graph")
