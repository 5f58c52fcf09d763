"""The tokens of a local task's rows, counted before a model is loaded, and the memory that a trial is planned with."""

from __future__ import annotations

import heapq
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.devices.estimate import (
    NOTHING,
    RUNTIME_BYTES,
    Batches,
    ForwardRows,
    GeneratedRows,
    direction_numbers,
    finding_memory,
    memory_by_part,
)
from zo_sweeps.engine.packing import CAPACITY, MULTIPLE, grouped, pack, padded_to
from zo_sweeps.methods.arch import ALL, Arch
from zo_sweeps.methods.evaluation import ELSEWHERE, GENERATED_TOGETHER, ON_CPU, SCORED_TOKENS
from zo_sweeps.methods.perturbation import PartialPerturbation
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.tasks import data
from zo_sweeps.tasks.encode import (
    MASKED_EDGES,
    Prompt,
    encode,
    encode_prompt,
    render,
    room_of,
    sides,
    texts_of,
    token_ids,
    word_of,
)
from zo_sweeps.tasks.spec import TaskSpec
from zo_sweeps.tasks.templates import chat_of, uses

if TYPE_CHECKING:
    from zo_sweeps.models.identity import ModelStatus


SAMPLE = 32  # rows whose tokens are counted
DRAWS = 40  # batches of those rows, of which the largest is planned
LONGEST = 4  # lines of each file, those of most bytes, whose tokens are counted
MOST = 1 << 18  # characters of prompts that are tokenised, so that a plan stays fast
WIDEST = 64  # characters per token; of a text that would need more to fit, no more are tokenised


def too_long(spec: TaskSpec, folder: Path, tokenizer: Any, max_length: int, front: tuple[int, ...]) -> tuple[int, bool]:
    """Return how many rows of a task's folder would lose tokens, and whether all rows were looked at.

    Args:
        folder: holds files without malformed rows, as `data.check` sees to.
        tokenizer, max_length, front: as for `encode`.

    Raises UserError if a row cannot be encoded. Cost: one pass over the lines; only those whose bytes could be more
    tokens than there is room for are tokenised (no token is less than a byte), and the first of each file.
    """
    around = chat_of(tokenizer, spec.system).tokens if spec.chat else len(front)
    room, sources = room_of(spec, max_length, around), (spec.template, *spec.options)
    own, of_row = sum(len(source.encode()) for source in sources), sum(map(uses, sources))
    long = tokenised = 0
    for split in data.FILES:
        for number, line in enumerate(_lines(folder, split)):
            if not line.strip() or (number and own + of_row * len(line) <= room):  # at most so many bytes of text
                continue
            if tokenised > MOST:
                return long, False
            row = json.loads(line)
            prompt = render(spec, row)
            tokenised += len(prompt.text)
            if number:
                long += _exceeds(room, spec, prompt, tokenizer, max_length)
            elif spec.objective.masked:
                for option in prompt.options:
                    word_of(spec, tokenizer, option)
                long += _exceeds(room, spec, prompt, tokenizer, max_length)
            else:
                long += encode(spec, row, tokenizer, max_length, front=front).truncated
    return long, True


class RowTokens(NamedTuple):
    """Tokens of a row of a task's folder, with its candidates, which are one text where only their last token differs.

    Args:
        scored: of SAMPLE rows of the training split, the tokens of each text, all of which scoring forwards.
        gold: the tokens of the right candidate's text, which is all that a step forwards of a row for some objectives.
        texts: most texts of a row.
        longest: of a text: that of the LONGEST lines of every file.
    """

    scored: tuple[tuple[int, ...], ...]
    gold: tuple[tuple[int, ...], ...]
    texts: int
    longest: int

    def mean(self, gold_only: bool) -> float:
        """Return the mean tokens that are forwarded of a row."""
        return statistics.fmean(map(sum, self.gold if gold_only else self.scored))

    def of_step(self, rows: int, packed: bool, apart: int, gold_only: bool) -> ForwardRows:
        """Return the largest of DRAWS batches of `rows` rows.

        Args:
            packed: whether texts may share rows, as `engine.packing` decides; if not, all are of the longest's tokens.
            apart: texts of a row if they may not.
            gold_only: whether the right candidate alone is forwarded.
        """
        padded = padded_to(self.longest, MULTIPLE)
        if not packed:
            texts = rows * (1 if gold_only else apart)
            return ForwardRows(texts * padded, texts)
        return max(_drawn(self.gold if gold_only else self.scored, rows), ForwardRows(padded, 1))

    def answered(self, new: int) -> RowTokens:
        """Return the tokens of rows whose right answer is one of `new` tokens, or slightly more."""
        return self._replace(gold=tuple((own + new - 1,) for (own,) in self.gold), longest=self.longest + new)

    def of_scoring(self, rows: int, packed: bool, apart: int) -> ForwardRows:
        """Return the largest forward that scores `rows` rows; arguments as for `of_step`."""
        padded = padded_to(self.longest, MULTIPLE)
        if not packed:
            tokens = min(rows * apart * padded, max(SCORED_TOKENS, padded))
            return ForwardRows(tokens, tokens / padded)
        return max(_scored(self.scored, rows), ForwardRows(padded, 1))


@cache
def _drawn(sample: tuple[tuple[int, ...], ...], rows: int) -> ForwardRows:
    random = Random(0)
    return max(_together(random.choices(sample, k=rows)) for _ in range(DRAWS))


@cache
def _scored(sample: tuple[tuple[int, ...], ...], rows: int) -> ForwardRows:
    every = [sample[i % len(sample)] for i in range(rows)]
    sizes = [(len(texts), max(texts)) for texts in every]
    return max(_together([every[i] for i in group]) for group in grouped(sizes, SCORED_TOKENS))


def _together(rows: Sequence[tuple[int, ...]]) -> ForwardRows:
    """Return what one forward holds of the rows' texts, with the last token of each, which is not forwarded."""
    lengths = [length for texts in rows for length in texts]
    packed = pack(lengths, MULTIPLE)
    one = padded_to(max(sum(lengths[text] for text in row) for row in packed), MULTIPLE)
    return ForwardRows(len(packed) * one, len(lengths), one if len(packed) < len(lengths) else 0)


def tokens_forwarded(
    spec: TaskSpec, folder: Path, tokenizer: Any, max_length: int, front: tuple[int, ...]
) -> RowTokens:
    """Return the tokens of a task's folder's rows. Padding is not counted.

    Raises UserError if a row cannot be encoded.
    """

    def lengths(line: bytes) -> tuple[int, list[int]]:
        """Return the tokens of the right candidate, and of each distinct text."""
        row = json.loads(line)
        prompt = render(spec, row)
        if spec.objective.masked:
            if len(prompt.text) > WIDEST * max_length:
                return max_length, [max_length]
            sized = sum(map(len, sides(prompt.text, tokenizer)))
            only = min(sized, room_of(spec, max_length)) + MASKED_EDGES + 1
            return only, [only]
        prompt = replace(prompt, text=prompt.text[-WIDEST * max_length :])
        example = encode_prompt(spec, prompt, tokenizer, max_length, front=front)
        texts = {candidate.ids[:-1] for candidate in example.candidates}
        return len(example.candidates[example.gold].ids), [len(text) + 1 for text in texts]

    lines = {split: [line for line in _lines(folder, split) if line.strip()] for split in data.FILES}
    train = lines["train"]
    taken = [lengths(line) for line in train[:: -(-len(train) // SAMPLE)]]
    longest = [texts for some in lines.values() for _, texts in map(lengths, heapq.nlargest(LONGEST, some, key=len))]
    gold, every = tuple((own,) for own, _ in taken), tuple(tuple(texts) for _, texts in taken)
    most = [*every, *longest]
    return RowTokens(every, gold, max(map(len, most)), max(map(max, most)) - 1)


def _lines(folder: Path, split: str) -> list[bytes]:
    return data.path_of(folder, split).read_bytes().split(b"\n")


def _exceeds(room: int, spec: TaskSpec, prompt: Prompt, tokenizer: Any, max_length: int) -> bool:
    if spec.objective.masked and len(prompt.text) <= WIDEST * room:
        return sum(map(len, sides(prompt.text, tokenizer))) > room
    texts = sorted(texts_of(spec, prompt, tokenizer), key=len, reverse=True)
    if spec.chat and len(texts[0]) <= WIDEST * max_length:
        return encode_prompt(spec, prompt, tokenizer, max_length).truncated
    return len(texts[0]) > WIDEST * room or any(len(token_ids(tokenizer, text)) > room for text in texts)


def memory_of(
    config: TrialConfig, model: ModelStatus, counted: RowTokens | None, longest: int, trainable: int
) -> tuple[int, Mapping[Part, float], int]:
    """Return (estimated peak, its parts, of a program the peak of the light client)."""
    arch, kind, space, precision = model.arch, config.method.kind, config.space, config.precision
    if arch is None:
        return 0, {}, 0
    train, examples = config.train, max(config.split.dev, config.split.test)
    rows = -(-(train.batch or 1) // ((kind.estimates and config.evaluation.parts) or 1)) * max(kind.answers, 1)
    sampled = config.task.max_new_tokens if kind.answers else 0
    longest_row = max(CAPACITY, longest) if train.packing else longest
    together = 0 if kind.generates else min(examples, max(SCORED_TOKENS / longest, 1))
    stepped, scored = ForwardRows(rows * (longest + sampled), rows), ForwardRows(together * longest, together)
    if counted is not None and not kind.demonstrations:
        longest = counted.longest
        fits = not arch.masked and not arch.no_packing
        options = config.task.wording(config.prompt.name).options
        every = 1 if arch.masked else max(len(options), counted.texts)
        of_step = counted.answered(sampled) if sampled else counted
        stepped = of_step.of_step(rows, train.packing and fits, every, gold_only(config))
        scored = counted.of_scoring(examples, fits, every)
    finding, client = 0, 0
    if space.needs_gradients and kind.trains and model.package is None:
        text = space.of_text
        length = getattr(space, "length", longest) if text else longest
        entries = space.moved(arch).entries(space.layers)
        finding = finding_memory(arch, precision.format.bytes, length, length if text else 1, entries)
    if precision.of_text and model.package is None:
        length = getattr(precision, "length", longest)
        finding = max(finding, finding_memory(arch, precision.format.bytes, length, length, arch.entries([ALL])))
    points = 1
    if kind.estimates:
        along = config.update.evaluations if space.batched else 0  # of all weights, one at a time
        points = config.evaluation.points_per_forward(config.estimator, along)
    kept = 0.0
    if config.shared_blocks(arch):  # by every minibatch, and once more where rounding noise is measured
        kept = stepped.tokens * (config.estimator.budget if config.estimator.owns_rows else 2)
    parts: Mapping[Part, float] = memory_by_part(
        arch,
        Batches(
            longest + sampled,
            stepped,
            scored,
            points,
            kind.trains and train.logits == "all",
            longest_row,
            _generated(config, arch, longest, points),
            kept,
            max(sampled, 1),
        ),
        kind,
        precision,
        space,
        config.update,
        trainable=trainable,
        copies=kind.copies + (config.perturbation.state_copies if kind.estimates else 0),
        held=_held(config),
        on_host=config.device.in_host_memory,
    )
    if (runtime := config.device.installed_runtime) is not None:
        parts, before, client = runtime.memory(config, arch, parts, points, trainable)
        finding = max(finding, before)
    peak = int(sum(parts.values()))
    return RUNTIME_BYTES + max(peak, finding), parts if peak >= finding else {}, client


def _held(config: TrialConfig) -> float:
    """Return how many values of a full space's noise are there at a time, at most; 0: it is added as it is made."""
    if isinstance(config.perturbation, PartialPerturbation):
        return 0
    if not config.perturbation.factored:
        return inf
    return ON_CPU if config.device.cpu else ELSEWHERE


def _generated(config: TrialConfig, arch: Arch, longest: int, points: int) -> GeneratedRows:
    """Return the rows of the trial's largest generation: of dev and test, or of a step at all points of a forward."""
    kind, train, task, new = config.method.kind, config.train, config.task.kind, config.task.max_new_tokens
    if kind.generates or not task.generates:
        return NOTHING
    texts = max(kind.answers, task.samples)
    rows, drawn = min(texts * max(config.split.dev, config.split.test), GENERATED_TOGETHER), 0.0
    if kind.estimates and config.objective.generates:
        rows = max(rows, points * min(texts * (train.batch or 1), GENERATED_TOGETHER))
        if points > 1 and config.space.moves_base:
            drawn = points * direction_numbers(arch, getattr(config.perturbation, "rank", 1))
    if task.temperature or kind.answers:
        drawn += GENERATED_TOGETHER * arch.vocabulary  # a text's noise is that of all points
    return GeneratedRows(rows, longest, new, drawn)


def gold_only(config: TrialConfig) -> bool:
    """Return whether a step forwards a row's right candidate alone."""
    return bool(config.objective.gold_only)
