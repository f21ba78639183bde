"""What was asked for with the options of a command or magic, as one object, and the texts of values in it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ortlens.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_WORDS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for."""

    backend: str = "ortlens"
    options: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    device: str | None = None  # that a dry run plans for; None for where the tensors are
    dynamic: bool | None = None
    calls: int | None = None
    no_grad: bool = False  # turn gradients off around everything
    profile: bool = False  # also find out where the time inside ONNX Runtime goes
    verify: bool = False  # also compare every value with PyTorch's
    budget_s: float | None = None  # seconds for each of these two; None for their defaults
    report: Path | None = None  # where the HTML report goes; None writes none
    save: Path | None = None  # where the capture goes; None keeps it in memory
    redact: bool = False  # leave paths, source lines and values out of the report

    def __post_init__(self) -> None:
        """Reject contradictory options, and files that cannot be written, before anything runs."""
        if self.dry_run and (self.profile or self.verify):
            asked = "--profile" if self.profile else "--verify"
            raise UsageError(f"{asked} needs a real run, and --dry-run runs nothing; leave one of them out")
        if self.device is not None and not self.dry_run:
            raise UsageError(f"--device {self.device} says what a dry run plans for, and moves nothing; add --dry-run")
        if self.budget_s is not None and not (self.profile or self.verify):
            raise UsageError("--budget limits the time of --profile and --verify; add one of them")
        if self.redact and self.report is None:
            raise UsageError("--redact applies to the report; add --report FILE")
        # Early: a file that cannot be written should not cost the minutes of the run before it.
        if self.report is not None:
            from ortlens.views.markup import checked_target

            checked_target(self.report)
        if self.save is not None and not self.save.absolute().parent.is_dir():
            raise UsageError(f"--save {self.save}: there is no folder {self.save.absolute().parent}; create it first, or choose another")


def request_from_options(options: argparse.Namespace, **given: Any) -> Request:  # noqa: ANN401 - fields of Request
    """Make the request from parsed options and given fields; options that the caller does not have keep their defaults."""
    names = set(Request.__slots__) - {"options"}
    found = {name: value for name, value in vars(options).items() if name in names}
    return Request(**{**found, "options": options_from_pairs(getattr(options, "option", [])), **given})


def options_from_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """Read options of the backend, each `key=value`, a Python literal or plain text; `OrtBackendOptions` checks their names."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise UsageError(f"--option {pair}: an option is written key=value, for example --option min_partition_nodes=2")
        if key in options:
            raise UsageError(f"--option {key} is given twice, as {options[key]!r} and as {text!r}; leave one out")
        options[key] = value_from_text(text)
    return options


def value_from_text(text: str) -> Any:  # noqa: ANN401 - any literal
    """Read a value as a user writes it: `3`, `2.5`, `true`, `none`, `['a']`, `'quoted'`; plain words stay as they are."""
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
