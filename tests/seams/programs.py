"""A small program under each way of observing it, and what becomes of it when a function of the package fails."""

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from ortlens import Lens, OrtBackend, capture, explain
from ortlens.trace.recorder import CURRENT
from tests.seams.faults import SAID, Planted, Seam, raising

Kind: TypeAlias = Literal["survived", "quiet", "refused", "unreached", "raised", "wrong", "poisoned", "unreported", "leaked"]
BROKEN: frozenset[Kind] = frozenset({"raised", "wrong", "poisoned", "unreported", "leaked"})
"""What must not happen. `refused` is a call of ortlens's own that raised before the program ran; `quiet` a failure that costs nothing."""


class Net(nn.Module):
    """A graph break, an operator that stays in PyTorch, and a number that a recompile is about."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: int) -> torch.Tensor:
        y = self.linear(x).relu()
        torch._dynamo.graph_break()
        scaled: torch.Tensor = torch.special.bessel_j0(y) * scale
        return scaled


def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A training step."""
    return (x * weight).sin().sum()


ROWS = torch.linspace(-1, 1, 12).reshape(3, 4)
MORE = torch.linspace(-1, 1, 20).reshape(5, 4)


def answers(net: Callable[..., Any], train: Callable[..., Any]) -> list[torch.Tensor]:
    """Run the program: calls that compile, compile again, and train."""
    with torch.no_grad():
        results = [net(ROWS, 2), net(MORE, 2), net(ROWS, 3)]
    weight = torch.ones(4, requires_grad=True)
    loss = train(ROWS, weight)
    loss.backward()
    return [*results, loss.detach(), weight.grad]


def again(net: Callable[..., Any]) -> list[torch.Tensor]:
    """The next calls: one of sizes that are known, one of others."""
    with torch.no_grad():
        return [net(ROWS, 2), net(torch.ones(7, 4), 2)]


@dataclass(slots=True)
class Watched:
    """A program under observation."""

    net: Callable[..., Any]
    train: Callable[..., Any]
    lens: Lens | None
    shown: list[torch.Tensor] | None = None


MODEL = Net().eval()
JOURNALS: list[Any] = []
"""Those that still write, in threads of their own: what these run must not count as reached by another way of observing."""


def under(lens: Lens) -> Watched:
    return Watched(torch.compile(MODEL, backend=lens), torch.compile(step, backend=lens), lens)


@contextlib.contextmanager
def under_journal() -> Iterator[Watched]:
    """Everything is written to a file as well, which begins with facts of the machine."""
    with tempfile.TemporaryDirectory() as folder:
        lens = Lens(journal=Path(folder, "journal"))
        JOURNALS.append(lens.compilations.recorder.journal)
        yield under(lens)


def unwatched(lens: Lens | None = None) -> Watched:
    return Watched(torch.compile(MODEL, backend="ortlens"), torch.compile(step, backend="ortlens"), lens)


@contextlib.contextmanager
def under_capture() -> Iterator[Watched]:
    with capture() as lens:
        yield unwatched(lens)


def under_explain() -> Watched:
    """`explain` makes the calls itself; its result is one of the answers."""
    with torch.no_grad():
        lens = explain(MODEL, calls=3)(ROWS, 2)
    return Watched(MODEL, step, lens, [lens.result])


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[Watched]]] = {
    "Lens": lambda: contextlib.nullcontext(under(Lens())),
    "Lens(journal=...)": under_journal,
    "capture": under_capture,
    "explain": lambda: contextlib.nullcontext(under_explain()),
    'Lens("eager")': lambda: contextlib.nullcontext(under(Lens("eager"))),
    "no lens": lambda: contextlib.nullcontext(unwatched()),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the program."""

    kind: Kind
    detail: str = ""


def tidy() -> None:
    """Forget what was compiled, and end what still writes."""
    while JOURNALS:
        JOURNALS.pop().close()
    torch.compiler.reset()
    OrtBackend.clear_cached_instances()


def outcome(way: str, seam: Seam) -> Outcome:  # noqa: PLR0911 - an outcome each
    """Run the program with a function that fails."""
    tidy()
    expected, expected_again = answers(MODEL, step), again(MODEL)
    Planted.hits = 0
    with warnings.catch_warnings(record=True) as heard, contextlib.ExitStack() as stack:
        warnings.simplefilter("always")
        with raising(seam):
            try:
                watched = stack.enter_context(WAYS[way]())
            except Exception as error:  # noqa: BLE001 - the exception is the outcome
                return _while_making(error)
            try:
                given = answers(watched.net, watched.train)
            except Exception as error:  # noqa: BLE001 - likewise
                return Outcome("raised", f"{type(error).__name__}: {str(error)[:200]}")
            hits = Planted.hits
        try:
            next_given = again(watched.net)
            stack.close()
        except Exception as error:  # noqa: BLE001 - likewise
            return Outcome("poisoned", f"{type(error).__name__}: {str(error)[:200]}")
        warnings.warn(_AFTERWARDS, stacklevel=1)
    if not any(str(item.message) == _AFTERWARDS for item in heard):
        return Outcome("poisoned", "warnings are not shown any more")
    if not hits:
        return Outcome("unreached")
    if CURRENT.get() is not None:
        return Outcome("leaked")
    if not _alike(given, expected) or (watched.shown is not None and not _alike(watched.shown, expected[:1])):
        return Outcome("wrong")
    if not _alike(next_given, expected_again):
        return Outcome("poisoned", "another result")
    if seam.name.startswith(SILENT):
        return Outcome("quiet")
    return _reported(watched.lens, [str(item.message) for item in heard if SAID in str(item.message)])


def _while_making(error: Exception) -> Outcome:
    return Outcome("refused") if SAID in str(error) else Outcome("raised", f"{type(error).__name__}: {str(error)[:200]}")


def _alike(given: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(given) == len(expected) and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(given, expected, strict=True))


_AFTERWARDS = "the program's own warning"

SILENT = (
    "ortlens._shell.",
    "ortlens.backend.runtime.binding.Binding.__del__",
    "ortlens.lens.observing.listener._TraceListener.leave_when_alone",
    "ortlens._torch.interpreters._has_",
    *("ortlens._torch.retracing.", "ortlens._torch.aot.fixes_a_value", "ortlens.lens.lens.Lens.planned"),
    "ortlens.lens.measuring.tried_changes.Trials._traced.<locals>.compiling",
)
"""Drawing a bar, finding the notebook, letting go, asking for modes, tracing with a change: the caller goes on without, and the capture
misses nothing. That tracing with a change fails is taken for a fault of the change."""


def _reported(lens: Lens | None, warned: list[str]) -> Outcome:
    if lens is None:
        return Outcome("survived" if warned else "quiet")
    held = lens.captured()
    texts = [finding.evidence or "" for finding in held.findings]
    texts += [f"{row.reason} {row.exception}" for row in held.fallbacks]
    if any(SAID in text for text in texts):
        return Outcome("survived", f"{len(warned)} warnings")
    return Outcome("unreported", f"{len(warned)} warnings")
