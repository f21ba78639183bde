"""Numbers as people read them: counts, times, sizes and shares."""

from __future__ import annotations

_TIME_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_SIZE_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """Format a rounded number with its noun: `1 graph`, `10,000 nodes`. A damaged file may have NaN here."""
    text = f"{number:,.0f}"
    return f"{text} {noun if text == '1' else plural or noun + 's'}"


def time_from_ns(nanoseconds: float) -> str:
    """Format a time in the unit that suits it, with three significant digits: `812 ns`, `1.24 ms`. It may be negative."""
    for factor, unit in _TIME_UNITS:
        if abs(nanoseconds) >= factor * 0.9995:
            return f"{_three_digits(nanoseconds / factor)} {unit}"
    return f"{nanoseconds:.0f} ns"


def size_from_bytes(size: float) -> str:
    """Format a size in the unit that suits it, with three significant digits: `812 B`, `12.3 KiB`."""
    for factor, unit in _SIZE_UNITS:
        if size >= factor:
            return f"{_three_digits(size / factor)} {unit}"
    return f"{size:.0f} B"


def percent(share: float) -> str:
    """Format a share of 0 to 1 as a percentage that rounds neither to all nor to nothing unless it is: `97.6 %`, `>99.9 %`."""
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    if share > 0.999:  # noqa: PLR2004 - one digit after the point
        return ">99.9 %"
    return "<0.1 %" if share < 0.001 else f"{share * 100:.1f} %"  # noqa: PLR2004 - as above


def times(ratio: float) -> str:
    """Format a ratio of at least 1 in words: `1.4 times`, `1,458 times`."""
    return f"{ratio:.1f} times" if ratio < 9.95 else f"{ratio:,.0f} times"  # noqa: PLR2004 - where one digit after the point is too many


def distance(max_abs: float, max_rel: float | None) -> str:
    """Format the largest difference of two values, and its share of their size: `by up to 0.0123 (0.5 of its size)`."""
    return f"by up to {max_abs:.1e}" + (f" ({max_rel:.1e} of its size)" if max_rel else "")


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:  # noqa: PLR2004 - where the third digit becomes a whole one
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"  # noqa: PLR2004 - as above
