"""One run of a session on values by name."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import onnxruntime

from ortlens.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortlens.lens.onnx_model.signature import Feed, Input

_LIMIT = 600
_BITS_ONLY = frozenset({"bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"})
"""Element types that numpy passes as unsigned integers of the same width."""
_WITHOUT_ARRAY = frozenset(
    f"tensor({name})" for name in ("bfloat16", "int4", "uint4", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0")
)
"""Types of outputs that ONNX Runtime cannot return as numpy arrays."""


def runner_of(session: onnxruntime.InferenceSession, inputs: Sequence[Input], feed: Feed) -> Callable[[], Sequence[Any]]:
    """Return a function that runs a session on given values.

    Only that function is timed, so what can be done once is done here.
    """
    outputs = session.get_outputs()
    if not any(each.element in _BITS_ONLY for each in inputs) and not any(value.type in _WITHOUT_ARRAY for value in outputs):
        return functools.partial(onnxruntime.InferenceSession.run, session, None, feed)  # a watched session's own would record it
    values = {each.name: _value(each, feed[each.name]) for each in inputs}
    names = [value.name for value in outputs]
    run_values = functools.partial(onnxruntime.InferenceSession.run_with_ort_values, session, names, values)
    return lambda: [_plain(value) for value in run_values()]


def run(session: onnxruntime.InferenceSession, inputs: Sequence[Input], feed: Feed, what: str) -> dict[str, Any]:
    """Run a session and return its values by output; `what` names it in the message of a SessionError."""
    try:
        outputs = runner_of(session, inputs, feed)()
    except Exception as error:
        from ortlens.lens.onnx_model.signature import described

        said = " ".join(str(error).split())[:_LIMIT]
        raise SessionError(f"ONNX Runtime cannot run {what} with {described(inputs, feed) or 'no inputs'}: {said}") from error
    return dict(zip([value.name for value in session.get_outputs()], outputs, strict=True))


def _value(of: Input, value: Any) -> onnxruntime.OrtValue:
    import onnx

    if isinstance(value, onnxruntime.OrtValue):
        return value
    if of.element in _BITS_ONLY:
        element = onnx.TensorProto.DataType.Value(of.element.upper())
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(value, element)
    return onnxruntime.OrtValue.ortvalue_from_numpy(value)


def _plain(value: onnxruntime.OrtValue) -> Any:
    try:
        return value.numpy()
    except Exception:  # noqa: BLE001 - ONNX Runtime's own class: numpy has no such type, and the value itself is the answer
        return value
