"""The options of the backend, and conversion functions of the user's."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from ortlens.errors import UsageError, near_hint

if TYPE_CHECKING:
    import onnx
    import onnxruntime

_LOWEST_OPSET = 18  # the version that torch's and onnxscript's functions write; ONNX converts to higher versions only

UPCAST = ("bfloat16", "float16")
"""The element types that `upcast` takes."""

Provider: TypeAlias = "str | tuple[str, Mapping[str, Any]]"


@dataclass(frozen=True)
class ExportOptions:
    """How partitions are turned into ONNX.

    Attributes:
        dynamic_shapes: How to treat sizes that torch.compile keeps symbolic. None or True: they stay symbolic, and one session
            serves all sizes. False: each combination of sizes gets a session of its own; a partition keeps the 16 that were used last.
        opset_version: Version of the default ONNX operator set of the models, for tools that read dumped models. The conversion
            produces version 18, and the model is then converted to this version. If that fails, the graph stays in PyTorch. None:
            version 18.
    """

    dynamic_shapes: bool | None = None
    opset_version: int | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: `dynamic_shapes` is not a boolean or None, or `opset_version` is not an integer of at least 18.
        """
        _check(self)


@dataclass(frozen=True)
class OrtBackendOptions:
    """Options of the ONNX Runtime backend. Every field has a default that suits most models.

    Attributes:
        preferred_execution_providers: Names or `(name, options)` pairs, tried before the inferred ones.
        infer_execution_providers: Infer providers from the devices of the inputs, or of the outputs if there are no inputs.
        default_execution_providers: Tried last; by default the CPU provider.
        use_aot_autograd: Train through AOTAutograd, so that forward and backward graphs run in ONNX Runtime. False: graphs that
            need gradients stay in PyTorch, with reason `policy`; other graphs run in ONNX Runtime.
        preallocate_output: PyTorch allocates every output whose size is known before the run, and ONNX Runtime writes into it.
            Otherwise ONNX Runtime may allocate outputs of symbolic size.
        export_options: `ExportOptions` or a mapping of their names.
        ort_session_options: An `onnxruntime.SessionOptions` that is used unchanged for every session.
        pre_ort_model_transforms: Callables on `onnx.ModelProto`, applied in order before the session is created. Each may change
            the model in place, or return another one. Outputs must keep their order, element types and numbers of dimensions, and
            inputs their names; otherwise the partition stays in PyTorch with that reason.
        freeze_weights: `"auto"` or True: in inference, parameters and buffers become constants of the session, so that
            ONNX Runtime folds and prepacks them. Every call checks for changed weights: their identity, torch's count of in-place
            writes, their address, and eight of their elements, or all bytes of weights up to 4 KiB. Of the bytes of larger weights every
            call compares another window, so that a write of a few elements that torch does not count (through `param.data`, a numpy
            view or the storage) is noticed at the latest by the 256th call after it, and reported as `uncounted_write`. All other
            writes are noticed by the next call. Tables that are only looked up, as in `nn.Embedding`, stay inputs, which are never
            stale. False: weights stay inputs.
        prepack_weights: True: ONNX Runtime packs frozen weights for its kernels, into copies that its sessions hold beside PyTorch's.
            False: sessions read the weights of matrix products in PyTorch's memory. They take up to the size of these weights less, and
            are created in about half the time; products of several rows become slower (BERT-base with 128 tokens takes 1.2 times as
            long), and so do some convolutions, whose weights are copied nevertheless. With `ort_session_options`, its entry
            `session.disable_prepacking` decides.
        cuda_graph: On CUDA, whether calls replay a CUDA graph, which launches all kernels of a session at once. `"auto"`: where sizes are
            fixed, the sixth call of the same sizes captures one and times it against a run; it is replayed from then on if that is
            faster by a tenth at least. As long as a graph is captured, ONNX Runtime forbids the other threads of the process to allocate
            memory of the device, so nothing is captured once sessions were called from several threads, and a graph is replayed in the
            thread that captured it. True: the first call of new sizes captures, also where torch.compile keeps sizes symbolic, and
            nothing is timed. A session keeps 8 graphs, each with buffers for its inputs and outputs of at most 256 MiB. Sessions of
            training, and those that return or take values of the host, have none. False: no graphs.
        min_partition_nodes: Partitions with fewer compute nodes stay in PyTorch, with reason `too_small`.
        on_error: `"fallback"` sends a partition that cannot be converted, loaded or run back to PyTorch, with the reason
            recorded; `"raise"` raises. An operator without an ONNX function or a kernel stays in PyTorch in both. What PyTorch raises
            too, as for an index out of range, is always PyTorch's exception and costs nothing more. A partition goes back after three
            failed runs in a row that PyTorch could compute; where sizes vary and all three had the same, only calls of these sizes go
            back.
        upcast: Element types that ONNX Runtime computes in float32, from `"bfloat16"` and `"float16"`; weights, inputs and results keep
            PyTorch's types, with a cast where they enter and leave a partition. Results are more exact than PyTorch's and not the same:
            a value is rounded once where it leaves the partition, not after each operator. Only what an operator decides by (comparisons,
            the position of a maximum, conversions to integers, `floor`) is rounded first, as in PyTorch. A frozen weight of 16 bits takes
            4 more bytes per element in the session, beside the 2 in PyTorch; under autocast, weights are float32 already and take none.
            Default: no type. Then bfloat16 on the CPU stays in PyTorch, and the CPU kernels of float16 cast before and after.
        custom_translation_table: Op overload -> ONNX Script function; it takes precedence over the built-in one.
        cache_dir: Folder for converted models, which later processes reuse. The key of a model covers the graph, the options, the
            versions of all packages and the code of ortlens. Files that do not fit are ignored and overwritten. The folder may be
            shared between processes and emptied at any time. Models with your own conversion functions are not cached.
        dump_path: Prefix of dumped files: `{prefix}{n}.onnx` and `{prefix}{n}.txt`, n counting up from 0 per prefix.
            The environment variable `ONNXRT_DUMP_PATH` is used when this is None.
    """

    preferred_execution_providers: Sequence[Provider] | None = None
    infer_execution_providers: bool = True
    default_execution_providers: Sequence[Provider] | None = None
    use_aot_autograd: bool = True
    preallocate_output: bool = False
    export_options: ExportOptions | None = None
    ort_session_options: onnxruntime.SessionOptions | None = None
    pre_ort_model_transforms: Sequence[Callable[[onnx.ModelProto], onnx.ModelProto | None]] | None = None
    freeze_weights: bool | Literal["auto"] = "auto"
    prepack_weights: bool = True
    cuda_graph: bool | Literal["auto"] = "auto"
    min_partition_nodes: int = 1
    on_error: Literal["fallback", "raise"] = "fallback"
    upcast: Sequence[Literal["bfloat16", "float16"]] = ()
    custom_translation_table: Mapping[Any, Callable[..., Any]] | None = None
    cache_dir: str | os.PathLike[str] | None = None
    dump_path: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Check the values, and copy those that the caller could change later.

        Raises:
            UsageError: A field has an invalid value.
        """
        _check(self)
        if self.custom_translation_table is not None:
            check_table(self.custom_translation_table)
        self._keep_copies()

    def _keep_copies(self) -> None:
        """Backends are cached by their options, so a list that the caller changes later must not change them."""
        if not isinstance(self.export_options, ExportOptions | None):
            object.__setattr__(self, "export_options", _from_mapping(ExportOptions, self.export_options, "export_options"))
        for name in _NAMING:
            if (given := getattr(self, name)) is not None:
                copied = tuple(entry if isinstance(entry, str) else (entry[0], dict(entry[1])) for entry in given)
                object.__setattr__(self, name, copied)
        if self.pre_ort_model_transforms is not None:
            object.__setattr__(self, "pre_ort_model_transforms", tuple(self.pre_ort_model_transforms))
        object.__setattr__(self, "upcast", tuple(name for name in UPCAST if name in self.upcast))
        if self.custom_translation_table is not None:
            object.__setattr__(self, "custom_translation_table", dict(self.custom_translation_table))

    @classmethod
    def from_any(cls, options: OrtBackendOptions | Mapping[str, Any] | None) -> OrtBackendOptions:
        """Convert what users pass.

        Args:
            options: Options, a mapping of option names to values, or None for the defaults.

        Returns:
            Options.

        Raises:
            UsageError: A name is unknown (the message lists the valid ones) or a value is invalid.
        """
        if options is None:
            return cls()
        return options if isinstance(options, cls) else _from_mapping(cls, options, "options")


def named_providers(options: OrtBackendOptions, *fields: str) -> list[tuple[str, str, dict[str, Any]]]:
    """List the providers that options name, in some fields or both: name of the field, of the provider, and its options."""
    found = ((name, entry) for name in fields or _NAMING for entry in getattr(options, name) or ())
    return [(name, entry, {}) if isinstance(entry, str) else (name, entry[0], dict(entry[1])) for name, entry in found]


_NAMING = ("preferred_execution_providers", "default_execution_providers")
_T = TypeVar("_T", "ExportOptions", "OrtBackendOptions")


def _from_mapping(kind: type[_T], given: object, what: str) -> _T:
    if not isinstance(given, Mapping):
        raise UsageError(f"{what} must be {kind.__name__}, a mapping or None, not {type(given).__name__}")
    valid = [field.name for field in dataclasses.fields(kind)]
    unknown = [name for name in given if name not in valid]
    if unknown:
        raise UsageError(
            f"unknown option {', '.join(map(repr, unknown))}.{near_hint(str(unknown[0]), valid)} The options are: {', '.join(valid)}."
        )
    return kind(**given)


def _is_provider(entry: object) -> bool:
    if isinstance(entry, (tuple, list)) and len(entry) == 2:  # noqa: PLR2004 - a pair of a name and options
        return isinstance(entry[0], str) and isinstance(entry[1], Mapping)
    return isinstance(entry, str)


def _is_list_of(value: object, belongs: Callable[[Any], bool]) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(belongs, value))


def _is_at_least(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


_Check: TypeAlias = "tuple[Callable[[Any], bool], str]"
_SWITCH: _Check = (lambda value: isinstance(value, bool), "True or False")
_PATH: _Check = (lambda value: isinstance(value, str | os.PathLike | None), "a string or path, or None")
_PROVIDERS: _Check = (
    lambda value: value is None or _is_list_of(value, _is_provider),
    "a sequence of names or (name, options) pairs, or None",
)
_CHECKS: Mapping[str, _Check] = {
    "preferred_execution_providers": _PROVIDERS,
    "infer_execution_providers": _SWITCH,
    "default_execution_providers": _PROVIDERS,
    "use_aot_autograd": _SWITCH,
    "preallocate_output": _SWITCH,
    "ort_session_options": (
        lambda value: value is None or hasattr(value, "add_session_config_entry"),
        "an onnxruntime.SessionOptions, or None",
    ),
    "pre_ort_model_transforms": (lambda value: value is None or _is_list_of(value, callable), "a sequence of callables, or None"),
    "freeze_weights": (lambda value: value in ("auto", True, False), '"auto", True or False'),
    "prepack_weights": _SWITCH,
    "cuda_graph": (lambda value: value in ("auto", True, False), '"auto", True or False'),
    "min_partition_nodes": (lambda value: _is_at_least(value, 1), "an integer of at least 1"),
    "on_error": (lambda value: value in ("fallback", "raise"), '"fallback" or "raise"'),
    "upcast": (lambda value: _is_list_of(value, UPCAST.__contains__), f"a sequence of names from {', '.join(map(repr, UPCAST))}"),
    "cache_dir": _PATH,
    "dump_path": _PATH,
    "dynamic_shapes": (lambda value: value in (None, True, False), "True, False or None"),
    "opset_version": (
        lambda value: value is None or _is_at_least(value, _LOWEST_OPSET),
        f"an integer of at least {_LOWEST_OPSET}, or None",
    ),
}
"""Option -> whether a value is valid, and what it must be."""


def _check(options: ExportOptions | OrtBackendOptions) -> None:
    for name, (is_valid, wanted) in _CHECKS.items():
        value = getattr(options, name, None)
        if hasattr(options, name) and not is_valid(value):
            raise UsageError(f"option {name!r} is {value!r}; it must be {wanted}")


_lock = threading.Lock()
_registered: dict[Any, Callable[..., Any]] = {}


def register_op(target: Any, function: Callable[..., Any]) -> None:
    """Convert an operator with a function of your own, in all later compilations of this process.

    Args:
        target: An op overload, such as `torch.ops.mylib.scale.default`.
        function: An ONNX Script function that takes the operator's arguments. It takes precedence over the built-in function; a
            backend's `custom_translation_table` takes precedence over it.

    Raises:
        UsageError: The target is not an op overload, or the function is not callable.
    """
    check_entry(target, function, "register_op")
    with _lock:
        _registered[target] = function


def registered_ops() -> dict[Any, Callable[..., Any]]:
    """Copy the table of the functions that were registered so far, by op overload."""
    with _lock:
        return dict(_registered)


def check_entry(target: Any, function: Any, what: str) -> None:
    """Raise `UsageError` unless the target is an op overload and the function callable; `what` says where the entry is from."""
    if not hasattr(target, "_schema"):
        overloads = getattr(target, "overloads", None)
        advice = f"; name one of its overloads: {', '.join(f'{target}.{name}' for name in overloads())}" if callable(overloads) else ""
        raise UsageError(f"{what}: {target!r} is not an op overload such as torch.ops.aten.relu.default{advice}")
    if not callable(function):
        raise UsageError(f"{what}: the function for {target} is a {type(function).__name__}, which is not callable")


def check_table(table: Any) -> None:
    """Raise `UsageError` unless a translation table maps op overloads to functions."""
    if not isinstance(table, Mapping):
        raise UsageError(f"custom_translation_table must map op overloads to ONNX Script functions, not be a {type(table).__name__}")
    for target, function in table.items():
        check_entry(target, function, "custom_translation_table")


def dump_prefix(options: OrtBackendOptions) -> str:
    """Return the option `dump_path`, else the environment variable `ONNXRT_DUMP_PATH`; empty when nothing is dumped."""
    return str(options.dump_path or os.environ.get("ONNXRT_DUMP_PATH") or "")
