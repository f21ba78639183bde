"""What the soak tests measured, printed at the end of a run: `make sweep-soak` states figures, not only that bounds hold."""

import time
from dataclasses import dataclass, field

import pytest
from _pytest.terminal import TerminalReporter

from tests.soak.test_soak_memory import resident_bytes

FIGURES: list[str] = []


@dataclass(slots=True)
class Use:
    """What a piece of work used between when this was made and `stop`."""

    what: str
    before: int = field(default_factory=resident_bytes)
    started: float = field(default_factory=time.monotonic)
    grown_bytes: int = 0
    seconds: float = 0.0

    def stop(self, also: str = "") -> None:
        """Take the figures, and keep them for the end of the run."""
        self.seconds = time.monotonic() - self.started
        self.grown_bytes = resident_bytes() - self.before
        FIGURES.append(f"{self.what}: {self.seconds:.1f} s, {self.grown_bytes / 1e6:+.0f} MB{f', {also}' if also else ''}")


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print what was measured."""
    if FIGURES:
        terminalreporter.section("figures")
        for line in FIGURES:
            terminalreporter.write_line(line)


@pytest.fixture
def use() -> type[Use]:
    """Measures memory and time."""
    return Use
