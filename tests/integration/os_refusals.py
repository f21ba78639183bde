"""What becomes of each question to ortlens when the operating system refuses something: prints a row of JSON per case.

The process has no file descriptor left, really, at the first call of each question and at a later one; no room for files, no working
directory, no folder for temporary files, no standard output. An audit hook then refuses the first operation on a file or folder of each
kind that each function of ours makes, alone and with all that follow. Where nothing is refused any more, the question is answered.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import resource
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import ortlens
from tests.integration.test_whole_files import full_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ortlens import Lens

    Lack = Callable[[], contextlib.AbstractContextManager[object]]

OURS = str(Path(ortlens.__file__).parent)
REFUSALS = (errno.EMFILE, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT)
EVENTS = frozenset({
    *("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "os.chmod"),
    *("tempfile.mkdtemp", "tempfile.mkstemp", "subprocess.Popen", "os.posix_spawn", "shutil.rmtree"),
})  # fmt: skip
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(nn.Module):
    """A graph break, and an operator that stays in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).relu()
        torch._dynamo.graph_break()
        changed: torch.Tensor = torch.special.bessel_j0(y) + 1
        return changed


NET, PLAIN = Net().eval(), nn.Linear(4, 4).eval()
FOLDER = Path(tempfile.mkdtemp(prefix="ortlens-refused-"))
ERRORS = (ortlens.OrtLensError,)
NAMES = (ortlens.freeze, ortlens.load_frozen)
"""Looked up now: to import a module is Python's own work, and it says which file it cannot open."""


PLACES: list[Path] = []
"""Empty folders, made before something is refused."""


def place(name: str) -> Path:
    """A path that is not there."""
    return PLACES.pop() / name


def fresh() -> Any:  # noqa: ANN401 - a module
    """The package, once what was compiled is forgotten."""
    torch.compiler.reset()
    ortlens.OrtBackend.clear_cached_instances()
    return ortlens


def called(**options: Any) -> None:  # noqa: ANN401 - those of a lens
    """Compile and call the program; its answer is right."""
    fresh()
    torch.testing.assert_close(torch.compile(NET, backend=ortlens.Lens(**options))(X), NET(X))


def frozen() -> None:
    """Freeze, save and load."""
    folder = place("frozen")
    ortlens.freeze(PLAIN, X).save(folder)
    ortlens.load_frozen(folder)


PROGRAMS: dict[str, Callable[[], object]] = {
    "compile with a journal": lambda: called(journal=place("journal")),
    "compile with a cache": lambda: called(options={"cache_dir": str(place("cache"))}),
    "compile with a dump": lambda: called(options={"dump_path": str(place("dump"))}),
    "explain": lambda: fresh().explain(NET, calls=2)(X),
    "dry run": lambda: fresh().explain(NET, dry_run=True)(X),
    "profile a model": lambda: ortlens.explain(str(FOLDER / "held.onnx"), calls=1)().profile(repeat=2),
    "load": lambda: ortlens.load(FOLDER / "held.ortlens"),
    "load a folder": lambda: ortlens.load(FOLDER / "held"),
    "freeze": frozen,
    "export_onnx": lambda: fresh().explain(PLAIN, calls=1)(X).export_onnx(place("m.onnx")),
}
OF_A_LENS: dict[str, Callable[[Lens], object]] = {
    "profile": lambda lens: lens.profile(X, repeat=2),
    "verify": lambda lens: lens.verify(X),
    "verify operators": lambda lens: lens.verify(X, per_op=True),
    "measure": lambda lens: lens.measure(X),
    "frames": lambda lens: (lens.findings, lens.nodes, lens.kernels),
    "summary": lambda lens: (lens.summary(), repr(lens)),
    "display": lambda lens: lens._repr_html_(),
    "show": lambda lens: lens.show(),
    "what_if": lambda lens: lens.what_if(),
    "report": lambda lens: lens.report(place("report.html")),
    "save": lambda lens: lens.save(place("run.ortlens")),
    "save a folder": lambda lens: lens.save(place("run")),
    "export": lambda lens: lens.export(place("csv"), format="csv"),
    "compare": lambda lens: lens.compare(FOLDER / "held.ortlens").report(place("compared.html")),
    "check": lambda lens: lens.check(max_breaks=9),
    "repro": lambda lens: lens.repro("p0", place("repro"), args=(X,)),
    "netron": lambda lens: lens.netron("p0").save(place("netron.html")),
}


def watched() -> Lens:
    """A lens under which the program ran."""
    fresh()
    lens = ortlens.Lens()
    torch.compile(NET, backend=lens)(X)
    return lens


def questions() -> Iterator[tuple[str, Callable[[], object]]]:
    """Everything that a user asks; last, since others forget what was compiled, what a lens is asked."""
    lens = watched()
    lens.save(FOLDER / "held.ortlens")
    lens.save(FOLDER / "held")
    fresh().explain(PLAIN, calls=1)(X).export_onnx(FOLDER / "held.onnx")
    yield from PROGRAMS.items()
    lens = watched()
    for name, question in OF_A_LENS.items():
        yield name, partial(question, lens)


def outcome(question: Callable[[], object], missing: Lack = contextlib.nullcontext) -> str:
    """What becomes of a question: `answered`, `refused` for a clear error of ortlens, or what came out instead."""
    PLACES[:] = [Path(tempfile.mkdtemp(dir=FOLDER)) for _ in range(2)]
    try:
        with missing(), contextlib.redirect_stdout(io.StringIO()):
            question()
    except ERRORS:
        return "refused"
    except BaseException as error:  # noqa: BLE001 - it is the outcome
        return f"{type(error).__name__}: {str(error)[:300]}"
    return "answered"


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """No file descriptor is left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def no_working_directory() -> Iterator[None]:
    """The working directory was deleted."""
    before, gone = Path.cwd(), Path(tempfile.mkdtemp())
    os.chdir(gone)
    gone.rmdir()
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def no_temporary_folder() -> Iterator[None]:
    """The folder for temporary files was deleted."""
    before, tempfile.tempdir = tempfile.tempdir, str(FOLDER / "not there")
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def no_streams() -> Iterator[None]:
    """Nobody listens: standard output and error are closed, as for a daemon."""
    kept = os.dup(1), os.dup(2)
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = None
    os.close(1)
    os.close(2)
    try:
        yield
    finally:
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdout, sys.stderr = before


LACKS: dict[str, Lack] = {
    "descriptors": no_descriptors,
    "room": partial(full_disk, 100),  # for the files of ONNX Runtime, too
    "working directory": no_working_directory,
    "temporary folder": no_temporary_folder,
    "streams": no_streams,
}


@dataclass(slots=True)
class _Hook:
    """Refuses an operation."""

    is_on: bool = False
    seen: int = 0
    doors: dict[tuple[str, ...], int] = field(default_factory=dict)
    at: int = 0
    following: bool = False
    number: int = errno.EMFILE
    refused: str = ""

    @contextlib.contextmanager
    def refusing(self, at: int, number: int = errno.EMFILE, *, following: bool = False) -> Iterator[None]:
        """Refuse one operation, by its number, and those that follow if asked; refuse none at 0, and list the doors."""
        self.is_on, self.seen, self.at, self.number, self.following, self.refused = True, 0, at, number, following, ""
        try:
            yield
        finally:
            self.is_on = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.is_on or event not in EVENTS:
            return
        self.seen += 1
        if not self.at:
            self.doors.setdefault((event, *_place_of_ours()), self.seen)
        if self.at and (self.seen == self.at or (self.following and self.seen > self.at)):
            self.refused = self.refused or f"{event} {arguments[:1]}"
            raise OSError(self.number, os.strerror(self.number), "planted")


def _place_of_ours() -> tuple[str, str]:
    """Return the innermost function of ortlens that is running: what is behind it is one door."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and OURS not in frame.f_code.co_filename:
        frame = frame.f_back
    return ("", "") if frame is None else (frame.f_code.co_filename, frame.f_code.co_name)


def rows() -> Iterator[dict[str, str]]:
    """Ask everything where something is missing, and where an operation is refused that no earlier question made."""
    # What raises must not look like a line of the user's program.
    _Hook.__call__.__code__ = _Hook.__call__.__code__.replace(co_filename="<frozen os>")
    hook = _Hook()
    sys.addaudithook(hook)
    known: set[tuple[str, ...]] = set()
    for name, question in questions():
        yield {"question": name, "refused": "descriptors at first", "found": outcome(question, no_descriptors)}
        yield {"question": name, "refused": "", "found": outcome(question)}
        for lack, missing in LACKS.items():
            yield {"question": name, "refused": lack, "found": outcome(question, missing)}
        hook.doors.clear()
        yield {"question": name, "refused": "", "found": outcome(question, partial(hook.refusing, 0))}
        new = [at for door, at in hook.doors.items() if door not in known]
        known |= hook.doors.keys()
        for (at, following), number in zip(itertools.product(new, (False, True)), itertools.cycle(REFUSALS), strict=False):
            found = outcome(question, partial(hook.refusing, at, number, following=following))
            yield {"question": name, "refused": f"{errno.errorcode[number]} {hook.refused}", "found": found}
        yield {"question": name, "refused": "", "found": outcome(question)}


def main() -> None:
    """Print the rows."""
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    vars(torch._dynamo.guards)["profile_guard_manager"] = lambda *_: 0.0  # a measurement for a log, 20 ms per compilation
    for row in rows():
        print(json.dumps(row), flush=True)  # noqa: T201 - what it is for
    sys.stdout.flush()
    os._exit(0)  # whatever a refused step left open is no matter here


if __name__ == "__main__":
    main()
