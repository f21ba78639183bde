"""Advice for breaks and recompiles that two versions of torch recorded, and for others; test_wording.py asserts the sentences."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortlens.analysis.problems import advice, break_rules, guards, splitting, stream
from ortlens.analysis.problems.advice import advice_for_break, advice_of, advised, hint_for, line_after
from ortlens.analysis.problems.catalogue import SENTENCES, Advice, advise
from ortlens.analysis.problems.guards import advice_for_recompile, recompile_traits, user_name
from ortlens.analysis.problems.number_uses import LATER, Flow, Use, flow_from, use_of_number
from ortlens.analysis.problems.stream import problems_of
from ortlens.lens.observing.break_texts import break_from_text, is_break, recompile_from_text
from ortlens.trace.records import Break, Capture, ReasonCode, Recompile
from ortlens.views.redaction import redacted_capture
from tests.unit.analysis.hand_made import clean, fallback, graph

FOLDER = Path(__file__).parents[2] / "data" / "dynamo_texts"
VERSIONS = ("2.13", "2.15")
TEXTS = {version: json.loads((FOLDER / f"advice-{version}.json").read_text(encoding="utf-8")) for version in VERSIONS}
MODEL = "/home/ada/model.py"
SOURCE = (FOLDER / "record.py").read_text(encoding="utf-8").splitlines()


def broken(text: str) -> Break:
    said = break_from_text(text)
    mine = said.line is not None and said.file == MODEL
    source = SOURCE[said.line - 1].strip() if mine and said.line else None
    return Break(break_id="b0", gb_id=said.gb_id, reason=said.reason, explanation=said.explanation, hints=said.hints, source=source)


def recompiled(text: str) -> Recompile:
    said = recompile_from_text(text)
    assert said is not None
    return Recompile(compile_id="0/1", guard=said.guard, reason=said.reason, values=said.values)


def recorded() -> Iterator[tuple[str, str, Advice | None]]:
    """Yield version, subject and advice of everything that was recorded."""
    for version, texts in TEXTS.items():
        for name, each in texts["breaks"].items():
            yield from ((version, f"break {name}", advice_for_break(broken(text))) for text in each if is_break(text))
        for name, each in texts["recompiles"].items():
            item = recompiled(each[-1])
            yield version, f"recompile {name}, {item.values}", advice_for_recompile(item)


ITEM = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
SKIPPED = "Attempted to call function marked as skipped"
MARKED = "Dynamo developers have intentionally marked that the function `{}` in file `x.py` should not be traced."
URANDOM = "Dynamo does not know how to trace the builtin `posix.urandom.` This function is ... a third-party C/C++ Python extension"
SETATTR = "setattr() on unsupported type"
LOWERING = "Backend compiler `ortlens` failed with aten._local_scalar_dense.default. Adding a graph break."
CONSUMED = "autograd.grad consumed returned tensor's grad_fn"
USED_UP = "torch.autograd.grad() consumes grad_fns. The following returned tensors have consumed grad_fns: loss"
BRANCHING = "Data-dependent branching"
LOCAL_SCALAR = "Operator `aten._local_scalar_dense.default` has a non-Tensor output whose value is dependent on the data."
PRINTED = "Dynamo does not know how to trace builtin operator `print`"
REORDERED = ("add the function to `torch._dynamo.config.reorderable_logging_functions`",)
SCALARS = "torch._dynamo.config.capture_scalar_outputs = True"

# What is done with a number decides: with the setting, compilation fails where it indexes a list, and a branch on it breaks all the same.
NUMBERS = (
    "return x * x.sum().item()",
    "y = y / float(y.norm())",
    "y = x[0].item() * 2",  # may become an index later
    "k = int(i)",
    "y = xs[x.item()]",
    "y = xs[int(x.sum())] * 2",
    "y = [x, x + 1][i.item()].sin()",
    "y = x[: n.item()]",
    "return y[:n].sin()",
    "for _ in range(n.item()):",
    "if x.max().item() > 1:",
    "y = 1.0 if bool(x.any()) else 2.0",
    "elif 0.5 in y:",
    'text = f"{x.item():.3f}"',
    "x.sum().item(),",
    ")",
)

# A number that a later line takes as a size cannot stay in a tensor.
AFTER_A_NUMBER = (
    "out = x.new_zeros(most, 4)",
    "rows = int(most) + 1\nout = x.new_zeros((rows, 4))",
    "y = xs[most]",
    "if most > 3:\n    x = x + 1",
    'print(f"{most} rows")',
    "y = math.sqrt(most) * x",
    "most = 3\nreturn x[:most]",
    "ids = torch.arange(most, device=x.device)",
    "mask = x.repeat(1, most)",
    "return x[:most]",
    "for i in range(most):",
    "return x * most",
    "ids = torch.arange(4)  # most",
    "ids = torch.arange(almost)",
)

# Symbolic sizes are not advised where the program decides by them.
SIZES = (
    ("rows, slot = torch.where(idx == e)", "out.index_add_(0, rows, expert(flat[rows]))"),
    ("rows, slot = torch.where(idx == e)", "if rows.numel():\n    out.index_add_(0, rows, y)"),
    ("rows = mask.nonzero()", "# if rows are few\nreturn x[rows]"),
    ("rows = mask.nonzero()", "for row in rows:\n    y += x[row]"),
    ("rows = mask.nonzero()", "return [x[i] for i in rows.tolist()]"),
    ("rows = mask.nonzero()", "for i in range(len(rows)):\n    pass"),
    ("if mask.nonzero().numel() > 3:", ""),
    ("return x[mask.nonzero()]", ""),
)


def flow_of(source: str, after: str) -> Flow:
    """What a function does with what its first line computes."""
    blocks = [f"{text}\n    pass" if text.endswith(":") else text for text in (source, *filter(None, [after]), "return x")]
    body = textwrap.indent("\n".join(blocks), "    ")
    found = flow_from([f"{line}\n" for line in f"def f(x):\n{body}".splitlines()], 2)
    assert found is not None
    return found


def stop(reason: str, source: str | None = None, **facts: Any) -> Break:  # noqa: ANN401 - fields have types of their own
    return Break(break_id="b", reason=reason, source=source, **facts)


PLAIN_BREAK = "Call to `torch._dynamo.graph_break()`"
IN_A_LIBRARY = ("/home/ada/model.py:3 forward", "/usr/lib/python3/uuid.py:723 uuid4")
UNKNOWN_METHOD = "Dynamo does not know how to trace method `set_runtime_stats_and_log` of class `Logger`"

OTHER_BREAKS = (
    stop(SKIPPED, explanation=MARKED.format("DistributedDataParallel._inside_ddp_forward")),
    stop("Unsupported method call", explanation=UNKNOWN_METHOD),
    stop(SKIPPED, "return torch._dynamo.disable(", explanation=MARKED.format("disable")),
    stop(SKIPPED, "torch._dynamo.disable(g)(x)", explanation=MARKED.format("disable"), function="f"),
    stop("`torch._dynamo.disable()` was called inside a compiled region", "y = block(x)"),  # by a hook of FSDP2
    stop("`torch._dynamo.disable()` was called inside a compiled region", "y = torch._dynamo.disable(g)(x)"),
    *(
        stop(reason, explanation="Dynamo does not say.")
        for reason in ("", "Something entirely new", "Observed exception", "Unsupported function call (delayed)")
    ),
    *map(stop, ("Failed to trace builtin operator", "Dynamic shape operator", "Unsupported method call", "marked as skipped")),
    stop("Could not guard on data-dependent expression u1 > u0", "u = pad(rows)"),
    stop(SETATTR, "RemovableHandle.next_id += 1", explanation="setattr() is not supported on type type"),
    stop(SETATTR, "Model.count = 3", explanation="setattr() is not supported on type type"),
    stop("Attempted to represent unregistered RemovableHandle", "handle.remove()"),
    stop("Backend compiler exception", "y = while_loop(going, step, (n, x))", explanation=LOWERING),
    stop("Backend compiler exception", "y = model(x)", explanation=LOWERING),
    # An index that is a tensor without dimensions fails in the backend.
    stop("Backend compiler exception", "w = math.exp(-self.steps[t])", explanation=LOWERING),
    stop("Backend compiler exception", "w = self.steps[t, 0]", explanation=LOWERING),
    *(
        stop("Attempted to wrap RNN, GRU, or LSTM", traits=(kind,))
        for kind in ("gru_in_inference", "gru_in_training", "lstm_in_inference", "lstm_in_training", "rnn_in_inference")
    ),
    # What a loop does decides, and what a line does as a whole: a number in it goes with the line.
    stop(ITEM, "i = order[0].item()", explanation="Tensor.item()", traits=("in_data_loop",)),
    stop("Data dependent operator", "for e in set(choice.tolist()):", explanation=LOCAL_SCALAR),
    stop("Data dependent operator", "w = math.exp(-self.steps[t])", explanation=LOCAL_SCALAR),
    stop("Data dependent operator", "w = math.floor(self.steps[t])", explanation=LOCAL_SCALAR),
    stop(ITEM, 'print("loss", y.sum().item())', explanation="Tensor.item()"),
    stop("Failed to trace builtin operator", 'print("loss", y.sum().item())', explanation=PRINTED, hints=REORDERED),
    stop("Failed to trace builtin operator", 'print("loss", y.sum())', explanation=PRINTED, hints=REORDERED),
    # What was tried: what helps is said to, what fails is left out.
    *(
        stop(ITEM, source, explanation="Tensor.item()", **{tried: (change,)})
        for source in ("y = x * x.sum().item()", "n = x.sum().item()")
        for tried in ("removed_by", "kept_despite")
        for change in ("keep_in_tensor", SCALARS)
    ),
    stop("Something entirely new", removed_by=(SCALARS,)),
    # A line of a library behind the user's is moved as a whole.
    stop(SKIPPED, "return UUID(bytes=os.urandom(16), version=4)", explanation=URANDOM, file=MODEL, line=3, user_stack=IN_A_LIBRARY),
    stop(SKIPPED, "seed = os.urandom(4)", explanation=URANDOM),
    stop(BRANCHING, "if torch.isnan(x).any(): raise ValueError(x)"),
    stop(BRANCHING, "if x.sum() > 0:  # never\n    raise ValueError(x)"),
    stop(BRANCHING, "assert x.all()"),
    stop(CONSUMED, explanation=USED_UP),
    stop(CONSUMED),
    # Only a break that the program itself asks for can be deleted.
    *(
        stop(PLAIN_BREAK, "torch._dynamo.graph_break()", file="m.py", line=3, function=name, user_stack=(at,))
        for name, at in (
            *((name, "m.py:3 f") for name in ("f", "_use_grad", "elsewhere_in_torch")),
            ("of_a_library", "site-packages/lib.py:8 of_a_library"),
        )
    ),
)

GUARDS = (
    # What is no argument cannot be passed.
    ("len(G['__import_einops_dot__backends']._type2backend) != 1", ()),
    ("list(dict.keys(G['TABLE'])) == ['a']", ()),
    ("___check_obj_id(G['work'].__code__, 140)", ()),
    ("self.mask is not None", ()),
    ("len(self.cache) == 2", ()),
    ("mask is not None", ()),
    ("___check_obj_id(self, 1396…), type=<class 'torch.optim.adam.Adam'>", ("<class 'Adam'>",)),
    ("G['settings'].rate == 2", ("2", "3")),
    # Advice that would not help is left out.
    ("n == 2", ("2", "3.5")),  # one graph takes one kind of number
    ("n == 5", ("5", "1")),  # 0 and 1 are constants all the same
    ("tensor 'x' size mismatch at index 2", ("4", "1")),
    ("tensor 'kwargs['mask']' size mismatch at index 1", ("4", "5")),
    ("tensor 'xs[0]' size mismatch at index 1", ("4", "5")),
    ("tensor 'kwargs['past_key_values'].layers[0].keys' size mismatch at index 2", ("7", "8")),
    ("tensor 'self.memory' size mismatch at index 2", ("7", "8")),
    ("tensor 'self._parameters['weight']' size mismatch at index 0", ("4", "8")),
    # Names of Dynamo's own are nobody's.
    ("tensor '___stack0' size mismatch at index 0", ("3", "4")),
    ("___stack1 == -54.88452911376953", ("-54.88452911376953", "2.5e-05")),
    ("Something entirely new", ()),
)

LIBRARY_GUARDS = (
    "pattern == 'b c -> c b'",
    "len(shape) == 3",
    "___check_obj_id(function, 140)",
    "mask is None",
    "self.training == True",
    "GLOBAL_STATE changed: grad_mode ",
    "2 <= x.size()[0]",
)


def other_advice() -> Iterator[tuple[str, Advice | None]]:
    """Yield subject and advice of what is made by hand above."""
    hints = ("Set `torch._dynamo.config.capture_scalar_outputs = True`",)
    for source in NUMBERS:
        yield f"break at `{source}`", advice_for_break(stop(ITEM, source, hints=hints))
    number = stop("Unsupported Tensor.item() call", "most = counts.amax().item()", explanation="Tensor.item()")
    for after in AFTER_A_NUMBER:
        traits = tuple(LATER[use] for use in flow_of(number.source or "", f"x = x * 2\n{after}").uses)
        yield f"break at `{number.source}; {after}`", advice_for_break(replace(number, traits=traits))
    hints = ("Enable tracing of dynamic shape operators with `torch._dynamo.config.capture_dynamic_output_shape_ops = True`",)
    shaped = "Operator `aten.nonzero.default`'s output shape depends on input Tensor data."
    sized = stop("Dynamic shape operator", explanation=shaped, hints=hints)
    for source, after in SIZES:
        traits = ("decides_by_size",) if flow_of(source, after).decides_by_size else ()
        yield f"break at `{source}; {after}`", advice_for_break(replace(sized, source=source, traits=traits))
    for item in OTHER_BREAKS:
        yield f"break `{item.reason}` at `{item.source}` in {item.function}", advice_for_break(item)
    for guard, values in GUARDS:
        yield f"recompile `{guard}`, {values}", advice_for_recompile(Recompile(compile_id="0/1", guard=guard, reason=guard, values=values))
    for guard in LIBRARY_GUARDS:
        library = Recompile(compile_id="0/1", guard=guard, reason=guard, values=("a", "b"), traits=("library_alone",))
        yield f"recompile of a library `{guard}`", advice_for_recompile(library)
    guard = "tensor 'input' size mismatch at index 1"
    mismatch = Recompile(compile_id="0/1", guard=guard, reason=guard, values=("4", "64"))

    def again(fixed: tuple[tuple[str, int], ...] = (), **facts: bool) -> Advice | None:
        known = {"is_dynamic": False, "in_library": False, **facts}
        return advice_for_recompile(replace(mismatch, traits=tuple(recompile_traits(guard, fixed, **known))))

    yield "recompile, constant elsewhere", again((("input", 0), ("other", 1)))
    yield "recompile, constant", again((("input", 1),))
    yield "recompile, library", again(in_library=True)
    yield "recompile, dynamic", again(is_dynamic=True)
    mismatch = replace(mismatch, values=("1", "64"))
    yield "recompile, dynamic library of size 1", again(is_dynamic=True, in_library=True)
    for item in LIMITS:
        yield f"limit at `{item.refused_guard}`", advice_for_break(item)


LIMITS = (
    stop(
        "Dynamo recompile limit exceeded",
        refused_guard="self.steps == 7  # self.steps += 1",
        refused_reason="self.steps == 7; allow_unspec_int_on_nn_module",
        refused_values=("6", "7", "8"),
    ),
    stop("Dynamo recompile limit exceeded", refused_reason="something"),
)


def test_every_sentence_is_one_line_and_names_no_address() -> None:
    told = {item.sentence() for *_, item in recorded() if item}
    assert len(told) > 50
    bad = {text for text in told if "\n" in text or text.endswith(".") or text.count("`") % 2 or " at 0x" in text or len(text) >= 240}
    assert bad == set()


def test_each_kind_of_advice_is_in_a_rule_and_each_in_a_rule_has_a_sentence() -> None:
    trees = [ast.parse(inspect.getsource(rules)) for rules in (advice, break_rules, guards, splitting, stream)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)} | {*get_args(ReasonCode), "draw_outside"}
    assert set(SENTENCES) - texts == {"draw_multinomial", "draw_bernoulli"}
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "advise"]
    named = {node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)}
    assert len(named) > 50
    assert named <= set(SENTENCES)


def kinds(capture: Capture) -> list[str | None]:
    items: tuple[Break | Recompile, ...] = (*capture.breaks, *capture.recompiles)
    return [known.kind if (known := advice_of(capture)[item]) else None for item in items]


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (("/lib/torch/optim/adam.py",), "expected_step"),
        (("C:\\lib\\torch\\optim\\adam.py",), "expected_step"),
        (("/lib/torch/optim/adam.py", "/a/m.py"), "move_optimiser_step"),
        ((), "move_optimiser_step"),
    ],
)
def test_a_step_is_to_be_moved_only_where_something_else_is_compiled_too(files: tuple[str, ...], kind: str) -> None:
    broken = stop(PLAIN_BREAK, "step()", stop_source="torch._dynamo.graph_break()", stop_function="_use_grad")
    graphs = tuple(graph(f"g{number}", file=file) for number, file in enumerate(files))
    capture = Capture(breaks=(broken,), graphs=graphs)
    assert kinds(capture) == [kind]
    assert len(problems_of(capture)[:3]) == (kind != "expected_step")


def test_what_was_advised_stays_where_its_facts_are_gone() -> None:
    broken = stop(BRANCHING, "if x.any():", stop_source="if x.any():\n    raise ValueError(x)", file="/a/m.py")
    guard = "tensor 'x' size mismatch at index 0"
    again = Recompile(compile_id="0/1", guard=guard, reason="r", values=("3", "4"), traits=("library_alone",))
    capture = advised(Capture(breaks=(broken,), recompiles=(again,)))
    assert advised(capture) is capture
    redacted = redacted_capture(capture)
    assert "raise" not in repr(redacted)
    for shown in (redacted, advised(redacted)):
        assert shown.breaks[0].advice == advise("check_outside").sentence()
        assert shown.recompiles[0].advice == advise("unbreak_caller").sentence()
    assert kinds(capture) == ["check_outside", "unbreak_caller"]
    assert kinds(redacted) == ["stored", "stored"]


def test_an_old_capture_gets_the_advice_of_today_where_it_has_the_facts() -> None:
    old = stop(BRANCHING, "y = a if x.any() else b", advice="Use `torch.cond`")
    taken = stop(ITEM, "n = x.item()", explanation="Tensor.item()", advice="Pass it as an int, since it is a size")
    capture = advised(Capture(breaks=(old, taken)))
    assert kinds(capture) == ["choose_with_where", "stored"]
    assert capture.breaks[1].advice == taken.advice


LOOP = """
def nms(boxes, scores):
    order, rounds = scores.argsort(), 0
    while order.numel() > 0:
        i = order[0].item()
        order = order[1:][iou(boxes[i], boxes[order[1:]]) < 0.5]
    while rounds < 3:
        n = scores.sum().item()
        rounds += 1
        if n > 3:
            continue
    return n
"""


@pytest.mark.parametrize(("line", "uses", "in_data_loop"), [(4, ("index",), True), (7, ("decides",), False), (40, None, None)])
def test_a_number_is_followed_through_its_function(line: int, uses: tuple[str, ...] | None, *, in_data_loop: bool | None) -> None:
    found = flow_from(LOOP.strip().splitlines(), line)
    assert (found and found.uses, found and found.in_data_loop) == (uses, in_data_loop)


@pytest.mark.parametrize(("line", "jumps"), [(4, False), (9, True)])
def test_a_branch_that_goes_on_with_the_loop_is_no_choice_of_values(line: int, *, jumps: bool) -> None:
    found = flow_from(LOOP.strip().splitlines(), line)
    assert found is not None
    assert found.jumps == jumps
    advice = advice_for_break(stop("Data-dependent branching", "if n > 3:", traits=("jumps",) if jumps else ()))
    assert (line_after("if n > 3:", advice) is None) == jumps


@pytest.mark.parametrize(
    ("source", "clauses"),
    [
        ("x = F.dropout(x, 0.1)", {"always"}),
        ("x = torch.nn.functional.dropout(x, p=0.1, training=True)", {"always"}),
        ("x = F.dropout(x, 0.1, True)", {"always"}),
        ("x = F.dropout(x, 0.1, self.training)", {"dropout"}),
        ("x = self.dropout(x)", {"dropout"}),
        ("return self.net(x)", set()),
        ("x = (", set()),
    ],
)
def test_only_dropout_that_eval_removes_is_said_to_go_with_it(source: str, clauses: set[str]) -> None:
    row = fallback("n", target="aten.native_dropout.default", reason_code="side_effect", reason="", source=source, cause="random")
    (problem,) = problems_of(clean(fallbacks=(row,)))
    assert problem.advice is not None
    assert problem.advice.params.keys() - {"target"} == clauses


def test_a_hint_that_was_tried_in_vain_or_is_for_makers_of_backends_is_not_passed_on() -> None:
    hints = ("Report an issue to the backend compiler repo.", f"Set `{SCALARS}`", "Rewrite it.")
    assert hint_for(stop("r", hints=hints)) == hints[1]
    assert hint_for(stop("r", hints=hints, kept_despite=(SCALARS,))) == hints[2]


def test_names_are_the_users() -> None:
    said = {
        "self._modules['layers']._modules['0']._parameters['weight']": "self.layers.0.weight",
        "G['scale']": "scale",
        "G['settings'].rate": "settings.rate",
        "G['net']._modules['drop'].p": "net.drop.p",
        "xs[0]['a']": "xs[0]['a']",
    }
    assert {text: user_name(text) for text in said} == said


@settings(max_examples=50)
@given(st.text(max_size=200), st.text(max_size=200), st.lists(st.text(max_size=20), max_size=3))
def test_any_text_at_all(reason: str, other: str, values: list[str]) -> None:
    for pattern in ("{}", "Failed to trace builtin operator {}", f"{{}} == {other}", "tensor '{}' size mismatch at index 3"):
        text = pattern.replace("{}", reason)
        given = (
            advice_for_break(stop(text, reason, explanation=other, hints=tuple(values))),
            advice_for_recompile(Recompile(compile_id="0/1", guard=text, reason=other, values=tuple(values))),
        )
        assert all(item.sentence() for item in given if item is not None)


def test_numbers_of_compilations_that_start_again_do_not_mix_advice_up() -> None:
    guards_of_two = ("n == 2.5", "len(xs) == 2")
    capture = Capture(recompiles=tuple(Recompile(compile_id="0/1", guard=guard, reason=guard) for guard in guards_of_two))
    assert kinds(capture) == ["pass_as_tensor", "same_count"]


def test_a_whole_training_step_gets_one_advice_for_all_its_breaks() -> None:
    """Taken from a function with `zero_grad`, `backward`, `step` and `item`."""
    texts = {
        5: ("Attempted to inline function marked as skipped", "step", "opt.zero_grad()"),
        7: ("Unsupported Tensor.backward() call", "step", "loss.backward()"),
        8: ("Call to `torch._dynamo.graph_break()`", "_use_grad", "torch._dynamo.graph_break()"),
        9: ("Unsupported Tensor.item() call with capture_scalar_outputs=False", "step", "return loss.item()"),
    }
    breaks = [
        Break(
            break_id=f"b{line}", reason=reason, file="own.py", line=line, function="step", source=stop, stop_source=stop, stop_function=name
        )
        for line, (reason, name, stop) in texts.items()
    ]
    elsewhere = replace(breaks[3], break_id="b", function="forward", stop_function="forward")

    def kinds(*rows: Break) -> list[str]:
        return [known.kind for known in advice_of(Capture(breaks=rows)).values() if known is not None]

    assert kinds(*breaks, elsewhere) == ["compile_forward_alone"] * 4 + ["keep_in_tensor"]
    assert "compile_forward_alone" not in kinds(*breaks[:2], breaks[3])
    assert len(problems_of(Capture(breaks=tuple(breaks)))[:3]) == 1


@pytest.mark.parametrize(
    ("source", "use"),
    [("t = t + iou(b[i][None], b[order[1:]]).sum()", "index"), ("y = x[:n]", "size"), ("y = x[1:-1] + x[0]", None)],
)
def test_a_slice_between_numbers_is_no_size_that_a_line_needs(source: str, use: Use | None) -> None:
    assert use_of_number(source) == use
