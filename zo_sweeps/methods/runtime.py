"""The axis `runtime`: what computes the steps and scores of a device's trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from zo_sweeps.core.files import Cached
from zo_sweeps.core.memory_parts import Part
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import Definition

if TYPE_CHECKING:
    from zo_sweeps.methods.trial_config import TrialConfig


@dataclass(frozen=True)
class Runtime(Definition):
    """A runtime, named by `device.runtime`. A trial has the same trial_id on each: they differ by rounding alone."""

    axis: ClassVar[str] = "runtime"

    def refuses(self, config: TrialConfig) -> Iterator[str]:
        """Yield every reason why a trial cannot run on it, in a line that names what to use."""
        yield from ()

    def runner(self, config: TrialConfig, away: bool) -> str:
        """Return the `module:class` of the trial's runner.

        Args:
            away: whether the steps run on another machine, and their log is read here.
        """
        raise NotImplementedError

    def memory(
        self, config: TrialConfig, arch: Arch, parts: Mapping[Part, float], points: int, trainable: int
    ) -> tuple[Mapping[Part, float], int, int]:
        """Estimate (the peak of a step by part, the peak bytes of what precedes it, those of a client's process alone).

        Args:
            parts: of the same step in PyTorch; see `devices.estimate.memory_by_part`.
            points: per forward.
            trainable: number of trained parameters.
        """
        return parts, 0, 0

    def prepare(self, bench: Any, space: Any) -> None:
        """Make what a trial needs before its first step and keep it in the cache folder.

        Args:
            bench: `zo_sweeps.run.workbench.Workbench`, loaded; space: as it is installed in its model.
        """

    def prepared(self) -> Iterator[Cached]:
        """Iterate over what `prepare` has left in the cache folder."""
        yield from ()

    def prepared_for(self, config: TrialConfig, code: str) -> Iterator[tuple[str, str]]:
        """Yield (kind, mark) of each entry of `prepared` that a trial has used; `code`: as in its journal."""
        yield from ()

    def trial_of_log(self, folder: Path) -> str:
        """Return the trial whose log is in `folder` (`device.log`); "" where that cannot be read here."""
        return ""
