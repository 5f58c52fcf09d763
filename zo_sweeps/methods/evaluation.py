"""How f is evaluated at a step's points: which points share a forward, and whether theta is modified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from zo_sweeps.methods.definition import Checked, option
from zo_sweeps.methods.points import Point

if TYPE_CHECKING:
    from zo_sweeps.methods.estimator import Estimator

SCORED_TOKENS = 8192  # of a forward that scores dev or test, at most, padding included; one example may have more

GENERATED_TOGETHER = 8  # prompts that one batch continues, at every point of its forwards
# Values of a weight that are computed at a time: on a CPU 4 MB in fp32, which fit the L2 caches.
ON_CPU, ELSEWHERE = 1 << 20, 1 << 26  # other devices need larger kernels


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

    def groups(self, points: Sequence[Point], most: int | None = None) -> list[list[int]]:
        """Return the indices of the points in each forward, of which `most` share one; all are of the same rows."""
        together: dict[object, list[int]] = {}
        for i, point in enumerate(points):
            sign = (point.scale > 0) - (point.scale < 0)
            same = {Mode.SEQUENTIAL: i, Mode.OUTER: sign, Mode.INNER: point.key, Mode.BOTH: None}[self]
            together.setdefault((same, point.part), []).append(i)
        most = most or len(points)
        return [group[start : start + most] for group in together.values() for start in range(0, len(group), most)]


class Restore(str, Enum):
    """Handling of theta. exact: never modified. in_place: perturbed and restored, as in MeZO; its drift is recorded."""

    EXACT = "exact"
    IN_PLACE = "in_place"


@dataclass(frozen=True)
class Evaluation(Checked):
    """The evaluation of f at the points of a step.

    `points` bounds the memory of a large q: a forward holds so many points, and a step takes more forwards. The losses
    are the same but for the rounding of products with other numbers of rows.

    `parts` divides the minibatch's rows, f = sum_k n_k f_k / sum_k n_k in fp64 for parts k with n_k terms of f (see
    `zo_sweeps.methods.objective`): data-parallel steps, which have the same bits in any number of processes. From the
    loss of all rows in one forward, f differs by the rounding of products with other numbers of rows.
    """

    mode: Mode = option(Mode.SEQUENTIAL, "which points share a forward: sequential, outer, inner or both")
    points: int | None = option(
        None, "most points in one forward of a batched mode; null: all that the mode says", least=1, added=True
    )
    parts: int | None = option(
        None,
        "forwards among which a minibatch's rows are divided, so that processes can share them; null: one has them all",
        least=1,
        added=True,
    )
    restore: Restore = option(
        Restore.EXACT, "exact: theta is never modified; in_place: perturbed and restored, drift recorded"
    )

    def points_per_forward(self, estimator: Estimator, along: int = 0) -> int:
        """Return the most of a step's points in one forward.

        Args:
            along: points on the line of the estimate that an update evaluates besides, as many behind as ahead.
        """
        if not self.mode.batched:  # through coordinates, whose points are not known before their number is
            return 1
        points = estimator.points(0, 1)
        if estimator.owns_rows:  # forwards of other rows
            points = tuple(point for point in points if point.key.query == 0)
        line = [Point(points[0].key, place - along // 2) for place in range(along)]
        return max(len(group) for some in (points, line) for group in self.mode.groups(some, self.points))
