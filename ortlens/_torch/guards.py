"""Guards of compiled code: how many there are for each container that the code reads, and how long they take."""

from __future__ import annotations

import contextlib
import linecache
import re
import time
from dataclasses import dataclass
from itertools import islice
from operator import sub
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import CodeType

_FEW, _SHARE, _MOST = 50, 0.2, 0.8
_NEAR, _MOST_PARTS = 16, 3
_FEWEST, _MOST_TIMES, _MOST_NS = 9, 60, 200_000_000
_ROOTS = ("L", "G")  # variables and globals, as Dynamo names them
_WRAPPED = ("L['fn']", "L['self']")  # how its wrapper of modules of libraries, `inner`, names the module
_PLACE = re.compile(r"# (?P<file>[^#]+):(?P<line>\d+) in ")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardTime:
    """The guards below one source: an attribute, a container, or all of them."""

    source: str  # as Dynamo writes it, `L['self'].table`; `L` for all
    count: int
    ns: int  # that checking them adds to a call
    file: str | None = None  # that reads the container, as far as the guards name it
    line: int | None = None


def guard_times(code: CodeType, variables: Mapping[str, Any], call: Callable[[], Any]) -> tuple[GuardTime, ...]:
    """Time the guards of a compiled function, all of them first, then those of the containers with many; empty where none hold.

    `variables` are those that the function begins with. Whole calls are timed: thousands of guards evict from the caches what the rest of a
    call needs, which can cost it as much as the check. A container's time is what a call saves that checks a copy without its guards:
    `clone_manager` in `torch/_C/_dynamo/guards.pyi`, with which Dynamo itself makes a second tree.
    """
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    given = dict(variables)
    entry = next((entry for entry in _debug_get_cache_entry_list(code) if entry.guard_manager.root.check(given)), None)
    if entry is None:
        return ()
    root = entry.guard_manager.root
    whole = _count(root)
    managers = list(islice(_crowded(root, whole), _MOST_PARTS))
    left_out = (lambda manager: manager.get_source() in _ROOTS, *(_outside({manager.get_source()}) for manager in managers))
    try:
        whole_ns, *rest = _saved_ns(entry, [root, *map(root.clone_manager, left_out)], call)
    except RuntimeError:  # of Dynamo: the call enters other code in a way that none of its entries serves
        return ()
    found = [GuardTime(source="L", count=whole, ns=whole_ns)]
    for manager, ns in zip(managers, rest, strict=True):
        file, line = _place_of(manager)
        source = manager.get_source().replace(*_WRAPPED) if code.co_name == "inner" else manager.get_source()
        found.append(GuardTime(source=source, count=_count(manager), ns=ns, file=file, line=line))
    return tuple(found)


def _saved_ns(entry: Any, trees: Sequence[Any], call: Callable[[], Any]) -> list[int]:
    """Time calls that check each tree, in turns; return how much longer they take with the first than with each other one."""
    clock = time.perf_counter_ns
    times: list[list[int]] = [[] for _ in trees]
    deadline = clock() + _MOST_NS
    while len(times[0]) < _FEWEST or (len(times[0]) < _MOST_TIMES and clock() < deadline):
        for tree, own in zip(trees, times, strict=True):
            with checking([(entry, tree)]):
                call()  # finds in the caches what calls with another tree left there
                started = clock()
                call()
                own.append(clock() - started)
    first, *others = times
    return [max(round(median(map(sub, first, other))), 0) for other in others]


@contextlib.contextmanager
def checking(trees: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Let calls check other trees than those of cache entries, each with its own: those that Dynamo has for skipping guards.

    Nothing is compiled meanwhile. Rejected: to fail where something would be, since Dynamo asks so for what it never compiles as well.
    """
    before = [(entry, entry.guard_manager.diff_guard_root) for entry, _ in trees]
    with torch.compiler.set_stance("eager_on_recompile", skip_guard_eval_unsafe=True):
        try:
            _use(trees)
            yield
        finally:
            _use(before)


def _use(trees: Sequence[tuple[Any, Any]]) -> None:
    for entry, tree in trees:
        entry.guard_manager.diff_guard_root = tree
        entry.update_diff_guard_root_manager()


def trees_without_modules() -> list[tuple[Any, Any]]:
    """Copy the trees of all cache entries without the guards of modules, but those by which Dynamo tells entries of one code apart."""
    from torch._dynamo.convert_frame import input_codes
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    codes = filter(None, (code() for code in input_codes.seen))
    trees = []
    for entry in (entry for code in codes for entry in _debug_get_cache_entry_list(code)):
        manager = entry.guard_manager
        left_out = set(_sources_of_modules(manager.root)) - set(manager.diff_guard_sources)
        trees.append((entry, manager.root.clone_manager(_outside(left_out))))
    return trees


def _sources_of_modules(manager: Any, *, is_inside: bool = False) -> Iterator[str]:
    for child in _children(manager):
        is_own = is_inside or _is_module(child)
        if is_own:
            yield child.get_source()
        yield from _sources_of_modules(child, is_inside=is_own)


def _outside(sources: set[str]) -> Callable[[Any], bool]:
    return lambda manager: manager.get_source() not in sources


def _children(manager: Any) -> Iterator[Any]:
    """Yield the managers below one; `None` stands for a key without guards."""
    if hasattr(manager, "get_key_value_managers"):
        yield from (part for pair in manager.get_key_value_managers().values() for part in pair if part is not None)
    else:
        yield from manager.get_child_managers()


def _count(manager: Any) -> int:
    return len(manager.get_leaf_guards()) + sum(map(_count, _children(manager)))


def _crowded(manager: Any, whole: int) -> Iterator[Any]:
    """Yield the containers, but modules, with many of the guards, of which no part has most of them."""
    for child in _children(manager):
        count = _count(child)
        if count < max(_FEW, _SHARE * whole):
            continue
        if _is_of_modules(child, manager) or any(_count(part) >= _MOST * count for part in _children(child)):
            yield from _crowded(child, whole)
        else:
            yield child


def _is_of_modules(manager: Any, parent: Any) -> bool:
    """Tell whether a source is one of all, a module, what it keeps its attributes in, or holds modules: none that could be left out."""
    source = manager.get_source()
    is_dict_of_module = source.endswith(".__dict__") and _is_module(parent)
    return source in _ROOTS or _is_module(manager) or is_dict_of_module or any(map(_is_module, _children(manager)))


def _is_module(manager: Any) -> bool:
    return issubclass(manager.get_type_of_guarded_value(), torch.nn.Module)


def _place_of(manager: Any) -> tuple[str | None, int | None]:
    """Find the first line that guards of a container and right below name as their reason.

    They shorten the name of its file, whose lines Dynamo has read for them.
    """
    near = islice((manager, *_children(manager)), _NEAR)
    texts = (text for child in near for guard in child.get_leaf_guards() for text in guard.verbose_code_parts())
    places = {(found["file"].strip(), int(found["line"])) for found in map(_PLACE.search, texts) if found is not None}
    ends, line = min(places, key=lambda place: place[1], default=("", None))
    files = [file for file in linecache.cache if ends and file.endswith(ends)]
    return (files[0], line) if len(files) == 1 else (None, None)
