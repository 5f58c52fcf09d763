"""The commands that hand results on, take them in and check them: export, verify, import, check."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Sequence
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from zo_sweeps.cli.parser import Parser, grid_parser, parse, read, trial_ids
from zo_sweeps.cli.text import console, say
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.units import counted
from zo_sweeps.record import archive
from zo_sweeps.record.archive import Archive
from zo_sweeps.record.sweep_book import Command
from zo_sweeps.results.exchange import go_on, share, take_in, unbacked
from zo_sweeps.schedule.ledger import read_standing

if TYPE_CHECKING:
    from zo_sweeps.session.verify import Finding


def export(given: Sequence[str]) -> int:
    """Write a sweep's results as one file that others can verify; with a trial's id, the weights of that trial."""
    parser = grid_parser("export", export.__doc__)
    text = "the file; of weights, a new or empty folder"
    parser.add_argument("--out", type=expanduser, required=True, metavar="FILE|DIR", help=text)
    parser.add_argument("--by", default="", metavar="NAME", help="of results: whose they are")
    text = "of results: private Ed25519 key that signs them, as ssh-keygen's"
    parser.add_argument("--key", type=expanduser, metavar="FILE", help=text)
    text = "of weights: the whole model with them, instead of an adapter (PEFT)"
    parser.add_argument("--merge", action="store_true", help=text)
    options = parse(parser, given)
    ids = trial_ids(options)
    if not ids:
        return _export_results(options)
    if len(ids) > 1:
        raise UserError(f"{len(ids)} trials to export", fix="give one id, as `plan --trials` lists them")
    if options.by or options.key:
        raise UserError("weights are not signed", where="--by, --key", fix="leave the id out to export results")
    from zo_sweeps.session.export import other_than_scored, save_adapter

    state_dir = Composer(options.overrides, options.config_dir).run.state_dir
    print(save_adapter(ids[0], options.out, state_dir, merge=options.merge))
    if differs := other_than_scored(ids[0], state_dir, options.merge):
        print(f"note: {differs}", file=sys.stderr)
    return 0


def _export_results(options: Namespace) -> int:
    if options.merge:
        raise UserError("no trial to merge the weights of", where="--merge", fix="give a trial's id")
    reading, path, to = read(options), Path(options.out), console()
    key = Path(options.key) if options.key else None
    written = share(reading.plan, reading.composer, path, by=options.by, key=key)
    trials = sum(name.startswith("journal/") for name in written.files)
    say(to, f"{path}   {counted(trials, 'trial')}, {path.stat().st_size / 1000:.0f} kB")
    say(to, f"signed: {archive.key_fingerprint(written.key)}" if written.key else "not signed; --key KEY signs it")
    say(to, f"next: python -m zo_sweeps verify {shlex.quote(str(path))}")
    return 0


def verify(given: Sequence[str]) -> int:
    """Compute the results in a file of `export` again, on your copies of model and data; exit 1 if any differ."""
    parser = Parser(prog="python -m zo_sweeps verify", description=verify.__doc__)
    parser.add_argument("file", type=expanduser, metavar="FILE")
    parser.add_argument("trials", nargs="*", metavar="TRIAL_ID", help="these alone; default: all")
    parser.add_argument("--key", type=expanduser, metavar="FILE", help="public key that must have signed it")
    text = "your copy of its model, if that does not ship; of several, once each"
    parser.add_argument("--model", action="append", type=expanduser, default=[], metavar="DIR", help=text)
    parser.add_argument("--data", type=expanduser, metavar="DIR", help="your copy of its data, as data.dir")
    text = "your copy of its members"
    parser.add_argument("--config-dir", action="append", type=expanduser, default=[], metavar="FOLDER", help=text)
    options = parser.parse_intermixed_args(list(given))
    from zo_sweeps.session.verify import Copies
    from zo_sweeps.session.verify import verify as compute

    key, data = (Path(name) if name else None for name in (options.key, options.data))
    source = archive.read(Path(options.file), key)
    findings = compute(source, Copies([*map(Path, options.model)], data, options.config_dir), options.trials)
    return _verified(source, options.file, findings, console())


def _verified(source: Archive, file: str, findings: Iterable[Finding], to: Console) -> int:
    """Print findings as they come, and what they come to; return 1 if anything is wrong or missing, otherwise 0."""
    from zo_sweeps.session.verify import Verdict

    say(to, f"{file}: {source.title}, by {source.whose}")
    marks = {Verdict.PROVED: "ok", Verdict.ROUNDED: "≈", Verdict.ATTESTED: "–"}
    marks |= {Verdict.MISSING: "?", Verdict.WRONG: "WRONG"}
    counts: Counter[Verdict] = Counter()
    for finding in findings:
        counts[finding.verdict] += bool(finding.trial_id) or finding.verdict is not Verdict.ATTESTED  # it names none
        say(to, f"{marks[finding.verdict]:5}  {finding.trial_id}{'  ' * bool(finding.trial_id)}{finding.text}")
    proved, rounded, attested, missing, wrong = (counts[verdict] for verdict in marks)
    parts = [f"{counted(proved, 'trial')} computed again, with the same weights and scores"]
    parts += [f"{rounded} with weights or scores that this machine rounds in another way (≈)"] * bool(rounded)
    parts += [f"{attested} that cannot be (–)"] * bool(attested)
    parts += [f"{missing} that need your copies (?)"] * bool(missing) + [f"{wrong} WRONG"] * bool(wrong)
    say(to, f"{'not verified' if wrong or missing else 'verified'}: {', '.join(parts)}")
    return int(wrong + missing > 0)


def import_(given: Sequence[str]) -> int:
    """Show the results in a file of `export` below your own, in the tables of the same grid, labelled."""
    parser = grid_parser("import", import_.__doc__)
    text = "private key that signed it: its trials become your own, and a sweep goes on from there"
    parser.add_argument("--own", type=expanduser, metavar="FILE", help=text)
    parser.add_argument("--key", type=expanduser, metavar="FILE", help="public key that must have signed it")
    options = parse(parser, given)
    files = trial_ids(options)
    if len(files) != 1:
        raise UserError(f"{len(files)} files to import", fix="give one file, as `export` writes it")
    composer, to = Composer(options.overrides, options.config_dir), console()
    source = archive.read(Path(expanduser(files[0])), Path(options.key) if options.key else None)
    if options.own:
        n = go_on(source, composer.run.folder, composer, Path(options.own))
        where = composer.run.state_dir
        say(to, f"{counted(n, 'trial')} of {source.title} new in {where}; the sweep's own command goes on there")
        return 0
    made = take_in(source, composer.run.folder, composer)
    others = [text for text in options.overrides if not text.startswith("+grid=")]
    table = Command.of([f"+grid={source.grid}", *others], options.config_dir).table
    say(to, f"{'imported' if made.new else 'imported before'}: {source.title}, {counted(made.trials, 'trial')}")
    say(to, f"by {source.whose}")
    say(to, f"`{table}` shows its rows below your own; to undo, remove {made.folder}")
    return 0


def check(given: Sequence[str]) -> int:
    """Exit 1 if a cell of a grid's tables has fewer finished seeds behind it than --n, for the CI of a paper."""
    parser = grid_parser("check", check.__doc__)
    parser.add_argument("--n", type=int, required=True, metavar="SEEDS", help="finished seeds that every cell needs")
    options = parse(parser, given)
    if options.n < 1:
        raise UserError(f"--n {options.n} is no number of seeds", fix="give 1 or more")
    reading, to = read(options), console()
    plan = reading.plan
    if not plan.grid.tables:
        raise UserError(f"grid {plan.name} has no tables to check")
    lines = list(unbacked(plan, reading.composer, read_standing(plan.config.folder), options.n))
    for line in lines:
        say(to, line)
    seeds = f"{options.n} finished seed{'s' * (options.n > 1)}"
    backed = f"{counted(len(lines), 'cell')} not backed by {seeds}" if lines else ""
    say(to, f"{plan.name}: {backed or f'every cell of its tables is backed by {seeds} or more'}")
    return int(bool(lines))
