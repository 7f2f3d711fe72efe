"""Numbers and names for people, as the pages write them."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """A number with four significant digits, or all before the decimal point if there are more; ``-`` for NaN."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = abs(value)
    if size != 0 and not 1e-4 <= size < 1e12:
        digits, exponent = f"{value:.3e}".split("e")
        return f"{_trim(digits)}e{int(exponent)}"
    places = max(0, 3 - math.floor(math.log10(size))) if size else 0
    text = _trim(f"{value:.{places}f}")
    whole, point, rest = text.partition(".")
    return f"{int(whole):,}{point}{rest}" if len(whole.lstrip("-")) > 4 else text


def quantity(value: float, unit: str) -> str:
    """A number with its unit."""
    return f"{number(value)} {unit}" if unit and not math.isnan(value) else number(value)


def shorten(name: str, most: int) -> str:
    """A name cut to a number of characters, the last one an ellipsis."""
    return name if len(name) <= most else name[: most - 1] + "…"


def width(text: str) -> float:
    """The approximate width of a text in a figure, in pixels."""
    return sum(7.2 if c.isascii() else 9.0 for c in text)


def _trim(digits: str) -> str:
    trimmed = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return "0" if trimmed == "-0" else trimmed
