"""Interpolations in configuration files: those that read anything outside of the configuration are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from zo_sweeps.core.errors import UserError

OUTSIDE = ("oc.env", "now", "python_version", "hydra")  # the environment, the clock, this Python, Hydra's own state


@contextmanager
def closed() -> Iterator[None]:
    """Refuse `${oc.env:NAME}` and its kind while the block runs: a value read there would be printed and stored."""
    from hydra.core.utils import setup_globals
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    for name in OUTSIDE:
        OmegaConf.register_new_resolver(name, _refuse(name), replace=True)
    try:
        yield
    finally:  # the resolvers belong to the whole process
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
        setup_globals()


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(*arguments: object) -> NoReturn:
        what = f"${{{name}:{','.join(map(str, arguments))}}} reads something outside of the configuration"
        raise UserError(what, fix="write the value itself, or give it on the command line")

    return refuse
