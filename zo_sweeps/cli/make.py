"""The commands that write something for other hardware: package, export-program, rtl."""

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


def rtl(given: Sequence[str]) -> int:
    """Write a perturbation's generator as a circuit: Verilog, a test bench, constraints, and what open tools count."""
    parser = grid_parser("rtl", rtl.__doc__)
    parser.add_argument("--rngs", type=int, metavar="N", help="registers of an array, 2^k - 1; default: 31")
    parser.add_argument("--bits", type=int, metavar="B", help="bits of a register; default: 8")
    parser.add_argument("--clocks", type=int, default=10_000, help="clocks of the test bench; default: 10000")
    parser.add_argument("--out", type=expanduser, required=True, metavar="DIR", help="a new or empty folder")
    options = parse(parser, given)
    from zo_sweeps.results.circuits import write_circuit

    size = {"rngs": options.rngs, "bits": options.bits}
    made = write_circuit(options.overrides, options.config_dir, options.out, size, options.clocks)
    print(made.text, end="")
    print(f"\n{made.folder}")
    return 0
