"""Numbers and tables as a reader is shown them. Pure."""

Rows = tuple[list[str], list[list[str]]]
"""Headings of a table, and its rows."""


def plural(number: int, noun: str) -> str:
    """Returns a number with its noun: `1 batch`, `1,437 examples`."""
    ending = "" if number == 1 else "es" if noun.endswith("tch") else "s"
    return f"{number:,} {noun}{ending}"


def show_bytes(number: float) -> str:
    """Returns a size with three digits, in units of 1000: `276 kB`."""
    rounded = float(f"{number:.3g}")  # First, so that 999.6 kB are 1 MB.
    power = min(4, max(0, len(f"{rounded:.0f}") - 1) // 3)
    if power == 0:
        return plural(round(rounded), "byte")
    size = rounded / 1000**power
    shown = f"{size:,.0f}" if size >= 1000 else f"{size:.3g}"
    return f"{shown} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def show_seconds(seconds: float) -> str:
    """Returns a duration with three digits at most: `12.3 s`, `340 ms`, `0.4 ms`."""
    if seconds >= 0.9995:
        return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f} ms" if milliseconds >= 9.95 else f"{milliseconds:.1f} ms"
