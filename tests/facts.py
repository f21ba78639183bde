"""Facts about a capture, named and written as captures of the first schema hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.trace.facts import figures_from_facts

if TYPE_CHECKING:
    from collections.abc import Mapping


def head(texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a capture with these facts."""
    figures, environment = figures_from_facts(texts)
    return {"environment": environment, "figures": figures}
