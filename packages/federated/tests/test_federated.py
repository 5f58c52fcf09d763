"""Federated trials: one client is a trial of MeZO; interrupted ones go on; settings that do not go together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.run.common import make, measured, run
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ScoredTest, only
from zo_sweeps.core.memory_parts import Part
from zo_sweeps.core.trial import TrialState
from zo_sweeps.tasks.encode import EncodedExample
from zo_sweeps_federated.rounds import ClientRows

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


@pytest.mark.parametrize("directions", [[], ["perturbation=seed_pool_pro", "perturbation.every=2"]], ids=["", "pro"])
def test_clients_by_label_are_interrupted_within_a_round_and_go_on_with_the_same_bits(directions: list[str]) -> None:
    trial = make(*KSEED, *directions)
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
        (["perturbation=seed_pool_pro", "perturbation.every=3"], "after method.local_steps=2: make them equal"),
        (["perturbation=cone"], "change after 1 steps"),
        (["update=adam"], "takes local steps without a state: use update=sgd, not adam"),
        (["update=low_rank_momentum"], "takes local steps without a state: use update=sgd, not low_rank_momentum"),
        (["perturbation=small_weights"], "depend on the weights at its step"),
        (["estimator=es"], "estimator=es has no mean of"),
        (["estimator=fzoo"], "estimator=fzoo compares the points of several: use estimator=rge"),
        (["estimator=rloo"], "estimator=rloo compares the points of several: use estimator=rge"),
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


def test_clients_by_a_column_have_the_rows_of_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["fine", "poor", "dull", "warm"]
    rows = [{"sentence": f"{words[i % 4]} film {i}", "label": i % 2, "site": words[i % 4]} for i in range(60)]
    (tmp_path / "sst2").mkdir()
    for name, own in {"train": rows[:40], "validation": rows[40:50], "test": rows[50:]}.items():
        (tmp_path / "sst2" / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in own))
    own = [*KSEED, "task=sst2", f"data.dir={tmp_path}", "method.by=site"]
    seen: dict[int, set[str]] = {}
    of = ClientRows.of

    def spied(self: ClientRows, client: int) -> list[EncodedExample]:
        seen[client] = {word for example in of(self, client) for word in words if word in example.text}
        return of(self, client)

    monkeypatch.setattr(ClientRows, "of", spied)
    found, _ = run(make(*own, "method.alpha=null", "train.steps=8"))
    assert found.state is TrialState.SUCCEEDED, found.error
    assert len(seen) > 2
    assert all(len(values) == 1 for values in seen.values())
    assert len(set.union(*seen.values())) == len(seen), "another word for each client"
    run(make(*own))
    assert any(len(values) > 1 for values in seen.values()), "alpha divides each value's rows"
    with pytest.raises(
        UserError, match=r"unknown column 'sight' in method\.by; choose from: label, sentence, site;.*site"
    ):
        make(*own, "method.by=sight")
    with pytest.raises(UserError, match=r"5 clients cannot share 4 sources of rows"):
        make(*own, "method.alpha=null", "method.clients=5")
    with pytest.raises(UserError, match=r"method\.by divides rows that method\.files has divided"):
        make(*own, "method.files=client_")
