"""What a traced program assumes about the memory of its arguments, and the check of it, where it can be wrong at all.

A trace takes its arguments for separate tensors: what it writes to one shows in no other. And it has decided what is a view (see
`layout_decisions`). A program that writes nothing and makes no such decision has no check.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind

from ortlens import _torch
from ortlens.backend.basis.memory_order import (
    are_disjoint,
    block_of,
    is_contiguous,
    meets,
    merged,
    overlaps_itself,
    strides_like,
    tensors_overlap,
)
from ortlens.backend.lowering.layout_decisions import LayoutDecisions
from ortlens.backend.runtime.generated import bytes_text, function_from_source, source_of
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from torch.export import ExportedProgram

_MOST_LAYOUTS = 4096
_MOST_PAIRS = 8  # of tensors that are compared one by one; more are sorted by address


class MemoryAssumptions:
    """The assumptions of one program."""

    def __init__(  # noqa: PLR0913 - what is known of a program and its callers
        self,
        program: ExportedProgram,
        *,
        written: Collection[str],
        state: Mapping[str, torch.Tensor],
        names: Sequence[str],
        asked: Collection[str] = (),
        remedy: str = "freeze again for such arguments",
    ) -> None:
        """Find out what can be violated.

        `program` is as traced, not decomposed, and `state` holds the tensors that calls use. `asked` is what the traced code asked about
        the layout of tensors, such as `is_contiguous`; nothing can say what for.
        """
        self._names, self.asked, self._remedy = names, asked, remedy
        specs = program.graph_signature.input_specs
        self._inputs = [program.state_dict.get(spec.target, program.constants.get(spec.target)) for spec in specs]
        users = [place for place, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT]
        placeholders = list(program.graph.find_nodes(op="placeholder"))
        metas = [placeholders[place].meta.get("val") for place in users]
        self._users, self._metas = users, metas
        self._tensors = [leaf for leaf, meta in enumerate(metas) if isinstance(meta, torch.Tensor)]
        # Leaves that the program writes to.
        self.written = [leaf for leaf in self._tensors if specs[users[leaf]].arg.name in written]
        targets = {spec.target for spec in specs if spec.arg.name in written}
        self._state = [(name, tensor) for name, tensor in state.items() if name in targets]
        self._weights = [(name, tensor) for name, tensor in state.items() if name not in targets]
        self._layouts_of(program, asked)
        shares = self.written or (self._state and self._tensors)
        self._blocks = self._tensors if shares else []
        self._fixed_state = merged(_blocks_of(self._state)) if self._blocks else []
        self._fixed = merged(_blocks_of([*self._weights, *self._state])) if self.written else []
        self.needed = bool(self._blocks or self.layouts)  # whether a call can violate them
        self.holds = self._quick_check()

    def _layouts_of(self, program: ExportedProgram, asked: Collection[str]) -> None:
        decisions, leaf_of = LayoutDecisions(program), {place: leaf for leaf, place in enumerate(self._users)}
        everything = self._tensors if asked else []
        # Leaves whose layout matters, and those of them on which values depend.
        self.layouts = sorted({*(leaf_of[place] for place in decisions.arguments), *everything})
        self.value_layouts = sorted({*(leaf_of[place] for place in decisions.values), *everything})
        self._exact = {*(leaf_of[place] for place in decisions.exact), *everything}
        self._same_start = "storage_offset" in asked
        self._decisions = decisions
        self._contiguous = all(is_contiguous(self._metas[leaf]) for leaf in self.layouts) and not self._same_start
        self._known: set[Any] = set()

    def _quick_check(self) -> Callable[[Sequence[Any]], bool]:
        """Generate a function of the leaves that tells whether they are surely as assumed; generated, because every call runs it."""
        pairs = [
            (one, other) for one in self.written for other in self._blocks if one != other and (other not in self.written or one < other)
        ]
        if not self._contiguous or len(pairs) > _MOST_PAIRS:
            return self._are_known
        written, lines = set(self.written), []
        relevant = sorted({*self.layouts, *self._blocks})
        lines += [f"t{leaf} = leaves[{leaf}]" for leaf in relevant]
        lines += [f"if not ({' and '.join(f't{leaf}.is_contiguous()' for leaf in relevant)}): return rarely(leaves)"] if relevant else []
        read = sorted({leaf for pair in pairs for leaf in pair} | {leaf for leaf in self._blocks if self._fixed_of(leaf)})
        lines += [f"p{leaf} = t{leaf}.data_ptr(); e{leaf} = p{leaf} + {bytes_text(f't{leaf}', self._metas[leaf])}" for leaf in read]
        lines += [f"if p{one} < e{other} and p{other} < e{one}: return False" for one, other in pairs]
        for leaf in read:
            which = "all" if leaf in written else "state"
            lines += (
                [f"k = at(start_{which}, e{leaf})", f"if k and end_{which}[k - 1] > p{leaf}: return False"] if self._fixed_of(leaf) else []
            )
        scope: dict[str, Any] = {"rarely": self._are_known, "at": bisect.bisect_left}
        for which, blocks in (("all", self._fixed), ("state", self._fixed_state)):
            scope[f"start_{which}"], scope[f"end_{which}"] = [start for start, _ in blocks], [end for _, end in blocks]
        return function_from_source("holds", source_of("holds(leaves)", [*lines, "return True"]), scope)

    def _fixed_of(self, leaf: int) -> Sequence[tuple[int, int]]:
        """Return the memory of weights and state that an argument must not overlap."""
        return self._fixed if leaf in self.written else self._fixed_state

    def _are_known(self, leaves: Sequence[Any]) -> bool:
        """Tell the same as the quick check, for arguments that lie in memory in any way."""
        single = [[leaf] for leaf in self.written if not leaves[leaf].is_contiguous()]
        groups = [*single, self.layouts] if self.layouts else single
        if any(_layout_of(leaves, group) not in self._known for group in groups):
            return False
        blocks = [block_of(leaves[leaf]) for leaf in self._blocks]
        if any(meets(self._fixed_of(leaf), *block) for leaf, block in zip(self._blocks, blocks, strict=True)):
            return False
        written = {place for place, leaf in enumerate(self._blocks) if leaf in self.written}
        return are_disjoint(written, (), *(number for block in blocks for number in block))

    def faults(self, leaves: Sequence[Any]) -> list[str]:
        """Describe each assumption that does not hold, and what to do; remember what does hold."""
        return [*self._overlaps(leaves), *self._other_layouts(leaves)]

    def layouts_for_arrays(self) -> list[tuple[int, list[int] | None]]:
        """List the arguments whose layout decides values, with their strides (None: contiguous), for calls without PyTorch.

        Results of such calls share no memory. Raise `UsageError` if what decides is unknown for other sizes, or is a place in a storage,
        which an array does not have.
        """
        found: list[tuple[int, list[int] | None]] = []
        for leaf in self.value_layouts:
            meta = self._metas[leaf]
            if self._same_start or not (is_contiguous(meta) or not _torch.has_symbols(meta)):
                raise UsageError(
                    f"the place of {self._names[leaf]} in memory decides values; freeze with contiguous arguments, or of fixed sizes"
                )
            found.append((leaf, None if is_contiguous(meta) else list(meta.stride())))
        return found

    def _overlaps(self, leaves: Sequence[Any]) -> list[str]:
        found: list[str] = []
        given = [(self._names[leaf], leaves[leaf], leaf in self.written) for leaf in self._blocks]
        state = [*((name, tensor, True) for name, tensor in self._state), *((name, tensor, False) for name, tensor in self._weights)]
        for place, (name, tensor, writes) in enumerate(given):
            for other, memory, also in (*given[:place], *state):
                if (writes or also) and _overlap(tensor, memory):
                    target = name if writes else other
                    found.append(f"{name} shares memory with {other}, and the program writes to {target}: pass {name}.clone()")
            if writes and overlaps_itself(tensor):
                found.append(f"{name} is written to, and several of its elements share memory: pass {name}.clone()")
            elif writes:
                self._remember(leaves, [self._blocks[place]])
        return found

    def _other_layouts(self, leaves: Sequence[Any]) -> list[str]:
        traced = {leaf: strides_like(self._metas[leaf], leaves[leaf].shape) for leaf in self.layouts}
        others = [leaf for leaf in self.layouts if not self._is_laid_like(leaves[leaf], traced[leaf], self._metas[leaf])]
        refused = [leaf for leaf in others if leaf in self._exact]
        if others and not refused and not self._comes_out_alike(leaves, traced):
            refused = others
        if not refused:
            self._remember(leaves, self.layouts)
        return [self._refusal(leaf, leaves[leaf], traced[leaf]) for leaf in refused]

    def _is_laid_like(self, tensor: torch.Tensor, traced: tuple[int, ...] | None, meta: torch.Tensor) -> bool:
        if self._same_start and tensor.storage_offset() != meta.storage_offset():
            return False
        return traced is not None and all(
            size <= 1 or mine == other for size, mine, other in zip(tensor.shape, tensor.stride(), traced, strict=True)
        )

    def _comes_out_alike(self, leaves: Sequence[Any], traced: Mapping[int, Any]) -> bool:
        """Tell whether PyTorch decides as for the layouts of tracing."""
        decided = self._outcome(leaves, {})
        return decided is not None and (
            not self._decisions.decides or (None not in traced.values() and decided == self._outcome(leaves, traced))
        )

    def _outcome(self, leaves: Sequence[Any], strides: Mapping[int, Any]) -> tuple[bool, ...] | None:
        """Return what PyTorch decides, for arguments that may be given other strides; None if it raises or cannot say."""
        inputs = list(self._inputs)
        for leaf, place in enumerate(self._users):
            inputs[place] = leaves[leaf]
        return self._decisions.outcome(inputs, {self._users[leaf]: wanted for leaf, wanted in strides.items()})

    def _refusal(self, leaf: int, tensor: torch.Tensor, traced: tuple[int, ...] | None) -> str:
        name, meta = self._names[leaf], self._metas[leaf]
        expected = "strides" if traced is None else f"the strides {traced}"
        start = f" and the storage offset {meta.storage_offset()}" if self._same_start else ""
        given = f"{tuple(tensor.stride())}" + (f" and {tensor.storage_offset()}" if self._same_start else "")
        return f"{name}: expected {expected}{start} of tracing, which decide what can be a view, given {given}: {self._remedy}"

    def _remember(self, leaves: Sequence[Any], which: Sequence[int]) -> None:
        if len(self._known) >= _MOST_LAYOUTS:
            self._known.clear()
        self._known.add(_layout_of(leaves, which))


def _blocks_of(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[int, int]]:
    return (block_of(tensor) for _, tensor in named if tensor.layout is torch.strided and not _torch.is_fake(tensor))


def _layout_of(leaves: Sequence[Any], which: Iterable[int]) -> Any:
    return tuple((leaf, leaves[leaf].shape, leaves[leaf].stride(), leaves[leaf].storage_offset()) for leaf in which)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    return other.layout is torch.strided and tensors_overlap(one, other)
