"""Advice derived from what three versions of torch really wrote; nothing where they do not say enough."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortlens.analysis.advice import advice_for_break
from ortlens.analysis.findings.complex_numbers import is_complex
from ortlens.analysis.guards import advice_for_limit, advice_for_recompile, user_name
from ortlens.lens.dynamo.break_texts import break_from_text, is_break, recompile_from_text
from ortlens.trace.records import Break, Recompile

FOLDER = Path(__file__).parents[2] / "data" / "dynamo_texts"
VERSIONS = ("2.9", "2.13", "2.15")
TEXTS = {version: json.loads((FOLDER / f"advice-{version}.json").read_text(encoding="utf-8")) for version in VERSIONS}
SOURCE = (FOLDER / "record_advice.py").read_text(encoding="utf-8").splitlines()
OUTSIDE = "before or after the compiled function"

BREAKS = {
    "logging_info": f"Log {OUTSIDE}, or add the method to `torch._dynamo.config.ignore_logg",
    "warning": f"Warn {OUTSIDE}, or add `warnings.warn` to `torch._dynamo.config.reorderable_logging_functions`",
    "printing": f"Print {OUTSIDE}, or add `print` to `torch._dynamo.config.reorderable_logging_functions`",
    "sleeping": f"Call `time.sleep` {OUTSIDE}",
    "reading_the_clock": "Read the clock around the call of the compiled function, not inside it",
    "opening": f"Open files {OUTSIDE}",
    "disabled": f"Call `kept_out` {OUTSIDE}, or remove `torch.compiler.disable` from it",
    "listed": "Compute with the tensor instead of the numbers of `.tolist()`",
    "floated": "Keep the value in a tensor without `float()`, or set `torch._dynamo.config.capture_scalar_outputs = True`",
    "item": "Keep the value in a tensor without `.item()`, or set `torch._dynamo.config.capture_scalar_outputs = True`",
    "numpy_only": "Use a torch function instead of NumPy's `savetxt`",
    "numpy_random": "Draw random numbers with torch, for example `torch.rand`",
    "looping": "Loop a fixed number of times: this",
    "branching": "Compute both outcomes and choose with `torch.where`, unless that costs more than the break",
    "copying": "Copy tensors with `.clone()`",
    "saving": f"Call `torch.save` {OUTSIDE}",
    "masked": "Keep all elements and mask with `torch.where`, or set `torch._dynamo.config.capture_dynamic_output_shape_ops = True`",
    "unique": f"Call `torch.unique` {OUTSIDE}, or set `torch._dynamo.config.capture_dynamic_output_shape_ops = True`",
    "as_text": f"Format tensors as text {OUTSIDE}",
    "recurrent": "Call the recurrent layer outside of the compiled function",
    "scripted": "Use the plain nn.Module",
    "allclose": "Keep the answer in a tensor, as `torch.isclose(a, b).all()` does",
    "gradient": "Compute gradients outside of the compiled function",
    "flushing": f"Call `sys.stdout.flush` {OUTSIDE}",
    "on_purpose": "Delete the call of `torch._dynamo.graph_break()`",
}

RECOMPILES = {
    "size": (("3", "4"), "`torch._dynamo.mark_dynamic(x, 0)` before the first call, or compile with `dynamic=True`"),
    "size_again": (("3", "4", "5"), "`torch._dynamo.mark_dynamic(x, 0)`"),
    "batch_of_one": ((), "unless calls with size 0 or 1 in dimension 0 of `x` can be avoided"),
    "rank": (("1", "2"), "Call with the same number of dimensions for `x`"),
    "dtype": (("Float", "Double"), "Convert `x` to one dtype"),
    "stride": (("5", "1"), "`x.contiguous()`"),
    "requires_grad": (("requires_grad=False", "requires_grad=True"), "`x.requires_grad` the same every time"),
    "grad_mode": ((), "with or without `torch.no_grad()`"),
    "autocast": ((), "inside `torch.autocast`"),
    "int": (("2", "3"), "Compile with `dynamic=True`, or pass `n` as a tensor, unless it is a size"),
    "float": (("2.5",), "Pass `n` as a tensor, or compile with `dynamic=True`"),
    "str": (("'a'",), "Call with one value of `mode`"),
    "bool": (("True",), "Call with one value of `mode`"),
    "length": (("2",), "Pass `items` with the same number of items"),
    "dict_length": (("1",), "Pass `items` with the same keys"),
    "dict_keys": (("'a'",), "the same keys in the same order"),
    "attribute": (("2",), "or pass `config.scale` as a tensor"),
    "same_tensor": ((), "Pass different tensors for `x`, `y`"),
    "two_tensors": ((), "Pass the same tensor for `y` and `x` every time"),
    "condition": ((), "sizes for which `(x.size()[0] % 2) == 0` is always true or always false"),
    "equal_sizes": ((), "differ in the first call"),
    "counter": (
        ("0", "1"),
        "Make `self.steps` a tensor, as a buffer of the module, or set `torch._dynamo.config.allow_unspec_int_on_nn_module",
    ),
    "training": (("True",), "Keep `self.drop` in one mode, `train()` or `eval()`"),
    "global": (("1",), "Make the global `FACTOR` a tensor"),
}


def broken(text: str) -> Break:
    said = break_from_text(text)
    mine = said.line is not None and said.file == "/home/ada/model.py"
    source = SOURCE[said.line - 1].strip() if mine and said.line else None
    return Break(break_id="b0", gb_id=said.gb_id, reason=said.reason, explanation=said.explanation, hints=said.hints, source=source)


def recompiled(text: str) -> Recompile:
    said = recompile_from_text(text)
    assert said is not None
    return Recompile(compile_id="0/1", guard=said.guard, reason=said.reason, values=said.values)


@pytest.mark.parametrize("name", BREAKS)
@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_breaks(version: str, name: str) -> None:
    told = [advice_for_break(broken(text)) for text in TEXTS[version]["breaks"][name] if is_break(text)]
    assert any((advice or "").startswith(BREAKS[name]) for advice in told), told


@pytest.mark.parametrize("name", RECOMPILES)
@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_recompiles(version: str, name: str) -> None:
    item = recompiled(TEXTS[version]["recompiles"][name][-1])
    values, part = RECOMPILES[name]
    assert item.values == values
    assert part in (advice_for_recompile(item) or "")


@pytest.mark.parametrize("version", VERSIONS)
def test_guards_whose_texts_differ_between_versions(version: str) -> None:
    def advice(name: str) -> str:
        return advice_for_recompile(recompiled(TEXTS[version]["recompiles"][name][-1])) or ""

    assert advice("none").startswith("Pass a tensor for `y` every time")
    assert advice("function") == "Pass the same object for `f` every time: its identity is part of the compiled code"
    assert "created once and not on every call" in advice("lambda")
    assert advice("class") == "Pass an object of the same class for `f` every time"
    assert advice("inference_tensor").startswith("Create `x` always under `torch.inference_mode()` or never")
    assert advice("device").startswith("Make `x` one kind of tensor, on one device")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_sentence_is_one_line_and_names_no_address(version: str) -> None:
    told = [advice_for_break(broken(text)) for texts in TEXTS[version]["breaks"].values() for text in texts if is_break(text)]
    told += [advice_for_recompile(recompiled(text)) for texts in TEXTS[version]["recompiles"].values() for text in texts]
    for advice in filter(None, told):
        assert "\n" not in advice
        assert not advice.endswith(".")
        assert advice.count("`") % 2 == 0
        assert " at 0x" not in advice
        assert len(advice) < 240


def test_breaks_of_data_parallel_wrappers_name_what_to_compile_instead() -> None:
    skipped = "Attempted to call function marked as skipped"
    marked = "Dynamo developers have intentionally marked that the function `{}` in file `x.py` should not be traced."
    traced = "Dynamo does not know how to trace method `set_runtime_stats_and_log` of class `Logger`"
    around = Break(break_id="b0", reason=skipped, explanation=marked.format("DistributedDataParallel._inside_ddp_forward"))
    logged = Break(break_id="b0", reason="Unsupported method call", explanation=traced)
    assert all("DistributedDataParallel(torch.compile(model" in (advice_for_break(item) or "") for item in (around, logged))
    hook = Break(break_id="b0", reason=skipped, explanation=marked.format("disable"), source="return torch._dynamo.disable(")
    assert (advice_for_break(hook) or "").startswith("Compile each module that `fully_shard` shards")
    own = Break(break_id="b0", reason=skipped, explanation=marked.format("disable"), function="f", source="torch._dynamo.disable(g)(x)")
    assert advice_for_break(own) == f"Call `torch._dynamo.disable` {OUTSIDE}"


@pytest.mark.parametrize("reason", ["", "Something entirely new", "Observed exception", "Unsupported function call (delayed)"])
def test_no_advice_where_nothing_is_known(reason: str) -> None:
    assert advice_for_break(Break(break_id="b0", reason=reason, explanation="Dynamo does not say.")) is None
    assert advice_for_recompile(Recompile(compile_id="0/1", guard=reason, reason=reason)) is None


_SETATTR = "setattr() on unsupported type"
_LOWERING = "Backend compiler `ortlens` failed with aten._local_scalar_dense.default. Adding a graph break."


@pytest.mark.parametrize(
    ("reason", "explanation", "source", "said"),
    [
        ("Could not guard on data-dependent expression u1 > u0", None, "u = pad(rows)", "Move the line before or after"),
        (
            "setattr() on unsupported type",
            "setattr() is not supported on type type",
            "RemovableHandle.next_id += 1",
            "Register and remove hooks",
        ),
        ("setattr() on unsupported type", "setattr() is not supported on type type", "Model.count = 3", None),
        ("Attempted to represent unregistered RemovableHandle", None, "handle.remove()", "Register and remove hooks"),
        ("Backend compiler exception", _LOWERING, "y = while_loop(going, step, (n, x))", "Set `torch._dynamo.config.capture_scalar"),
        ("Backend compiler exception", _LOWERING, "y = model(x)", None),
    ],
)
def test_sizes_from_data_and_hooks(reason: str, explanation: str | None, source: str, said: str | None) -> None:
    advice = advice_for_break(Break(break_id="b0", reason=reason, explanation=explanation, source=source))
    assert advice is None if said is None else (advice or "").startswith(said)


@pytest.mark.parametrize(
    ("following", "is_size"),
    [
        ("ids = torch.arange(most, device=x.device)", True),
        ("mask = x.repeat(1, most)", True),
        ("return x[:most]", True),
        ("for i in range(most):", True),
        ("return x * most", False),
        ("ids = torch.arange(4)  # most", False),
        ("ids = torch.arange(almost)", False),
    ],
)
def test_a_number_that_a_later_line_takes_as_a_size_cannot_stay_in_a_tensor(following: str, *, is_size: bool) -> None:
    item = Break(break_id="b0", reason="Unsupported Tensor.item() call", explanation="Tensor.item()", source="most = counts.amax().item()")
    said = advice_for_break(item, f"x = x * 2\n{following}") or ""
    assert said.startswith("Take the number out of the tensor before the compiled function") == is_size
    assert said.startswith("Keep the value in a tensor without `.item()`") != is_size


@pytest.mark.parametrize(
    ("reason", "is_one"),
    [
        ("aten.exp.default on complex numbers has no ONNX function", True),
        ("complex64 tensors cannot be passed to ONNX Runtime", True),
        ("float8_e5m2 tensors cannot be passed to ONNX Runtime", False),
        ("a complex operator", False),
    ],
)
def test_complex_numbers_have_one_advice_wherever_they_are_met(reason: str, *, is_one: bool) -> None:
    assert is_complex(reason) == is_one


def test_a_size_that_became_a_constant_is_not_to_be_marked() -> None:
    guard = "tensor 'input' size mismatch at index 1"
    item = Recompile(compile_id="0/1", guard=guard, reason=guard, values=("4", "64"))
    assert "mark_dynamic(input, 1)" in (advice_for_recompile(item, {("input", 0), ("other", 1)}) or "")
    why = "the code makes each a constant of its graph, as a weight's shape does, so `mark_dynamic` would fail"
    assert advice_for_recompile(item, {("input", 1)}) == f"Keep dimension 1 of `input` to few sizes: {why}"
    assert (advice_for_recompile(item, in_library=True) or "").startswith("Remove the graph break in the code that calls this function")
    assert "would fail" in (advice_for_recompile(item, is_dynamic=True) or "")
    ones = replace(item, values=("1", "64"))
    assert (advice_for_recompile(ones, is_dynamic=True, in_library=True) or "").startswith("Nothing to change")


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        (
            "len(G['__import_einops_dot__backends']._type2backend) != 1",
            "Call the function once before it is compiled: `einops._backends._type2backend` is filled by the first calls",
        ),
        ("list(dict.keys(G['TABLE'])) == ['a']", "Set `TABLE` before the first call and keep it from then on"),
        ("___check_obj_id(G['work'].__code__, 140)", "Set `work` before the first call and keep it from then on"),
        ("self.mask is not None", "Set `self.mask` before the first call, or leave it None"),
        ("len(self.cache) == 2", "Keep `self.cache` with the same number of items every time"),
        ("mask is not None", "Pass `mask` every time or never"),
    ],
)
def test_nobody_is_to_pass_what_is_no_argument(guard: str, said: str) -> None:
    assert (advice_for_recompile(Recompile(compile_id="0/1", guard=guard, reason=guard)) or "").startswith(said)


@pytest.mark.parametrize(
    ("guard", "is_passed"),
    [
        ("pattern == 'b c -> c b'", True),
        ("len(shape) == 3", True),
        ("___check_obj_id(function, 140)", True),
        ("mask is None", True),
        ("self.training == True", False),
        ("GLOBAL_STATE changed: grad_mode ", False),
        ("2 <= x.size()[0]", False),
    ],
)
def test_arguments_of_a_librarys_function_are_its_callers(guard: str, *, is_passed: bool) -> None:
    item = Recompile(compile_id="0/1", guard=guard, reason=guard, values=("a", "b"))
    said = advice_for_recompile(item, in_library=True) or ""
    assert said.startswith("Remove the graph break in the code that calls this function") == is_passed


@pytest.mark.parametrize(
    "reason", ["Failed to trace builtin operator", "Dynamic shape operator", "Unsupported method call", "marked as skipped"]
)
def test_no_advice_where_the_name_is_missing(reason: str) -> None:
    assert advice_for_break(Break(break_id="b0", reason=reason)) is None


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("return x * x.sum().item()", "set `torch._dynamo.config.capture_scalar_outputs = True`"),
        ("y = y / float(y.norm())", "set `torch._dynamo.config.capture_scalar_outputs = True`"),
        ("y = x[0].item() * 2", "Keep the value in a tensor without `.item()`"),  # may become an index later
        ("k = int(i)", "Keep the value in a tensor without `int()`, or, if it is a size, pass it"),
        ("y = xs[x.item()]", "Use `torch.index_select` with the tensor as index"),
        ("y = xs[int(x.sum())] * 2", "Use `torch.index_select` with the tensor as index"),
        ("y = [x, x + 1][i.item()].sin()", "Use `torch.index_select` with the tensor as index"),
        ("y = x[: n.item()]", "Take the number out of the tensor before the compiled function"),
        ("return y[:n].sin()", "Take the number out of the tensor before the compiled function"),
        ("for _ in range(n.item()):", "Take the number out of the tensor before the compiled function"),
        ("if x.max().item() > 1:", "Compute both outcomes"),
        ("y = 1.0 if bool(x.any()) else 2.0", "Compute both outcomes"),
        ("elif 0.5 in y:", "Compute both outcomes"),
        ('text = f"{x.item():.3f}"', "Format tensors as text"),
        ("x.sum().item(),", "Keep the value in a tensor without `.item()`"),
        (")", "Keep the value in a tensor"),
    ],
)
def test_what_is_done_with_a_number_decides_what_to_change(source: str, said: str) -> None:
    """The setting makes compilation fail where the number indexes a list, and leaves a break where the program branches on it."""
    hints = ("Set `torch._dynamo.config.capture_scalar_outputs = True`",)
    item = Break(break_id="b0", reason="Unsupported Tensor.item() call with capture_scalar_outputs=False", source=source, hints=hints)
    assert said in (advice_for_break(item) or "")
    assert ("capture_scalar_outputs" in (advice_for_break(item) or "")) is ("capture_scalar_outputs" in said)


def test_a_line_behind_the_users_is_moved_as_a_whole() -> None:
    told = "Dynamo does not know how to trace the builtin `posix.urandom.` This function is ... a third-party C/C++ Python extension"
    item = Break(
        break_id="b0",
        reason="Attempted to call function marked as skipped",
        explanation=told,
        source="return UUID(bytes=os.urandom(16), version=4)",
        file="/home/ada/model.py",
        line=3,
        user_stack=("/home/ada/model.py:3 forward", "/usr/lib/python3/uuid.py:723 uuid4"),
    )
    assert advice_for_break(item) == f"Move the line {OUTSIDE}: PyTorch cannot trace `posix.urandom`, which it calls"
    own = Break(break_id="b0", reason=item.reason, explanation=told, source="seed = os.urandom(4)")
    assert advice_for_break(own) == f"Call `os.urandom` {OUTSIDE}"


@pytest.mark.parametrize(
    "check", ["if torch.isnan(x).any(): raise ValueError(x)", "if x.sum() > 0:  # never\n    raise ValueError(x)", "assert x.all()"]
)
def test_a_check_that_raises_is_told_to_move(check: str) -> None:
    item = Break(break_id="b0", reason="Data-dependent branching", source=check)
    assert advice_for_break(item) == f"Check values {OUTSIDE}: a check inside needs the value of a tensor"


@pytest.mark.parametrize(
    ("guard", "values", "said", "unsaid"),
    [
        ("n == 2", ("2", "3.5"), "Pass `n` as a tensor", "dynamic=True"),  # one graph takes one kind of number
        ("n == 5", ("5", "1"), "Pass `n` as a tensor", "dynamic=True"),  # 0 and 1 are constants all the same
        (
            "tensor 'x' size mismatch at index 2",
            ("4", "1"),
            "unless calls with size 0 or 1 in dimension 2 of `x` can be avoided",
            "mark_dynamic",
        ),
        ("tensor 'kwargs['mask']' size mismatch at index 1", ("4", "5"), "mark_dynamic(mask, 1)", "kwargs"),
        ("tensor 'xs[0]' size mismatch at index 1", ("4", "5"), "mark_dynamic(xs[0], 1)", "static cache"),
        ("tensor 'kwargs['past_key_values'].layers[0].keys' size mismatch at index 2", ("7", "8"), "use a static cache", "mark_dynamic"),
        ("tensor 'self.memory' size mismatch at index 2", ("7", "8"), "Compile with `dynamic=True`", "mark_dynamic"),
        ("tensor 'self._parameters['weight']' size mismatch at index 0", ("4", "8"), "Keep the shape of `self.weight`", "mark_dynamic"),
    ],
)
def test_advice_that_would_not_help_is_left_out(guard: str, values: tuple[str, ...], said: str, unsaid: str) -> None:
    advice = advice_for_recompile(Recompile(compile_id="0/1", guard=guard, reason=guard, values=values))
    assert said in (advice or "")
    assert unsaid not in (advice or "")


def test_names_of_dynamos_own_are_nobodys() -> None:
    guard = "tensor '___stack0' size mismatch at index 0"
    assert advice_for_recompile(Recompile(compile_id="0/1", guard=guard, reason=guard, values=("3", "4"))) is None


def test_a_number_that_a_graph_break_hands_on() -> None:
    guard = "___stack1 == -54.88452911376953"
    said = advice_for_recompile(Recompile(compile_id="0/1", guard=guard, reason=guard, values=("-54.88452911376953", "2.5e-05")))
    assert (said or "").startswith("Keep the number computed at the preceding graph break in a tensor")


def test_the_limit_names_the_guard_its_values_and_the_remedy() -> None:
    guard = "self.steps == 7  # self.steps += 1"
    said = advice_for_limit(Recompile(compile_id="0/8", guard=guard, reason=guard, values=("6", "7", "8"), advice="Make it a tensor"))
    assert said.startswith("Make it a tensor; PyTorch stopped recompiling")
    assert said.endswith("last guard that failed: `self.steps == 7` (seen: 6, 7, 8)")
    assert "Keep it the same" in advice_for_limit(Recompile(compile_id="0/8", reason="something"))


def test_names_are_the_users() -> None:
    assert user_name("self._modules['layers']._modules['0']._parameters['weight']") == "self.layers.0.weight"
    assert user_name("G['scale']") == "scale"
    assert user_name("G['settings'].rate") == "settings.rate"
    assert user_name("G['net']._modules['drop'].p") == "net.drop.p"
    assert user_name("xs[0]['a']") == "xs[0]['a']"


@given(st.text(max_size=200), st.text(max_size=200), st.lists(st.text(max_size=20), max_size=3))
def test_any_text_at_all(reason: str, other: str, values: list[str]) -> None:
    for text in (
        reason,
        f"Failed to trace builtin operator {reason}",
        f"{reason} == {other}",
        f"tensor '{reason}' size mismatch at index 3",
    ):
        advice_for_break(Break(break_id="b", reason=text, explanation=other, hints=tuple(values), source=reason))
        advice_for_recompile(Recompile(compile_id="0/1", guard=text, reason=other, values=tuple(values)))


SIZES = "torch._dynamo.config.capture_dynamic_output_shape_ops"


@pytest.mark.parametrize(
    ("source", "following", "is_advised"),
    [
        ("rows, slot = torch.where(idx == e)", "out.index_add_(0, rows, expert(flat[rows]))", True),
        ("rows, slot = torch.where(idx == e)", "if rows.numel():\n    out.index_add_(0, rows, y)", False),
        ("rows = mask.nonzero()", "# if rows are few\nreturn x[rows]", True),
        ("rows = mask.nonzero()", "for row in rows:\n    y += x[row]", False),
        ("rows = mask.nonzero()", "return [x[i] for i in rows.tolist()]", False),
        ("rows = mask.nonzero()", "for i in range(len(rows)):\n    pass", False),
        ("if mask.nonzero().numel() > 3:", "", False),
        ("return x[mask.nonzero()]", "", True),
    ],
)
def test_symbolic_sizes_are_not_advised_where_the_program_decides_by_them(source: str, following: str, is_advised: bool) -> None:  # noqa: FBT001 - a case
    item = Break(
        break_id="b0",
        reason="Dynamic shape operator",
        explanation="Operator `aten.nonzero.default`'s output shape depends on input Tensor data.",
        hints=(f"Enable tracing of dynamic shape operators with `{SIZES} = True`",),
        source=source,
    )
    advice = advice_for_break(item, following) or ""
    assert advice.startswith("Keep all elements and mask with `torch.where`")
    assert (SIZES in advice) is is_advised


def test_a_loss_whose_graph_is_used_up_is_to_be_returned_detached() -> None:
    reason = "autograd.grad consumed returned tensor's grad_fn"
    said = "torch.autograd.grad() consumes grad_fns. The following returned tensors have consumed grad_fns: loss"
    assert (advice_for_break(Break(break_id="b0", reason=reason, explanation=said)) or "").startswith("Return `loss.detach()`: ")
    assert (advice_for_break(Break(break_id="b0", reason=reason)) or "").startswith("Return losses detached")


@pytest.mark.parametrize(
    ("function", "stack", "advice"),
    [
        ("f", "m.py:3 f", "Delete the call of `torch._dynamo.graph_break()`"),
        ("_use_grad", "m.py:3 f", "Move the optimiser's step before or after the compiled function"),
        ("elsewhere_in_torch", "m.py:3 f", "Move the line before or after the compiled function: the library"),
        ("of_a_library", "site-packages/lib.py:8 of_a_library", "Move the line before or after the compiled function: the library"),
    ],
)
def test_only_a_break_that_the_program_itself_asks_for_can_be_deleted(function: str, stack: str, advice: str) -> None:
    item = Break(
        break_id="b0",
        reason="Call to `torch._dynamo.graph_break()`",
        file="m.py",
        line=3,
        function=function,
        source="torch._dynamo.graph_break()",
        user_stack=(stack,),
    )
    assert (advice_for_break(item) or "").startswith(advice)


def test_the_object_whose_method_is_compiled_cannot_be_passed_by_its_caller() -> None:
    guard = "___check_obj_id(self, 1396…), type=<class 'torch.optim.adam.Adam'>"
    item = Recompile(compile_id="4/1", guard=guard, reason=guard, values=("<class 'Adam'>",))
    assert (advice_for_recompile(item) or "").startswith("Create the object whose method this is once")


def test_a_number_of_a_global_object_cannot_be_passed() -> None:
    guard = "G['settings'].rate == 2"
    item = Recompile(compile_id="0/1", guard=guard, reason=guard, values=("2", "3"))
    assert (advice_for_recompile(item) or "").startswith("Make `settings.rate` a tensor: ")
