"""Advice as data, and the one table that words it.

A rule yields an `Advice`: what to do, as a kind, and what the sentence names, as parameters. Nothing reads a sentence: what code has to
know of an advice is its kind, its parameters or its settings.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortlens.trace.records import FrameCause, PythonFrame

_CONFIG = "torch._dynamo.config"

SENTENCES: Mapping[str, str] = {
    "stored": "{text}",
    # Graph breaks.
    "delete_graph_break": "Delete the call of `torch._dynamo.graph_break()`, which breaks the graph on purpose",
    "delete_skip_frame": "Delete the call of `torch._dynamo.skip_frame()`, which leaves the function uncompiled on purpose",
    "compile_forward_alone": "Compile the forward pass and the loss alone, and call `backward()` and the optimiser outside of the compiled "
    "function: PyTorch breaks the graph at both",
    "move_optimiser_step": "Move the optimiser's step before or after the compiled function: PyTorch breaks the graph around it on purpose",
    "expected_step": "Nothing to change: nothing is compiled but the optimiser's step, around which PyTorch breaks the graph on purpose",
    "move_line": "Move the line before or after the compiled function: <name|PyTorch cannot trace `{name}`, which it calls><wrapped|, or "
    "make it a custom operator with `torch.library.custom_op`><broken_by_library|the library that it calls breaks the graph on "
    "purpose><creates|PyTorch cannot trace how its object is created><decides|it decides by a size that depends on the data><number|it "
    "needs a value of a tensor as a Python number>",
    "set_config": "Set `{setting}`",
    "loop_outside": "Run the loop before or after the compiled function: when it ends depends on the data",
    # Measured on three mixtures of experts, against the time with the break: all rows in each round take 0.3 to 8 times as long, compiled
    # experts in a loop outside 1.5 to 7 times, and PyTorch alone 0.7 to 0.8 times.
    "mask_rounds": "Leave the function uncompiled, or, where the rounds are few and small, compute each for all rows and choose with "
    "`torch.where`: it loops over values of a tensor",
    "use_torch_math": "Use `torch.{name}` instead of `math.{name}`, which needs a Python number",
    "call_outside": "Call <name|`{name}`><!name|the function> before or after the compiled function<disabled|, or remove "
    "`torch.compiler.disable` from it><wrapped|, or make it a custom operator with `torch.library.custom_op`><setting|, or set "
    "`{setting}` if only tensors are computed from its result><sized|: the size of its result depends on the data>",
    "check_outside": "Check values before or after the compiled function: a check inside needs the value of a tensor",
    "keep_flag_in_bool": "Keep `{name}` in a Python bool, beside the tensor if that is saved with the model: the line needs its value",
    "fix_loop_count": "Loop a fixed number of times: this loop needs the value of a tensor",
    # Without `torch.cond` and `torch.while_loop`: measured, they take longer than the break that they remove.
    "choose_with_where": "Compute both outcomes and choose with `torch.where`, unless that costs more than the break: <later|a line "
    "below><!later|the line> needs a tensor's value",
    "pass_is_causal": "Pass `is_causal=True` or `is_causal=False` along with `mask`: otherwise PyTorch looks at the mask's values",
    "index_select": "Use `torch.index_select` with the tensor as index, on a stack of the items where they are in a list<math|, and "
    "`torch.{math}` instead of `math.{math}`><later|: a line below needs the number as an index>",
    "pass_as_int": "Take the number out of the tensor before the compiled function, and pass it as an int: <later|a line "
    "below><!later|the line> needs it as a size",
    "format_outside": "Format tensors as text before or after the compiled function<later|, in a line below>: formatting needs their "
    "values",
    "keep_in_tensor": "Keep the value in a tensor<call| without `{call}`><math|, with torch's functions instead of those of "
    "`math`><setting|, or set `{setting}`><size|, or, if it is a size, pass it to the compiled function as an int>",
    "compute_with_tensor": "Compute with the tensor instead of the numbers of `.tolist()`, or call it before or after the compiled "
    "function",
    "pass_output_size": "Pass `output_size=` to `repeat_interleave`: without it, the size of its result depends on the data",
    "mask_with_where": "Keep all elements and mask with `torch.where`<setting|, or set `{setting}` if only tensors are computed from its "
    "result>: the size of its result depends on the data",
    "draw_with_torch": "Draw random numbers with torch, for example `torch.rand`, or before or after the compiled function",
    "keep_answer_in_tensor": "Keep the answer in a tensor, as `{instead}` does, and choose with `torch.where`: `{name}` returns a Python "
    "value",
    "print_outside": "Print before or after the compiled function<listed|, or add `print` to `torch._dynamo.config.{listed}`>",
    "log_outside": "Log before or after the compiled function<listed|, or add `logging.Logger.{method}` to "
    "`torch._dynamo.config.{listed}`, which drops what it logs>",
    "warn_outside": "Warn before or after the compiled function<listed|, or add `warnings.warn` to `torch._dynamo.config.{listed}`>",
    "open_outside": "Open files before or after the compiled function",
    "read_clock_around": "Read the clock around the call of the compiled function, not inside it",
    "drop_variable": "Remove `Variable(...)`: every tensor is one since torch 0.4, and PyTorch cannot trace the call",
    "use_torch_function": "Use a torch function instead of NumPy's `{name}`, which PyTorch cannot trace, or call it before or after the "
    "compiled function",
    "enter_around": "Enter <name|`{name}`><!name|the context manager> around the call of the compiled function, not inside it",
    "move_context_around": "Move the context manager around the call of the compiled function",
    "compile_consumer": "Compile the function that consumes the generator, not the generator itself",
    "clone_tensors": "Copy tensors with `.clone()` instead of `copy.deepcopy`",
    # With the setting, the same line breaks the graph for the next reason, unless losses are detached.
    "compute_gradients_outside": "Compute gradients outside of the compiled function, from what it returns<setting|, or set `{setting}` "
    "and return losses detached>",
    "return_detached": "Return <name|`{name}.detach()`><!name|losses detached, as `loss.detach()`>: `backward` inside the function uses "
    "up the graph of what it returns",
    "call_layer_outside": "Call the recurrent layer outside of the compiled function<setting|, or, for inference alone, set "
    "`{setting}`><compare|, or, for inference alone, set `torch._dynamo.config.allow_rnn = True` and compare: only small layers get "
    "faster><gradients|, or, for inference, call it under `torch.no_grad()` and set `torch._dynamo.config.allow_rnn = True`>",
    "sort_with_torch": "Stack the tensors and sort them with `torch.sort`: Python's sort needs their values",
    "use_plain_module": "Use the plain nn.Module instead of its `torch.jit.script` version",
    "use_dense_tensors": "Use dense tensors inside the compiled function, and convert before or after the compiled function",
    "unbreak_loop": "Remove the graph break inside the loop: because of it, PyTorch does not trace the enclosing function",
    "compile_before_wrapping": "Compile the model before it is wrapped, `DistributedDataParallel(torch.compile(model, ...))`: PyTorch "
    "traces no wrapper",
    "compile_sharded_modules": "Compile each module that `fully_shard` shards (`module.compile(...)`), not the whole model: PyTorch "
    "traces no hooks of FSDP2",
    "quantise_with_torchao": "Quantise with torchao, `quantize_(model, Int8DynamicActivationInt8WeightConfig())`: PyTorch cannot trace "
    "those of torch.ao",
    "set_for_while_loop": "Set `{setting}`: gradients of `while_loop` need it",
    "keep_listed_values": "Keep the values that the recompiles of this function list the same on every call; PyTorch stopped recompiling "
    "it",
    "register_hooks_outside": "Register and remove hooks before or after the compiled function: PyTorch cannot trace that",
    # Recompiles.
    "expected_size": "Nothing to change, unless calls with size 0 or 1 in dimension {dim} of `{name}` can be avoided: PyTorch compiles "
    "them separately, once",
    "expected_number": "Nothing to change, unless calls with 0 or 1 for `{name}` can be avoided: PyTorch compiles these separately, once",
    "expected_attribute": "Nothing to change, unless `{name}` can be set before the first call: it sets it, and the code is compiled once "
    "more",
    "expected_role": "Nothing to change: {role} is compiled separately from {of_role}, once",
    "expected_other_sizes": "Nothing to change: the new version of {role} serves other sizes as well; `dynamic=True` compiles it at once",
    "expected_layout": "Nothing to change: the prompt leaves `{name}` in another memory layout than a token does, and {role} is compiled "
    "for each, once",
    "expected_limit": "Nothing to change: `{name}` grew beyond a limit of the model, such as a sliding window; {role} is compiled for "
    "both sides",
    "unbreak_caller": "Remove the graph break in the code that calls this function of a library: because of it, PyTorch compiles the "
    "function by itself, for each kind of tensor that it gets",
    "keep_number_in_tensor": "Keep the number computed at the preceding graph break in a tensor: a Python number becomes a constant of "
    "the next graph",
    "remove_break_before": "Remove the graph break before this part<sizes|, or compile with `dynamic=True`: one graph serves all "
    "sizes><!sizes|: what it leaves to this part is compiled in each of its forms>",
    "call_once_before": "Call the function once before it is compiled: `{name}` is filled by the first calls, and what reads it is "
    "compiled again",
    "set_before": "Set `{name}` before the first call and keep it from then on: what it holds is part of the compiled code",
    "same_requires_grad": "Keep `{name}.requires_grad` the same: each value is compiled separately",
    "same_rank": "Call with the same number of dimensions for `{name}`: each number is compiled separately",
    "one_dtype": "Convert `{name}` to one dtype before the call: each dtype is compiled separately",
    "one_layout": "Pass `{name}` in one memory layout, for example as `{name}.contiguous()`",
    "pass_same_requires_grad": "Call with `{name}.requires_grad` the same every time, or with `{name}.detach()`",
    "one_device": "Move `{name}` to one device before the call",
    "one_kind_of_tensor": "Make `{name}` one kind of tensor, on one device, before the call",
    "one_inference_mode": "Create `{name}` always under `torch.inference_mode()` or never: such tensors are compiled separately",
    "keep_weight_shape": "Keep the shape of `{name}`: sizes of weights are constants of the graph",
    "few_sizes": "Keep dimension {dim} of `{name}` to few sizes: the code makes each a constant of its graph, as a weight's shape does, "
    "so `mark_dynamic` would fail",
    "compile_dynamic": "Compile with `dynamic=True`: one graph serves all sizes<name| of `{name}`><cache|, or use a static cache, whose "
    "sizes stay the same>",
    "mark_dynamic": "Call `torch._dynamo.mark_dynamic({name}, {dim})`<others| and {others}> before the first call, or compile with "
    "`dynamic=True`: one graph serves all sizes; `ortlens.dynamic_shapes(model, calls)` lists what varies",
    "set_or_leave_none": "Set `{name}` before the first call, or leave it None: None is compiled separately",
    "pass_tensor": "Pass a tensor for `{name}` every time: None is compiled separately",
    "pass_or_never": "Pass `{name}` every time or never: None is compiled separately",
    "same_kind": "<kept|Keep the same kind of object in><!kept|Pass the same kind of object for> `{name}` every time",
    "same_kinds": "Let this line call modules and objects of one kind: the code compiled for another one is checked with `{error}`",
    "same_class": "<kept|Keep an object of the same class in><!kept|Pass an object of the same class for> `{name}` every time",
    "same_object": "<kept|Keep the same object in><!kept|Pass the same object for> `{name}` every time<code|, created once and not on "
    "every call>: its identity is part of the compiled code",
    "create_once": "Create the object whose method this is once, not on every call: each one is compiled separately",
    "same_modules": "Keep the same modules in `{name}`: each set of them is compiled separately",
    "same_keyword_arguments": "Pass the same keyword arguments every time",
    "same_keys": "<kept|Keep><!kept|Pass> `{name}` with the same keys <ordered|in the same order >every time",
    "same_count": "<kept|Keep><!kept|Pass> `{name}` with the same number of items every time, or its items as one tensor: a loop over "
    "them is unrolled",
    "differ_at_first": "Let {names} differ in the first call: PyTorch treats sizes that are equal there as one size",
    "same_condition": "Call with sizes for which `{condition}` is always true or always false: each is compiled separately",
    "different_tensors": "Pass different tensors for {names}, or the same one every time",
    "same_tensor": "Pass the same tensor for `{name}` and `{other}` every time, or never",
    "one_mode": "Keep `{name}` in one mode, `train()` or `eval()`, for all calls: each mode is compiled separately",
    "one_value": "Call with one value of `{name}`, or write a separate function for each<flag|: it decides what is in the graph>",
    "few_indexes": "<kept|Set `torch._dynamo.config.allow_unspec_int_on_nn_module = True`><!kept|Compile with `dynamic=True`> if `{name}` "
    "indexes a tensor, though 0 and 1 stay apart; keep it to few values if it chooses an item of a list, which is compiled for each",
    "size_as_number": "<setting|Set `{setting}`><!setting|Compile with `dynamic=True`>: `{name}` is a size, and else a constant of the "
    "graph",
    "number_in_buffer": "Make `{name}` a tensor, as a buffer of the module, or set `{setting}`<special|, which still compiles 0 and 1 "
    "separately>: a Python number is a constant of the graph",
    "make_tensor": "Make <outside|the global >`{name}` a tensor: a Python number is a constant of the graph",
    "pass_as_tensor": "<dynamic|Compile with `dynamic=True`, or pass ><!dynamic|Pass >`{name}` as a tensor<floats|, or compile with "
    "`dynamic=True`><sized|, unless it is a size>: a Python number is a constant of the graph",
    "one_grad_mode": "Make every call in the same mode, with or without `torch.no_grad()`: each mode is compiled separately",
    "one_autocast_dtype": "Use one dtype for `torch.autocast`: each is compiled separately",
    "one_autocast": "Make every call inside `torch.autocast`, or every call outside: each is compiled separately",
    "one_state": "Set PyTorch's `{name}` once, before the first call: each setting is compiled separately",
    "one_set_of_modes": "Make every call under the same `torch.device`, default device and modes of PyTorch, or under none: each set of "
    "them is compiled separately",
    "set_once": "Set `{name}` once, before the first call",
    "keep_the_same": "Keep it the same from call to call",
    # Operators that stay in PyTorch.
    "no_converter": "Keep {target}: it has no ONNX form for this call<cost|, and the split behind it costs {cost}>",
    "pass_bounds": "Pass `min=` and `max=` to {target}: else they follow from the data",
    "converter_raised": "See the table fallbacks for why {target} could not be converted",
    "dtype": "Use another data type for {target}",
    "layout": "Use plain dense tensors for {target}",
    "device": "Move the tensors of {target} to a device that ONNX Runtime supports here",
    "dynamic_shape": "Rewrite {target} so that the size of its result is known in advance",
    "side_effect": "Check whether the model needs {target}",
    "too_small": "Lower min_partition_nodes, so that {target} runs in ONNX Runtime too",
    "policy": "{target} stays in PyTorch on purpose",
    "session_refused": "See the table fallbacks for why ONNX Runtime refused {target}",
    "check_assertion": "Check whether the model needs {target}: PyTorch adds such checks, for example for a size that depends on data",
    "draw_outside": "Draw the random numbers of {target} outside of the compiled function and pass them in<dropout|; model.eval() removes "
    "dropout><always|; for dropout, pass `training=self.training`: it is True here, and model.eval() changes nothing>",
    "draw_multinomial": "Pass exponential noise in and take `(probabilities / noise).argmax(-1)` instead of {target}",
    "draw_bernoulli": "Pass uniform random numbers in and compare them with the probabilities instead of {target}<dropout|; model.eval() "
    "removes dropout><always|; for dropout, pass `training=self.training`: it is True here, and model.eval() changes nothing>",
    "complex_numbers": "Complex numbers stay in PyTorch, because ONNX Runtime has none; what is written with their real and imaginary "
    "parts (torch.view_as_real) can run there",
    "bfloat16": '<instructions|Leave it in PyTorch, which computes bfloat16 with instructions of this CPU; options={{"upcast": '
    '("bfloat16",)}} computes it in ONNX Runtime, in an estimated 1.0 to 1.6 times PyTorch\'s time><lacking|Set options={{"upcast": '
    '("bfloat16",)}}, which computes bfloat16 in ONNX Runtime, in an estimated seventh to half of PyTorch\'s time: this CPU lacks '
    'bfloat16 instructions><unknown|Set options={{"upcast": ("bfloat16",)}}, which computes bfloat16 in ONNX Runtime, and time both: it '
    "is faster on CPUs without bfloat16 instructions>",
}
"""The sentence of each kind, without a full stop; `<name|text>` where the advice has that parameter, `<!name|text>` where it has not."""

_GAVE_UP: Mapping[FrameCause | None, str] = {
    "loop": "the graph break is inside a loop",
    "position": "PyTorch cannot go on behind the graph break where it is, as in a `try` or `with` block",
    "limit": "PyTorch reached its limit of recompiles for it",
    "generator": "PyTorch does not compile generators by themselves",
    None: "PyTorch did not compile it",
}

_AT_LIMIT = "; PyTorch stopped recompiling this function; the last guard that failed: `{last_guard}`<seen| (seen: {seen})>"
_CLAUSE = re.compile(r"<(?P<without>!?)(?P<name>\w+)\|(?P<text>[^>]*)>")
_LISTED = {"print_outside": "print", "warn_outside": "warnings.warn", "log_outside": "logging.Logger.{method}"}
_DIGITS = re.compile(r"\d+")
_LAST = ("last_guard", "seen")
_TRIED, _TRIED_SETTING = "; tried: the line breaks no graph then", "; tried: with that setting, the line breaks no graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do about one thing."""

    kind: str  # what, as a key of `SENTENCES`
    params: Mapping[str, str]  # what the sentence names, and which of its clauses hold
    own_settings: tuple[str, ...] = ()  # lines of Python that a stored advice came with; those of the others follow from their parameters

    @property
    def settings(self) -> tuple[str, ...]:
        """Lines of Python that make the change as a setting."""
        found = [self.params["setting"]] if "setting" in self.params else []
        if "listed" in self.params:
            found.append(f"{_CONFIG}.{self.params['listed']}.add({_LISTED[self.kind].format_map(self.params)})")
        if self.kind == "bfloat16":
            found += option_lines(upcast=("bfloat16",))
        return (*self.own_settings, *found)

    @property
    def is_expected(self) -> bool:
        """Whether nothing has to be changed: the break or recompile is PyTorch's rule and nobody's fault."""
        return self.kind in _EXPECTED

    @property
    def is_tried(self) -> bool:
        """Whether the change was traced, and the line broke no graph with it."""
        return "tried" in self.params

    @property
    def change(self) -> tuple[object, ...]:
        """The change itself: equal for advice that differs only in a number, which may be a layer's, or in how it was reached."""
        return (self.kind, *sorted((name, _DIGITS.sub("#", value)) for name, value in self.params.items() if name not in _LAST))

    def sentence(self) -> str:
        """Word the advice, without a full stop."""
        template = SENTENCES[self.kind] + (_AT_LIMIT if "last_guard" in self.params else "")
        template += (_TRIED_SETTING if self.params["tried"] == "setting" else _TRIED) if self.is_tried else ""
        chosen = _CLAUSE.sub(lambda found: found["text"] if (found["name"] in self.params) != bool(found["without"]) else "", template)
        return chosen.format_map(self.params)


def given_up_clause(frame: PythonFrame) -> str:
    """Say what PyTorch runs of a function that was not compiled, and why."""
    runs = "it" if frame.operators is None else f"its {counted(frame.operators, 'operator')}"
    return f"PyTorch runs {runs}: {_GAVE_UP[frame.cause]}"


def given_up_title(frame: PythonFrame) -> str:
    """Say the same with the name of the function."""
    return f"`{frame.frame}` {'was given up' if frame.status == 'failed' else 'was not compiled'}, {given_up_clause(frame)}"


_EXPECTED = (
    *("expected_step", "expected_size", "expected_number", "expected_attribute"),
    *("expected_role", "expected_other_sizes", "expected_layout", "expected_limit"),
)


def advise(kind: str, **params: object) -> Advice:
    """Make an advice; parameters that are None or False are left out, and True stands for a clause without a name."""
    known = {name: "" if value is True else str(value) for name, value in params.items() if value is not None and value is not False}
    return Advice(kind=kind, params=known)


def worded(advice: Advice | None) -> dict[str, Any]:
    """Return the fields of a problem that say what to do, of an advice."""
    said = "" if advice is None else advice.sentence()
    return {"advice": advice, "todo": said, "mitigation": said, "settings": () if advice is None else advice.settings}


def remedy(first: str, more: str = "", /, **options: object) -> dict[str, Any]:
    """Return the fields of a finding that say what to do: in one sentence, in further ones, and as options of the backend."""
    said = {"mitigation": f"{first} {more}", "todo": first.rstrip(".")} if more else {"mitigation": first}
    return {**said, "settings": option_lines(**options)}


def option_lines(**options: object) -> tuple[str, ...]:
    """Write the lines of Python that set options of the backend, one each."""
    return tuple(
        f'model = torch.compile(model, backend="ortlens", options={{"{name}": {_literal(value)}}})' for name, value in options.items()
    )


def _literal(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))},)"
    return json.dumps(value) if isinstance(value, str) else repr(value)
