"""The one configuration of a command line without a grid."""

from __future__ import annotations

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.expand import Setting
from zo_sweeps.plan.overrides import Overrides
from zo_sweeps.plan.resolve import Options, Parts, resolve


def single(composer: Composer, made: str, of: str) -> TrialConfig:
    """Return the one configuration that a command line without a grid describes.

    Args:
        made, of: what is made of it, for messages: "a package" of one "model".

    Raises UserError for a grid, several values of an option, and keys that no member has.
    """
    if composer.command_line.grid:
        raise UserError(f"{made} is of one {of}, not of a grid", fix="leave +grid out")
    choices, values = composer.forced.choices, composer.forced.values
    if several := next((key for key, given in {**choices, **values}.items() if len(given) > 1), ""):
        raise UserError(f"{several} has several values", fix=f"{made} takes one of each")
    single = Setting({key: given[0] for key, given in choices.items()}, {k: v[0] for k, v in values.items()}, {})
    options = Options()
    config = resolve(composer, single, options, Parts())
    if wrong := options.unknown(composer, Overrides(composer)):
        raise UserError(wrong[0])
    return config
