"""Mixed precision in backpropagation: an independent loop, skipped steps, memory, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engine.conftest import make_examples, tiny_model
from tests.engine.test_baselines import outcome_of, trials
from zo_sweeps.core.caveats import remarks
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.memory_parts import TOTAL
from zo_sweeps.core.trial import TrialState
from zo_sweeps.engine import first_order, losses
from zo_sweeps.engine.batch import Batch, collate
from zo_sweeps.engine.losses import Loss
from zo_sweeps.engine.train import Scores, StepDone
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.space import FullModel
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.methods.update import Update

pytestmark = pytest.mark.unit
STEPS = 6
EXAMPLES = make_examples(8 * STEPS, options=1, answer=2)
TRUNCATED = [example.candidates[0].ids[-6:] for example in EXAMPLES]  # rows of one length


def rows_of(step: int) -> list[tuple[int, ...]]:
    return TRUNCATED[8 * (step - 1) : 8 * step]


def batch_of(step: int) -> Batch:
    examples = EXAMPLES[8 * (step - 1) : 8 * step]
    short = [type(e)((type(e.candidates[0])(ids, 2),), 0) for e, ids in zip(examples, rows_of(step), strict=True)]
    return collate(short, pad_id=0, packed=False, every_position=True)


def ours(
    update: Update, autocast: torch.dtype | None, loss: Loss = losses.tokens, steps: int = STEPS
) -> tuple[list[StepDone], dict[str, Tensor]]:
    model = tiny_model()
    space = FullModel(model.module)
    events = first_order.train(
        model, space, lambda step: batch_of((step - 1) % STEPS + 1), loss, update, lambda: Scores(0.0, 0.0, {}),
        steps=steps, eval_every=steps, seed=0, autocast=autocast,
    )  # fmt: skip
    done = [event for event in events if isinstance(event, StepDone)]
    return done, {name: param.detach() for name, param in space.params.items()}


def plain(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> tuple[list[float], dict[str, Tensor]]:
    """The documented loop of torch.amp over transformers' own model and torch's own cross-entropy."""
    module = tiny_model().module.requires_grad_(True)
    optimizer, scaler, seen = make(list(module.parameters())), torch.amp.GradScaler("cpu"), []
    for step in range(1, STEPS + 1):
        ids = torch.tensor(rows_of(step))
        with torch.autocast("cpu", dtype=torch.float16):
            logits = module(input_ids=ids, use_cache=False).logits
            loss = F.cross_entropy(logits[:, -3:-1].flatten(0, 1).float(), ids[:, -2:].flatten())
        seen.append(loss.item())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return seen, {name: param.detach() for name, param in module.named_parameters()}


LR = 0.05


@pytest.mark.parametrize(
    ("update", "make"),
    [
        (SGD(lr=LR), lambda params: torch.optim.SGD(params, lr=LR)),
        (Adam(lr=0.01), lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.0)),
    ],
)
def test_losses_and_weights_are_those_of_a_plain_loop_with_autocast_and_a_scaler(
    update: Update, make: Callable[[list[Tensor]], torch.optim.Optimizer]
) -> None:
    with torch.backends.mkldnn.flags(
        enabled=False
    ):  # its products in fp16 have other sums for other rows on some processors
        seen, wanted = plain(make)
        done, found = ours(update, torch.float16)
        whole, _ = ours(update, None)
    assert not any(event.skipped for event in done)
    assert all(param.dtype is torch.float32 for param in found.values())
    assert [event.loss for event in done] == pytest.approx(seen, rel=1e-6)
    for name, param in found.items():
        torch.testing.assert_close(param, wanted[name], rtol=0, atol=1e-6)
    other = [abs(one.loss - event.loss) / event.loss for one, event in zip(whole, done, strict=True)]
    assert 1e-5 < max(other) < 0.05, "fp32 rounds otherwise, and a little"


def test_a_step_whose_scaled_gradients_overflow_moves_nothing_and_halves_the_scale() -> None:
    """A loss 2^k times as large overflows fp16 until the scale has lost as many factors of two."""
    factor = 2.0**8
    start = {name: param.detach().clone() for name, param in tiny_model().module.named_parameters()}

    def steep(logprobs: Tensor, batch: Batch) -> Tensor:
        return factor * losses.tokens(logprobs, batch)

    update = SGD(lr=1e-6)
    once, still = ours(update, torch.float16, steep, steps=1)
    assert [event.skipped for event in once] == [True]
    assert all(torch.equal(param, start[name]) for name, param in still.items())
    done, moved = ours(update, torch.float16, steep, steps=14)
    skips = [event.skipped for event in done]
    assert skips == sorted(skips, reverse=True), "the first steps, until the scale fits"
    assert 1 < sum(skips) < 14
    assert any(not torch.equal(param, start[name]) for name, param in moved.items())
    assert not any(event.skipped for event in ours(update, None, steep, steps=2)[0])


FEW = (  # rows of 64 tokens, and layers that need more than the logits
    "task: timing, prompt: prge, model.arch.intermediate_size: 192, model.arch.num_hidden_layers: 8, "
    "train: {steps: 2, batch: 2, eval_every: 2, max_length: 64}"
)


@pytest.mark.parametrize("method", ["fo_full", "fo_sgd_lora_fa, method.gradient_checkpointing: true"])
def test_a_trial_counts_skipped_steps_says_so_and_needs_the_memory_that_is_planned(method: str, tmp_path: Path) -> None:
    (mixed,) = trials(tmp_path, f"{{method: {method}, method.mixed_precision: true, {FEW}}}", "device=cpu")
    outcome, _ = outcome_of(mixed)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    assert outcome.metrics["steps_skipped"] in (0, 1, 2)
    assert any("products are in fp16" in line for line in remarks([outcome.metrics], of_cost=True))
    planned = sum(mixed.needs.parts.values())
    best = TrialConfig.of(mixed.config).space.moves_base * mixed.needs.parts["weights"]  # a copy, which no step reads
    assert 1 <= (planned - best) / outcome.metrics[TOTAL] < 1.5


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            "{method: fo_full_8bit, method.mixed_precision: true}",
            "over fp32 weights: use method.weights=fp32, not bf16",
        ),
        (
            "{method: fo_lora_fa, method.mixed_precision: true, precision: fp16}",
            "over fp32 weights: use precision=fp32, not fp16",
        ),
        ("{method: fo_lora_fa, method.mixed_precision: true, precision: nf4}", "use precision=fp32, not nf4"),
        ("{method: mezo, method.mixed_precision: true}", "unknown key 'method.mixed_precision'"),
    ],
)
def test_mixed_precision_is_of_backpropagation_over_fp32_weights(block: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        trials(tmp_path, block)
