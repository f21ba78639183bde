"""Judges a program: what the backend gives against what PyTorch gives, with `aot_eager` as the control.

A difference that `aot_eager` shows as well is torch's own: it comes from Dynamo or AOTAutograd, which both backends share. Where a call
raises, so is one of `aot_eager_decomp_partition`: Inductor's decompositions drop a value that nobody reads, with what its operator checks.
"""

# ruff: noqa: ANN401 - programs return anything

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

import ortlens
from ortlens import _torch
from ortlens.backend.basis.error_text import LEFT_TO_TORCH
from tests.fuzz.graphs import GraphRoad
from tests.fuzz.program import ROADS, Program
from tests.fuzz.world import Notes, Seen, run

TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
_WIDENS = re.compile(r"\.to\(torch\.float64\)|\.double\(\)|dtype=torch\.float64")
"""What converts a result of float32 to float64, with its rounding."""
_MAGNIFIED = 100.0
"""How much larger than what a rounding of the arguments changes a difference may be and still be called rounding."""

_AT_MOST = 0.05
"""How far PyTorch's answer may be from that in float64 and still be called rounding."""


@dataclass(frozen=True)
class Difference:
    """One thing that differs.

    Attributes:
        step: Position of the step after which it was seen.
        label: The tensor, or what is said about several.
        kind: `error`, `value`, `dtype`, `shape`, `strides`, `traits`, `plain`, `shared`, `between`, `warning`.
        text: For people.
    """

    step: int
    label: str
    kind: str
    text: str

    @property
    def key(self) -> tuple[int, str, str]:
        """What the control has to show as well for the difference to be torch's."""
        return (self.step, self.label, self.kind)


@dataclass(frozen=True)
class Verdict:
    """What came of a program.

    Attributes:
        word: `right`; `refused`: so it is, but a frozen callable refused calls, or the caller asked for errors of ONNX Runtime; `wrong`:
            the backend differs; `torch`: so does the control; `unprepared`: all is right, but a graph stays in PyTorch, because
            preparing it raised; `invalid`: PyTorch itself raises; `rounding`: it differs by what rounding explains; `road`: it differs as
            a graph that was traced without AOTAutograd only.
        differences: What differs.
    """

    word: str
    differences: tuple[Difference, ...] = ()

    def text(self) -> str:
        """All differences, for people."""
        return "\n".join(f"  after step {item.step}: {item.label}: {item.kind}: {item.text}" for item in self.differences[:12])


def judge(program: Program, *, backend: Any = "ortlens", options: dict[str, Any] | None = None, control: Any = "aot_eager") -> Verdict:
    """Run a program with and without the backend."""
    if program.road in ROADS and backend == "ortlens":
        backend, control = program.road, "unlifted"
    expected = run(program)
    if expected.error is not None:
        return Verdict("invalid")
    least = _least_tolerance(program)
    given = {**program.options, **(options or {})}
    actual = run(program, backend, given or None)
    if given.get("on_error") == "raise" and isinstance(actual.error, (ortlens.SessionError, ortlens.ConversionError)):
        return Verdict("refused")
    if actual.refused:
        expected = run(program, skipped=frozenset(actual.refused))
    found = _seen_by_callers(differences(actual, expected, least), program, backend, expected)
    found = [item for item in found if not _is_another_check(item, program, actual, expected)]
    found = _between_for_sure(found, program, actual, expected, least)
    if not found:
        return Verdict("refused" if actual.refused else "right")
    if isinstance(control, str):
        torch.compiler.reset()
    checked = run(program, control, skipped=frozenset(actual.refused))
    same = _excused(program, actual, expected, checked, least)
    for others, further in _further_controls(program, control, found):
        torch.compiler.reset()
        same |= _excused(others, actual, expected, run(others, further, skipped=frozenset(actual.refused)), least)
    ours = _not_excused(_before_the_control_fails(found, checked), same, program)
    if all(map(_is_unprepared, ours or found)):
        return Verdict("unprepared", tuple(ours or found))
    if not ours:
        return Verdict("torch", tuple(found))
    return Verdict("rounding" if _is_rounding(program, ours, expected, actual) else "wrong", tuple(ours))


def _is_unprepared(item: Difference) -> bool:
    return item.kind == "warning" and LEFT_TO_TORCH in item.text


def _between_for_sure(found: list[Difference], program: Program, actual: Notes, expected: Notes, least: float) -> list[Difference]:
    """Leave out what lies between elements and is left over in PyTorch, too: then it is another one where memory is filled."""
    if not any(item.kind == "between" for item in found):
        return found
    with _filled_memory():
        again = {item.key for item in differences(run(program, skipped=frozenset(actual.refused)), expected, least)}
    return [item for item in found if item.kind != "between" or item.key not in again]


def _not_excused(found: list[Difference], same: set[tuple[int, str, str]], program: Program) -> list[Difference]:
    ours = [item for item in found if item.key not in same]
    if program.road in ROADS and len(ours) < len(found):  # results of calls that PyTorch's own program gets wrong are kept
        ours = [item for item in ours if not item.label.startswith("kept")]
    return ours


def _further_controls(program: Program, control: Any, found: list[Difference]) -> Iterator[tuple[Program, Any]]:
    if any("spoilt(" in step for step in program.steps) and len(read := _read_lines(program)) < len(program.body):
        yield program.replace(body=read), None
    if control == "aot_eager" and any(item.label == "raised" for item in found):
        yield program, "aot_eager_decomp_partition"
    if control == "unlifted" and any(item.kind == "strides" for item in found):  # it writes in place where the backends' graphs do not
        yield program.replace(road="compile"), "aot_eager"
    if any(item.kind == "dtype" for item in found):  # `grid_sample` of nothing has the dtype of its kernel, and another one in traces
        yield program.replace(road="compile"), _TYPED


def _typed(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    """Run a graph as it is, and give its outputs the dtypes that tracing found for them."""
    (output,) = module.graph.find_nodes(op="output")
    dtypes = [getattr(getattr(node, "meta", {}).get("val"), "dtype", None) for node in output.args[0]]

    def run_typed(given: list[Any]) -> list[Any]:
        return [value if dtype is None else value.to(dtype) for value, dtype in zip(module(*given), dtypes, strict=True)]

    return _torch.boxed(run_typed)


_TYPED = aot_autograd(fw_compiler=_typed)


def _read_lines(program: Program) -> tuple[str, ...]:
    """Leave out what nobody reads, as AOTAutograd does: a check there is not made, and what follows in the program happens."""
    live, kept = set(re.findall(r"\w+", " ".join(program.returns))), []
    for line in reversed(program.body):
        made, _, source = line.partition(" = ") if re.match(r"\w+(, \w+)* = ", line) else ("", "", line)
        if not made or live.intersection(names := re.findall(r"\w+", made)):
            live = (live - set(names) if made else live) | set(re.findall(r"\w+", source))
            kept.append(line)
    return tuple(reversed(kept))


def _before_the_control_fails(found: list[Difference], checked: Notes) -> list[Difference]:
    """Leave out what the control cannot show; what AOTAutograd cannot trace, no backend compiles, so that warnings say nothing."""
    failed = any(getattr(step["raised"], "kind", "") == "BackendCompilerFailed" for step in checked.steps)
    if checked.error is None and not failed:
        return found
    return [item for item in found if item.kind != "warning" and (checked.error is None or item.step < len(checked.steps))]


def _excused(program: Program, actual: Notes, expected: Notes, checked: Notes, least: float) -> set[tuple[int, str, str]]:
    """What the control shows as well, so that it is torch's.

    After an error, there are two answers: the state that eager leaves, and that of the control. A third one is wrong. Where calls get other
    arguments, the control of frozen callables proves nothing: it takes its arguments for separate tensors, too.
    """
    same = {item.key for item in differences(checked, expected, least)}
    if program.road in ROADS:
        other = _with_other_arguments(program.steps)
        always = {key[1:] for key in same if key[0] not in other}
        same = {key for key in same if key[0] not in other} | {(place, *key) for place in other for key in always}
    return same - {item.key for item in differences(actual, checked, least) if item.kind != "error" and expected.steps[item.step]["raised"]}


def _with_other_arguments(steps: Sequence[str]) -> set[int]:
    """The steps whose arguments are not those of tracing: `given` and what follows up to the next call."""
    found, odd = set(), False
    for place, step in enumerate(steps):
        if step.startswith(("call(", "other(", "moved(", "given(")):
            odd = place > 0 and step.startswith("given(") and "spoilt(" not in step
        if odd:
            found.add(place)
    return found


def _is_another_check(item: Difference, program: Program, actual: Notes, expected: Notes) -> bool:
    """Whether both raise, for one argument that several lines check: which of them comes first is not said."""
    if item.label != "raised" or not actual.steps[item.step]["raised"] or not expected.steps[item.step]["raised"]:
        return False
    spoilt = re.findall(r"(\w+)=\"spoilt", program.steps[item.step])
    return any(sum(name in line for line in (*program.body, *program.returns)) > 1 for name in spoilt)


def _seen_by_callers(found: list[Difference], program: Program, backend: Any, expected: Notes) -> list[Difference]:
    """Leave out what is said to differ."""
    if isinstance(backend, GraphRoad):  # an operator that returns its argument leaves no trace in a graph
        return [item for item in found if not item.label.startswith("('same'") and item.label != "generator"]
    if program.road not in ROADS:
        return found
    # Results have no gradients, and those of frozen callables share no memory with state; those of loaded ones are new arrays.
    ignored = {"traits", *(("strides", "shared", "between") if program.road == "loaded" else ())}
    own = [{label for fact in facts if "self." in str(fact) for label in fact[1:3]} for facts in expected.shared]
    return [
        item
        for item in found
        if item.kind not in ignored
        and not (item.kind == "shared" and ("self." in item.label or item.label.startswith("('same'")))
        and not (item.label.startswith("kept") and item.label in own[item.step])
        and not (program.road in ("frozen", "loaded") and _is_state_of_another_call(item, expected))
        and not (item.kind == "strides" and item.label.startswith(("outs", "kept")) and _lie_otherwise(expected, item.step))
    ]


def _lie_otherwise(notes: Notes, last: int) -> bool:
    """Whether arguments lay otherwise than in tracing; results of frozen callables and exported programs lie as there."""
    return any(_orders(notes, step) != _orders(notes, 0) for step in range(last + 1))


def _orders(notes: Notes, step: int) -> list[list[tuple[int, bool]]]:
    given = [seen for label, seen in notes.steps[step].items() if label.startswith("ins") and isinstance(seen, Seen)]
    return [[(dim, not seen.strides[dim]) for dim in sorted(range(len(seen.strides)), key=seen.strides.__getitem__)] for seen in given]


def _is_state_of_another_call(item: Difference, expected: Notes) -> bool:
    """Whether PyTorch returned state twice, or state that it was given, where a frozen callable returns a copy of its own in each call."""
    if (item.kind, item.text) != ("shared", "missing"):
        return False
    facts = expected.shared[item.step]
    state = {label for fact in facts if "self." in str(fact) for label in fact[1:3]}
    return any(str(fact) == item.label and re.search("kept|ins", item.label) and state.issuperset(fact[1:3]) for fact in facts)


@contextlib.contextmanager
def _filled_memory() -> Iterator[None]:
    """Fill memory that is not initialised."""
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def judge_graph(program: Program) -> Verdict:
    """Run a program without the backend, and with it on the short road."""
    return judge(program, backend=GraphRoad(), control=GraphRoad(through_ort=False))


_EXACT = -1.0


def _least_tolerance(program: Program) -> float:
    """That of the coarsest dtype in it: where PyTorch rounds a value to 16 bits in between, ONNX Runtime may keep 32."""
    if program.exact:
        return _EXACT
    text = " ".join((*program.body, *program.returns, *(text for _, text in program.inputs), *program.state, program.default_dtype))
    if "bfloat16" in text:
        return TOLERANCES[torch.bfloat16]
    return TOLERANCES[torch.float16] if "half" in text or "float16" in text else 0.0


def differences(actual: Notes, expected: Notes, least: float = 0.0) -> list[Difference]:
    """All that differs between two runs of a program."""
    found: list[Difference] = []
    for step, (mine, theirs) in enumerate(zip(actual.steps, expected.steps, strict=False)):
        for label in dict.fromkeys((*theirs, *mine)):
            found += (Difference(step, label, kind, text) for kind, text in _different(mine.get(label), theirs.get(label), least))
        for fact in sorted(actual.shared[step] ^ expected.shared[step], key=str):
            who = "ours alone" if fact in actual.shared[step] else "missing"
            found.append(Difference(step, str(fact), "shared", who))
    if actual.error is not None:
        text = f"{type(actual.error).__name__}: {actual.error}"
        found.append(Difference(len(actual.steps), "error", "error", text[:1500]))
    found += [Difference(0, "warning", "warning", text[:600]) for text in actual.warned]
    return found


def _different(mine: Any, theirs: Any, least: float) -> list[tuple[str, str]]:
    if not isinstance(mine, Seen) or not isinstance(theirs, Seen):
        same = type(mine) is type(theirs) and (mine == theirs or _close_numbers(mine, theirs))
        return [] if same else [("plain", f"{_short(mine)} instead of {_short(theirs)}")]
    if mine.value.shape != theirs.value.shape:
        return [("shape", f"{tuple(mine.value.shape)} instead of {tuple(theirs.value.shape)}")]
    if mine.dtype != theirs.dtype:
        return [("dtype", f"{mine.dtype} instead of {theirs.dtype}")]
    found = []
    if not _close(mine.value, theirs.value, least):
        found.append(("value", f"off by {_distance(mine.value, theirs.value):.4g}: {_short(mine.value)} instead of {_short(theirs.value)}"))
    elif mine.strides == theirs.strides and not _between_close(mine.between, theirs.between, least):
        found.append(("between", f"{_short(mine.between)} instead of {_short(theirs.between)}"))
    if mine.strides != theirs.strides:
        found.append(("strides", f"{mine.strides} instead of {theirs.strides}"))
    if mine.traits != theirs.traits:
        found.append(("traits", f"(requires_grad, is_leaf) {mine.traits} instead of {theirs.traits}"))
    return found


def _short(value: Any) -> str:
    text = (
        repr(value.flatten()[:12].tolist()) if isinstance(value, torch.Tensor) else repr(value.value if isinstance(value, Seen) else value)
    )
    return text[:200]


def _close_numbers(mine: Any, theirs: Any) -> bool:
    return isinstance(mine, float) and abs(mine - theirs) <= 1e-9 * max(1.0, abs(theirs))


def _close(mine: torch.Tensor, theirs: torch.Tensor, least: float) -> bool:
    if not theirs.dtype.is_floating_point and not theirs.dtype.is_complex:
        return torch.equal(mine, theirs)
    if least == _EXACT and theirs.dtype in (torch.float16, torch.bfloat16):
        few = max(1, mine.numel() // 100)
        return int((mine != theirs).logical_and(~theirs.isnan()).sum()) <= few and torch.allclose(
            mine, theirs, rtol=torch.finfo(theirs.dtype).eps, atol=1e-4, equal_nan=True
        )
    least = max(least, TOLERANCES.get(theirs.dtype, 1e-5))
    scale = max(1.0, float(theirs.abs().max().nan_to_num(1, 1, 1))) if theirs.numel() else 1.0
    return torch.allclose(mine, theirs, atol=least * scale, rtol=least, equal_nan=True)


def _between_close(mine: torch.Tensor | None, theirs: torch.Tensor | None, least: float) -> bool:
    return mine is None or theirs is None or _close(mine, theirs, least)


def _distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    if mine.dtype.is_complex:
        return float((mine - theirs).abs().max())
    return float((mine.double() - theirs.double()).abs().max())


def _is_rounding(program: Program, found: list[Difference], expected: Notes, actual: Notes) -> bool:
    """Whether PyTorch's own answers change about as much when its arguments are rounded."""
    if program.exact or actual.refused or any(item.kind != "value" for item in found):
        return False
    if any(map(_WIDENS.search, (*program.body, *program.returns))) and all(_is_close_in_float32(item, expected, actual) for item in found):
        return True
    wide = _in_float64(program)
    if all(_is_nearer_to_float64(item, expected, actual, wide) for item in found):
        return True
    moved = [other for factor in (1 + 3e-7, 1 - 5e-7) if (other := run(_perturbed(program, factor))).error is None]
    return bool(moved) and all(_is_near(item, expected, actual, moved) or _is_jump(item, expected, actual, wide, moved) for item in found)


def _is_jump(item: Difference, expected: Notes, actual: Notes, wide: Notes, moved: Sequence[Notes]) -> bool:
    """Whether each number is one of PyTorch's own, for arguments that are rounded otherwise: `ndtri` of 0 and of what is less.

    A whole number has to be that of float64: moved arguments would excuse one that is wrong where they are exact.
    """
    theirs, mine = (_value(notes, item) for notes in (expected, actual))
    if theirs is None or mine is None:
        return False
    others = (wide, *moved) if theirs.is_floating_point() else (wide,)
    own = [value for notes in others if (value := _value(notes, item)) is not None and value.shape == theirs.shape]
    tolerance = TOLERANCES.get(theirs.dtype, 0.0)
    same = [torch.isclose(mine.double(), value.double(), tolerance, tolerance, equal_nan=True) for value in (theirs, *own)]
    return bool(torch.stack(same).any(0).all())


def _is_near(item: Difference, expected: Notes, actual: Notes, moved: Sequence[Notes]) -> bool:
    """Whether what differs is not much farther from PyTorch's answer than one of its answers to rounded arguments."""
    theirs, mine = _floats(expected, item), _floats(actual, item)
    if theirs is None or mine is None:
        return False
    near = [value for other in moved if (value := _floats(other, item)) is not None and value.shape == theirs.shape]
    return any(_distance(mine, theirs) <= _MAGNIFIED * _distance(value, theirs) for value in near)


def _is_nearer_to_float64(item: Difference, expected: Notes, actual: Notes, wide: Notes) -> bool:
    """Whether what differs is no farther from the answer in float64 than PyTorch's own: a wrong function would be."""
    theirs, mine = _floats(expected, item), _floats(actual, item)
    exact = _floats(wide, item)
    if theirs is None or mine is None or exact is None or not theirs.shape == mine.shape == exact.shape:
        return False
    return _distance(mine, exact) <= _distance(theirs, exact) <= _AT_MOST * max(1.0, float(exact.abs().max())) if exact.numel() else False


def _in_float64(program: Program) -> Notes:
    """What PyTorch gives when it computes a program in float64."""

    def wide(text: str) -> str:
        text = text.replace("torch.float32", "torch.float64").replace(".float()", ".double()")
        return re.sub(r"values\(([^()]*)\)", _doubled, text)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return run(
            program.replace(
                state=tuple(map(wide, program.state)),
                inputs=tuple((name, wide(text)) for name, text in program.inputs),
                body=tuple(map(wide, program.body)),
                returns=tuple(map(wide, program.returns)),
                default_dtype="float64",
            )
        )
    finally:
        torch.set_default_dtype(before)


def _doubled(found: re.Match[str]) -> str:
    return found.group() if "dtype" in found[1] else f"values({found[1]}, dtype=torch.float64)"


def _is_close_in_float32(item: Difference, expected: Notes, actual: Notes) -> bool:
    theirs, mine = _floats(expected, item), _floats(actual, item)
    return theirs is not None and mine is not None and _close(mine, theirs, TOLERANCES[torch.float32])


def _value(notes: Notes, item: Difference) -> torch.Tensor | None:
    seen = notes.steps[item.step].get(item.label) if item.step < len(notes.steps) else None
    return seen.value if isinstance(seen, Seen) and not seen.value.is_complex() else None


def _floats(notes: Notes, item: Difference) -> torch.Tensor | None:
    value = _value(notes, item)
    return value if value is not None and value.is_floating_point() else None


def _perturbed(program: Program, factor: float) -> Program:
    def changed(text: str) -> str:
        return re.sub(r"values\([^()]*\)", _scaled, text)

    def _scaled(found: re.Match[str]) -> str:
        return found.group() if re.search(r"dtype=torch\.(?:u?int|bool)", found.group()) else f"({factor!r} * {found.group()})"

    inputs = tuple((name, changed(expression)) for name, expression in program.inputs)
    return program.replace(inputs=inputs, state=tuple(map(changed, program.state)))
