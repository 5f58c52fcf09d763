"""What a model answers to rows of its task, at any step of a trial's log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zo_sweeps.core.events import Event
from zo_sweeps.core.trial import Trial
from zo_sweeps.core.units import visible
from zo_sweeps.session.export import finished, replayed
from zo_sweeps.tasks.scoring import right
from zo_sweeps.tasks.templates import chat_of


@dataclass(frozen=True)
class Answer:
    """A row's text, what the model answers, whether that is right (None: the task predicts numbers), and its reward."""

    prompt: str
    text: str
    right: bool | None
    reward: float | None = None  # of a text, if the task rewards texts


def before_and_after(
    trial_id: str, state_dir: str | Path, rows: int
) -> tuple[int, tuple[Answer, ...], tuple[Answer, ...]]:
    """Return a trial's selected step, and the answers to the first rows of test before training and after that step.

    Raises UserError and costs as `session.export.rebuilt`, and `answers` twice.
    """
    trial, journal, step = finished(trial_id, state_dir)
    return step, answers(trial, journal, 0, "test", rows), answers(trial, journal, step, "test", rows)


def answers(
    trial: Trial, journal: list[Event], step: int, split: Literal["dev", "test"], rows: int
) -> tuple[Answer, ...]:
    """Return the answers to the first rows of a split with the weights after a step. Raises UserError as `replayed`.

    Where several texts are generated for a row, the first is its answer.

    Cost: loads the model, once per process; then a replay of the steps and a forward, or a generation, of the rows.
    """
    with replayed(trial, journal, step) as (bench, _):
        spec, tokenizer = bench.splits.spec, bench.model.tokenizer
        examples = getattr(bench.splits, split)[:rows]
        _, given = bench.answers(examples)
        if spec.kind.generates:
            texts = list(given.texts[:: spec.kind.samples])
        else:
            best = [one.candidates[choice] for one, choice in zip(examples, given.choices, strict=True)]
            texts = [tokenizer.decode(one.ids[-one.answer_length :]) for one in best]
        marks: Sequence[bool | None] = right(spec, examples, given) or [None] * len(examples)
        rewards: Sequence[float | None] = [each[0] for each in given.rewards] or [None] * len(examples)
        frame = chat_of(tokenizer, spec.system).around(()) if spec.chat else ("", "")
    prompts = [one.text.removeprefix(frame[0]).removesuffix(frame[1].rstrip(" ")).strip() for one in examples]
    each = zip(prompts, texts, marks, rewards, strict=True)
    return tuple(Answer(visible(prompt), visible(text.strip()), mark, reward) for prompt, text, mark, reward in each)
