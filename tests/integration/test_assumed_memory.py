"""What a trace assumed about memory: frozen callables and exported programs do what PyTorch does or refuse the call."""

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import ortlens
from ortlens import OrtBackend
from ortlens.errors import UsageError

Tensors = tuple[Any, ...]


class Wrapped(nn.Module):
    """A function as a module, with a buffer and a weight."""

    c: torch.Tensor

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.c = nn.Buffer(torch.arange(12.0).reshape(3, 4))
        self.w = nn.Parameter(torch.ones(3, 4))

    def forward(self, *args: Any) -> Any:  # noqa: ANN401 - of any structure
        return self.function(self, *args)


def frozen(function: Callable[..., Any], *args: Any) -> Callable[..., Any]:  # noqa: ANN401 - likewise
    return ortlens.freeze(function, *args)


def sized(function: Callable[..., Any], *args: Any) -> Callable[..., Any]:  # noqa: ANN401 - likewise
    return ortlens.freeze(function, *args, dynamic=True)


def exported(function: Callable[..., Any], *args: Any) -> Callable[..., Any]:  # noqa: ANN401 - likewise
    module = Wrapped(lambda _, *given: function(*given))
    return OrtBackend().compile_program(torch.export.export(module, args, strict=False))


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def turned() -> torch.Tensor:
    return numbers(4, 3).t()


def step(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(1)
    return a + b


def nested(a: dict[str, list[torch.Tensor]], b: torch.Tensor) -> torch.Tensor:
    a["x"][0].add_(b)
    return a["x"][1] * b


def write_through_reshape(x: torch.Tensor) -> torch.Tensor:
    x.reshape(-1)[::2].add_(10)
    return x * 1


def write_to_own(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.reshape(-1).add_(1)
    return y


def write_to_row(x: torch.Tensor) -> torch.Tensor:
    x[0] = 5
    return x * 2


def write_under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        x.reshape(-1).add_(1)
    return x * 2


def twice(make: Callable[[torch.Tensor], Tensors], size: int = 8) -> Callable[[], Tensors]:
    return lambda: make(numbers(size))


def complex_numbers() -> torch.Tensor:
    return torch.complex(numbers(3, 4), numbers(3, 4) + 1)


PAIR = lambda: (numbers(4), numbers(4))  # noqa: E731 - a line of the table
ONE = lambda: (numbers(3, 4),)  # noqa: E731 - likewise
CALLS: dict[str, tuple[Callable[..., Any], Callable[[], Tensors], Callable[[], Tensors], bool]] = {
    "one tensor twice": (step, PAIR, twice(lambda t: (t[:4], t[:4])), False),
    "partial overlap": (step, PAIR, twice(lambda t: (t[:4], t[2:6])), False),
    "overlap the other way": (step, PAIR, twice(lambda t: (t[2:6], t[:4])), False),
    "halves of one tensor": (step, PAIR, twice(lambda t: (t[:4], t[4:])), True),
    "one between the other": (step, PAIR, twice(lambda t: (t[::2], t[1::2])), True),
    "interleaved overlap": (step, PAIR, twice(lambda t: (t[::2], t[:4])), False),
    "nested": (nested, lambda: ({"x": [numbers(4), numbers(4)]}, numbers(4)), twice(lambda t: ({"x": [t[:4], t[4:]]}, t[4:])), True),
    "nested alias": (nested, lambda: ({"x": [numbers(4), numbers(4)]}, numbers(4)), twice(lambda t: ({"x": [t[:4], t[:4]]}, t[4:])), False),
    "nothing is written": (lambda a, b: a * b, PAIR, twice(lambda t: (t[:4], t[:4])), True),
    "expanded": (step, PAIR, lambda: (torch.zeros(1).expand(4), numbers(4)), False),
    "expanded rows": (write_to_row, ONE, lambda: (numbers(1, 4).expand(3, 4),), False),
    "write through a reshape": (write_through_reshape, ONE, lambda: (turned(),), False),
    "traced with a copy": (write_through_reshape, lambda: (turned(),), ONE, False),
    "as it was traced": (write_through_reshape, lambda: (turned(),), lambda: (turned(),), True),
    "reshape returned": (lambda x: x.reshape(-1), ONE, lambda: (turned(),), False),
    "flatten returned": (lambda x: torch.flatten(x, 0), ONE, lambda: (turned(),), False),
    "still a view": (lambda x: x.reshape(3, 2, 2), ONE, lambda: (numbers(3, 8)[:, :4],), True),
    "contiguous returned": (lambda x: x.contiguous(), ONE, lambda: (turned(),), False),
    "write through contiguous": (lambda x: (x.contiguous().add_(1), x.sum())[1], ONE, lambda: (turned(),), False),
    "memory format": (
        lambda x: (x.to(memory_format=torch.channels_last), x * 2),
        lambda: (numbers(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),),
        lambda: (numbers(2, 3, 4, 5),),
        False,
    ),
    "write to a value": (write_to_own, ONE, lambda: (turned(),), False),
    "within another graph": (write_under_autocast, ONE, lambda: (turned(),), False),
    "only values": (lambda x: x.reshape(-1) * 2, ONE, lambda: (turned(),), True),
    "plain views": (lambda x: (x.t(), x[0], x.unsqueeze(0)), ONE, lambda: (turned(),), True),
    "write to plain views": (write_to_row, ONE, lambda: (turned(),), True),
    "as_strided": (lambda x: x.as_strided((3,), (2,)) * 1, ONE, lambda: (turned(),), False),
    "view": (lambda x: x.view(-1) * 2, ONE, lambda: (turned(),), False),
    "view of a view": (lambda x: x[1:].view(-1)[::2].add_(1), ONE, lambda: (numbers(3, 8)[:, :4],), False),
    "unflatten": (lambda x: x.t().unflatten(1, (3, -1)) * 2, ONE, lambda: (turned(),), True),
    "view_as_complex": (lambda x: torch.view_as_complex(x.view(3, 2, 2)).real * 2, ONE, lambda: (numbers(3, 7)[:, 3:],), False),
    "view by a size": (lambda x: x.view(x.shape[0], 2, -1) * 2, ONE, lambda: (numbers(3, 8)[:, :4],), True),
    "reshape by a size": (lambda x: x.reshape(x.shape[0], 2, -1), ONE, lambda: (numbers(3, 8)[:, :4],), True),
    "view of padded rows": (lambda x: x.view(3, 2, 2) * 2, lambda: (numbers(3, 8)[:, :4],), lambda: (numbers(3, 6)[:, 2:],), True),
    "negative view": (write_to_row, ONE, lambda: (complex_numbers().conj().imag,), True),
    "part of a conjugate view": (lambda x: (x.imag, x.real[1:]), lambda: (complex_numbers(),), lambda: (complex_numbers().conj(),), True),
    "conjugate view": (lambda x: x.real + 1, lambda: (complex_numbers(),), lambda: (complex_numbers().conj(),), True),
}
"""A function, the arguments of tracing and those of a call, and whether the call is answered."""


VARYING = {"one tensor twice", "view", "still a view", "write through a reshape", "reshape returned", "unflatten"}
VARYING |= {"view by a size", "reshape by a size", "as_strided", "expanded rows", "traced with a copy"}
EXPORTED = {"one tensor twice", "halves of one tensor", "interleaved overlap", "nested alias", "expanded", "write through a reshape"}
EXPORTED |= {"as it was traced", "reshape returned", "memory format", "within another graph", "view", "view by a size", "plain views"}
EXPORTED |= {"view_as_complex", "negative view", "conjugate view", "write to a value"}


@pytest.mark.parametrize(
    ("road", "names"), [(frozen, set(CALLS)), (sized, VARYING), (sized, {"view of padded rows"}), (exported, EXPORTED)]
)
def test_a_call_does_what_pytorch_does_or_is_refused(road: Callable[..., Any], names: set[str]) -> None:
    """All functions are one program, of which each call gives one function other arguments."""
    calls = {name: call for name, call in CALLS.items() if name in names}
    programs = list(dict.fromkeys((function, traced) for function, traced, _, _ in calls.values()))

    def function(*given: Tensors) -> list[Any]:
        return [program(*args) for (program, _), args in zip(programs, given, strict=True)]

    compiled = road(function, *(traced() for _, traced in programs))
    for name, (*changed, called, answered) in calls.items():
        ours, theirs = ([called() if program == tuple(changed) else program[1]() for program in programs] for _ in range(2))
        if not answered:
            with pytest.raises(UsageError, match=r"shares? memory|of tracing"):
                compiled(*ours)
            torch.testing.assert_close(_pytree.tree_leaves(ours), _pytree.tree_leaves(theirs))  # nothing was written
            continue
        for _ in range(2):
            torch.testing.assert_close(compiled(*ours), function(*theirs), msg=partial("{}: {}".format, name))
            torch.testing.assert_close(_pytree.tree_leaves(ours), _pytree.tree_leaves(theirs))


@pytest.mark.parametrize(
    "ask", [lambda x: x.is_contiguous(), lambda x: x.stride(0) == 4, lambda x: x.storage_offset() == 0, lambda x: (x * 2).is_contiguous()]
)
def test_a_branch_on_the_layout_is_part_of_the_signature(ask: Callable[[torch.Tensor], bool]) -> None:
    call = ortlens.freeze(lambda x: x + 1 if ask(x) else x - 1, numbers(3, 4))
    torch.testing.assert_close(call(numbers(3, 4)), numbers(3, 4) + 1)
    with pytest.raises(UsageError, match=r"x: expected the strides \(4, 1\)"):
        call(torch.zeros(24).as_strided((3, 4), (1, 6), 3))


def add(module: Wrapped, x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    module.c.add_(1)
    return x + module.c + module.w


def test_arguments_that_are_weights_or_state() -> None:
    model = Wrapped(add)
    call = ortlens.freeze(model, numbers(3, 4))
    for x in (call.state["c"], model.w.detach()):
        with pytest.raises(UsageError, match=r"shares memory with (c|w)"):
            call(x)
    program = torch.export.export(model, (numbers(3, 4),), strict=False)
    with pytest.raises(UsageError, match="shares memory with w"):
        OrtBackend().compile_program(program)(model.w.detach())


def write_to_windows(x: torch.Tensor) -> torch.Tensor:
    x[..., 0].sub_(2)
    x.transpose(0, 2)[1, 1:].mul_(3)
    return x * 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_written_argument_that_overlaps_itself(*, dynamic: bool) -> None:
    lens = ortlens.Lens()
    fast = torch.compile(write_to_windows, backend=lens, dynamic=dynamic)
    ours, theirs = numbers(5, 4), numbers(5, 4)
    torch.testing.assert_close(fast(ours.unfold(0, 2, 1)), write_to_windows(theirs.unfold(0, 2, 1)))
    torch.testing.assert_close(ours, theirs)
    assert lens.fallbacks["reason"].str.contains("writes into a tensor whose elements share memory").any()
    assert lens.graphs.coverage.gt(0).all()


def test_state_that_is_no_buffer_is_refused() -> None:
    model = Wrapped(lambda m, x: (m.c.add_(1), m.d.add_(1), x)[2])
    model.d = model.c[1:]
    with pytest.raises(UsageError, match="writes to a tensor that is neither an argument nor a parameter or buffer, 'd'"):
        ortlens.freeze(model, numbers(3, 4))


@pytest.mark.parametrize("dynamic", [None, True])
def test_examples_may_overlap(*, dynamic: bool | None) -> None:
    t = numbers(4)
    call = ortlens.freeze(step, t, t, dynamic=dynamic, fallback=None if dynamic else step)
    torch.testing.assert_close(call(*PAIR()), step(*PAIR()))
    if dynamic:
        with pytest.raises(UsageError, match="b shares memory with a"):
            call(t, t)
    else:
        torch.testing.assert_close(call(t, t), 2 * (numbers(4) + 1))
    x = numbers(0, 8)[None].expand(3, 0, 8)  # without elements
    call = ortlens.freeze(lambda a, b: (b.add_(1), a * 2)[1], x, x.movedim(-1, 0), dynamic=dynamic)
    assert call(torch.zeros(3, 0, 8), torch.zeros(8, 3, 0)).shape == (3, 0, 8)


def sharing(tensors: list[torch.Tensor]) -> list[tuple[int, ...]]:
    """For each tensor, those in whose storage it lies, and where."""
    return [(*(int(x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()) for y in tensors), *x.stride()) for x in tensors]


RESULTS: dict[str, Callable[..., Any]] = {
    "a value and its views, an argument and its views": lambda _, x: (x, x.t(), x[0], y := x * 2, y.view(-1), y, x.view(2, 2, 3)),
    "flatten": lambda _, x: torch.flatten(x),
    "written and returned": lambda _, x: (x.add_(1), x, x.t(), x[0].view(2, 2), x.reshape(-1).view(torch.int32)),
    "equal, not the same": lambda _, x: (y := x + 1, x.copy_(y))[0],
    "written and broadcast": lambda m, x: (*torch.broadcast_tensors(m.c.add_(1), m.c), torch.atleast_3d(x.mul_(2)), x),
    "product": lambda _, x: torch.einsum("ij,jk->ik", x.add_(1), x.t()),
    "state": lambda m, x: (m.c.add_(x)[0], m.c, m.c.t(), x * 2),
    "unchanged state": lambda m, x: (m.c[0], m.c, x),
}


def test_results_share_memory_as_pytorchs_do() -> None:
    source = Wrapped(lambda whole, *given: [part(x) for part, x in zip(whole.parts, given, strict=True)])
    source.parts = nn.ModuleList(map(Wrapped, RESULTS.values()))
    args = tuple(numbers(3, 4) for _ in RESULTS)
    program = torch.export.export(copy.deepcopy(source), args, strict=False)
    compiled, call, plain = OrtBackend().compile_program(program), ortlens.freeze(source, *args), copy.deepcopy(source)
    ways: list[Callable[..., Any]] = [plain, compiled, call]
    for _ in range(2):
        given = [[torch.zeros(20)[4:16].view(3, 4) for _ in RESULTS] for _ in ways]
        with torch.no_grad():
            made = [run(*xs) for run, xs in zip(ways, given, strict=True)]
        for place, name in enumerate(RESULTS):
            expected, ours, apart = ([xs[place], *_pytree.tree_leaves(results[place])] for xs, results in zip(given, made, strict=True))
            torch.testing.assert_close([ours, apart], [expected] * 2)
            state = f"parts.{place}.c"
            assert sharing([*ours, program.state_dict[state]]) == sharing([*expected, plain.get_buffer(state)]), name
            assert sharing(apart) == sharing(expected), name
            own = call.state[state].untyped_storage().data_ptr() if state in call.state else None
            assert not any(x.untyped_storage().data_ptr() == own for x in apart), name


def test_examples_of_an_export_may_overlap() -> None:
    class Filled(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y[:1].fill_(3)
            return x.unsqueeze(-1) * 2, y + x[1:]

    x = numbers(3, 4)
    call = OrtBackend().compile_program(torch.export.export(Filled(), (x, x[1:]), strict=False))
    with pytest.raises(UsageError, match=r"clone\(\)"):
        call(x, x[1:])
    given, expected = (x.clone(), x[1:].clone()), (x.clone(), x[1:].clone())
    torch.testing.assert_close(call(*given), Filled()(*expected))
    torch.testing.assert_close(given, expected)


def places(tensors: list[torch.Tensor]) -> list[tuple[Any, ...]]:
    """How tensors lie in memory, and whether in that of the first one."""
    return [(*sharing([tensors[0], x])[1], x.storage_offset(), x.is_neg(), x.is_conj(), x is tensors[0]) for x in tensors]


SIGNED: dict[str, Callable[[], torch.Tensor]] = {
    "negative": lambda: complex_numbers().conj().imag,
    "negative and transposed": lambda: torch.complex(turned(), turned()).conj().imag,
    "conjugate": lambda: complex_numbers().conj(),
    "every other of a conjugate": lambda: torch.complex(numbers(3, 8), numbers(3, 8) + 1).conj()[:, ::2],
}
ITSELF: dict[str, Callable[[torch.Tensor], Any]] = {
    "argument": lambda x: x,
    "argument and value": lambda x: (x, x.sum(), x),
    "views": lambda x: (x.t(), x[1:], x.unsqueeze(0), x.reshape(3, 2, 2), x.view(3, 2, 2), x.sum()),
    "written": lambda x: (x.mul_(2), x.t(), x[1:]),
    "out=": lambda x: torch.add(x, 1, out=x),
}


@pytest.mark.parametrize("road", [frozen, sized, exported])
def test_a_result_that_is_an_argument_with_another_sign_in_memory(road: Callable[..., Any]) -> None:
    functions = [function for name, function in ITSELF.items() if road is not sized or name in ("views", "written")]

    def function(*given: torch.Tensor) -> list[Any]:
        return [function(x) for function, x in zip(functions, given, strict=True)]

    calls = {False: road(function, *(numbers(3, 4) for _ in functions)), True: road(function, *(complex_numbers() for _ in functions))}
    for make in (*SIGNED.values(), *SIGNED.values()):
        ours, theirs = ([make() for _ in functions] for _ in range(2))
        for x, result, y, expected in zip(ours, calls[ours[0].is_complex()](*ours), theirs, function(*theirs), strict=True):
            got, wanted = [x, *_pytree.tree_leaves(result)], [y, *_pytree.tree_leaves(expected)]
            torch.testing.assert_close(got, wanted)
            given = [place for place, item in enumerate(wanted) if place == 0 or item.dim() > 0]
            assert places([got[place] for place in given]) == places([wanted[place] for place in given])


STATES: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: numbers(4, 3).t(),
    "with gaps": lambda: numbers(3, 8)[:, ::2],
    "with an offset": lambda: numbers(20)[4:16].view(3, 4),
    "with an offset and gaps": lambda: numbers(40)[4:28].view(3, 8)[:, ::2],
}
UPDATES: dict[str, Callable[..., Any]] = {
    "out=": lambda m, x: torch.add(x, 1, out=m.c),
    "cumsum into": lambda m, x: torch.cumsum(x, 0, out=m.c),
    "masked_scatter_": lambda m, x: m.c.masked_scatter_(x > 3, x * 2),
    "masked_fill_": lambda m, x: m.c.masked_fill_(x > 3, 2.0),
    "a row": lambda m, x: m.c[1:].add_(x[1:]),
    "two views": lambda m, x: (m.c.mul_(x), m.c.t(), m.c[1], x * 2),
    "its gaps": lambda m, x: (m.c.as_strided((2,), (3,), 5) * 2, m.c.add_(x), m.c),
    "its storage": lambda m, x: (m.c.add_(x), m.c.as_strided((3,), (1,), m.c.storage_offset() + 1))[1],
}


def test_state_lies_in_memory_as_that_of_the_source() -> None:
    sources = [Wrapped(update) for update in UPDATES.values() for _ in STATES]
    for source, make in zip(sources, itertools.cycle(STATES.values()), strict=False):
        source.c = nn.Buffer(make())
    whole = Wrapped(lambda _, x: [source(x) for source in sources])
    whole.sources = nn.ModuleList(sources)
    call = ortlens.freeze(whole, numbers(3, 4))
    state = [call.state[f"sources.{place}.c"] for place in range(len(sources))]
    for _ in range(2):
        with torch.no_grad():
            results = call(numbers(3, 4) + 1), whole(numbers(3, 4) + 1)
        for place, (source, *pair) in enumerate(zip(sources, *results, strict=True)):
            got, wanted = (list(_pytree.tree_leaves(made)) for made in pair)
            torch.testing.assert_close([state[place], *got], [source.c, *wanted])
            assert call.state[f"sources.{place}.c"] is state[place]
            assert places([state[place]])[0] == places([source.c])[0]
            assert sharing(got) == sharing(wanted)


def test_verify_finds_nothing_wrong_with_a_view_that_a_program_returns() -> None:
    program = torch.export.export(Wrapped(lambda _, x: (torch.flatten(x), x * 2)), (numbers(3, 4),), strict=False)
    numerics = ortlens.explain(program, calls=1)(numbers(3, 4)).verify(numbers(3, 4))
    assert numerics["ok"].all()
    assert not numerics["first_divergence"].any()


def test_a_buffer_that_was_replaced_is_no_result() -> None:
    def replace(module: Wrapped, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old = module.c
        module.c = module.c + x
        return old[0], module.c

    with pytest.raises(UsageError, match="return a clone"):
        ortlens.freeze(Wrapped(replace), numbers(3, 4))


def in_place(module: Wrapped, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    module.c += 1
    doubled, part = module.c * 2, module.c[:1]
    module.c *= x
    return x + module.c, doubled, part, module.c


def test_a_buffer_that_an_augmented_assignment_writes_is_the_same_tensor() -> None:
    plain, frozen = Wrapped(in_place), ortlens.freeze(Wrapped(in_place), numbers(3, 4))
    for step in range(3):
        x = numbers(3, 4) - step
        torch.testing.assert_close(frozen(x), plain(x), rtol=0, atol=0)
    torch.testing.assert_close(frozen.state["c"], plain.c)


def test_autocast_of_the_caller_changes_nothing() -> None:
    x = torch.randn(4, 4)
    call = ortlens.freeze(lambda x: torch.linalg.svdvals(x) @ x, x, options={"min_partition_nodes": 100})
    expected = call(x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(call(x), expected)


def test_sizes_that_follow_from_those_of_a_base_need_a_view() -> None:
    class Flat(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rest: torch.Tensor = x.split([1, x.shape[0] - 1], 0)[1]
            return rest.reshape(rest.shape[0] * rest.shape[1])

    view = torch.randn(6, 6)[:, 1:]
    frozen = ortlens.freeze(Flat(), view, dynamic=True, fallback=Flat())
    torch.testing.assert_close(frozen(view.contiguous()), Flat()(view))
    with pytest.raises(UsageError, match=r"expected a view of another tensor"):
        ortlens.freeze(Flat(), view, dynamic=True)(view.contiguous())
