"""Secrets planted wherever a program may have them, looked for in everything that ortlens writes."""

import base64
import contextlib
import gzip
import importlib.util
import io
import logging
import re
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import ortlens
from ortlens.cli.entry import main
from ortlens.trace.journal import SAVED
from ortlens.trace.schema import FORMATS
from tests.unit.trace.strategies import entries_in

WEIGHT, INPUT = 8765.4375, 7654.3125
"""Exact in float32, and neither in any text by chance."""

BY_DESIGN = {"folder", "cache", "comment", "exception"}
"""What a capture that is not redacted holds: paths, source lines, messages of exceptions."""

PROGRAM = '''
"""@module-docstring@"""
import dataclasses, enum, functools, os, pathlib, re, torch

TOKEN = "@global@"
REGISTRY = {"one": {"token": "@registry@"}}
LISTED = ["a", "@listed@"]
IN_SET = {"@in-set@"}

class Mode(enum.Enum):
    ON = "@enum@"

@dataclasses.dataclass
class Config:
    key: str = "@dataclass@"
    data: bytes = b"@bytes@"

def make(token):
    return lambda x: x * (2 if token > "a" else 3)

class Model(torch.nn.Module):
    """@docstring@"""
    SECRET = "@class-attribute@"

    def __init__(self, first):
        super().__init__()
        self.linear = torch.nn.Linear(4, 16)
        torch.nn.init.constant_(self.linear.weight, WEIGHT)
        self.token, self.key, self.first = "@attribute@", "@key@", first
        self.config, self.mode, self.path = Config(), Mode.ON, pathlib.Path("/home/@path@/x")
        self.nested = {"a": [{"b": "@nested@"}]}
        self.scale, self.shift = make("@closure@"), functools.partial(self.helper, token="@partial@")
        self.pattern = "@pattern@"

    def helper(self, x, token):
        return x + 1 if token.startswith("zq") else x - 1

    def forward(self, x, user=None, options=None, account=0):
        """@method-docstring@"""
        x = self.shift(self.scale(self.linear(x) * len(user)))  # @comment@
        if self.token > "a" and TOKEN > "a" and account > 7:
            x = x + options[self.key]
        if self.config.key == LISTED[1] or self.config.data == b"q":
            x = x + 2
        if self.mode is Mode.ON and self.SECRET > "a" and REGISTRY["one"]["token"] > "a" and self.nested["a"][0]["b"] > "a":
            x = x * 1.5
        if f"{user}-{os.environ.get('ZQ_KEY')}" == "no" or user in IN_SET or str(self.path) == "q":
            x = x - 2
        for name in options:
            x = x + options[name] * 0.5
        torch._dynamo.graph_break()
        try:
            raise ValueError(f"no {user}")
        except ValueError:
            x = x.cos()
        x = x + 1 if re.match(self.pattern, user) else x.tan()
        return x.sin() if user == self.first else x.cos()
'''
PLACES = (
    *("module-docstring", "global", "registry", "listed", "in-set", "enum", "dataclass", "bytes", "docstring", "class-attribute"),
    *("attribute", "key", "path", "nested", "closure", "partial", "pattern", "method-docstring", "comment"),  # in the program
    *("argument", "later-argument", "number", "option-key", "environment", "exception", "provider", "cache", "folder"),
)

PLAIN = '''
"""@module-docstring@"""
import os, pathlib, sys

import pytest
import torch

TOKEN = "@global@"


class Model(torch.nn.Module):
    """@docstring@"""

    def __init__(self, user):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.token, self.first = "@attribute@", user

    def forward(self, x, user):
        """@method-docstring@"""
        x = self.linear(x) * len(user)
        if self.token > "a" and TOKEN > "a" and os.environ.get("ZQ_RARE") != "q":
            x = x + 1
        return x.sin() if user == self.first else x.cos()


def case(user):
    return Model(user).eval(), (torch.ones(2, 4), user)


def broken(user):
    def function(x, user, key):
        x = x * 2 if key > "a" else x
        torch._dynamo.graph_break()
        return x.sin() if user > "a" else x.cos()

    return function, (torch.ones(2, 4), user, "@later-argument@")


@pytest.mark.ortlens(max_breaks=0, max_recompiles=0)
def test_it():
    function, args = broken("@argument@")
    backend = torch.compile(function, backend="ortlens", options=dict(preferred_execution_providers=PROVIDERS))
    backend(*args)
    backend(args[0], args[2], args[1])
    backend(args[0][:, :3], "", "")


PROVIDERS = [("CPUExecutionProvider", {"api_key": "@provider@"})]
'''
PLAIN_PLACES = (
    *("module-docstring", "global", "docstring", "attribute", "method-docstring", "argument", "later-argument", "provider", "environment"),
)


def secret(place: str) -> str:
    return "4929123456781234" if place == "number" else f"zq-{place}-77f3"


def written(program: str) -> str:
    """A program with its secrets."""
    return re.sub(r"@([\w-]+)@", lambda found: secret(found[1]), program)


def loaded(name: str, file: Path) -> ModuleType:
    """Import a file as a module of this name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def raising(_x: Any) -> Any:  # noqa: ANN401 - any tensor
    raise ValueError(f"no such user: {secret('exception')}")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str]:
    """Every output by name, unpacked, and the redacted report."""
    folder = tmp_path_factory.mktemp("secrets")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        patch.setenv("ZQ_KEY", secret("environment"))
        patch.setitem(sys.modules, "program", ModuleType("program"))  # for its dataclass
        logging.getLogger("torch").setLevel(logging.ERROR)
        file = folder / secret("folder") / "program.py"
        file.parent.mkdir()
        file.write_text(written(PROGRAM).replace("WEIGHT", str(WEIGHT)), encoding="utf-8")
        module = loaded("program", file)
        patch.setitem(sys.modules, "program", module)
        options = {
            "preferred_execution_providers": [("CPUExecutionProvider", {"api_key": secret("provider")})],
            "cache_dir": str(folder / secret("cache")),
            "custom_translation_table": {torch.ops.aten.cos.default: raising},
        }
        lens = ortlens.Lens(options=options, journal=folder / "journal")
        fast = torch.compile(module.Model(secret("argument")).eval(), backend=lens)
        x, named = torch.full((2, 4), INPUT), {secret("key"): 2.0, secret("option-key"): 3.0}
        args = (x, secret("argument"), named, int(secret("number")))
        fast(*args)
        fast(x, user=secret("later-argument"), options=named, account=int(secret("number")))
        fast(x, secret("argument"), named, 5)
        lens.measure(*args)
        lens.verify(*args)
        lens.profile(*args, repeat=2)
        (folder / "out").mkdir()
        _write_all(lens, folder / "out", args)
    read = all_in(folder, "journal", "out")
    redacted = read.pop("out/redacted.html")
    return read, redacted


def _write_all(lens: ortlens.Lens, out: Path, args: tuple[Any, ...]) -> None:
    lens.report(out / "report.html")
    lens.report(out / "redacted.html", redact=True)
    saved = lens.save(out / "run.ortlens")
    partition = lens.partitions.partition_id.iloc[0]
    lens.repro(partition, out / "repro", args=args, source=True)
    compared = lens.compare(lens)
    compared.report(out / "compared.html")
    lens.flame().save(out / "flame.svg")
    lens.netron(partition).save(out / "netron.html")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        for form in FORMATS:
            assert main(["export", str(saved), str(out / form), "--format", form]) == 0
        assert main(["compare", str(saved), str(saved)]) == 0
        forms = {"--json": "json", "--junit": "xml", "--markdown": "md", "--sarif": "sarif"}
        verdicts = [text for option, end in forms.items() for text in (option, str(out / f"c.{end}"))]
        assert main(["check", str(saved), "--max-breaks", "0", *verdicts]) == 1
        assert main(["show", str(saved)]) == 0
    shown = [lens.summary(), repr(lens), lens._repr_html_(), str(lens.output()), str(lens.figures()), str(compared), compared._repr_html_()]
    (out / "said.txt").write_text("\n".join((said.getvalue(), *shown)), encoding="utf-8")


def all_in(folder: Path, *names: str) -> dict[str, str]:
    """The files in a folder that these names lead to, unpacked."""
    paths = [path for name in names for path in (folder / name, *(folder / name).rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): _unpacked(path) for path in paths}


def places_of(secret: str, texts: dict[str, str]) -> dict[str, str]:
    """Where a secret is, with what is around it."""
    return {name: text[max(0, at - 120) : at + 60] for name, text in texts.items() if (at := text.find(secret)) >= 0}


def _unpacked(path: Path) -> str:
    """Everything in a file, what is packed included, as text with a character per byte."""
    data = path.read_bytes()
    if data.startswith(SAVED):
        data = b"\n".join([data, *(held for _, held in entries_in(data))])
    parts = [data]
    for found in re.findall(rb">([A-Za-z0-9+/=]{100,})<", data):
        packed = base64.b64decode(found)
        for unpack in (gzip.decompress, zlib.decompress, lambda held: zlib.decompress(held, -15)):
            with contextlib.suppress(Exception):
                parts.append(unpack(packed))
    return b"\n".join(parts).decode("latin-1")


def test_the_search_finds_what_is_there(outputs: tuple[dict[str, str], str]) -> None:
    read, redacted = outputs
    assert secret("folder") in read["out/report.html"], "paths are in a report by design"
    assert secret("comment") in read["out/run.ortlens"], "and source lines"
    assert len(read) > 40
    assert "program.py" in redacted


@pytest.mark.parametrize("value", [WEIGHT, INPUT])
def test_no_output_holds_a_weight_or_an_input(value: float, outputs: tuple[dict[str, str], str]) -> None:
    texts = {**outputs[0], "redacted": outputs[1]}  # the program holds the weight's value in its text; no line of it is recorded
    for form in (f"{value}"[:7], *(struct.pack(packed, *[value] * int(packed[1])).decode("latin-1") for packed in ("<4f", "<2d"))):
        assert places_of(form, texts) == {}


@pytest.mark.parametrize("place", PLACES)
def test_no_output_holds_a_secret(place: str, outputs: tuple[dict[str, str], str]) -> None:
    read, redacted = outputs
    assert places_of(secret(place), {"redacted": redacted, **(read if place not in BY_DESIGN else {})}) == {}
    assert secret(place)[:6] not in redacted or place == "number"


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("plain")
    program, out = folder / "test_plain.py", folder / "out"
    program.write_text(written(PLAIN), encoding="utf-8")
    (out / "plugin").mkdir(parents=True)
    options = {"preferred_execution_providers": [("CPUExecutionProvider", {"api_key": secret("provider")})]}
    argument = secret("argument")
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setenv("ZQ_RARE", secret("environment"))
        cases = {name: ortlens.Case(target=f"{program}:{name}", args=(argument,)) for name in ("case", "broken")}
        rows = ortlens.survey(cases, folder=out / "survey", options=options, workers=1)
        assert set(rows.status) == {"ok"}
        (out / "rows.txt").write_text(rows.to_csv() + rows.to_html() + str(rows.to_dict("records")), encoding="utf-8")
        plugin = ["-q", "-p", "no:cacheprovider", "--tb=line", "--ortlens-dir", "kept", "--junit-xml", "j.xml", str(program)]
        done = subprocess.run([sys.executable, "-m", "pytest", *plugin], cwd=out / "plugin", check=False, capture_output=True, text=True)
        assert done.returncode == 1
        (out / "plugin" / "said.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        assert "max_breaks" in done.stdout
        model, args = loaded("plain_program", program).case(argument)
        chosen, table = ortlens.tune(model, options=options, budget_s=1)(*args)
        (out / "tuned.txt").write_text(table.to_csv() + table.to_html() + table.attrs.__repr__(), encoding="utf-8")
        assert len(table)
        frozen = ortlens.freeze(model, *args, options=chosen)
        frozen.save(out / "frozen")
        (out / "frozen.txt").write_text(repr(frozen), encoding="utf-8")
    return all_in(out, ".")


@pytest.mark.slow
def test_the_search_reads_what_studies_wrote(studied: dict[str, str]) -> None:
    assert len(studied) > 20
    assert {"survey/index.html", "rows.txt", "plugin/j.xml", "plugin/said.txt", "tuned.txt", "frozen/manifest.json"} <= studied.keys()
    assert sum(name.endswith(".ortlens") for name in studied) >= 3
    assert secret("argument") in studied["frozen/manifest.json"], "a call is compared with it: docs/freeze.md says so"


@pytest.mark.slow
@pytest.mark.parametrize("place", PLAIN_PLACES)
def test_no_study_holds_it(place: str, studied: dict[str, str]) -> None:
    by_design = {"frozen/manifest.json"} if place == "argument" else set()
    assert places_of(secret(place), studied).keys() == by_design
