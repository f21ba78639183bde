"""Observing never breaks the observed: whichever function of the package fails, the program's answers are PyTorch's.

A sample; `make sweep-seams` has every function fail.
"""

import pytest

from tests.seams.faults import Seam, seams
from tests.seams.programs import BROKEN, WAYS, outcome, tidy

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NAMED = [
    # Run before a fallback exists, or in the user's call: each of these reached the user once.
    ("Lens", "ortlens.lens.observing.compilations.CompiledTargets.note_compilation"),
    ("capture", "ortlens.backend.recording.reporter.GraphReporter.planned"),
    ("no lens", "ortlens.backend.basis.provenance.input_name"),
    ("Lens(journal=...)", "ortlens.lens.observing.environment.machine_facts"),
    ("Lens(journal=...)", "ortlens.trace.journal.Journal._write_calls"),
    ('Lens("eager")', "ortlens.trace.recorder.Recorder.add"),
    ("no lens", "ortlens._torch.aot.compiles_ahead"),
    ("no lens", "ortlens._torch.interpreters._has_mode"),
    ("Lens", "ortlens.backend.graph.PlannedGraph.__init__"),
    # Others.
    ("Lens", "ortlens.trace.runlog.RunLog.record"),
    ("explain", "ortlens._torch.process.trace_again"),
    ("Lens(journal=...)", "ortlens.backend.runtime.devices.capturing"),
    ("capture", "ortlens.lens.observing.environment.chosen_options"),
    ("Lens", "ortlens.lens.observing.listener._event_of"),
    ("Lens", "ortlens.lens.observing.listener._TraceListener._attach"),
    ("Lens", "ortlens.lens.observing.listener.DynamoWatch._count_boundary"),
    ("Lens", "ortlens.analysis.identity.frame_of"),
    ("Lens", "ortlens.backend.lowering.entry.DynamoGraph._is_plain"),
    ("Lens", "ortlens.backend.basis.options.registered_ops"),
    ("Lens", "ortlens.backend.compiler.GraphCompiler.tables"),
    ("Lens", "ortlens._torch.aot.mutated_input_indices"),
    ("Lens", "ortlens._torch.aot.boxed"),
]


@pytest.fixture(scope="module")
def by_name() -> dict[str, Seam]:
    return {seam.name: seam for seam in seams().values()}


@pytest.mark.parametrize(("way", "name"), NAMED)
def test_a_failure_of_the_package_costs_no_answer(way: str, name: str, by_name: dict[str, Seam]) -> None:
    found = outcome(way, by_name[name])
    tidy()
    assert found.kind in {"survived", "quiet"}, found.detail


@pytest.mark.parametrize("way", WAYS)
def test_whatever_fails_costs_no_answer(way: str, by_name: dict[str, Seam]) -> None:
    """Every eightieth function, other ones under each way of observing; `make sweep-seams` has all of them fail."""
    from tests.seams.__main__ import reached_by

    broken = {}
    for name in reached_by(way)[13 * list(WAYS).index(way) :: 80]:
        found = outcome(way, by_name[name])
        if found.kind in BROKEN:
            broken[name] = found
    tidy()
    assert broken == {}
