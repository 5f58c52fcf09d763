"""The command that writes something for other hardware: package."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import expanduser

from zo_sweeps.cli.parser import grid_parser, parse


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
