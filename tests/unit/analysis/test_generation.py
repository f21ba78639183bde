"""Roles of graphs, what steps take, and what a decode step does to its cache."""

from dataclasses import replace

import pytest

from ortlens.analysis.coverage import current_graphs
from ortlens.analysis.generation import first_token_ns, generation_of, steps_of, with_roles
from ortlens.analysis.ledger import CallTrace, GraphVisit, SteppedCall, StepReading
from ortlens.analysis.problems.advice import advice_of
from ortlens.analysis.problems.stream import findings_of, problems_of
from ortlens.trace.records import Break, Capture, Figures, Graph, Node, Recompile, Step
from ortlens.views.payload import payload_from_capture
from ortlens.views.rendering import mimebundle, summary
from ortlens.views.time_sentences import generate_ns, generation_sentences
from tests.unit.analysis.hand_made import graph, ledger, node

MODEL = "modeling_tiny.py"
KEYS = 6144
"""Bytes of a cache of 12 positions."""


def version(number: int, *, past: int = 0, dynamic: bool = False, of: str | None = None) -> Graph:
    """A version of `forward`; with a past, it takes a cache of so many bytes."""
    inputs, sizes = (("ids", "weight", "past"), (8, 4096, past)) if past else (("ids", "weight"), (96, 4096))
    known = {"inputs": inputs, "input_sizes": sizes, "weights": ("weight",), "dynamic_shapes": dynamic, "recompile_of": of}
    return graph(f"g{number}", compile_id=f"0/{number}", file=MODEL, line=5, node_count=2, op_count=2, partition_count=None, **known)


def nodes(graph_id: str, positions: int, *, write: str = "aten.cat.default", past: int = 0) -> tuple[Node, ...]:
    """An embedding of tokens, a new key, and what becomes of the cache."""
    grown = past if write != "aten.cat.default" else past + 512 * positions
    embedding = node("embedding", target="aten.embedding.default", shape=(1, positions, 64), inputs=("weight", "ids"))
    key = node("key", target="aten.mm.default", inputs=("embedding",), output_bytes=512 * positions)
    cache = node("cache", target=write, inputs=("past" if past else "zeros", "key"), output_bytes=grown, is_output=True)
    return tuple(replace(made, graph_id=graph_id, partition_id=None) for made in (embedding, key, cache))


def generating(write: str = "aten.cat.default") -> Capture:
    """A prefill of 12 positions, and a decode."""
    graphs = (version(0), version(1, past=KEYS, of="0/0"))
    return Capture(graphs=graphs, nodes=(*nodes("g0", 12), *nodes("g1", 1, write=write, past=KEYS)))


def sliding() -> Capture:
    """A decode that appends to a full window, attends to all of it, and returns the newest positions."""
    capture = generating()
    *others, made = capture.nodes
    key = replace(others[-1], items=("key",), item_sizes=(512,))
    kept = replace(made, node="kept", target="aten.slice.Tensor", inputs=("cache",), output_bytes=KEYS)
    return replace(capture, nodes=(*others[:-1], key, replace(made, is_output=False), kept))


def roles(capture: Capture) -> dict[str, str | None]:
    return {graph.graph_id: graph.role for graph in with_roles(capture).graphs}


def test_a_graph_that_takes_a_cache_and_computes_one_position_is_decode() -> None:
    assert roles(generating()) == {"g0": "prefill", "g1": "decode"}
    of_a_decoder = Capture(graphs=(version(0), version(1, past=KEYS)), nodes=(*nodes("g0", 1), *nodes("g1", 1, past=KEYS)))
    assert roles(of_a_decoder) == {"g0": "prefill", "g1": "decode"}, "its first step has one position"
    without_a_cache = Capture(graphs=(version(0), version(1)), nodes=(*nodes("g0", 12), *nodes("g1", 1)))
    assert roles(without_a_cache) == {"g0": None, "g1": None}
    assert generation_of(with_roles(without_a_cache)) is None


def test_what_gives_a_role_otherwise() -> None:
    """A window of the cache that is returned, or, under another backend, the steps that enter the graph."""
    steps = (Step(role="prefill", graph_ids=("g0",)), Step(role="decode", graph_ids=("g1",)))
    for capture in (sliding(), replace(generating(), nodes=(), steps=steps)):
        assert roles(capture) == {"g0": "prefill", "g1": "decode"}


def test_decode_does_not_replace_prefill() -> None:
    assert [graph.graph_id for graph in current_graphs(with_roles(generating()))] == ["g0", "g1"]


def recompile(number: int, guard: str) -> Recompile:
    ids = {"compile_id": f"0/{number}", "of_compile_id": f"0/{number - 1}"}
    return Recompile(**ids, function="forward", file=MODEL, line=5, guard=guard, reason=guard)  # type: ignore[arg-type]  # by name


def versions(count: int, *, dynamic: bool = False) -> Capture:
    """A prefill, and so many versions of decode."""
    graphs = (version(0), *(version(n, past=KEYS, dynamic=dynamic and n > 1, of=f"0/{n - 1}") for n in range(1, count + 1)))
    made = [node for n in range(1, count + 1) for node in nodes(f"g{n}", 1, past=KEYS)]
    again = [recompile(n, "tensor 'past' size mismatch at index 2") for n in range(2, count + 1)]
    first = recompile(1, "len(kwargs) == 6")
    return with_roles(Capture(graphs=graphs, nodes=(*nodes("g0", 12), *made), recompiles=(first, *again)))


def kinds(capture: Capture) -> list[str]:
    return [advice.kind for item in capture.recompiles if (advice := advice_of(capture)[item])]


def past_the_limit() -> Capture:
    """A recompile per token."""
    capture = versions(7)
    refused = {"refused_guard": capture.recompiles[-1].guard, "refused_reason": capture.recompiles[-1].reason, "occurrences": 9}
    place = {"file": MODEL, "line": 5, "function": "forward", "compile_ids": ("0/8",)}
    reason = {"reason": "Dynamo recompile limit exceeded", "explanation": "recompile_limit reached"}
    return replace(capture, breaks=(Break(break_id="b0", **reason, **place, **refused),))  # type: ignore[arg-type]  # by name


def guarded(guard: str) -> Capture:
    capture = versions(2)
    return with_roles(replace(capture, recompiles=(capture.recompiles[0], recompile(2, guard))))


@pytest.mark.parametrize(
    ("capture", "kind", "looks"),
    [
        (versions(2, dynamic=True), "expected_other_sizes", []),  # decode after prefill, and a version for all sizes
        (versions(3), "compile_dynamic", ["recompile"]),  # no advice to mark what generate makes, nor to change its cache
        (guarded("tensor 'kwargs['past_key_values'].layers[0].keys' stride mismatch at index 0"), "expected_layout", []),
        (guarded("2 <= kwargs['past_key_values'].layers[0].keys.size()[2] <= 21"), "expected_limit", []),
        (guarded("2 <= kwargs['past_key_values'].layers[0].cumulative_length <= 21"), "expected_limit", []),
        (past_the_limit(), "compile_dynamic", ["break"]),  # one item
    ],
)
def test_what_generate_does_is_no_fault_of_its_user(capture: Capture, kind: str, looks: list[str]) -> None:
    assert (kinds(capture)[0], kinds(capture)[-1]) == ("expected_role", kind)
    assert [look.kind for look in problems_of(capture)[:3]] == looks
    assert findings_of(capture) == ()


def step(started: int, ended: int, rows: int, positions: int) -> StepReading:
    return StepReading(apart=None, started_ns=started, ended_ns=ended, rows=rows, positions=positions)


def call(*readings: StepReading, wall: int, visits: tuple[GraphVisit, ...] = ()) -> CallTrace:
    return CallTrace(started_ns=0, ended_ns=wall, visits=visits, steps=readings)


def test_steps_add_up_to_the_call() -> None:
    entered = (("g9", 11), ("g0", 21), ("g1", 41), ("g1", 61))
    visits = tuple(GraphVisit(graph_id=name, entered_ns=at, left_ns=at + 5) for name, at in entered)
    # An encoder; the first of the decoder, which has no cache yet; two more.
    readings = (step(10, 20, 2, 12)._replace(apart="encode"), step(20, 40, 2, 1), step(40, 55, 2, 1), step(60, 75, 2, 1))
    plain = SteppedCall(200, (step(0, 50, 2, 1), step(50, 110, 2, 1)))

    steps = steps_of([call(*readings, wall=100, visits=visits)], [plain])

    assert [(step.role, step.calls, step.tokens, step.ns, step.uncompiled_ns, step.graph_ids) for step in steps] == [
        ("encode", 1, 24, 10, 0, ("g9",)),
        ("prefill", 1, 2, 20, 50, ("g0",)),
        ("decode", 2, 4, 30, 60, ("g1",)),
        ("python", 0, 0, 40, 90, ()),
    ]
    assert first_token_ns([call(step(2, 12, 1, 4), step(12, 20, 1, 4), wall=20)]) == 12
    (prefill, _) = steps_of([call(step(0, 10, 1, 4), step(10, 20, 1, 4), wall=20)], [])
    assert (prefill.role, prefill.calls, prefill.tokens, prefill.uncompiled_ns) == ("prefill", 2, 8, None)
    assert steps_of([call(wall=10)], []) == ()


def test_every_view_speaks_of_generation_where_one_was_seen() -> None:
    capture = with_roles(generating())
    said = generation_sentences(capture)
    assert said
    assert list(payload_from_capture(capture)["overview"]["answers"]["generation"]) == list(said)
    for view in (lambda shown: " ".join(summary(shown).split()), lambda shown: mimebundle(lambda: shown)["text/html"]):
        assert all(sentence in view(capture) for sentence in said)
        assert not any(sentence in view(generating()) for sentence in said)


AROUND = Capture(ledger=ledger(run=40, eager=50, residual=10), steps=(Step(role="decode", ns=70), Step(role="python", ns=30)))
RATES = Capture(
    steps=(
        Step(role="prefill", calls=1, tokens=12, ns=2_000_000, uncompiled_ns=1_000_000),
        Step(role="decode", calls=9, tokens=18, ns=9_000_000),
        Step(role="python", ns=9_000_000, uncompiled_ns=8_000_000),
    )
)


def test_python_of_generate_is_part_of_the_time_of_a_call() -> None:
    assert generate_ns(AROUND) == 30


WORDED: tuple[Capture, ...] = (
    *(
        with_roles(made)
        for made in (
            generating(),
            generating(write="aten.index_put.default"),
            generating(write="aten.index_put_.default"),
            generating(write="aten.copy.default"),
            sliding(),
        )
    ),
    versions(1),
    versions(3),
    replace(versions(3), graphs=()),
    past_the_limit(),
    RATES,
    AROUND,
    replace(RATES, figures=Figures(first_token_ns=2_500_000, cache_bytes=6_144, cache_copied_bytes=6_144, cache_new_bytes=512)),
)
"""Captures whose generation is spoken of differently."""
