"""ONNX models damaged at random, and what explaining them gives."""

import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx

import ortlens
from ortlens.errors import OrtLensError
from tests.hostile.mutations import LONGEST_S, Verdict, changed_anywhere
from tests.sweep import rows_of_each, say_row

DATA = Path(__file__).resolve().parents[1] / "data" / "onnx"
_MEMORY = 8 << 30
_ODD: dict[type, tuple[Any, ...]] = {
    int: (-1, 0, 1, 2, 7, 16, 1000, 2**31 - 1, -(2**31), 2**62, -(2**63)),
    float: (0.0, -1.0, float("nan"), float("inf"), 1e38),
    str: ("", "x", "Loop", "If", "Constant", "Reshape", "\x1b[2J", "../../etc/passwd", "</script>", "a\0b", "y" * 5000),
    bytes: (b"", b"\0", b"\xff" * 8, b"a" * 100),
}


def models() -> list[bytes]:
    """The models that are damaged: of several exporters, small enough that a change hits their structure."""
    return [path.read_bytes() for path in sorted(DATA.glob("*.onnx")) if path.stat().st_size < 1 << 17]


def mutated_model(known: list[bytes], chance: random.Random) -> bytes:
    """Damage a model."""
    original = chance.choice(known)
    if chance.random() < 0.7:
        model = onnx.ModelProto()
        model.ParseFromString(original)
        for _ in range(chance.choice((1, 1, 3))):
            with contextlib.suppress(ValueError):  # a number that the field cannot hold
                _odd_field(model, chance)
        return bytes(model.SerializeToString())
    return changed_anywhere(original, chance)


def _odd_field(message: Any, chance: random.Random) -> None:  # noqa: ANN401 - any message of protobuf
    """Change one field of a message, or of a message in it."""
    fields = message.ListFields()
    if not fields:
        return
    descriptor, value = chance.choice(fields)
    if descriptor.type == descriptor.TYPE_MESSAGE:
        if descriptor.is_repeated and chance.random() < 0.05:
            value.add().CopyFrom(chance.choice(value))
        elif chance.random() < 0.05:
            message.ClearField(descriptor.name)
        else:
            _odd_field(chance.choice(value) if descriptor.is_repeated else value, chance)
        return
    kind = type(value[0] if descriptor.is_repeated else value)
    odd = kind(chance.choice(_ODD[kind]))
    if descriptor.is_repeated:
        value[chance.randrange(len(value))] = odd
    else:
        setattr(message, descriptor.name, odd)


def judged_model(path: Path, data: bytes) -> Verdict:
    """Explain a damaged model."""
    path.write_bytes(data)
    started = time.monotonic()
    try:
        lens = ortlens.explain(path, calls=1)()
        text = lens.summary()
        lens.save(path.with_suffix(".ortlens"))
    except OrtLensError:
        return Verdict("slow") if time.monotonic() - started > LONGEST_S else Verdict("refused")
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return Verdict("raised", f"{type(error).__name__}: {error}"[:200])
    if any(char != "\n" and not char.isprintable() for char in text):
        return Verdict("unsafe", repr(text[:200]))
    return Verdict("slow") if time.monotonic() - started > LONGEST_S else Verdict("loaded")


def judge_each(numbers: Iterable[int], folder: Path) -> None:
    """In a process of its own, which ONNX Runtime may end: print the verdict of each model."""
    import random
    import resource  # of POSIX, and so is the alarm
    import signal

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    known = models()
    for number in numbers:
        say_row({"begin": number})
        signal.alarm(int(6 * LONGEST_S))
        verdict = judged_model(folder / "model.onnx", mutated_model(known, random.Random(number)))  # noqa: S311 - to be repeated
        say_row({"kind": verdict.kind, "detail": verdict.detail})


def hunt(count: int) -> tuple[Counter[str], list[str]]:
    """Damage and explain models, in processes that are started again when one ends."""
    counts: Counter[str] = Counter()
    defects: list[str] = []
    with tempfile.TemporaryDirectory() as folder:

        def command(left: Sequence[int]) -> Sequence[str]:
            return ("tests.hostile", "--judge", str(left[0]), str(count), folder)

        for number, rows, ended in rows_of_each(range(count), command, limit_s=10 * LONGEST_S):
            verdict = Verdict(**rows[0]) if rows else Verdict("crashed", ended)
            counts[verdict.kind] += 1
            defects += [f"{number}: {verdict.kind} {verdict.detail}"] if verdict.is_defect else []
    return counts, defects
