"""Estimated peak memory of a trial, from shapes alone. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zo_sweeps.core.memory import Part
from zo_sweeps.methods.arch import Arch

RUNTIME_BYTES = 500 * 2**20  # a process with torch imported (CPU), or a CUDA context: not in `peak_memory`
EXPORT_BYTES = 130 * 2**20  # graphs and caches of an export, beyond the copies of the weights
SCORES_BYTES = 2**30  # most bytes of a mask's scores in the memory that a trial reserves
FP32 = 4
INDEX = 8  # of an entry of a weight


def logits_bytes(rows: int, positions: float, vocabulary: int) -> float:
    """Return the bytes of the loss over `positions` logit vectors per row: 8 per logit.

    fp32 logits, and as many exponentials for their sum; the head's own 2-byte logits are freed before. P-RGE's Figure 4
    is this at all positions: 16 rows of 256 tokens and 32,000 words are 0.98 GiB, twice that in the inner loop.
    """
    return 2 * FP32 * rows * positions * vocabulary


def memory_by_part(
    arch: Arch,
    value_bytes: float,
    *,
    trains: bool,
    weights: int | None = None,
    scales: int = 0,
    kept: int = 0,
    backpropagates: bool = False,
    moves_base: bool = False,
    integers: bool = False,
    sparse: bool = False,
    points: int = 1,
    batch: int = 1,
    tokens: int,
    trainable: int = 0,
    state_copies: float = 0,
    trained_bytes: float = FP32,
    recomputes: bool = False,
    mixed_bytes: float = 0,
    on_host: bool = False,
    answer_tokens: int = 1,
    coded: bool = False,
    scored_tokens: int = 0,
) -> dict[Part, float]:
    """Estimate the peak bytes of a trial, by part, beyond an empty process with torch imported (RUNTIME_BYTES).

    The peak is that of a step, or of the forward that scores the most rows, whichever is larger.

    With W = weights, b = value_bytes, N = batch * points rows of T tokens, and points =
    1, q, 2, 2q per forward for the modes sequential, outer, inner, both:

        zero_shot   W + F
        zo          W + F + S,   PEFT: S = 4 * trainable * (2 + state_copies + points)  (state, copies, one z)
                                 full: S = 4 * state_copies * trainable + largest * (8 + b) (one layer computed anew)
                                 codes: S = 4 * state_copies * trainable + I D (one layer's codes computed anew)
        fo          PEFT: W + 4 * trainable * (2 + state_copies) + B
                    full: P * (2 b + 4 * state_copies) + B, b = trained_bytes  (weights, gradients, states)
                    either, in mixed precision: b = mixed_bytes in B, and 6 N T D L bytes more (the norms' outputs in
                    fp32); PEFT also mixed_bytes of each multiplied weight, of one layer with `recomputes` (full: those
                    of a layer are gone when its gradients, which are larger, are there)
                    either, with `on_host`: one more copy of what is trained, B at least 20 * largest
        F = max(1.5 N T b * (2D + max(2Q + 4K + D, 3I)),  (one layer's tensors; 1.5: allocator overhead)
                2 N T D b + logits_bytes)                 (after the last layer)
        B = N T (L b (6D + 2Q + 4K + 4I) + 8D L)  (kept for the backward pass: the norms' inputs in fp32)
            + 2 * logits_bytes;  with `recomputes` the bracket is one layer's (L = 1), and L D b of inputs are added
        scoring     W + S + F of `scored_tokens` instead of N T
        codes       + largest * (4 + b)  (a decoded matrix)
        sparse      + trainable * (8 + b)  (indices, first values); over codes 16 + b  (where they are among the kept)

    where D = hidden size, I = feed-forward size, Q, K = widths of queries and keys, L = layers, largest = the largest
    matrix's elements, or those of one layer's stacked experts. Attention is SDPA without a mask: no T x T matrix is
    formed. The cache of generated answers is not included. Intended to be within a factor of 2 of the measured peak,
    either way.

    Estimate over the tensors alive at the peak (`devices.tensors`; Llamas of 6 and 56 M weights on a CPU, fp32 if not
    said): scoring 1.04 to 1.17; LoRA-FA with 2 to 8 points per forward 1.05 to 1.18, INT8 and NF4 among them; logits at
    all positions 1.00; sparse over NF4 1.07 to 1.16; full 1.34, bf16 1.48 (a CPU computes fewer rows of a layer at a
    time); FO-Adam 1.04 to 1.17, with 8-bit Adam in bf16 1.14, and 1.09 if layers are computed again; LoRA-FA over NF4
    1.43. Over the growth of the process, allocator included: 0.71 to 1.07 (56 M, T = 128). Not measured on a GPU.

    Args:
        value_bytes: bytes per activation.
        weights: bytes of the weights as they are stored, with what decodes them; defaults to value_bytes for each.
        scales: what decodes them, of these bytes; kept: entries outside the codes, of these bytes.
        trains: whether parameters move; backpropagates: by gradients.
        moves_base: whether the model's own weights are trained (full), rather than a small additional fp32 state.
        integers: whether these weights are integer codes.
        sparse: whether the trained values are chosen entries of the weights, kept with their indices and first values.
        points: points per forward.
        batch: sequences per point in a forward (for a loss over candidates: examples times distinct rows).
        tokens: padded length of a sequence.
        trainable: number of trained parameters.
        state_copies: size of the update's state, in fp32 copies of them.
        trained_bytes: bytes per weight that backpropagation trains in the full space, and of its gradient.
        mixed_bytes: bytes per value of a step's products, where they are not in the weights' format; 0: they are.
        recomputes: whether layers are computed again in the backward pass (gradient checkpointing).
        on_host: whether the trial computes in the host's memory, where the best weights so far are kept as well, and
            8-bit Adam computes with five fp32 copies of a parameter.
        answer_tokens: positions per row whose logits are computed; `tokens` for all.
        coded: whether the weights of the blocks are decoded for every product, one matrix at a time.
        scored_tokens: tokens of the largest forward that scores rows, with padding; 0: the step's.
    """
    width, inner, layers, vocabulary = arch.width, arch.inner, arch.layers, arch.vocabulary
    queries, keys = arch.heads * arch.head_width, arch.kv_heads * arch.head_width

    b = trained_bytes if backpropagates and moves_base else value_bytes
    rows = batch * points
    if weights is None or b != value_bytes:
        weights = int(arch.parameters * b)
    largest = max(vocabulary * width, inner * width, arch.experts)
    parts = dict.fromkeys(Part, 0.0)
    parts[Part.WEIGHTS], parts[Part.SCALES], parts[Part.SPARSE] = weights - scales - kept, scales, kept
    if trains and sparse:
        parts[Part.SPARSE] += trainable * ((2 if coded else 1) * INDEX + b)
    if coded:
        parts[Part.WORKSPACE] = max(out * into for out, into in arch.linears.values()) * (FP32 + b)

    def forward(positions: float, places: float) -> dict[Part, float]:
        logits = logits_bytes(1, places, vocabulary)
        layer = 1.5 * positions * b * (2 * width + max(2 * queries + 4 * keys + width, 3 * inner))
        last = 2 * positions * width * b
        if layer > last + logits:
            return {Part.ACTIVATIONS: layer}
        return {Part.ACTIVATIONS: last, Part.LOGITS: logits}

    step: dict[Part, float] = forward(rows * tokens, rows * answer_tokens)
    if trains and backpropagates:
        a, norms = (mixed_bytes, 14) if mixed_bytes else (b, 8)
        per_layer = rows * tokens * (a * (6 * width + 2 * queries + 4 * keys + 4 * inner) + norms * width)
        casts = 0 if moves_base else mixed_bytes * sum(out * into for out, into in arch.linears.values())
        step[Part.ACTIVATIONS] = layers * (per_layer + casts)
        if recomputes:
            step[Part.ACTIVATIONS] = per_layer + casts + rows * tokens * layers * b * width
        step[Part.LOGITS] = 2 * logits_bytes(rows, answer_tokens, vocabulary)
        step[Part.LOGITS] += 0 if moves_base else mixed_bytes * vocabulary * width
        own = arch.parameters * b * (1 + on_host) if moves_base else FP32 * trainable * (2 + on_host)
        parts[Part.TRAINABLE] = own + FP32 * trainable * state_copies
        stepping = 5 * FP32 * largest * on_host if moves_base else 0
        if stepping > sum(step.values()):
            step = {Part.WORKSPACE: stepping}
    elif trains and moves_base:
        parts[Part.TRAINABLE] = FP32 * state_copies * trainable
        step[Part.WORKSPACE] = parts[Part.WORKSPACE] + inner * width if integers else largest * (8 + b)
    elif trains:
        parts[Part.TRAINABLE] = FP32 * trainable * (2 + state_copies + points)
    scoring = forward(scored_tokens, scored_tokens / tokens)
    return {**parts, **(step if sum(step.values()) >= sum(scoring.values()) else scoring)}


def program_memory(
    parts: Mapping[Part, float],
    arch: Arch,
    value_bytes: float,
    *,
    weights: int,
    points: int,
    queries: int,
    d: int,
    dual: bool,
) -> tuple[dict[Part, float], int]:
    """Estimate the peak of a step of an exported program by part, and the peak bytes of exporting it.

    With W = weights, b = value_bytes, V words of width D, and the program's P = W (+ b V D if tied: the head is apart):

        step    `parts` + P + 4 d (6 + k (points + queries)), k = 2 in the form dual, else 1
                P: the weights as XNNPACK packs them, and the embedding, beside PyTorch's
                d: theta or its copies, temporaries of the noise, directions and points, as the runtime plans them
        export  W + 2 P + EXPORT_BYTES      (the weights in the graph and in the file)

    Opening a program takes less than exporting it: the file and the packed weights, at most W + 2 P.

    Estimate over growth of the process on a CPU (LoRA-FA on Llamas of W = 22 to 260 MiB, fp32 and fp16, both forms): of
    the step 0.95 to 1.05, of the export 0.93 to 1.20. Not measured on a phone.

    Args:
        parts: of the same step in PyTorch; see `memory_by_part`.
        value_bytes: bytes per activation.
        weights: bytes of the weights as they are stored.
        points: points per call; queries: q.
        dual: whether the program keeps both copies of each direction.
        d: number of trained parameters.
    """
    program = weights + arch.tied * arch.vocabulary * arch.width * value_bytes
    held = {**parts, Part.WEIGHTS: parts[Part.WEIGHTS] + program}
    held[Part.TRAINABLE] += FP32 * d * (6 + (2 if dual else 1) * (points + queries))
    return held, int(weights + 2 * program + EXPORT_BYTES)


def peak_memory(arch: Arch, value_bytes: float, **settings: Any) -> int:
    """Return the sum of `memory_by_part`."""
    return int(sum(memory_by_part(arch, value_bytes, **settings).values()))


def finding_memory(arch: Arch, value_bytes: float, tokens: int, answer_tokens: int, entries: int) -> int:
    """Estimate the peak bytes, on the device, of computing a sensitive mask from samples of T tokens.

    The sum of

        weights                     b P
        inputs of the layers        b L T D         (a layer's activations are computed again: `engine.checkpointing`)
        one layer's activations     as FO without trainable parameters holds them in `peak_memory`, and the logits
        one layer's attention       16 H T^2        (unfused, to be deterministic: T x T matrices in fp32)
        one gradient                (b + 4) I D     (moved to main memory and squared there)
        scores                      min(4 * entries, SCORES_BYTES)

    The scores beyond SCORES_BYTES (`entries` are the values that the mask may choose from) are not counted: they are in
    main memory, if the device is a GPU with a memory of its own, otherwise in a file (`run.accumulators`).

    Estimate over measured bytes of tensors, both without weights and scores (Llamas of 58 M and 217 M on a CPU, T = 128
    to 1024; fp32, bf16, fp16): 0.92 to 2.2; too much where the logits and a layer's attention are alike, as only one of
    them is held at a time. At Llama-2-7B's width, two layers in bf16 and T = 512: 751 MiB over 479. Not measured on a
    GPU.
    """
    one_layer = peak_memory(
        replace(arch, layers=1),
        value_bytes,
        trains=True,
        backpropagates=True,
        tokens=tokens,
        answer_tokens=answer_tokens,
    )
    inputs = arch.layers * tokens * arch.width * value_bytes
    attention = 4 * FP32 * arch.heads * tokens**2
    gradient = arch.inner * arch.width * (value_bytes + FP32)
    return int(one_layer + inputs + attention + gradient + min(FP32 * entries, SCORES_BYTES))
