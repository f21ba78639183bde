"""Secrets in rarer places of a program, looked for in every file of every export, where source lines may hold them by design.

And secrets of a plainer program in what else writes files and tables: a survey, `tune`, the pytest plugin, a frozen callable.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ortlens
from tests.integration.test_secrets import all_in, loaded, places_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

PROGRAM = """
import dataclasses, enum, functools, os, pathlib, re, torch

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
    SECRET = "@class-attribute@"

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.config, self.mode, self.path = Config(), Mode.ON, pathlib.Path("/home/@path@/x")
        self.nested = {"a": [{"b": "@nested@"}]}
        self.scale, self.shift = make("@closure@"), functools.partial(self.helper, token="@partial@")
        self.pattern = "@pattern@"

    def helper(self, x, token):
        return x + 1 if token.startswith("zq") else x - 1

    def forward(self, x, user=None, options=None):
        x = self.shift(self.scale(self.linear(x)))
        if self.config.key == LISTED[1] or self.config.data == b"q":
            x = x + 2
        if self.mode is Mode.ON and self.SECRET > "a" and REGISTRY["one"]["token"] > "a" and self.nested["a"][0]["b"] > "a":
            x = x * 1.5
        if f"{user}-{os.environ.get('ZQ_RARE')}" == "no" or user in IN_SET or str(self.path) == "q":
            x = x - 2
        for name in options:
            x = x + len(options[name]) * 0.5
        torch._dynamo.graph_break()
        try:
            raise ValueError(f"no {user}")
        except ValueError:
            x = x.cos()
        return x + 1 if re.match(self.pattern, user) else x.sin()
"""
PLACES = (
    *("registry", "listed", "in-set", "enum", "dataclass", "bytes", "class-attribute", "path", "nested", "closure", "partial", "pattern"),
    *("environment", "keyword", "later-keyword", "option-key", "option-value"),
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
    return f"zq-{place}-77f3"


def write_program(text: str, places: tuple[str, ...], file: Path) -> None:
    for place in places:
        text = text.replace(f"@{place}@", secret(place))
    file.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("rare")
    write_program(PROGRAM, PLACES, folder / "rare_program.py")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        patch.setitem(sys.modules, "rare_program", ModuleType("rare_program"))  # for its dataclass
        patch.setenv("ZQ_RARE", secret("environment"))
        logging.getLogger("torch").setLevel(logging.ERROR)
        module = loaded("rare_program", folder / "rare_program.py")
        patch.setitem(sys.modules, "rare_program", module)
        lens = ortlens.Lens(journal=folder / "journal")
        x, options = torch.ones(2, 4), {secret("option-key"): secret("option-value")}
        fast = torch.compile(module.Model().eval(), backend=lens)
        for user in (secret("keyword"), secret("later-keyword")):
            fast(x, user=user, options=options)
        written(lens, folder / "out", x, {"user": secret("keyword"), "options": options})
    yield all_in(folder, "journal", "out")
    torch.compiler.reset()


def written(lens: ortlens.Lens, out: Path, x: torch.Tensor, keywords: dict[str, Any]) -> None:
    lens.measure(x, **keywords)
    lens.verify(x, **keywords)
    lens.profile(x, repeat=2, **keywords)
    lens.probe(x, **keywords)
    out.mkdir()
    lens.report(out / "report.html")
    lens.report(out / "redacted.html", redact=True)
    lens.save(out / "run.ortlens")
    for form in ("csv", "json", "trace", "parquet", "model-explorer"):
        lens.export(out / form, format=form)
    compared = lens.compare(lens)
    compared.report(out / "compared.html")
    lens.flame().save(out / "flame.svg")
    lens.netron("p0").save(out / "netron.html")
    lens.repro("p0", out / "repro", args=(x,), kwargs=keywords, source=True)
    shown = [lens.summary(), repr(lens), lens._repr_html_(), str(lens.output()), str(lens.figures()), str(compared), compared._repr_html_()]
    (out / "shown.txt").write_text("\n".join(shown), encoding="utf-8")


def test_the_search_reads_what_was_written(files: dict[str, str]) -> None:
    assert len(files) > 40
    assert "rare_program.py" in files["out/run.ortlens"]
    assert "torch._dynamo.graph_break()" in files["out/report.html"]


@pytest.mark.parametrize("place", PLACES)
def test_no_file_holds_it(place: str, files: dict[str, str]) -> None:
    assert places_of(secret(place), files) == {}


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("plain")
    program, out = folder / "test_plain.py", folder / "out"
    write_program(PLAIN, PLAIN_PLACES, program)
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
    torch.compiler.reset()
    return all_in(out, ".")


def test_the_search_reads_what_studies_wrote(studied: dict[str, str]) -> None:
    assert len(studied) > 20
    assert {"survey/index.html", "rows.txt", "plugin/j.xml", "plugin/said.txt", "tuned.txt", "frozen/manifest.json"} <= studied.keys()
    assert sum(name.endswith(".ortlens") for name in studied) >= 3
    assert secret("argument") in studied["frozen/manifest.json"], "a call is compared with it: docs/freeze.md says so"


@pytest.mark.parametrize("place", PLAIN_PLACES)
def test_no_study_holds_it(place: str, studied: dict[str, str]) -> None:
    by_design = {"frozen/manifest.json"} if place == "argument" else set()
    assert places_of(secret(place), studied).keys() == by_design
