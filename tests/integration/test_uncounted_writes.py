"""Writes that torch does not count: to `param.data`, through numpy and the storage. Only the bytes tell."""

import warnings

import pytest
import torch

from ortlens import Lens
from ortlens.backend.runtime import weights
from ortlens.backend.runtime.weights import CALLS, WHOLE_BYTES


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
