"""CONTRACT 8.7: ExportedPrograms go down the same road and do what `program.module()` does."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

import ortlens
from ortlens import Lens
from tests.conformance.operator_case import Calls, r
from tests.integration.test_exported import Block, same_as_module


def as_its_module(program: ExportedProgram, *args: Any, **kwargs: Any) -> Lens:
    """Call a program both ways; results, arguments and state agree."""
    lens = same_as_module(program, (args, kwargs))
    assert len(lens.graphs) == 1
    return lens


def whole(lens: Lens) -> bool:
    return lens.graphs.coverage.tolist() == [1.0] and sum(lens.sessions.calls) == 1


class Counter(nn.Module):
    """Buffers that a call changes, one of them not part of the state dict."""

    count: torch.Tensor
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("seen", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.seen.copy_(self.seen + x.sum(0))
        return x * self.count + self.seen


def test_8_7_dynamic_dimensions() -> None:
    program = torch.export.export(Block(), (r(5, 4),), dynamic_shapes=({0: Dim("rows")},))
    for rows in (5, 2, 9):
        assert whole(as_its_module(program, r(rows, 4)))


def test_8_7_saved_and_loaded_and_retraced() -> None:
    file, args = io.BytesIO(), (r(5, 4), r(3))
    torch.export.save(torch.export.export(Block(), args), file)
    file.seek(0)
    program = torch.export.load(file)
    assert whole(as_its_module(program, *args))
    assert whole(as_its_module(torch.export.export(program.module(), args), *args))


def test_8_7_constants_specialised_at_tracing() -> None:
    def function(x: torch.Tensor, values: tuple[Any, ...]) -> Any:
        whole_number, number, flag, text = values
        return x * whole_number + number * flag + len(text), x + torch.tensor([1.0, 2.0])

    program = torch.export.export(Calls(function), (r(2), (3, 2.5, True, "text")))
    assert whole(as_its_module(program, r(2), (3, 2.5, True, "text")))
    for call in (program.module(), ortlens.explain(program, calls=1)):
        with pytest.raises(Exception, match="3"):
            call(r(2), (4, 2.5, True, "text"))


KEYWORDS: dict[str, tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {
    "positional_none": ((r(5, 4), None), {"scale": 2.0}, {"scale": 2.0}),
    "other_order": ((r(5, 4),), {"y": r(3), "scale": 2.0, "shift": r(1)}, {"shift": r(1), "scale": 2.0, "y": r(3)}),
    "none_by_name": ((r(5, 4),), {"shift": None, "y": r(3)}, {"y": r(3), "shift": None}),
}


@pytest.mark.parametrize("name", KEYWORDS)
def test_8_7_none_and_keyword_arguments(name: str) -> None:
    args, traced, called = KEYWORDS[name]
    assert whole(as_its_module(torch.export.export(Block(), args, traced), *args, **called))


def test_8_7_nested_inputs_and_outputs() -> None:
    def function(d: dict[str, Any], x: list[Any], y: tuple[torch.Tensor, torch.Tensor]) -> Any:
        dicts, lists = [d["a"][0] + 1, (d["b"], {"z": d["a"][1] * 2})], {"r": [x[0] * 2, [x[1][0] + 1]], "n": (None, 3, "text", {"a": 2.5})}
        return dicts, lists, (d["b"] + y[0],), y, d["b"]

    args = ({"a": (r(2), r(3)), "b": r(1)}, [r(2), [r(3)]], (r(2), r(4)))
    assert whole(as_its_module(torch.export.export(Calls(function), args), *args))


def test_8_7_mutated_buffers() -> None:
    program, model = torch.export.export(Counter(), (r(5, 4),)), Counter()
    fast = ortlens.Lens().compile_exported(program)
    for step in range(3):
        torch.testing.assert_close(fast(r(5, 4) + step), model(r(5, 4) + step))
    torch.testing.assert_close(program.state_dict["count"], model.count)
    torch.testing.assert_close(next(value for name, value in program.constants.items() if name == "seen"), model.seen)


def test_8_7_mutated_inputs() -> None:
    program = torch.export.export(Calls(lambda x, y: (x.add_(1), y.mul_(x.sum()) + 1)[1]), (r(3), r(4)))
    assert as_its_module(program, r(3), r(4)).fallbacks.empty


def test_8_7_batch_norm_in_training() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    program, twin = torch.export.export(copy.deepcopy(model), (r(2, 3, 6, 6),)), copy.deepcopy(model)
    fast = ortlens.Lens().compile_exported(program)
    with torch.no_grad():
        for step in range(3):
            torch.testing.assert_close(fast(r(2, 3, 6, 6) + step), twin(r(2, 3, 6, 6) + step), atol=1e-5, rtol=1e-4)
    state = {name: value.detach() for name, value in program.state_dict.items()}
    torch.testing.assert_close(state, dict(twin.state_dict()))


def test_8_7_lazy_modules() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2))
    model(r(5, 4))
    assert whole(as_its_module(torch.export.export(model, (r(5, 4),)), r(5, 4)))


def test_8_7_conditions_stay_in_pytorch() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x * 2,)) + 1

    program = torch.export.export(Calls(function), (r(4),))
    for value in (r(4).abs(), -r(4).abs()):
        lens = as_its_module(program, value)
        assert lens.fallbacks[["target", "reason_code"]].values.tolist() == [["cond", "no_converter"]]
