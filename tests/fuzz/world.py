"""Runs a program with one backend, and notes all that a caller can see."""

# ruff: noqa: ANN401 - programs return anything

from __future__ import annotations

import itertools
import linecache
import re
import tempfile
import threading
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import ortlens
from tests.fuzz.graphs import GraphRoad
from tests.fuzz.program import CALLS, PRELUDE, ROADS

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterator

    from tests.fuzz.program import Program

_numbers = itertools.count()
_PRELUDE: dict[str, Any] = {}
_THREADS = 3


@dataclass(frozen=True)
class Seen:
    """One tensor as it was after a step.

    Attributes:
        value: A copy.
        dtype: Its dtype.
        strides: Those of dimensions that have more than one element; empty for a tensor without elements.
        traits: What else a caller can ask: whether it needs a gradient, is a leaf.
        between: Of an output with gaps, all that lies between its first and its last element.
    """

    value: torch.Tensor
    dtype: torch.dtype
    strides: tuple[int, ...]
    traits: tuple[Any, ...]
    between: torch.Tensor | None = None


@dataclass(frozen=True)
class Raised:
    """What a call raised.

    Attributes:
        kind: The class of the exception.
        text: Its message, which is not compared.
    """

    kind: str
    text: str = field(compare=False)


@dataclass
class Notes:
    """What a caller sees over the steps of a program.

    Attributes:
        steps: Per step, label -> what was seen: a `Seen`, or a plain value.
        shared: Per step, which of the tensors lie in one storage, with the distances of their offsets; and which are the same object.
        error: What a step raised that should not.
        refused: The steps that a frozen callable or exported program refused: the arguments are outside of what was traced.
        warned: Warnings of ortlens.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    shared: list[frozenset[tuple[Any, ...]]] = field(default_factory=list)
    error: Exception | None = None
    refused: set[int] = field(default_factory=set)
    warned: list[str] = field(default_factory=list)


class UnexportableError(Exception):
    """PyTorch cannot export a program with some arguments."""


def _exported(*args: Any) -> Any:
    try:
        return _PRELUDE["exported"](*args)
    except Exception as error:
        raise UnexportableError from error


class World:
    """The tensors of one run of a program."""

    def __init__(self, program: Program, backend: Any, options: dict[str, Any] | None) -> None:
        """Define the module and the function."""
        torch.set_default_dtype(getattr(torch, program.default_dtype))
        self.program = program
        if not _PRELUDE:
            exec(PRELUDE, _PRELUDE)  # noqa: S102 - our own text
        self.scope = dict(_PRELUDE)
        _define(program.definitions() + "\n\n" + program.arguments(), self.scope)
        self.model = self.scope["Model"]()
        self.leaves: list[torch.Tensor] = []
        self.outs: list[Any] = []
        self.ins: list[Any] = []
        self.kept: list[torch.Tensor] = []
        self._backend = backend
        self.skips = False
        self._options = {name: self._realised(value) for name, value in (options or {}).items()} or None
        self._made: Any = None
        self._compiled: Callable[..., Any] = self._compile()
        self.scope.update(self=self.model, call=self.call, again=self.again, backward=self.backward, warm=self.warm, threads=self.threads)
        self.scope.update(other=self.other, moved=self.moved, twice=self.twice, given=self.given, state=self._own)

    def _realised(self, value: Any) -> Any:
        """An option as the backend gets it; see `Program.options`."""
        if isinstance(value, str) and value.startswith("expr:"):
            return eval(value.removeprefix("expr:"), self.scope)  # noqa: S307 - our own text
        return value

    def _compile(self) -> Callable[..., Any]:
        function: Callable[..., Any] = self.scope["function"]
        if self._backend is None:
            return function
        if isinstance(self._backend, GraphRoad):
            return self._backend.compiled(function, dynamic=self.program.dynamic, options=self._options)
        if self._backend in ROADS:
            return self._road(ROADS[self._backend].format(dynamic=bool(self.program.dynamic), options="options"))
        made: Callable[..., Any] = torch.compile(function, backend=self._backend, dynamic=self.program.dynamic, options=self._options)
        return made

    def _road(self, text: str) -> Callable[..., Any]:
        """What the text makes of the module and its first arguments."""
        type(self.model).forward = self.scope["function"]

        def compiled(_: torch.nn.Module, *ins: Any) -> Any:
            if self._made is None:
                scope = {**self.scope, "ins": ins, "options": self._options, "ortlens": ortlens, "tempfile": tempfile}
                scope["exported"] = _exported
                with torch.random.fork_rng():  # what torch imports when a trace with `cond` fails for the first time draws numbers
                    self._made = eval(text, scope)  # noqa: S307 - our own text
            return self._made(*ins)

        return compiled

    def _own(self, name: str) -> Any:
        """A parameter or buffer; of a frozen callable, the copy that is its state."""
        states: dict[str, Any] = getattr(self._made, "state", {})
        if name in states:
            return torch.as_tensor(states[name])
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}[name]

    def _leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        self.leaves.append(tensor.detach().requires_grad_())
        return self.leaves[-1]

    def call(self, n: int) -> None:
        """Make arguments and call the function."""
        self._make(n)
        self.again()

    def other(self, n: int) -> None:
        """Call the function with other values."""
        self.scope["SHIFT"][0] = 1000
        try:
            self._make(n)
        finally:
            self.scope["SHIFT"][0] = 0
        self.again()

    def moved(self, n: int) -> None:
        """Call the function with arguments whose memory begins elsewhere, what Dynamo does not guard on."""
        self._make(n)
        self.ins = [self.scope["moved_copy"](item) for item in self.ins]
        self.again()

    def given(self, n: int, **changes: str) -> None:
        """Call the function with other arguments in place of some."""
        self._make(n)
        names = [name for name, _ in self.program.inputs]
        with torch.no_grad():
            for name, text in changes.items():
                self.ins[names.index(name)] = eval(text, {**self.scope, **dict(zip(names, self.ins, strict=True))})  # noqa: S307 - ours
        self.again()

    def twice(self, n: int) -> None:
        """Call the function twice, so that a backward pass goes through both calls."""
        self._make(n)
        self.again(times=2)

    def _make(self, n: int) -> None:
        self.leaves = []
        self.ins = self.scope["arguments"](self.model, n, self._leaf)
        self.scope["ins"] = self.ins
        names = [name for name, _ in self.program.inputs]
        for name, dim in self.program.marks:
            if name in names and self._backend is not None:
                torch._dynamo.mark_dynamic(self.ins[names.index(name)], dim)

    def again(self, times: int = 1) -> None:
        """Call the function with the same arguments."""
        torch.manual_seed(0)
        if self.skips:
            return
        with torch.set_grad_enabled(self.program.trains):
            outs = [out for _ in range(times) for out in self._compiled(self.model, *self.ins)]
        self.kept = [*self.kept[-6:], *(out for out in self.outs if isinstance(out, torch.Tensor))]
        self.outs = outs
        self.scope.update(ins=self.ins, outs=self.outs)

    def backward(self, *places: int) -> None:
        """Sum what the last call returned, each element with a weight of its own, and compute gradients."""
        chosen = [out for place, out in enumerate(self.outs) if not places or place in places]
        floats = [out for out in chosen if isinstance(out, torch.Tensor) and out.requires_grad]
        terms = [(out.double() * torch.arange(out.numel(), dtype=torch.float64).reshape(out.shape).cos()).sum() for out in floats]
        if terms:
            torch.stack(terms).sum().backward()

    def threads(self, n: int) -> None:
        """Call the function from several threads at once; the results of all become the outputs."""
        found: list[list[Any]] = [[] for _ in range(_THREADS)]
        errors: list[Exception] = []
        given = [self.scope["arguments"](self.model, n, self._leaf) for _ in found]

        def work(place: int) -> None:
            try:
                with torch.set_grad_enabled(self.program.trains):
                    for _ in range(3):
                        fresh = [item.clone() if isinstance(item, torch.Tensor) else item for item in given[place]]
                        found[place] = list(self._compiled(self.model, *fresh))
            except Exception as error:  # noqa: BLE001 - the thread that waits raises it
                errors.append(error)

        if self._backend is None:
            before = [value.clone() for value in self._state()]
            for place in range(_THREADS):
                work(place)
            if not all(map(torch.equal, before, self._state())):
                errors.append(ValueError("the function writes to what its threads share: the results depend on their order"))
        else:
            workers = [threading.Thread(target=work, args=(place,)) for place in range(_THREADS)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        if errors:
            raise errors[0]
        self.outs = [item for items in found for item in items]
        self.scope.update(ins=self.ins, outs=self.outs)

    def _state(self) -> list[torch.Tensor]:
        attributes = [value for value in vars(self.model).values() if isinstance(value, torch.Tensor)]
        return [*self.model.parameters(), *self.model.buffers(), *attributes]

    def warm(self) -> None:
        """Compile the function anew."""
        if self._backend is not None:
            torch.compiler.reset()
            self._made = None
            self._compiled = self._compile()

    def step(self, text: str) -> None:
        """Do one of the program's steps."""
        if text.startswith(CALLS):
            exec(text, self.scope)  # noqa: S102 - a step of a program of ours
            return
        with torch.no_grad():
            exec(text, self.scope)  # noqa: S102 - same

    def tensors(self) -> dict[str, Any]:
        """All that the caller holds: label -> tensor or plain value."""
        held: dict[str, Any] = {label: out for place, value in enumerate(self.outs) for label, out in _leaves(value, f"outs[{place}]")}
        held |= {f"ins[{place}]": value for place, value in enumerate(self.ins)}
        held |= {f"self.{name}": self._own(name) for name, _ in (*self.model.named_parameters(), *self.model.named_buffers())}
        held |= {f"kept[{place}]": value for place, value in enumerate(self.kept)}
        held |= {f"leaves[{place}].grad": value.grad for place, value in enumerate(self.leaves)}
        held |= {f"self.{name}.grad": value.grad for name, value in self.model.named_parameters()}
        held["generator"] = hash(torch.get_rng_state().numpy().tobytes())
        return held


def _define(text: str, scope: dict[str, Any]) -> None:
    name = f"<program {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), scope)  # noqa: S102 - a program of ours


def run(program: Program, backend: Any = None, options: dict[str, Any] | None = None, *, skipped: frozenset[int] = frozenset()) -> Notes:
    """Run a program."""
    notes = Notes()
    config: dict[str, Any] = {
        "capture_scalar_outputs": program.captures,
        "capture_dynamic_output_shape_ops": program.captures,
        "recompile_limit": 64,
        "fail_on_recompile_limit_hit": False,
    }
    patched: contextlib.AbstractContextManager[object] = torch._dynamo.config.patch(**config)
    with warnings.catch_warnings(record=True) as caught, patched:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", message="ortlens")
        try:
            world = World(program, backend, options)
            for place, step in enumerate(program.steps):
                world.skips = place in skipped
                raised = _raised(world, step, notes)
                held = world.tensors()
                notes.steps.append({"raised": raised, **{label: _seen(label, value) for label, value in held.items()}})
                notes.shared.append(_shared(held))
        except Exception as error:  # noqa: BLE001 - whatever it raises is what is compared
            notes.error = error
        finally:
            torch.set_default_dtype(torch.float32)
    notes.warned = [str(item.message) for item in caught if "ortlens" in str(item.message)]
    return notes


def _raised(world: World, step: str, notes: Notes) -> Raised | None:
    """Do a step; what it raises, where that is an answer."""
    try:
        world.step(step)
    except ortlens.UsageError:
        if world.program.road == "compile":
            raise
        notes.refused.add(len(notes.steps))
    except NameError:  # the program lacks a statement
        raise
    except UnexportableError:
        notes.refused.add(len(notes.steps))
    except Exception as error:
        if world.program.road == "exported" and re.match("Guard failed|Expected input", str(error)):
            notes.refused.add(len(notes.steps))
            return None
        if "spoilt(" not in step and not (world.program.road != "compile" and step.startswith("given(")):
            raise
        return Raised(type(error).__name__, str(error))
    return None


def _leaves(value: Any, label: str) -> Iterator[tuple[str, Any]]:
    """What a tuple or list holds, with a label for each; the minimiser leaves out what takes an item."""
    if isinstance(value, (tuple, list)) and any(isinstance(item, torch.Tensor) for item in value):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{label}[{place}]")
    else:
        yield label, value


def _seen(label: str, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    strides = tuple(stride for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1) if value.numel() else ()
    between = _between(value.detach()) if label.startswith("outs") else None
    return Seen(value.detach().clone(), value.dtype, strides, (value.requires_grad, value.is_leaf), between)


def _between(value: torch.Tensor) -> torch.Tensor | None:
    span = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.as_strided((span,), (1,)).clone() if value.numel() and span > value.numel() else None


def _shared(held: dict[str, Any]) -> frozenset[tuple[Any, ...]]:
    tensors = [(label, value) for label, value in held.items() if isinstance(value, torch.Tensor) and value.numel()]
    tensors = [(label, value) for label, value in tensors if not value._is_zerotensor()]  # which has no memory
    bases = [(label, value, value.untyped_storage().data_ptr()) for label, value in tensors]
    found: set[tuple[Any, ...]] = set()
    for place, (label, value, base) in enumerate(bases):
        for other_label, other, other_base in bases[:place]:
            if value is other:
                found.add(("same", other_label, label))
            if base == other_base:
                found.add(("shares", other_label, label, value.data_ptr() - other.data_ptr()))
    return frozenset(found)
