"""Runs a saved frozen callable with onnxruntime and numpy alone: no torch, no tracing, and nothing in the folder is executed.

`Frozen.save` copies this file and `signature.py` beside the model, so that a folder also runs where ortlens is not installed:

    import sys; sys.path.insert(0, "folder")
    from loader import load_frozen

    frozen = load_frozen("folder")
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import pathlib
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

if __package__:
    from ortlens.backend.freeze.model_file import read_model, refuse_unsafe
    from ortlens.backend.freeze.signature import Given, Signature, UnknownForm, admits, flat, signature_from_json, tree_text, unflat
    from ortlens.errors import CaptureError, SessionError, UsageError
else:  # beside a saved model, without ortlens
    from model_file import read_model, refuse_unsafe  # type: ignore[import-not-found,no-redef]  # exists there only
    from signature import (  # type: ignore[import-not-found,no-redef]  # likewise
        Given,
        Signature,
        UnknownForm,
        admits,
        flat,
        signature_from_json,
        tree_text,
        unflat,
    )

    class CaptureError(Exception):  # type: ignore[no-redef]  # stands for that of ortlens
        """The folder is damaged."""

    class SessionError(Exception):  # type: ignore[no-redef]  # likewise
        """ONNX Runtime failed."""

    class UsageError(ValueError):  # type: ignore[no-redef]  # likewise
        """The arguments are outside the signature."""


if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

MANIFEST = "manifest.json"
FORMAT, SCHEMA = "ortlens frozen", 1
_LARGEST_MANIFEST = 1 << 24
_PIECE = 1 << 18
_WORK = 1 << 20  # candidates that numpy tries before it is too hard to say whether arrays overlap


def load_frozen(
    folder: str | os.PathLike[str], *, providers: Sequence[Any] = ("CPUExecutionProvider",), threads: int | None = None
) -> LoadedFrozen:
    """Load what `Frozen.save` wrote.

    Args:
        folder: The folder.
        providers: Execution providers, as for `onnxruntime.InferenceSession`.
        threads: Threads of an operator; None: one for a small model, else as many as ONNX Runtime chooses.

    Returns:
        A callable with the arguments of the frozen callable: numpy arrays in and out, or torch tensors in and out. Objects among results,
        such as a ModelOutput, come back as dicts.

    Raises:
        CaptureError: The folder is missing, damaged, of an unknown schema, or reaches for files outside; nothing in it has run.
    """
    place = pathlib.Path(folder).absolute()
    try:
        manifest = _manifest_in(place)
        _check_files(place, manifest)
        return LoadedFrozen(place, manifest, providers, threads)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, OSError) as error:
        raise CaptureError(f"{place} holds no sound frozen callable: {type(error).__name__}: {error}; save it again") from error


def _manifest_in(place: pathlib.Path) -> dict[str, Any]:
    path = _inside(place, MANIFEST)
    if path.stat().st_size > _LARGEST_MANIFEST:
        raise CaptureError(f"{path} has {path.stat().st_size:,} bytes, which no manifest has")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CaptureError(f"{path} is no manifest of a frozen callable")
    if manifest.get("schema") != SCHEMA:
        raise CaptureError(f"{path} has schema {manifest.get('schema')!r}; this version reads {SCHEMA}")
    return manifest


def _inside(place: pathlib.Path, name: object) -> pathlib.Path:
    """Resolve a name from the manifest to a plain file of the folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or not set("/\\:\0").isdisjoint(name):
        raise CaptureError(f"{name!r} in the manifest is no name of a file in {place}")
    path = place / name
    if path.is_symlink() or not path.is_file():
        raise CaptureError(f"{path} is missing, or no plain file")
    return path


def _check_files(place: pathlib.Path, manifest: Mapping[str, Any]) -> None:
    files: dict[str, Any] = manifest["files"]
    for name, known in files.items():
        path = _inside(place, name)
        if path.stat().st_size != known["bytes"]:
            raise CaptureError(f"{path} has {path.stat().st_size:,} bytes, the manifest says {known['bytes']!r}: the file was changed")
        if (found := digest_of(path)) != known["sha256"]:
            raise CaptureError(f"{path} has sha256 {found}, the manifest says {known['sha256']!r}: the file was changed")
    if manifest["model"] not in files:
        raise CaptureError("the manifest has no hash for the model")
    path = _inside(place, manifest["model"])
    model = read_model(path.read_bytes())
    if outside := model.locations - set(files):
        raise CaptureError(f"the model reads {', '.join(sorted(map(repr, outside)))}, which the manifest does not list")
    refuse_unsafe(model, path)


def digest_of(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    made = hashlib.sha256()
    piece = memoryview(bytearray(_PIECE))  # one for all: fresh memory for every piece would cost as much as reading
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(piece):
            made.update(piece[:count])
    return made.hexdigest()


class LoadedFrozen:
    """A saved frozen callable: the same arguments and results, as numpy arrays or torch tensors.

    Attributes:
        state: The buffers that calls change: name -> array. Put another array of the same dtype and shape in its place to set one.
        signature: What calls take.
        session: The session.
    """

    def __init__(self, place: pathlib.Path, manifest: Mapping[str, Any], providers: Sequence[Any], threads: int | None) -> None:
        """Create the session; `load_frozen` has checked the files. Raise CaptureError if ONNX Runtime refuses the model."""
        self.signature: Signature = signature_from_json(manifest["signature"])
        self._tree, self._result = manifest["arguments"], manifest["result"]
        self._parameters: list[str] = list(manifest["parameters"])
        self._guards: list[Any] = list(manifest["guards"])
        self._feeds, self._returned, self._updates = manifest["feeds"], manifest["returned"], manifest["updates"]
        self._written = sorted({entry["leaf"] for entry in self._updates if "leaf" in entry})
        self._layouts: list[Any] = [(leaf, strides and tuple(strides)) for leaf, strides in manifest.get("layouts", ())]
        self.state = {str(name): _array(place, entry) for name, entry in manifest["state"].items()}
        self._lock = threading.Lock()
        self._known: set[Any] = set()
        self.session = self._session(_inside(place, manifest["model"]), manifest, providers, threads)
        self._names = [item.name for item in self.session.get_outputs()]
        self._check_boundary()

    @staticmethod
    def _session(model: pathlib.Path, manifest: Mapping[str, Any], providers: Sequence[Any], threads: int | None) -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        # As ortlens itself: without it, products of 8-bit integers overflow on a CPU with AVX2 and without VNNI.
        options.add_session_config_entry("session.x64quantprecision", "1")
        count = threads if threads is not None else manifest["threads"]
        if count is not None:
            options.intra_op_num_threads = int(count)
        disabled = [str(name) for name in manifest["disabled_optimizers"]]
        try:
            return onnxruntime.InferenceSession(str(model), options, providers=list(providers), disabled_optimizers=disabled)
        except Exception as error:
            raise CaptureError(f"ONNX Runtime refuses {model}: {error}") from error

    def _check_boundary(self) -> None:
        """Check that the manifest and the model name the same inputs and outputs, so that no call finds out."""
        taken = [item.name for item in self.session.get_inputs()]
        count = len(self.signature.leaves)
        given = [entry["name"] for entry in self._feeds]
        leaves = [entry["leaf"] for entry in (*self._feeds, *self._returned, *self._updates) if "leaf" in entry]
        leaves += [leaf for leaf, _ in self._layouts]
        outputs = [entry["output"] for entry in (*self._returned, *self._updates) if "output" in entry]
        states = [entry["state"] for entry in (*self._feeds, *self._updates) if "state" in entry]
        sound = sorted(taken) == sorted(given) and set(outputs) <= set(self._names) and set(states) <= self.state.keys()
        if not sound or any(not isinstance(leaf, int) or not 0 <= leaf < count for leaf in leaves):
            raise CaptureError("the manifest does not fit the model's inputs and outputs")
        kinds = [self._tree[0], *(child[0] for child in self._tree[1])]
        if kinds != ["tuple", "tuple", "dict"] or len(flat(self._tree, unflat(self._tree, [None] * count))) != count:
            raise CaptureError("the manifest's arguments do not fit its signature")
        unflat(self._result, [None] * len(self._returned))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run.

        Args:
            *args: As the frozen callable takes them: numpy arrays, or torch tensors on the CPU.
            **kwargs: Likewise.

        Returns:
            The result: torch tensors if some argument is one, else numpy arrays.

        Raises:
            UsageError: An argument is outside the traced signature; the message names what differs.
            SessionError: ONNX Runtime failed.
        """
        values = self._values(args, kwargs)
        torch = sys.modules.get("torch")
        tensors = torch is not None and any(isinstance(value, torch.Tensor) for value in values)
        given = [_as_given(value) for value in values]
        arrays = [np.ascontiguousarray(value).reshape(value.shape) if isinstance(value, np.ndarray) else value for value in given]
        self._check(arrays)
        if found := self._memory_faults(given):
            raise UsageError(f"outside the traced signature: {'; '.join(found)}")
        with self._lock if self.state else contextlib.nullcontext():
            made = self._run(arrays)
            self._update(made, values)
        wrap = torch.from_numpy if tensors and torch is not None else lambda array: array
        leaves = [self._leaf(entry, made, values, wrap) for entry in self._returned]
        return unflat(self._result, leaves)

    def _values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        named = [name for name in self._parameters[len(args) :] if name in kwargs]
        by_place = [*args, *(kwargs.pop(name) for name in named)]
        try:
            return flat(self._tree, (by_place, kwargs))
        except UnknownForm as error:
            raise UsageError(f"outside the traced signature: {error}; expected the arguments {tree_text(self._tree)}") from error

    def _check(self, arrays: Sequence[Any]) -> None:
        key = tuple((value.dtype, value.shape) if isinstance(value, np.ndarray) else (type(value), value, _sign(value)) for value in arrays)
        try:
            if key in self._known:
                return
        except TypeError:  # a value that cannot be looked up is no constant
            pass
        found = self.signature.differences(arrays, _given_of)
        found += [] if found else [text for text, guard in self._guards if not admits(guard, arrays)]
        if found:
            raise UsageError(f"outside the traced signature: {'; '.join(found)}")
        if len(self._known) < 4096:  # noqa: PLR2004 - combinations to remember
            self._known.add(key)

    def _memory_faults(self, given: Sequence[Any]) -> list[str]:
        """Describe what a call would write to wrongly, a sentence for each with what to do."""
        names = [leaf.name for leaf in self.signature.leaves]
        found = []
        for leaf, strides in self._layouts:
            if not _lies_like(given[leaf], strides):
                expected = f"the strides {strides}" if strides else "a contiguous array"
                found.append(f"{names[leaf]}: expected {expected}, whose layout decided in tracing what is written to; pass such a copy")
        for leaf in self._written:
            name = names[leaf]
            if not given[leaf].flags.writeable:
                found.append(f"{name} is written to, and read-only: pass a copy")
            elif _overlaps_itself(given[leaf]):
                found.append(f"{name} is written to, and several of its elements share memory: pass a copy")
            others = [
                *zip(names[:leaf], given[:leaf], strict=True),
                *zip(names[leaf + 1 :], given[leaf + 1 :], strict=True),
                *self.state.items(),
            ]
            shared = [other for other, array in others if isinstance(array, np.ndarray) and _overlap(given[leaf], array)]
            found += [f"{other} shares memory with {name}, which is written to: pass a copy" for other in shared]
        return found

    def _run(self, arrays: Sequence[Any]) -> dict[str, Any]:
        feeds = {}
        for entry in self._feeds:
            value = self.state[entry["state"]] if "state" in entry else arrays[entry["leaf"]]
            feeds[entry["name"]] = value if isinstance(value, np.ndarray) else np.array(value, dtype=np.int64)
        try:
            return dict(zip(self._names, self.session.run(self._names, feeds), strict=True))
        except Exception as error:
            raise SessionError(f"ONNX Runtime failed: {error}") from error

    def _update(self, made: Mapping[str, Any], values: Sequence[Any]) -> None:
        for entry in self._updates:
            new = made[entry["output"]]
            if "state" in entry:
                self.state[entry["state"]] = new.copy()
            elif isinstance(values[entry["leaf"]], np.ndarray):
                values[entry["leaf"]][...] = new
            else:
                values[entry["leaf"]].detach().copy_(sys.modules["torch"].from_numpy(new))

    @staticmethod
    def _leaf(entry: Mapping[str, Any], made: Mapping[str, Any], values: Sequence[Any], wrap: Any) -> Any:
        if "constant" in entry:
            return entry["constant"]
        if "leaf" in entry:
            return values[entry["leaf"]]
        return wrap(made[entry["output"]])


def _array(place: pathlib.Path, entry: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    raw = _inside(place, entry["file"]).read_bytes()
    flat_array: np.ndarray[Any, Any] = np.frombuffer(raw, dtype=np.dtype(str(entry["dtype"])))
    array: np.ndarray[Any, Any] = flat_array.reshape([int(size) for size in entry["shape"]]).copy()
    return array


def _as_given(value: Any) -> Any:
    """Convert a tensor or array to an array, in the memory of the tensor if its values are there; leave anything else as it is."""
    if isinstance(value, np.generic):
        made: np.ndarray[Any, Any] = np.asarray(value)
        made.flags.writeable = False
        return made
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        try:
            return value.detach().resolve_conj().resolve_neg().cpu().numpy()
        except (TypeError, RuntimeError) as error:
            raise UsageError(f"a tensor of {value.dtype} and layout {value.layout} cannot be passed on: {error}") from error
    return value


def _sign(value: Any) -> float | None:
    """Return the sign of a float, which tells 0.0 from -0.0 although they are equal."""
    return math.copysign(1.0, value) if isinstance(value, float) else None


def _lies_like(array: Any, strides: tuple[int, ...] | None) -> bool:
    if strides is None:
        return bool(array.flags.c_contiguous)
    pairs = zip(array.shape, array.strides, strides, strict=True)
    return all(size < 2 or step == count * array.itemsize for size, step, count in pairs)  # noqa: PLR2004 - one element has no step


def _overlap(one: Any, other: Any) -> bool:
    try:
        return bool(np.shares_memory(one, other, max_work=_WORK))  # type: ignore[arg-type]  # numpy's annotation knows two of its values
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(array: Any) -> bool:
    end = 0
    for step, size in sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True)):
        if size > 1 and step <= end:
            return True
        end += (size - 1) * step
    return False


def _given_of(value: Any) -> Given | None:
    return Given(str(value.dtype), tuple(value.shape)) if isinstance(value, np.ndarray) else None
