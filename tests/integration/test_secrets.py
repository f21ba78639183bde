"""Secrets planted wherever a program may have them, looked for in everything that ortlens writes."""

from __future__ import annotations

import base64
import contextlib
import gzip
import importlib.util
import io
import re
import struct
import warnings
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ortlens
from ortlens.cli.entry import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

WEIGHT, INPUT = 8765.4375, 7654.3125
"""Exact in float32, and neither in any text by chance."""

STRINGS = {
    "argument": "zq-argument-9f31",
    "later argument": "zq-another-77ac",
    "attribute": "zq-attribute-c012",
    "global": "zq-global-51de",
    "key": "zq-key-8843",
    "number": "4929123456781234",
    "exception": "zq-exception-20b7",
    "provider": "zq-provider-e6a9",
    "cache": "zq-cache-1d1d",
    "environment": "zq-environment-b33f",
    "docstring": "zq-docstring-0a0a",
    "folder": "zq-folder-4c4c",
    "comment": "zq-comment-6e6e",
}
BY_DESIGN = {"folder", "cache", "comment", "exception"}
"""What a capture that is not redacted holds: paths, source lines, messages of exceptions."""

PROGRAM = '''
import torch

TOKEN = "{global}"


class Model(torch.nn.Module):
    """{docstring}"""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.token = "{attribute}"
        torch.nn.init.constant_(self.linear.weight, {WEIGHT})

    def forward(self, x, user, options, account):
        """{docstring}"""
        x = self.linear(x) * len(user)  # {comment}
        if self.token > "a" and TOKEN > "a" and account > 7:
            x = x + options[self.key]
        torch._dynamo.graph_break()
        return x.sin() if user == self.first else x.cos()
'''


def loaded(name: str, file: Path) -> ModuleType:
    """Import a file as a module of this name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def raising(_x: Any) -> Any:  # noqa: ANN401 - any tensor
    raise ValueError(f"no such user: {STRINGS['exception']}")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], str]]:
    """Every output by name, unpacked, and the redacted report."""
    folder = tmp_path_factory.mktemp("secrets")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        patch.setenv("ZQ_KEY", STRINGS["environment"])
        file = folder / STRINGS["folder"] / "program.py"
        file.parent.mkdir()
        file.write_text(re.sub(r"\{([\w ]+)\}", lambda found: str({**STRINGS, "WEIGHT": WEIGHT}[found[1]]), PROGRAM), encoding="utf-8")
        module = loaded("program", file)
        options = {
            "preferred_execution_providers": [("CPUExecutionProvider", {"api_key": STRINGS["provider"]})],
            "cache_dir": str(folder / STRINGS["cache"]),
            "custom_translation_table": {torch.ops.aten.cos.default: raising},
        }
        lens = ortlens.Lens(options=options, journal=folder / "journal")
        model = module.Model().eval()
        model.key, model.first = STRINGS["key"], STRINGS["argument"]
        fast = torch.compile(model, backend=lens)
        x, number = torch.full((2, 4), INPUT), int(STRINGS["number"])
        for user in (STRINGS["argument"], STRINGS["later argument"]):
            fast(x, user, {STRINGS["key"]: 2.0}, number)
        fast(x, STRINGS["argument"], {STRINGS["key"]: 2.0}, 5)
        args = (x, STRINGS["argument"], {STRINGS["key"]: 2.0}, number)
        lens.measure(*args)
        lens.verify(*args)
        (folder / "out").mkdir()
        _write_all(lens, folder / "out", args)
    read = all_in(folder, "journal", "out")
    redacted = read.pop("out/redacted.html")
    yield read, redacted
    torch.compiler.reset()


def _write_all(lens: ortlens.Lens, out: Path, args: tuple[Any, ...]) -> None:
    lens.report(out / "report.html")
    lens.report(out / "redacted.html", redact=True)
    saved = lens.save(out / "run.ortlens")
    lens.save(out / "folder")
    lens.repro(lens.partitions.partition_id.iloc[0], out / "repro", args=args)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["export", str(saved), str(out / "csv"), "--format", "csv"]) == 0
        assert main(["export", str(saved), str(out / "json"), "--format", "json"]) == 0
        assert main(["export", str(saved), str(out / "trace"), "--format", "trace"]) == 0
        assert main(["compare", str(saved), str(saved)]) == 0
        verdicts = ("--json", str(out / "c.json"), "--junit", str(out / "c.xml"), "--markdown", str(out / "c.md"))
        assert main(["check", str(saved), "--max-breaks", "0", *verdicts]) == 1
        assert main(["show", str(saved)]) == 0
    (out / "said.txt").write_text(said.getvalue() + lens.summary() + repr(lens) + lens._repr_html_(), encoding="utf-8")


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
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            data = b"\n".join(archive.read(name) for name in archive.namelist())
    parts = [data]
    for found in re.findall(rb">([A-Za-z0-9+/=]{100,})<", data):
        packed = base64.b64decode(found)
        for unpack in (gzip.decompress, zlib.decompress, lambda held: zlib.decompress(held, -15)):
            with contextlib.suppress(Exception):
                parts.append(unpack(packed))
    return b"\n".join(parts).decode("latin-1")


def test_the_search_finds_what_is_there(outputs: tuple[dict[str, str], str]) -> None:
    read, redacted = outputs
    assert STRINGS["folder"] in read["out/report.html"], "paths are in a report by design"
    assert STRINGS["comment"] in read["out/run.ortlens"], "and source lines"
    assert len(read) > 20
    assert "program.py" in redacted


@pytest.mark.parametrize("value", [WEIGHT, INPUT])
def test_no_output_holds_a_weight_or_an_input(value: float, outputs: tuple[dict[str, str], str]) -> None:
    texts = {**outputs[0], "redacted": outputs[1]}  # the program holds the weight's value in its text; no line of it is recorded
    for form in (f"{value}"[:7], *(struct.pack(packed, *[value] * int(packed[1])).decode("latin-1") for packed in ("<4f", "<2d"))):
        assert places_of(form, texts) == {}


@pytest.mark.parametrize("where", STRINGS)
def test_no_output_holds_a_secret(where: str, outputs: tuple[dict[str, str], str]) -> None:
    read, redacted = outputs
    assert places_of(STRINGS[where], {"redacted": redacted, **(read if where not in BY_DESIGN else {})}) == {}
    assert STRINGS[where][:6] not in redacted or where == "number"
