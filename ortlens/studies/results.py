"""The folder of a survey: a folder per case with its row, capture, report and log, and one page over all of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from ortlens import _versions
from ortlens._files import write_file
from ortlens.analysis.advice import advised
from ortlens.analysis.surveyed import SurveyRow, figures_of
from ortlens.errors import CaptureError, OrtLensError, UsageError
from ortlens.lens.environment import option_text
from ortlens.studies.cases import CAPTURE, JOURNAL, REPORT
from ortlens.trace import store
from ortlens.trace.codec import record_from_row, row_from_record
from ortlens.trace.schema import table_from_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ortlens.studies.apart import Limits
    from ortlens.studies.cases import Case, Extras
    from ortlens.trace.records import Capture

TABLE = table_from_record("survey", SurveyRow)
"""The columns of a survey's frame."""

ROW, LOG, PAGE = "row.json", "log.txt", "index.html"
_NO_PART = frozenset({"time_limit", "memory_limit"})  # of the key: they change no result
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_SHOWN_LOG = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A case that is to be run."""

    case: Case
    key: str  # its digest
    extras: Extras
    limits: Limits

    @property
    def options(self) -> str:
        """The options as text, with the keys of a provider cut, as in a capture."""
        return ", ".join(f"{name}={_option_text(value)}" for name, value in self.case.options.items())


def _option_text(value: object) -> str:
    return repr(value) if value is None or isinstance(value, str | int | float) else option_text(value)


def key_of(case: Case, extras: Extras) -> str:
    """Digest what a result depends on, as far as that can be known without running it: not what its modules hold.

    Arguments or options that cannot be sent to another process raise `UsageError`.
    """
    values = {item.name: getattr(case, item.name) for item in fields(case) if item.name not in _NO_PART}
    try:
        args = hashlib.sha256(pickle.dumps((values.pop("args"), values.pop("kwargs")), protocol=4)).hexdigest()
        pickle.dumps(case)
    except Exception as err:
        raise UsageError(f"case {case.name}: arguments or options cannot be sent to another process: {type(err).__name__}: {err}") from err
    from ortlens import __version__

    versions = {"ortlens": __version__, **_versions.installed()}
    text = json.dumps([values, args, [extras.profile, extras.verify, extras.reports], versions], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


class Results:
    """Rows and files of cases, in a folder."""

    def __init__(self, folder: Path) -> None:
        """Open or create the folder, whose parent must exist."""
        self.folder = folder.expanduser().absolute()
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as err:
            raise UsageError(f"the folder {self.folder} cannot be created: {err.strerror or err}") from err

    def place(self, job: Job) -> Path:
        """Return the folder of a case, readable, and unique by its digest; it need not exist yet."""
        return self.folder / f"{_UNSAFE.sub('_', job.case.name)[:60]}-{job.key[:12]}"

    def kept(self, job: Job, *, retry: bool) -> SurveyRow | None:
        """Find the row of an earlier run; None where there is none, it is damaged, or the limit that stopped it is higher now.

        With `retry`, only an answer counts.
        """
        folder = self.place(job)
        try:
            held = json.loads((folder / ROW).read_text(encoding="utf-8"))
            row = record_from_row(TABLE, held["row"])
            limits = held["limits"]
            raised = (row.status == "timeout" and job.limits.seconds > limits[0]) or (
                row.status == "memory" and (job.limits.memory_bytes is None or job.limits.memory_bytes > (limits[1] or 0))
            )
        except (OSError, ValueError, TypeError, LookupError, AttributeError, CaptureError):
            return None
        if row.key != job.key or row.status == "lost" or raised or (retry and row.status != "ok"):
            return None
        return self._with_paths(replace(row, kept=True), folder)

    def keep(self, job: Job, row: SurveyRow, files: Mapping[str, bytes], log: str) -> SurveyRow:
        """Write what came of a case, its row last, so that half a result is none; return the row with the paths of the files."""
        folder = self.place(job)
        folder.mkdir(exist_ok=True)
        for name in (ROW, CAPTURE, REPORT, LOG):
            (folder / name).unlink(missing_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        if JOURNAL in files and CAPTURE not in files:
            with contextlib.suppress(OrtLensError):  # what a process that was ended had recorded
                store.save(store.load(folder / JOURNAL), folder / CAPTURE)
        (folder / JOURNAL).unlink(missing_ok=True)
        (folder / LOG).write_text(log, encoding="utf-8")
        if row.graphs is None and (capture := _capture(self._with_paths(row, folder))) is not None:
            row = replace(row, **figures_of(capture))
        held = {"row": row_from_record(TABLE, row), "limits": [job.limits.seconds, job.limits.memory_bytes]}
        write_file(folder / ROW, json.dumps(held).encode("utf-8"))
        return self._with_paths(row, folder)

    def _with_paths(self, row: SurveyRow, folder: Path) -> SurveyRow:
        capture, report = (str(folder / name) if (folder / name).is_file() else None for name in (CAPTURE, REPORT))
        return replace(row, capture=capture, report=report)

    def write_page(self, rows: Sequence[SurveyRow], title: str) -> Path:
        """Write the page over all cases, and return its path."""
        from ortlens.views.report.write import write_report
        from ortlens.views.survey_page import survey_page

        return write_report(self.folder / PAGE, survey_page(rows, _capture, title=title, folder=self.folder))


def _capture(row: SurveyRow) -> Capture | None:
    if row.capture is None:
        return None
    with contextlib.suppress(OrtLensError, OSError):
        return advised(store.load(row.capture))
    return None


def shown_log(text: str) -> str:
    """Return the last lines of what a case printed, for its row."""
    return text[-_SHOWN_LOG:].strip()
