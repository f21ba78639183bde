"""What to change about a graph break or a recompile, in one sentence; nothing where the texts do not say enough.

The sentences are derived from PyTorch's own texts and the user's line. The texts differ between versions and promise nothing,
so a rule asks for words that name the matter, and what no rule knows gets no advice: a wrong one costs more than none. Global
settings of PyTorch are named only where PyTorch's own text names them.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from ortlens.analysis.number_uses import becomes_size, decides_by_size, meets_its_tensor, only_checks, use_of_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortlens.trace.records import Break

_LISTED = re.compile(r"config\.(?P<name>ignore_log\w+|reorderable_logging_functions)")
_SWITCHES = ("capture_dynamic_output_shape_ops", "trace_autograd_ops")
_TENSORS_ONLY = ", or set `torch._dynamo.config.capture_dynamic_output_shape_ops = True` if only tensors are computed from its result"
"""With a list or a branch of its result, compilation fails: left out where the program shows that."""
_FOR_INFERENCE = ", or, for inference alone, set `torch._dynamo.config.allow_rnn = True`"
"""An LSTM fails to compile for training, and other layers become a graph of all their steps: left out for these."""

_SCALARS = "torch._dynamo.config.capture_scalar_outputs = True"
_FUNCTION = re.compile(r"<(?:\w+ )*(?:function|cyfunction|built-in function|ufunc) '?(?P<name>[\w.]+)'?")
_BUILTIN = re.compile(r"builtin operator `(?P<name>[\w.]+)`")
_SKIPPED = re.compile(r"(?:the (?:Python )?builtin|the function) `(?P<name>[\w.<> ]+?)\.?`")
_OPERATOR = re.compile(r"[Oo]perator `(?P<name>[\w.]+)`")
_METHOD = re.compile(r"trace method `(?P<method>\w+)` of class `(?P<owner>\w+)`")
_CONSUMED = re.compile(r"tensors have consumed grad_fns: (?P<name>\w+)\s*$")
_CONTEXT = re.compile(r"enter an? `(?P<name>\w+)` context manager")
_OUTSIDE = "before or after the compiled function"

_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "process_time_ns")
_TENSOR_TESTS = {"equal": "(a == b).all()", "allclose": "torch.isclose(a, b).all()"}
_AS_TEXT = ("str", "repr", "format")
_FILES = ("open", "input")
_TEXT = f"Format tensors as text {_OUTSIDE}: formatting needs their values"
_DRAW = f"Draw random numbers with torch, for example `torch.rand`, or {_OUTSIDE}"
_KEPT = "Keep the value in a tensor"
_INSTEAD = {
    "index": "Use `torch.index_select` with the tensor as index, on a stack of the items where they are in a list",
    "size": "Take the number out of the tensor before the compiled function, and pass it as an int: the line needs it as a size",
    "text": _TEXT,
}


def advice_for_break(item: Break, following: str = "", *, met: str = "", gradients: bool = True) -> str | None:
    """Say in one sentence, without a full stop, how to avoid a graph break; None when the texts do not say enough.

    `following` holds the lines of the function behind the break, as far as known; `met` is what Dynamo met, as its developers write it;
    `gradients` says whether autograd records there.
    """
    said = _said(item)
    for words, rule in _BREAK_RULES:
        if all(word in said for word in words):
            advice = rule(item)
            if advice and advice.startswith(_KEPT) and becomes_size(item.source or "", following):
                advice = _INSTEAD["size"].replace("the line needs", "a line below needs")
            if advice and decides_by_size(item.source or "", following):
                advice = advice.replace(_TENSORS_ONLY, "")
            if advice and (gradients or not met.startswith("LSTM(")):
                advice = advice.replace(_FOR_INFERENCE, "")
            return advice
    return None


def _on_purpose(item: Break) -> str:
    if item.function == "_use_grad":  # the wrapper of torch.optim around `step`
        return f"Move the optimiser's step {_OUTSIDE}: PyTorch breaks the graph around it on purpose"
    if _is_behind(item) or _is_in_torch(item):
        return f"Move the line {_OUTSIDE}: the library that it calls breaks the graph on purpose"
    return "Delete the call of `torch._dynamo.graph_break()`, which breaks the graph on purpose"


def _on_purpose_skipped(_item: Break) -> str:
    return "Delete the call of `torch._dynamo.skip_frame()`, which leaves the function uncompiled on purpose"


def _disabled(item: Break) -> str:
    found = _FUNCTION.search(_said(item))
    name = found["name"] if found else None
    written = _as_written(item, name) if name else None
    what = f"`{written or name}`" if name else "the function"
    if _is_behind(item) or (written or "").startswith("torch."):  # somebody else's function
        return _call_outside(item, name) if name else f"Call {what} {_OUTSIDE}"
    return f"Call {what} {_OUTSIDE}, or remove `torch.compiler.disable` from it"


def _branching(item: Break) -> str:
    """Advise without `torch.cond` and `torch.while_loop`: measured, they take longer than the break that they remove."""
    source = item.source or ""
    if only_checks(source):
        return f"Check values {_OUTSIDE}: a check inside needs the value of a tensor"
    flag = _FLAG.match(source)
    if flag is not None:
        return f"Keep `{flag['name']}` in a Python bool, beside the tensor if that is saved with the model: the line needs its value"
    if source.startswith("while"):
        return "Loop a fixed number of times: this loop needs the value of a tensor"
    return "Compute both outcomes and choose with `torch.where`, unless that costs more than the break: the line needs a tensor's value"


_FLAG = re.compile(r"(?:el)?if (?:not )?(?P<name>self(?:\.\w+)+)\s*:")
"""A test of nothing but an attribute, such as a buffer that says whether a codebook was initialised."""


def _item_call(item: Break) -> str:
    source = item.source or ""
    if item.function == "_detect_is_causal_mask":  # of torch's own encoder, which the user's line calls
        return "Pass `is_causal=True` or `is_causal=False` along with `mask`: otherwise PyTorch looks at the mask's values"
    use = use_of_number(source)
    if use == "decides":
        return _branching(item)
    if use is not None:
        return _INSTEAD[use]
    call = next((call for call in _TAKES_NUMBER if call in source), None)
    without = f" without `{call if call == '.item()' else call + ')'}`" if call else ""
    setting = f", or set `{_SCALARS}`" if meets_its_tensor(source) else ""
    passed = ", or, if it is a size, pass it to the compiled function as an int" if call == "int(" else ""
    return f"{_KEPT}{without}{setting}{passed}"


_TAKES_NUMBER = (".item()", "float(", "int(", "bool(")


def _list_call(_item: Break) -> str:
    return f"Compute with the tensor instead of the numbers of `.tolist()`, or call it {_OUTSIDE}"


def _dynamic_shape(item: Break) -> str | None:
    found = _OPERATOR.search(_said(item))
    if found is None:
        return None
    name = _short(found["name"])
    if name in _WITHOUT_SHAPES:
        return _call_outside(item, name)
    if name == "repeat_interleave":
        return "Pass `output_size=` to `repeat_interleave`: without it, the size of its result depends on the data"
    masks = name in {"nonzero", "masked_select"}
    instead = "Keep all elements and mask with `torch.where`" if masks else f"Call `{_as_written(item, name) or name}` {_OUTSIDE}"
    setting = _TENSORS_ONLY if _or_setting(item) else ""
    return f"{instead}{setting}: the size of its result depends on the data"


_WITHOUT_SHAPES = frozenset({"linalg_lstsq", "ctc_loss"})
"""Operators that PyTorch cannot trace with `capture_dynamic_output_shape_ops` either."""


def _data_dependent(item: Break) -> str | None:
    found = _OPERATOR.search(_said(item))
    if found is None:
        return None
    name, source = _short(found["name"]), item.source or ""
    if name == "local_scalar_dense":  # whatever takes a number out of a tensor
        if "random" in source:
            return _DRAW
        return _list_call(item) if ".tolist(" in source else _item_call(item)
    tensor = _TENSOR_TESTS.get(name)
    if tensor is None:
        return _call_outside(item, name)
    return f"Keep the answer in a tensor, as `{tensor}` does, and choose with `torch.where`: `{name}` returns a Python value"


def _builtin(item: Break) -> str | None:
    found = _BUILTIN.search(_said(item))
    if found is None:
        return None
    name = found["name"]
    if name == "print":
        return f"Print {_OUTSIDE}{_or_listed(item, '`print`')}"
    if name in _AS_TEXT:
        return _TEXT
    return f"Open files {_OUTSIDE}" if name in _FILES else _call_outside(item, name)


def _logging(item: Break) -> str:
    return f"Log {_OUTSIDE}{_or_listed(item, 'the method')}"


def _clock(_item: Break) -> str:
    return "Read the clock around the call of the compiled function, not inside it"


def _skipped(item: Break) -> str | None:
    found = _SKIPPED.search(_said(item))
    if found is None:
        return None
    name = found["name"].rsplit(">.", maxsplit=1)[-1]
    module, _, function = name.rpartition(".")
    if module == "time" and function in _CLOCKS:
        return _clock(item)
    if "_LegacyVariableBase" in name:
        return "Remove `Variable(...)`: every tensor is one since torch 0.4, and PyTorch cannot trace the call"
    if name == "_warnings.warn":
        return f"Warn {_OUTSIDE}{_or_listed(item, '`warnings.warn`')}"
    if module == "Random":
        return _DRAW
    wrapped = "third-party C/C++" in _said(item) and module.partition(".")[0] not in _NO_OPERATORS and not _is_behind(item)
    return _call_outside(item, name) + (", or make it a custom operator with `torch.library.custom_op`" if wrapped else "")


_NO_OPERATORS = frozenset({*sys.stdlib_module_names, "torch"})
"""Modules whose functions are no candidates for custom operators."""


def _numpy(item: Break) -> str | None:
    found = _FUNCTION.search(_said(item))
    if found is None:
        return None
    if "rng" in found["name"] or "random" in found["name"]:
        return _DRAW
    return f"Use a torch function instead of NumPy's `{found['name']}`, which PyTorch cannot trace, or call it {_OUTSIDE}"


def _method(item: Break) -> str | None:
    found = _METHOD.search(_said(item))
    if found is None:
        return None
    if found["method"] == "__new__":
        return f"Move the line {_OUTSIDE}: PyTorch cannot trace how its object is created"
    return _call_outside(item, f"{found['owner']}.{found['method']}")


def _context_manager(item: Break) -> str:
    found = _CONTEXT.search(_said(item))
    name = f"`{found['name']}`" if found else "the context manager"
    return f"Enter {name} around the call of the compiled function, not inside it"


def _generator(_item: Break) -> str:
    return "Compile the function that consumes the generator, not the generator itself"


def _deepcopy(_item: Break) -> str:
    return "Copy tensors with `.clone()` instead of `copy.deepcopy`"


def _autograd(item: Break) -> str:
    setting = _or_setting(item)
    detached = " and return losses detached" if setting else ""  # else the same line breaks the graph for the next reason, below
    return f"Compute gradients outside of the compiled function, from what it returns{setting}{detached}"


def _consumed(item: Break) -> str:
    found = _CONSUMED.search(_said(item))
    which = f"`{found['name']}.detach()`" if found else "losses detached, as `loss.detach()`"
    return f"Return {which}: `backward` inside the function uses up the graph of what it returns"


def _recurrent(_item: Break) -> str:
    return f"Call the recurrent layer outside of the compiled function{_FOR_INFERENCE}"


def _sorting(_item: Break) -> str:
    return "Stack the tensors and sort them with `torch.sort`: Python's sort needs their values"


def _scripted(_item: Break) -> str:
    return "Use the plain nn.Module instead of its `torch.jit.script` version"


def _sparse(_item: Break) -> str:
    return f"Use dense tensors inside the compiled function, and convert {_OUTSIDE}"


def _loop(_item: Break) -> str:
    return "Remove the graph break inside the loop: because of it, PyTorch does not trace the enclosing function"


def _data_parallel(_item: Break) -> str:
    return "Compile the model before it is wrapped, `DistributedDataParallel(torch.compile(model, ...))`: PyTorch traces no wrapper"


def _hooked(item: Break) -> str | None:
    if item.source != _FSDP2_HOOK:
        return _skipped(item)
    return "Compile each module that `fully_shard` shards (`module.compile(...)`), not the whole model: PyTorch traces no hooks of FSDP2"


_FSDP2_HOOK = "return torch._dynamo.disable("
"""The line of the wrapper in torch/distributed/fsdp/_fully_shard/_fsdp_common.py that runs each hook."""


def _packed(item: Break) -> str | None:
    if "torch.ops.quantized." not in (item.source or ""):
        return None
    return "Quantise with torchao, `quantize_(model, Int8DynamicActivationInt8WeightConfig())`: PyTorch cannot trace those of torch.ao"


def _lowering(item: Break) -> str | None:
    """Advise the setting that a loop with gradients needs: only with it does PyTorch make its number of steps a symbol."""
    return f"Set `{_SCALARS}`: gradients of `while_loop` need it" if "while_loop" in (item.source or "") else None


def _limit(_item: Break) -> str:
    return "Keep the values that the recompiles of this function list the same on every call; PyTorch stopped recompiling it"


def _decided_by_size(_item: Break) -> str:
    return f"Move the line {_OUTSIDE}: it decides by a size that depends on the data"


def _hooks(item: Break) -> str | None:
    if "RemovableHandle" not in _said(item) + (item.source or ""):  # PyTorch's, which counts itself in its class
        return None
    return f"Register and remove hooks {_OUTSIDE}: PyTorch cannot trace that"


_BREAK_RULES: Sequence[tuple[tuple[str, ...], Callable[[Break], str | None]]] = (
    (("torch._dynamo.graph_break()",), _on_purpose),
    (("torch._dynamo.skip_frame()",), _on_purpose_skipped),
    (("torch.compiler.disable",), _disabled),
    (("Failed to convert args/kwargs to proxy",), _packed),
    (("Backend compiler", "failed with aten._local_scalar_dense"), _lowering),
    (("recompile limit exceeded",), _limit),
    (("cache limit exceeded",), _limit),
    (("recompile_limit reached",), _limit),
    (("graph break in loop",), _loop),
    (("RNN, GRU, or LSTM",), _recurrent),
    (("Data-dependent branching",), _branching),
    (("Tensor.item()",), _item_call),
    (("Tensor.tolist()",), _list_call),
    (("Dynamic shape operator",), _dynamic_shape),
    (("Data dependent operator",), _data_dependent),
    (("DistributedDataParallel._",), _data_parallel),
    (("`set_runtime_stats_and_log`",), _data_parallel),
    (("function `disable` in file",), _hooked),
    (("Logger",), _logging),
    (("Call to a time function",), _clock),
    (("repr() on tensor",), lambda _item: _TEXT),
    (("sort with non-constant keys", "torch.Tensor"), _sorting),
    (("Failed to trace builtin operator",), _builtin),
    (("numpy function",), _numpy),
    (("copy.deepcopy",), _deepcopy),
    (("consumed returned tensor's grad_fn",), _consumed),
    (("Tensor.backward()",), _autograd),
    (("torch.autograd.grad",), _autograd),
    (("function `grad` in file", "autograd"), _autograd),
    (("torch.jit.script",), _scripted),
    (("ScriptModules",), _scripted),
    (("sparse Tensor",), _sparse),
    (("Unsupported context manager",), _context_manager),
    (("active context manager",), lambda _item: "Move the context manager around the call of the compiled function"),
    (("Attempt to trace generator",), _generator),
    (("marked as skipped",), _skipped),
    (("Unsupported method call",), _method),
    (("guard on data-dependent expression",), _decided_by_size),
    (("setattr() is not supported",), _hooks),
    (("RemovableHandle",), _hooks),
)
"""Words that must all be in the reason and the explanation, and who writes the sentence; the first that fits does."""


def _call_outside(item: Break, name: str) -> str:
    """Advise moving a call that the user can see, by the name in the user's line; else moving the line."""
    written = _as_written(item, name)
    if written is None and (item.source is not None or _is_behind(item)):
        return f"Move the line {_OUTSIDE}: PyTorch cannot trace `{name}`, which it calls"
    return f"Call `{written or name}` {_OUTSIDE}"


def _as_written(item: Break, name: str) -> str | None:
    """Find how the user's line writes a function: `os.listdir` for `posix.listdir`; None where it does not."""
    if _is_behind(item):
        return None
    found = re.search(rf"[\w.]*\b{re.escape(name.rpartition('.')[2])}(?=\()", item.source or "")
    return found[0].lstrip(".") if found else None


def _is_behind(item: Break) -> bool:
    """Tell whether what stops the graph is a line of a library that the user's line calls."""
    return bool(item.user_stack) and not item.user_stack[-1].startswith(f"{item.file}:{item.line} ")


def _short(operator: str) -> str:
    """Shorten an operator's name: `nonzero` of `aten.nonzero.default`, `unique` of `aten._unique2.default`."""
    parts = operator.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.strip("_").rstrip("0123456789")


def _said(item: Break) -> str:
    return f"{item.reason}\n{item.explanation or ''}"


def _or_setting(item: Break) -> str:
    """Name the setting that PyTorch's own hints recommend, as a clause to append; empty if there is none."""
    name = next((name for name in _SWITCHES if any(name in hint for hint in item.hints)), None)
    return f", or set `torch._dynamo.config.{name} = True`" if name else ""


def _or_listed(item: Break, what: str) -> str:
    """Name the setting that lists functions, as PyTorch's own texts do, as a clause to append; empty if there is none."""
    found = _LISTED.search("\n".join((item.reason, *item.hints)))
    return f", or add {what} to `torch._dynamo.config.{found['name']}`" if found else ""


def _is_in_torch(item: Break) -> bool:
    """Tell whether what stops the graph is a line of PyTorch itself, whose frames are not in the user stack."""
    return bool(item.user_stack) and item.function is not None and item.user_stack[-1].rpartition(" ")[2] != item.function
