"""One architecture through the backend, told as plain data."""

import dataclasses
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import ortlens
from tests.zoo.architecture import Architecture
from tests.zoo.table import ARCHITECTURES

PACKAGE = Path(ortlens.__file__).parent
ATOL, RTOL = 1e-4, 1e-3
CALLS = 2  # the first makes the sessions, the second finds them


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was seen of one architecture.

    Attributes:
        model: Name of the class.
        family: As in the table.
        nodes: Compute nodes of all graphs.
        graphs: Graphs compiled.
        breaks: Graph breaks, each as its reason and place; the place is empty where there is none.
        partitions: ONNX models.
        coverage: Share of the compute nodes that ONNX Runtime ran, 0 to 1.
        fallbacks: What stays in PyTorch, each as count, operator and reason.
        complaints: Findings of the lens and warnings of ortlens; none are expected.
        max_abs_error: Largest difference from eager over every float output.
        mismatches: Outputs out of tolerance, each in words.
        compile_s: Seconds to compile all graphs.
        error: Why there is nothing to tell, empty when there is.
    """

    model: str
    family: str
    nodes: int = 0
    graphs: int = 0
    breaks: Sequence[tuple[str, str]] = ()
    partitions: int = 0
    coverage: float = 0.0
    fallbacks: Sequence[tuple[int, str, str]] = ()
    complaints: Sequence[str] = ()
    max_abs_error: float = 0.0
    mismatches: Sequence[str] = ()
    compile_s: float = 0.0
    error: str = ""

    @property
    def failed(self) -> bool:
        """True when the architecture does not run, runs with a complaint, or gives other numbers."""
        return bool(self.problems)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, each in words; empty when all is well."""
        return tuple(filter(None, (self.error, *self.mismatches, *self.complaints)))

    @property
    def whole(self) -> bool:
        """True when a single ONNX model does all of it."""
        return (self.graphs, self.partitions, self.coverage) == (1, 1, 1.0)

    def row(self) -> dict[str, Any]:
        """Select what docs/data/zoo.json keeps, rounded so that it rarely changes."""
        kept = ("family", "nodes", "graphs", "breaks", "partitions", "coverage", "fallbacks", "max_abs_error", "problems")
        rounded = {"coverage": round(self.coverage, 4), "max_abs_error": float(f"{self.max_abs_error:.1e}")}
        return {name: getattr(self, name) for name in kept} | rounded


def measure(architecture: Architecture) -> Measurement:
    """Run an architecture eagerly and through the backend, and compare."""
    torch.manual_seed(0)
    model, inputs = architecture.build(), architecture.inputs()
    lens = ortlens.Lens(name=architecture.model)
    fast = torch.compile(model, backend=lens)
    with torch.no_grad(), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        expected = _leaves(model(**inputs))
        pairs = [pair for _ in range(CALLS) for pair in zip(_leaves(fast(**inputs)), expected, strict=True)]
    return dataclasses.replace(
        _seen(lens, architecture),
        complaints=[
            *(finding.title for finding in lens.captured().findings),
            *(str(warning.message) for warning in heard if is_ours(warning)),
        ],
        max_abs_error=max(max_error(actual, wanted) for actual, wanted in pairs),
        mismatches=[words for actual, wanted in pairs if (words := mismatch(actual, wanted))],
    )


def is_ours(warning: warnings.WarningMessage) -> bool:
    """Whether ortlens gave a warning: by how its own begin, or by the file that it points to.

    A path in the text says nothing: torch quotes the place of a cached function once per process, and a checkout may be named ortlens.
    """
    return str(warning.message).startswith("ortlens") or Path(warning.filename).is_relative_to(PACKAGE)


def _seen(lens: ortlens.Lens, architecture: Architecture) -> Measurement:
    graphs, fallbacks = lens.graphs, Counter(zip(lens.fallbacks.target, lens.fallbacks.reason, strict=True))
    nodes = int(graphs.node_count.sum())
    return Measurement(
        model=architecture.model,
        family=architecture.family,
        nodes=nodes,
        graphs=len(graphs),
        breaks=[_reason_and_place(b) for b in lens.breaks.itertuples()],
        partitions=len(lens.partitions),
        coverage=float((graphs.coverage * graphs.node_count).sum() / nodes),
        fallbacks=[(count, target, reason) for (target, reason), count in fallbacks.most_common()],
        compile_s=round(float(graphs.compile_ns.sum()) / 1e9, 2),
    )


def _reason_and_place(row: Any) -> tuple[str, str]:  # noqa: ANN401 - a row of a frame
    reason = str(row.reason).splitlines()[0]
    if pd.isna(row.file):
        return reason, ""
    place = row.file.split("site-packages/")[-1]  # the same wherever the environment lies
    return reason, f"{place}:{row.line}"


def _leaves(output: Any) -> list[torch.Tensor]:  # noqa: ANN401 - a ModelOutput of any kind
    return [leaf for leaf in torch.utils._pytree.tree_leaves(dict(output)) if isinstance(leaf, torch.Tensor)]


def max_error(actual: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((actual.double() - wanted.double()).abs().max()) if wanted.numel() and actual.shape == wanted.shape else 0.0


def mismatch(actual: torch.Tensor, wanted: torch.Tensor) -> str:
    """Why the two differ, empty when they agree. An output of small numbers gets a smaller tolerance, or zeros would agree with it."""
    scale = min(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
    try:
        torch.testing.assert_close(actual, wanted, atol=ATOL * scale, rtol=RTOL)
    except AssertionError as error:
        return f"{list(wanted.shape)}: {str(error).splitlines()[0]}, largest difference {max_error(actual, wanted):.3g}"
    return ""


def measured(name: str) -> dict[str, Any]:
    """The measurement of one architecture as plain data, for a process of its own."""
    torch.set_num_threads(1)
    return dataclasses.asdict(measure(ARCHITECTURES[name]))
