"""The words and units that every view uses, what to type for what was not recorded, and how strings from outside are made harmless."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.identity import RESUMED
from ortlens.analysis.problems.guards import condition_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortlens.trace.records import Capture, LedgerPartName, ReasonCode


REASON_WORDS: Mapping[ReasonCode, str] = {
    "no_converter": "no conversion to ONNX is known for this operator",
    "converter_raised": "its conversion to ONNX failed",
    "dtype": "ONNX Runtime does not support this data type here",
    "layout": "the tensor is not plain dense memory",
    "device": "the tensor is on a device that ONNX Runtime does not support here",
    "dynamic_shape": "the size of its result depends on the data",
    "side_effect": "it changes something outside the graph, or draws random numbers",
    "too_small": "its partition had fewer nodes than min_partition_nodes",
    "policy": "kept in PyTorch on purpose, by a rule of the backend or an option",
    "session_refused": "ONNX Runtime refused the model or failed to run it",
}
"""What each reason code means to someone who has not read the documentation."""

PHASE_WORDS: Mapping[str, str] = {
    "loading": "loading ortlens, once per process",
    "dynamo": "tracing",
    "aot": "lowering",
    "partition": "partitioning",
    "convert": "converting to ONNX",
    "optimize": "optimising ONNX",
    "session": "loading sessions",
    "other": "other",
}
"""What each phase of a compilation does."""

PART_WORDS: Mapping[LedgerPartName, str] = {
    "run": "ONNX Runtime",
    "eager": "PyTorch operators and Python between graphs",
    "guards": "entering compiled code",
    "bind": "binding",
    "output": "outputs",
    "foreign": "graphs of another backend",
    "residual": "rest",
    "wait": "waiting for the device",
}
"""What each part of the ledger is, in the order of display."""


def foreign_words(capture: Capture) -> str:
    """Name the graphs that another backend compiled, with the backends beside ours: `graphs of inductor`."""
    others = [name for name in capture.backend.split(", ") if name not in {"ortlens", "onnxrt"}]
    return f"graphs of {visible(', '.join(others) or 'another backend')}"


_SENTENCE_END = re.compile(r"(?<=\.)\s+(?=[A-Z])")
_ASCII = str.maketrans({"█": "#", "░": ".", "…": "~", "µ": "u", "✓": "+", "✗": "x", "▲": "!", "○": "-", "·": "-", "→": ">"})
_UNUSUAL = re.compile("[^ -~]")
_HARMLESS = {"\n": " ", "\r": " ", "\t": " "}
_MAX_PATH = 48  # characters of a shortened path; the end distinguishes files


def visible(text: str) -> str:
    """Make text safe to print on one line: no control sequence works, nothing hides or reorders what is read."""
    # Nearly all text is plain; a large report has tens of millions of characters.
    return text if text.isprintable() else _UNUSUAL.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    char = match[0]
    if char in _HARMLESS or char.isprintable() or unicodedata.category(char) == "Zs":
        return _HARMLESS.get(char, char)
    return f"\\U{ord(char):08x}" if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"  # noqa: PLR2004 - the end of the basic plane


def ascii_from_text(text: str) -> str:
    """Put look-alikes of the same width in place of bars, units and ellipses, and write all else that is not ASCII out."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def clipped(text: str, width: int) -> str:
    """Make text visible and cut it to a width of at least 1; it ends in an ellipsis when it was cut."""
    # The first cut keeps the work bounded: a name of a gigabyte is not walked through to show its head.
    shown = visible(text[: width + 1]) if len(text) > width else visible(text)
    return shown if len(shown) <= width and len(text) <= width else shown[: width - 1] + "…"


def place(file: str | None, line: int | None, module: str | None = None) -> str:
    """Name a user line with its file's folder: `bert/modeling_bert.py:210`; else `module layers.0 (GELU)` or `unknown line`."""
    if not file:
        return clipped(f"module {module}", _MAX_PATH) if module else "unknown line"
    short = visible("/".join(file[-4 * _MAX_PATH :].replace("\\", "/").split("/")[-2:]).lstrip("/"))
    short = short if len(short) <= _MAX_PATH else "…" + short[1 - _MAX_PATH :]
    return short if line is None else f"{short}:{line}"


def short(target: str) -> str:
    """Strip namespace and overload from an operator: `add` for `aten.add.Tensor`; names of another form stay as they are."""
    parts = target.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == "aten" else target  # noqa: PLR2004 - namespace, name, overload


def function(name: str | None) -> str:
    """Name a compiled function as its author knows it: `forward`, `rest of forward after line 12`, `unnamed function`.

    Dynamo calls the rest of a function after a graph break `torch_dynamo_resume_in_..._at_12`.
    """
    if not name:
        return "unnamed function"
    resumed = RESUMED.fullmatch(name)
    if resumed is None:
        return visible(name)
    return f"rest of {function(resumed['name'])} after line {resumed['line']}"


def first_sentence(text: str) -> str:
    """Return text up to the first full stop before a capital letter, so that `e.g.` does not end it."""
    return visible(_SENTENCE_END.split(text.strip(), maxsplit=1)[0])


def guard(text: str) -> str:
    """Return the checked condition of a guard on one line, without Dynamo's trailing comment."""
    return visible(condition_of(text))


Want: TypeAlias = Literal["explain", "measure", "profile", "verify"]
Place: TypeAlias = Literal["lens", "magic", "command", "saved"]

WANTS: tuple[Want, ...] = ("explain", "measure", "profile", "verify")

_TEXTS: Mapping[Place, Mapping[Want, str]] = {
    # A lens that is at hand, by its name.
    "lens": {
        "explain": "{name} = ortlens.explain({model})({x})",
        "measure": "{name}.measure({x})",
        "profile": "{name}.profile({x})",
        "verify": "{name}.verify({reference})",
    },
    # A magic that kept no lens.
    "magic": {
        "explain": "%ortlens -o lens {call}",
        "measure": "%ortlens -o lens {call}",
        "profile": "%ortlens -o lens --profile {call}",
        "verify": "%ortlens -o lens --verify {call}",
    },
    "command": {
        "explain": "ortlens explain {target}",
        "measure": "ortlens explain {target}",
        "profile": "ortlens explain {target} --profile",
        "verify": "ortlens explain {target} --verify{command_reference}",
    },
    # A capture by itself, and a page that outlives its lens.
    "saved": {
        "explain": "lens = ortlens.explain({model})({x})",
        "measure": "lens = ortlens.explain({model})({x})",
        "profile": "lens = ortlens.explain({model})({x}); lens.profile({x})",
        "verify": "lens = ortlens.explain({model})({x}); lens.verify({reference})",
    },
}
_TORCH = {"model": "model", "x": "x", "reference": "x", "call": "model(x)", "target": "MODULE:NAME --input ...", "command_reference": ""}
_ONNX = {
    "model": '"model.onnx"',
    "x": "",
    "reference": "module",
    "call": '"model.onnx"',
    "target": "model.onnx",
    "command_reference": " --reference MODULE:NAME",
}


@dataclass(frozen=True, slots=True)
class Hints:
    """Words for one place."""

    place: Place
    name: str = "lens"  # of the lens there

    def text(self, want: Want, *, is_onnx: bool = False) -> str:
        """Return what to type for a model of PyTorch, or for an ONNX model; empty for what there is not: the parts of a call of one."""
        if is_onnx and want == "measure":
            return ""
        if is_onnx and (self.place, want) == ("magic", "verify"):  # the magic takes no module
            return f"{self.text('explain', is_onnx=True)}, then lens.verify(module)"
        return _TEXTS[self.place][want].format(name=self.name, **(_ONNX if is_onnx else _TORCH))

    def for_empty(self, table: str) -> str:
        """Say that a table has no rows, and what to type to fill it where that was not done."""
        want = _FILLED_BY.get(table)
        return f"no rows; `{self.text(want)}` records {table}" if want else "no rows"


_FILLED_BY: Mapping[str, Want] = {"kernels": "profile", "numerics": "verify", "ledger": "measure"}
LENS, MAGIC, COMMAND, SAVED = Hints("lens"), Hints("magic"), Hints("command"), Hints("saved")
