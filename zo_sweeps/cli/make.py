"""The commands that write something for other hardware: package, export-program."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import expanduser

from zo_sweeps.cli.parser import grid_parser, parse, with_grid


def package(given: Sequence[str]) -> int:
    """Quantize a model into a folder for boards: codes, tokenizer, and with space=sensitive the mask of a text."""
    parser = grid_parser("package", package.__doc__)
    parser.add_argument("--out", type=expanduser, required=True, metavar="DIR", help="a new or empty folder")
    options = parse(parser, given)
    from zo_sweeps.cli.show.stages import Stages
    from zo_sweeps.cli.show.text import console
    from zo_sweeps.results.packaging import package as quantize

    with Stages(console()) as stages:
        made = quantize(options.overrides, options.config_dir, options.out, stages.update)
    print(f"{made.folder}   package:{made.contents.fingerprint}")
    print(f"copy it to the board, and use it there as model=local model.path={made.folder}")
    return 0


def export_program(given: Sequence[str]) -> int:
    """Export a trial as a program and its data, for a board or phone that has only an inference engine."""
    parser = grid_parser("export-program", export_program.__doc__)
    parser.add_argument(
        "--row", default="", metavar="ROW", help="the row of the grid: a key of its blocks, or its label"
    )
    parser.add_argument("--out", type=expanduser, required=True, metavar="DIR", help="a new or empty folder")
    options = parse(parser, given)
    from zo_sweeps.results import programs

    overrides = with_grid(options.overrides)
    folder, manifest, back = programs.export_program(overrides, options.config_dir, options.out, options.row)
    settings = manifest.settings
    print(f"{folder}   trial {settings.trial_id}   {settings.steps} steps")
    print("its README.md says how to run it; then read its log back here:")
    print(f"  {back}")
    return 0
