"""Estimated peak memory of a trial, from shapes alone. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.methods.arch import ALL, Arch
from zo_sweeps.methods.kind import Kind, part_of
from zo_sweeps.methods.points import Theta
from zo_sweeps.methods.precision import Precision
from zo_sweeps.methods.space import Space
from zo_sweeps.methods.update import Update

RUNTIME_BYTES = 500 * 2**20  # a process with torch imported (CPU), or a CUDA context: not in `peak_memory`
SCORES_BYTES = 2**30  # most bytes of a mask's scores in the memory that a trial reserves
FP32 = 4
INDEX = 8  # of an entry of a weight


def logits_bytes(rows: float, positions: float, vocabulary: int) -> float:
    """Return the bytes of the loss over `positions` logit vectors per row: 8 per logit.

    fp32 logits, and as many exponentials for their sum; the head's own 2-byte logits are freed before. P-RGE's Figure 4
    is this at all positions: 16 rows of 256 tokens and 32,000 words are 0.98 GiB, twice that in the inner loop.
    """
    return 2 * FP32 * rows * positions * vocabulary


class ForwardRows(NamedTuple):
    """The rows of a forward: tokens, padding included; texts; tokens of a row that several texts share (0: none is)."""

    tokens: float
    texts: float
    shared: int = 0


NO_ROWS = ForwardRows(0, 0)


class GeneratedRows(NamedTuple):
    """The rows of a generation, of all points; tokens of a prompt and of an answer; numbers drawn."""

    rows: float
    prompt: int
    new: int
    drawn: float = 0


NOTHING = GeneratedRows(0, 0, 0)


def direction_numbers(arch: Arch, rank: int) -> int:
    """Count a full space's direction: both factors of each matrix, and two norms per layer and a last one."""
    outer = arch.inputs([ALL]) + arch.outputs([ALL]) + (1 if arch.tied else 2) * (arch.vocabulary + arch.width)
    return rank * outer + (2 * arch.layers + 1) * arch.width


@dataclass(frozen=True)
class Batches:
    """The rows of a trial's largest forwards."""

    longest: int  # tokens of the longest text
    step: ForwardRows  # of a training step, at each point
    scoring: ForwardRows = NO_ROWS  # of dev and test
    points: int = 1  # per forward of a step
    all_logits: bool = False  # whether a step computes the logits of every position, not only one per text
    longest_row: int = 0  # tokens of the longest row, behind which a prefix is masked; 0: `longest`
    generated: GeneratedRows = NOTHING  # of the largest generation
    kept: float = 0  # tokens whose hidden states a step keeps, of the blocks that its points share
    answer: int = 1  # tokens of an answer that a step trains on

    @property
    def places(self) -> float:
        """Positions of a point whose logits a step computes."""
        return self.step.tokens if self.all_logits else self.step.texts * self.answer


def memory_by_part(
    arch: Arch,
    batches: Batches,
    kind: Kind,
    precision: Precision,
    space: Space,
    update: Update,
    *,
    trainable: int,
    copies: int = 0,
    held: float = 0,
    on_host: bool = False,
) -> dict[Part, float]:
    """Estimate the peak bytes of a trial, by part, beyond an empty process with torch imported (RUNTIME_BYTES).

    The peak is that of a step, of the forward that scores the most rows, or of a generation, whichever is the largest.

        zero_shot   W + F
        zo          W + F + S + b * width * kept
                                 PEFT: S = 4 * trainable * (2 + state_copies + points) + b * frozen
                                 (state, copies, one z)
                                 full, codes: S = 4 * state_copies * trainable
        fo          PEFT: W + 4 * trainable * (2 + state_copies) + B; layer by layer, gradients of one layer
                    full: P * (2 b + 4 * state_copies) + B, b = trained_bytes  (weights, gradients, states)
                    either, with `on_host`: one more copy of what is trained, B at least 20 * largest
        scoring     W + S + F of the scored rows
        generation  W + S + F of its rows, with their keys and values
        full        8 * largest in a step's update, without activations (none if `adds_noise` in fp32)
        sparse      + trainable * (8 + b)  (indices, first values); over codes 16 + b  (where they are among the kept)

    where W = the stored weights, P = their number, b = bytes per activation, largest = elements of the model's largest
    matrix, points = 1, q, 2, 2q per forward for the modes sequential, outer, inner, both. F and B are the largest
    moments of a forward and of a backward pass, which `_Forwards` and `_backward` list. Attention is SDPA without a
    mask: no T x T matrix is formed, but behind a prefix.

    Estimate over the tensors alive at the peak (`devices.tensors`; a Llama of 0.3 M weights on a CPU, fp32): a step of
    texts of one length 1.00 to 1.01 in zeroth order, FO-LoRA-FA 1.36; with texts that share rows up to 1.42, as the
    largest of 40 batches is planned; scoring 1.05 to 1.17. Of eight other families with 2 layers and D = 64, in eight
    methods: 1.00 to 1.48.
    Not measured: mixtures of experts, a family's own activation (BLOOM's), and a GPU.

    Args:
        kind: whether parameters move, and by gradients or estimates; in which formats, and what is computed again.
        precision: how the weights are stored; space, update: what moves, and the state beside it.
        trainable: number of trained parameters.
        copies: fp32 copies of them, of the kind and in the state of the directions.
        held: values of a full space's noise that are there at a time, at most; 0: it is added as it is made.
        on_host: whether the trial computes in the host's memory, where the best weights so far are kept as well, and
            8-bit Adam computes with five fp32 copies of a parameter.
    """
    trains, b = kind.trains, precision.format.bytes
    moves_base, sparse = trains and space.moves_base, trains and space.sparse
    weights = precision.weight_bytes(arch) + (space.added_bytes(space.moved(arch), precision) if trains else 0)
    if kind.backpropagates and moves_base:
        trained = (kind.trained_in or precision).format.bytes
        if trained != b:
            weights, b = arch.parameters * trained, trained
    scales, kept = precision.decoding_bytes(arch), precision.outside_bytes(arch)
    largest = max(arch.vocabulary * arch.width, _matrix(arch))
    decoded = max(out * into for out, into in arch.linears.values()) * (FP32 + b) if precision.coded else 0.0
    parts = dict.fromkeys(Part, 0.0)
    parts[Part.WEIGHTS], parts[Part.SCALES], parts[Part.SPARSE] = weights - scales - kept, scales, kept
    if sparse:
        parts[Part.SPARSE] += trainable * ((2 if precision.coded else 1) * INDEX + b)

    positions = space.positions if trains else 0
    forwards = _Forwards(
        arch,
        b,
        batches.longest,
        decoded,
        attended=positions and positions + (batches.longest_row or batches.longest),
        rank=getattr(space, "rank", 0) if trains else 0,
    )
    scoring = forwards.scoring(batches.scoring)
    generation = forwards.generation(batches)
    if not trains:
        forward = scoring if batches.scoring.tokens else forwards.step(batches)
        return {**parts, **_larger(forward, generation)}
    states = update.state_copies * update.state_bits / 32 + copies
    updating: float = 0
    if kind.backpropagates:
        inputs = None if space.moves_base or space.sparse else space.moved(arch).inputs(space.layers)
        mixed = kind.multiplied_in.format.bytes if kind.multiplied_in else 0
        step = _backward(arch, b, batches, decoded, inputs, mixed, moves_base, kind.recomputes, kind.is_layerwise)
        gradients = 1 / arch.layers if kind.is_layerwise else 1
        own = arch.parameters * b * (1 + on_host) if moves_base else FP32 * trainable * (1 + gradients + on_host)
        parts[Part.TRAINABLE] = own + FP32 * trainable * states
        updating = 5 * FP32 * largest * on_host * moves_base
    elif moves_base:
        of_codes = space.theta is Theta.CODES

        def moved(entries: float) -> float:
            if of_codes:
                return entries
            # a weight at the point in fp32, and rounded; or the noise, a temporary of it, and the weight
            return entries * b + 2 * FP32 * min(entries, held) if held else entries * (FP32 + b * (b < FP32))

        step = forwards.step(batches, moved, head_moves=not of_codes)
        parts[Part.TRAINABLE] = FP32 * states * trainable
        adds = update.adds_noise and b == FP32
        updating = 0 if of_codes else 2 * FP32 * (min(largest, held) if adds else largest)
    else:
        step = forwards.step(batches)
        parts[Part.TRAINABLE] = FP32 * trainable * (2 + states + batches.points)
    step[Part.ACTIVATIONS] += b * arch.width * batches.kept
    if updating > sum(step.values()):
        step = {Part.WORKSPACE: updating}
    parts[Part.TRAINABLE] += b * space.frozen_values(arch)
    either = _larger(step, generation)
    return {**parts, **(_larger(either, scoring) if batches.scoring.tokens else either)}


def _larger(one: dict[Part, float], other: dict[Part, float]) -> dict[Part, float]:
    """Return the moment of more bytes; of equal ones the first."""
    return max(one, other, key=lambda moment: sum(moment.values()))


def _matrix(arch: Arch) -> int:
    """Return the elements of a layer's largest matrix, or of its stacked experts."""
    return max(arch.experts, *(out * into for out, into in arch.linears.values()))


def _gated(arch: Arch) -> bool:
    return bool(arch.experts or {"gate", "gate_up"} & {*arch.linears})


def _nothing(entries: float) -> float:
    return 0


@dataclass(frozen=True)
class _Forwards:
    """F of `memory_by_part`: the parts at the largest moment of a forward."""

    arch: Arch
    value_bytes: float  # of an activation
    longest: int  # tokens of the longest text
    decoded: float  # bytes of a matrix that is stored as codes, while it is multiplied
    attended: float  # length of a row of the attention's mask, with the prefix; 0: there is none
    rank: int  # of factors beside the projections; 0: there are none

    def scoring(self, rows: ForwardRows) -> dict[Part, float]:
        """Return the parts of a forward that scores rows."""
        return self._largest(rows, rows.texts, INDEX * (3 * rows.tokens + 16 * rows.texts))

    def step(
        self, batches: Batches, moved: Callable[[float], float] | None = None, head_moves: bool = True
    ) -> dict[Part, float]:
        """Return the parts of a step's forward.

        Args:
            moved: entries of a weight of a full space -> bytes at a point, where that has a forward of its own: it is
                computed anew. Where points share a forward, directions stay products of thin factors.
            head_moves: whether the head's weight is one of these.
        """
        points, (tokens, texts, shared) = batches.points, batches.step
        rows = ForwardRows(points * tokens, points * texts, shared)
        # ids, mask and positions, which points repeat
        ids = INDEX * (3 * tokens * (1 + (points if points > 1 else 0)) + 8 * points * batches.places)
        if moved is None:
            return self._largest(rows, points * batches.places, ids)
        if points > 1:  # noise, one by one and together, or together and at each point
            return self._largest(rows, points * batches.places, ids, written=2 * FP32 * points * self.arch.written)
        return self._largest(rows, batches.places, ids, moved, moved if head_moves else _nothing)

    def generation(self, batches: Batches) -> dict[Part, float]:
        """Return the parts of a generation: the prompts' forward, or that of the last tokens, with keys and values."""
        rows, prompt, new, drawn = batches.generated
        arch, moments = self.arch, []
        for length, tokens in ((prompt, prompt), (prompt + new - 1, 1)):
            forward = self._largest(ForwardRows(rows * tokens, rows), rows, 2 * INDEX * rows * length)
            # keys and values; those of one layer twice, as they grow
            cache = 2 * self.value_bytes * arch.kv_heads * arch.head_width * rows * length * (arch.layers + 0.5)
            forward[Part.ACTIVATIONS] += cache
            forward[Part.WORKSPACE] += FP32 * drawn
            moments.append(forward)
        return _larger(*moments)

    def _largest(
        self,
        rows: ForwardRows,
        places: float,
        ids: float,
        moved: Callable[[float], float] = _nothing,
        head: Callable[[float], float] = _nothing,
        written: float = 0,
    ) -> dict[Part, float]:
        arch, b = self.arch, self.value_bytes
        width, inner, vocabulary = arch.width, arch.inner, arch.vocabulary
        attending, keys = arch.heads * arch.head_width, arch.kv_heads * arch.head_width
        gated, fused = _gated(arch), "gate_up" in arch.linears
        # The embeddings, the inputs of the layer and of its second half, its norm; in a causal model without a gate the
        # position embeddings, and their sum with the words'.
        held = 4 if gated or arch.masked else 6
        value = rows.tokens * b
        # the embeddings, a layer's input, its norm, and q, k, v with those rotated: of q three more, then of k
        attention = value * (3 * width + max(4 * attending + 2 * keys, 2 * attending + 5 * keys))
        # gate, up and their product; else an activation's input and output; gate and up in one product live on
        between = max(4 if arch.composed else 2, 3 * gated) + fused
        activated = value * (held * width + between * inner)
        # beside the projection v: x A^T, and it scaled
        thin = value * (3 * width + attending + 4 * keys + 2 * self.rank) if self.rank else 0
        product = value * (held * width + (1 + gated) * inner)  # with up, whose weight may be computed anew
        rotary = 2 * (rows.tokens if rows.shared else self.longest) * arch.head_width * b
        # the mask: of booleans, and behind a prefix in fp32 as well
        rotary += rows.tokens * (self.attended * (1 + FP32) or min(rows.shared, rows.tokens))
        last = b * width * (rows.tokens + places)  # the last hidden states, and those whose logits are computed
        logits = logits_bytes(1, places, vocabulary) + FP32 * places
        decoder = width * vocabulary + arch.masked * (width * width + 2 * vocabulary)  # with the head's layer, biases
        moments: list[dict[Part, float]] = [
            {Part.ACTIVATIONS: max(attention, activated, thin) + rotary},
            {Part.ACTIVATIONS: product + rotary, Part.WORKSPACE: self.decoded + moved(_matrix(arch))},
            {Part.ACTIVATIONS: last, Part.LOGITS: logits / 2, Part.WORKSPACE: head(decoder)},
            {Part.ACTIVATIONS: last, Part.LOGITS: logits},  # and their exponentials
            {Part.ACTIVATIONS: value * width, Part.WORKSPACE: written},
        ]
        largest = max(moments, key=lambda moment: sum(moment.values()))
        return {**largest, Part.WORKSPACE: largest.get(Part.WORKSPACE, 0) + ids}


def _backward(
    arch: Arch,
    value_bytes: float,
    batches: Batches,
    decoded: float = 0,
    inputs: float | None = None,
    mixed: float = 0,
    moves_base: bool = False,
    recomputes: bool = False,
    layerwise: bool = False,
) -> dict[Part, float]:
    """Return B of `memory_by_part` by part, what is kept for the backward pass, with the ids and a decoded matrix.

    The activations of all layers; if a step `recomputes`, those of one layer and the inputs of all; if it is
    `layerwise`, that one's of `part_of` the rows, and the gradient of the hidden states. Logits with their exponentials
    and three tensors of the gradient.

    Args:
        inputs: values per token of the inputs of products with trained factors, all layers; None: all products'.
        mixed: bytes per value of the products, where they are not in the weights' format; 0: they are.
    """
    width, inner, layers = arch.width, arch.inner, arch.layers
    attending, keys = arch.heads * arch.head_width, arch.kv_heads * arch.head_width
    tokens, places, gated = batches.step.tokens, batches.places, _gated(arch)
    a, norms = (mixed, 14) if mixed else (value_bytes, 8)  # the norms' inputs in fp32; if mixed, their outputs, too
    kept_inner, frozen_inner = (4, 3) if gated else (5, 4) if arch.composed else (2, 1)
    # q, k, v, SDPA's result, gate, its activation, up; a frozen weight's product keeps no input
    every = 6 * width + 2 * attending + 4 * keys + kept_inner * inner
    thin = 2 * attending + 2 * keys + frozen_inner * inner
    bracket = every if inputs is None else min(every, thin + inputs / layers)
    per_layer = tokens * (a * bracket + norms * width)
    # of the layer that the backward pass is in
    passing = tokens * a * ((4 if gated or arch.composed else 2) * inner + 2 * width) * (bracket < every)
    # weights in the products' format; of a full space they are gone when its gradients, which are larger, are there
    casts = 0 if moves_base else mixed * sum(out * into for out, into in arch.linears.values())
    activations = layers * (per_layer + casts) + passing
    if recomputes:
        share = _part(batches) / tokens if layerwise else 1
        kept = tokens * (layers + layerwise) * value_bytes * width
        activations = (per_layer + passing) * share + casts + kept
    if layerwise:
        places = part_of(ceil(places))
    logits = 2.5 * logits_bytes(1, places, arch.vocabulary) + (0 if moves_base else mixed * arch.vocabulary * width)
    ids = INDEX * (3 * tokens + 8 * places)
    return {Part.WORKSPACE: ids + decoded, Part.ACTIVATIONS: activations, Part.LOGITS: logits}


def _part(batches: Batches) -> float:
    """Return the most tokens that a layerwise step computes at a time."""
    tokens, texts, shared = batches.step
    if shared:
        return min(max(part_of(ceil(tokens)), batches.longest), tokens)
    return part_of(ceil(texts)) * tokens / texts


def finding_memory(arch: Arch, value_bytes: float, tokens: int, answer_tokens: int, entries: int) -> int:
    """Estimate the peak bytes, on the device, of computing a sensitive mask from samples of T tokens.

    The sum of the weights, the inputs of all layers, the activations, attention and gradient of one, the logits, and
    the scores (`entries` are the values that the mask may choose from). Scores beyond SCORES_BYTES are not counted:
    they are in main memory, if the device is a GPU with a memory of its own, otherwise in a file (`run.packages`).

    Estimate over measured bytes of tensors, both without weights and scores (Llamas of 58 M and 217 M on a CPU, T = 128
    to 1024; fp32, bf16, fp16): 0.92 to 2.2; too much where the logits and a layer's attention are alike, as only one of
    them is held at a time. At Llama-2-7B's width, two layers in bf16 and T = 512: 751 MiB over 479. Not measured on a
    GPU.
    """
    batches = Batches(tokens, ForwardRows(tokens, 1), all_logits=answer_tokens > 1)
    weights = arch.parameters * value_bytes
    one_layer = sum(_backward(replace(arch, layers=1), value_bytes, batches).values())
    inputs = arch.layers * tokens * arch.width * value_bytes  # activations are computed again: `engine.first_order`
    attention = 4 * FP32 * arch.heads * tokens**2  # unfused, to be deterministic: T x T matrices
    gradient = arch.inner * arch.width * (value_bytes + FP32)  # moved to main memory and squared there
    return int(weights + one_layer + inputs + attention + gradient + min(FP32 * entries, SCORES_BYTES))
