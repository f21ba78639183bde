"""Every option and argument of the commands and magics: name, type, help, and where it applies. Parsers, help and completion follow."""

from __future__ import annotations

import argparse
import keyword
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ortlens.errors import UsageError, near_hint
from ortlens.job.providers import provider_from_text
from ortlens.trace.schema import FORMATS, SHOWN_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(rf"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[{''.join(_UNITS)}]?)i?B?", re.IGNORECASE)
STDOUT = "-"  # the file of `check --json` where none is named


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


@dataclass(frozen=True, slots=True)
class OneOf:
    """A type of argument: one of some names, where a slip names the near one."""

    names: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """Return a name as typed; raise `argparse.ArgumentTypeError` if it is none of them."""
        if text not in self.names:
            raise argparse.ArgumentTypeError(f"there is no {text!r}.{near_hint(text, self.names)} There are: {', '.join(self.names)}")
        return text


class Parser(argparse.ArgumentParser):
    """Raises one line with the next step where argparse prints the usage and ends the process."""

    more = ""  # where all options are listed
    asks: tuple[str, ...] = ()  # questions that a command answers

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with what argparse found."""
        raise UsageError(f"{message}{'' if message.endswith(('.', '?')) else '.'} {self.more or f'See: {self.prog} --help'}")


def _checked(number: float, *, least: float = math.ulp(0.0)) -> Any:  # noqa: ANN401 - the number, whatever its type
    """Return a finite number that is not below a least one."""
    if least <= number < math.inf:
        return number
    raise ValueError(number)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    return int(_checked(round(float(match["number"]) * _UNITS[match["unit"].upper()]), least=1)) if match else _size("0")


def _variable(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ValueError(text)
    return text


_SECONDS = ParsedArgument(lambda text: _checked(float(text)), "a time in seconds")  # above 0
_COUNT = ParsedArgument(lambda text: _checked(int(text), least=1), "a whole number from 1")
_ROWS = ParsedArgument(lambda text: _checked(int(text), least=0), "a number of rows; 0 shows every row")
_WHOLE = ParsedArgument(int, "a whole number")
_NUMBER = ParsedArgument(float, "a number")
_BYTES = ParsedArgument(_size, "a size; write 512M or 4G")
_NAME = ParsedArgument(_variable, "a valid variable name")
_PROVIDER = ParsedArgument(provider_from_text, "NAME or NAME:KEY=VALUE,...")
_SHARE = ParsedArgument(lambda text: float(text[:-1]) / 100 if text.endswith("%") else float(text), "a share, as 0.9 or 90%")
_FACTOR = ParsedArgument(lambda text: 1 + float(text[:-1]) / 100 if text.endswith("%") else float(text), "a factor, as 1.2 or 20%")


def expanded(text: str) -> Path:
    """Read a path as a user writes it."""
    return Path(text).expanduser()


class Option:
    """An option, or an argument by its place."""

    def __init__(self, names: str, where: str, text: str, shown: str = "", **settings: Any) -> None:  # noqa: ANN401 - those of argparse
        """Note names and places, separated by blanks, the help, and the value as help shows it; without one it is a switch."""
        self.names, self.where = names.split(), where.split()
        switch = {"action": "store_true"} if not shown else {"metavar": shown}
        self.settings: Mapping[str, Any] = {"help": text, **switch, **settings}

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add it to a parser."""
        parser.add_argument(*self.names, **self.settings)


_MODELS = "explain bench tune bisect"
_TAKING = f"{_MODELS} compare"
_LINE, _MAGICS = "%ortlens", "%ortlens %%ortlens"
_TARGET = "an nn.Module, its class, a function that returns one, or any function; Python modules in this folder are found, too"
_CAPTURE = "a file that lens.save() or another command wrote"
_TABLES = ", ".join(SHOWN_TABLES)
_MANY: Mapping[str, Any] = {"nargs": "+", "default": []}
_REPEATED: Mapping[str, Any] = {"action": "append", "default": []}
_INPUTS: Mapping[str, Any] = {"dest": "input", "action": "extend", **_MANY}
_SHOWN = "NAME[:KEY=VALUE,...]"

OPTIONS = (
    # what is read or run
    Option("target", "bench tune", _TARGET, "MODULE:NAME"),
    Option("target", "bisect", f"{_TARGET}; or an ONNX model: model.onnx", "MODULE:NAME"),
    Option("target", "explain", f"{_TARGET}; or an ONNX model: model.onnx, or a torch.export program: program.pt2", "MODULE:NAME"),
    Option("cases", "survey", "FILE.py[:NAME], MODULE:NAME (default name: CASES), FILE.toml or FILE.json", "CASES"),
    Option("capture", "show report export", _CAPTURE, "CAPTURE"),
    Option("capture", "check", _CAPTURE, "CAPTURE", nargs="?"),
    Option("before", "compare", f"the first capture, a baseline: {_CAPTURE}; or an ONNX model, the reference", "BEFORE"),
    Option("after", "compare", "the second one: what it became", "AFTER"),
    Option("folder", "export", "output folder; created if missing", "FOLDER", type=Path),
    Option("journal", "watch", "the file; ortlens waits for it if it is not there yet", "JOURNAL", type=Path),
    Option(
        "--input",
        _TAKING,
        "arguments in order: f32[1,3,224,224], i64[1,16]:1000 (below 1000), mask=bool[1,16] (keyword), 3, true, 'text', @x.npy, @FOLDER",
        "SPEC",
        **_INPUTS,
    ),
    Option("--inputs", _TAKING, "arguments by name, from a file or a folder with one per call", "NPZ", type="**@{}".format, **_INPUTS),
    Option("--seed", _TAKING, "seed for random weights and inputs (default: %(default)s)", "N", type=_WHOLE, default=0),
    # how it is compiled and called
    Option("-o", _MAGICS, "keep the lens under this name", "NAME", dest="store", type=_NAME),
    Option("--dry-run", f"explain {_LINE}", "trace and partition with fake tensors: no memory for weights, nothing runs"),
    Option("--device", f"explain {_LINE}", "with --dry-run: plan as if the model and its inputs were there, with or without a GPU", "cuda"),
    Option("--dynamic", f"explain {_LINE}", "compile for any size, like torch.compile(dynamic=True)", default=None),
    Option(
        "--calls",
        f"explain {_LINE}",
        "number of calls; 1 for a target with side effects (default: as many as fit in about a second)",
        "N",
        type=_COUNT,
    ),
    Option("--backend", f"explain {_LINE}", "record another backend, such as inductor or eager", "NAME", default="ortlens"),
    Option("--backend", "run", "send every torch.compile to this backend, such as ortlens (default: its own)", "NAME"),
    Option(
        "--option",
        f"{_MODELS} run {_LINE}",
        "an option of the ortlens backend, such as min_partition_nodes=2; may be repeated",
        "KEY=VALUE",
        **_REPEATED,
    ),
    Option(
        "--provider", f"{_TAKING} run survey {_LINE}", "run on it first; may be repeated, in order", _SHOWN, type=_PROVIDER, **_REPEATED
    ),
    Option(
        "--provider-library",
        f"{_TAKING} run survey {_MAGICS}",
        "register a provider's library, by its path or in an installed package, as ggml=onnxruntime-ggml; may be repeated",
        "NAME=PATH_OR_PACKAGE",
        **_REPEATED,
    ),
    Option("--no-grad", _LINE, "without gradients, for inference"),
    Option(
        "--explain",
        "run",
        "compile the modules of this class, which the program only calls, with --backend or through ONNX Runtime; may be repeated",
        "CLASS",
        **_REPEATED,
    ),
    Option("--no-children", "run", "do not record in the Python processes that the program starts"),
    Option("--profile", f"explain survey {_LINE}", "also measure where the time inside ONNX Runtime goes, kernel by kernel"),
    Option("--verify", f"explain survey {_LINE}", "also compare every value with PyTorch's, with float64 as the reference"),
    Option("--keep-values", f"explain {_LINE}", "also record figures of every value, for `ortlens compare` to name the first that differs"),
    Option("--budget", f"explain {_LINE}", "seconds for --profile and for --verify (60)", "S", dest="budget_s", type=_SECONDS),
    Option("--budget", "compare", "of ONNX models: seconds, for timing both in turns (default: 10)", "S", dest="budget_s", type=_SECONDS),
    Option("--budget", "tune", "time limit in seconds (default: %(default)s)", "S", dest="budget_s", type=_SECONDS, default=60.0),
    Option(
        "--reference", "explain", "for --verify of an ONNX model: the module, program or ONNX model that it was made from", "MODULE:NAME"
    ),
    # studies
    Option("--ways", "bench", "only these beside eager, with commas: inductor, ortlens, frozen, exported (all)", "NAMES", default=""),
    Option("--seconds", "bench", "time for the rounds; at least ten are made (default: %(default)s)", "N", type=_SECONDS, default=10.0),
    Option("--concurrency", "bench tune", "calls per second, for so many callers at the same time", "N", type=_COUNT, **_MANY),
    Option("--batch", "bench tune", "of inputs with so many items: their first dimension", "N", type=_COUNT, **_MANY),
    Option("--picture", "bench", "draw throughput over latency, as SVG", "FILE", type=expanded),
    Option("--only", "survey", "only cases of such a name; may be repeated", "GLOB", **_REPEATED),
    Option(
        "--options",
        "survey",
        "options of the ortlens backend; if repeated, every case runs under each",
        "KEY=VALUE",
        nargs="+",
        **_REPEATED,
    ),
    Option("--workers", "survey", "cases at the same time (default: one per two cores)", "N", type=_COUNT),
    Option("--time-limit", "survey", "seconds that a case may take (default: %(default)s)", "S", type=_SECONDS, default=600.0),
    Option("--memory-limit", "survey", "memory of a case, as 4G (default: its share of the machine's)", "SIZE", type=_BYTES),
    Option("--no-reports", "survey", "no report of each case: the page alone"),
    Option("--retry", "survey", "run cases again that have a reason and no result"),
    Option("--scheduler", "survey", "run on a Dask cluster; pip install 'ortlens[dask]'", "ADDRESS"),
    Option("--onnxruntime", "bisect", "versions, installed apart, or DISTRIBUTION==VERSION", "VERSION", **_MANY),
    Option("--torch", "bisect", "versions of PyTorch, each of which makes its own ONNX models", "VERSION", **_MANY),
    Option("--package", "bisect", "any package that the program imports: its name, then versions or wheels", "NAME", **_MANY),
    Option("--environment", "bisect", "ready environments with onnxruntime and numpy, by their Python", "NAME=PYTHON", **_MANY),
    Option("--providers", "bisect", "execution providers (default: CPUExecutionProvider)", _SHOWN, type=_PROVIDER, **_MANY),
    Option("--levels", "bisect", "optimisation levels: disable, basic, extended, layout, all", "NAME", **_MANY),
    Option(
        "--runs", "bisect", "runs in one process, to compare the last with the first (default: %(default)s)", "N", type=_COUNT, default=200
    ),
    Option("--seconds", "bisect", "time for ten rounds of all sides in turns (default: %(default)s)", "N", type=_SECONDS, default=60.0),
    Option("--environments", "bisect", "where versions are installed (default: in the user's cache)", "FOLDER", type=expanded),
    Option("--pip-args", "bisect", "further arguments of pip install, such as -i URL", "ARGS", default=""),
    # captures
    Option("--table", "show", f"one table instead: {_TABLES}", "NAME", type=OneOf(tuple(SHOWN_TABLES))),
    Option("--rows", "show", "rows of a text table, 0 for all (default: %(default)s)", "N", type=_ROWS, default=30),
    Option("--wide", "show", "every column of a text table, uncut, however long its lines become"),
    Option("--csv", "show", "print every row of the table as CSV"),
    Option(
        "--format",
        "export",
        "csv or json: a file per table, and the ONNX models; trace: trace.json for Perfetto and speedscope (default: %(default)s)",
        "FORMAT",
        type=OneOf(FORMATS),
        default="csv",
    ),
    Option("--table", "export", f"only these tables: {_TABLES}", "NAME", nargs="+", action="extend", type=OneOf(tuple(SHOWN_TABLES))),
    Option("--force", "export", "replace existing files"),
    Option("--max-breaks", "check", "distinct graph breaks at most", "N", type=_WHOLE),
    Option("--max-recompiles", "check", "recompiles at most", "N", type=_WHOLE),
    Option("--max-skipped", "check", "functions at most that run operators without being compiled", "N", type=_WHOLE),
    Option("--min-coverage", "check", "least share of operators in ONNX Runtime: 0.9 or 90%%", "SHARE", type=_SHARE),
    Option("--max-abs-err", "check", "largest absolute difference from PyTorch; the capture must be verified", "SIZE", type=_NUMBER),
    Option("--min-sqnr", "check compare", "least SQNR of an output of an ONNX model against another, in dB", "DB", type=_NUMBER),
    Option(
        "--baseline",
        "check",
        "an earlier capture of the same program: breaks, recompiles, operators, results and times must not be worse",
        "CAPTURE",
    ),
    Option("--max-slowdown", "compare", "of two models: how many times as long the second may take: 1.2, 20%%", "FACTOR", type=_FACTOR),
    Option("--max-slowdown", "check", "with --baseline: how many times as long anything may take, as 1.2 or 20%%", "FACTOR", type=_FACTOR),
    Option("--provider", "check", "the execution provider that --max-pieces and --min-coverage are about, such as CoreML", "NAME"),
    Option("--max-pieces", "check", "with --provider: pieces at most in which it runs, over all sessions", "N", type=_WHOLE),
    Option("--once", "watch", "say what it holds now, and stop"),
    # what is written
    Option("--report --html", f"explain demo run {_MAGICS}", "write the report, one HTML file that opens anywhere", "FILE", type=expanded),
    Option("--html", "compare", "write both side by side as one HTML file; replaces an existing report", "FILE"),
    Option("-o --save", "explain demo", "save the capture, for example as run.ortlens", "FILE", type=expanded),
    Option("-o --save", "run", "save the capture (default: PROGRAM.ortlens in this folder)", "FILE", type=expanded),
    Option("-o --save", "bench", "save the capture of the calls through ortlens, with the table", "FILE", type=expanded),
    Option("--save", _MAGICS, "save the capture, for ortlens.load", "FILE", type=expanded),
    Option("-o --output", "report", "output file; replaces an existing report (default: CAPTURE.html)", "FILE", type=expanded),
    Option("-o --folder", "survey", "keep results here, and run only what is missing; index.html is the page", "FOLDER", type=expanded),
    Option("-o --folder", "bisect", "write the text for an issue, with the smallest model that differs", "FOLDER", type=expanded),
    Option("--title", "report", "its title (default: the capture's name)", "TEXT"),
    Option("--title", "survey", "title of the page (default: CASES)", "TEXT"),
    Option("--redact", f"explain run report {_MAGICS}", "leave paths, source lines and values out of the report"),
    Option("--journal", "run", "write everything as it comes, so that it survives a kill; see ortlens watch", "FILE"),
    Option("--junit", "check", "write the verdicts as JUnit XML", "FILE", type=Path),
    Option("--markdown", "check", "write them as Markdown, for a pull request or a job summary", "FILE", type=Path),
    Option(
        "--sarif", "explain check", "write what there is to change as SARIF, each cause on its line, for code scanning", "FILE", type=Path
    ),
    Option("--json", f"{_MODELS} demo doctor show report export compare survey", "print the answer as JSON"),
    Option("--json", "watch", "print the figures alone, one line of JSON whenever they change"),
    Option("--json", "run", "write the overview, and what to do, as JSON; stdout is the program's", "FILE"),
    Option("--json", "check", "write the verdicts as JSON, to stdout if no file is named", "FILE", nargs="?", const=STDOUT),
    Option("-q --quiet", f"{_MODELS} demo doctor run report export check survey", "print nothing but errors, and what --json asks for"),
    Option("--quiet", _MAGICS, "show nothing"),
    # a program, and its arguments
    Option("-m", "run", "run a module, as python -m does", dest="is_module"),
    Option("program", "run", "the script, or what -m runs; then its arguments", "script.py", nargs=argparse.REMAINDER),
)


def add_options(parser: argparse.ArgumentParser, where: str) -> None:
    """Add the options of a command, or of a magic, to its parser."""
    for option in OPTIONS:
        if where in option.where:
            option.add(parser)


def help_lines(where: str, *, without: str = "") -> list[str]:
    """List the options of a magic, each with its help; `without` is another one whose options are left out."""
    found = []
    for option in OPTIONS:
        if where in option.where and without not in option.where:
            shown = " ".join(filter(None, (option.names[0], option.settings.get("metavar", ""))))
            also = f" (also {', '.join(option.names[1:])})" if option.names[1:] else ""
            found.append(f"{shown:<20}{option.settings['help']}{also}")
    return found
