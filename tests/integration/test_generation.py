"""`generate` of models: the tokens are those of PyTorch, and prefill, decode and the Python around them are told apart."""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import ortlens
from ortlens import Lens
from ortlens.analysis.problems.stream import problems_of
from ortlens.magic.expression import call_from_expression

PROMPT, NEW = 5, 6
POSITIONS = 64


class Tiny(nn.Module):
    """One attention layer with a cache, and a `generate` like that of transformers, in a few lines."""

    def __init__(self, *, static: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.project = nn.Linear(8, 24)
        self.head = nn.Linear(8, 50)
        self.static = static

    def forward(
        self, input_ids: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor] | None = None, at: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Logits of the last position, and the keys and values so far."""
        query, key, value = self.project(self.embed(input_ids)).chunk(3, -1)
        if past is not None and at is not None:  # a buffer of fixed size, of which a changed copy is made
            key, value = past[0].index_copy(1, at, key), past[1].index_copy(1, at, value)
            mask = torch.arange(POSITIONS) <= at[-1]
        else:
            key, value = (key, value) if past is None else (torch.cat((past[0], key), 1), torch.cat((past[1], value), 1))
            mask = torch.ones(key.shape[1], dtype=torch.bool)
        attended = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.head(attended[:, -1]), (key, value)

    @torch.no_grad()
    def generate(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The prompt, and the most probable tokens after it."""
        past: tuple[torch.Tensor, torch.Tensor] | None = None
        at: torch.Tensor | None = None
        if self.static:
            past = torch.zeros(len(input_ids), POSITIONS, 8), torch.zeros(len(input_ids), POSITIONS, 8)
            at = torch.arange(input_ids.shape[1])
        step = input_ids
        for _ in range(NEW):
            logits, past = self(step, past, at)
            step = logits.argmax(-1, keepdim=True)
            input_ids = torch.cat((input_ids, step), 1)
            at = None if at is None else at[-1:] + 1
        return input_ids


@pytest.fixture
def model() -> Tiny:
    torch.manual_seed(0)
    return Tiny().eval()


@pytest.fixture
def prompt() -> torch.Tensor:
    return torch.arange(2 * PROMPT).view(2, PROMPT)


def steps(lens: Lens) -> dict[str, Any]:
    return {step.role: step for step in lens.captured().steps}


def roles(lens: Lens) -> list[str | None]:
    return [graph.role for graph in lens.captured().graphs]


def test_prefill_and_decode_are_told_apart(model: Tiny, prompt: torch.Tensor) -> None:
    lens = ortlens.explain(model.generate)(prompt)

    assert torch.equal(lens.result, model.generate(prompt))
    assert roles(lens) == ["prefill", "decode", "decode"]
    found = steps(lens)
    assert [(role, step.calls, step.tokens) for role, step in found.items()] == [
        ("prefill", 1, 2 * PROMPT),
        ("decode", NEW - 1, 2 * (NEW - 1)),
        ("python", 0, 0),
    ]
    assert (found["prefill"].graph_ids, found["decode"].graph_ids) == (("g0",), ("g1", "g2"))
    assert all(step.uncompiled_ns for step in found.values())
    assert sum(step.ns for step in found.values()) == pytest.approx(lens.ledger.ns.sum(), abs=20)  # each is rounded
    assert lens.breaks.empty
    assert set(lens.graphs.name) == {"forward"}
    assert "forward" not in model.__dict__, "the model is left as it was"
    text = " ".join(lens.summary().split())
    assert "Python of generate around the model" in text
    assert "Python of the model" not in text, "all of the model is in its graphs"


def _in_place(model: Tiny, lens: Lens) -> None:
    model.compile(backend=lens)


def _forward(model: Tiny, lens: Lens) -> None:
    model.forward = torch.compile(model.forward, backend=lens)  # type: ignore[method-assign]  # as the docs of transformers do


class Hearing(Tiny):
    """Its encoder takes a spectrum, of 8 bins at each of its times."""

    config = SimpleNamespace(is_encoder_decoder=True)

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(8, 50, 2, stride=2), Swapped())

    def get_encoder(self) -> nn.Module:
        return self.encoder

    def generate(self, spectrum: torch.Tensor) -> torch.Tensor:
        return super().generate(self.encoder(spectrum).argmax(-1))


class Swapped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def test_bins_of_a_spectrum_are_no_positions() -> None:
    steps = ortlens.explain(Hearing().eval().generate, backend="eager", calls=3)(torch.randn(2, 8, 6)).steps
    assert steps.set_index("role").tokens.loc[["encode", "prefill"]].tolist() == [6, 6]


@pytest.mark.parametrize("compile_it", [_in_place, _forward])
def test_a_model_that_the_user_compiled_in_place(model: Tiny, prompt: torch.Tensor, compile_it: Callable[[Tiny, Lens], None]) -> None:
    expected, lens = model.generate(prompt), Lens()
    compile_it(model, lens)

    assert torch.equal(model.generate(prompt), expected)
    assert roles(lens) == ["prefill", "decode", "decode"]
    assert f"decode: {NEW - 1} calls" in lens.summary()


def test_generate_of_a_compiled_module_is_said_to_bypass_it(model: Tiny, prompt: torch.Tensor) -> None:
    lens = Lens()
    fast: Any = torch.compile(model, backend=lens)
    fast.generate(prompt)
    (found,) = lens.captured().findings
    assert found.rule == "compiled_model_bypassed"
    assert "model.compile(...)" in lens.summary()
    torch.compiler.reset()
    lens = Lens()
    with torch.no_grad():
        torch.compile(model, backend=lens)(prompt)
    assert lens.captured().findings == ()


def test_a_recompile_per_token_is_one_finding(model: Tiny, prompt: torch.Tensor) -> None:
    lens = ortlens.explain(model.generate, dynamic=False, calls=1)(prompt)

    assert lens.verify(prompt).ok.dropna().all()
    assert set(steps(lens)) == set()
    lens.measure(prompt)
    assert set(steps(lens)) == {"prefill", "decode", "python"}
    (found,) = (item for item in problems_of(lens.captured()) if item.kind == "recompile")
    assert found.count == NEW - 2
    assert "dynamic=True" in found.mitigation
    assert found.file == __file__


def test_a_cache_that_is_copied_per_token_is_named(prompt: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = Tiny(static=True).eval()

    lens = ortlens.explain(model.generate, calls=1)(prompt)

    assert torch.equal(lens.result, model.generate(prompt))
    assert roles(lens) == ["prefill", "decode"]
    # Keys and values of 2 rows and 64 positions, of which a token changes one.
    assert "each decode step copies 8.00 KiB of 8.00 KiB to write 128 B" in " ".join(lens.summary().split())


def test_another_backend_has_steps_too_and_a_forward_of_the_users_own_is_put_back(model: Tiny, prompt: torch.Tensor) -> None:
    own = functools.partial(Tiny.forward, model)
    model.forward = own  # type: ignore[method-assign]  # as hooks of accelerate do
    lens = ortlens.explain(model.generate, backend="eager", calls=3)(prompt)

    assert model.__dict__["forward"] is own
    assert {step.calls for step in lens.captured().steps if step.role == "decode"} == {NEW - 1}
    assert roles(lens) == ["prefill", "decode", "decode"]


def test_a_magic_evaluates_the_arguments_of_generate(model: Tiny, prompt: torch.Tensor) -> None:
    call = call_from_expression("model.generate(prompt.repeat(2, 1))", {"model": model, "prompt": prompt}, "In[1]", 1)

    assert call.target == model.generate
    assert [value.shape for value in call.args] == [(4, PROMPT)]


class Counting(nn.Module):
    """Its cache has as many rows as steps are made, and a position of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.at = torch.zeros(NEW, 8), torch.zeros(1, dtype=torch.int64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Write a row and go on."""
        self.rows.index_copy_(0, self.at, x)
        self.at.add_(1)
        return self.rows.sum(0, keepdim=True) + 1

    @torch.no_grad()
    def generate(self, x: torch.Tensor) -> torch.Tensor:
        """Fill the cache."""
        self.at.zero_()
        for _ in range(NEW):
            x = self(x)
        return x


def test_timing_against_pytorch_begins_at_the_position_of_the_entry() -> None:
    lens = ortlens.explain(Counting().generate, calls=3)(torch.ones(1, 8))

    assert [finding for finding in lens.captured().findings if finding.rule == "lens_failed"] == []
    assert lens.graphs.ort_ns.notna().all()
