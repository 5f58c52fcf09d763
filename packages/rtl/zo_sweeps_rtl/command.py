"""The command `rtl`: the command line -> the folder of a perturbation's circuit."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from os.path import expanduser
from pathlib import Path

from zo_sweeps.cli.parser import grid_parser, parse
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.plan.availability import Places
from zo_sweeps.plan.compatible import incompatible
from zo_sweeps.session.export import new_or_empty
from zo_sweeps.session.packaging import single
from zo_sweeps_rtl.synthesis import Synthesis


def rtl(given: Sequence[str]) -> int:
    """Write a perturbation's generator as a circuit: Verilog, a test bench, constraints, and what open tools count."""
    parser = grid_parser("rtl", rtl.__doc__)
    parser.add_argument("--rngs", type=int, metavar="N", help="registers of an array, 2^k - 1; default: 31")
    parser.add_argument("--bits", type=int, metavar="B", help="bits of a register; default: 8")
    parser.add_argument("--clocks", type=int, default=10_000, help="clocks of the test bench; default: 10000")
    parser.add_argument("--out", type=expanduser, required=True, metavar="DIR", help="a new or empty folder")
    options = parse(parser, given)
    size = {"rngs": options.rngs, "bits": options.bits}
    folder, text = write_circuit(options.overrides, options.config_dir, options.out, size, options.clocks)
    print(f"{text}\n{folder}")
    return 0


def write_circuit(
    overrides: Sequence[str],
    config_dirs: Sequence[str],
    folder: str | Path,
    size: Mapping[str, int | None],
    clocks: int,
) -> tuple[Path, str]:
    """Write the circuit that a command line describes, after it was simulated and synthesised here.

    Return its folder, and the text of its README.md.

    Args:
        overrides: perturbation=NAME (default: pezo_onthefly), its options, and method.OPTION.
        folder: absent or empty.
        size: `rngs`, the registers of an array, 2^k - 1, and `bits` of one; None: by the overrides.
        clocks: of the test bench that is written.

    Raises UserError for bad input, without the tools, and if the simulation differs from the engine's integers.
    """
    if clocks < 1:
        raise UserError(f"--clocks must be at least 1, not {clocks}")
    chosen = {text.partition("=")[0].lstrip("+") for text in overrides} & {"perturbation", "perturbation.name"}
    given = ["method=rtl", "device=rtl", *([] if chosen else ["perturbation=pezo_onthefly"]), *overrides]
    if (rngs := size["rngs"]) is not None:
        if rngs < 3 or rngs & (rngs + 1):
            raise UserError(f"--rngs must be 2^k - 1, not {rngs}", fix="use 3, 7, 15, 31, 63, ...")
        given.append(f"perturbation.k={rngs.bit_length()}")
    if size["bits"] is not None:
        given.append(f"perturbation.bits={size['bits']}")
    config = single(Composer(given, config_dirs), "a circuit", "perturbation")
    kind = config.method.kind
    if rngs is not None and not isinstance(config.perturbation, PeZOOnTheFly):
        raise UserError(f"--rngs are registers of perturbation=pezo_onthefly, not of {config.perturbation.name}")
    if wrong := incompatible(config):
        raise UserError(wrong[0])
    if not isinstance(kind, Synthesis):
        raise UserError(f"method {config.method.name!r} makes no circuit", fix="use method=rtl")
    if reasons := Places().look(config).reasons:
        raise UserError(reasons[0])
    target = new_or_empty(Path(folder).expanduser())
    from zo_sweeps_rtl import bundle, tools
    from zo_sweeps_rtl.of_perturbation import circuit

    made = circuit(config.perturbation, config.seed, kind)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        tools.simulated(made, scratch, kind.clocks)
        counted = tools.synthesised(made, scratch), tools.placed(made, scratch, kind.placements)
    figures = {name: value for result in counted for name, value in result.figures.items()}
    return target, bundle.write(made, target, clocks, figures)
