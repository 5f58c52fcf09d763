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


def logits_bytes(rows: float, positions: float, vocabulary: int) -> float:
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
    in_parts: bool = True,
    sparse: bool = False,
    points: int = 1,
    batch: float = 1,
    tokens: int,
    trainable: int = 0,
    frozen: int = 0,
    state_copies: float = 0,
    trained_bytes: float = FP32,
    recomputes: bool = False,
    mixed_bytes: float = 0,
    on_host: bool = False,
    answer_tokens: float = 1,
    coded: bool = False,
    scored_tokens: float = 0,
    scored_texts: float = 0,
    rank: int = 0,
    attended: float = 0,
    packed: float = 0,
    scored_packed: float = 0,
    inputs: float | None = None,
) -> dict[Part, float]:
    """Estimate the peak bytes of a trial, by part, beyond an empty process with torch imported (RUNTIME_BYTES).

    The peak is that of a step, or of the forward that scores the most rows, whichever is larger; of either, the largest
    of the moments below.

    With W = weights, b = value_bytes, N = batch * points rows of T tokens, and points =
    1, q, 2, 2q per forward for the modes sequential, outer, inner, both:

        zero_shot   W + F
        zo          W + F + S,   PEFT: S = 4 * trainable * (2 + state_copies + points) + b * frozen
                                 (state, copies, one z)
                                 full, codes: S = 4 * state_copies * trainable
        fo          PEFT: W + 4 * trainable * (2 + state_copies) + B
                    full: P * (2 b + 4 * state_copies) + B, b = trained_bytes  (weights, gradients, states)
                    either, in mixed precision: b = mixed_bytes in B, and 6 N T D L bytes more (the norms' outputs in
                    fp32); PEFT also mixed_bytes of each multiplied weight, of one layer with `recomputes` (full: those
                    of a layer are gone when its gradients, which are larger, are there)
                    either, with `on_host`: one more copy of what is trained, B at least 20 * largest
        F = max(N T b (3D + max(4Q + 2K, 2Q + 5K)),  (the embeddings, a layer's input, its norm, and q, k, v with those
                                                    rotated: of q three more, then of k)
                N T b (H D + A I),             (the embeddings, the inputs of the layer and of its second half, its
                                                    norm, and gate, up and their product: H = 4, A = 3)
                N T b (3D + Q + 4K + 2r),      (factors of rank r beside the projection v: x A^T, and it scaled)
                N T b (H D + G I) + M(matrix), (the product with up, into which goes the weight M computes anew)
                b D (N T + K') + logits_bytes / 2 + M(V D),  (the last hidden states, K' places of them, the head, and
                                                    fp32 logits)
                b D (N T + K') + logits_bytes)      (and their exponentials)
            + 24 T (batch, and again N if points > 1)  (ids, mask, positions, which points repeat), 64 K' (128 of a
            text that is scored), rotary tables; behind a prefix 5 N T * attended  (the mask as booleans and in fp32);
            in rows that several texts share N T * packed  (booleans alone), and tables of every row
        or, where points of a full space share a forward, N T b D + 12 points * arch.written if more  (noise, sums and
            their stack)
        H = 4; 6 in a causal model without a gate  (position embeddings, and their sum with the words')
        A = 3 with a gate, else 2  (an activation's input and output); at least 4 with an activation of several
            operations; one more with gate and up in one product, which lives on; G = 2 with a gate, else 1
        M(n) = 4 n for a full space at one point per forward (a weight at the point, in fp32), + b n if b < 4 (that,
            rounded); n (8 + b) without `in_parts` (the noise, a temporary of it, and the weight); n for codes; 0 for
            PEFT, and if points share a forward: directions of the full space stay products of thin factors then, and
            no weight is perturbed
        a step of a full space also takes 8 * largest in its update, without activations
        B = N T (L b (6D + 2Q + 4K + C I) + 8D L)  (kept for the backward pass: the norms' inputs in fp32)
            PEFT: L b (2Q + 2K + (C - 1) I + inputs / L) if less (q, k, v, SDPA's result, gate, its activation, up; a
            frozen weight's product keeps no input), and b (J I + 2D) of the layer that the backward pass is in
            C = J = 4 with a gate, C = J = 2 without; C = 5, J = 4 without, with an activation of several operations
            + 2.5 * logits_bytes  (logits, exponentials, and three of the gradient)
            with `recomputes` the bracket is one layer's (L = 1), and L D b of inputs are added
        scoring     W + S + F of `scored_tokens` instead of N T
        codes       M + largest * (4 + b)  (a decoded matrix, while it is multiplied)
        sparse      + trainable * (8 + b)  (indices, first values); over codes 16 + b  (where they are among the kept)

    where D = hidden size, I = feed-forward size, Q, K = widths of queries and keys, L = layers, matrix = elements of a
    layer's largest, or of its stacked experts, largest = those of the model's largest matrix. Attention is SDPA without
    a mask: no T x T matrix is formed, but behind a prefix. The cache of generated answers is not included.

    Estimate over the tensors alive at the peak (`devices.tensors`; a Llama of 0.3 M weights on a CPU, fp32 if not
    said): a step of texts of one length 1.00 to 1.01 in zeroth order, with EGGROLL, q = 16 and all logits among them;
    MeZO 1.29, as its update's noise is taken to be stored; FO-LoRA-FA 1.36, at all logits 1.04. With texts that share
    rows 1.00 to 1.34, FO-Adam 1.42 (the largest of 40 batches is planned, and some other is taken). Scoring 200 rows in
    15 methods and precisions: 1.05 to 1.17. Other families of 2 layers and D = 64, in fp32, with zero-shot, MeZO,
    P-RGE at q = 4 and 16, EGGROLL, LOZO, FO-Adam and FO-LoRA-FA, texts of both kinds: GPT-2 1.00 to 1.31, OPT 1.01 to
    1.39, GPT-NeoX 1.01 to 1.40, Phi-3 1.00 to 1.39, Gemma 1.00 to 1.48; RoBERTa and BERT, padded, 1.02 to 1.37.
    Not measured: mixtures of experts, a family's own activation (BLOOM's), and a GPU.

    Args:
        value_bytes: bytes per activation.
        weights: bytes of the weights as they are stored, with what decodes them; defaults to value_bytes for each.
        scales: what decodes them, of these bytes; kept: entries outside the codes, of these bytes.
        trains: whether parameters move; backpropagates: by gradients.
        moves_base: whether the model's own weights are trained (full), rather than a small additional fp32 state.
        integers: whether these weights are integer codes.
        in_parts: whether the noise of a full space is added as it is made, and not stored.
        sparse: whether the trained values are chosen entries of the weights, kept with their indices and first values.
        points: points per forward.
        batch: sequences per point in a forward (for a loss over candidates: examples times distinct rows).
        tokens: padded length of a sequence.
        trainable: number of trained parameters.
        frozen: number of values of an adapter's frozen factors that all layers share; those of a layer's own are taken
            to be as many as it trains.
        state_copies: size of the update's state, in fp32 copies of them.
        trained_bytes: bytes per weight that backpropagation trains in the full space, and of its gradient.
        mixed_bytes: bytes per value of a step's products, where they are not in the weights' format; 0: they are.
        recomputes: whether layers are computed again in the backward pass (gradient checkpointing).
        on_host: whether the trial computes in the host's memory, where the best weights so far are kept as well, and
            8-bit Adam computes with five fp32 copies of a parameter.
        answer_tokens: positions per row whose logits are computed; `tokens` for all.
        coded: whether the weights of the blocks are decoded for every product, one matrix at a time.
        rank: of factors beside the projections.
        attended: length of a row of the attention's mask, with the prefix; 0: there is none.
        packed, scored_packed: tokens of a row that several texts share, in a step and in scoring; 0: none is shared.
        inputs: values per token of the inputs of products with trained factors, all layers; None: all products'.
        scored_tokens: tokens of the largest forward that scores rows, with padding; 0: the step's.
        scored_texts: texts of that forward.
    """
    width, inner, layers, vocabulary = arch.width, arch.inner, arch.layers, arch.vocabulary
    attending, keys = arch.heads * arch.head_width, arch.kv_heads * arch.head_width
    gated, fused = bool(arch.experts or {"gate", "gate_up"} & {*arch.linears}), "gate_up" in arch.linears
    held = 4 if gated or arch.masked else 6  # vectors of the layers' width beside the feed-forward's
    matrix = max(arch.experts, *(out * into for out, into in arch.linears.values()))

    b = trained_bytes if backpropagates and moves_base else value_bytes
    rows = batch * points
    if weights is None or b != value_bytes:
        weights = int(arch.parameters * b)
    largest = max(vocabulary * width, matrix)
    parts = dict.fromkeys(Part, 0.0)
    parts[Part.WEIGHTS], parts[Part.SCALES], parts[Part.SPARSE] = weights - scales - kept, scales, kept
    if trains and sparse:
        parts[Part.SPARSE] += trainable * ((2 if coded else 1) * INDEX + b)
    decoded = max(out * into for out, into in arch.linears.values()) * (FP32 + b) if coded else 0.0
    ids = INDEX * (3 * tokens * (batch + (rows if points > 1 else 0)) + 8 * rows * answer_tokens)

    def forward(
        positions: float, places: float, ids: float, moved: float = 0, written: float = 0, packed: float = 0
    ) -> dict[Part, float]:
        """Return the parts at the largest moment.

        Args:
            moved: bytes per entry of a perturbed weight.
            written: bytes of one module's parameters at every point.
        """
        value = positions * b
        attention = value * (3 * width + max(4 * attending + 2 * keys, 2 * attending + 5 * keys))
        between = max(4 if arch.composed else 2, 3 * gated) + fused
        activated = value * (held * width + between * inner)
        thin = value * (3 * width + attending + 4 * keys + 2 * rank) if rank else 0
        product = value * (held * width + (1 + gated) * inner)
        rotary = 2 * (positions if packed else tokens) * arch.head_width * b
        rotary += positions * (attended * (1 + FP32) or min(packed, positions))
        last = b * width * (positions + places)
        logits = logits_bytes(1, places, vocabulary) + FP32 * places
        moments: list[dict[Part, float]] = [
            {Part.ACTIVATIONS: max(attention, activated, thin) + rotary},
            {
                Part.ACTIVATIONS: product + rotary,
                Part.WORKSPACE: decoded + moved * matrix,
            },
            {
                Part.ACTIVATIONS: last,
                Part.LOGITS: logits / 2,
                Part.WORKSPACE: 0 if integers else moved * vocabulary * width,
            },
            {Part.ACTIVATIONS: last, Part.LOGITS: logits},
            {Part.ACTIVATIONS: value * width, Part.WORKSPACE: written},
        ]
        largest_one = max(moments, key=lambda moment: sum(moment.values()))
        return {**largest_one, Part.WORKSPACE: largest_one.get(Part.WORKSPACE, 0) + ids}

    moved = 0.0
    if trains and moves_base and points == 1:
        moved = 1 if integers else FP32 + b * (b < FP32) if in_parts else 2 * FP32 + b
    written = 3 * FP32 * points * arch.written if trains and moves_base and points > 1 else 0
    step = forward(rows * tokens, rows * answer_tokens, ids, moved, written, packed)
    if trains and backpropagates:
        a, norms = (mixed_bytes, 14) if mixed_bytes else (b, 8)
        kept_inner, frozen_inner = (4, 3) if gated else (5, 4) if arch.composed else (2, 1)
        every = 6 * width + 2 * attending + 4 * keys + kept_inner * inner
        thin = 2 * attending + 2 * keys + frozen_inner * inner
        bracket = every if inputs is None else min(every, thin + inputs / layers)
        per_layer = rows * tokens * (a * bracket + norms * width)
        passing = rows * tokens * a * ((4 if gated or arch.composed else 2) * inner + 2 * width) * (bracket < every)
        casts = 0 if moves_base else mixed_bytes * sum(out * into for out, into in arch.linears.values())
        step = {Part.WORKSPACE: ids + decoded, Part.ACTIVATIONS: layers * (per_layer + casts) + passing}
        if recomputes:
            step[Part.ACTIVATIONS] = per_layer + casts + passing + rows * tokens * layers * b * width
        step[Part.LOGITS] = 2.5 * logits_bytes(rows, answer_tokens, vocabulary)
        step[Part.LOGITS] += 0 if moves_base else mixed_bytes * vocabulary * width
        own = arch.parameters * b * (1 + on_host) if moves_base else FP32 * trainable * (2 + on_host)
        parts[Part.TRAINABLE] = own + FP32 * trainable * state_copies
        stepping = 5 * FP32 * largest * on_host if moves_base else 0
        if stepping > sum(step.values()):
            step = {Part.WORKSPACE: stepping}
    elif trains and moves_base:
        parts[Part.TRAINABLE] = FP32 * state_copies * trainable
        updating = 0 if integers else 2 * FP32 * largest
        if updating > sum(step.values()):
            step = {Part.WORKSPACE: updating}
    elif trains:
        parts[Part.TRAINABLE] = FP32 * trainable * (2 + state_copies + points)
    parts[Part.TRAINABLE] += b * frozen
    ids = INDEX * (3 * scored_tokens + 16 * scored_texts)
    scoring = forward(scored_tokens, scored_texts, ids, packed=scored_packed)
    scores = scored_tokens and (not trains or sum(scoring.values()) > sum(step.values()))
    return {**parts, **(scoring if scores else step)}


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
