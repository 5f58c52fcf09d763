"""The texts whose gradients a trial takes: which, and their fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.methods.trial_config import TrialConfig


def fingerprint_texts(config: TrialConfig, known: dict[Path, str] | None = None) -> tuple[str, str]:
    """Return (fingerprint of the texts whose gradients a trial takes, why one is unavailable), one of them or both "".

    `known` has the digests of texts that were read before, by file; read ones are added.
    """
    known, found = {} if known is None else known, []
    for name, key in texts_of(config):
        file = Path(config.data.dir or ".").expanduser() / name
        if not file.is_file():
            return "", f"no text at {file} ({key}, under data.dir)"
        if file not in known:
            known[file] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        found.append(known[file])
    prints = list(dict.fromkeys(found))
    return (fingerprint(prints) if len(prints) > 1 else "".join(prints)), ""


def texts_of(config: TrialConfig) -> Iterator[tuple[str, str]]:
    """Yield every (text whose gradients a trial takes, key that names it)."""
    if config.gradients.samples:
        yield config.gradients.text, "gradients.text"
    elif config.method.kind.trains and config.space.needs_gradients and config.space.of_text:
        yield config.space.of_text, "space.text"
    if config.precision.of_text:
        yield config.precision.of_text, "precision.text"
