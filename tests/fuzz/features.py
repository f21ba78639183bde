"""Counts what occurs in random programs, without judging them: `python -m tests.fuzz --features`."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import TYPE_CHECKING

from ortlens import OrtBackendOptions
from tests.fuzz.generator import parts_of, random_program
from tests.fuzz.program import part_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.program import Program


def _in_body(pattern: str) -> Callable[[Program], bool]:
    return lambda program: any(re.search(pattern, line) for line in (*program.body, *program.returns))


def _in_inputs(pattern: str) -> Callable[[Program], bool]:
    return lambda program: any(re.search(pattern, text) for _, text in program.inputs)


def _in_steps(pattern: str) -> Callable[[Program], bool]:
    return lambda program: any(re.search(pattern, step) for step in program.steps)


def _in_state(pattern: str) -> Callable[[Program], bool]:
    return lambda program: any(re.search(pattern, line) for line in program.state)


def _option(name: str) -> Callable[[Program], bool]:
    return lambda program: name in program.options


_VIEW = r"\.(?:view|narrow|select|transpose|t|mT|permute|movedim|unsqueeze|squeeze|expand|chunk|split|unbind|diagonal|unfold|as_strided)\b"
_WRITE = r"\w_\(|\] [+*-]?= |out="
_WEIGHT = r"self\.[wbc]\w*"

FEATURES: dict[str, Callable[[Program], bool]] = {
    "views": _in_body(_VIEW),
    "slices with bounds that follow from sizes": _in_body(r"\[[^\]]*shape\[\d\][^\]]*:|:[^\]]*shape\[\d\]"),
    "sizes in arithmetic": _in_body(r"[+*-] \w+\.(?:shape\[|numel)"),
    "writes in place": _in_body(_WRITE),
    "writes on inputs": _in_body(rf"^[abc](?:_\d+)?\S*(?:{_WRITE})"),
    "writes on views": _in_body(rf"(?:{_VIEW}.*|\]\.\w*)(?:{_WRITE})"),
    "writes on tensors of the module": _in_body(rf"^{_WEIGHT}\S*(?:{_WRITE})"),
    "out=": _in_body(r"out="),
    "inputs of other dtypes": _in_inputs(r"dtype="),
    "dtypes changed inside": _in_body(r"\.to\(torch|\.(?:float|long|int|bool|double|half)\(|type_as"),
    "int32": lambda program: "int32" in f"{program.inputs}{program.body}{program.state}",
    "16-bit floats": lambda program: "float16" in f"{program.inputs}{program.body}{program.state}",
    "Python numbers inside": _in_body(r"[+*-] -?\d|-?\d\S* [+*-] "),
    "Python numbers as inputs": lambda program: any(name.startswith("k") for name, _ in program.inputs),
    "inputs that are views of inputs": lambda program: any(re.match(r"[abc]", text) for _, text in program.inputs),
    "outputs that alias": lambda program: len(set(program.returns)) < len(program.returns) or any(map(_in_body(_VIEW), [program])),
    "inputs as outputs": lambda program: any(name in program.returns for name, _ in program.inputs),
    "sizes as outputs": lambda program: any(re.fullmatch(r"\S+\.shape\[\d\]", text) for text in program.returns),
    "permuted inputs": _in_inputs(r"\.(?:t|mT|permute|transpose|movedim)\b"),
    "channels-last inputs": _in_inputs("channels_last"),
    "expanded inputs": _in_inputs("expand"),
    "inputs with an offset": _in_inputs(r"\[[^\]]*1:|\[-2:"),
    "overlapping inputs": _in_inputs(r"unfold|as_strided"),
    "empty inputs": lambda program: _in_inputs(r"\(\d+, 0, ")(program) or _in_steps(r"call\(0\)")(program),
    "0-d inputs": _in_inputs(r"values\(\d+(?:, dtype=[\w.]+)?\)"),
    "sizes that depend on data": _in_body(r"nonzero|masked_select|unique|\[\(.*[<>].*\)\]$|\.item\(|int\("),
    "the same, captured": lambda program: program.captures and FEATURES["sizes that depend on data"](program),
    "graph breaks": _in_body("graph_break"),
    "operators that stay in PyTorch": _in_body(r"cumm|kthvalue|sort|heaviside|logcumsumexp|special|fft|nextafter|nanmedian"),
    "branches on sizes": _in_body(r" if .* else "),
    "training": _in_steps("backward"),
    "training, two calls before backward": _in_steps("twice"),
    "gradients without backward": lambda program: program.trains and not _in_steps("backward")(program),
    "weights": lambda program: bool(program.state),
    "weights that are read": _in_body(_WEIGHT),
    "weights in odd memory": _in_state(r"\.t\(\)|\[\d?:|expand|\[1::"),
    "large weights": _in_state("300"),
    "weights changed between calls": _in_steps("self"),
    "the same in inference, where they are read": lambda program: (
        not program.trains and FEATURES["weights changed between calls"](program) and FEATURES["weights that are read"](program)
    ),
    "weights replaced": _in_steps(r"^self\.\w+ = |swap_tensors|assign=True"),
    "weights written through data": _in_steps(r"\.data|numpy"),
    "callers write into outputs": _in_steps(r"^outs"),
    "callers write into inputs": _in_steps(r"^ins"),
    "other values": _in_steps("other"),
    "other memory": _in_steps("moved"),
    "threads": _in_steps("threads"),
    "sizes that change": lambda program: len({step for step in program.steps if step.startswith("call")}) > 1,
    "dynamic=True": lambda program: program.dynamic is True,
    "dynamic=False": lambda program: program.dynamic is False,
    "arithmetic of sizes and whole numbers": _in_body(r"^m\d+(?:_\d+)? = "),
    "floor divisions of them": _in_body(r"^m\d+(?:_\d+)? = .*//"),
    "numbers that depend on data": _in_body(r"^m\d+(?:_\d+)? = .*(?:\.sum\(|item\(|\.any\()"),
    "numbers as outputs": lambda program: any(re.fullmatch(r"m\d+(?:_\d+)?", text) for text in program.returns),
    "frozen": lambda program: program.road == "frozen",
    "frozen, saved and loaded": lambda program: program.road == "loaded",
    "exported": lambda program: program.road == "exported",
    "arguments in other memory": _in_steps("relaid|roomy"),
    "an argument twice, or overlapping ones": _in_steps(r'="[abc](?:_\d+)?(?:\[0\])?"|overlapping'),
    "an argument that is the module's buffer": _in_steps(r"state\("),
    "the same three, frozen or exported": lambda program: program.road != "compile" and _in_steps("given")(program),
    "calls that raise": _in_steps("spoilt"),
    "the same, where the function writes": lambda program: _in_steps("spoilt")(program) and _in_body(_WRITE)(program),
    "one operator on 16 bits and a number": lambda program: program.exact,
    "other default dtypes": lambda program: program.default_dtype != "float32",
    "modules in train mode": _in_state("nn.Dropout|BatchNorm"),
    "the same, called": _in_body(r"self\.[dg]\w*\("),
    "cond": _in_body(r"\bcond\("),
    "cond, in training": lambda program: program.trains and _in_body(r"\bcond\(")(program),
    "while_loop and scan": _in_body(r"\b(?:loop|scanned)\("),
    "marked dimensions": lambda program: bool(program.marks),
    "cold cache_dir": _option("cache_dir"),
    "warm cache_dir": _in_steps("warm"),
    **{f"option {field.name}": _option(field.name) for field in dataclasses.fields(OrtBackendOptions)},
}


def counted(programs: int, seed: int = 0) -> collections.Counter[str]:
    """Count the programs that have each feature."""
    found: collections.Counter[str] = collections.Counter(dict.fromkeys(FEATURES, 0))
    made = 0
    while made < programs:
        count = parts_of(seed)
        program = random_program(seed, cache_dir="cache", parts=count)
        for part in [part_of(program, place) for place in range(count)] if count > 1 else [program]:
            made += 1
            found.update(name for name, has in FEATURES.items() if has(part))
        seed += 1
    return found


def table(programs: int, seed: int = 0) -> str:
    """The counts as text."""
    lines = [f"{count:6,}  {100 * count / programs:5.1f} %  {name}" for name, count in counted(programs, seed).items()]
    return "\n".join([f"of {programs:,} programs", *lines])
