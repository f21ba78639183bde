"""The only file that touches private names of onnxscript.

| what | onnxscript 0.7 | why private |
| --- | --- | --- |
| how a rewrite merges node metadata | `rewriter/_rewrite_rule.py`, `_default_metadata_merger` | there is no public setting |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnxscript.rewriter

if TYPE_CHECKING:
    from collections.abc import Callable


def merge_metadata_in_rewrites(key: str, merge: Callable[[str, str], str]) -> None:
    """Merge a metadata entry of all nodes that a rewrite replaces; by default onnxscript keeps the first node's entry only.

    The first registration of a key wins. In a version of onnxscript without this merger nothing happens.
    """
    rule = getattr(onnxscript.rewriter, "_rewrite_rule", None)
    mergers = getattr(getattr(rule, "_default_metadata_merger", None), "mergers", None)
    if isinstance(mergers, dict):
        mergers.setdefault(key, merge)
