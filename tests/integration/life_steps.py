"""What happens in a life: calls of every sort, and every way in which people change the weights of a model."""

# ruff: noqa: ANN401 - attributes of modules are Any in torch itself

from __future__ import annotations

import contextlib
import copy
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from ortlens import OrtBackend
from ortlens.backend.runtime import runner
from tests.integration.lives import FLOATS, TOLERANCES, Draw, Life, Pair, recompiling_at_will

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.lives import Steps

_BATCHES = (1, 2, 2, 2, 3, 7)
_THREADS = 3


def call(life: Life, draw: Draw) -> None:
    pair = draw.choice(life.pairs)
    x = pair.module.inputs(draw, draw.choice(_BATCHES))
    mode = draw.choice((torch.no_grad, torch.no_grad, torch.no_grad, torch.inference_mode, torch.enable_grad))
    result = life.check(pair, x, mode)
    if draw.below(4) == 0 and not result.is_inference():
        result.detach().fill_(7)  # a result is the caller's own: no later call may see this
        life.kept.pop()


VIEWS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x[::2],
    lambda x: x[1:3],
    lambda x: x[:1].expand_as(x),
    lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
)


def call_on_odd_memory(life: Life, draw: Draw) -> None:
    """Twice with other values in the same layout: the second must leave the result of the first alone."""
    pair, view = draw.choice(life.pairs), draw.choice(VIEWS)
    for _ in range(2):
        life.check(pair, view(pair.module.inputs(draw, 4).to(pair.module.inputs(Draw(0), 1).dtype)), torch.no_grad)


def call_empty(life: Life, draw: Draw) -> None:
    pair = draw.choice(life.pairs)
    if not pair.module.training:
        life.check(pair, pair.module.inputs(draw, 3)[:0], torch.no_grad)


def call_under_autocast(life: Life, draw: Draw) -> None:
    pair = draw.choice(life.pairs)
    if any(parameter.dtype != torch.float32 for parameter in pair.module.parameters()):
        return  # PyTorch's own operators refuse mixtures of float16 and bfloat16

    @contextlib.contextmanager
    def mode() -> Iterator[None]:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            yield

    life.check(pair, pair.module.inputs(draw, 2), mode, TOLERANCES[torch.bfloat16])


def call_from_threads(life: Life, draw: Draw) -> None:
    pair = draw.choice(life.pairs)
    if pair.module.training:
        return  # random numbers and statistics are shared, by PyTorch's own threads too
    inputs = [pair.module.inputs(draw, draw.choice(_BATCHES)) for _ in range(_THREADS)]
    with torch.no_grad():
        expected = [pair.module(x) for x in inputs]
    _in_threads(
        pair,
        inputs,
        lambda number, result: torch.testing.assert_close(result, expected[number], rtol=_tolerance(result), atol=_tolerance(result)),
    )


def swap_while_threads_call(life: Life, draw: Draw) -> None:
    """Each result is that of one weight or of the other: never of a mixture, never of a third."""
    pair = draw.choice(life.pairs)
    module = pair.module.norm
    if pair.module.training or module.weight is None:
        return
    first = module.weight
    second = nn.Parameter(draw.values(*first.shape, dtype=first.dtype), requires_grad=first.requires_grad)
    inputs = [pair.module.inputs(draw, 2) for _ in range(_THREADS)]
    expected = []
    for weight in (first, second):
        module.weight = weight
        with torch.no_grad():
            expected.append([pair.module(x) for x in inputs])

    def check(number: int, result: torch.Tensor) -> None:
        module.weight = (first, second)[draw_of_thread[number].below(2)]
        assert any(torch.allclose(result, wanted[number], atol=_tolerance(result)) for wanted in expected)

    draw_of_thread = [Draw(number) for number in range(_THREADS)]
    _in_threads(pair, inputs, check)


def _tolerance(result: torch.Tensor) -> float:
    return TOLERANCES[result.dtype] * max(1.0, float(result.abs().max()))


def _in_threads(pair: Pair, inputs: list[torch.Tensor], check: Callable[[int, torch.Tensor], None]) -> None:
    barrier = threading.Barrier(len(inputs))

    def work(number: int) -> None:
        barrier.wait(timeout=60)
        with torch.no_grad(), recompiling_at_will():
            for _ in range(6):
                check(number, pair.compiled(inputs[number]))

    with ThreadPoolExecutor(len(inputs)) as pool:
        for done in [pool.submit(work, number) for number in range(len(inputs))]:
            done.result(timeout=300)


# ------------------------------------------------------------------------------------------------ writes that torch counts


def _weight(life: Life, draw: Draw) -> torch.Tensor:
    """Any parameter, or any buffer of numbers."""
    module = draw.choice(life.pairs).module
    weights: list[torch.Tensor] = [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]
    return draw.choice(weights)


def _new_values(weight: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Positive, since they may be variances, and small, so that float16 holds what is made of them."""
    return draw.values(*weight.shape).abs().add(0.2).mul(0.7).to(weight.dtype)


def write_in_place(life: Life, draw: Draw) -> None:
    weight = _weight(life, draw)
    with torch.no_grad():
        _write(weight, _new_values(weight, draw), draw)


def _write(weight: torch.Tensor, values: torch.Tensor, draw: Draw) -> None:
    way = draw.below(4)
    if way == 0:
        weight.copy_(values)
    elif way == 1:
        weight.mul_(0.5).add_(values)
    elif way == 2:
        weight[...] = values
    else:
        weight.lerp_(values, 0.75)


def write_one_element(life: Life, draw: Draw) -> None:
    weight = _weight(life, draw)
    with torch.no_grad():
        weight[tuple(draw.below(size) for size in weight.shape)] = 3


def step_of_optimizer(life: Life, draw: Draw) -> None:
    """The gradient is the compiled module's own, and not compared here: `call` does that."""
    pair = draw.choice(life.pairs)
    params = [p for p in pair.module.parameters() if p.requires_grad and p.is_leaf]
    if not params:
        return
    kind = draw.choice((torch.optim.SGD, torch.optim.AdamW))
    optimizer = kind(params, lr=0.05, foreach=bool(draw.below(2)))
    with torch.enable_grad():
        pair.compiled(pair.module.inputs(draw, 3)).float().square().mean().backward()
    nn.utils.clip_grad_norm_(params, 1.0)  # where weights explode, PyTorch's own gradients are off by more than they are large
    optimizer.step()
    optimizer.zero_grad()


def write_buffer(life: Life, draw: Draw) -> None:
    owner, name, value = draw.choice(list(_buffers(draw.choice(life.pairs).module)))
    if value.dtype == torch.bool:
        value.logical_not_()
    elif draw.below(2):
        value.add_(1)
    else:
        setattr(owner, name, value + 1)


def _buffers(module: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    for owner in module.modules():
        for name, value in owner.named_buffers(recurse=False):
            yield owner, name, value
    if not any(True for _ in module.buffers()):
        module.register_buffer("unused", torch.zeros(1), persistent=False)
        yield from _buffers(module)


# ---------------------------------------------------------------------------------------------- other memory, other tensors


def set_data(life: Life, draw: Draw) -> None:
    """Several times, and freed at once: the allocator likes to give the same address again."""
    weight = _weight(life, draw)
    for _ in range(draw.choice((1, 2, 3))):
        values = _new_values(weight, draw)
        turned = draw.below(3) == 0 and values.dim() > 1  # other strides make Dynamo compile anew, and hide what this is after
        weight.data = values.transpose(0, 1).contiguous().transpose(0, 1) if turned else values
        del values


def load_state(life: Life, draw: Draw) -> None:
    module = draw.choice(life.pairs).module
    state = {name: _new_values(v, draw) if v.is_floating_point() else v.clone() for name, v in module.state_dict().items()}
    if "head.weight" in state:
        state["head.weight"] = state["embed.weight"]
    module.load_state_dict(state, assign=bool(draw.below(2)))
    if draw.below(2) and "head.weight" in state:
        module.head.weight = module.embed.weight


def swap_parameter(life: Life, draw: Draw) -> None:
    owners = [m for m in draw.choice(life.pairs).module.modules() if list(m.parameters(recurse=False))]
    owner = draw.choice(owners)
    name = draw.choice([name for name, value in owner._parameters.items() if value is not None])
    old: Any = owner._parameters[name]
    setattr(owner, name, nn.Parameter(_new_values(old, draw), requires_grad=old.requires_grad))


def swap_tensors(life: Life, draw: Draw) -> None:
    weight = _weight(life, draw)
    other = _new_values(weight, draw)
    if isinstance(weight, nn.Parameter):
        other = nn.Parameter(other, requires_grad=weight.requires_grad)
    with contextlib.suppress(RuntimeError):  # torch refuses a tensor that a graph of autograd still refers to
        torch.utils.swap_tensors(weight, other)


def share_memory(life: Life, draw: Draw) -> None:
    """Moves the bytes of a storage that a session may be looking at."""
    draw.choice(life.pairs).module.share_memory()


def swap_submodule(life: Life, draw: Draw) -> None:
    module = draw.choice(life.pairs).module
    name = draw.choice([name for name, child in module.named_children() if isinstance(child, (nn.Linear, nn.LayerNorm))])
    old = getattr(module, name)
    made = (
        nn.Linear(old.in_features, old.out_features)
        if isinstance(old, nn.Linear)
        else nn.LayerNorm(8, elementwise_affine=bool(draw.below(2)))
    )
    for parameter in made.parameters():
        parameter.data = _new_values(parameter, draw)
    setattr(module, name, made.to(next(module.parameters()).dtype))


def change_dtype(life: Life, draw: Draw) -> None:
    module = draw.choice(life.pairs).module
    for dtype in (draw.choice(FLOATS), torch.float32)[: draw.choice((1, 2, 2))]:
        module.to(dtype)


def channels_last(life: Life, draw: Draw) -> None:
    draw.choice(life.pairs).module.to(memory_format=draw.choice((torch.channels_last, torch.contiguous_format)))


def copy_module(life: Life, draw: Draw) -> None:
    module = draw.choice(life.pairs).module
    # PyTorch cannot copy a pruned module that has run, and copies of a parametrized one share a class that removing takes apart.
    if not any(hasattr(child, "weight_orig") or parametrize.is_parametrized(child) for child in module.modules()):
        life.add(copy.deepcopy(module))


# ------------------------------------------------------------------------------------------------- switches of a module


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor(1.5))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.by


def parametrize_weight(life: Life, draw: Draw) -> None:
    layer = _linear(life, draw)
    if parametrize.is_parametrized(layer):
        parametrize.remove_parametrizations(layer, "weight")
    elif hasattr(layer, "weight_orig"):
        prune.remove(layer, "weight")
    elif draw.below(2):
        parametrize.register_parametrization(layer, "weight", _Scale().to(layer.weight.dtype))
    else:
        parametrizations.weight_norm(layer)


def prune_weight(life: Life, draw: Draw) -> None:
    layer = _linear(life, draw)
    if hasattr(layer, "weight_orig"):
        prune.remove(layer, "weight")
    elif not parametrize.is_parametrized(layer) and isinstance(layer.weight, nn.Parameter):
        prune.custom_from_mask(layer, "weight", draw.values(*layer.weight.shape) > -1)


def _linear(life: Life, draw: Draw) -> Any:
    """One whose weight nobody shares: `head` may be tied, and both utilities untie it, which is PyTorch's own affair."""
    module = draw.choice(life.pairs).module
    return draw.choice([child for name, child in module.named_children() if isinstance(child, nn.Linear) and name != "head"])


def toggle_gradient(life: Life, draw: Draw) -> None:
    weight = _weight(life, draw)
    if isinstance(weight, nn.Parameter):
        weight.requires_grad_(not weight.requires_grad)


def toggle_training(life: Life, draw: Draw) -> None:
    module = draw.choice(life.pairs).module
    module.train(not module.training)


def compile_anew(life: Life, draw: Draw) -> None:
    if draw.below(2):
        torch.compiler.reset()
    if draw.below(2):
        OrtBackend.clear_cached_instances()
    life.compile_anew()


def freeze_less(life: Life, draw: Draw) -> None:
    """From here on weights that change become inputs, as they do outside of these tests after a few changes."""
    del life
    runner._MAX_REFREEZES = draw.below(3)


def collect_garbage(life: Life, draw: Draw) -> None:
    del draw
    life.kept.clear()
    gc.collect()


# ----------------------------------------------------------------------------------------- writes that torch does not count


def write_past_the_counter(life: Life, draw: Draw) -> None:
    weight = _weight(life, draw)
    _write(weight.data, _new_values(weight, draw), draw)


def write_through_numpy(life: Life, draw: Draw) -> None:
    weight = _weight(life, draw)
    if weight.dtype != torch.bfloat16:  # numpy has no such type
        weight.detach().numpy()[...] = _new_values(weight, draw).numpy()


COUNTED: Steps = {step.__name__: step for step in (
    call, call_on_odd_memory, call_empty, call_under_autocast, call_from_threads, swap_while_threads_call, write_in_place,
    write_one_element, step_of_optimizer, write_buffer, set_data, load_state, swap_parameter, swap_tensors, share_memory,
    swap_submodule, change_dtype, channels_last, copy_module, parametrize_weight, prune_weight, toggle_gradient, toggle_training,
    compile_anew, collect_garbage, freeze_less,
)}  # fmt: skip
UNCOUNTED: Steps = {step.__name__: step for step in (write_past_the_counter, write_through_numpy)}
