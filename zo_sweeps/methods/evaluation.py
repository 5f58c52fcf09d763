"""How f is evaluated at a step's points: which points share a forward, and whether theta is modified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.points import Point

SCORED_TOKENS = 8192  # of a forward that scores dev or test, at most, padding included; one example may have more


class Mode(str, Enum):
    """The points that share a forward. Forwards per step for q two-sided queries: 2q, 2, q and 1, in this order.

    sequential: one point per forward. outer: P-RGE's outer loop, all plus points, then all minus points. inner: P-RGE's
    inner loop, both signs of one query. both: all points.
    """

    SEQUENTIAL = "sequential"
    OUTER = "outer"
    INNER = "inner"
    BOTH = "both"

    @property
    def batched(self) -> bool:
        """Whether a forward holds several points."""
        return self is not Mode.SEQUENTIAL

    @property
    def mixes_queries(self) -> bool:
        """Whether a forward holds points of several queries."""
        return self in (Mode.OUTER, Mode.BOTH)

    @property
    def forwards(self) -> int | None:
        """Forwards per step if they do not depend on q, else None."""
        return {Mode.OUTER: 2, Mode.BOTH: 1}.get(self)

    def points_per_forward(self, q: int) -> int:
        """Return the most points in one forward for q two-sided queries."""
        return {Mode.SEQUENTIAL: 1, Mode.OUTER: q, Mode.INNER: 2, Mode.BOTH: 2 * q}[self]

    def one_forward(self, q: int) -> bool:
        """Whether one forward holds all points of q two-sided queries."""
        return self.points_per_forward(q) == 2 * q

    def groups(self, points: Sequence[Point]) -> list[list[int]]:
        """Return the indices of the points in each forward."""
        if self is Mode.SEQUENTIAL:
            return [[i] for i in range(len(points))]
        if self is Mode.BOTH:
            return [list(range(len(points)))]
        groups: dict[object, list[int]] = {}
        for i, point in enumerate(points):
            sign = (point.scale > 0) - (point.scale < 0)
            groups.setdefault(sign if self is Mode.OUTER else point.key, []).append(i)
        return list(groups.values())


class Restore(str, Enum):
    """Handling of theta. exact: never modified. in_place: perturbed and restored, as in MeZO; its drift is recorded."""

    EXACT = "exact"
    IN_PLACE = "in_place"


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of f at the points of a step."""

    mode: Mode = option(Mode.SEQUENTIAL, "which points share a forward: sequential, outer, inner or both")
    restore: Restore = option(
        Restore.EXACT, "exact: theta is never modified; in_place: perturbed and restored, drift recorded"
    )
