"""The output of `gc`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from zo_sweeps.cli.show.text import counted, listing, say
from zo_sweeps.core.files import cache_folder
from zo_sweeps.core.units import bytes_text
from zo_sweeps.session.reclaim import Reclaimable, reclaim, reclaimable


def show_reclaimable(state_dir: Path, to: Console) -> None:
    """Print what could be dropped, and what trials still need; drop nothing."""
    entries = reclaimable(state_dir)
    rows = [
        _row(one, f"kept: {counted(one.waiting, 'trial')} without a result" if one.waiting else "not proven yet")
        for one in entries
    ]
    listing(to, ("in the cache", "size", "used by", "state"), rows)
    free = [one.size for one in entries if not one.waiting]
    if free:
        say(
            to,
            f"\n`gc --yes` computes {'this one' if len(free) == 1 else f'these {len(free)}'} again, "
            f"{bytes_text(sum(free))}, and drops what is the same to the bit. It takes as long as the start of the "
            "first trial that used each.",
        )
    _rest(len(entries), state_dir, to)


def drop(state_dir: Path, to: Console) -> None:
    """Drop what is computed again to the bit; print each entry when it is known what became of it."""
    done = []
    for one in reclaim(state_dir):
        done.append(one)
        what = f"kept: {one.kept}" if one.kept else "dropped: computed again, the same to the bit"
        say(to, f"{_name(one.entry)}  {bytes_text(one.entry.size)}  {what}")
    dropped = [one.entry.size for one in done if not one.kept]
    if done:
        say(to, f"\n{bytes_text(sum(dropped))} dropped")
    _rest(len(done), state_dir, to)


def _row(one: Reclaimable, state: str) -> tuple[str, str, str, str]:
    return _name(one), bytes_text(one.size), counted(one.trials, "trial"), state


def _name(one: Reclaimable) -> str:
    return f"{one.cached.kind} {one.cached.lock.stem}"


def _rest(entries: int, state_dir: Path, to: Console) -> None:
    if not entries:
        say(to, f"{cache_folder()} has nothing that the journals of {state_dir} name: there is nothing to drop.")
    say(to, "Journals, the ledger and MLflow's copy are never touched: they are what the rest is rebuilt from.")
