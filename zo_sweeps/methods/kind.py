"""The axis `kind`: what a trial does with its method: evaluate, train, generate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.definition import Definition


@dataclass(frozen=True)
class Kind(Definition):
    """What a trial does. Its options stand in the configuration's part `method`, beside the method's name."""

    axis: ClassVar[str] = "kind"
    runner: ClassVar[str] = ""  # module:class, found when a trial begins; see zo_sweeps/run
    trains: ClassVar[bool] = False
    estimates: ClassVar[bool] = False  # by zeroth-order estimates: estimator, perturbation and evaluation are used
    backpropagates: ClassVar[bool] = False
    causal_only: ClassVar[str] = ""  # what it is called where a masked model cannot do it
    generates: ClassVar[bool] = False
    resumes: ClassVar[bool] = False  # a further attempt goes on after the last step that was recorded
    parts: ClassVar[tuple[str, ...]] = ()  # parts of the configuration that it uses, beyond those that every kind uses

    @property
    def generated(self) -> int:
        """Tokens that it generates in a round."""
        return 0

    @property
    def prompt(self) -> str:
        """The text that it continues."""
        return ""

    @property
    def shown(self) -> int:
        """Solved examples before each prompt."""
        return 0

    @classmethod
    def _called(cls, option: str) -> str:
        return f"method.{option}"
