"""What takes many calls, models or processes."""

from __future__ import annotations
