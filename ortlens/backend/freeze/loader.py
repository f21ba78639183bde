"""Runs a saved frozen callable with onnxruntime and numpy alone: no torch, no tracing, and nothing in the folder is executed.

`Frozen.save` copies this file and those that it imports beside the model, so that a folder also runs where ortlens is not installed:

    import sys; sys.path.insert(0, "folder")
    from loader import load_frozen

    frozen = load_frozen("folder")
"""

from __future__ import annotations

import contextlib
import io
import math
import pathlib
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnxruntime

if __package__:
    from ortlens._process import fewer_cores
    from ortlens.backend.basis.saved_graph import DamagedError, file_in, read_manifest
    from ortlens.backend.deploy.signature import Given, Signature, UnknownForm, admits, flat, signature_from_json, tree_text, unflat
    from ortlens.backend.runtime.processor import exact_products
    from ortlens.errors import CaptureError, SessionError, UsageError
    from ortlens.model_file import read_model, refuse_unsafe
else:  # beside a saved model, without ortlens
    from _process import fewer_cores  # type: ignore[import-not-found,no-redef]  # likewise
    from model_file import read_model, refuse_unsafe  # type: ignore[import-not-found,no-redef]  # exists there only
    from processor import exact_products  # type: ignore[import-not-found,no-redef]  # likewise
    from saved_graph import DamagedError, file_in, read_manifest  # type: ignore[import-not-found,no-redef]  # likewise
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

_WORK = 1 << 20  # candidates that numpy tries before it is too hard to say whether arrays overlap
_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_FAR, _TRIALS = 4, 4  # as in `runtime/binding.py`: how much larger a call is whose memory is not kept, and how often


def load_frozen(folder: str | os.PathLike[str], *, providers: Sequence[Any] | None = None, threads: int | None = None) -> LoadedFrozen:
    """Load what `Frozen.save` wrote.

    Args:
        folder: The folder.
        providers: Execution providers, as for `onnxruntime.InferenceSession`; None: those that the callable was frozen with, as far as the
            installed ONNX Runtime has them, and the CPU's. CUDA computes float32 in TF32 only if it did so when the callable was frozen,
            unless the options given here set `use_tf32`.
        threads: Threads of an operator; None: one for a small model, else as many as ONNX Runtime chooses, and no
            more than the process has cores, by its affinity and quota.

    Returns:
        A callable with the arguments of the frozen callable: numpy arrays, torch tensors or OrtValues in and out, on the device of the
        arguments. Objects among results, such as a ModelOutput, come back as dicts.

    Raises:
        CaptureError: The folder is missing, damaged, of an unknown schema, or reaches for files outside; nothing in it has run.
    """
    place = pathlib.Path(folder).absolute()
    try:
        manifest = read_manifest(place)
        _check_model(place, manifest)
        return LoadedFrozen(place, manifest, providers, threads)
    except DamagedError as error:
        raise CaptureError(str(error)) from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, OSError) as error:
        raise CaptureError(f"{place} holds no sound frozen callable: {type(error).__name__}: {error}; save it again") from error


def _check_model(place: pathlib.Path, manifest: Mapping[str, Any]) -> None:
    files: dict[str, Any] = manifest["files"]
    if manifest["model"] not in files:
        raise CaptureError("the manifest has no hash for the model")
    path = file_in(place, manifest["model"])
    model = read_model(path.read_bytes())
    if outside := model.locations - set(files):
        raise CaptureError(f"the model reads {', '.join(sorted(map(repr, outside)))}, which the manifest does not list")
    refuse_unsafe(model, path)


class _Home(NamedTuple):
    """Where the arguments of a call are, and so its results."""

    device: Any = None  # that of torch, where some argument is a tensor
    ort_device: str = ""  # that of ONNX Runtime, such as `cuda`, where some argument is an OrtValue and none is a tensor
    place: tuple[str, int] | None = None  # what results are bound to; None where the session takes and returns arrays


class LoadedFrozen:
    """A saved frozen callable: the same arguments and results, as numpy arrays, torch tensors or OrtValues.

    Attributes:
        state: The buffers that calls change: name -> array. Put another array of the same dtype and shape in its place to set one.
        signature: What calls take.
        session: The session.
    """

    def __init__(self, place: pathlib.Path, manifest: Mapping[str, Any], providers: Sequence[Any] | None, threads: int | None) -> None:
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
        self.session = self._session(file_in(place, manifest["model"]), manifest, _chosen(manifest, providers), threads)
        options = self.session.get_provider_options().get(_CUDA)
        self._place = None if options is None else ("cuda", int(options.get("device_id", 0)))  # the device that the session computes on
        self._names = [item.name for item in self.session.get_outputs()]
        self._elements = self._most = self._sparing = 0
        self._spared = onnxruntime.RunOptions()
        if self.session.get_session_options().enable_cpu_mem_arena:
            self._spared.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._results = {str(entry["output"]): "number" in entry for entry in self._returned if "output" in entry}
        self._check_boundary()

    @staticmethod
    def _session(model: pathlib.Path, manifest: Mapping[str, Any], providers: Sequence[Any], threads: int | None) -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        for entry in exact_products():
            options.add_session_config_entry(*entry)
        count = threads if threads is not None else manifest["threads"]
        options.intra_op_num_threads = fewer_cores() if count is None else int(count)
        disabled = [str(name) for name in manifest["disabled_optimizers"]]
        try:
            return onnxruntime.InferenceSession(str(model), options, providers=providers, disabled_optimizers=disabled)
        except Exception as error:
            raise CaptureError(f"ONNX Runtime refuses {model}: {error}") from error

    def _check_boundary(self) -> None:
        """Check that the manifest and the model name the same inputs and outputs, so that no call finds out."""
        taken = [item.name for item in self.session.get_inputs()]
        count = len(self.signature.leaves)
        given = [entry["name"] for entry in self._feeds]
        leaves = [entry["leaf"] for entry in (*self._feeds, *self._returned, *self._updates) if "leaf" in entry]
        leaves += [leaf for leaf, _ in self._layouts]
        outputs = [entry["output"] for entry in self._returned if "output" in entry] + [entry["output"] for entry in self._updates]
        states = [entry["state"] for entry in (*self._feeds, *self._updates) if "state" in entry]
        sound = sorted(taken) == sorted(given) and set(outputs) <= set(self._names) and set(states) <= self.state.keys()
        if not sound or any(not isinstance(leaf, int) or not 0 <= leaf < count for leaf in leaves):
            raise CaptureError("the manifest does not fit the model's inputs and outputs")
        kinds = [self._tree[0], *(child[0] for child in self._tree[1])]
        if kinds != ["tuple", "tuple", "dict"] or len(flat(self._tree, unflat(self._tree, [None] * count))) != count:
            raise CaptureError("the manifest's arguments do not fit its signature")
        unflat(self._result, [None] * len(self._returned))
        sources = [(entry, {"constant", "leaf", "output"}) for entry in self._returned]
        sources += [(entry, {"leaf", "state"}) for entry in (*self._feeds, *self._updates)]
        numbers = [(entry["number"], entry["output"]) for entry in self._returned if "number" in entry]
        scalars = [(True, item.name) for item in self.session.get_outputs() if item.shape == []]
        if any(len(kinds & entry.keys()) != 1 for entry, kinds in sources) or any(number not in scalars for number in numbers):
            raise CaptureError("the manifest's inputs, results or updates are incomplete, or of a kind that the model does not have")

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run.

        Args:
            *args: As the frozen callable takes them: numpy arrays, torch tensors on any device, or OrtValues. CUDA tensors are read in
                their memory if the session computes on their device; else they are copied.
            **kwargs: Likewise.

        Returns:
            The result: torch tensors if some argument is one, else OrtValues if some argument is one, else numpy arrays. They are on the
            device of the first argument that is not on the CPU.

        Raises:
            UsageError: An argument is outside the traced signature; the message names what differs.
            SessionError: ONNX Runtime failed.
        """
        values = self._values(args, kwargs)
        home = self._home(values)
        given = [_as_given(value, home.place) for value in values]
        self._check(given)
        if found := self._memory_faults(given):
            raise UsageError(f"outside the traced signature: {'; '.join(found)}")
        fed = [_as_fed(value, array, home.place) for value, array in zip(values, given, strict=True)]
        with self._lock if self.state else contextlib.nullcontext():
            made = self._run(fed) if home.place is None else self._run_bound(fed, values, home)
            self._update(made, values)
        results = {name: self._result_of(made[name], home) for name, is_number in self._results.items() if not is_number}
        results |= {name: _as_array(made[name]).item() for name, is_number in self._results.items() if is_number}
        leaves = [self._leaf(entry, results, values) for entry in self._returned]
        _wait_for_torch(home)  # results are copies of memory of ONNX Runtime, which is free to use it again from here on
        return unflat(self._result, leaves)

    def _home(self, values: Sequence[Any]) -> _Home:
        torch = sys.modules.get("torch")
        tensors = [value for value in values if isinstance(value, torch.Tensor)] if torch is not None else []
        names = [_device_name(value) for value in values if isinstance(value, onnxruntime.OrtValue)]
        if not tensors and not names:
            return _Home()
        device = next((tensor.device for tensor in tensors if not tensor.is_cpu), tensors[0].device if tensors else None)
        name = next((name for name in names if name != "cpu"), "cpu") if names else ""
        served = self._place is not None and ((device is not None and (device.type, device.index) == self._place) or name == self._place[0])
        return _Home(device, "" if tensors else name, self._place if served else ("cpu", 0) if names else None)

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

    def _fed(self, fed: Sequence[Any]) -> dict[str, Any]:
        values = {e["name"]: self.state[e["state"]] if "state" in e else fed[e["leaf"]] for e in self._feeds}
        return {name: np.array(value, dtype=np.int64) if isinstance(value, int) else value for name, value in values.items()}

    def _run(self, fed: Sequence[Any]) -> dict[str, Any]:
        given = self._fed(fed)
        self._resize(sum(array.size for array in given.values()))
        options = self._spared if self._sparing else None
        self._sparing = max(self._sparing - 1, 0)
        try:
            return dict(zip(self._names, self.session.run(self._names, given, options), strict=True))
        except Exception as error:
            raise SessionError(f"ONNX Runtime failed: {error}") from error

    def _resize(self, elements: int) -> None:
        """Have runs give memory back: the first few of a size far larger than all before, and one that is far smaller than the last."""
        if elements != self._elements:
            grows, falls = elements > _FAR * self._most, _FAR * elements < self._elements
            self._elements, self._most = elements, max(elements, self._most)
            self._sparing = _TRIALS if grows else 1 if falls else self._sparing

    def _run_bound(self, fed: Sequence[Any], values: Sequence[Any], home: _Home) -> dict[str, Any]:
        """Run on values where they are; the new values of state and of arrays are made on the CPU, everything else on the device."""
        torch = sys.modules.get("torch")
        on_host = {e["output"] for e in self._updates if "state" in e or torch is None or not isinstance(values[e["leaf"]], torch.Tensor)}
        _wait_for_torch(home)  # ONNX Runtime computes on a stream of its own
        try:
            binding = self.session.io_binding()
            for name, value in self._fed(fed).items():
                _bind(binding, name, value)
            for name in self._names:
                binding.bind_output(name, *(("cpu", 0) if name in on_host or home.place is None else home.place))
            binding.synchronize_inputs()
            self.session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            return dict(zip(self._names, binding.get_outputs(), strict=True))
        except Exception as error:
            raise SessionError(f"ONNX Runtime failed: {error}") from error

    def _update(self, made: Mapping[str, Any], values: Sequence[Any]) -> None:
        for entry in self._updates:
            new = made[entry["output"]]
            if "state" in entry:
                self.state[entry["state"]] = _as_array(new).copy()
                continue
            old = values[entry["leaf"]]
            if isinstance(old, np.ndarray):
                old[...] = _as_array(new)
            elif isinstance(old, onnxruntime.OrtValue):
                old.update_inplace(np.ascontiguousarray(_as_array(new)))
            else:
                old.detach().copy_(_as_tensor(new, old.device))

    @staticmethod
    def _leaf(entry: Mapping[str, Any], results: Mapping[str, Any], values: Sequence[Any]) -> Any:
        if "constant" in entry:
            return entry["constant"]
        if "leaf" in entry:
            return values[entry["leaf"]]
        return results[entry["output"]]

    @staticmethod
    def _result_of(value: Any, home: _Home) -> Any:
        """Convert an output to what the caller gets, once for all places of the result that it is at."""
        if home.device is not None:
            return _as_tensor(value, home.device)
        if home.ort_device and _device_name(value) != home.ort_device:
            return onnxruntime.OrtValue.ortvalue_from_numpy(_as_array(value), home.ort_device, 0)
        return value


def _chosen(manifest: Mapping[str, Any], wanted: Sequence[Any] | None) -> list[tuple[str, dict[str, Any]]]:
    """Choose the providers. Of a folder of any origin only their names are used: options may name files, and libraries to load."""
    here = onnxruntime.get_available_providers()
    names = dict.fromkeys(str(name) for name in manifest.get("providers", ()))
    entries = wanted if wanted is not None else [*(name for name in names if name in here and name != _CPU), _CPU]
    chosen: list[tuple[str, dict[str, Any]]] = [(entry, {}) if isinstance(entry, str) else (entry[0], dict(entry[1])) for entry in entries]
    for name, options in chosen:
        if name == _CUDA:
            options.setdefault("use_tf32", "1" if manifest.get("tf32") is True else "0")
            _load_libraries_of_cuda()
    return chosen


def _load_libraries_of_cuda() -> None:
    """Load the libraries of CUDA from NVIDIA's packages where no torch has loaded them, so that the provider finds them."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda:
        return
    # It prints what it does not find. So does the provider, if it needs that.
    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        onnxruntime.preload_dlls()


def _wait_for_torch(home: _Home) -> None:
    torch = sys.modules.get("torch")
    if home.place is not None and home.place[0] == "cuda" and torch is not None and torch.cuda.is_initialized():
        torch.cuda.current_stream(home.place[1]).synchronize()


def _device_name(value: Any) -> str:
    return str(value.device_name()).lower()


def _bind(binding: Any, name: str, value: Any) -> None:
    if isinstance(value, np.ndarray):
        binding.bind_cpu_input(name, np.asarray(value, order="C"))
    elif isinstance(value, onnxruntime.OrtValue):
        binding.bind_ortvalue_input(name, value)
    else:  # a tensor of torch
        dtype = np.dtype(_dtype_name(value)).type
        binding.bind_input(name, value.device.type, value.device.index or 0, dtype, list(value.shape), value.data_ptr())


def _dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = value.numpy() if isinstance(value, onnxruntime.OrtValue) else value
    return array


def _as_tensor(value: Any, device: Any) -> Any:
    """Convert an array or OrtValue to a tensor on a device, in torch's own memory there."""
    torch = sys.modules["torch"]
    if isinstance(value, onnxruntime.OrtValue) and _device_name(value) == device.type != "cpu":
        tensor = torch.from_dlpack(value.__dlpack__())
        # Some versions pass bools as bytes. A copy: torch may read results on streams for which ONNX Runtime does not wait.
        return (tensor.view(torch.bool) if value.data_type() == "tensor(bool)" else tensor).to(device, copy=True)
    tensor = torch.from_numpy(_as_array(value))
    return tensor if device.type == "cpu" else tensor.to(device)


def _array(place: pathlib.Path, entry: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    raw = file_in(place, entry["file"]).read_bytes()
    flat_array: np.ndarray[Any, Any] = np.frombuffer(raw, dtype=np.dtype(str(entry["dtype"])))
    array: np.ndarray[Any, Any] = flat_array.reshape([int(size) for size in entry["shape"]]).copy()
    return array


def _as_given(value: Any, place: tuple[str, int] | None = None) -> Any:
    """Convert what is passed to an array, in its own memory if its values are there; leave what is no array, tensor or OrtValue as it is.

    What a session reads at a place other than the CPU becomes an array over that memory, whose elements must not be read.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        made: np.ndarray[Any, Any] = np.asarray(value)
        made.flags.writeable = False
        return made
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _array_of_tensor(value, place)
    return _array_of_ort_value(value, place) if isinstance(value, onnxruntime.OrtValue) else value


def _array_of_tensor(value: Any, place: tuple[str, int] | None) -> np.ndarray[Any, Any]:
    try:
        tensor = value.detach().resolve_conj().resolve_neg()
        if not _is_at(tensor, place):
            array: np.ndarray[Any, Any] = tensor.cpu().numpy()
            return array
        dtype = np.dtype(_dtype_name(tensor))
        return _layout_of(tensor.data_ptr(), tuple(tensor.shape), dtype, tuple(step * dtype.itemsize for step in tensor.stride()))
    except (TypeError, RuntimeError) as error:
        raise UsageError(f"a tensor of {value.dtype} and layout {value.layout} cannot be passed on: {error}") from error


def _array_of_ort_value(value: Any, place: tuple[str, int] | None) -> np.ndarray[Any, Any]:
    try:
        if place is None or _device_name(value) != place[0] or place[0] == "cpu":
            return _as_array(value)
        return _layout_of(value.data_ptr(), tuple(value.shape()), np.dtype(_NUMPY_NAMES[value.data_type()]))
    except (KeyError, TypeError, RuntimeError) as error:
        raise UsageError(f"an OrtValue of {value.data_type()} cannot be passed on: {error}") from error


_NUMPY_NAMES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    **{f"tensor({name})": name for name in ("bool", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
}


def _layout_of(pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    """Describe memory of a device as an array, for the checks of type, shape, strides and overlap: reading its elements would crash."""
    layout = {"data": (pointer, False), "shape": shape, "typestr": dtype.str, "strides": strides, "version": 3}
    array: np.ndarray[Any, Any] = np.asarray(SimpleNamespace(__array_interface__=layout))
    return array


def _is_at(tensor: Any, place: tuple[str, int] | None) -> bool:
    return place is not None and place[0] != "cpu" and (tensor.device.type, tensor.device.index) == place


def _as_fed(value: Any, array: Any, place: tuple[str, int] | None) -> Any:
    """Return what the session reads for an argument, given also as an array by `_as_given`."""
    if not isinstance(array, np.ndarray):
        return value
    if place is not None:
        if isinstance(value, onnxruntime.OrtValue) and _device_name(value) in ("cpu", place[0]):
            return value
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor) and _is_at(value, place):
            return value.detach().resolve_conj().resolve_neg().contiguous()
    return np.asarray(array, order="C")


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
