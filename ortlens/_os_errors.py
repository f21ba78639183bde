"""The one door at which what the operating system refuses becomes an error of ortlens, with what to do.

No free file descriptor, a full disk, a folder for temporary files that is gone: any step of an answer can meet these, the import of a
module included. What the user's own program raises while ortlens calls it passes untouched.
"""

from __future__ import annotations

import errno
import functools
import inspect
import sysconfig
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ortlens.errors import OrtLensError

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")
_C = TypeVar("_C", bound=type)

_PLACE = "choose another folder, or set TMPDIR to one for temporary files"
_ADVICE = {
    errno.EMFILE: "close files, or allow more with `ulimit -n`, then try again",
    errno.ENFILE: "the machine has no file descriptor left; close programs, then try again",
    errno.ENOSPC: f"free some space, {_PLACE}",
    errno.EDQUOT: f"free some space, {_PLACE}",
    errno.EFBIG: "allow larger files with `ulimit -f`, then try again",
    errno.ENOENT: f"the working directory and the folder for temporary files ({{temporary}}) must exist; {_PLACE}",
    errno.EROFS: _PLACE,
    errno.EACCES: _PLACE,
    errno.EPERM: _PLACE,
    errno.EAGAIN: "the machine starts no further process or thread; close programs, then try again",
    errno.ENOMEM: "free some memory, then try again",
}
_INSTALLED = ("site-packages", "dist-packages")
_CALLS = {"_wrapped_call_impl": "torch/nn/modules/module.py", "compile_wrapper": "torch/_dynamo/eval_frame.py"}
"""Functions of torch that call the user's program -> their files."""


def explained(error: OSError) -> str:
    """Describe what the operating system refused and what to do, without a full stop."""
    advice = _ADVICE.get(error.errno or 0, "")
    return f"the operating system refused it: {error}" + (f"; {advice.format(temporary=_temporary())}" if advice else "")


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "none can be written"


def clear_os_errors(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function that a user calls: an OSError of its own work becomes an `OrtLensError` that says what to do."""

    @functools.wraps(function)
    def behind(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except OSError as error:
            if _is_the_users(error):
                raise
            raise OrtLensError(f"{name}() failed: {explained(error)}") from error

    name = function.__qualname__.partition(".<locals>")[0].rpartition(".")[2]
    return behind


def with_clear_os_errors(cls: _C) -> _C:
    """Decorate a class in place: all public methods and properties that it defines itself go through `clear_os_errors`."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if inspect.isfunction(member):
            setattr(cls, name, clear_os_errors(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(clear_os_errors(member.fget), member.fset, member.fdel, member.__doc__))
    return cls


def _is_the_users(error: BaseException) -> bool:
    """Tell whether an error was raised in the user's program: in a file of no package, or below torch's call of the program."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(
        _is_a_program(code.co_filename) or Path(code.co_filename).as_posix().endswith(_CALLS.get(code.co_name, "\n")) for code in codes
    )


def _is_a_program(file: str) -> bool:
    if file.startswith("<frozen "):
        return False
    path = Path(file)
    return not (path.is_relative_to(_OURS) or path.is_relative_to(_STANDARD) or any(part in _INSTALLED for part in path.parts))


_OURS = Path(__file__).parent
_STANDARD = Path(sysconfig.get_path("stdlib"))
