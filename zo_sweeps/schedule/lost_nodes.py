"""Nodes that lose trials: how long each is left alone, and whether a loss is the fault of the node or of the trial.

A node that loses one trial after another, and finishes none between, is sick: it gets one trial at a time, and its
losses are not the trials', as long as another node could run them. A trial that was lost on a node goes to another.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

# A node is left alone after a loss: at first for the one, then for twice as long each time, up to the other.
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 600.0
SICK = 3  # losses in a row, of more than one trial


@dataclass
class _Row:
    """The losses of a node since a trial finished there; those of processes that died together are one."""

    losses: int = 0
    until: float = 0.0  # the end of the pause after the last one (monotonic)
    trials: set[str] = field(default_factory=set)
    why: str = ""


class Losses:
    """The losses of one sweep, by node id. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._nodes_of: defaultdict[str, set[str]] = defaultdict(set)

    def lost(self, node_id: str, trial_id: str, why: str, now: float) -> float:
        """Count a loss; return for how many seconds the node is left alone."""
        row = self._rows.setdefault(node_id, _Row())
        row.trials.add(trial_id)
        row.why = why
        self._nodes_of[trial_id].add(node_id)
        if now >= row.until:
            row.losses += 1
            row.until = now + min(SHORTEST_SECONDS * 2 ** (row.losses - 1), LONGEST_SECONDS)
        return row.until - now

    def finished(self, node_id: str) -> None:
        """Note that a trial came to an end of its own on the node."""
        self._rows.pop(node_id, None)

    def is_sick(self, node_id: str) -> bool:
        """Return whether the node loses everything."""
        row = self._rows.get(node_id)
        return row is not None and row.losses >= SICK and len(row.trials) > 1

    def text(self, node_id: str) -> str:
        """Return the last cause of a node's losses, and how many there are in a row; "" if there are none."""
        row = self._rows.get(node_id)
        return f"lost {row.losses} trials in a row ({row.why})" if row else ""

    def nodes_of(self, trial_id: str) -> set[str]:
        """Return the ids of the nodes on which a trial was lost."""
        return self._nodes_of.get(trial_id, set())
