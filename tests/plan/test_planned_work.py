"""The generations that a plan counts, against those of a run; and what they add to the trial's work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.run.common import make, run
from zo_sweeps.core.trial import TrialState
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.identity import status
from zo_sweeps.plan.planned_work import DECODING, PERTURBED, generations, work_of
from zo_sweeps.run.runner import Runner
from zo_sweeps.run.training import Backpropagation

SUMS = ["task=demo_sums", "train.max_length=64", "train.batch=9", "split.train=18", "split.dev=3", "split.test=10"]
STEPS = ["train.objective=reward", "train.steps=3", "train.eval_every=2", "update.lr=1e-3"]
TRIALS = {
    "zero-shot": ["method=zero_shot"],
    "best of n": ["method=best_of_n", "method.n=4"],
    "MeZO": ["method=mezo", "estimator.q=1", *STEPS],
    "MeZO, in place": ["method=mezo", "estimator.q=1", "evaluation.restore=in_place", *STEPS],
    "one-sided": ["method=es_at_scale", "estimator.q=2", *STEPS],
    "P-RGE": ["method=prge", "estimator.q=2", *STEPS],
    "P-RGE, a sign at a time": ["method=prge", "estimator.q=2", "evaluation.mode=outer", *STEPS],
    "policy gradient": ["method=policy_gradient", "method.group=3", *STEPS],
    "losses": ["method=mezo", *STEPS[1:]],
}


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", TRIALS)
def test_as_many_texts_and_batches_are_planned_as_a_run_generates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = make(*SUMS, *TRIALS[name])
    texts: list[int] = []
    continued = CausalModel._continued

    def spy(model: CausalModel, prompts: Sequence[Any], *args: Any) -> Any:
        texts.append(len(prompts))
        return continued(model, prompts, *args)

    monkeypatch.setattr(CausalModel, "_continued", spy)
    monkeypatch.setattr(Runner, "measure_parts", lambda *args: None)  # of a step more
    monkeypatch.setattr(Backpropagation, "_one_more", lambda *args: None)
    outcome, _ = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    planned = generations(TrialConfig.of(trial.config), 1, (3, 10))
    assert planned[:2] == (sum(texts), len(texts))
    of_steps = len(texts) - 4  # dev twice, and the ten rows of test, in two batches
    assert planned.perturbed == (of_steps if name in ("MeZO", "one-sided") else 0)


@pytest.mark.unit
def test_a_generation_s_work_is_its_tokens_and_the_forwards_of_few() -> None:
    """The prompt at once, and a forward per further token: of two batches of dev and test, and of steps."""
    zero, mezo = (TrialConfig.of(make(*SUMS, *TRIALS[name]).config) for name in ("zero-shot", "MeZO"))
    arch = status(zero.model).arch
    assert arch is not None
    weights, head = 2 * arch.entries([ALL]), 2 * arch.vocabulary * arch.width
    tokens, operations = work_of(zero, arch, 0, 20.0, 20.0, (3, 10))
    assert tokens == 13 * 20 + 13 * (20 + 12)
    assert operations == pytest.approx(weights * (tokens + DECODING * 3 * 11) + head * 13 * 12)
    tokens, operations = work_of(mezo, arch, 1, 20.0, 20.0, (3, 10))
    texts, batches = 3 * 2 * 9, 3 * 2 * 2  # of two points, nine prompts in two batches
    assert tokens == 16 * 20 + (16 + texts) * (20 + 12)
    single = (DECODING * (2 + 2 + batches) + PERTURBED * batches) * 11
    assert operations == pytest.approx(weights * (tokens + single) + head * (16 + texts) * 12)
