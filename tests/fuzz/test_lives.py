"""Whatever happens to a model, in whatever order: the next answer is PyTorch's. A few short lives; `make sweep-soak` lives long ones."""

import pytest
import torch
from torch import nn

from ortlens import OrtBackend
from tests.fuzz.lives import KINDS, UNCOUNTED, every_change, failure_of, life, lived, random_life
from tests.fuzz.plants import planted
from tests.threads import in_threads

pytestmark = pytest.mark.slow

_THREADS = 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_life(kind: str) -> None:
    assert failure_of(random_life(0, kind, 6)) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_sort_of_change_comes_once(kind: str) -> None:
    verdict = lived(every_change(kind))
    assert verdict.word == "right", verdict.text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_tensor_written_past_the_counter(kind: str) -> None:
    verdict = lived(every_change(kind, UNCOUNTED * 4))
    assert verdict.word == "right", verdict.text()


def test_a_change_that_is_not_noticed_is_a_failure() -> None:
    with planted("changed weights not noticed"):
        assert "call(" in failure_of(life("mlp", ("call(2)", "self.last.weight.mul_(2)", "other(2)")))


def test_a_life_is_lived_in_onnx_runtime() -> None:
    """A life in which everything fell back to PyTorch would agree with PyTorch, and show nothing."""
    OrtBackend.clear_cached_instances()
    assert lived(life("block", ("call(2)", "other(2)", "call(2)"))).word == "right"
    (backend,) = OrtBackend.get_cached_instances()
    assert backend.execution_count == 3
    assert any(info.frozen for sessions in backend.sessions_by_graph.values() for info in sessions)


@torch.no_grad()
def test_a_weight_swapped_while_threads_call_is_the_one_or_the_other() -> None:
    """Never a mixture, never a third."""
    net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8))
    weights = [nn.Parameter(torch.rand(8)) for _ in range(2)]
    inputs, expected = [torch.randn(2, 6) for _ in range(_THREADS)], []
    for weight in weights:
        net[1].weight = weight
        expected.append([net(x) for x in inputs])
    compiled = torch.compile(net, backend="ortlens")

    @torch.no_grad()
    def work(number: int) -> None:
        for turn in range(6):
            result = compiled(inputs[number])
            net[1].weight = weights[(number + turn) % 2]
            assert any(torch.allclose(result, wanted[number], atol=1e-5) for wanted in expected)

    in_threads(work, _THREADS)
