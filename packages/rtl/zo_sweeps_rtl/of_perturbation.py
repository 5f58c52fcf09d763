"""A perturbation -> the circuit of its generator."""

from __future__ import annotations

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps_rtl import gaussian
from zo_sweeps_rtl.circuit import Circuit
from zo_sweeps_rtl.pool import pool
from zo_sweeps_rtl.ring import ring
from zo_sweeps_rtl.synthesis import Synthesis


def circuit(perturbation: Perturbation, seed: int, kind: Synthesis) -> Circuit:
    """Return the circuit of a perturbation. Raises UserError if there is none, or not with these options."""
    options = {"replays": kind.replays, "reset": kind.reset}
    if isinstance(perturbation, PeZOOnTheFly):
        return ring(perturbation, seed, kind.parameters, factors=kind.factors, **options)
    if isinstance(perturbation, PeZOPool):
        return pool(perturbation, seed, kind.parameters, lanes=kind.lanes, **options)
    if isinstance(perturbation, Gaussian):
        return {"tree": gaussian.tree, "clt": gaussian.clt}[kind.gaussian](
            seed, kind.copies, kind.parameters, **options
        )
    having = [one.name for one in (PeZOOnTheFly, PeZOPool, Gaussian)]
    raise UserError(f"no circuit of perturbation {perturbation.name!r}", choices=having, fix="set perturbation=NAME")
