"""What to change about a recompile, in one sentence; nothing where the guard does not say enough.

As with graph breaks the sentences are derived from PyTorch's own texts, and what no rule knows gets no advice. Names are the
user's, as the guards have them. Global settings are named only where PyTorch's own text names them.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ortlens.trace.records import Recompile

_TENSOR = re.compile(r"tensor '(?P<name>.+?)' (?P<what>.*?) ?mismatch(?: at index (?P<dim>\d+))?$")
_KIND = re.compile(r"expected type of '(?P<name>.+?)' to be ")
_NUMPY = re.compile(r"___from_numpy\((?P<name>.+?)\)")
_STATE = re.compile(r"GLOBAL_STATE changed: (?P<what>[\w()]+)")
_LENGTH = re.compile(r"len\((?P<name>.+)\) [!=]= \d+$")
_KEYS = re.compile(r"list\(dict\.keys\((?P<name>.+?)\)\)")
_IDENTITY = re.compile(r"___check_(?P<what>obj|type)_id\((?P<name>[^,()]+)")
_SIZE = re.compile(r"(?P<name>[\w.\[\]'\"]+)\.size\(\)\[(?P<dim>\d+)\]")
_DUPLICATES = re.compile(r"Duplicate tensors found: (?P<names>\[.*\])")
_SAME = re.compile(r"(?P<first>[\w.\[\]']+) is (?P<not>not )?(?P<second>[\w.\[\]']+)$")
_EQUAL = re.compile(r"(?P<name>.+?) == (?P<value>.+)$")
_GLOBAL = re.compile(r"^G\['(?P<name>\w+)'\](?P<part>[.\[].*)?$")
_MODULE = re.compile(r"\._(?:modules|parameters|buffers)\['(?P<name>[^']+)'\]")
_IMPORTED = re.compile(r"^__import_(?P<module>\w+?)(?P<part>\..+)?$")  # as Dynamo names the globals of other modules
_INTERNAL = re.compile(r"___stack|__closure__")  # names of Dynamo's own, which say nothing to the user
_ON_STACK = re.compile(r"___stack\d+ == -?[\d.e+-]+$")
_HANDED_ON = "Keep the number computed at the preceding graph break in a tensor: a Python number becomes a constant of the next graph"
_COMPILED_ALONE = (
    "Remove the graph break in the code that calls this function of a library: because of it, PyTorch compiles the function by itself, "
    "for each kind of tensor that it gets"
)
_COMPUTED = re.compile(r"\._(?:parameters|buffers)\[")

_ARGUMENT = re.compile(r"\w+(?:\[(?:\d+|'\w+')\])*$")
_KEYWORD = re.compile(r"(?:L\[')?kwargs(?:'\])?\['(?P<name>\w+)'\]")
_EXPECTED = "Nothing to change"
_CACHE = re.compile(r"past_key_values")
_GUARDED = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in ', re.MULTILINE)

_SPECIAL = frozenset({"0", "1"})
_STATES = {
    "grad_mode": "Make every call in the same mode, with or without `torch.no_grad()`: each mode is compiled separately",
    "autocast_dtype": "Use one dtype for `torch.autocast`: each is compiled separately",
    "autocast": "Make every call inside `torch.autocast`, or every call outside: each is compiled separately",
    "num_threads": "Set `torch.set_num_threads` once, before the first call",
    "default_dtype": "Set `torch.set_default_dtype` once, before the first call",
    "deterministic_algorithms": "Set `torch.use_deterministic_algorithms` once, before the first call",
}


def advice_for_recompile(
    item: Recompile, fixed: Collection[tuple[str, int]] = (), *, is_dynamic: bool = False, in_library: bool = False
) -> str | None:
    """Say in one sentence, without a full stop, how to avoid a recompile; None when the guard does not say enough.

    `fixed` holds name and dimension of sizes that versions of this code made constants, although they were to vary; `is_dynamic` says that
    all were to, as with `dynamic=True`; `in_library` that a library's function was compiled by itself, in no call of the user's.
    """
    guard = item.guard or ""
    found = _TENSOR.match(guard)
    is_special = found is not None and found["what"] == "size" and not _SPECIAL.isdisjoint(item.values)
    if found is not None and not is_special:
        name, dim = found["name"], int(found["dim"] or 0)
        if in_library:
            return _COMPILED_ALONE
        if found["what"] == "size" and ((name, dim) in fixed or (is_dynamic and not _COMPUTED.search(name))):
            return _fixed_size(name, dim)
    if _INTERNAL.search(guard):
        return _HANDED_ON if _ON_STACK.match(guard) else None
    if in_library and _is_passed(guard):
        return _COMPILED_ALONE
    for rule in _RULES:
        said = rule(guard, item)
        if said is not None:
            return said
    return None


def advice_in_generation(item: Recompile, role: str, of_role: str | None, *, sizes_vary: bool) -> str | None:
    """Advise where `generate` calls the compiled code: its tensors are made inside, and cannot be marked.

    Returns one sentence without a full stop; None when the guard does not say enough. `of_role` is that of the graph whose guard failed;
    `sizes_vary` says whether the new graph serves several sizes.
    """
    if of_role is not None and role != of_role:
        return f"{_EXPECTED}: {role} is compiled separately from {of_role}, once"
    if sizes_vary and "size mismatch" in (item.guard or ""):
        return f"{_EXPECTED}: the new version of {role} serves other sizes as well; `dynamic=True` compiles it at once"
    made = _CACHE.search(item.guard or "")
    if made and "stride mismatch" in (item.guard or ""):
        return (
            f"{_EXPECTED}: the prompt leaves `{made[0]}` in another memory layout than a token does, and {role} is compiled for each, once"
        )
    if made and "<=" in (item.guard or ""):
        return f"{_EXPECTED}: `{made[0]}` grew beyond a limit of the model, such as a sliding window; {role} is compiled for both sides"
    if item.advice is None or "torch._dynamo.mark_dynamic(" not in item.advice:
        return item.advice
    return "Compile with `dynamic=True`: one graph serves all sizes"


def advice_for_limit(refused: Recompile) -> str:
    """Say in one sentence, with the guard and the values seen, what to change where PyTorch gave up compiling a function."""
    guard = (refused.guard or refused.reason).partition("  #")[0].strip()
    seen = f" (seen: {', '.join(refused.values)})" if refused.values else ""
    advice = refused.advice or "Keep it the same from call to call"
    return f"{advice}; PyTorch stopped recompiling this function; the last guard that failed: `{guard}`{seen}"


def _is_passed(guard: str) -> bool:
    """Tell whether a guard is about what the caller of the function passes, and not about a size."""
    found = next((found for rule in (_KIND, _LENGTH, _KEYS, _IDENTITY, _SAME, _EQUAL) if (found := rule.match(guard))), None)
    if found is None or _SIZE.search(guard):
        return False
    named = found.groupdict()
    name = named.get("name") or named.get("first") or ""
    return name != "self" and not name.startswith(("self.", "G["))


def _held_elsewhere(guard: str, _item: Recompile) -> str | None:
    """Advise on a guard of a global, which is no argument: nobody can pass it."""
    found = _LENGTH.match(guard) or _KEYS.match(guard) or _IDENTITY.match(guard) or _KIND.match(guard)
    if found is None or not _GLOBAL.match(found["name"]):
        return None
    name = user_name(found["name"]).removesuffix(".__code__")
    if _IMPORTED.match(name):
        return (
            f"Call the function once before it is compiled: `{_imported_name(name)}` is filled by the first calls, and what reads "
            "it is compiled again"
        )
    return f"Set `{name}` before the first call and keep it from then on: what it holds is part of the compiled code"


def _imported_name(name: str) -> str:
    """Write `einops._backends._type2backend` for `__import_einops_dot__backends._type2backend`."""
    found = _IMPORTED.match(name)
    return name if found is None else found["module"].replace("_dot_", ".") + (found["part"] or "")


def _tensor(guard: str, item: Recompile) -> str | None:
    found = _TENSOR.match(guard)
    if found is None:
        return None
    name, what = user_name(found["name"]), found["what"]
    if what == "size":
        return _size(found["name"], int(found["dim"] or 0), item.values)
    if what == "dispatch key set":
        return _dispatch(name, item)
    if what == "requires_grad" and _COMPUTED.search(found["name"]):
        return f"Keep `{name}.requires_grad` the same: each value is compiled separately"
    return {
        "rank": f"Call with the same number of dimensions for `{name}`: each number is compiled separately",
        "dtype": f"Convert `{name}` to one dtype before the call: each dtype is compiled separately",
        "stride": f"Pass `{name}` in one memory layout, for example as `{name}.contiguous()`",
        "requires_grad": f"Call with `{name}.requires_grad` the same every time, or with `{name}.detach()`",
    }.get(what) or (f"Move `{name}` to one device before the call" if "device" in what else None)


def _size(source: str, dim: int, values: Sequence[str]) -> str:
    name = user_name(source)
    if _COMPUTED.search(source):
        return f"Keep the shape of `{name}`: sizes of weights are constants of the graph"
    if _SPECIAL.intersection(values):
        return _special_size(name, dim)
    if not _ARGUMENT.match(name):  # the caller does not hold it: it is in an object, as a cache holds its tensors
        static = ", or use a static cache, whose sizes stay the same" if "past_key_values" in source else ""
        return f"Compile with `dynamic=True`: one graph serves all sizes of `{name}`{static}"
    mark = f"`torch._dynamo.mark_dynamic({name}, {dim})`"
    return f"Call {mark} before the first call, or compile with `dynamic=True`: one graph serves all sizes"


def _fixed_size(source: str, dim: int) -> str:
    why = "the code makes each a constant of its graph, as a weight's shape does, so `mark_dynamic` would fail"
    return f"Keep dimension {dim} of `{user_name(source)}` to few sizes: {why}"


def _special_size(name: str, dim: int) -> str:
    return (
        f"{_EXPECTED}, unless calls with size 0 or 1 in dimension {dim} of `{name}` can be avoided: PyTorch compiles them separately, once"
    )


def guard_place(item: Recompile) -> tuple[str | None, int | None]:
    """Find file and line where the code reads what failed the guard, or else those of the function that was compiled again."""
    frames = list(_GUARDED.finditer(item.reason))
    own = [frame for frame in frames if frame["file"] == item.file]
    return (own[-1]["file"], int(own[-1]["line"])) if own else (item.file, item.line)


def is_expected(item: Recompile) -> bool:
    """Tell whether a recompile is PyTorch's rule and nobody's fault: sizes 0 and 1, as in the decoding that follows a prompt."""
    return (item.advice or "").startswith(_EXPECTED)


def _dispatch(name: str, item: Recompile) -> str | None:
    sides = [set(re.findall(r"\w+", value.partition("(")[2])) for value in item.values]
    if len(sides) != 2:  # noqa: PLR2004 - what was expected and what came
        return None
    changed = sides[0] ^ sides[1]
    if any(not key.startswith(("Autograd", "ADInplace")) for key in changed):
        return f"Make `{name}` one kind of tensor, on one device, before the call"
    return f"Create `{name}` always under `torch.inference_mode()` or never: such tensors are compiled separately"


def _kind(guard: str, item: Recompile) -> str | None:
    found = _KIND.match(guard)
    if found is None:
        return None
    name = user_name(found["name"])
    if any("NoneType" in value for value in item.values[-1:]) or "found <class 'NoneType'>" in item.reason:
        return _never_filled(name) or f"Pass a tensor for `{name}` every time: None is compiled separately"
    return f"{_given(name, 'the same kind of object')} every time"


def _state(guard: str, _item: Recompile) -> str | None:
    found = _STATE.match(guard)
    if found is None:
        return None
    what = re.sub(r"\(\w+\)", "", found["what"])  # `autocast(cpu)_dtype`
    return next((said for state, said in _STATES.items() if what.startswith(state)), None)


def _length(guard: str, _item: Recompile) -> str | None:
    found = _LENGTH.match(guard)
    if found is None:
        return None
    name = user_name(found["name"])
    if name.endswith("._modules"):
        return f"Keep the same modules in `{name.removesuffix('._modules')}`: each set of them is compiled separately"
    if name in ("kw", "kwargs"):
        return "Pass the same keyword arguments every time"
    if "!=" in guard:  # only dicts are reported in this way
        return f"{_pass(name)} `{name}` with the same keys every time"
    return f"{_pass(name)} `{name}` with the same number of items every time, or its items as one tensor: a loop over them is unrolled"


def _keys(guard: str, _item: Recompile) -> str | None:
    found = _KEYS.match(guard)
    if found is None:
        return None
    name = user_name(found["name"])
    return f"{_pass(name)} `{name}` with the same keys in the same order every time"


def _identity(guard: str, _item: Recompile) -> str | None:
    found = _IDENTITY.match(guard)
    if found is None:
        return None
    name = user_name(found["name"])
    if found["what"] == "type":
        return f"{_given(name, 'an object of the same class')} every time"
    if name == "self":
        return "Create the object whose method this is once, not on every call: each one is compiled separately"
    whole = name.removesuffix(".__code__")
    made = ", created once and not on every call" if whole != name else ""
    return f"{_given(whole, 'the same object')} every time{made}: its identity is part of the compiled code"


def _is_attribute(name: str) -> bool:
    return name.startswith("self.")


def _pass(name: str) -> str:
    """Return the verb for what should stay the same: attributes are kept, arguments passed."""
    return "Keep" if _is_attribute(name) else "Pass"


def _given(name: str, what: str) -> str:
    return f"{_pass(name)} {what} {'in' if _is_attribute(name) else 'for'} `{name}`"


def _never_filled(name: str) -> str | None:
    """Advise on an attribute that a call fills where it was None; None for an argument."""
    return f"Set `{name}` before the first call, or leave it None: None is compiled separately" if _is_attribute(name) else None


def _names(text: str) -> list[str]:
    found = _literal(text)
    return [str(name) for name in found] if isinstance(found, list) else []


def _shape(guard: str, item: Recompile) -> str | None:
    sizes = list(_SIZE.finditer(guard))
    if not sizes:
        return None
    is_special = [any(value in (f"{size.group()} = 0", f"{size.group()} = 1") for value in item.values) for size in sizes]
    at_least_two = re.match(rf"2 <= {re.escape(sizes[0].group())}$", guard)
    if at_least_two or ("duck sizing" in item.reason and any(is_special)):
        special = sizes[is_special.index(True) if any(is_special) else 0]
        return _special_size(user_name(special["name"]), int(special["dim"]))
    if "duck sizing" in item.reason:
        names = " and ".join(f"`{user_name(size.group())}`" for size in sizes)
        return f"Let {names} differ in the first call: PyTorch treats sizes that are equal there as one size"
    return f"Call with sizes for which `{' '.join(guard.split())}` is always true or always false: otherwise the code takes another branch"


def _same_tensor(guard: str, _item: Recompile) -> str | None:
    found = _DUPLICATES.match(guard)
    if found is not None:
        names = ", ".join(f"`{user_name(name)}`" for name in _names(found["names"]))
        return f"Pass different tensors for {names}, or the same one every time" if names else None
    same = _SAME.match(guard)
    if same is None:
        return None
    name = user_name(same["first"])
    if same["second"] == "None":
        return _never_filled(name) or f"Pass `{name}` every time or never: None is compiled separately"
    return f"Pass the same tensor for `{name}` and `{user_name(same['second'])}` every time, or never"


def _equal(guard: str, item: Recompile) -> str | None:
    found = _EQUAL.match(guard)
    if found is None:
        return None
    value = _literal(found["value"])
    source, name = found["name"], user_name(found["name"])
    if isinstance(value, bool):
        if source.endswith(".training"):
            module = name.removesuffix(".training")
            return f"Keep `{module}` in one mode, `train()` or `eval()`, for all calls: each mode is compiled separately"
        return f"Call with one value of `{name}`, or write a separate function for each: it decides what is in the graph"
    if isinstance(value, (int, float)):
        return _number(source, name, item)
    return f"Call with one value of `{name}`, or write a separate function for each" if isinstance(value, str) else None


def _number(source: str, name: str, item: Recompile) -> str:
    if "allow_unspec_int_on_nn_module" in item.reason:
        setting = "`torch._dynamo.config.allow_unspec_int_on_nn_module = True`"
        still = ", which still compiles 0 and 1 separately" if _SPECIAL.intersection(item.values) else ""
        return f"Make `{name}` a tensor, as a buffer of the module, or set {setting}{still}: a Python number is a constant of the graph"
    outside = _GLOBAL.match(source)
    if outside is not None:
        what = f"`{name}`" if outside["part"] else f"the global `{name}`"
        return f"Make {what} a tensor: a Python number is a constant of the graph"
    constant = "a Python number is a constant of the graph"
    kinds = {type(_literal(value)) for value in item.values}
    # One graph takes one kind of number, and PyTorch may make constants of 0 and 1 even then.
    dynamic = not _SPECIAL.intersection(item.values) and len(kinds) == 1
    if kinds == {float}:
        return f"Pass `{name}` as a tensor, or compile with `dynamic=True`: {constant}"
    tensor = f"ass `{name}` as a tensor, unless it is a size"
    return f"Compile with `dynamic=True`, or p{tensor}: {constant}" if dynamic else f"P{tensor}: {constant}"


_RULES: Sequence[Callable[[str, Recompile], str | None]] = (
    _tensor,
    _held_elsewhere,
    _kind,
    _state,
    _length,
    _keys,
    _identity,
    _same_tensor,
    _shape,
    _equal,
)


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
