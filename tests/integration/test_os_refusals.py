"""What the operating system refuses is an answer or a clear error of ortlens, and the next question is answered.

No descriptor left, no room, no working directory, no folder for temporary files, no standard streams: `os_refusals.py` asks everything.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ortlens
from ortlens._os_errors import clear_os_errors, explained
from ortlens.errors import OrtLensError, SessionError, UsageError
from ortlens.lens.profiling import profiles
from ortlens.trace import store
from tests.integration.test_whole_files import full_disk

pytest.importorskip("resource", reason="POSIX limits")
X = torch.linspace(-1, 1, 6)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="lists its descriptors there")  # noqa: PTH112 - before anything is imported
def test_what_is_refused_is_said_and_the_next_question_is_answered(root: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.integration.os_refusals"]
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) > 300
    assert [row for row in rows if row["found"] not in ({"answered", "refused"} if row["refused"] else {"answered"})] == []
    assert {row["found"] for row in rows if row["refused"].startswith("E")} == {"answered", "refused"}


@pytest.fixture(scope="module")
def lens() -> ortlens.Lens:
    made = ortlens.Lens()
    with torch.no_grad():
        torch.compile(torch.nn.Linear(6, 5).eval(), backend=made)(X)
    return made


def test_a_missing_folder_for_temporary_files_is_named(lens: ortlens.Lens, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with torch.no_grad(), pytest.raises(OrtLensError, match=r"profile\(\) failed: the operating system refused it: .*gone.*TMPDIR"):
        lens.profile(X)


def test_a_profile_and_a_saved_callable_without_room_are_clear_errors(lens: ortlens.Lens, tmp_path: Path) -> None:
    with torch.no_grad():
        frozen = ortlens.freeze(torch.nn.Linear(6, 5), X)
        with full_disk(100), pytest.raises(UsageError, match=": File too large; nothing is left there"):
            frozen.save(tmp_path / "frozen")
        profiles.measure_cost()  # imports what it needs
        with full_disk(100), pytest.raises(SessionError, match="free some space"):
            lens.profile(X)
        assert len(lens.profile(X, repeat=2))


def test_versions_are_known_without_descriptors(lens: ortlens.Lens, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: str) -> str:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("ortlens._versions.version", refused)
    assert "torch.compile with backend ortlens" in lens.summary()
    assert lens.captured().environment["version_torch"]
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(torch.sin, backend=ortlens.Lens())(X), X.sin())


def test_what_the_program_raises_passes_untouched() -> None:
    class Reading(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            open("/nowhere/weights.bin")  # noqa: PTH123, SIM115 - it fails
            return x

    with pytest.raises(FileNotFoundError, match=r"weights\.bin"):
        ortlens.explain(Reading())(X)


def test_advice_depends_on_what_was_refused() -> None:
    @clear_os_errors
    def question() -> None:
        raise OSError(28, "No space left on device")

    question_in_a_package = question.__wrapped__  # type: ignore[attr-defined]  # of `functools.wraps`
    question_in_a_package.__code__ = question_in_a_package.__code__.replace(co_filename="<frozen os>")
    # This test is a program, nobody's package: what it raises would pass.
    with pytest.raises(OrtLensError, match=r"was_refused\(\) failed: .*No space left on device; free some space"):
        question()
    assert "ulimit -n" in explained(OSError(24, "Too many open files"))
    assert explained(OSError(5, "Input/output error")).endswith("Input/output error")


DAEMON = """
import os, resource, sys, warnings
import torch, ortlens
sys.path.insert(0, sys.argv[1])
from tests.integration.test_journal import X, program

full = ortlens.Lens(journal="full")
function, hard = program(), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
sys.dont_write_bytecode = True  # Python would leave half a file in `__pycache__`
with torch.no_grad(), warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    assert torch.allclose(torch.compile(function, backend=full)(X), function(X)) and len(full.graphs) == 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
(warned,) = (item for item in heard if str(item.message).startswith("the journal cannot be written any more: OSError"))
(failed,) = (finding for finding in full.captured().findings if finding.rule == "journal_failed")
assert failed.evidence.startswith("OSError: [Errno 27] File too large, after ")
assert os.path.getsize("full") <= 3000

os.close(1), os.close(2)
lens = ortlens.Lens(journal="journal")
with torch.no_grad():
    torch.compile(torch.sin, backend=lens)(torch.ones(3))
state = torch.get_rng_state()
try:
    ortlens.freeze(lambda x: torch.cond(x.sum() > 0, lambda y: y @ torch.ones(7, 7), lambda y: y, (x,)), torch.ones(3, 3))
except ortlens.UsageError:
    assert torch.equal(torch.get_rng_state(), state), "the first refusal of a process draws no random numbers"
for number in (1, 2):
    try:
        os.write(number, b"noise of a library")
    except OSError:
        pass
lens._recorder.journal.close()
held = ortlens.load("journal")
assert b"noise" not in open("journal", "rb").read(), "in the journal"
assert len(held.graphs) == 1 and len(held.runs) == 1

live = ortlens.Lens(journal="live")  # and the process ends
torch.compile(torch.cos, backend=live)(torch.ones(3))
watching = ortlens.capture()
watching.__enter__()
torch.compile(torch.tan, backend="ortlens")(torch.ones(3))
open("done", "w").write("done")
"""


@pytest.mark.slow
def test_a_journal_without_room_a_daemon_without_streams_and_an_exit_with_live_lenses(
    run_python: Callable[..., str], tmp_path: Path, root: Path
) -> None:
    run_python(DAEMON, str(root))
    assert (tmp_path / "done").read_text(encoding="ascii") == "done"
    assert "journal_not_closed" in {finding.rule for finding in store.load(tmp_path / "full").findings}
