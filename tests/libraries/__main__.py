"""Measure models of other libraries for the last section of docs/integrations.md: `python -m tests.libraries [NAME ...]`.

`make sweep-integrations` runs it with the libraries installed. With names, only those and what was never measured are measured anew.
Each model runs in a process of its own, so that one that crashes is a row and not the end.
"""

import dataclasses
import sys

from tests.figures import measured_with, read, write
from tests.libraries.measure import Measurement, measured
from tests.libraries.models import MODELS, PACKAGES, RANKS
from tests.sweep import result_of_each, say

_LIMIT_S = 300


def main(names: list[str]) -> int:
    """Measure all, or those that are named and those that are missing, and write the figures."""
    rows = read("libraries")["models"] if names else {}
    everything = (*MODELS, *RANKS)
    for name, ended in result_of_each(measured, [name for name in everything if name in names or name not in rows], seconds=_LIMIT_S):
        found = Measurement(**ended.value) if ended.status == "ok" else Measurement(wrong=f"{ended.status}: {ended.reason}")
        say(f"{name:50} {found.coverage:6.1%} {found.ratio:6.2f} {found.wrong}")
        rows[name] = dataclasses.asdict(found)
    rows = {name: rows[name] for name in everything}
    write("libraries", {"measured": measured_with("torch", "onnxruntime", *PACKAGES), "models": rows})
    return 1 if any(row["wrong"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
