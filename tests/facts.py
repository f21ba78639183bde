"""Facts about a capture, as tests write them: named texts, of which those that views list as figures become figures."""

import math
import re
from collections.abc import Mapping
from typing import Any

from ortlens.trace.records import Figures, MachinePeak, SideResult
from ortlens.trace.schema import FIGURES, Column

_DIGITS = 15  # of an integer: a damaged capture may hold any number
_BOOLS = {"1": True, "yes": True, "no": False}
_PEAK = re.compile(r"peak_(?:bytes|flops_(?P<dtype>\w{1,20}))_threads_(?P<threads>\d{1,4})")
_WAY = re.compile(
    r"call_ns=(?P<call>\d{1,15}) ratio=(?P<ratio>[\d.]{1,12}) low=(?P<low>[\d.]{1,12}) high=(?P<high>[\d.]{1,12}) "
    r"(?P<verdict>faster|slower|same|reference)"
)
_UNMEASURED = "unmeasured: "


def head(texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a capture with these facts."""
    figures, environment = figures_from_facts(texts)
    return {"environment": environment, "figures": figures}


def figures_from_facts(facts: Mapping[str, str]) -> tuple[Figures, dict[str, str]]:
    """Read the figures out of the facts of a capture of the first schema, and return the other facts; what is no figure stays there."""
    values: dict[str, Any] = {}
    peaks: list[MachinePeak] = []
    ways: list[SideResult] = []
    left: dict[str, str] = {}
    plain = {column.name: column for column in FIGURES.columns if column.rows is None}
    for name, text in facts.items():
        number = _number(text)
        if name in plain and (value := _value(plain[name], text)) is not None:
            values[name] = value
        elif (match := _PEAK.fullmatch(name)) and number is not None:
            peaks.append(MachinePeak(dtype=match["dtype"], threads=int(match["threads"]), per_s=number))
        elif name.startswith("bench_") and (way := _way(name.removeprefix("bench_"), text)) is not None:
            ways.append(way)
        else:
            left[name] = text
    return Figures(**values, peaks=tuple(peaks), ways=tuple(ways)), left


def _value(column: Column, text: str) -> Any:  # noqa: ANN401 - any figure
    if column.kind == "bool":
        return _BOOLS.get(text)
    if column.kind == "float":
        return _number(text)
    if column.kind == "int":
        return _integer(text)
    parts = [part for part in re.split(r"[, ]+", text) if part]
    if str in column.items:
        return tuple(parts)
    return tuple([number for part in parts if (number := _integer(part)) is not None])


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _way(name: str, text: str) -> SideResult | None:
    if text.startswith(_UNMEASURED):
        return SideResult(way=name, verdict="unmeasured", note=text.removeprefix(_UNMEASURED))
    match = _WAY.fullmatch(text)
    ratios = [_number(match[name]) for name in ("ratio", "low", "high")] if match else []
    if match is None or None in ratios:
        return None
    ratio, low, high = ratios
    verdict: Any = match["verdict"]
    return SideResult(way=name, verdict=verdict, call_ns=int(match["call"]), ratio=ratio, ratio_low=low, ratio_high=high)
