"""Canonical JSON and its hash: a trial's identity, the same in every process and on every machine."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping


def canonical(value: object, where: str = "$") -> object:
    """Return `value` as JSON types, with one spelling for each value.

    Integral floats become integers (1.0 and 1 are the same hyper-parameter), mappings are sorted by key, tuples
    become lists. Raises TypeError, with the path, for values whose identity is not stable across processes
    (callables, sets, objects) and ValueError for non-finite numbers.
    """
    if value is None or type(value) in (str, int, bool):  # the common case first
        return value
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"cannot fingerprint {value} at {where}: a trial's configuration must be finite")
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, Mapping):
        bad = [key for key in value if not isinstance(key, str)]
        if bad:
            raise TypeError(f"cannot fingerprint the key {bad[0]!r} at {where}: keys must be strings")
        return {key: canonical(value[key], f"{where}.{key}") for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [canonical(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise TypeError(
        f"cannot fingerprint a {type(value).__name__} at {where}: it has no identity that is the same in every "
        "process; use a string, a number, a list or a mapping"
    )


def canonical_json(value: object) -> str:
    """Return the only spelling of `value` as JSON: sorted keys, no spaces, shortest round-trip floats, UTF-8."""
    return json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(value: object, length: int = 16) -> str:
    """Return the first `length` hex digits of the SHA-256 of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]
