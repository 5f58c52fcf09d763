"""Generation of texts that are rewarded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.metric import Of
from zo_sweeps.methods.reward import Reward
from zo_sweeps.methods.task import Dialect, Task
from zo_sweeps.methods.task_kind import KindExample
from zo_sweeps.tasks.kinds.generation import Generation


@dataclass(frozen=True)
class Verified(Generation):
    """Generation of a text whose score is a function of the text and the row: the sum of the task's rewards.

    The dialect's one option is a right answer, or any: losses and demonstrations are of it. Each text of a row's
    `samples` has noise of its own, addressed by (seed, step, place in the minibatch, token), so that a step's texts
    can be generated again. All points of a step share it. Dev and test share the noise of step 0.
    """

    predicts: ClassVar[Of] = Of.REWARDS
    examples = (
        KindExample(
            {"text": "3 + 4?", "label": "7"}, "{{ text }}", (" {{ label }}",), "3 + 4?", (" 7",),
            gold=0, references=('{"text": "3 + 4?", "label": "7"}',),
        ),
    )  # fmt: skip

    rewards: tuple[Reward, ...] = option((), "its rewards, whose sum counts: names, or {name: ..., options}")
    temperature: float = option(0.0, "of the softmax that a token is drawn from; 0: the most likely one", least=0)
    samples: int = option(1, "texts per prompt", least=1)
    errors: Literal["fail", "zero"] = option(
        "fail", "a reward that raises, is not finite or takes too long: the trial fails, or the text's reward is 0"
    )
    seconds: float = option(10.0, "the longest that the rewards of one text may take", above=0)

    @property
    def errors_count(self) -> bool:
        """Whether a text without a reward counts as 0."""
        return self.errors == "zero"

    def wrong(self, task: Task, dialect: Dialect) -> str:
        if not self.rewards:
            return "a verified task needs a reward: write kind: {name: verified, rewards: [exact]}"
        if self.samples > 1 and not self.temperature:
            return f"kind.samples={self.samples} texts of a prompt are all the same: set kind.temperature"
        needs = "a verified task needs one option (an answer), loss 'tokens' and max_new_tokens >= 1"
        return needs if super().wrong(task, dialect) else ""

    def problem(self, label: Any, labels: Sequence[Any], column: str) -> str:
        return ""
