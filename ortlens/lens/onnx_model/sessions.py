"""Sessions of an ONNX model as its user would make them, why ONNX Runtime refuses one, and runs on values by name."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import TYPE_CHECKING, Any

import onnxruntime

from ortlens import _ort
from ortlens._ort import CPU
from ortlens.backend.basis.node_provenance import iter_nodes, operator_name, opsets_of
from ortlens.backend.basis.options import OrtBackendOptions, named_providers
from ortlens.errors import SessionError, UsageError
from ortlens.lens.observing.optimizers import breaking
from ortlens.lens.onnx_model.signature import BY_BITS, described

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from ortlens.lens.onnx_model.signature import Feed, Input
    from ortlens.lens.onnx_model.source import ModelSource

_CUDA = "CUDAExecutionProvider"
FATAL = 4  # ONNX Runtime's severity "fatal": errors are raised with their reason anyway
ACCEPTED = ("preferred_execution_providers", "default_execution_providers", "infer_execution_providers", "ort_session_options")
"""Options that apply to an ONNX model; others are refused."""
_LIMIT = 600
_WITHOUT_ARRAY = frozenset(
    f"tensor({name})" for name in ("bfloat16", "int4", "uint4", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0")
)
"""Types of outputs that ONNX Runtime cannot return as numpy arrays."""
_OWN_DOMAINS = ("ai.onnx", "com.microsoft", "com.ms.", "org.pytorch.aten")
_EXTENSIONS = "ai.onnx.contrib"  # onnxruntime-extensions
_IR = re.compile(r"[Uu]nsupported model IR version: (?P<have>\d+), max supported IR version: (?P<most>\d+)")
_OPSET = re.compile(r"[Oo]pset (?P<have>\d+) is under development|till opset (?P<most>\d+)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionChoice:
    """How sessions of a model are made."""

    providers: tuple[tuple[str, Mapping[str, Any]], ...]  # names and options, in order; none where `options` name devices
    options: onnxruntime.SessionOptions | None = None  # the user's own `SessionOptions`; None for ONNX Runtime's defaults

    def made_options(self) -> onnxruntime.SessionOptions:
        """Return the options to make a session with: the user's object, or new ones."""
        if self.options is not None:
            return self.options
        options = onnxruntime.SessionOptions()
        options.log_severity_level = FATAL
        return options


def choice_from(options: OrtBackendOptions | Mapping[str, Any] | None, *, also: Sequence[str] = ()) -> SessionChoice:
    """Read the options of `explain` for a session: providers as named, else CUDA if available; the CPU last. Others are refused.

    A provider may be `also` one of these, available or not.
    """
    given = OrtBackendOptions.from_any(options)
    for entry in dataclasses.fields(given):
        value = getattr(given, entry.name)
        if entry.name not in ACCEPTED and value is not entry.default and value != entry.default:
            raise UsageError(f"option {entry.name!r} has no effect on an ONNX model, which is run as it is; used are {', '.join(ACCEPTED)}")
    chosen: dict[str, Mapping[str, Any]] = {}
    available = onnxruntime.get_available_providers()
    for option, name, settings in named_providers(given):
        _ort.require_provider(name, option, (*available, *also))
        chosen.setdefault(name, settings)
    if not chosen and given.infer_execution_providers and _CUDA in available:
        chosen[_CUDA] = {}
    if chosen or given.ort_session_options is None or not given.ort_session_options.has_providers():
        chosen.setdefault(CPU, {})
    return SessionChoice(providers=tuple(chosen.items()), options=given.ort_session_options)


def new_session(source: ModelSource, choice: SessionChoice, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    """Make a session; the SessionError for a refused model says why, and what to do."""
    providers = [(name, dict(settings)) for name, settings in choice.providers] or None

    def made(without: Sequence[str] = ()) -> onnxruntime.InferenceSession:
        disabled = list(without) or None
        return onnxruntime.InferenceSession(source.loadable, options, providers=providers, enable_fallback=0, disabled_optimizers=disabled)

    try:
        return made()
    except Exception as error:
        why = _broken_by(breaking(made), str(error)) or _why(str(error), source)
        raise SessionError(f"ONNX Runtime {onnxruntime.__version__} cannot load {source.name}: {why}") from error


def _broken_by(names: Sequence[str], text: str) -> str:
    """Say which rewrites of ONNX Runtime break a model, and how to disable them; nothing if none does."""
    if not names:
        return ""
    which = f"rewrite {names[0]} breaks" if len(names) == 1 else f"rewrites {' and '.join(names)} break"
    return (
        f"its own {which} the model, which it loads without. Disable: options = onnxruntime.SessionOptions(); "
        f'options.add_session_config_entry("optimization.disable_specified_optimizers", "{";".join(names)}"); then explain(..., '
        f'options={{"ort_session_options": options}}). ({" ".join(text.split())[:_LIMIT]})'
    )


def _why(text: str, source: ModelSource) -> str:  # noqa: PLR0911 - a reason each
    """Say why ONNX Runtime refuses a model and what to do; in its own text where nothing better is known."""
    said = " ".join(text.split())[:_LIMIT]
    if match := _IR.search(text):
        return (
            f"it has IR version {match['have']}, and this ONNX Runtime knows versions up to {match['most']}. Upgrade onnxruntime, or save "
            f"the model with ir_version={match['most']}"
        )
    structure = source.structure
    unknown = [] if structure is None else _unknown_operators(structure)
    if any(name.rpartition("::")[2] in text or name.partition("::")[0] in text for name in unknown):
        return (
            f"it uses operators of other libraries: {', '.join(unknown[:8])}. Register the library that has them: options = "
            "onnxruntime.SessionOptions(); options.register_custom_ops_library(path); then explain(..., "
            f'options={{"ort_session_options": options}}). ({said})'
        )
    if _OPSET.search(text):
        opset = "unknown" if structure is None else opsets_of(structure).get("")
        return f"it uses operator set {opset}, which is newer than this ONNX Runtime. Upgrade onnxruntime. ({said})"
    if "external" in text.lower() or "weights.bin" in text or "model_path must not be empty" in text:
        where = f"beside {source.path}" if source.path is not None else "and the model was given without a path, so they cannot be found"
        return f"its weights lie in other files {where}; keep those files together and pass the model's path. ({said})"
    if "is not a registered function" in text:
        return f"it uses an operator that this ONNX Runtime does not have; another version may. ({said})"
    if "NOT_IMPLEMENTED" in text:
        return f"no execution provider has a kernel for one of its operators with these types. ({said})"
    return said


def _unknown_operators(structure: onnx.ModelProto) -> list[str]:
    own = {(function.domain, function.name) for function in structure.functions}
    nodes = (*iter_nodes(structure.graph), *(node for function in structure.functions for node in function.node))
    strange = (node for node in nodes if node.domain == _EXTENSIONS or (node.domain and not node.domain.startswith(_OWN_DOMAINS)))
    return sorted({operator_name(node) for node in strange if (node.domain, node.op_type) not in own})


def threads_of(options: onnxruntime.SessionOptions, *, given: bool) -> tuple[int, bool, str]:
    """Return the threads that work on one operator (0: ONNX Runtime chooses, no more than fit), whether they spin, and why."""
    spinning = _ort.config_entry(options, "session.intra_op.allow_spinning") != "0"
    is_set = given and options.intra_op_num_threads
    reason = "set by the session's options" if is_set else "ONNX Runtime's default: one per physical core"
    return _ort.threads_of(options), spinning, reason


def runner_of(session: onnxruntime.InferenceSession, inputs: Sequence[Input], feed: Feed) -> Callable[[], Sequence[Any]]:
    """Return a function that runs a session on given values; it alone is timed, so what can be done once is done here."""
    outputs = session.get_outputs()
    if not any(each.element in BY_BITS for each in inputs) and not any(value.type in _WITHOUT_ARRAY for value in outputs):
        return functools.partial(onnxruntime.InferenceSession.run, session, None, feed)  # a watched session's own would record it
    values = {each.name: _value(each, feed[each.name]) for each in inputs}
    names = [value.name for value in outputs]
    run_values = functools.partial(onnxruntime.InferenceSession.run_with_ort_values, session, names, values)
    return lambda: [plain(value) for value in run_values()]


def run(session: onnxruntime.InferenceSession, inputs: Sequence[Input], feed: Feed, what: str) -> dict[str, Any]:
    """Run a session and return its values by output; `what` names it in the message of a SessionError."""
    try:
        outputs = runner_of(session, inputs, feed)()
    except Exception as error:
        said = " ".join(str(error).split())[:_LIMIT]
        raise SessionError(f"ONNX Runtime cannot run {what} with {described(inputs, feed) or 'no inputs'}: {said}") from error
    return dict(zip([value.name for value in session.get_outputs()], outputs, strict=True))


def _value(of: Input, value: Any) -> onnxruntime.OrtValue:
    import onnx

    if isinstance(value, onnxruntime.OrtValue):
        return value
    if of.element in BY_BITS:
        element = onnx.TensorProto.DataType.Value(of.element.upper())
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(value, element)
    return onnxruntime.OrtValue.ortvalue_from_numpy(value)


def plain(value: onnxruntime.OrtValue) -> Any:
    """Return a value as an array, or as it is where numpy has no such type."""
    try:
        return value.numpy()
    except Exception:  # noqa: BLE001 - ONNX Runtime's own class: numpy has no such type, and the value itself is the answer
        return value
