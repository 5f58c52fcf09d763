"""Every table and figure of the papers: the grid behind it, and how far it has been run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import GridDifference
from zo_sweeps.core.document import key
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.plan.build import build, places_of
from zo_sweeps.results.item_progress import ItemProgress, standings
from zo_sweeps.schedule.this_host import for_this_host
from zo_sweeps.tables.published import names, read


@dataclass(frozen=True)
class Item:
    """A table, a figure, or something else that a paper numbers."""

    paper: str = key("short name of the paper")
    name: str = key('its name there ("table2"): PAPER/NAME is its reference')
    display: str = key("name of the paper for display")
    kind: str = key("accuracy, runtime, memory, figure, …")
    caption: str = key("its caption, shortened")
    grids: Sequence[str] = key("the grids that reproduce it")
    why: str = key("why there is no grid", "")
    has_numbers: bool = key("whether its numbers are recorded here", False)
    differs: Sequence[str] = key("what its grids do otherwise than the paper, or where the paper says nothing", ())

    @property
    def reference(self) -> str:
        return f"{self.paper}/{self.name}"


@dataclass(frozen=True)
class Obstacles:
    """What keeps trials of an item's grids from running here."""

    trials: int = key("number of trials of its grids", 0)
    missing: int = key("how many of them cannot run here", 0)
    reasons: Mapping[str, int] = key(
        "reason -> number of trials it holds back, the most frequent first; a trial may have several", dict
    )


@dataclass(frozen=True)
class ItemFacts:
    """A table, a figure, or something else that a paper numbers, as it is here."""

    item: Item = key("its entry in conf/paper")
    progress: ItemProgress = key("how far it has been run in the state folder")
    obstacles: Obstacles = key("what keeps its trials from running here")


def paper_facts(
    composer: Composer, names: Sequence[str] = (), overrides: Sequence[str] = (), config_dirs: Sequence[str] = ()
) -> list[ItemFacts]:
    """Return the facts of the items that `names` choose (see `named`), in the composer's state folder.

    Cost: as `obstacles` and `standings`.
    """
    chosen = named(items(composer.folders), names)
    progress, held = standings(chosen, composer.run.folder), obstacles(chosen, overrides, config_dirs)
    return [ItemFacts(item, progress[item.reference], held[item.reference]) for item in chosen]


def items(folders: Sequence[Path] | None = None) -> list[Item]:
    """Return every entry of conf/paper, in the order of the files: tables of numbers, figures, then all others."""
    entries = []
    for paper in names("paper", folders):
        data = read("paper", paper, folders)
        for part in ("tables", "figures", "others"):
            for name, entry in (data.get(part) or {}).items():
                grids = entry.get("grid") or ()
                grids = (grids,) if isinstance(grids, str) else tuple(grids)
                lines = (line for grid in grids for line in _differences(grid, f"{paper}/{name}", folders))
                kind, caption, why = entry["kind"], entry["caption"], entry.get("no_grid", "")
                differs = tuple(dict.fromkeys(lines))
                head = (paper, name, data["paper"]["name"], kind, caption)
                entries.append(Item(*head, grids, why, has_numbers=part == "tables", differs=differs))
    return entries


def _differences(grid: str, reference: str, folders: Sequence[Path] | None) -> Iterator[str]:
    """Yield what a grid does otherwise in the tables with an item's numbers, or, without such a table, anywhere."""
    data = read("grid", grid, folders)
    shown = [*data.get("tables", {}).values(), *data.get("figures", {}).values()]
    own = [part for part in shown if part.get("published") == reference]
    blocks = {block for part in own for block in (*part["rows"], *part.get("over", {}).values())}
    for one in (GridDifference(**each) for part in (data, *(own or shown)) for each in part.get("differs", ())):
        rows = [block for block in one.rows if not own or block in blocks]
        if rows or not one.rows:
            labels = [data["blocks"][block].get("label", block) for block in rows]
            columns = [data.get("columns", {}).get(column, {}).get("label", column) for column in one.columns]
            yield one.line([*labels, *columns])


def named(every: Sequence[Item], names: Sequence[str]) -> list[Item]:
    """Return the items of these papers ("prge") or with these references ("prge/table2"); all without a name."""
    chosen = [item for item in every if not names or item.paper in names or item.reference in names]
    known = {name for item in every for name in (item.paper, item.reference)}
    for name in names:
        if name not in known:
            raise unknown("table or figure of a paper", name, sorted(known), where="papers")
    return chosen


def obstacles(
    of: Sequence[Item], overrides: Sequence[str] = (), config_dirs: Sequence[str] = ()
) -> dict[str, Obstacles]:
    """Return reference -> what keeps its grids from running here, as written except for `overrides` (a data.dir).

    A grid that does not go with the overrides counts as one trial held back by what is wrong. Cost: plans every grid
    once, 0.2 to 3 seconds each.
    """
    planned: dict[str, tuple[int, list[tuple[str, ...]]]] = {}  # grid -> its trials, and the reasons of each held back
    places = None  # the same for all grids: they differ in what they train, not in where it runs
    for grid in dict.fromkeys(grid for item in of for grid in item.grids):
        try:
            composer = Composer([f"+grid={grid}", *overrides], config_dirs)
            places = places or places_of(composer)
            plan = for_this_host(build(composer, places))
            planned[grid] = len(plan.every), list(plan.reasons.values())
        except UserError as error:
            planned[grid] = 1, [(str(error),)]
    found = {}
    for item in of:
        held = [reasons for grid in item.grids for reasons in planned[grid][1]]
        counts = Counter(reason for reasons in held for reason in reasons).most_common()
        found[item.reference] = Obstacles(sum(planned[grid][0] for grid in item.grids), len(held), dict(counts))
    return found
