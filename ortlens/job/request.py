"""The options that the command line and the magics share, and the object that they become."""

from __future__ import annotations

import argparse
import ast
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


@dataclass(frozen=True, slots=True)
class ParsedArgument:
    """A type of argument whose refusal says what is wanted, where argparse names the function."""

    function: Callable[[str], Any]  # makes the value of a text; raises ValueError
    what: str  # what it reads, as "a whole number"

    def __call__(self, text: str) -> Any:  # noqa: ANN401 - whatever the function returns
        """Read a text as typed; raise `argparse.ArgumentTypeError` if it is no such value."""
        try:
            return self.function(text)
        except ValueError as err:
            raise argparse.ArgumentTypeError(f"{text!r} is not {self.what}") from err


def _seconds(text: str) -> float:
    if 0 < float(text) < math.inf:
        return float(text)
    raise ValueError(text)


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ValueError(text)


SECONDS = ParsedArgument(_seconds, "a time in seconds")  # a time above 0, as the `type` of an option
COUNT = ParsedArgument(_count, "a whole number from 1")


def add_outputs(parser: argparse.ArgumentParser, *save_names: str, saved: str = "for example as run.ortlens") -> None:
    """Add the options that say what is written where; `save_names` are further names of `--save`."""
    parser.add_argument("--report", "--html", metavar="FILE", type=_path, help="write the report, one HTML file that opens anywhere")
    parser.add_argument(*save_names, "--save", metavar="FILE", type=_path, help=f"save the capture, {saved}")


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Add the options for profiling, verifying and redacting."""
    parser.add_argument("--redact", action="store_true", help="leave paths, source lines and values out of the report")
    parser.add_argument("--profile", action="store_true", help="also measure where the time inside ONNX Runtime goes, kernel by kernel")
    parser.add_argument("--verify", action="store_true", help="also compare every value with PyTorch's, with float64 as the reference")
    parser.add_argument("--budget", dest="budget_s", metavar="S", type=SECONDS, help="seconds for --profile and for --verify (60)")


def add_compiling(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a target is compiled and called."""
    parser.add_argument("--dry-run", action="store_true", help="trace and partition with fake tensors: no memory for weights, nothing runs")
    parser.add_argument(
        "--device", metavar="cuda", help="with --dry-run: plan as if the model and its inputs were there, with or without a GPU"
    )
    parser.add_argument("--dynamic", action="store_true", default=None, help="compile for any size, like torch.compile(dynamic=True)")
    parser.add_argument(
        "--calls",
        metavar="N",
        type=COUNT,
        help="number of calls; 1 for a target with side effects (default: as many as fit in about a second)",
    )
    parser.add_argument("--backend", metavar="NAME", default="ortlens", help="record another backend, such as inductor or eager")
    add_backend_options(parser)


def add_backend_options(parser: argparse.ArgumentParser) -> None:
    """Add the option that passes options on to the backend."""
    parser.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of the ortlens backend, such as min_partition_nodes=2; may be repeated",
    )


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


def _path(text: str) -> Path:
    return Path(text).expanduser()
