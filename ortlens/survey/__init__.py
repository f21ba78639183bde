"""Many ways of running one model, measured together."""

from __future__ import annotations
