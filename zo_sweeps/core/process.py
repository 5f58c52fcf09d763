"""Child processes that do not outlive their parent."""

from __future__ import annotations

import contextlib
import ctypes

_SIGNAL_AT_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG


def die_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent dies, in whatever way (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_DEATH, number)
