"""Operations on numbers, which PyTorch's operator database leaves out: each takes several roads, with values at the limits."""

# ruff: noqa: ANN401 - numbers, tensors and backends are Any in torch itself

import builtins
import math
import operator
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import onnxruntime
import torch

import ortlens
from ortlens import Lens
from tests.opinfo.sweep import Outcome, difference

INTS = (0, 1, -1, 2, -2, 7, -7, 208067, -208067, 2**31 + 3, -(2**31) - 5, 2**53 + 1, -(2**53) - 1, 2**62 + 1, -(2**63), 2**63 - 1)
SECOND = (-3, 0, -1)
SIZES = (2, 3, 4, 5, 7, 8, 12, 13)
_FIRST = (11, 5)
"""What is traced: numbers at which nothing is special."""

OPERATIONS: dict[str, tuple[Callable[[Any, Any], Any], ...]] = {
    "operator.add": (operator.add, lambda k, _: k + 1, lambda k, _: (k + 2**62) - 2**62),
    "operator.sub": (operator.sub, lambda k, _: 1 - k),
    "operator.mul": (operator.mul, lambda k, _: k * k % 7, lambda k, _: (k * 6364136223846793005 + 1) % 2**31),
    "operator.floordiv": (operator.floordiv, lambda k, _: k // 2, lambda k, _: -(-k // 2), lambda k, _: k // -3),
    "operator.mod": (operator.mod, lambda k, _: k % 5, lambda k, _: k % -5, lambda k, _: -k % 8),
    "operator.truediv": (operator.truediv, lambda k, _: k / 3, lambda k, _: 1 / k),
    "operator.pow": (lambda k, _: k**2 % 1000003, lambda k, _: k**3, lambda k, _: 2 ** (k % 5), lambda k, _: (k % 9) ** 0.5),
    "operator.neg": (lambda k, _: -k,),
    "operator.pos": (lambda k, _: +k,),
    "operator.invert": (lambda k, _: ~k,),
    "operator.lshift": (lambda k, _: k << 1, lambda k, _: (k % 8) << 40, lambda k, _: 1 << (k % 8)),
    "operator.rshift": (lambda k, _: k >> 1, lambda k, _: -k >> 3, lambda k, _: k >> (k % 8)),
    "operator.and_": (operator.and_, lambda k, _: k & 6),
    "operator.or_": (operator.or_, lambda k, _: k | 6),
    "operator.xor": (operator.xor, lambda k, _: k ^ 6),
    "operator.not_": (lambda k, _: int(not k),),
    "operator.eq": (lambda k, j: int(k == j), lambda k, _: int(k == 7.0)),
    "operator.ne": (lambda k, j: int(k != j),),
    "operator.lt": (lambda k, j: int(k < j), lambda k, _: int(k < 9007199254740992.0)),
    "operator.le": (lambda k, j: int(k <= j),),
    "operator.gt": (lambda k, j: int(k > j),),
    "operator.ge": (lambda k, j: int(k >= j),),
    "abs": (lambda k, _: abs(k), lambda k, j: abs(k - j)),
    "max": (max, lambda k, _: max(k, 0)),
    "min": (min, lambda k, _: min(k, 0)),
    "int": (lambda k, _: int(k * 0.7), lambda k, _: int(k / 3), lambda k, _: int(-k / 4)),
    "float": (lambda k, _: float(k) * 0.1,),
    "bool": (lambda k, _: int(bool(k)),),
    "round": (lambda k, _: round(k / 2), lambda k, _: round(-k / 4), lambda k, _: round(k / 7, 2)),
    "divmod": (lambda k, j: divmod(k, j)[0], lambda k, j: divmod(k, j)[1]),
    "pow": (lambda k, _: pow(k, 2), lambda k, _: pow(k, 3, 7)),
    "math.floor": (lambda k, _: math.floor(k / 3), lambda k, _: math.floor(k * 1.1)),
    "math.ceil": (lambda k, _: math.ceil(k / 3), lambda k, j: math.ceil(k / j)),
    "math.trunc": (lambda k, _: math.trunc(k / 3),),
    "math.sqrt": (lambda k, _: math.floor(math.sqrt(k)),),
    "math.isqrt": (lambda k, _: math.isqrt(k),),
    "torch.sym_float": (lambda k, _: torch.sym_float(k) / 3,),
    "torch.sym_int": (lambda k, _: torch.sym_int(k / 3),),
    "torch.sym_max": (torch.sym_max, lambda k, _: torch.sym_max(k, 3)),
    "torch.sym_min": (torch.sym_min, lambda k, _: torch.sym_min(k, 3)),
    "torch.sym_not": (lambda k, j: int(torch.sym_not(k < j)),),
    "torch.sym_ite": (lambda k, j: torch.sym_ite(k < j, k, j),),
    "torch.sym_sum": (lambda k, j: torch.sym_sum([k, j, k]),),
    "torch.sym_sqrt": (lambda k, _: torch.sym_int(torch.sym_sqrt(k * 1.0)),),
}
"""Name -> functions of two numbers that use it."""


def _added(function: Callable[[Any, Any], Any], x: torch.Tensor, k: Any, j: Any) -> torch.Tensor:
    made = function(k, j)
    added: torch.Tensor = (x.double() if isinstance(made, (float, torch.SymFloat)) else x) + made
    return added


def _of_arguments(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda x, k, j: _added(function, x, k, j)


def _of_sizes(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda x: _added(function, x, 7 - x.shape[0], x.shape[1] - 3)


def _of_data(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda x, k, j: _added(function, x + 1, k.item(), j.item())


def _pairs() -> list[tuple[torch.Tensor, int, int]]:
    return [(torch.zeros(1, dtype=torch.int64), k, j) for j in SECOND for k in INTS]


def _tables() -> list[tuple[torch.Tensor]]:
    return [(torch.zeros(rows, columns, dtype=torch.int64),) for columns in (2, 3, 5) for rows in SIZES]


def _scalars() -> list[tuple[torch.Tensor, ...]]:
    return [(x, torch.tensor(k), torch.tensor(j)) for x, k, j in _pairs()]


Road: TypeAlias = Callable[[Callable[[Any, Any], Any], Any], tuple[Callable[..., Any], Callable[..., Any], Sequence[Any]]]


def _compiled(taking: Callable[..., Callable[..., Any]], calls: Callable[[], Sequence[Any]]) -> Road:
    def road(function: Callable[[Any, Any], Any], backend: Any) -> tuple[Callable[..., Any], Callable[..., Any], Sequence[Any]]:
        eager = taking(function)
        return eager, torch.compile(eager, backend=backend, dynamic=True), calls()

    return road


def _model(function: Callable[[Any, Any], Any], backend: Any) -> tuple[Callable[..., Any], Callable[..., Any], Sequence[Any]]:
    """The exported ONNX model, which takes the ints as tensors without dimensions."""
    eager = _of_arguments(function)
    compiled = torch.compile(eager, backend=backend, dynamic=True)
    with torch.no_grad():
        compiled(torch.zeros(1, dtype=torch.int64), *_FIRST)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        session = onnxruntime.InferenceSession(str(backend.export_onnx(f"{folder}/model.onnx")), options)
    names = [item.name for item in session.get_inputs()]

    def run(x: torch.Tensor, k: int, j: int) -> torch.Tensor:
        with torch.compiler.set_stance("fail_on_recompile"):  # the model is that of one graph, without its guards
            compiled(x, k, j)
        given = {name: value.numpy() for name, value in zip("xkj", (x, torch.tensor(k), torch.tensor(j)), strict=True)}
        return torch.from_numpy(session.run(None, {name: given[name[-1]] for name in names})[0])

    return eager, run, _pairs()


def _loaded(function: Callable[[Any, Any], Any], _backend: Any) -> tuple[Callable[..., Any], Callable[..., Any], Sequence[Any]]:
    eager = _of_sizes(function)
    frozen = ortlens.freeze(eager, torch.zeros(11, 5, dtype=torch.int64), dynamic_shapes=True)
    with tempfile.TemporaryDirectory() as folder:
        frozen.save(f"{folder}/frozen")
        return eager, ortlens.load_frozen(f"{folder}/frozen"), _tables()


ROADS: dict[str, Road] = {
    "argument": _compiled(_of_arguments, _pairs),
    "size": _compiled(_of_sizes, _tables),
    "data": _compiled(_of_data, _scalars),
    "model": _model,
    "loaded": _loaded,
}
"""Where a number comes from, or what computes it -> makes eager's function, ours, and the arguments of calls."""

_DEPLOYED = ("model", "loaded")


def outcomes_of(name: str, roads: Sequence[str] = tuple(ROADS)) -> Iterator[Outcome]:
    """Send an operation down roads."""
    for road in roads:
        for place, function in enumerate(OPERATIONS[name]):
            for verdict, detail in _verdicts(function, road):
                yield Outcome(operator=name, dtype="number", road=road, sample=place, verdict=verdict, detail=detail)


def _verdicts(function: Callable[[Any, Any], Any], road: str) -> list[tuple[str, str]]:
    torch.compiler.reset()
    lens = Lens()
    with warnings.catch_warnings(), torch._dynamo.config.patch(capture_scalar_outputs=road == "data"):
        warnings.simplefilter("ignore")
        try:
            eager, ours, calls = ROADS[road](function, lens)
        except Exception as error:  # noqa: BLE001 - a deployed model is refused with a reason, or torch does not trace the function
            return [("declined" if road in _DEPLOYED else "crash", _text(error))]
        if road not in _DEPLOYED:
            _result(ours, _first(calls))
        made = [(args, _result(eager, args), _result(ours, args)) for args in calls]
        bad = {place: found for place, (_, want, got) in enumerate(made) if (found := _difference(got, want, road))}
        kept = _placed(lens, road)
        if road != "loaded" and any(verdict == "wrong" for verdict, _ in bad.values()):
            torch.compiler.reset()
            _, control, _ = ROADS["argument" if road == "model" else road](function, "aot_eager")
            _result(control, _first(calls))
            same = {place for place in bad if _difference(_result(control, made[place][0]), made[place][1], road)}
            bad = {place: ("control" if place in same else verdict, detail) for place, (verdict, detail) in bad.items()}
    return [bad.get(place, kept) for place in range(len(calls))]


def _first(calls: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments to trace with: like those of the calls, with nothing special about them."""
    head: tuple[Any, ...] = calls[0]
    if len(head) == 1:
        return (torch.zeros(11, 5, dtype=torch.int64),)
    return (head[0], *(torch.tensor(value) if isinstance(head[1], torch.Tensor) else value for value in _FIRST))


def _result(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        with torch.no_grad():
            return function(*args)
    except Exception as error:  # noqa: BLE001 - what Python raises is part of the answer
        return error


def _difference(got: Any, want: Any, road: str) -> tuple[str, str] | None:
    if isinstance(got, Exception):
        if isinstance(want, Exception) and (road in _DEPLOYED or type(got) is type(want)):
            return None
        return ("declined" if road in _DEPLOYED else "wrong", _text(got))
    if isinstance(want, Exception):
        return "wrong", f"a value instead of {_text(want)}"
    exact = got.dtype == want.dtype and got.shape == want.shape and torch.equal(got, want)
    return None if exact else ("wrong", difference(got, want) or f"{got.flatten()[:1]} instead of {want.flatten()[:1]}")


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]


def _placed(lens: Lens, road: str) -> tuple[str, str]:
    """Where the numbers were computed: in the model, or by Python."""
    if road in _DEPLOYED:
        return "whole", ""
    captured = lens.captured()
    left = sorted({f"{row.target}: {row.reason}" for row in captured.nodes if row.kind == "size" and not row.supported})
    if not captured.partitions:
        return "torch", "; ".join(left)
    return "part" if left else "whole", "; ".join(left)


def bad_outcomes(name: str, roads: Sequence[str]) -> list[str]:
    """What is wrong with an operation, as lines; empty when nothing is."""
    found = (row for row in outcomes_of(name, roads) if row.verdict in ("wrong", "crash"))
    return [f"{row.road} {row.sample} {row.verdict}: {row.detail}" for row in found]


_NAMES = frozenset(vars(operator)) | frozenset(vars(builtins)) | frozenset(vars(math)) | frozenset(vars(torch))


def unknown_names() -> list[str]:
    """Names of the table that exist nowhere."""
    return [name for name in OPERATIONS if name.rsplit(".", maxsplit=1)[-1] not in _NAMES]
