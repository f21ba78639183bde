"""ortlens: run PyTorch models through ONNX Runtime with `torch.compile`, and see what happened.

Importing this module loads the standard library only. Every public name lives in a module of its own and is fetched
when it is first asked for, so `import ortlens` costs no torch, and a saved capture opens where there is none.

Example:
    >>> import ortlens
    >>> sorted(set(ortlens.__all__) & {"explain", "capture", "load"})
    ['capture', 'explain', 'load']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortlens.backend.api import OrtBackend, is_onnxrt_backend_supported, torch_compile_backend
    from ortlens.backend.basis.options import ExportOptions, OrtBackendOptions, register_op
    from ortlens.backend.deploy.export import ExportedModel
    from ortlens.backend.freeze.loader import load_frozen
    from ortlens.errors import (
        CaptureError,
        CheckFailed,
        ConversionError,
        OptionalDependencyError,
        OrtLensError,
        SessionError,
        UnsupportedVersionError,
        UsageError,
    )
    from ortlens.lens.dynamic_shapes import dynamic_shapes
    from ortlens.lens.explain import explain
    from ortlens.lens.freeze import freeze
    from ortlens.lens.lens import Lens, capture
    from ortlens.lens.onnx_model.explain import watch
    from ortlens.lens.onnx_model.onnx_lens import OnnxLens
    from ortlens.studies.bisect import bisect
    from ortlens.studies.cases import Case
    from ortlens.studies.compare_models import compare_models
    from ortlens.studies.survey import survey
    from ortlens.studies.tune import tune
    from ortlens.trace.records import Capture
    from ortlens.views.capture_view import SavedCapture, load

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - grouped by what a user wants, in the order of the reference page
    # watch
    "explain",
    "capture",
    "Lens",
    "watch",
    "OnnxLens",
    # many models
    "survey",
    "Case",
    # which options, and which versions
    "tune",
    "bisect",
    # two ONNX models
    "compare_models",
    # run without torch.compile
    "freeze",
    "load_frozen",
    "dynamic_shapes",
    "ExportedModel",
    # read back
    "load",
    "SavedCapture",
    "Capture",
    # the backend, under the names that torch's removed one had
    "OrtBackend",
    "OrtBackendOptions",
    "ExportOptions",
    "register_op",
    "is_onnxrt_backend_supported",
    "torch_compile_backend",
    # errors
    "OrtLensError",
    "UsageError",
    "OptionalDependencyError",
    "UnsupportedVersionError",
    "ConversionError",
    "SessionError",
    "CaptureError",
    "CheckFailed",
    # about
    "__version__",
]

_NAMES = {
    "ortlens.lens.explain": "explain",
    "ortlens.lens.lens": "capture Lens",
    "ortlens.lens.onnx_model.explain": "watch",
    "ortlens.lens.onnx_model.onnx_lens": "OnnxLens",
    "ortlens.studies.survey": "survey",
    "ortlens.studies.cases": "Case",
    "ortlens.studies.tune": "tune",
    "ortlens.studies.bisect": "bisect",
    "ortlens.lens.dynamic_shapes": "dynamic_shapes",
    "ortlens.studies.compare_models": "compare_models",
    "ortlens.lens.freeze": "freeze",
    "ortlens.backend.freeze.loader": "load_frozen",
    "ortlens.backend.deploy.export": "ExportedModel",
    "ortlens.views.capture_view": "load SavedCapture",
    "ortlens.trace.records": "Capture",
    "ortlens.backend.api": "OrtBackend is_onnxrt_backend_supported torch_compile_backend",
    "ortlens.backend.basis.options": "OrtBackendOptions ExportOptions register_op",
    "ortlens.errors": "OrtLensError UsageError OptionalDependencyError UnsupportedVersionError ConversionError "
    "SessionError CaptureError CheckFailed",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Fetch a public name from the module where it lives, once.

    Args:
        name: The attribute that was asked for.

    Returns:
        The object; later look-ups find it in this module and do not come here again.

    Raises:
        AttributeError: The name is not public; the message holds the nearest one that is.
    """
    home = _HOMES.get(name)
    if home is None:
        from ortlens.errors import near_hint

        hint = near_hint(name, __all__) or " dir(ortlens) lists the public names."
        raise AttributeError(f"module 'ortlens' has no attribute {name!r}.{hint}", name=name, obj=None)
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name.startswith("__")} | {*__all__})


def load_ipython_extension(shell: object) -> None:
    """Bring the magics `%ortlens` and `%%ortlens` into a shell; `%load_ext ortlens` calls this.

    Args:
        shell: The running `IPython.InteractiveShell`.
    """
    import_module("ortlens.magic").load(shell)  # by name, as all that is fetched here: readers of captures must not reach torch


def unload_ipython_extension(shell: object) -> None:
    """Take the magics out of a shell again; `%unload_ext ortlens` calls this.

    Args:
        shell: The running `IPython.InteractiveShell`.
    """
    import_module("ortlens.magic").unload(shell)
