# mypy: ignore-errors
# Run by hand, in an environment of its own.
"""Makes onnx_*.onnx: models of onnx 1.23.2's own backend tests, as they are: python make_onnx.py FOLDER."""

import sys
from pathlib import Path

from onnx.backend.test.case.node import collect_testcases

NAMES = (
    "if",
    "if_seq",
    "loop11",
    "loop13_seq",
    "loop16_seq_none",
    "optional_has_element_optional_input",
    "scan9_sum",
    "sequence_insert_at_front",
    "sequence_map_identity_1_sequence",
    "string_concat",
)

for case in collect_testcases(None):
    if case.name.removeprefix("test_") in NAMES:
        (Path(sys.argv[1]) / f"onnx_{case.name.removeprefix('test_')}.onnx").write_bytes(case.model.SerializeToString())
