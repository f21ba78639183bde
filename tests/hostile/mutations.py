"""Captures and journals damaged at random, and what loading them gives."""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortlens.errors import CaptureError
from ortlens.trace import store
from ortlens.trace.journal import SAVED
from ortlens.views.rendering import summary
from tests.unit.trace.strategies import entries_in, journal_of

DATA = Path(__file__).resolve().parents[1] / "data" / "captures"
LONGEST_S = 10.0
"""A load that takes longer is a defect; the machine may be busy."""

_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, -(2**70), 1e308, "NaN", "", "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "../../etc/passwd", "\ud800",
    "</script><script>", "x" * 5000, [], {}, [[[]]], "=cmd|' /C calc'!A0",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a load gave.

    Attributes:
        kind: `refused`, `loaded`, or a defect: `raised`, `slow`, `changed`, `unsafe`.
        detail: The exception, or what is wrong.
    """

    kind: str
    detail: str = ""

    @property
    def is_defect(self) -> bool:
        """Whether this must not happen."""
        return self.kind not in {"refused", "loaded"}


def _flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 8))):
        data[chance.randrange(len(data))] = chance.randrange(256)


def _cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def _remove(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.randrange(1, 64)]


def _insert(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = chance.randbytes(chance.randrange(1, 64))


def _double(data: bytearray, chance: random.Random) -> None:
    at, to = sorted(chance.randrange(len(data)) for _ in range(2))
    data[at:at] = data[at:to][:4096]


def _zeros(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at : at + 32] = bytes(min(32, len(data) - at))


BYTES: tuple[Callable[[bytearray, random.Random], None], ...] = (_flip, _cut, _remove, _insert, _double, _zeros)


def _odd_json(value: Any, chance: random.Random) -> Any:  # noqa: ANN401 - parsed JSON
    """The same JSON with one value replaced by an odd one."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.05:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: _odd_json(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], _odd_json(value[at], chance), *value[at + 1 :]]
    return chance.choice(_ODD)


def _forged(data: bytes, chance: random.Random) -> bytes:
    """A capture with one value changed and every checksum right, as somebody who knows the format would make it."""
    entries = entries_in(data)
    at = chance.randrange(len(entries))
    entry, held = entries[at]
    if "table" in entry and chance.random() < 0.9:
        held = json.dumps(_odd_json(json.loads(held), chance)).encode()
    elif "attach" in entry and held and chance.random() < 0.5:
        changed = bytearray(held)
        chance.choice(BYTES)(changed, chance)
        held = bytes(changed)
    else:
        entry = _odd_json(entry, chance)
    entries[at] = entry, held
    return journal_of((each, bytes_of) if isinstance(each, dict) else (each, b"") for each, bytes_of in entries)


def mutated(data: bytes, chance: random.Random) -> tuple[bytes, bool]:
    """Damage a file."""
    if chance.random() < 0.5:
        return _forged(data, chance), True
    return changed_anywhere(data, chance), False


def changed_anywhere(data: bytes, chance: random.Random) -> bytes:
    """Change bytes up to three times."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 3))):
        if changed:
            chance.choice(BYTES)(changed, chance)
    return bytes(changed)


def verdict_of(number: int, known: list[bytes], path: Path) -> Verdict:
    """Damage the file of a number and load it."""
    chance = random.Random(number)  # noqa: S311 - to be repeated
    original = chance.choice(known)
    data, forged = mutated(original, chance)
    return judged(path, data, forged=forged, original=original)


def judged(path: Path, data: bytes, *, forged: bool, original: bytes) -> Verdict:
    """Load a damaged file."""
    path.write_bytes(data)
    started = time.monotonic()
    try:
        loaded = store.load(path)
        text = summary(loaded)
    except CaptureError:
        return Verdict("slow") if time.monotonic() - started > LONGEST_S else Verdict("refused")
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return Verdict("raised", f"{type(error).__name__}: {error}"[:200])
    if time.monotonic() - started > LONGEST_S:
        return Verdict("slow")
    if any(char != "\n" and not char.isprintable() for char in text):
        return Verdict("unsafe", repr(text[:200]))
    if not forged and original.startswith(SAVED):  # of a journal that grew, what is cut off is missing
        path.write_bytes(original)
        if store.load(path) != loaded:
            return Verdict("changed", "a damaged file loads as another capture")
    return Verdict("loaded")
