"""What the command line exits with."""

from __future__ import annotations

EXIT_OK = 0
EXIT_NO = 1
"""A negative answer: results differ, a limit does not hold, the main job cannot run here."""
EXIT_USAGE = 2
"""The command is wrong, or an error stopped it."""
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
