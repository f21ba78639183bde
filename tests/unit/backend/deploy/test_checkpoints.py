"""Checkpoints: every form is read, one tensor at a time; a damaged or hostile one is a UsageError and no code of it runs."""

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ortlens import OptionalDependencyError, UsageError
from ortlens.backend.deploy import export

STATE = {
    "up.weight": torch.arange(6.0).reshape(2, 3),
    "up.bias": torch.tensor([True, False]),
    "half": torch.randn(3).half(),
    "brain": torch.randn(2, 2).bfloat16(),
    "scalar": torch.tensor(7),
    "empty": torch.empty(0, 4),
}


ONE_FILE: dict[str, Callable[[Path], object]] = {
    "model.safetensors": lambda path: save_file(STATE, path),
    "model.pt": lambda path: torch.save(STATE, path),
    "model.pth": lambda path: torch.save({"epoch": 3, "state_dict": STATE, "optimizer": {"lr": 0.1}}, path),  # as trainers do
    "model.bin": lambda path: torch.save(STATE, path, _use_new_zipfile_serialization=False),  # as torch did long ago
}
SHARDS: dict[str, tuple[str, Callable[[dict[str, torch.Tensor], Path], object]]] = {
    "model.safetensors.index.json": ("safetensors", save_file),
    "pytorch_model.bin.index.json": ("bin", torch.save),
}


def written(name: str, folder: Path) -> Path:
    if name in ONE_FILE:
        ONE_FILE[name](folder / name)
        return folder / name
    (ending, save), names = SHARDS[name], sorted(STATE)
    shards = {f"model-1.{ending}": names[:3], f"model-2.{ending}": names[3:]}
    for shard, held in shards.items():
        save({each: STATE[each] for each in held}, folder / shard)
    return index(folder / name, {each: shard for shard, held in shards.items() for each in held})


def index(path: Path, weight_map: object) -> Path:
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
    return path


@pytest.mark.parametrize("as_folder", [False, True])
@pytest.mark.parametrize("form", [*ONE_FILE, *SHARDS])
def test_every_form_gives_the_same_weights(form: str, as_folder: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    path = written(form, tmp_path)
    for source in (tmp_path,) if as_folder else (path, str(path)):
        opened = export.open_weights(source)
        assert set(opened) == set(STATE)
        for name, weight in opened.items():
            assert (weight.shape, weight.dtype) == (tuple(STATE[name].shape), STATE[name].dtype)
            assert (tmp_path / weight.origin).is_file()
            torch.testing.assert_close(weight.load(), STATE[name], atol=0, rtol=0)


def test_mappings_and_sequences_of_which_later_ones_win(tmp_path: Path) -> None:
    replaced = {"scalar": torch.tensor(8)}
    opened = export.open_weights([written("model.safetensors", tmp_path), replaced])
    assert set(opened) == set(STATE)
    assert int(opened["scalar"].load()) == 8
    assert int(export.open_weights((replaced, written("model.safetensors", tmp_path)))["scalar"].load()) == 7
    assert export.open_weights([]) == export.open_weights({}) == {}


def test_of_a_mapping_only_tensors_are_taken() -> None:
    with pytest.raises(UsageError, match=r"up\.weight is a list"):
        export.open_weights({"up.weight": [1.0, 2.0]})


@pytest.mark.parametrize("source", ["nowhere.safetensors", "", 3, None, "."])
def test_what_is_not_there_is_named(source: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "readme.txt").write_text("nothing")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="checkpoint"):
        export.open_weights(source)


class Hostile:
    """Writes a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._proof,)


HOSTILE: dict[str, Callable[[object, Path], object]] = {
    "zip": torch.save,
    "pickle": lambda content, path: path.write_bytes(pickle.dumps(content)),
    "legacy": lambda content, path: torch.save(content, path, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("form", HOSTILE)
def test_code_in_a_checkpoint_does_not_run(form: str, tmp_path: Path) -> None:
    proof, path = tmp_path / "ran", tmp_path / "model.pt"
    HOSTILE[form]({"w": Hostile(proof)}, path)
    with pytest.raises(UsageError, match=r"model\.pt"):
        export.open_weights(path)
    assert not proof.exists()


def zip_of(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", content)

    return write


def bytes_of(content: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(content), None)[1]


DAMAGED: dict[str, tuple[str, Callable[[Path], None]]] = {
    "empty safetensors": ("model.safetensors", bytes_of(b"")),
    "noise": ("model.safetensors", bytes_of(b"\xff" * 100)),
    "huge header": ("model.safetensors", bytes_of(struct.pack("<Q", 1 << 60) + b"{}")),
    "offsets beyond the end": (
        "model.safetensors",
        bytes_of(struct.pack("<Q", 58) + b'{"w":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'.ljust(58)),
    ),
    "empty torch": ("model.pt", bytes_of(b"")),
    "torch noise": ("model.pt", bytes_of(b"PK\x03\x04" + b"\x00" * 60)),
    "zip of noise": ("model.pt", zip_of(b"\x80\x02garbage")),
    "a tensor alone": ("model.pt", lambda path: torch.save(torch.ones(2), path)),
    "a list": ("model.pt", lambda path: torch.save([torch.ones(2)], path)),
    "no json": ("model.safetensors.index.json", bytes_of(b"{")),
    "no utf-8": ("model.safetensors.index.json", bytes_of(b"\xff\xfe")),
    "json of a list": ("model.safetensors.index.json", bytes_of(b"[]")),
    "no weight map": ("model.safetensors.index.json", bytes_of(b"{}")),
    "weight map of a list": ("model.safetensors.index.json", bytes_of(b'{"weight_map": ["a"]}')),
    "shards that are numbers": ("model.safetensors.index.json", bytes_of(b'{"weight_map": {"w": 3}}')),
    "a shard without a name": ("model.safetensors.index.json", bytes_of(b'{"weight_map": {"w": ""}}')),
    "a shard that is missing": ("model.safetensors.index.json", bytes_of(b'{"weight_map": {"w": "model-1.safetensors"}}')),
    "itself as its shard": ("model.safetensors.index.json", bytes_of(b'{"weight_map": {"w": "model.safetensors.index.json"}}')),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_a_usage_error_that_names_the_file(case: str, tmp_path: Path) -> None:
    name, write = DAMAGED[case]
    write(tmp_path / name)
    with pytest.raises(UsageError, match="model") as caught:
        export.open_weights(tmp_path / name)
    assert str(tmp_path) in str(caught.value)


def test_a_truncated_file(tmp_path: Path) -> None:
    for path in (written("model.safetensors", tmp_path), written("model.pt", tmp_path)):
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(UsageError, match=path.name):
            export.open_weights(path)


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/{folder}/secret.safetensors", "sub/../../secret.safetensors", "..\\secret"])
def test_an_index_leads_to_no_file_outside_its_folder(shard: str, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    save_file({"w": torch.ones(3)}, tmp_path / "secret.safetensors")
    path = index(inside / "model.safetensors.index.json", {"w": shard.format(folder=tmp_path)})
    with pytest.raises(UsageError, match=r"secret|outside|index"):
        export.open_weights(path)


def test_without_safetensors_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written("model.safetensors", tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(OptionalDependencyError, match="pip install safetensors"):
        export.open_weights(path)
