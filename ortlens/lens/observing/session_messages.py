"""What ONNX Runtime and its providers say while a session is made. Python gets no hold of it, so a session like it is made elsewhere."""

from __future__ import annotations

import re
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

from ortlens import _ort
from ortlens.analysis.onnx_model import SLOW_START_NS, start_of
from ortlens.analysis.problems.catalogue import remedy
from ortlens.analysis.roofline import CPU
from ortlens.backend.basis.error_text import shortened, without_colours
from ortlens.trace import records as r
from ortlens.trace.guard import reported
from ortlens.units import percent, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ortlens.trace.recorder import Recorder

_MOST_MODELS = 8  # of one capture
_MOST_MESSAGES, _LONGEST = 20, 400
_INFO = 1  # a severity
_ZONE_NS = 900_000_000_000  # what times of zones differ by
_SECRET = 8  # characters from which an option of a provider may be a key; they are in no capture
_LAST = 5  # lines that a process wrote before it ended
# How ONNX Runtime's lines begin: with time, severity, logger and place.
_HEAD = re.compile(r"^(?P<time>\S+ \S+) \[(?P<severity>[VIWEF]):[^,\]]*, [^\]]*\] ?")
_STAGES = ("Initializing session", "GraphTransformer", "Running graph optimizations", "Use DeviceBasedPartition")
_STAGE = re.compile(f"{_HEAD.pattern}(?P<stage>{'|'.join(_STAGES)}) ?")
_OF_PROVIDER = re.compile(r"^.*?\b(WARN|WARNING|ERROR|FATAL)\b[\]:\s]*")  # of lines of a provider's own log


class SessionMessages:
    """Asks for the messages of the sessions of one lens, once for each model."""

    def __init__(self, recorder: Recorder) -> None:
        """Begin with nothing asked."""
        self.recorder = recorder
        self._asked: set[str] = set()

    @reported("making sessions once more for their messages")
    def note(self, requests: Iterable[_ort.SessionRequest | None]) -> None:
        """Record the messages of sessions that another provider than the CPU's was to run, and does not run whole."""
        if all(row.provider == CPU for row in self.recorder.records(r.Placement)):
            return
        new = {each.model_id: each for each in requests if each is not None and each.model_id not in self._asked and self._strays(each)}
        asked = list(new.values())[: max(_MOST_MODELS - len(self._asked), 0)]
        self._asked.update(each.model_id for each in asked)
        for request, log in zip(asked, _ort.session_logs(asked), strict=False):
            hidden = [str(value) for _, settings in request.providers for value in settings.values() if len(str(value)) >= _SECRET]
            if messages := tuple(reduce(lambda text, value: text.replace(value, "…"), hidden, text) for text in messages_from(log)):
                from ortlens.backend.observed import note_messages  # it loads torch

                for session in self._sessions(request):
                    note_messages(self.recorder, session.session_id, messages)

    @reported("dividing the time in which sessions are made")
    def time_starts(self, requests: Iterable[_ort.SessionRequest | None], *, try_s: float = 0) -> None:
        """Record what the time in which sessions were made goes into, of sessions like them, and what shortens it.

        The latter is tried for `try_s` seconds, in which a slow session is made six times: where the user loads the model, and can follow.
        """
        asked = list({each.model_id: each for each in requests if each is not None}.values())[:_MOST_MODELS]
        for request, log in zip(asked, _ort.session_logs(asked, severity=_INFO), strict=False):
            for session in self._sessions(request):
                self.recorder.amend(r.Session, session.session_id, **parts_from(log, session.create_ns))
            for session in self._sessions(request):
                start = start_of(session)
                if try_s > 0 and start and (session.create_ns or sum(start.values())) >= SLOW_START_NS:
                    found = slow_start(session.session_id, start, _ort.start_trials(request, min(try_s, 300)))
                    self.recorder.replace_findings(("slow_start",), found, subject=session.session_id)

    def _sessions(self, request: _ort.SessionRequest) -> list[r.Session]:
        return [session for session in self.recorder.records(r.Session) if session.model_id == request.model_id]

    def _strays(self, request: _ort.SessionRequest) -> bool:
        """Tell whether the provider that was asked for first left nodes, and its table of kernels, if it has one, cannot say why."""
        wanted, own = request.providers[0][0], {session.session_id for session in self._sessions(request)}
        rows = {row.provider: row.nodes for row in self.recorder.records(r.Placement) if row.session_id in own}
        left = wanted != CPU and sum(rows.values()) > rows.get(wanted, 0)
        return left and (not rows.get(wanted) or not _ort.listed_kernels(wanted))


def parts_from(log: _ort.SessionLog, whole_ns: int) -> dict[str, int]:
    """Divide the time in which a session was made, as fields of its record that add up to it; none where the log has other lines.

    The time that the log tells of, which writing it lengthens, stands for a `whole_ns` that is not known, 0.
    """
    at: dict[str, int] = {}
    for line in filter(None, map(_STAGE.match, map(without_colours, log.lines))):
        if line["stage"] != _STAGES[1] or _STAGES[2] not in at:  # of rewrites, the last before a provider takes nodes
            at[line["stage"]] = round(datetime.fromisoformat(line["time"]).timestamp() * 1e9)
    if len(at) < len(_STAGES) or not log.clock:
        return {}
    zone_ns = round((log.clock[0] - at[_STAGES[0]]) / _ZONE_NS) * _ZONE_NS
    (began, read, end), (created, rewritten, given, planned) = log.clock, (at[stage] + zone_ns for stage in _STAGES)
    parts = {"load_ns": read - began, "provider_ns": created - read + given - rewritten, "kernels_ns": end - planned}
    parts["optimize_ns"] = end - began - sum(parts.values())
    return {name: round(ns * (whole_ns or end - began) / (end - began)) for name, ns in parts.items()}


_WRITE = 'options.add_session_config_entry("ep.context_enable", "1"); options.add_session_config_entry("ep.context_file_path", "ctx.onnx")'
_REMEDIES = {
    "compiled": ("its provider's compiled model", _WRITE, "without these entries"),
    "saved": ("a saved optimised model", 'options.optimized_model_filepath = "saved.onnx"', "at graph_optimization_level ORT_DISABLE_ALL"),
}


def slow_start(session_id: str, start: Mapping[str, int], trials: Mapping[str, int]) -> Iterator[r.Finding]:
    """Make the finding of a slow start, of its parts and the times of `start_trials`, if a remedy takes at most 0.7 of the time."""
    as_is = min(trials.get("first", 0), trials.get("again", 0))  # the less of two: the machine may have been busy
    ways = sorted((trials[way], *words) for way, words in _REMEDIES.items() if way in trials)
    if not ways or ways[0][0] > 0.7 * as_is:
        return
    ns, what, line, how = ways[0]
    part, share = next((name, percent(ns / sum(start.values()))) for name, ns in start.items())
    title = f"{session_id} takes {time_from_ns(as_is)} to create ({part} {share}); from {what} {time_from_ns(ns)}"
    evidence = f"in one process: {', '.join(f'{time_from_ns(ns)} from {what}' for ns, what, *_ in ways)}, {time_from_ns(as_is)} as it is"
    todo = remedy(f"Write it once: {line}.", f"Then load that file {how}. It is for this kind of machine and version of ONNX Runtime.")
    hazard = "Every process waits for it before its first result."
    yield r.Finding(
        rule="slow_start", severity="warning", subject=session_id, title=title, evidence=evidence, hazard=hazard, measured=True, **todo
    )


def messages_from(log: _ort.SessionLog) -> tuple[str, ...]:
    """Find the warnings and errors in a log, ONNX Runtime's own if there are any, else those of providers; the last lines of a crash.

    What a session that ONNX Runtime refused says about that is left out: the one that is like it was made.
    """
    lines = [" ".join("".join(c if c.isprintable() else " " for c in without_colours(line)).split()) for line in log.lines]
    wanted = "W" if log.outcome == "refused" else "WEF"
    said = [line[head.end() :] for line in lines if (head := _HEAD.match(line)) and head["severity"] in wanted]
    said = said or [line[head.end() :] for line in lines if (head := _OF_PROVIDER.match(line)) and not _HEAD.match(line)]
    if log.outcome == "ended":
        said += [_HEAD.sub("", line) for line in [line for line in lines if line][-_LAST:]]
    return tuple(shortened(text, _LONGEST) for text in dict.fromkeys(said) if text)[:_MOST_MESSAGES]
