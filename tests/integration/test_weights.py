"""Frozen weights: constants of a session, not copied, of one model each; writes that torch does not count are seen by their bytes."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens, OrtBackend
from ortlens.backend.runtime import weights
from ortlens.backend.runtime.weights import CALLS, WHOLE_BYTES


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 3)).eval()


def inputs() -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def test_unchanged_weights_make_one_session_and_changing_ones_stop_being_frozen() -> None:
    model, x, lens = net(), inputs(), Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        for _ in range(5):
            compiled(x)
        assert lens.sessions.input_signature.tolist() == ["f32[4,6]"]
        for _ in range(8):
            model[0].weight.add_(1)
            torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
    signatures = lens.sessions.input_signature.tolist()
    assert 2 <= len(signatures) <= 4, "a session per change would be worse than no freezing at all"
    assert signatures[:2] == ["f32[4,6]"] * 2
    assert len(signatures[-1].split()) > 5
    assert int(lens.sessions.calls.sum()) == 13
    assert lens.graphs.coverage.tolist() == [1.0]
    assert not lens.captured().findings


def test_frozen_weights_are_not_copied() -> None:
    model = nn.Linear(2048, 1024).eval()
    backend = OrtBackend()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        compiled(torch.ones(1, 2048))
    ((info,),) = backend.sessions_by_graph.values()
    assert {weight.contiguous.data_ptr() for weight in info.frozen} == {p.data_ptr() for p in model.parameters()}


def test_one_weight_in_two_modules_made_in_inference_mode_or_not() -> None:
    for inference in (False, True):
        torch.compiler.reset()
        lens = Lens()
        with torch.inference_mode(inference), torch.no_grad():
            first, second, x = nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(2, 4)
            second.weight = first.weight
            model = nn.Sequential(first, nn.Tanh(), second).eval()
            compiled = torch.compile(model, backend=lens)
            torch.testing.assert_close(compiled(x), model(x))
            second.weight.mul_(3)
            torch.testing.assert_close(compiled(x), model(x))
        assert lens.fallbacks.empty
    assert len(lens.sessions) == 1, "weights of inference mode, whose writes nothing counts, are not frozen"


@pytest.mark.parametrize("backend", [OrtBackend, Lens])
def test_a_copy_of_a_compiled_model_has_weights_of_its_own(backend: Callable[[], Any]) -> None:
    model, x = net(), inputs()
    compiled: Any = torch.compile(model, backend=backend())
    with torch.no_grad():
        before = compiled(x)
        other = copy.deepcopy(compiled)
        other._orig_mod[0].weight.add_(1)
        torch.testing.assert_close(other(x), other._orig_mod(x), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(compiled(x), before)


def test_the_memory_of_a_large_weight_may_go() -> None:
    layer, x = nn.Linear(1024, 1024), torch.ones(2, 1024)
    compiled = torch.compile(layer, backend=OrtBackend())
    with torch.no_grad():
        compiled(x)
        storage, size = layer.weight.untyped_storage(), layer.weight.nbytes
        for _ in range(2):
            storage.resize_(0)  # unmapped; the notes about the weight must not be read any more
            kept = torch.ones(1024, 1024)  # takes the place
            storage.resize_(size)
            layer.weight.fill_(0.01)
            torch.testing.assert_close(compiled(x), layer(x), atol=1e-4, rtol=1e-4)
            del kept


def test_an_exported_program_notices_uncounted_writes_too() -> None:
    x = torch.ones(3, 64)
    program = torch.export.export(nn.Linear(64, 64), (x,))
    compiled = OrtBackend().compile_program(program)
    compiled(x)
    program.state_dict["weight"].data[40, 3] = 9
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(16):
            compiled(x)
    assert any("does not count; up to" in str(warning.message) for warning in heard)
    torch.testing.assert_close(compiled(x), program.module()(x), atol=1e-4, rtol=1e-4)


def _net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 48), torch.nn.Linear(48, 64))


def test_one_element_anywhere_is_noticed_within_the_promised_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MAX_REFREEZES", 1000)
    net, lens, x = _net(), Lens(), torch.ones(2, 64)
    compiled = torch.compile(net, backend=lens)
    late = 0
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        compiled(x)
        for weight in net.parameters():
            for place in {0, 1, weight.numel() // 2 + 1, weight.numel() - 1}:
                torch.empty(0).set_(weight.untyped_storage())[place] += 50
                right = net(x)
                calls = next(call for call in range(1, CALLS + 1) if torch.allclose(compiled(x), right, atol=1e-3))
                assert calls == 1 or weight.nbytes > WHOLE_BYTES
                late += calls > 1
                for _ in range(3):
                    torch.testing.assert_close(compiled(x), right, atol=1e-3, rtol=1e-4)
    assert late
    found = [finding for finding in lens.captured().findings if finding.rule == "uncounted_write"]
    assert len(found) >= late
    assert "a weight of shape [64, 64] changed in a way that torch does not count; up to" in found[0].title


def test_a_late_change_is_warned_of_in_several_partitions() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.second(torch.special.bessel_j0(self.first(x)))
            return y @ self.first.weight

    net, lens, x = Net(), Lens(), torch.ones(2, 64)
    compiled = torch.compile(net, backend=lens)
    with torch.no_grad():
        compiled(x)
        net.first.weight.data[40, 7] = 9
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            for _ in range(CALLS):
                compiled(x)
        torch.testing.assert_close(compiled(x), net(x), atol=1e-4, rtol=1e-4)
    assert any("does not count; up to" in str(warning.message) for warning in heard)
    assert {finding.subject for finding in lens.captured().findings} == {"p0", "p1"}


def test_tables_that_are_looked_up_are_never_stale() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = torch.nn.Embedding(500, 16), torch.nn.Linear(16, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(ids))  # type: ignore[no-any-return]  # torch's modules return Any

    net, lens, ids = Net(), Lens(), torch.tensor([5, 77, 499])
    compiled = torch.compile(net, backend=lens)
    with torch.no_grad():
        for place in range(6):
            torch.testing.assert_close(compiled(ids), net(ids))
            net.table.weight.data[int(ids[place % 3])] = 10.0 + place
    assert lens.sessions.calls.tolist() == [6]
    assert lens.sessions.table_bytes.tolist() == [500 * 16 * 4]
    assert lens.captured().findings == ()
    assert lens.findings.rule.tolist().count("unfrozen_weights") == 0


def test_sessions_for_fixed_sizes_share_the_watch() -> None:
    layer = torch.nn.Linear(64, 64)
    lens = Lens(options={"export_options": {"dynamic_shapes": False}})
    compiled = torch.compile(layer, backend=lens, dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for rows in (2, 3, 4):
            compiled(torch.ones(rows, 64))
        layer.weight.data[33, 5] = 9
        for call in range(8):  # of the 16 KiB, each call compares two
            compiled(torch.ones(2 + call % 3, 64))
        for rows in (2, 3, 4):
            torch.testing.assert_close(compiled(torch.ones(rows, 64)), layer(torch.ones(rows, 64)))
