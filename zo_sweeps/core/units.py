"""Numbers in units that people read: 22.4 MiB, 1.2 ms, 3.4 kJ. JSON, CSV and data frames keep plain numbers.

And characters that nobody sees, shown: a label may come from a file of others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

Scale = Sequence[tuple[float, str]]  # (size of a unit, its name), ascending

BYTES: Scale = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"))
SECONDS: Scale = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1, "s"))
TIME: Scale = (*SECONDS, (60, "min"), (3600, "h"))
JOULES: Scale = ((1e-6, "µJ"), (1e-3, "mJ"), (1, "J"), (1e3, "kJ"), (1e6, "MJ"))
COUNTS: Scale = ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))
SCALES = (BYTES, TIME, JOULES)


def unit_for(value: float, scale: Scale) -> tuple[float, str]:
    """Return (size, name) of the unit in which a value is from 1 to 1000, or of the nearest unit there is."""
    size = abs(value)
    if not size:
        return next(one for one in scale if one[0] == 1)
    return next((one for one, larger in pairwise(scale) if size < min(1000 * one[0], larger[0])), scale[-1])


def scale_of(unit: str) -> tuple[Scale, float] | None:
    """Return the scale that a unit ("GiB", "ms/step") belongs to and the unit's size in it; None for other units.

    A time per something is never in minutes or hours.
    """
    name, _, per = unit.partition("/")
    for scale in SCALES:
        for size, known in scale:
            if known == name:
                return (SECONDS if scale is TIME and per else scale), size
    return None


def counted(number: int, what: str) -> str:
    """Return "1 trial", "2 trials"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def bytes_text(number: float, of: float | None = None) -> str:
    """Return bytes as "22.4 MiB", or as "1.5 of 8.0 GiB"."""
    factor, unit = unit_for(number if of is None else of, BYTES)
    digits = 0 if factor == 1 else 1
    text = f"{number / factor:.{digits}f}"
    return f"{text} {unit}" if of is None else f"{text} of {of / factor:.{digits}f} {unit}"


def seconds_text(number: float) -> str:
    """Return a measured time as "1.23 ms", "12.3 s" or "4.5 min"."""
    return _scaled(number, TIME)


def joules_text(number: float) -> str:
    """Return an energy as "340 mJ" or "3.4 kJ"."""
    return _scaled(number, JOULES)


def count_text(number: float) -> str:
    """Return a large count as "1.24 G"."""
    return _scaled(number, COUNTS) if abs(number) >= 1000 else f"{number:.0f}"


def duration(number: float | None) -> str:
    """Return a time to wait as "8 s", "4 min" or "2 h 05 min"; "?" for None."""
    if number is None:
        return "?"
    if number < 90:
        return f"{number:.0f} s"
    minutes = round(number / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def metric_text(name: str, value: float) -> str:
    """Return the value of a metric in the unit that its name says: bytes, seconds, joules, watts, …"""
    words = name.replace("/", "_").split("_")
    if not math.isfinite(value):
        return str(value)
    for word, text in _WORDS.items():
        if word in words:
            return text(value)
    whole = value == round(value) and abs(value) < 2**53
    return f"{value:,.0f}" if whole else f"{value:.4g}"


# A word in a metric's name -> how its values are printed; the first that fits.
_WORDS: Mapping[str, Callable[[float], str]] = {
    "bytes": bytes_text,
    "seconds": seconds_text,
    "joules": joules_text,
    "watts": "{:.3g} W".format,
    "celsius": "{:.1f} °C".format,
    "mhz": "{:,.0f} MHz".format,
    "percent": "{:.0f} %".format,
}


def _scaled(number: float, scale: Scale) -> str:
    if not math.isfinite(number):
        return str(number)
    factor, unit = unit_for(number, scale)
    text = f"{number / factor:.3g}"
    return f"{float(text):g} {unit}".rstrip() if "e" not in text else f"{number / factor:.0f} {unit}".rstrip()


# Control characters, marks of the direction of writing, characters of no width, halves of a pair. Tabs and the ends of
# lines stay, and so do the joiners (U+200C, U+200D), which scripts and emoji need.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Return a text with each hidden character as `<U+202E>`."""
    return _HIDDEN.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)
