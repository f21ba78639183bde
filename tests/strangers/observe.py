"""What the first screen says of a program, and what comes of following it."""

# ruff: noqa: ANN401 - results of programs are anything

import ast
import contextlib
import importlib.util
import io
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

import ortlens
from ortlens.analysis.costs import fallback_groups
from ortlens.analysis.coverage import coverage_of, own_recompiles
from ortlens.analysis.problems.problem import Problem
from ortlens.analysis.problems.stream import problems_of
from tests.strangers.contradictions import contradictions
from tests.strangers.program import Program
from tests.strangers.programs import BY_NAME

BAD = ("raises", "wrong", "uncompiled", "breaks", "stays", "slower")
_TRIES, _PASSES, _ROUNDS, _ROUND_NS = 3, 3, 20, 3_000_000
_CALLABLES = ("freeze", "uncompiled")  # ways that give something to call
_FAR, _LEAST_NS, _SLOWER = 1.5, 5_000, 1.05  # a figure is wrong beyond this ratio to the other, and beyond this difference
_SETS = ("ignore_logging_functions", "reorderable_logging_functions")
_Config: TypeAlias = "tuple[bytes, dict[str, set[Any]]]"
_OPEN = ("result_if_true", "result_if_false")  # names in a patch that the user fills in


class Loaded:
    """The module of a program."""

    def __init__(self, source: str, file: Path) -> None:
        file.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        self.file, self.module = str(file), importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = self.module  # Dynamo imports it by this name
        self.module.in_turns = in_turns  # type: ignore[attr-defined]  # for `by_other_means`
        spec.loader.exec_module(self.module)
        self.is_compiled: bool = self.get("is_compiled", not hasattr(self.module, "run"))
        self.model: Callable[..., Any] = self.get("run", None) or self.module.model
        self.args: tuple[Any, ...] = () if hasattr(self.module, "run") else self.module.args
        self.kwargs: dict[str, Any] = self.get("kwargs", {})
        self.how: dict[str, Any] = {"options": self.get("options", {}), "dynamic": self.get("dynamic", None)}

    def get(self, name: str, default: Any = False) -> Any:  # noqa: FBT002 - what most names are
        return getattr(self.module, name, default)

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        with torch.set_grad_enabled(self.get("grad")), contextlib.redirect_stdout(io.StringIO()):
            yield

    def called(self, function: Callable[..., Any]) -> Any:
        """The result of the last of its calls."""
        torch.manual_seed(0)
        calls = self.get("calls", None)
        with self.modes():
            return [function(*args, **self.kwargs) for args in ([self.args] if calls is None else calls())][-1]

    def compiled(self) -> Callable[..., Any]:
        owner = getattr(self.model, "__self__", None)
        if self.is_compiled and getattr(self.model, "__name__", "") == "generate":  # in place, as `explain` does
            owner.forward = torch.compile(type(owner).forward.__get__(owner), backend="ortlens", **self.how)  # type: ignore[union-attr]
            return self.model
        return torch.compile(self.model, backend="ortlens", **self.how) if self.is_compiled else self.model

    def explained(self) -> ortlens.Lens:
        """Observe it as a stranger would."""
        if not self.is_compiled:
            with ortlens.capture() as lens:
                lens.result = self.called(self.model)
        elif self.get("calls", None) is not None:
            lens = ortlens.Lens(options=self.how["options"])
            lens.result = self.called(torch.compile(self.model, backend=lens, dynamic=self.how["dynamic"]))
        else:
            with self.modes():
                lens = ortlens.explain(self.model, **self.how)(*self.args, **self.kwargs)
                if self.get("is_profiled"):
                    with contextlib.suppress(ortlens.UsageError):  # nothing is left in ONNX Runtime
                        lens.profile(*self.args, **self.kwargs)
        return lens

    def set(self, settings: Sequence[str]) -> None:
        """Make the changes of an action's settings."""
        for line in settings:
            call = ast.parse(line).body[0]
            if isinstance(call, ast.Assign) and isinstance(call.value, ast.Call) and ast.unparse(call.value.func) == "torch.compile":
                given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.value.keywords}
                self.how = {"options": self.how["options"] | given.get("options", {}), "dynamic": given.get("dynamic", self.how["dynamic"])}
            else:
                exec(line, vars(self.module))  # noqa: S102 - a line of ours


class Screen:
    """What a lens shows first."""

    def __init__(self, loaded: Loaded) -> None:
        torch._dynamo.reset()
        self.lens = loaded.explained()
        self.capture = self.lens.captured()
        self.actions = problems_of(self.capture)

    def rule(self, look: Problem) -> str:
        return look.rule if look.index is not None else ""

    def kind(self, look: Problem) -> str:
        return look.advice.kind if look.advice is not None else self.rule(look) or "none"

    def count(self, look: Problem, rule: str) -> int:
        """How often it has what an action of another screen is about."""
        if look.kind == "break":
            return len(self.capture.breaks)
        if look.kind == "recompile":
            return len(own_recompiles(self.capture))
        if rule:
            return sum(self.rule(item) == rule for item in self.actions)
        return sum(group.node_count for group in fallback_groups(self.capture) if group.target == look.title)


def observed(name: str, with_times: bool) -> dict[str, Any]:  # noqa: FBT001 - through another process
    """Return the row of a program: the first of a few that times do not make wrong, which other work on the machine does now and then."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for tries in range(1, _TRIES + 1):
        with tempfile.TemporaryDirectory() as folder:
            row = _observed(BY_NAME[name], Path(folder), with_times=with_times) | {"tries": tries}
        if row.get("size") is not False and all(way["outcome"] != "slower" for way in row["followed"]):
            break
    return row


def _observed(program: Program, folder: Path, *, with_times: bool) -> dict[str, Any]:
    before = Loaded(program.source(), folder / "before.py")
    first = Screen(before)
    wanted = set(program.first.split("|")) if program.first else set()
    named = [{look.kind, first.rule(look), first.kind(look)} for look in first.actions]
    rank = next((number for number, names in enumerate(named, 1) if names & wanted), None)
    row: dict[str, Any] = {
        "rank": rank,
        "is_first": rank == 1 if wanted else not first.actions,
        "place": (first.actions[rank - 1].line in program.lines) if rank and program.lines else None,
        "shown": [f"{look.kind} {first.kind(look)} {look.line or ''}".strip() for look in first.actions[:3]],
        "contradictions": contradictions(first.lens),
        "followed": [],
        "summary": first.lens.summary(),
    }
    if first.actions:
        look = first.actions[0]
        row["followed"] = [_follow(program, before, first, way, with_times=with_times) for way in _ways(program, first, look)]
        ways = sorted(row["followed"], key=lambda way: way["way"] != "uncompiled")  # of which a price is where that is a way
        row |= _size(before, look, next((way["saved_ns"] for way in ways if "saved_ns" in way), None)) if with_times else {}
    return row


def _ways(program: Program, first: Screen, look: Problem) -> list[str]:
    """List how an action can be followed: as its sentence says, its settings, its patch."""
    said, kind, patch = look.mitigation or look.first_step, first.kind(look), look.patch
    ways = {
        f"form {kind}": kind in program.kinds,
        # `run()` compiles by itself, and what is set on the model may not be the target's.
        "settings": bool(look.settings) and not look.settings[0].startswith("model =" if "run()" in program.text else "model."),
        "patch": patch is not None and look.line is not None and not any(name in patch for name in _OPEN),
        "freeze": "ortlens.freeze(" in said,
        "uncompiled": re.search("[Ll]eave .* uncompiled", said) is not None or look.kind == "nothing_runs",
        "profile": "lens.profile" in said,
    }
    return [way for way, is_open in ways.items() if is_open]


def _follow(program: Program, before: Loaded, first: Screen, way: str, *, with_times: bool) -> dict[str, Any]:
    """Return what comes of following the first action."""
    config, look = _config(), first.actions[0]
    row: dict[str, Any] = {"way": way}
    try:
        row["outcome"], after, call = _tried(program, before, first, way)
        if row["outcome"] not in BAD and with_times and after is not before and look.kind != "recompile":
            changed = _config()
            old, new = _apart((before, before.compiled, config), (after, lambda: call if way in _CALLABLES else after.compiled(), changed))
            row |= {"ratio": round(new / old, 3), "saved_ns": round(old - new), "call_ns": round(new)}
            is_said = "costs more" in (look.mitigation or look.first_step) or (look.kind == "break" and look.gain_ns == 0)
            if new > _SLOWER * old and not is_said:
                row["outcome"] = "slower"
    except Exception as error:  # noqa: BLE001 - whatever is raised is the outcome
        row |= {"outcome": "raises", "detail": f"{type(error).__name__}: {str(error)[:200]}"}
    finally:
        _configure(config)
    return row


def _config() -> _Config:
    """What Dynamo is set to, and sets of functions, which it does not save."""
    return torch._dynamo.config.save_config(), {name: set(getattr(torch._dynamo.config, name)) for name in _SETS}


def _configure(config: _Config) -> None:
    torch._dynamo.config.load_config(config[0])
    for name, functions in config[1].items():
        setattr(torch._dynamo.config, name, set(functions))


def _tried(program: Program, before: Loaded, first: Screen, way: str) -> tuple[str, Loaded, Callable[..., Any]]:
    look = first.actions[0]
    if way == "profile":
        with before.modes():
            first.lens.profile(*before.args, **before.kwargs)
        return "done" if first.lens.captured().kernels else "stays", before, before.model
    source = program.patched(look.line or 0, look.patch or "") if way == "patch" else program.source(way.removeprefix("form "))
    after = Loaded(source, Path(before.file).with_name(f"after_{way.replace(' ', '_')}.py"))
    call, outcome = after.model, "done"
    if way == "settings":
        after.set(look.settings)
    if way == "freeze":
        with after.modes():
            call = ortlens.freeze(after.model, *after.args, **after.kwargs)
    elif way != "uncompiled":
        outcome, call = _effect(first, Screen(after), look), after.compiled()
    return outcome if before.get("is_random") or _are_right(before, after, call) else "wrong", after, call


def _effect(first: Screen, second: Screen, look: Problem) -> str:
    """Say whether what an action is about is gone."""
    if coverage_of(second.capture).verdict == "empty" != coverage_of(first.capture).verdict:
        return "uncompiled"
    if len(second.capture.breaks) > len(first.capture.breaks):
        return "breaks"
    if look.kind == "break" and any((item.source or "").strip() == look.source for item in second.capture.breaks):
        return "stays"
    old, new = (screen.count(look, first.rule(look)) for screen in (first, second))
    return "stays" if new >= old else "fewer" if new else "gone"


def _are_right(before: Loaded, after: Loaded, call: Callable[..., Any]) -> bool:
    far, plain = before.get("tolerance", 1e-3), after.called(after.model)
    return _alike(after.called(call), plain, far) and (before.get("is_other") or _alike(plain, before.called(before.model), far))


def _alike(given: Any, expected: Any, far: float) -> bool:
    ours, theirs = pytree.tree_leaves(vars(given) if hasattr(given, "__dataclass_fields__") else given), pytree.tree_leaves(expected)
    tensors = [pair for pair in zip(ours, theirs, strict=False) if all(isinstance(leaf, torch.Tensor) for leaf in pair)]
    return all(a.shape == b.shape and torch.allclose(a.double(), b.double(), atol=far, rtol=far, equal_nan=True) for a, b in tensors)


def _calling(loaded: Loaded, function: Callable[..., Any]) -> Callable[[], None]:
    """Make a call of a function that compiles nothing any more."""
    for _ in range(5):
        loaded.called(function)
    if loaded.get("calls", None) is not None or hasattr(loaded.module, "run"):
        return lambda: loaded.called(function)
    args, kwargs, grad = loaded.args, loaded.kwargs, loaded.get("grad")

    def call() -> None:
        with torch.set_grad_enabled(grad):
            function(*args, **kwargs)

    return call


def _apart(*ways: tuple[Loaded, Callable[[], Callable[..., Any]], _Config]) -> list[float]:
    """Compile and time ways, each under its settings of Dynamo, and as if nothing was compiled before; the shortest ns of a call of each.

    Where a function broke, Dynamo leaves its code alone for good: also that of a container of torch, for all models.
    """
    best = [float("inf")] * len(ways)
    for _ in range(_PASSES):
        for index, (loaded, compiled, settings) in enumerate(ways):
            torch._dynamo.reset()
            _configure(settings)
            call = _calling(loaded, compiled())
            with loaded.modes():  # what is printed costs what it did under the lens
                best[index] = min(best[index], *in_turns(call))
    return best


def in_turns(*ways: Callable[[], object]) -> list[float]:
    """Time ways in tight loops that take turns; the shortest ns of a call of each."""
    loops, best = [1] * len(ways), [float("inf")] * len(ways)
    for number in range(_ROUNDS + 1):
        for index, way in enumerate(ways):
            way()  # finds in the caches what the other left there
            began = time.perf_counter_ns()
            for _ in range(loops[index]):
                way()
            took = (time.perf_counter_ns() - began) / loops[index]
            if number == 0:
                loops[index] = max(1, min(2000, int(_ROUND_NS / max(took, 1))))
            else:
                best[index] = min(best[index], took)
    return best


def _size(before: Loaded, look: Problem, saved: float | None) -> dict[str, Any]:
    """Compare the figure of an action with what following it saves, or with what the program measures."""
    other = before.get("by_other_means")
    if other:
        with before.modes():
            saved = round(other())
    said = look.price_ns
    if said is None or saved is None:
        return {"said_ns": said, "true_ns": saved, "size": None}
    if look.kind == "break" and look.gain_ns == 0:
        return {"said_ns": said, "true_ns": saved, "size": saved <= _LEAST_NS}
    # What the screen names beside it, a report that is moved among it: how much of that goes depends on the change.
    most = max(said + look.own_code_ns, look.weight_ns)
    is_too_much = saved < said / _FAR and saved < said - _LEAST_NS and not look.at_most
    return {"said_ns": said, "true_ns": saved, "size": not is_too_much and saved <= max(most * _FAR, said + _LEAST_NS)}
