"""What every command owes a shell: examples that work, errors on one line, JSON that parses, silence when asked, completion."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs.json_schema import ANSWERS
from ortlens import cli
from ortlens.cli import entry
from ortlens.cli.commands import json_text
from ortlens.job.options import expanded
from ortlens.trace import store
from ortlens.trace.journal import Journal
from ortlens.trace.recorder import Recorder
from ortlens.trace.records import Numeric
from tests.answers import answered
from tests.unit.views.sample_captures import SAMPLES

COMMANDS = entry.commands_of(entry.parser())
READERS = {
    "show": ["{0}"],
    "report": ["{0}", "-o", "{2}.html"],
    "export": ["{0}", "{2}"],
    "compare": ["{0}", "{0}"],
    "check": ["{0}", "--max-breaks", "9"],
    "watch": ["{1}", "--once"],
    "doctor": [],
}
QUIET = {"check": ["{0}", "--max-breaks", "0"], "export": ["{0}", "{2}"], "report": ["{0}", "-o", "{2}.html"], "doctor": []}


def options_of(command: argparse.ArgumentParser) -> list[str]:
    return [text for action in command._actions for text in action.option_strings]


def examples_of(name: str) -> list[str]:
    lines = (COMMANDS[name].epilog or "").partition("examples:\n")[2].splitlines()
    return [re.split(r"  # | [|>] | && ", line.replace("<(", " ; ").replace(")", " "))[0].split(";")[-1].strip() for line in lines]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A capture with an infinite difference, a journal, a path that is free, and a file that is no capture."""
    capture = replace(SAMPLES["demo_like"], numerics=(Numeric(partition_id="p0", node="n", max_abs=float("inf"), ok=False),))
    journal = Journal(tmp_path / "run.journal", lambda: {"name": "n", "backend": "b", "environment": {}}, Recorder())
    journal.close()
    (tmp_path / "broken.ortlens").write_bytes(b"not a capture")
    return [
        str(store.save(capture, tmp_path / "run.ortlens")),
        *(str(tmp_path / name) for name in ("run.journal", "out", "broken.ortlens")),
    ]


def filled(arguments: list[str], files: list[str]) -> list[str]:
    return [argument.format(*files) for argument in arguments]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_questions_and_examples_that_parse(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (COMMANDS[name].description or "").endswith(".")
    assert [action.dest for action in COMMANDS[name]._actions if not action.help] == []
    asks = COMMANDS[name].asks  # type: ignore[attr-defined]  # ours have it
    assert all(question.partition(" (")[0].endswith("?") for question in asks)
    assert cli.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: ortlens {name}")
    assert f"examples:\n  ortlens {name}" in out
    for example in examples_of(name):
        program, *arguments = shlex.split(example)
        assert program == "ortlens"
        options, unknown = entry.parser().parse_known_args(arguments)
        assert (options.command, unknown) == (name, [])
    texts = [action.help or "" for action in COMMANDS[name]._actions]
    named = {option for text in texts for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)}
    assert named <= {*options_of(COMMANDS[name]), "--save"}  # lens.save() or `ortlens demo --save` wrote a capture


def test_a_value_of_the_wrong_kind_is_refused_in_words() -> None:
    typed = [a for c in COMMANDS.values() for a in c._actions if a.type not in (None, Path, expanded) and a.metavar != "NPZ"]  # any text
    assert len(typed) > 10
    for action in typed:
        with pytest.raises(argparse.ArgumentError) as refused:
            COMMANDS["show"]._get_value(action, "x y")
        assert "invalid" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "{0}", "--rows", "-1"], "--rows"),
        (["show", "{0}", "--rows", "x"], "--rows"),
        (["show", "{0}", "--csv"], "--table"),
        (["show", "{3}"], "cannot load the capture"),
        (["check", "{0}"], "nothing to check"),
        (["check", "--max-breaks", "0"], "check needs a CAPTURE"),
        (["check", "missing.ortlens", "--max-breaks", "0"], "cannot load the capture missing.ortlens"),
        (["check", "{0}", "--max-slowdown", "1.2"], "--max-slowdown needs a baseline"),
        (["check", "{0}", "--min-coverage", "90"], "for 90 % set 0.9"),
        (["check", "-q", "{0}", "--max-breaks", "0", "--junit", "/dev/null/x.xml"], "the answer cannot be written to /dev/null/x.xml"),
        (["check", "f", "--max-breaks", "1.5"], "argument --max-breaks: '1.5' is not a whole number. See: ortlens check --help"),
        (["check", "f", "--min-coverage", "x"], "argument --min-coverage: 'x' is not a share"),
        (["check", "{0}", "--max-breaks", "-1"], "--max-breaks must be a whole number from 0, not -1"),
        (["check", "{0}", "--max-breaks", "0", "--baseline", ""], "cannot load a capture: its name is empty"),
        (["bench", "torch:sin", "--seconds", "0"], "is not a time in seconds"),
        (["show", "a", "b"], "'b' is one argument too many. See: ortlens show --help"),
        (["show", "a", "kernels"], "'kernels' is one argument too many. Did you mean --table kernels?"),
        (["show", "f", "--table", "braeks"], "there is no 'braeks'. Did you mean breaks? There are: graphs, breaks,"),
    ],
)
def test_arguments_are_refused_by_the_names_that_were_typed(
    arguments: list[str], says: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(filled(arguments, files)) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    (line,) = streams.err.splitlines()
    assert line.startswith("ortlens: ")
    assert says in line


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_option_is_one_line_with_the_near_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    near = max(options_of(COMMANDS[name]), key=len)
    words = [] if name == "run" else ["x"] * len(COMMANDS[name]._get_positional_actions())
    assert cli.main([name, f"--x{near[2:]}", *words]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err == f"ortlens: {name} has no option --x{near[2:]}. Did you mean {near}? See: ortlens {name} --help\n"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("demo", "doctor")])
def test_what_is_missing_is_named_on_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(r"required|which script|needs a", err)


def test_every_command_has_json_with_a_schema() -> None:
    assert [name for name, command in COMMANDS.items() if "--json" not in options_of(command)] == []
    assert {*COMMANDS, "compare_models"} == set(ANSWERS)


@pytest.mark.parametrize("name", READERS)
def test_json_is_what_its_schema_says(name: str, files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([name, *filled(READERS[name], files), "--json"])
    assert answered(capsys.readouterr().out)["schema"] == f"ortlens/{name}/1"
    value: dict[str, Any] = {"a": [float("inf"), (float("nan"), 1.5)], "b": {"c": -float("inf")}, "d": "inf", "e": True}
    assert json.loads(json_text(value)) == {"a": [None, [None, 1.5]], "b": {"c": None}, "d": "inf", "e": True}


@pytest.mark.parametrize("name", QUIET)
def test_quiet_leaves_the_exit_code_and_the_files(name: str, files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    loud = cli.main([name, *filled(QUIET[name], files)])
    assert capsys.readouterr().out
    again = [*filled(QUIET[name], files), "--quiet", *(["--force"] if name == "export" else [])]
    assert cli.main([name, *again]) == loud
    assert capsys.readouterr() == ("", "")
    assert cli.main(["show", files[0]]) == 0
    assert capsys.readouterr().out, "the next command is not quiet"


def test_quiet_still_prints_errors_and_json(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "-q", "gone.ortlens", "--max-breaks", "0"]) == 2
    assert capsys.readouterr().err.startswith("ortlens: ")
    assert cli.main(["check", "-q", files[0], "--max-breaks", "0", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


COLOURS = {  # what the environment says, on a terminal or not, and whether there are colours
    "": (("pipe", False), ("terminal", True)),
    "NO_COLOR=1": (("terminal", False),),
    "FORCE_COLOR=1": (("pipe", True),),
    "FORCE_COLOR=1 NO_COLOR=1": (("terminal", False),),
    "TERM=dumb": (("terminal", False),),
}


@pytest.mark.parametrize("said", COLOURS)
def test_colours(said: str, files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, _, value in (setting.partition("=") for setting in said.split()):
        monkeypatch.setenv(name, value)
    for where, is_coloured in COLOURS[said]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda where=where: where == "terminal")
        assert cli.main(["show", files[0]]) == 0
        assert ("\x1b[" in capsys.readouterr().out) is is_coloured


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("ortlens com", {"compare "}),
        ("ortlens check --max-r", {"--max-recompiles "}),
        ("ortlens show run.ortlens --table f", {"fallbacks", "findings", "frames"}),
        ("ortlens show ", set()),  # files, which a shell adds where nothing is offered
    ],
)
def test_a_shell_completes_commands_options_and_values(line: str, offers: set[str], tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    answer = tmp_path / "answer"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    subprocess.run([sys.executable, "-m", "ortlens"], env={**os.environ, **asked}, check=True, timeout=60)
    assert {*filter(None, answer.read_text(encoding="utf-8").split("\v"))} - {"-h", "--help"} == offers
