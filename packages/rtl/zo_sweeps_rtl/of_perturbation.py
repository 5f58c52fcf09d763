"""A perturbation -> the circuit of its generator."""

from __future__ import annotations

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
    for error in kind.refusals(perturbation):
        raise error
    options = {"replays": kind.replays, "reset": kind.reset}
    if isinstance(perturbation, PeZOOnTheFly):
        return ring(perturbation, seed, kind.parameters, factors=kind.factors, **options)
    if isinstance(perturbation, PeZOPool):
        return pool(perturbation, seed, kind.parameters, lanes=kind.lanes, **options)
    make = {"tree": gaussian.tree, "clt": gaussian.clt}[kind.gaussian]
    return make(seed, kind.copies, kind.parameters, **options)
