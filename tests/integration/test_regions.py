"""Regions of `torch.compiler.nested_compile_region`: graphs, nodes, lines and modules are those without the decorator."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.compiler import nested_compile_region as region
from torch.nn import functional

import ortlens
from ortlens.trace.records import Capture, Node
from tests.integration.against_eager import assert_same, same_as_eager


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Sequential(nn.Linear(16, 16), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 4).permute(2, 0, 3, 1, 4)
        attended: torch.Tensor = self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + attended


MODEL = nn.Sequential(nn.Embedding(50, 16), *(Block() for _ in range(2)), nn.Linear(16, 50))


def nodes(capture: Capture) -> list[Node]:
    return [replace(node, node="", inputs=(), onnx_nodes=(), items=(), item_inputs=()) for node in capture.nodes]


def test_a_transformer_of_regions_is_compiled_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    found, batches = [], [torch.arange(2 * length).view(2, length) for length in (8, 5)]  # fixed, then varying
    for forward in (Block.forward, region(Block.forward)):
        torch.compiler.reset()
        monkeypatch.setattr(Block, "forward", forward)
        results, lens = [], ortlens.Lens()
        for call in (MODEL, torch.compile(MODEL, backend=lens)):
            made = [call(tokens) for tokens in batches]
            results.append([*made, *torch.autograd.grad(sum(each.square().mean() for each in made), list(MODEL.parameters()))])
        assert_same(*results)
        assert [(graph.partition_count, graph.coverage) for graph in lens.captured().graphs] == [(1, 1.0)] * 4
        found.append(nodes(lens.captured()))
    assert found[0] == found[1]


@torch.no_grad()
def test_programs_and_frozen_models_and_floats_that_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "forward", region(Block.forward))
    lens, tokens = ortlens.Lens(), torch.arange(16).view(2, 8)
    program = torch.export.export(MODEL, (tokens,), strict=True)
    compiled = torch.compile(MODEL, backend=lens, dynamic=True)  # passes the eps of a norm to a region, as a tensor or as a float
    for call in (lens.compile_exported(program), ortlens.freeze(program), ortlens.freeze(MODEL, tokens), compiled):
        assert_same(call(tokens), MODEL(tokens))
    assert [(graph.partition_count, graph.coverage) for graph in lens.captured().graphs] == [(1, 1.0)] * 2


def test_regions_in_regions_write_draw_and_take_modules() -> None:
    found, layers = [], nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
    for decorate in (lambda function: function, region):
        torch.compiler.reset()
        inner = decorate(lambda x, y: (functional.dropout(x.sin()), x.add_(y).cos(), torch.cond(x.sum() > 0, torch.sin, torch.cos, (y,))))
        outer = decorate(lambda layer, x, inner=inner: sum(inner(x + 1, layer(x))) + inner(x + 2, x)[0] * torch.tensor(2.0))
        found.append(nodes(same_as_eager(lambda x, outer=outer: outer(layers[0], outer(layers[1], x)), [torch.ones(4, 16)])))
    assert found[0] == found[1]
