"""Federated trials: one client is a trial of MeZO; interrupted ones go on; settings that do not go together."""

from __future__ import annotations

import pytest

from tests.run.common import make, measured, run
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ScoredTest, only
from zo_sweeps.core.memory_parts import Part
from zo_sweeps.core.trial import TrialState

pytestmark = pytest.mark.usefixtures("one_thread")
TRAIN = ["update.lr=1e-3", "train.batch=4", "train.steps=4", "train.eval_every=2"]
MEZO = ["method=mezo", "estimator.q=2", *TRAIN]
ONE = ["method=decomfl", "estimator=rge", "estimator.q=2", "method.clients=1", "method.present=1", *TRAIN]
FEDAVG = ["method=fedavg_lora", "method.clients=4", "method.present=2", "method.local_steps=2"]
KSEED = [
    "method=fedkseed", "method.clients=4", "method.present=2", "method.local_steps=2", "estimator.q=2",
    "method.alpha=0.5", *TRAIN,
]  # fmt: skip


def test_one_client_has_the_result_of_mezo_and_other_bytes() -> None:
    alone, federated = run(make(*MEZO)), run(make(*ONE))
    assert measured(*federated) == measured(*alone)
    weights = [only(ScoredTest, journal)[0].weights for _, journal in (alone, federated)]
    assert weights[0] == weights[1]
    metrics = federated[0].metrics
    # 4 rounds of 4 points; coefficients of 3 steps, of 2 directions
    assert (metrics["rounds"], metrics["client_bytes_up"], metrics["client_bytes_down"]) == (4, 4 * 4 * 4, 3 * 2 * 8)
    assert metrics["client_bytes"] == (64 + 48) / 4


def test_one_client_of_averaged_weights_has_the_result_of_backpropagation_and_other_bytes() -> None:
    fo = ["space=lora", "update.lr=1e-3", "train.batch=4", "train.steps=4", "train.eval_every=4"]
    alone = run(make("method=fo_lora_fa", *fo))
    averaged = run(make(*FEDAVG, *fo, "method.clients=1", "method.present=1", "method.local_steps=4"))
    assert averaged[0].state is TrialState.SUCCEEDED, averaged[0].error
    assert measured(*averaged) == measured(*alone)
    assert only(ScoredTest, averaged[1])[0].weights == only(ScoredTest, alone[1])[0].weights
    metrics = averaged[0].metrics
    weights = 4 * metrics["trainable_parameters"]
    assert (metrics["rounds"], metrics["client_bytes_up"], metrics["client_bytes_down"]) == (1, weights, weights)


def test_averaged_weights_are_scored_at_the_end_of_rounds_and_their_copies_are_counted() -> None:
    trial = make(*FEDAVG, "method.alpha=0.5", *TRAIN)
    outcome, journal = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    assert outcome.metrics["rounds"] == 2
    assert outcome.metrics["client_bytes"] == 2 * 4 * outcome.metrics["trainable_parameters"], "down and up, per client"
    alone = make("method=fo_lora_fa", "space=lora", *TRAIN)
    copies = 2 * 4 * outcome.metrics["trainable_parameters"]
    assert trial.needs.parts["trainable"] == alone.needs.parts["trainable"] + copies
    of_step = [one.metrics[Part.TRAINABLE.metric] for one in (outcome, run(alone)[0])]
    assert of_step[0] == of_step[1] + copies
    assert measured(*run(trial)) == measured(outcome, journal)


def test_clients_by_label_are_interrupted_within_a_round_and_go_on_with_the_same_bits() -> None:
    trial = make(*KSEED)
    whole = run(trial)
    assert whole[0].state is TrialState.SUCCEEDED, whole[0].error
    asked = iter([False, False, False, True])
    stopped, journal = run(trial, stop=lambda: next(asked))
    assert (stopped.state, stopped.steps_done) == (TrialState.CANCELLED, 3)
    assert measured(*run(trial, journal, attempt=2)) == measured(*whole)
    assert make(*KSEED, "method.alpha=1").trial_id != trial.trial_id


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["estimator.q=3"], "estimator.q=2, not 3"),
        (["update=adam"], "takes local steps without a state: use update=sgd, not adam"),
        (["perturbation=small_weights"], "depend on the weights at its step"),
        (["estimator=es"], "estimator=es has no mean of"),
        (["evaluation.restore=in_place"], "leave evaluation.restore and parts out"),
        (["method.present=9"], "method.present=9 of method.clients=4"),
        (["task=copa"], "task copa has no labels"),
    ],
)
def test_what_clients_cannot_do_is_refused_in_one_line(overrides: list[str], line: str) -> None:
    with pytest.raises(UserError) as raised:
        make(*KSEED, *overrides)
    assert line in str(raised.value)


def test_averaged_weights_cannot_be_scored_within_a_round() -> None:
    with pytest.raises(UserError, match=r"train.eval_every=2 is no multiple of method.local_steps=3"):
        make(*FEDAVG, *TRAIN, "method.local_steps=3")


def test_a_plan_counts_the_copy_of_theta_that_local_steps_go_back_to() -> None:
    one, several = (make(*ONE, f"method.local_steps={count}").needs for count in (1, 2))
    assert (one.parts["trainable"], several.parts["trainable"]) == (0, one.parts["weights"])
    assert several.memory_bytes == one.memory_bytes + one.parts["weights"], "all weights move"
