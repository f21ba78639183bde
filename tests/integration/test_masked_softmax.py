"""Masked attention for processors that stall at denormal numbers."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

from ortlens import Lens
from ortlens.backend.runtime import session
from ortlens.backend.runtime.session import SessionConfig
from tests.integration.against_eager import sessions_tried

ROWS = 12
CAUSAL = torch.ones(ROWS, ROWS, dtype=torch.bool).tril()
BIAS = torch.randn(ROWS, ROWS, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[SessionConfig]:
    monkeypatch.setattr(session, "stalls_at_denormals", lambda: True)
    return sessions_tried(monkeypatch)


def raised_of(tried: Sequence[SessionConfig]) -> int:
    return [node.op_type for config in tried for node in config.model.graph.node].count("ReduceMax")


class ByHand(torch.nn.Module):
    """Attention whose mask is a buffer, as programs write it."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", CAUSAL)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.transpose(-2, -1)).masked_fill(self.seen == 0, -torch.inf)
        return torch.softmax(scores, -1) @ x


class Shifted(torch.nn.Module):
    """Attention that adds a buffer, as the shifted windows of Swin do."""

    far: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("far", torch.where(CAUSAL, 0.0, -100.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.transpose(-2, -1) + self.far, -1) @ x


def causal(x: torch.Tensor) -> torch.Tensor:
    return attend(x, x, x, is_causal=True)


def boolean(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(ROWS)
    return attend(x, x, x, attn_mask=(places <= places[:, None]) & (places > 1))  # two rows see nothing


def added(x: torch.Tensor) -> torch.Tensor:
    mask = torch.full((ROWS, ROWS), torch.finfo(torch.float32).min).triu(1)
    return torch.softmax(x @ x.transpose(-2, -1) + mask, -1) @ x


@pytest.mark.parametrize(
    ("program", "worst"),
    [(causal, 0.0), (boolean, 0.0), (added, torch.nan), (ByHand().eval(), torch.nan), (Shifted().eval(), 0.0)],
    ids=["causal", "boolean", "added", "by hand", "shifted windows"],
)
def test_scores_that_a_mask_hides_are_raised(
    program: Callable[[torch.Tensor], torch.Tensor], worst: float, tried: list[SessionConfig]
) -> None:
    x = torch.randn(2, 3, ROWS, 8) * 3  # the largest scores are far apart
    x[1, :, -1, 0] = worst
    with torch.no_grad():
        got = torch.compile(program, backend=Lens(options={"on_error": "raise"}))(x)
    torch.testing.assert_close(got, program(x), equal_nan=True, rtol=1e-5, atol=1e-5)
    assert raised_of(tried) == 1


@pytest.mark.parametrize("hiding", [-torch.inf, torch.finfo(torch.float32).min, -1000.0])
@pytest.mark.parametrize("behind", [1e30, torch.inf])
def test_what_a_mask_hides_weighs_exactly_nothing(hiding: float, behind: float, tried: list[SessionConfig]) -> None:
    def attend_to(x: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1)
        weights = torch.softmax((x @ x.transpose(-2, -1)).masked_fill(hidden, hiding), -1)
        return weights @ values, (weights @ torch.eye(ROWS)).log()

    x, values = torch.randn(3, ROWS, 8), torch.randn(3, ROWS, 8)
    values[:, -1] = behind  # memory of a cache that nothing has been written to
    with torch.no_grad():
        got = torch.compile(attend_to, backend=Lens(options={"on_error": "raise"}))(x, values)
    torch.testing.assert_close(got, attend_to(x, values), equal_nan=True)
    assert raised_of(tried) == 1


def returned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.softmax((x @ x.transpose(-2, -1)).masked_fill(~CAUSAL, -torch.inf), -1)
    return weights @ x, weights


def padded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (attend(x, x, x, attn_mask=x[:, :, None, :, 0] > 0),)


def biased(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.softmax(x @ x.transpose(-2, -1) + BIAS, -1) @ x,)


@pytest.mark.parametrize("program", [returned, padded, biased])
def test_other_weights_stay_as_they_are(program: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], tried: list[SessionConfig]) -> None:
    x = torch.randn(2, 3, ROWS, 8)
    with torch.no_grad():
        got = torch.compile(program, backend=Lens(options={"on_error": "raise"}))(x)
    torch.testing.assert_close(got, program(x))
    assert raised_of(tried) == 0
