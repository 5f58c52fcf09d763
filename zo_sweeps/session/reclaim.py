"""What the cache folder holds for the trials of a state folder, and dropping what is proven to be computed again.

A state folder itself holds nothing to drop: journals and ledger are what all else is rebuilt from, and MLflow's copy
and the reports in it are small. Large are masks, codes, exported programs and converted GGUF files, which the first
trial that needs them leaves in the cache folder of its machine. A journal names masks and codes by their fingerprints,
and the code that a program was exported by; a trial names its model.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ComputedCodes, ComputedMask, Event, Start
from zo_sweeps.core.files import Cached, cache_at, cache_folder
from zo_sweeps.core.trial import Trial
from zo_sweeps.methods.registry import members
from zo_sweeps.methods.runtime import Runtime
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.sweep_book import books
from zo_sweeps.schedule.ledger import Ledger, must_have_run, read_standing


@dataclass(frozen=True)
class Reclaimable:
    """An entry of the cache folder that trials of a state folder have used.

    Args:
        of: some of these trials, one of each task: one of them computes the entry again.
        trials: how many have used it, or a program of other rows alone.
        waiting: how many of them have no result yet, and will read it.
        size: in bytes.
    """

    cached: Cached
    of: tuple[Trial, ...]
    trials: int
    waiting: int
    size: int


def reclaimable(state_dir: Path) -> list[Reclaimable]:
    """Return what this machine's cache holds for the trials of a state folder, largest first.

    Raises UserError if nothing has been run there, or a journal is damaged. Cost: reads the journals.
    """
    from zo_sweeps.models import gguf, mask_store
    from zo_sweeps.run import packages

    must_have_run(state_dir)
    standing, store = read_standing(state_dir), JournalStore(state_dir)
    users: dict[tuple[str, str], dict[str, Trial]] = {}
    for trial in {trial.trial_id: trial for book in books(state_dir) for trial in book.trials}.values():
        for name in _names(trial, store.read(trial.trial_id)):
            users.setdefault(name, {})[trial.trial_id] = trial
    found = []
    runtimes = (made for one in members("runtime").values() if isinstance(made := one(), Runtime))
    prepared = (entry for runtime in runtimes for entry in runtime.prepared())
    for cached in (*mask_store.stored(), *packages.stored(), *gguf.stored(), *prepared):
        if trials := users.get((cached.kind, cached.mark)):
            waiting = sum(not standing.has_result(trial_id) for trial_id in trials)
            of = tuple({trial.task: trial for trial in trials.values()}.values())
            with contextlib.suppress(OSError):  # a file is missing: the next trial computes it again
                found.append(Reclaimable(cached, of, len(trials), waiting, cached.bytes))
    return sorted(found, key=lambda entry: (-entry.size, entry.cached.files))


def _names(trial: Trial, events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    """Yield (kind, mark) of each entry that a trial has used."""
    yield "converted", trial.config.to_json().get("model", {}).get("fingerprint", "")
    for event in events:
        if isinstance(event, ComputedMask):
            yield "mask", event.fingerprint
        elif isinstance(event, ComputedCodes):
            yield "codes", event.fingerprint
        elif isinstance(event, Start) and event.code:
            with contextlib.suppress(UserError):  # members that are not on this machine
                config = TrialConfig.of(trial.config)
                if runtime := config.device.installed_runtime:
                    yield from runtime.prepared_for(config, event.code)


def reclaim(state_dir: Path) -> Iterator[tuple[Reclaimable, str]]:
    """Compute each entry of `reclaimable` again, in an empty cache folder, and drop it if its bytes are the same.

    Yields each with why it was kept; "" if it was dropped.

    Entries that waiting trials need are kept, and those that are not computed here to the bit. Holds the lock of the
    state folder. A trial of another sweep that is loading an entry at that moment fails, and computes it when it is
    retried.

    Raises UserError if a sweep runs in the state folder, and as `reclaimable`. Cost: for each entry as of a trial's
    start without it: the model, and the gradients of its samples, the quantization or the export. Disk: the entry.
    """
    must_have_run(state_dir)
    with Ledger(state_dir):
        for entry in reclaimable(state_dir):
            yield entry, "needed by trials without a result" if entry.waiting else _drop(entry, state_dir)


def _drop(entry: Reclaimable, state_dir: Path) -> str:
    """Drop an entry if one of its trials computes it again to the bit; return why it was kept, or ""."""
    from zo_sweeps.run.run_trial import set_up

    with tempfile.TemporaryDirectory(prefix="gc-", dir=cache_folder()) as name:
        folder = Path(name)
        for trial in entry.of:
            try:
                with cache_at(folder):
                    set_up(trial, JournalStore(state_dir).read(trial.trial_id))
            except Exception as error:  # whatever it is, the entry is not proven
                what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                return f"cannot be computed here: {what.splitlines()[0]}"
            if (folder / entry.cached.files[0]).is_file():
                break
        else:
            return "computed under another name here: another kind of device, other versions or other settings"
        with entry.cached.held():
            if not entry.cached.is_same(folder):
                return "computed with other bytes here"
            entry.cached.drop()
    return ""
