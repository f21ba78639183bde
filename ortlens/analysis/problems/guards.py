"""What to change about a recompile; nothing where the guard does not say enough.

As with graph breaks, advice is derived from PyTorch's own texts, and what no rule knows gets none. Names are the user's, as the guards have
them. Global settings are named only where PyTorch's own text names them.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from ortlens.analysis.problems.catalogue import Advice, advise
from ortlens.analysis.problems.number_uses import ARGUMENT, statement_of
from ortlens.trace.records import Recompile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ortlens.trace.records import Break, Graph

_TENSOR = re.compile(r"tensor '(?P<name>.+?)' (?P<what>.*?) ?mismatch(?: at index (?P<dim>\d+))?$")
_KIND = re.compile(r"expected type of '(?P<name>.+?)' to be ")
_NUMPY = re.compile(r"___from_numpy\((?P<name>.+?)\)")
_STATE = re.compile(r"GLOBAL_STATE changed: (?P<what>[\w()]+)")
_LENGTH = re.compile(r"len\((?P<name>.+)\) [!=]= \d+$")
_KEYS = re.compile(r"list\(dict\.keys\((?P<name>.+?)\)\)")
_IDENTITY = re.compile(r"___check_(?P<what>obj|type)_id\((?P<name>[^,()]+)")
_SIZE = re.compile(r"(?<![\w.\[\]'\"])(?P<name>[\w.\[\]'\"]+)\.size\(\)\[(?P<dim>\d+)\]")
_DUPLICATES = re.compile(r"Duplicate tensors found: (?P<names>\[.*\])")
_SAME = re.compile(r"(?P<name>[\w.\[\]']+) is (?P<not>not )?(?P<second>[\w.\[\]']+)$")
_EQUAL = re.compile(r"(?P<name>.+?) == (?P<value>.+)$")
_GLOBAL = re.compile(r"^G\['(?P<name>\w+)'\](?P<part>[.\[].*)?$")
_MODULE = re.compile(r"\._(?:modules|parameters|buffers)\['(?P<name>[^']+)'\]")
_IMPORTED = re.compile(r"^__import_(?P<module>\w+?)(?P<part>\..+)?$")  # as Dynamo names the globals of other modules
_INTERNAL = re.compile(r"___stack|__closure__")  # names of Dynamo's own, which say nothing to the user
_ON_STACK = re.compile(r"___stack\d+ == -?[\d.e+-]+$")
_OF_STACK = re.compile(r"___stack\d+")
_EMPTY = re.compile(r"not (?P<name>[\w.\[\]']+)$")  # an empty list, tuple, set or dict
_ENTRY = re.compile(r"(?:not )?___dict_contains\('(?P<key>\w+)', (?P<name>[\w.\[\]']+)\)$")
_MODES = re.compile(r"___check_torch_function_mode_stack\(\)")
_NUMBER_OF = re.compile(r"(?P<name>[A-Za-z]\w*(?:\.[A-Za-z]\w*)*) == -?\d[\d.e+-]*$")
_COMPUTED = re.compile(r"\._(?:parameters|buffers)\[")
_ARGUMENT = re.compile(r"\w+(?:\[(?:\d+|'\w+')\])*$")
_KEYWORD = re.compile(r"(?:L\[')?kwargs(?:'\])?\['(?P<name>\w+)'\]")
_CACHE = "past_key_values"
ERROR = re.compile(r"(?:\w+Error on (?P<name>.+)|'\w+' object (?:has no|is not) .+)$")
"""A check that was not false, but raised: what it reads is of another kind, such as an attribute of another module."""

_PLACE = re.compile(r"\bargs\[(?P<place>\d+)\]")
_GUARDED = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in ', re.MULTILINE)

_INT_ATTRIBUTES = "torch._dynamo.config.allow_unspec_int_on_nn_module = True"
_SPECIAL = frozenset({"0", "1"})
_MISMATCHES = {"rank": "same_rank", "dtype": "one_dtype", "stride": "one_layout", "requires_grad": "pass_same_requires_grad"}
_STATES = {
    "grad_mode": advise("one_grad_mode"),
    "autocast_dtype": advise("one_autocast_dtype"),
    "autocast": advise("one_autocast"),
    "num_threads": advise("set_once", name="torch.set_num_threads"),
    "default_dtype": advise("set_once", name="torch.set_default_dtype"),
    "deterministic_algorithms": advise("set_once", name="torch.use_deterministic_algorithms"),
    **dict.fromkeys(("allow_tf32", "cuda_matmul_precision"), advise("set_once", name="torch.set_float32_matmul_precision")),
}


def recompile_traits(guard: str, fixed: Collection[tuple[str, int]] = (), *, is_dynamic: bool, in_library: bool) -> Iterator[str]:
    """Yield what only the compilation knows about a recompile.

    `fixed` holds name and dimension of sizes that versions of this code made constants, although they were to vary; `is_dynamic` says that
    all were to, as with `dynamic=True`; `in_library` that a library's function was compiled by itself, in no call of the user's.
    """
    found = _TENSOR.match(guard)
    if found is not None and found["what"] == "size":
        name = found["name"]
        if (name, int(found["dim"] or 0)) in fixed or (is_dynamic and not _COMPUTED.search(name)):
            yield "constant_size"
    if in_library:
        yield "library_alone"


def advice_for_recompile(
    item: Recompile, graph: Graph | None = None, of_graph: Graph | None = None, varying: Collection[str] = ()
) -> Advice | None:
    """Advise how to avoid a recompile; None when the guard does not say enough.

    `graph` is what was compiled anew, and `of_graph` that whose guard failed: `generate` makes its tensors inside, and none can be marked.
    `varying` are the sizes in which versions of this code differ, as in the record: one guard names one of them.
    """
    advice = _by_guard(item)
    if advice is not None and advice.kind == "mark_dynamic":
        advice = _marking_all(advice, varying)
    if graph is None or graph.role is None:
        return advice
    guard, role = item.guard or "", graph.role
    of_role = of_graph.role if of_graph is not None else None
    if of_role is not None and role != of_role:
        return advise("expected_role", role=role, of_role=of_role)
    if graph.dynamic_shapes and "size mismatch" in guard:
        return advise("expected_other_sizes", role=role)
    if _CACHE in guard and "stride mismatch" in guard:
        return advise("expected_layout", name=_CACHE, role=role)
    if _CACHE in guard and "<=" in guard:
        return advise("expected_limit", name=_CACHE, role=role)
    return advise("compile_dynamic") if advice is not None and advice.kind == "mark_dynamic" else advice


def _marking_all(advice: Advice, varying: Collection[str]) -> Advice:
    """Mark all sizes that vary: with one left out, the code is compiled again all the same, or the mark is refused."""
    dims: defaultdict[str, set[int]] = defaultdict(set)
    dims[advice.params["name"]].add(int(advice.params["dim"]))
    for size in filter(None, map(_SIZE.fullmatch, varying)):
        dims[user_name(size["name"])].add(int(size["dim"]))
    if not all(_ARGUMENT.match(name) and not _INTERNAL.match(name) for name in dims):
        return advise("compile_dynamic")
    (name, dim), *others = ((name, sorted(of) if len(of) > 1 else next(iter(of))) for name, of in dims.items())
    return advise(
        "mark_dynamic",
        name=name,
        dim=dim,
        others=" and ".join(f"`torch._dynamo.mark_dynamic({other}, {of})`" for other, of in others) or None,
    )


def advice_for_limit(item: Break, graph: Graph | None = None, varying: Collection[str] = ()) -> Advice:
    """Advise, with the guard and the values seen, where PyTorch gave up compiling a function; `graph` is the newest that it compiled."""
    refused = Recompile(
        compile_id="", guard=item.refused_guard, reason=item.refused_reason or "", values=item.refused_values, traits=item.traits
    )
    advice = advice_for_recompile(refused, graph, graph, varying) or advise("keep_the_same")
    last = advise(
        advice.kind,
        last_guard=condition_of(refused.guard or refused.reason),
        seen=", ".join(refused.values) if refused.values else None,
    )
    return replace(advice, params={**advice.params, **last.params})


def _by_guard(item: Recompile) -> Advice | None:
    guard, traits = item.guard or "", item.traits or ()
    found = _TENSOR.match(guard)
    if found is not None and not (found["what"] == "size" and not _SPECIAL.isdisjoint(item.values)):
        if "library_alone" in traits:
            return advise("unbreak_caller")
        if "constant_size" in traits:
            return advise("few_sizes", name=user_name(found["name"]), dim=int(found["dim"] or 0))
    if _INTERNAL.search(guard):
        return advise("unbreak_caller") if "library_alone" in traits else _at_a_break(guard)
    if "library_alone" in traits and _is_passed(guard):
        return advise("unbreak_caller")
    for form, rule in _RULES:
        if found := form.match(guard):
            name = user_name(found.groupdict().get("name") or "")
            if advice := _of_a_global(found) or rule(name, found, item):
                return advice
    return None


def _at_a_break(guard: str) -> Advice | None:
    """Advise on a guard of what a graph break left on Python's stack, which has no name in the program."""
    if _ON_STACK.match(guard):
        return advise("keep_number_in_tensor")
    return advise("remove_break_before", sizes="size mismatch" in guard) if _OF_STACK.search(guard) else None


def condition_of(guard: str) -> str:
    """Return the condition that a guard checks, without Dynamo's comment, and with words for what has no name in the program."""
    return _OF_STACK.sub("value_at_graph_break", guard.partition("  #")[0].strip() or guard.strip())


def with_argument(guard: str, source: str) -> str:
    """Name an argument as the line of the call does, where Dynamo has its place alone: `tensor 'x'` for `tensor 'args[0]'`."""
    statement, place = statement_of(source), _PLACE.search(guard)
    if statement is None or place is None:
        return guard
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call) and len(node.args) > int(place["place"])]
    names = {node.args[int(place["place"])] for node in calls}
    (name, *others) = [ast.unparse(node) for node in names if isinstance(node, (ast.Name, ast.Attribute))] or [""]
    return guard if not name or others else _PLACE.sub(name, guard)


def number_of_guard(guard: str) -> str | None:
    """Return the variable, or the attribute of one, of which a guard expects a number; None for other guards."""
    found = _NUMBER_OF.match(guard)
    return found["name"] if found else None


def _is_passed(guard: str) -> bool:
    """Tell whether a guard is about what the caller of the function passes, and not about a size."""
    found = next((found for rule in (_KIND, _LENGTH, _KEYS, _IDENTITY, _SAME, _EQUAL) if (found := rule.match(guard))), None)
    return found is not None and not _SIZE.search(guard) and found["name"] != "self" and not found["name"].startswith(("self.", "G["))


def _of_a_global(found: re.Match[str]) -> Advice | None:
    """Advise on a guard of a global object, which is no argument: nobody can pass it."""
    if found.re not in _OF_OBJECTS or not _GLOBAL.match(found["name"]):
        return None
    name = user_name(found["name"]).removesuffix(".__code__")
    imported = _IMPORTED.match(name)
    if imported is None:
        return advise("set_before", name=name)
    # `einops._backends._type2backend` for `__import_einops_dot__backends._type2backend`
    return advise("call_once_before", name=imported["module"].replace("_dot_", ".") + (imported["part"] or ""))


def _tensor(name: str, found: re.Match[str], item: Recompile) -> Advice | None:
    what = found["what"]
    if what == "size":
        return _size(found["name"], int(found["dim"] or 0), item.values)
    if what == "dispatch key set":
        return _dispatch(name, item)
    if what == "requires_grad" and _COMPUTED.search(found["name"]):
        return advise("same_requires_grad", name=name)
    kind = _MISMATCHES.get(what) or ("one_device" if "device" in what else None)
    return advise(kind, name=name) if kind else None


def _size(source: str, dim: int, values: Sequence[str]) -> Advice:
    name = user_name(source)
    if _COMPUTED.search(source):
        return advise("keep_weight_shape", name=name)
    if _SPECIAL.intersection(values):
        return advise("expected_size", name=name, dim=dim)
    if not _ARGUMENT.match(name):  # the caller does not hold it: it is in an object, as a cache holds its tensors
        return advise("compile_dynamic", name=name, cache=_CACHE in source)
    return advise("mark_dynamic", name=name, dim=dim)


def guard_place(item: Recompile) -> tuple[str | None, int | None]:
    """Find file and line where the code reads what failed the guard, or else those of the function that was compiled again."""
    frames = list(_GUARDED.finditer(item.reason))
    own = [frame for frame in frames if frame["file"] == item.file]
    return (own[-1]["file"], int(own[-1]["line"])) if own else (item.file, item.line)


def _dispatch(name: str, item: Recompile) -> Advice | None:
    sides = [set(re.findall(r"\w+", value.partition("(")[2])) for value in item.values]
    if len(sides) != 2:  # noqa: PLR2004 - what was expected and what came
        return None
    is_other = any(not key.startswith(("Autograd", "ADInplace")) for key in sides[0] ^ sides[1])
    return advise("one_kind_of_tensor" if is_other else "one_inference_mode", name=name)


def _error(_name: str, found: re.Match[str], _item: Recompile) -> Advice:
    if found["name"]:
        return advise("same_kind", name=user_name(found["name"]), kept=True)
    return advise("same_kinds", error=found[0])


def _kind(name: str, _found: re.Match[str], item: Recompile) -> Advice | None:
    if any("NoneType" in value for value in item.values[-1:]) or "found <class 'NoneType'>" in item.reason:
        return advise("set_or_leave_none" if _is_attribute(name) else "pass_tensor", name=name)
    return advise("same_kind", name=name, kept=_is_attribute(name))


def _state(_name: str, found: re.Match[str], _item: Recompile) -> Advice | None:
    what = re.sub(r"\(\w+\)", "", found["what"])  # `autocast(cpu)_dtype`
    return next((advice for state, advice in _STATES.items() if what.startswith(state)), advise("one_state", name=what))


def _length(name: str, found: re.Match[str], _item: Recompile) -> Advice | None:
    if name.endswith("._modules"):
        return advise("same_modules", name=name.removesuffix("._modules"))
    if name in ("kw", "kwargs"):
        return advise("same_keyword_arguments")
    kind = "same_keys" if "!=" in found[0] else "same_count"  # with `!=`, only dicts are reported
    return advise(kind, name=name, kept=_is_attribute(name))


def _entry(name: str, found: re.Match[str], _item: Recompile) -> Advice | None:
    if found[0].startswith("not ") and name.endswith(".__dict__"):  # until the first call, the class has it
        return advise("expected_attribute", name=f"{name.removesuffix('.__dict__')}.{found['key']}")
    return None if name.endswith(".__dict__") else advise("same_keys", name=name, kept=_is_attribute(name))


def _identity(name: str, found: re.Match[str], _item: Recompile) -> Advice | None:
    if found["what"] == "type":
        return advise("same_class", name=name, kept=_is_attribute(name))
    if name == "self":
        return advise("create_once")
    whole = name.removesuffix(".__code__")
    return advise("same_object", name=whole, code=whole != name, kept=_is_attribute(whole))


def _is_attribute(name: str) -> bool:
    """Tell whether a name is kept by the object, and not passed."""
    return name.startswith("self.")


def _shape(_name: str, found: re.Match[str], item: Recompile) -> Advice:
    guard = found[0]
    sizes = list(_SIZE.finditer(guard))
    is_special = [any(value in (f"{size.group()} = 0", f"{size.group()} = 1") for value in item.values) for size in sizes]
    at_least_two = re.match(rf"2 <= {re.escape(sizes[0].group())}$", guard)
    if at_least_two or ("duck sizing" in item.reason and any(is_special)):
        special = sizes[is_special.index(True) if any(is_special) else 0]
        return advise("expected_size", name=user_name(special["name"]), dim=int(special["dim"]))
    if "duck sizing" in item.reason:
        return advise("differ_at_first", names=" and ".join(f"`{user_name(size.group())}`" for size in sizes))
    return advise("same_condition", condition=" ".join(guard.split()))


def _duplicates(_name: str, found: re.Match[str], _item: Recompile) -> Advice | None:
    listed = _literal(found["names"])
    names = ", ".join(f"`{user_name(str(name))}`" for name in listed) if isinstance(listed, list) else ""
    return advise("different_tensors", names=names) if names else None


def _same_tensor(name: str, found: re.Match[str], _item: Recompile) -> Advice:
    if found["second"] == "None":
        return advise("set_or_leave_none" if _is_attribute(name) else "pass_or_never", name=name)
    return advise("same_tensor", name=name, other=user_name(found["second"]))


def _equal(name: str, found: re.Match[str], item: Recompile) -> Advice | None:
    value, source = _literal(found["value"]), found["name"]
    if isinstance(value, bool):
        is_mode = source.endswith(".training")
        return advise("one_mode", name=name.removesuffix(".training")) if is_mode else advise("one_value", name=name, flag=True)
    if isinstance(value, (int, float)):
        return _number(source, name, item)
    return advise("one_value", name=name) if isinstance(value, str) else None


def _number(source: str, name: str, item: Recompile) -> Advice:
    is_special, traits = bool(_SPECIAL.intersection(item.values)), item.traits or ()
    setting = _INT_ATTRIBUTES if _INT_ATTRIBUTES.partition(" ")[0].rpartition(".")[2] in item.reason else None
    if ARGUMENT["decides"] in traits:
        return advise("one_value", name=name, flag=True)
    if ARGUMENT["index"] in traits:
        return advise("few_indexes", name=name, kept=setting is not None)
    if ARGUMENT["size"] in traits:
        return (
            advise("expected_number", name=name) if is_special and setting is None else advise("size_as_number", name=name, setting=setting)
        )
    if setting is not None:
        return advise("number_in_buffer", name=name, setting=setting, special=is_special)
    outside = _GLOBAL.match(source)
    if outside is not None:
        return advise("make_tensor", name=name, outside=not outside["part"])
    kinds = {type(_literal(value)) for value in item.values}
    # One graph takes one kind of number, and PyTorch may make constants of 0 and 1 even then.
    varies = not is_special and len(kinds) == 1
    return _float(name, traits) if kinds == {float} else advise("pass_as_tensor", name=name, dynamic=varies, sized=True)


def _float(name: str, traits: Collection[str]) -> Advice:
    """Advise on a float, measured: what is a setting varies neither as a tensor nor with `dynamic=True`, an operand only as a tensor."""
    if ARGUMENT["setting"] in traits:
        return advise("one_value", name=name)
    return advise("pass_as_tensor", name=name, floats=ARGUMENT["operand"] not in traits)


_OF_OBJECTS = (_KIND, _LENGTH, _EMPTY, _KEYS, _IDENTITY)
_RULES: Sequence[tuple[re.Pattern[str], Callable[[str, re.Match[str], Recompile], Advice | None]]] = (
    (_TENSOR, _tensor),
    (ERROR, _error),
    (_KIND, _kind),
    (_STATE, _state),
    (_LENGTH, _length),
    (_EMPTY, lambda name, *_: advise("same_count", name=name, kept=_is_attribute(name))),
    (_MODES, lambda *_: advise("one_set_of_modes")),
    (_KEYS, lambda name, *_: advise("same_keys", name=name, ordered=True, kept=_is_attribute(name))),
    (_ENTRY, _entry),
    (_IDENTITY, _identity),
    (_DUPLICATES, _duplicates),
    (_SAME, _same_tensor),
    (re.compile(rf".*?{_SIZE.pattern}.*", re.DOTALL), _shape),
    (_EQUAL, _equal),
)
"""The forms of guards, and what advises on each, by the name in it as the user writes it; the first that knows something does."""


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return None


def user_name(source: str) -> str:
    """Write a name of a guard as the user does: `self.drop.training` for `self._modules['drop'].training`, `scale` for `G['scale']`."""
    source = _NUMPY.sub(r"\g<name>", source)
    source = _GLOBAL.sub(lambda match: match["name"] + (match["part"] or ""), source)
    return _MODULE.sub(lambda match: f".{match['name']}", _KEYWORD.sub(r"\g<name>", source))
