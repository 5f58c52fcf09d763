"""run_trial on a small model: resume, selection, divergence, stops. Equality is of bits."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import REPO
from tests.run.common import make, measured, run
from zo_sweeps.core.events import (
    ComputedInitial,
    End,
    Event,
    ScoredDev,
    ScoredTest,
    Start,
    Steps,
    Warned,
    only,
    read_event,
    write_event,
)
from zo_sweeps.core.trial import Outcome, StoredConfig, Trial, TrialState
from zo_sweeps.devices import peak_memory
from zo_sweeps.devices.peak_memory import set_aside
from zo_sweeps.engine.layers import low_rank
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.record.journal import scalars
from zo_sweeps.run import recorder, workbench
from zo_sweeps_report.metric_meanings import METRICS

pytestmark = pytest.mark.usefixtures("one_thread")

LORA_ZO = ["method=prge", "estimator.q=2", "update.lr=0.05", "train.steps=5"]
RUNS = {
    "zo full": ["method=mezo", "update.lr=1e-4", "train.steps=3"],
    "zo full, directions of the data": ["method=agzo", "update.lr=1e-3", "train.steps=3"],
    "zo lora": [*LORA_ZO, "space=lora"],
    "zo lora_fa": LORA_ZO,
    "zo lora over the last block": [*LORA_ZO, "space=lora", "space.blocks=1"],
    "zo lora_fa, linear schedule, weight decay": [*LORA_ZO, "update.schedule=linear", "update.weight_decay=0.1"],
    "fo lora_fa": ["method=fo_lora_fa", "update.lr=1e-3", "train.steps=4"],
    "fo full": ["method=fo_full", "update.lr=1e-4", "train.steps=4"],
}


TOLD = {  # what of an event does not depend on when and where it happened
    "steps": ("first", "losses", "coefs", "tokens"),
    "eval": ("step", "split", "loss", "metric", "metrics"),
    "test": ("step", "loss", "metric", "metrics"),
}


@pytest.fixture(autouse=True)
def _every_step_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step becomes an event of its own, so that there are as many boundaries to resume at as there can be."""
    monkeypatch.setattr(recorder, "FLUSH_SECONDS", -1.0)


@pytest.fixture(scope="module")
def undisturbed() -> Callable[[str], tuple[Trial, Outcome, list[Event]]]:
    done: dict[str, tuple[Trial, Outcome, list[Event]]] = {}

    def get(name: str) -> tuple[Trial, Outcome, list[Event]]:
        if name not in done:
            trial = make(*RUNS[name])
            done[name] = (trial, *run(trial))
        return done[name]

    return get


ALSO = {"zo lora", "zo lora_fa"}  # the run with a linear schedule takes the same way


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.long) if one in ALSO else one for one in RUNS])
def test_a_run_resumed_at_any_event_equals_the_undisturbed_one(name: str) -> None:
    trial = make(*RUNS[name])
    outcome, journal = run(trial)
    expected = measured(outcome, journal)
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    assert {*outcome.metrics} <= {*METRICS, *(f"{split}/accuracy" for split in ("dev", "test"))}, "each is documented"
    assert len(journal) >= 8, "events of single steps"
    for cut in range(len(journal)):
        again = measured(*run(trial, journal[:cut], attempt=2))
        assert again == expected, f"resumed after {cut} events: {[event['type'] for event in journal[:cut]]}"


def test_backpropagation_a_layer_at_a_time_stops_at_the_first_block_that_is_trained() -> None:
    ways = ["method=fo_lora_fa", "method=fo_lora_fa_layerwise"]
    runs = [run(make(way, "update.lr=1e-2", "train.steps=4", "space.blocks=1")) for way in ways]
    assert [outcome.state for outcome, _ in runs] == [TrialState.SUCCEEDED] * 2
    (losses, again) = (scalars(journal)[1] for _, journal in runs)
    everywhere, _ = run(make(ways[0], "update.lr=1e-2", "train.steps=1"))
    for outcome, _ in runs:
        assert 2 * outcome.metrics["trainable_parameters"] == everywhere.metrics["trainable_parameters"]
    assert losses == pytest.approx(again, rel=1e-4)
    assert losses[0] != losses[-1]


@pytest.mark.parametrize("name", ["zo lora_fa, linear schedule, weight decay", "fo lora_fa"])
def test_a_trial_that_comes_as_json_goes_on_to_the_same_journal(name: str, undisturbed: Any) -> None:
    """As on another node: the configuration is read from the trial's JSON, and so is the journal so far."""
    trial, outcome, journal = undisturbed(name)
    stored = Trial.from_json(json.loads(json.dumps(trial.to_json())))
    assert isinstance(stored.config, StoredConfig)
    cut = next(i for i, event in enumerate(journal) if isinstance(event, ScoredDev)) + 2
    sent = json.dumps([write_event(event) for event in journal[:cut]])
    resumed, whole = run(stored, [*map(read_event, json.loads(sent))], attempt=2)
    assert measured(resumed, whole) == measured(outcome, journal)
    (start,) = (event for event in whole[cut:] if isinstance(event, Start))
    assert start.resumed_from == (3 if trial.config.method.kind.resumes else 0)
    told = [(event.kind, *(getattr(event, key) for key in TOLD[event.kind])) for event in whole if event.kind in TOLD]
    assert told == [(e.kind, *(getattr(e, key) for key in TOLD[e.kind])) for e in journal if e.kind in TOLD]


def test_a_trial_of_an_earlier_version_that_shared_forwards_goes_on_and_keeps_its_mark(undisturbed: Any) -> None:
    """Its costs were not its own: `executor.fuse` of that version ran several trials in one process."""
    trial, outcome, journal = undisturbed("zo lora_fa")
    data = trial.to_json()
    old = Trial.from_json({**data, "shares_forwards": True, "needs": {**data["needs"], "beside": 2}})
    assert old.needs == trial.needs
    cut = next(i for i, event in enumerate(journal) if isinstance(event, Steps)) + 1
    marked = [replace(event, fused=3) if isinstance(event, Start) else event for event in journal[:cut]]
    resumed, whole = run(old, marked, attempt=2)
    assert measured(resumed, whole) == measured(outcome, journal)
    assert resumed.metrics["fused_trials"] == 3
    assert not [name for name in resumed.metrics if name.startswith(recorder.COSTS)]
    assert all("shared forwards" in resumed.unmeasured[name] for name in recorder.COSTS)


def test_a_whole_journal_is_not_run_again(undisturbed: Any) -> None:
    """All that is left to do is to say it: no step, no evaluation, no test a second time."""
    trial, _, journal = undisturbed("zo lora_fa")
    _, after = run(trial, journal[:-1], attempt=2)
    assert [event.kind for event in after[len(journal) - 1 :]] == ["start", "end"]


@pytest.mark.parametrize("name", ["zo lora_fa", "fo lora_fa"])
def test_a_stop_ends_as_cancelled_and_goes_on_to_the_same_result(name: str, undisturbed: Any) -> None:
    trial, outcome, journal = undisturbed(name)
    asked = iter([False, False, True])
    first, part = run(trial, stop=lambda: next(asked, True))
    assert first.state is TrialState.CANCELLED
    assert 0 < first.steps_done < trial.steps
    assert not any(isinstance(event, ScoredTest) for event in part)
    assert measured(*run(trial, part, attempt=2)) == measured(outcome, journal)


def test_events_come_in_order_with_the_test_split_scored_once(undisturbed: Any) -> None:
    for name in RUNS:
        _, outcome, journal = undisturbed(name)
        kinds = [event.kind for event in journal]
        assert (kinds[0], kinds[-2:], kinds.count("test")) == ("start", ["test", "end"], 1)
        firsts = [event.first for event in journal if isinstance(event, Steps)]
        assert firsts == sorted(firsts)
        dev = {event.step: event.loss for event in journal if isinstance(event, ScoredDev)}
        assert outcome.selected_step == min(dev, key=lambda step: (dev[step], step))
        assert outcome.metrics["dev/loss"] == dev[outcome.selected_step]


@pytest.mark.parametrize("name", ["zo full", "zo lora", "zo lora_fa", "fo lora_fa"])
def test_the_weights_that_are_tested_are_those_of_the_selected_step(name: str) -> None:
    """With so large a step that the run gets worse, the test score is that of a run that ended at the best step."""
    lr = {"zo full": 3e-2, "fo lora_fa": 0.03}.get(name, 3.0)
    overrides = [*RUNS[name], f"update.lr={lr}", "train.steps=6"]
    trial = make(*overrides)
    outcome, journal = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    best = outcome.selected_step
    assert best < 6, "else this shows nothing: choose a larger lr"
    shorter, _ = run(make(*overrides, f"train.steps={best}"))
    assert shorter.selected_step == best
    for key in ("dev/loss", "dev/metric", "test/loss", "test/metric"):
        assert shorter.metrics[key] == outcome.metrics[key]
    last = next(e for e in journal if isinstance(e, ScoredDev) and e.step == 6)
    assert last.loss > outcome.metrics["dev/loss"]


@pytest.mark.parametrize("name", ["zo lora_fa", "fo lora_fa"])
def test_logits_and_padding_as_in_released_code_are_other_trials_with_the_same_losses(
    name: str, undisturbed: Any
) -> None:
    ours, outcome, events = undisturbed(name)
    theirs = make(*RUNS[name], "train.logits=all", "train.packing=false")
    assert theirs.trial_id != ours.trial_id
    assert theirs.memory_key != ours.memory_key
    assert theirs.needs.memory_bytes > ours.needs.memory_bytes
    other, padded = run(theirs)
    losses = [[x for event in told if isinstance(event, Steps) for x in event.losses] for told in (events, padded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    tokens = [sum(event.tokens for event in told if isinstance(event, Steps)) for told in (events, padded)]
    assert tokens[0] < tokens[1], "padding is counted"
    assert outcome.state is other.state is TrialState.SUCCEEDED


def test_zero_shot_is_the_base_model_and_has_no_step() -> None:
    outcome, journal = run(make("method=zero_shot"))
    assert (outcome.state, outcome.selected_step, outcome.steps_done) == (TrialState.SUCCEEDED, 0, 0)
    assert [event.kind for event in journal] == ["start", "eval", "test", "end"]
    assert "seconds_per_step" not in outcome.metrics
    still, _ = run(make("method=mezo", "update.lr=0", "train.steps=1"))
    assert still.metrics["test/loss"] == outcome.metrics["test/loss"], "a run that does not move stays there"


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=mezo", "update.lr=1e38", "train.steps=6"],
        ["method=prge", "update.lr=1e30", "train.steps=6"],
        ["method=prge", "update.lr=0.1", "estimator.eps=1e38", "train.steps=6"],
        ["method=fo_lora_fa", "update.lr=1e30", "train.steps=6"],
    ],
)
def test_a_loss_that_is_not_finite_is_recorded_as_divergence_with_step_and_seed(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak_memory, "_reset_high_water", lambda: False)  # as where the kernel's peak cannot be reset
    trial, before = make(*overrides), {*threading.enumerate()}
    outcome, journal = run(trial)
    assert outcome.state is TrialState.DIVERGED, outcome
    assert "non-finite" in outcome.error
    assert "step" in outcome.error
    assert "seed 3" in outcome.error
    assert outcome.steps_done < 6
    assert not [thread for thread in {*threading.enumerate()} - before if thread.name == "memory-meter"]
    assert "test/metric" not in outcome.metrics
    assert journal[-1].outcome.state.value == "DIVERGED"
    assert read_event(json.loads(json.dumps(write_event(journal[-1])))) == journal[-1]


@pytest.mark.multiprocess
@pytest.mark.long
def test_a_trial_after_one_that_moved_the_weights_is_as_in_a_fresh_process(undisturbed: Any) -> None:
    lora, full = make(*RUNS["zo lora_fa"], "seed=5"), make(*RUNS["zo full"])
    run(full)
    here = measured(*run(lora))
    run(make(*RUNS["fo full"]))
    assert measured(*run(lora)) == here
    code = (
        "import json, sys, torch; torch.set_num_threads(1)\n"
        "from tests.run.common import measured, run\n"
        "from zo_sweeps.core.trial import Trial\n"
        "found = measured(*run(Trial.from_json(json.loads(sys.stdin.read()))))\n"
        "print(json.dumps([found['scores'], found['log']]))"
    )
    fresh = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPO,
        input=json.dumps(lora.to_json()),
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    scores, log = json.loads(fresh.stdout.splitlines()[-1])
    assert scores == here["scores"]
    assert log == json.loads(json.dumps(here["log"]))


def test_a_trial_after_one_that_ended_while_its_layers_were_replaced_is_as_in_a_fresh_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = [make(*words, "train.steps=2") for words in (["method=mezo", "update.lr=1e-3"], ["update.lr=0.1"])]
    before, made = [measured(*run(trial)) for trial in trials], iter(range(3))

    def full(self: low_rank.LowRankLinear, *args: Any) -> None:
        if next(made) == 2:
            raise torch.cuda.OutOfMemoryError("no room")
        begun(self, *args)

    begun = low_rank.LowRankLinear.__init__
    with monkeypatch.context() as patch:
        patch.setattr(low_rank.LowRankLinear, "__init__", full)
        assert run(trials[1])[0].state is TrialState.OUT_OF_MEMORY
    assert [measured(*run(trial)) for trial in trials] == before


def test_an_error_is_an_outcome_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(*args: Any) -> None:
        raise RuntimeError("nonesuch")

    monkeypatch.setattr(SGD, "apply", apply)
    outcome, journal = run(make(*RUNS["zo lora_fa"]))
    assert outcome.state is TrialState.FAILED
    assert "nonesuch" in outcome.error
    assert "Traceback" in outcome.traceback
    assert isinstance(journal[-1], End)


def test_what_is_measured_says_so(undisturbed: Any) -> None:
    _, outcome, journal = undisturbed("zo lora_fa")
    losses = [loss for event in journal if isinstance(event, Steps) for loss in event.losses]
    assert outcome.metrics["final_train_loss"] == pytest.approx(statistics.fmean(losses[-100:]))
    for name in (
        "seconds_per_step",
        "mean_seconds_per_step",
        "train_seconds",
        "wall_seconds",
        "tokens_per_second",
        "peak_memory_bytes",
    ):
        assert outcome.metrics[name] > 0
    assert outcome.metrics["weights_bytes"] > outcome.metrics["trainable_parameters"] > 0
    assert outcome.device["memory_definition"]
    assert outcome.metrics["train_seconds"] <= outcome.metrics["wall_seconds"]


def test_the_seconds_of_a_trial_are_those_of_all_its_attempts_if_all_are_known() -> None:
    trial, looks = make(*RUNS["zo lora_fa"]), iter(range(1000))
    first, journal = run(trial, stop=lambda: next(looks) > 4)
    assert first.state is TrialState.CANCELLED
    whole, _ = run(trial, journal, attempt=2)
    assert whole.metrics["wall_seconds"] > first.metrics["wall_seconds"] + whole.metrics["load_seconds"] / 2
    assert whole.metrics["train_seconds"] <= whole.metrics["wall_seconds"]
    killed, _ = run(trial, journal[:-1], attempt=2)
    assert not {"wall_seconds", "load_seconds"} & killed.metrics.keys(), "nobody knows when it was killed"


def test_the_directions_of_a_generator_that_repeats_are_a_metric(undisturbed: Any) -> None:
    outcome, _ = run(make("method=pezo_pool", "perturbation.k=4", "train.steps=1", "update.lr=1e-4"))
    assert outcome.metrics["directions"] == 15 / math.gcd(15, int(outcome.metrics["trainable_parameters"]))
    assert "directions" not in undisturbed("zo lora_fa")[1].metrics


def test_a_direction_that_was_dropped_counts_once_whatever_else_is_known_of_it() -> None:
    trial = make("method=hizoo", "update.lr=1e-3", "estimator.q=3", "train.steps=2")
    _, journal = run(trial)
    (line, _), _ = scalars(journal)
    assert len(line) == 6, "slopes, and curvatures"
    lacking = tuple(math.nan if i % 3 == 1 else g for i, g in enumerate(line))
    one = Steps(first=1, losses=(1.0,), coefs=(lacking,), seconds=0.0, tokens=0)
    found, _ = run(trial, [only(Start, journal)[0], one], attempt=2)
    assert (found.state, found.metrics["directions_dropped"]) == (TrialState.SUCCEEDED, 1)


def test_rows_that_are_cut_and_rows_that_are_not_there_are_metrics(undisturbed: Any) -> None:
    metrics = undisturbed("zo lora_fa")[1].metrics
    assert (metrics["rows_truncated"], metrics["train_rows"], metrics["train_rows_short"]) == (0, 24, 0)
    outcome, _ = run(make(*RUNS["zo lora_fa"], "train.steps=1", "train.max_length=3", "split.train=1000000"))
    metrics = outcome.metrics
    assert (metrics["rows_truncated"], metrics["train_rows"], metrics["train_rows_short"]) == (340, 320, 999_680)


def test_a_generation_task_is_scored_by_f1(tmp_path: Path) -> None:
    folder = tmp_path / "squad"
    folder.mkdir()
    row = {
        "title": "Films",
        "context": "The film was great.",
        "question": "What was the film?",
        "answers": {"text": ["great", "The film was great"], "answer_start": [0, 0]},
    }
    for split in ("train", "validation", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({**row, "id": str(i)}) + "\n" for i in range(6)))
    given = ["task=squad", f"data.dir={tmp_path}", "split.dev=3", "split.test=3", "train.max_length=128"]
    trial = make("method=prge", "update.lr=0.05", "train.steps=2", *given)
    outcome, journal = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback
    assert 0 <= outcome.metrics["test/metric"] <= 1
    steps = [event for event in journal if isinstance(event, Steps)]
    assert measured(*run(trial, journal[: journal.index(steps[0]) + 1], attempt=2)) == measured(outcome, journal)


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_model_is_freed_before_the_next_is_loaded(in_a_cycle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = make("method=zero_shot")
    config = TrialConfig.of(trial.config)
    first = workbench.base_model(config, "one", [torch.device("cpu")]).module
    if in_a_cycle:
        first.own = [first]
    gone = weakref.ref(first)
    del first
    set_aside()  # the next trial begins
    monkeypatch.setattr(workbench, "load", lambda *_: gone())
    assert workbench.base_model(config, "two", [torch.device("cpu")]) is None
    workbench.warm = None


@pytest.mark.parametrize("space", ["prefix", "dora"])
def test_initial_values_of_other_last_bits_are_told_of_once_and_the_trial_goes_on(space: str) -> None:
    trial = make("method=prge", f"space={space}", "update.lr=0.05", "train.steps=4")
    outcome, journal = run(trial)
    (began,) = [event for event in journal if isinstance(event, ComputedInitial)]
    assert not [event for event in journal if isinstance(event, Warned) and event.metric == "initial"]
    half = journal[: 1 + max(i for i, event in enumerate(journal) if isinstance(event, ScoredDev) and event.step == 2)]
    assert measured(*run(trial, half, attempt=2)) == measured(outcome, journal)
    elsewhere = [replace(event, fingerprint="f" * 64) if event is began else event for event in half]
    ended, told = run(trial, elsewhere, attempt=2)
    assert ended.state is TrialState.SUCCEEDED
    (warning,) = [event for event in told if isinstance(event, Warned) and event.metric == "initial"]
    assert f"the initial values of {space} are sums over the weights, and have other last bits here" in warning.text
