"""What to change about a graph break, by PyTorch's own texts and the line that stopped the graph.

The texts differ between versions and promise nothing, so a rule asks for words that name the matter, and what no rule knows gets no
advice: a wrong one costs more than none. Global settings of PyTorch are named only where PyTorch's own text names them.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from ortlens.analysis.problems.catalogue import Advice, advise
from ortlens.analysis.problems.number_uses import (
    LATER,
    Use,
    calls_of_math,
    has_index,
    has_keywords,
    loops_over_list,
    meets_its_tensor,
    only_checks,
    only_reports,
    statement_of,
    takes_number,
    use_of_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.trace.records import Break

_LISTED = re.compile(r"config\.(?P<name>ignore_log\w+|reorderable_logging_functions)")
CONFIG = "torch._dynamo.config"
_SWITCHES = ("capture_dynamic_output_shape_ops", "trace_autograd_ops")
_SCALARS = f"{CONFIG}.capture_scalar_outputs = True"
_ALLOW_RNN = f"{CONFIG}.allow_rnn = True"
_FUNCTION = re.compile(r"<(?:\w+ )*(?:function|cyfunction|built-in function|ufunc) '?(?P<name>[\w.]+)'?")
_BUILTIN = re.compile(r"builtin operator `(?P<name>[\w.]+)`")
_SKIPPED = re.compile(r"(?:the (?:Python )?builtin|the function) `(?P<name>[\w.<> ]+?)\.?`")
_OPERATOR = re.compile(r"[Oo]perator `(?P<name>[\w.]+)`")
_METHOD = re.compile(r"trace method `(?P<method>\w+)` of class `(?P<owner>\w+)`")
_CONSUMED = re.compile(r"tensors have consumed grad_fns: (?P<name>\w+)\s*$")
_CONTEXT = re.compile(r"enter an? `(?P<name>\w+)` context manager")
_FLAG = re.compile(r"(?:el)?if (?:not )?(?P<name>self(?:\.\w+)+)\s*:")
"""A test of nothing but an attribute, such as a buffer that says whether a codebook was initialised."""

_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "process_time_ns")
_TENSOR_TESTS = {"equal": "(a == b).all()", "allclose": "torch.isclose(a, b).all()"}
_BUILTINS = {**dict.fromkeys(("str", "repr", "format"), "format_outside"), **dict.fromkeys(("open", "input"), "open_outside")}
_USES: Mapping[Use, str] = {"index": "index_select", "size": "pass_as_int", "text": "format_outside", "decides": "choose_with_where"}
_IN_TORCH = frozenset(
    {
        *("exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "sqrt", "pow", "hypot", "fmod", "erf", "erfc", "lgamma"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    }
)
"""Functions of `math` that torch has by the same name, for tensors."""

_LOG_METHODS = ("debug", "info", "warning", "error", "exception", "critical", "log")
_TAKES_NUMBER = (".item()", "float(", "int(", "bool(")
_WITHOUT_SHAPES = frozenset({"linalg_lstsq", "ctc_loss"})
"""Operators that PyTorch cannot trace with `capture_dynamic_output_shape_ops` either."""

DROPOUT = "dropout"
_NO_OPERATORS = frozenset({*sys.stdlib_module_names, "torch"})
"""Modules whose functions are no candidates for custom operators."""

_FSDP2_HOOK = "return torch._dynamo.disable("
"""The line of the wrapper in torch/distributed/fsdp/_fully_shard/_fsdp_common.py that runs each hook."""


def advice_by_rule(item: Break) -> Advice | None:
    """Advise how to avoid a graph break; None when the texts do not say enough."""
    called = library_called(item)
    if called and (reported := _reported(item)) is not None:
        return reported
    stop = item
    if item.stop_source is not None:  # of a library behind the user's line
        stop = replace(item, source=item.stop_source or None, function=item.stop_function)
    said = _said(stop)
    rule = next((rule for words, rule in _BREAK_RULES if all(word in said for word in words)), None)
    advice = rule(stop) if callable(rule) else None if rule is None else advise(rule)
    if called is None or advice is None or advice.kind not in _OF_THE_LINE:
        return advice
    written = call_written(item.source, called)
    return advise("move_line", name=called) if written is None else advise("call_outside", name=written)


def library_called(item: Break) -> str | None:
    """Return the name of what the user's line calls in a library that stops the graph somewhere inside; None where the line does."""
    frames = [frame.rpartition(" ")[::2] for frame in reversed(item.user_stack)]  # the innermost first
    at = next((at for at, (place, _) in enumerate(frames) if place == f"{item.file}:{item.line}"), 0)
    return frames[at - 1][1] if at else None


_OF_THE_LINE = frozenset(
    {
        *("check_outside", "choose_with_where", "compute_with_tensor", "enter_around", "fix_loop_count", "format_outside", "index_select"),
        *("keep_answer_in_tensor", "keep_flag_in_bool", "keep_in_tensor", "log_outside", "loop_outside", "mask_rounds", "mask_with_where"),
        *("move_context_around", "open_outside", "pass_as_int", "print_outside", "read_clock_around", "use_torch_function"),
        *("use_torch_math", "warn_outside"),
    }
)
"""Kinds of advice on how to write the line that stops the graph, which nobody changes in a library."""


def _on_purpose(item: Break) -> Advice:
    if item.function == "_use_grad":  # the wrapper of torch.optim around `step`
        return advise("move_optimiser_step")
    return advise("move_line", broken_by_library=True) if _is_behind(item) or _is_in_torch(item) else advise("delete_graph_break")


def _disabled(item: Break) -> Advice:
    name = _name_in(item, _FUNCTION)
    written = _as_written(item, name) if name else None
    if _is_behind(item) or (written or "").startswith("torch."):  # somebody else's function
        return _call_outside(item, name) if name else advise("call_outside")
    return advise("call_outside", name=written or name, disabled=True)


def _branching(item: Break) -> Advice:
    source = item.source or ""
    flag = _FLAG.match(source)
    if only_checks(source):
        return advise("check_outside")
    if flag is not None:
        return advise("keep_flag_in_bool", name=flag["name"])
    return advise("fix_loop_count" if source.startswith("while") else "choose_with_where", jumps="jumps" in item.traits)


def _item_call(item: Break) -> Advice:
    source = item.source or ""
    if item.function == "_detect_is_causal_mask":  # of torch's own encoder, which the user's line calls
        return advise("pass_is_causal")
    if (reported := _reported(item)) is not None:
        return reported
    if "in_data_loop" in item.traits:
        return advise("loop_outside")
    use = use_of_number(source)
    if use is not None:
        return _branching(item) if use == "decides" else _by_torch(source) if use == "math" else advise(_USES[use])
    later = next((use for use in _USES if LATER[use] in item.traits), None)
    if later is not None:
        return advise(_USES[later], later=True)
    call = next((call for call in _TAKES_NUMBER if call in source), None)
    named = None if call is None else call if call == ".item()" else f"{call})"
    setting = _SCALARS if meets_its_tensor(source) else None
    return advise("keep_in_tensor", call=named, setting=setting, size=call == "int(", math=LATER["math"] in item.traits)


def _by_torch(source: str) -> Advice:
    """Advise the function of torch where a line calls one of `math` with a tensor, if torch has it."""
    statement = statement_of(source)
    names = [] if statement is None else [node.attr for node in calls_of_math(statement)]
    if names and _IN_TORCH.issuperset(names):
        return advise("use_torch_math", name=names[0])
    return advise("move_line", number=True)


def _reported(item: Break) -> Advice | None:
    """Advise on a line that does nothing but print, warn or log: what takes a number in it goes with the line."""
    source = item.source or ""
    name = only_reports(source)
    # A number in the line breaks the graph by itself, so that listing the function would not help.
    listed = None if takes_number(source) else _hinted_list(item)
    if name in {"print", "warn"}:
        # What PyTorch reorders loses its arguments by name; from 2.15 on, it refuses to.
        return advise(f"{name}_outside", listed=None if has_keywords(source) else listed)
    return None if name is None else advise("log_outside", listed=listed if name in _LOG_METHODS else None, method=name)


def _dynamic_shape(item: Break, operator: str) -> Advice:
    name = short_name(operator)
    if name in _WITHOUT_SHAPES:
        return _call_outside(item, name)
    if name == "repeat_interleave":
        return advise("pass_output_size")
    setting = _hinted_setting(item)
    if setting and (_SWITCHES[0] not in setting or "decides_by_size" in item.traits):  # with a list or a branch of it, compilation fails
        setting = None
    if name in {"nonzero", "masked_select"}:
        return advise("mask_with_where", setting=setting)
    return advise("call_outside", name=_as_written(item, name) or name, setting=setting, sized=True)


def _data_dependent(item: Break, operator: str) -> Advice:
    name, source = short_name(operator), item.source or ""
    if name == "local_scalar_dense":  # whatever takes a number out of a tensor
        if "random" in source:
            return advise("draw_with_torch")
        return _list_of_numbers(item) if ".tolist(" in source else _item_call(item)
    tensor = _TENSOR_TESTS.get(name)
    return _call_outside(item, name) if tensor is None else advise("keep_answer_in_tensor", instead=tensor, name=name)


def _list_of_numbers(item: Break) -> Advice:
    return advise("mask_rounds" if loops_over_list(item.source or "") else "compute_with_tensor")


def _builtin(item: Break, name: str) -> Advice:
    if name == "print":
        return _reported(item) or advise("print_outside", listed=_hinted_list(item))
    return advise(_BUILTINS[name]) if name in _BUILTINS else _call_outside(item, name)


def _skipped(item: Break, name: str) -> Advice:
    name = name.rsplit(">.", maxsplit=1)[-1]
    module, _, function = name.rpartition(".")
    if module == "time" and function in _CLOCKS:
        return advise("read_clock_around")
    if "_LegacyVariableBase" in name:
        return advise("drop_variable")
    if name == "_warnings.warn":
        return _reported(item) or advise("warn_outside", listed=_hinted_list(item))
    if module == "Random":
        return advise("draw_with_torch")
    wrapped = "third-party C/C++" in _said(item) and module.partition(".")[0] not in _NO_OPERATORS and not _is_behind(item)
    return _call_outside(item, name, wrapped=wrapped)


def _numpy(_item: Break, name: str) -> Advice:
    return advise("draw_with_torch") if "rng" in name or "random" in name else advise("use_torch_function", name=name)


def _method(item: Break) -> Advice | None:
    found = _METHOD.search(_said(item))
    if found is None:
        return None
    return advise("move_line", creates=True) if found["method"] == "__new__" else _call_outside(item, f"{found['owner']}.{found['method']}")


def _autograd(item: Break) -> Advice:
    return advise("compute_gradients_outside", setting=_hinted_setting(item))


def _name_in(item: Break, form: re.Pattern[str]) -> str | None:
    """Find what PyTorch's text names."""
    found = form.search(_said(item))
    return found["name"] if found else None


def _about(form: re.Pattern[str], rule: Callable[[Break, str], Advice]) -> Callable[[Break], Advice | None]:
    """Make a rule about what PyTorch's text names, which knows nothing where it names nothing."""
    return lambda item: None if (name := _name_in(item, form)) is None else rule(item, name)


def _hooked(item: Break) -> Advice | None:
    return _about(_SKIPPED, _skipped)(item) if item.source != _FSDP2_HOOK else advise("compile_sharded_modules")


def _hooked_since_2_15(item: Break) -> Advice:
    is_shown = "disable" in (item.source or "disable") and item.source != _FSDP2_HOOK
    return _call_outside(item, "disable") if is_shown else advise("compile_sharded_modules")


def _packed(item: Break) -> Advice | None:
    return advise("quantise_with_torchao") if "torch.ops.quantized." in (item.source or "") else None


def _lowering(item: Break) -> Advice | None:
    """Advise where a backend met a number that depends on data.

    A loop with gradients needs the setting: only with it does PyTorch make its number of steps a symbol. Else it is an index that is a
    tensor without dimensions, which backends read as a number.
    """
    if "while_loop" in (item.source or ""):
        return advise("set_for_while_loop", setting=_SCALARS)
    statement = statement_of(item.source or "")
    if statement is None or not has_index(statement):
        return None
    named = [node.attr for node in calls_of_math(statement) if node.attr in _IN_TORCH]
    return advise("index_select", math=named[0] if named else None)


def is_of_backend(item: Break) -> bool:
    """Tell whether a backend failed on what Dynamo had traced."""
    return "Backend compiler" in _said(item)


def _recurrent(item: Break) -> Advice:
    """Advise on a recurrent layer.

    Measured with torch 2.13 and our backend, in inference the setting makes a GRU 1.1 to 4 times as fast, a plain RNN 1.1 to 1.7 times; an
    LSTM takes 0.5 times as long if it is small and 1.2 times if it is large. With gradients, PyTorch writes out every step: compiling takes
    seconds to minutes, and calls take 1.1 to 4 times as long.
    """
    faster, trained = ({f"{kind}_in_{use}" for kind in ("gru", "rnn")} for use in ("inference", "training"))
    setting, lstm = None if faster.isdisjoint(item.traits) else _ALLOW_RNN, "lstm_in_inference" in item.traits
    return advise("call_layer_outside", setting=setting, compare=lstm, gradients=not trained.isdisjoint(item.traits))


def _hooks(item: Break) -> Advice | None:
    is_own = "RemovableHandle" not in _said(item) + (item.source or "")  # else PyTorch's, which counts itself in its class
    return None if is_own else advise("register_hooks_outside")


_BREAK_RULES: Sequence[tuple[tuple[str, ...], str | Callable[[Break], Advice | None]]] = (
    (("torch._dynamo.graph_break()",), _on_purpose),
    (("torch._dynamo.skip_frame()",), "delete_skip_frame"),
    (("torch.compiler.disable",), _disabled),
    (("Failed to convert args/kwargs to proxy",), _packed),
    (("Backend compiler", "failed with aten._local_scalar_dense"), _lowering),
    (("recompile limit exceeded",), "keep_listed_values"),
    (("graph break in loop",), "unbreak_loop"),
    (("RNN, GRU, or LSTM",), _recurrent),
    (("Data-dependent branching",), _branching),
    (("Tensor.item()",), _item_call),
    (("Tensor.tolist()",), _list_of_numbers),
    (("Dynamic shape operator",), _about(_OPERATOR, _dynamic_shape)),
    (("Data dependent operator",), _about(_OPERATOR, _data_dependent)),
    (("DistributedDataParallel._",), "compile_before_wrapping"),
    (("`set_runtime_stats_and_log`",), "compile_before_wrapping"),
    (("function `disable` in file",), _hooked),
    (("disable()` was called inside a compiled region",), _hooked_since_2_15),
    (("Logger",), lambda item: _reported(item) or advise("log_outside")),
    (("Call to a time function",), "read_clock_around"),
    (("repr() on tensor",), "format_outside"),
    (("sort with non-constant keys", "torch.Tensor"), "sort_with_torch"),
    (("Failed to trace builtin operator",), _about(_BUILTIN, _builtin)),
    (("numpy function",), _about(_FUNCTION, _numpy)),
    (("copy.deepcopy",), "clone_tensors"),
    (("consumed returned tensor's grad_fn",), lambda item: advise("return_detached", name=_name_in(item, _CONSUMED))),
    (("Tensor.backward()",), _autograd),
    (("torch.autograd.grad",), _autograd),
    (("function `grad` in file", "autograd"), _autograd),
    (("torch.jit.script",), "use_plain_module"),
    (("ScriptModules",), "use_plain_module"),
    (("sparse Tensor",), "use_dense_tensors"),
    (("Unsupported context manager",), lambda item: advise("enter_around", name=_name_in(item, _CONTEXT))),
    (("active context manager",), "move_context_around"),
    (("Attempt to trace generator",), "compile_consumer"),
    (("marked as skipped",), _about(_SKIPPED, _skipped)),
    (("Unsupported method call",), _method),
    (("guard on data-dependent expression",), lambda _item: advise("move_line", decides=True)),
    (("setattr() is not supported",), _hooks),
    (("RemovableHandle",), _hooks),
)
"""Words that must all be in the reason and the explanation, and the kind of advice, or what chooses it; the first that fits does."""


def _call_outside(item: Break, name: str, *, wrapped: bool = False) -> Advice:
    """Advise moving a call that the user can see, by the name in the user's line; else moving the line."""
    written = _as_written(item, name)
    if written is None and (item.source is not None or _is_behind(item)):
        return advise("move_line", name=name, wrapped=wrapped)
    return advise("call_outside", name=written or name, wrapped=wrapped)


def _as_written(item: Break, name: str) -> str | None:
    """Find how the user's line writes a function: `os.listdir` for `posix.listdir`; None where it does not."""
    return None if _is_behind(item) else call_written(item.source, name)


def call_written(source: str | None, name: str) -> str | None:
    """Find how a line writes the call of a function."""
    found = re.search(rf"(?<![\w.])[\w.]*\b{re.escape(name.rpartition('.')[2])}(?=\()", source or "")
    return found[0].lstrip(".") if found else None


def _is_behind(item: Break) -> bool:
    """Tell whether what stops the graph is a line of a library that the user's line calls."""
    return bool(item.user_stack) and not item.user_stack[-1].startswith(f"{item.file}:{item.line} ")


def short_name(operator: str) -> str:
    """Shorten an operator's name: `nonzero` of `aten.nonzero.default`, `unique` of `aten._unique2.default`."""
    parts = operator.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.strip("_").rstrip("0123456789")


def _said(item: Break) -> str:
    return f"{item.reason}\n{item.explanation or ''}"


def _hinted_setting(item: Break) -> str | None:
    """Find the setting that PyTorch's own hints recommend."""
    name = next((name for name in _SWITCHES if any(name in hint for hint in item.hints)), None)
    return f"{CONFIG}.{name} = True" if name else None


def _hinted_list(item: Break) -> str | None:
    """Find the setting that lists functions, as PyTorch's own texts name it."""
    found = _LISTED.search("\n".join((item.reason, *item.hints)))
    return found["name"] if found else None


def _is_in_torch(item: Break) -> bool:
    """Tell whether what stops the graph is a line of PyTorch itself, whose frames are not in the user stack."""
    return bool(item.user_stack) and item.function is not None and item.user_stack[-1].rpartition(" ")[2] != item.function


def trains_always(source: str) -> bool | None:
    """Tell whether a line calls a function for dropout that `model.eval()` does not change; None where the line does not show it."""
    statement = statement_of(source)
    calls = [] if statement is None else [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    for call in calls:
        written = ast.unparse(call.func)
        if DROPOUT not in written.lower() and "drop" not in written.rpartition(".")[2]:
            continue
        if written.startswith("self."):  # a module
            return False
        given = next((word.value for word in call.keywords if word.arg == "training"), call.args[2] if len(call.args) > 2 else None)  # noqa: PLR2004 - by place
        return given is None or (isinstance(given, ast.Constant) and bool(given.value))
    return None
