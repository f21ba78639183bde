"""Where a capture was made, and with what: versions, machine, providers, options."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.trace.records import Capture

_WORDS = {
    "python": "Python",
    "platform": "system",
    "machine": "processor type",
    "cpu_count": "processors",
    "cpu_usable": "usable processors",
    "torch_threads": "torch threads",
    "ledger_calls": "calls averaged in the ledger",
    "explain_calls": "calls that explain made, compiled",
    "explain_uncompiled_calls": "calls that explain made, without torch.compile",
}
_MAX_ENTRIES = 100


def surroundings_of(capture: Capture) -> tuple[tuple[str, str], ...]:
    """List the environment as names and values: versions, machine, choices. Bounded, since a saved file may hold anything."""
    return tuple(_pairs(capture))[:_MAX_ENTRIES]


def _pairs(capture: Capture) -> Iterator[tuple[str, str]]:
    left = dict(sorted(capture.environment.items()))
    yield "captured", capture.created.replace("T", " ").replace("+00:00", " UTC") or "not recorded"
    yield "backend", capture.backend
    for name in [name for name in left if name.startswith("version_")]:
        yield name.removeprefix("version_"), left.pop(name)
    for name in [name for name in _WORDS if name in left]:
        yield _WORDS[name], left.pop(name)
    providers = dict.fromkeys(", ".join(session.providers) for session in capture.sessions)
    if providers:
        yield "execution providers", "; ".join(providers)
    threads = dict.fromkeys(
        _threads(session.threads, session.threads_reason) for session in capture.sessions if session.threads is not None
    )
    if threads:
        yield "threads per session", "; ".join(threads)
    options = [name for name in left if name.startswith("option_")]
    for name in options:
        yield f"option {name.removeprefix('option_')}", left.pop(name)
    yield from left.items()


def _threads(count: int, reason: str) -> str:
    many = "chosen by ONNX Runtime" if count == 0 else str(count)
    return f"{many} ({reason})" if reason else many
