"""Guards of compiled code: how many there are for each container that the code reads, and how long they take."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import CodeType

_FEW, _SHARE, _MOST = 50, 0.2, 0.8
_TIMES, _NEAR, _MOST_PARTS = 9, 16, 3
_ROOTS = ("L", "G")  # variables and globals, as Dynamo names them
_PLACE = re.compile(r"# (?P<file>[^#]+):(?P<line>\d+) in ")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardTime:
    """The guards below one source: an attribute, a container, or all of them."""

    source: str  # as Dynamo writes it, `L['self'].table`; `L` for all
    count: int
    ns: int  # that checking them adds to a call
    line: int | None  # of the function's file, at which it reads the container, as far as the guards name it


def guard_times(code: CodeType, variables: Mapping[str, Any], call: Callable[[], Any]) -> tuple[GuardTime, ...]:
    """Time the guards of a compiled function, all of them first, then those of the containers with many; empty where none hold.

    `variables` are those that the function begins with. Each check is timed right after a `call`, as in a program: in a tight loop it finds
    all that it reads in the cache. A container's time is what the check of a copy without its guards saves: `clone_manager` in
    `torch/_C/_dynamo/guards.pyi`, with which Dynamo itself makes a second tree. A part of a tree cannot be checked alone from Python.
    """
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    given = dict(variables)
    roots = (entry.guard_manager.root for entry in _debug_get_cache_entry_list(code))
    root = next((root for root in roots if root.check(given)), None)
    if root is None:
        return ()
    whole = _count(root)
    managers = list(islice(_crowded(root, whole), _MOST_PARTS))
    whole_ns, *rest = _check_ns([root, *(root.clone_manager(_except(manager.get_source())) for manager in managers)], given, call)
    found = [GuardTime(source="L", count=whole, ns=whole_ns, line=None)]
    for manager, ns in zip(managers, rest, strict=True):
        line = _line_of(manager, code.co_filename)
        found.append(GuardTime(source=manager.get_source(), count=_count(manager), ns=max(whole_ns - ns, 0), line=line))
    return tuple(found)


def _except(source: str) -> Callable[[Any], bool]:
    return lambda manager: bool(manager.get_source() != source)


def _check_ns(roots: Sequence[Any], given: Mapping[str, Any], call: Callable[[], Any]) -> list[int]:
    """Time the checks of trees, in turns; return their medians."""
    clock = time.perf_counter_ns
    times: list[list[int]] = [[] for _ in roots]
    for _ in range(_TIMES):
        for root, own in zip(roots, times, strict=True):
            call()
            started = clock()
            root.check(given)
            own.append(clock() - started)
    return [round(median(own)) for own in times]


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
        parts = list(_children(child))
        is_of_program = child.get_source() not in _ROOTS and not any("._modules" in part.get_source() for part in parts)
        if not is_of_program or any(_count(part) >= _MOST * count for part in parts):
            yield from _crowded(child, whole)
        else:
            yield child


def _line_of(manager: Any, file: str) -> int | None:
    """Find the first line of a file that guards of a container and right below name as their reason; they shorten its name."""
    near = islice((manager, *_children(manager)), _NEAR)
    texts = (text for child in near for guard in child.get_leaf_guards() for text in guard.verbose_code_parts())
    lines = (int(found["line"]) for found in map(_PLACE.search, texts) if found is not None and file.endswith(found["file"].strip()))
    return min(lines, default=None)
