"""The output of `export`, `verify`, `import` and `check`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from zo_sweeps.cli.show.text import say
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.plan.build import Plan
from zo_sweeps.record.archive import Archive, key_fingerprint
from zo_sweeps.results.imported import Imported
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps.session.verify import Finding, Verdict


def archive(written: Archive, path: Path, trials: int, console: Console) -> None:
    """Print what an archive that was written holds, and the next command."""
    by = f"signed: {key_fingerprint(written.key)}" if written.key else "not signed; --key KEY signs it"
    say(console, f"{path}   {trials} trials, {path.stat().st_size / 1000:.0f} kB")
    say(console, by)
    say(console, f"next: python -m zo_sweeps verify {shlex.quote(str(path))}")


def verification(source: Archive, file: Path, findings: Iterable[Finding], console: Console) -> int:
    """Print findings as they come, and what they come to; return 1 if anything is wrong, otherwise 0."""
    say(console, f"{file}: {source.title}, by {source.whose}")
    marks = {Verdict.PROVED: "ok", Verdict.ATTESTED: "–", Verdict.WRONG: "WRONG"}
    counts: Counter[Verdict] = Counter()
    for finding in findings:
        counts[finding.verdict] += 1
        line = f"{marks[finding.verdict]:5}  {finding.trial_id}{'  ' * bool(finding.trial_id)}{finding.text}"
        say(console, line)
    parts = [f"{counts[Verdict.PROVED]} trials computed again, with the same weights and scores"]
    if counts[Verdict.ATTESTED]:
        parts.append(f"{counts[Verdict.ATTESTED]} that cannot be (–)")
    if counts[Verdict.WRONG]:
        parts.append(f"{counts[Verdict.WRONG]} WRONG")
    say(console, f"{'not verified' if counts[Verdict.WRONG] else 'verified'}: {', '.join(parts)}")
    return 1 if counts[Verdict.WRONG] else 0


def imported(source: Archive, made: Imported, table: str, console: Console) -> None:
    """Print what was imported, the command that shows it, and how to undo it."""
    say(console, f"{'imported' if made.new else 'imported before'}: {source.title}, {made.trials} trials")
    say(console, f"by {source.whose}")
    say(console, f"`{table}` shows its rows below your own; to undo, remove {made.folder}")


def unbacked(planned: Plan, composer: Composer, n: int, console: Console) -> int:
    """Print the cells that fewer than `n` finished seeds are behind; return 1 if there are any, otherwise 0."""
    from zo_sweeps.results.exchange import unbacked as lacking

    if not planned.grid.tables:
        raise UserError(f"grid {planned.name} has no tables to check")
    lines = list(lacking(planned, composer, read_standing(planned.config.folder), n))
    for line in lines:
        say(console, line)
    seeds = f"{n} finished seed{'s' * (n > 1)}"
    if lines:
        say(console, f"{planned.name}: {len(lines)} cells are not backed by {seeds}")
    else:
        say(console, f"{planned.name}: every cell of its tables is backed by {seeds} or more")
    return 1 if lines else 0
