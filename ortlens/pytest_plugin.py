"""The pytest plugin: `@pytest.mark.ortlens(max_breaks=0)` checks what a test compiles, the fixture `ortlens_lens` hands it to the test.

pytest loads this module in every project of an environment that ortlens is installed in, so importing it loads pytest alone.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ortlens.lens.lens import Lens

_MARKER = "ortlens"
_FIXTURE = "ortlens_lens"
_HELP = (
    "ortlens(max_breaks, max_recompiles, max_skipped, min_coverage, max_abs_err, min_sqnr, baseline, max_slowdown, provider, max_pieces): "
    'check what the test compiles with backend="ortlens" against these limits, as lens.check does; a baseline is a path from the root of '
    "the project."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--ortlens-dir`."""
    group = parser.getgroup("ortlens")
    group.addoption(
        "--ortlens-dir",
        metavar="DIR",
        type=Path,
        help="keep the capture and the HTML report of each test with the marker ortlens or the fixture ortlens_lens, passed or failed",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _HELP)


@pytest.fixture
def ortlens_lens(request: pytest.FixtureRequest) -> Iterator[Lens]:
    """A lens over everything that the test compiles with `backend="ortlens"`; it also records calls after the test's own code."""
    with _lens(request.node) as lens:
        yield lens


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Check what a marked test compiled, as part of the test."""
    limits = _limits(pyfuncitem)
    given: Any = pyfuncitem.funcargs.get(_FIXTURE)
    if limits is None and given is None:
        return (yield)
    with contextlib.nullcontext(given) if given is not None else _lens(pyfuncitem) as lens:
        try:
            result = yield
        finally:
            _keep(pyfuncitem, lens)
    if limits is not None:
        _check(lens, limits)
    return result


@contextlib.contextmanager
def _lens(item: pytest.Item) -> Iterator[Lens]:
    """Record, with nothing compiled yet: what an earlier test compiled would not be compiled again, and not be seen."""
    import torch

    from ortlens.lens.lens import capture

    torch.compiler.reset()
    with capture(name=item.name) as lens:
        yield lens


def _limits(item: pytest.Item) -> dict[str, Any] | None:
    """The limits of all markers of a test, the closest first; None without a marker."""
    markers = list(item.iter_markers(_MARKER))
    if not markers:
        return None
    limits = {name: value for marker in reversed(markers) for name, value in marker.kwargs.items()}
    from ortlens.views.capture_view import CaptureView

    known = [name for name in inspect.signature(CaptureView.check).parameters if name != "self"]
    unknown = [*(repr(value) for marker in markers for value in marker.args), *(name for name in limits if name not in known)]
    if unknown or not limits:
        what = f"does not take {', '.join(unknown)}" if unknown else "needs a limit"
        pytest.fail(f"the marker ortlens {what}; limits are given by name: {', '.join(known)}", pytrace=False)
    if isinstance(limits.get("baseline"), str | Path):
        limits["baseline"] = item.config.rootpath / limits["baseline"]
    return limits


def _check(lens: Lens, limits: dict[str, Any]) -> None:
    from ortlens.errors import CheckFailed, OrtLensError

    try:
        lens.check(**limits)
    except CheckFailed as err:
        pytest.fail(f"ortlens check failed\n{err}", pytrace=False)
    except OrtLensError as err:  # a limit or a baseline that cannot be used
        pytest.fail(f"ortlens cannot check: {err}", pytrace=False)


def _keep(item: pytest.Item, lens: Lens) -> None:
    folder: Path | None = item.config.getoption("--ortlens-dir")
    if folder is None:
        return
    name = re.sub(r"[^\w.-]+", "_", item.nodeid).strip("_")[-120:]
    folder.mkdir(parents=True, exist_ok=True)
    lens.save(folder / f"{name}.ortlens")
    lens.report(folder / f"{name}.html", title=item.nodeid)
