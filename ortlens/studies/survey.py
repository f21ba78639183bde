"""`survey()`: many models under many options, each in a process of its own, on this machine or on a Dask cluster.

A folder keeps its results: a folder per case with its row, capture, report and log, and one page over all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import platform
import re
import tempfile
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens import _versions
from ortlens._files import write_file
from ortlens._os_errors import clear_os_errors
from ortlens._process import usable_bytes, usable_cores
from ortlens._shell import progress
from ortlens._versions import registered_libraries, require
from ortlens.analysis.answers.overview import SurveyRow, figures_of
from ortlens.analysis.problems.advice import advised
from ortlens.errors import CaptureError, OrtLensError, UsageError
from ortlens.lens.observing.environment import option_text
from ortlens.studies.apart import ProcessLimits, ProcessResult, run_in_subprocess
from ortlens.studies.cases import CAPTURE, JOURNAL, REPORT, CaseExtras, cases_from, measured
from ortlens.studies.child import VARIABLE
from ortlens.trace import store
from ortlens.trace.codec import record_from_row, row_from_record
from ortlens.trace.schema import frame_from_records, table_from_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pandas as pd

    from ortlens.studies.cases import Case
    from ortlens.trace.records import Capture


TIME_LIMIT_S = 600.0  # what a case may take unless something else is said
_USED = 0.9  # of the memory, by all cases together
_CORES_PER_CASE = 2
_REASON = 500  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOutcome:
    """What comes back of a case: how its process ended, where it ran, and the files that it wrote, by name."""

    ended: ProcessResult
    host: str
    files: Mapping[str, bytes]


@clear_os_errors
def survey(  # noqa: PLR0913 - the settings of a survey
    cases: object,
    client: Any = None,  # noqa: ANN401 - a dask.distributed.Client, which this module must not import
    *,
    options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    folder: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    time_limit: float = TIME_LIMIT_S,
    memory_limit: int | None = None,
    profile: bool = False,
    verify: bool = False,
    reports: bool = True,
    retry: bool = False,
    title: str = "Survey",
    tell: Callable[[SurveyRow], None] | None = None,
) -> pd.DataFrame:
    """Run many models, each in a process of its own: a crash, a hang or a lack of memory costs the case that it happens in.

    With a folder, each result is written when it comes, with its capture, report and log. The same survey again runs only what is
    missing: cases, options or versions that are new, and cases that a limit stopped which is higher now. What the modules of the
    models hold is not compared: remove a case's folder, or all, after a change there.

    Args:
        cases: A mapping from names to cases, a list of cases, or a text that names a file of them. A case is a `Case`,
            `MODULE:NAME`, a function or class at the top of a module, or a tuple of such a function and its arguments. A function that
            takes no arguments and returns a module, `(model, args)` or `(model, args, kwargs)` is called in the process of the case.
        client: A `dask.distributed.Client`: cases run on its workers, as many at once as they have threads. Workers must be able to import
            the targets. What a lost worker was at runs on another one.
        options: Options of the backend for all cases; several such mappings run every case under each.
        folder: Where results are kept, and `index.html` is written; None keeps only the frame.
        workers: Cases at the same time on this machine; by default one per two cores. They share the cores.
        time_limit: Seconds that a case may take.
        memory_limit: Bytes that the processes of a case may hold; by default they share 90 % of the memory. Held on Linux.
        profile: Also find out where the time inside ONNX Runtime goes.
        verify: Also compare every value with PyTorch's.
        reports: Whether each case gets a report of its own.
        retry: Run cases again that have no result in the folder but a reason.
        title: Title of the page.
        tell: Called with the row of each case as it comes, first with those that are there already.

    Returns:
        A row per case and options, in the order given: status, reason, key figures, times, capture. The columns are documented with the
        survey.

    Raises:
        UsageError: Something is no case or cannot be imported in another process, a limit makes no sense, or the folder cannot be written.
        OptionalDependencyError: There is a client, and `distributed` is not installed.
    """
    if os.environ.get(VARIABLE):
        raise UsageError("survey() was called while a case was being imported: put the call below `if __name__ == '__main__':`")
    if client is not None and getattr(client, "asynchronous", False):
        raise UsageError("survey() waits for its results, so it needs a Client that was made without asynchronous=True")
    if not time_limit > 0 or (memory_limit is not None and memory_limit <= 0) or (workers is not None and workers < 1):
        raise UsageError(f"limits and workers must be positive: time_limit={time_limit}, memory_limit={memory_limit}, workers={workers}")
    count = workers or max(1, usable_cores() // _CORES_PER_CASE)
    extras = CaseExtras(profile=profile, verify=verify, reports=reports and folder is not None)
    local = ProcessLimits(seconds=time_limit, memory_bytes=memory_limit, threads=max(1, usable_cores() // count))
    limits = _shared(local, count) if client is None else ProcessLimits(seconds=time_limit, memory_bytes=memory_limit)
    jobs = [_job(case, extras, limits) for case in cases_from(cases, options)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) if folder is None else contextlib.nullcontext(folder) as place:
        results = Results(Path(place))
        rows: dict[str, SurveyRow] = {}

        def add(job: Job, row: SurveyRow) -> None:
            rows[job.key] = row if folder is not None else replace(row, capture=None)
            if tell is not None:
                tell(rows[job.key])

        for job in jobs:
            if (row := results.kept(job, retry=retry)) is not None and job.key not in rows:
                add(job, row)
        missing = list({job.key: job for job in jobs if job.key not in rows}.values())
        try:
            with progress("survey", len(missing), "case") as step:
                for job, outcome in _on_cluster(client, missing) if client is not None else _here(missing, count):
                    add(job, _kept(results, job, outcome))
                    step(1)
        finally:
            found = [rows[job.key] for job in jobs if job.key in rows]
            if folder is not None:
                results.write_page(found, title)
    return frame_from_records(TABLE, found)


def _job(case: Case, extras: CaseExtras, limits: ProcessLimits) -> Job:
    own = replace(limits, seconds=case.time_limit or limits.seconds, memory_bytes=case.memory_limit or limits.memory_bytes)
    named = str(dict(case.options))
    whole = replace(extras, libraries={name: found for name, found in registered_libraries().items() if repr(name) in named})
    return Job(case=case, key=key_of(case, whole), extras=whole, limits=own)


def run_case(job: Job, stop: threading.Event | None = None) -> CaseOutcome:
    """Run a case in a process of its own; called on this machine or by a worker of a cluster."""
    limits = job.limits if job.limits.memory_bytes is not None else _shared(job.limits, 1)
    with tempfile.TemporaryDirectory(prefix="ortlens-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        ended = run_in_subprocess(measured, (job.case, job.extras, name), limits=limits, folder=folder, stop=stop)
        files = {file: (folder / file).read_bytes() for file in (CAPTURE, JOURNAL, REPORT) if (folder / file).is_file()}
    if CAPTURE in files:
        files.pop(JOURNAL, None)
    return CaseOutcome(ended=ended, host=platform.node(), files=files)


def _here(jobs: Sequence[Job], count: int) -> Iterator[tuple[Job, CaseOutcome]]:
    stop = threading.Event()
    with ThreadPoolExecutor(count) as pool:
        futures = {pool.submit(run_case, job, stop): job for job in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:  # also on Ctrl-C, and when the caller stops asking
            stop.set()
            pool.shutdown(cancel_futures=True)


def _on_cluster(client: Any, jobs: Sequence[Job]) -> Iterator[tuple[Job, CaseOutcome]]:  # noqa: ANN401 - a dask.distributed.Client
    distributed = require("distributed", "survey(client=...)")
    run = uuid.uuid4().hex[:8]  # the cluster may still hold the results of an earlier survey
    waiting = {client.submit(run_case, job, key=f"ortlens-{run}-{job.key}", pure=False): job for job in jobs}
    try:
        for future in distributed.as_completed(list(waiting)):
            job = waiting.pop(future)
            error = future.exception() if future.status != "finished" else None
            yield job, future.result() if error is None else _lost(error)
            future.release()
    finally:
        client.cancel(list(waiting))


def _lost(error: BaseException) -> CaseOutcome:
    reason = f"no worker brought an answer: {type(error).__name__}: {' '.join(str(error).split())}"
    ended = ProcessResult(status="lost", reason=reason[:_REASON], value=None, log="", wall_ns=0, peak_bytes=None)
    return CaseOutcome(ended=ended, host="", files={})


def _kept(results: Results, job: Job, outcome: CaseOutcome) -> SurveyRow:
    ended = outcome.ended
    figures = dict(ended.value or {})
    figures["fallbacks"] = tuple(figures.get("fallbacks", ()))
    row = SurveyRow(
        case=job.case.name,
        options=job.options,
        backend=job.case.backend,
        status=ended.status,
        reason=ended.reason,
        case_ns=ended.wall_ns,
        peak_bytes=ended.peak_bytes,
        log=ended.log[-_SHOWN_LOG:].strip(),
        host=outcome.host,
        key=job.key,
        **figures,
    )
    return results.keep(job, row, outcome.files, ended.log)


def _shared(limits: ProcessLimits, count: int) -> ProcessLimits:
    if limits.memory_bytes is not None or (usable := usable_bytes()) is None:
        return limits
    return replace(limits, memory_bytes=round(usable * _USED / count))


TABLE = table_from_record("survey", SurveyRow)  # the columns of a survey's frame
ROW, LOG, PAGE = "row.json", "log.txt", "index.html"
_NO_PART = frozenset({"time_limit", "memory_limit"})  # of the key: they change no result
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_SHOWN_LOG = 2_000
_PLAIN = (str, int, float, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A case that is to be run."""

    case: Case
    key: str  # its digest
    extras: CaseExtras
    limits: ProcessLimits

    @property
    def options(self) -> str:
        """The options as text, with the keys of a provider cut, as in a capture."""
        options = self.case.options.items()
        return ", ".join(f"{name}={value!r}" if isinstance(value, _PLAIN) else f"{name}={option_text(value)}" for name, value in options)


def key_of(case: Case, extras: CaseExtras) -> str:
    """Digest what a result depends on, except what modules hold; raise `UsageError` for what another process cannot be sent."""
    values = {item.name: getattr(case, item.name) for item in fields(case) if item.name not in _NO_PART}
    try:
        args = hashlib.sha256(pickle.dumps((values.pop("args"), values.pop("kwargs")), protocol=4)).hexdigest()
        pickle.dumps(case)
    except Exception as err:
        hint = " (name devices by preferred_execution_providers)" if "ort_session_options" in case.options else ""
        why = f"{type(err).__name__}: {err}{hint}"
        raise UsageError(f"case {case.name}: arguments or options cannot be sent to another process: {why}") from err
    from ortlens import __version__

    versions = {"ortlens": __version__, **_versions.installed(), **extras.libraries}
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
        """Find the row of an earlier run, with `retry` only an answer; None if there is none, or its limit is higher now."""
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
        from ortlens.views.markup import write_report
        from ortlens.views.survey_page import survey_page

        return write_report(self.folder / PAGE, survey_page(rows, _capture, title=title, folder=self.folder))


def _capture(row: SurveyRow) -> Capture | None:
    if row.capture is None:
        return None
    with contextlib.suppress(OrtLensError, OSError):
        return advised(store.load(row.capture))
    return None
