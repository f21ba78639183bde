"""Inputs from files: what each form gives, and what is refused, in one line and without being executed or allocated."""

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import ortlens
from ortlens import cli
from ortlens.job.targets import inputs_from_texts
from ortlens.trace.records import Numeric

_Code = type("_Code", (), {"__reduce__": lambda _: (Path("executed").touch, ())})  # what is pickled here creates a file when it is loaded


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("calls", "masks", "none", "dir.npy"):
        Path(folder).mkdir()
    for name in ("calls/0", "calls/1", "masks/0"):
        np.save(name, np.full((2, 3), name[-1], np.float32))
    for name, array in {"x": np.zeros((2, 3), np.float32), "code": np.array([_Code()], object)}.items():
        np.save(f"{name}.npy", array)
        np.savez(f"{name}.npz", x=array, mask=array)
    torch.save({"in:0": torch.ones(2).bfloat16(), "y": torch.zeros(3)}, "dict.pt")
    torch.save(_Code(), "code.pt")
    claim = Path("x.npy").read_bytes().replace(b"(2, 3), }" + b" " * 20, b"(1152921504606846976,), }    ")
    with zipfile.ZipFile("claim.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", claim)
    for name, data in {"text": b"hello\n" * 30, "empty": b"", "cut": Path("x.npy").read_bytes()[:-3], "claim": claim}.items():
        for path in (Path(f"{name}.{suffix}") for suffix in ("npy", "npz", "pt")):
            path.write_bytes(path.read_bytes() if path.exists() else data)


def test_files_and_folders_give_what_they_hold() -> None:
    inputs = inputs_from_texts(["@calls", "mask=@x.npz:mask", "z=@dict.pt:in:0", "w=@x.npy", "n=3"])
    for place, (args, kwargs) in enumerate(each.made(0) for each in inputs.calls):
        assert args[0].tolist() == (kwargs["w"] + place).tolist() == [[place] * 3] * 2 == (kwargs["mask"] + place).tolist()
    assert (kwargs["z"].dtype, kwargs["n"], sorted(inputs_from_texts(["**@x.npz"]).arrays(0)[1])) == (torch.bfloat16, 3, ["mask", "x"])


REFUSED = {
    **{f"@{name}": f"there is no file '{name}" for name in ("missing.npy", "dir.npy", "none", "missing.txt")},
    **{f"@{name}.{end}": f"{name}.{end} cannot be read" for name in ("text", "empty", "cut", "claim") for end in ("npy", "npz", "pt")},
    **dict.fromkeys(("@code.npy", "@code.npz:x", "@code.pt"), "Object arrays cannot be loaded|which might be code"),
    **dict.fromkeys(("@", "@x.npz:mas", "@x.npy:key"), r"no file '\*'|Did you mean mask|no value 'key'"),
    **dict.fromkeys(("@calls m=@masks", "x=1 **@x.npz", "@calls --dry-run"), "numbers of calls: 2, 1|given twice|holds 2; name one"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_holds_no_input_is_refused_in_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "torch:relu", "--input", *text.split()]) == 2
    assert re.match(f"ortlens: --input: .*({REFUSED[text]})[^\n]*\n", capsys.readouterr().err)
    assert not Path("executed").exists()


def test_explain_makes_and_compares_every_call_and_keeps_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(lens: ortlens.Lens, x: torch.Tensor) -> None:
        lens._recorder.replace_all(Numeric, [Numeric(node="y", onnx_value="y", ok=bool(x[0, 0] != 1), max_abs=3.0 - float(x[0, 0]))])

    monkeypatch.setattr(ortlens.Lens, "verify", compared)
    assert cli.main(["explain", "torch:relu", "--input", "@calls", "--verify", "--calls", "1", "-o", "run.ortlens"]) == 1
    captured = ortlens.load("run.ortlens").captured()
    assert [(row.max_abs, row.note) for row in captured.numerics] == [(2.0, "the worst of 2 inputs, number 2")]
    assert captured.figures.explain_inputs == sum(row.calls for row in captured.sessions) == 2
