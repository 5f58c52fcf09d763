"""The commands about this machine: doctor, gc, bench."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path

from zo_sweeps.cli.parser import Parser, grid_parser, parse
from zo_sweeps.core.errors import UserError


def doctor(given: Sequence[str]) -> int:
    """Check this machine: versions, devices, memory, disk, ports, hub."""
    options = parse(grid_parser("doctor", doctor.__doc__), given)
    from zo_sweeps.cli.show import host_checks
    from zo_sweeps.cli.show.text import console
    from zo_sweeps.config.composer import Composer

    return host_checks.doctor(Composer(options.overrides, options.config_dir).run.state_dir, console())


def gc(given: Sequence[str]) -> int:
    """Show what the cache holds for finished trials and can be computed again; --yes proves that, and drops it."""
    parser = grid_parser("gc", gc.__doc__)
    parser.add_argument(
        "--yes", action="store_true", help="compute each entry again, and drop it if its bytes are the same"
    )
    options = parse(parser, given)
    from zo_sweeps.cli.show import reclaim
    from zo_sweeps.cli.show.text import console
    from zo_sweeps.config.composer import Composer

    folder, to = Composer(options.overrides, options.config_dir).run.folder, console()
    if options.yes:
        reclaim.drop(folder, to)
    else:
        reclaim.show_reclaimable(folder, to)
    return 0


def bench(given: Sequence[str]) -> int:
    """Benchmark the engine (noise, step, memory, replay); packages and `python -m benchmarks` have more."""
    parser = Parser(prog="python -m zo_sweeps bench", description=bench.__doc__)
    parser.add_argument(
        "part",
        nargs="?",
        default="all",
        metavar="noise|step|memory|replay|all|programs|agents|compare",
    )
    text = "compare: two files that --json wrote, A and B; exits 1 if a goal that A reached is not reached in B"
    parser.add_argument("files", nargs="*", type=expanduser, metavar="FILE", help=text)
    parser.add_argument("--rounds", type=int, default=5, help="repetitions per measurement; the minimum is reported")
    parser.add_argument(
        "--json", type=expanduser, metavar="FILE", help="also write the numbers, with this machine's name, to FILE"
    )
    options = parser.parse_intermixed_args(list(given))
    from zo_sweeps.cli.show.text import console, say

    if options.part == "compare":
        return _compare(options.files)
    if options.files:
        raise UserError(f"bench {options.part} takes no files", fix="bench compare A.json B.json does")
    from zo_sweeps.bench import measure

    rows = measure.run(options.part, options.rounds)
    say(console(), measure.text(rows))
    if options.json:
        measure.write(rows, Path(options.json))
    return 0


def _compare(files: Sequence[str]) -> int:
    if len(files) != 2:
        raise UserError(f"{len(files)} files to compare", fix="bench compare A.json B.json")
    from zo_sweeps.bench.measure import read
    from zo_sweeps.cli.show import bench as show
    from zo_sweeps.cli.show.text import console

    a, b = map(read, map(Path, files))
    return show.compare(a, b, console())
