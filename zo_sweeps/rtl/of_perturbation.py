"""A perturbation -> the circuit of its generator."""

from __future__ import annotations

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.methods.kinds.synthesis import Synthesis
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.rtl import gaussian
from zo_sweeps.rtl.circuit import Circuit
from zo_sweeps.rtl.pool import pool
from zo_sweeps.rtl.ring import ring


def circuit(perturbation: Perturbation, seed: int, kind: Synthesis) -> Circuit:
    """Return the circuit of a perturbation. Raises UserError if there is none, or not with these options."""
    if isinstance(perturbation, PeZOOnTheFly):
        return ring(perturbation, seed, kind.parameters, factors=kind.factors, replays=kind.replays)
    if isinstance(perturbation, PeZOPool):
        return pool(perturbation, seed, kind.parameters, lanes=kind.lanes, replays=kind.replays)
    if isinstance(perturbation, Gaussian):
        if kind.replays:
            raise UserError("a generator of Gaussian numbers is not built to replay", fix="set method.replays=false")
        return {"tree": gaussian.tree, "clt": gaussian.clt}[kind.gaussian](seed, kind.copies)
    having = [one.name for one in (PeZOOnTheFly, PeZOPool, Gaussian)]
    raise UserError(f"no circuit of perturbation {perturbation.name!r}", choices=having, fix="set perturbation=NAME")
