"""The commands that hand results on, take them in and check them: export, verify, import, check."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path

from zo_sweeps.cli.parser import Parser, grid_parser, parse, read, trial_ids
from zo_sweeps.core.errors import UserError


def export(given: Sequence[str]) -> int:
    """Write a sweep's results as one file that others can verify; with a trial's id, the weights of that trial."""
    parser = grid_parser("export", export.__doc__)
    parser.add_argument(
        "--out", type=expanduser, required=True, metavar="FILE|DIR", help="the file; of weights, a new or empty folder"
    )
    parser.add_argument("--by", default="", metavar="NAME", help="of results: whose they are")
    parser.add_argument(
        "--key",
        type=expanduser,
        metavar="FILE",
        help="of results: private Ed25519 key that signs them, as ssh-keygen's",
    )
    parser.add_argument(
        "--merge", action="store_true", help="of weights: the whole model with them, instead of an adapter (PEFT)"
    )
    options = parse(parser, given)
    ids = trial_ids(options)
    if not ids:
        return _export_results(options)
    if len(ids) > 1:
        raise UserError(f"{len(ids)} trials to export", fix="give one id, as `plan --trials` lists them")
    if options.by or options.key:
        raise UserError("weights are not signed", where="--by, --key", fix="leave the id out to export results")
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.session.export import save_adapter

    state_dir = Composer(options.overrides, options.config_dir).run.state_dir
    print(save_adapter(ids[0], options.out, state_dir, merge=options.merge))
    return 0


def _export_results(options: Namespace) -> int:
    if options.merge:
        raise UserError("no trial to merge the weights of", where="--merge", fix="give a trial's id")
    from zo_sweeps.cli.show import share as show
    from zo_sweeps.cli.show.text import console
    from zo_sweeps.results.exchange import share

    reading, path = read(options), Path(options.out)
    key = Path(options.key) if options.key else None
    written = share(reading.plan, reading.composer, path, by=options.by, key=key)
    show.archive(written, path, sum(name.startswith("journal/") for name in written.files), console())
    return 0


def verify(given: Sequence[str]) -> int:
    """Compute the results in a file of `export` again, on your copies of model and data; exit 1 if any differ."""
    parser = Parser(prog="python -m zo_sweeps verify", description=verify.__doc__)
    parser.add_argument("file", type=expanduser, metavar="FILE")
    parser.add_argument("trials", nargs="*", metavar="TRIAL_ID", help="these alone; default: all")
    parser.add_argument("--key", type=expanduser, metavar="FILE", help="public key that must have signed it")
    parser.add_argument("--model", type=expanduser, metavar="DIR", help="your copy of its model, if that does not ship")
    parser.add_argument("--data", type=expanduser, metavar="DIR", help="your copy of its data, as data.dir")
    parser.add_argument(
        "--config-dir", action="append", type=expanduser, default=[], metavar="FOLDER", help="your copy of its members"
    )
    options = parser.parse_intermixed_args(list(given))
    from zo_sweeps.cli.show import share as show
    from zo_sweeps.cli.show.text import console
    from zo_sweeps.record.archive import read
    from zo_sweeps.session.verify import Copies
    from zo_sweeps.session.verify import verify as compute

    key, model, data = (Path(name) if name else None for name in (options.key, options.model, options.data))
    source = read(Path(options.file), key)
    copies = Copies(model, data, options.config_dir)
    findings = compute(source, copies, options.trials)
    return show.verification(source, Path(options.file), findings, console())


def import_(given: Sequence[str]) -> int:
    """Show the results in a file of `export` below your own, in the tables of the same grid, labelled."""
    parser = grid_parser("import", import_.__doc__)
    parser.add_argument("--key", type=expanduser, metavar="FILE", help="public key that must have signed it")
    options = parse(parser, given)
    files = trial_ids(options)
    if len(files) != 1:
        raise UserError(f"{len(files)} files to import", fix="give one file, as `export` writes it")
    from zo_sweeps.cli.show import share as show
    from zo_sweeps.cli.show.text import console
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.record.archive import read
    from zo_sweeps.record.commands import Command
    from zo_sweeps.results.imported import take_in

    composer = Composer(options.overrides, options.config_dir)
    source = read(Path(expanduser(files[0])), Path(options.key) if options.key else None)
    made = take_in(source, composer.run.folder, composer)
    where = Command.of([f"+grid={source.grid}", *options.overrides], options.config_dir)
    show.imported(source, made, where.table, console())
    return 0


def check(given: Sequence[str]) -> int:
    """Exit 1 if a cell of a grid's tables has fewer finished seeds behind it than --n, for the CI of a paper."""
    parser = grid_parser("check", check.__doc__)
    parser.add_argument("--n", type=int, required=True, metavar="SEEDS", help="finished seeds that every cell needs")
    options = parse(parser, given)
    if options.n < 1:
        raise UserError(f"--n {options.n} is no number of seeds", fix="give 1 or more")
    from zo_sweeps.cli.show import share as show
    from zo_sweeps.cli.show.text import console

    reading = read(options)
    return show.unbacked(reading.plan, reading.composer, options.n, console())
