"""The axis `kind`: the kinds of trial, such as scoring, training and timed generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.core.host import version_of
from zo_sweeps.core.trial import SharedSteps
from zo_sweeps.methods.definition import Definition
from zo_sweeps.methods.precision import Precision

if TYPE_CHECKING:
    from zo_sweeps.methods.estimator import Estimator
    from zo_sweeps.methods.trial_config import TrialConfig

PARTS = 8  # of a minibatch's rows, and of its logits, in a layerwise step


def part_of(count: int) -> int:
    """Return how many of `count` rows, or places of logits, a layerwise step computes at a time."""
    return -(-count // PARTS)


@dataclass(frozen=True)
class Kind(Definition):
    """A kind of trial. Its options are keys of the configuration's part `method`, next to the method's name.

    `text`, `new_tokens`, `top_p` and `demonstrations` are options of the kinds that have a use for them.
    """

    axis: ClassVar[str] = "kind"
    runner: ClassVar[str] = ""  # module:class, imported when a trial begins; see zo_sweeps/run
    of_model: ClassVar[bool] = True  # runs a model on a task's rows; if not, neither is part of the trial
    tools: ClassVar[tuple[str, ...]] = ()  # distributions that it runs; their versions are part of the trial's identity
    extra: ClassVar[str] = ""  # the command that installs them
    trains: ClassVar[bool] = False
    estimates: ClassVar[bool] = False  # trains by zeroth-order estimates: uses estimator, perturbation and evaluation
    backpropagates: ClassVar[bool] = False
    causal_only: ClassVar[str] = ""  # its name in messages, if a masked model cannot do it
    generates: ClassVar[bool] = False
    of_clients: ClassVar[bool] = False  # its rows are divided among clients, which take steps of their own
    resumes: ClassVar[bool] = False  # a further attempt continues after the last recorded step
    parts: ClassVar[tuple[str, ...]] = ()  # parts of the configuration that it uses, besides those used by every kind

    def with_versions(self, versions: Sequence[str]) -> Kind:
        """Return the kind with the versions of its tools, for those that have any."""
        return self

    def problems(self, config: TrialConfig) -> Iterable[str]:
        """Return every reason of its own why a trial cannot run on any machine; see `plan.compatible`."""
        return ()

    def with_files(self, config: TrialConfig, look: bool) -> tuple[Kind, str]:
        """Return (the kind with the fingerprints of its own files, why one is not known); not `look`: with none.

        Raises UserError for a malformed file.
        """
        return self, ""

    def files_read(self, config: TrialConfig) -> Mapping[str, str]:
        """Return file -> fingerprint of its own files, as `with_files` found them."""
        return {}

    def remarks(self, config: TrialConfig, folder: Path | None) -> list[str]:
        """Return its remarks for a plan; `folder` holds the task's rows, None: they are on the hub or absent.

        Raises UserError for rows that it cannot use.
        """
        return []

    @property
    def shared_steps(self) -> SharedSteps | None:
        """How processes share its steps in another way than by points; None: by points, if at all."""
        return None

    @classmethod
    def installed_tools(cls) -> dict[str, str]:
        """Return the versions of those of its tools that are installed here. Cost: a millisecond."""
        return {name: version for name in cls.tools if (version := version_of(name))}

    @property
    def batches(self) -> int:
        """Minibatches of a step of backpropagation."""
        return 1

    def forwards(self, points: int, estimator: Estimator) -> int:
        """Return the forwards of a minibatch per step with so many points at which f is evaluated."""
        return points

    @property
    def copies(self) -> int:
        """Copies of the trainable parameters that a step keeps, besides those of its update and directions."""
        return 0

    @property
    def new_tokens(self) -> int:
        """Tokens generated per round."""
        return 0

    @property
    def text(self) -> str:
        """The text to continue."""
        return ""

    @property
    def top_p(self) -> float | None:
        """The probability of the tokens that the next one is drawn from; None: the most likely one is taken."""
        return None

    @property
    def demonstrations(self) -> int:
        """Solved examples before each prompt."""
        return 0

    @property
    def answers(self) -> int:
        """Answers sampled to each prompt, that a step trains on or of which the best counts; 0: as the task says."""
        return 0

    @property
    def trained_in(self) -> Precision | None:
        """The format in which the model's own weights are trained; None: that of the trial's precision."""
        return None

    @property
    def multiplied_in(self) -> Precision | None:
        """The format of a step's products where it is not the weights' own (mixed precision); None: the weights'."""
        return None

    @property
    def recomputes(self) -> bool:
        """Whether a layer is computed again in the backward pass, so that only its input is kept."""
        return False

    @property
    def is_layerwise(self) -> bool:
        """Whether the backward pass is one layer's at a time, of `part_of` the rows, and moves its parameters then."""
        return False

    @classmethod
    def _called(cls, option: str) -> str:
        return f"method.{option}"
