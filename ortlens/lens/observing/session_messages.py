"""What ONNX Runtime and its providers say while a session is made. Python gets no hold of it, so a session like it is made elsewhere."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens import _ort
from ortlens.analysis.roofline import CPU
from ortlens.backend.basis.error_text import shortened, without_colours
from ortlens.trace import records as r
from ortlens.trace.guard import reported

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ortlens.trace.recorder import Recorder

_MOST_MODELS = 8  # of one capture
_MOST_MESSAGES, _LONGEST = 20, 400
_LAST = 5  # lines that a process wrote before it ended
_HEAD = re.compile(r"^\S+ \S+ \[(?P<severity>[VIWEF]):[^,\]]*, [^\]]*\] ?")  # of ONNX Runtime's lines: time, severity, logger, place
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
        new = {each.model_id: each for each in requests if each is not None and each.model_id not in self._asked and self._strays(each)}
        asked = list(new.values())[: max(_MOST_MODELS - len(self._asked), 0)]
        if not asked:
            return
        self._asked.update(each.model_id for each in asked)
        with tempfile.TemporaryDirectory(prefix="ortlens-messages-", ignore_cleanup_errors=True) as folder:
            logs = _ort.session_logs(asked, Path(folder))
        from ortlens.backend.observed import note_messages  # it loads torch

        for request, log in zip(asked, logs, strict=False):
            if messages := messages_from(log):
                for session in self._sessions(request):
                    note_messages(self.recorder, session.session_id, messages)

    def _sessions(self, request: _ort.SessionRequest) -> list[r.Session]:
        return [session for session in self.recorder.records(r.Session) if session.model_id == request.model_id]

    def _strays(self, request: _ort.SessionRequest) -> bool:
        """Tell whether nodes of a session may run elsewhere than on the provider that was asked for first."""
        wanted, own = [name for name, _ in request.providers], {session.session_id for session in self._sessions(request)}
        rows = [row for row in self.recorder.records(r.Placement) if row.session_id in own]
        return set(wanted) != {CPU} and (not rows or any(row.nodes and row.provider != wanted[0] for row in rows))


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
