"""The light client on the bundle of a real trial: the log of Python's bindings to the bit, and the engine's theta."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("executorch", reason="needs the extra [edge]")

import torch

from built import with_other_last_bits
from reference import log_of
from tests.run.common import make, measured, run
from zo_sweeps.core.events import ComputedInitial, Event
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.engine.noise import combine
from zo_sweeps.engine.replay import digest as replayed
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.record.journal import evals, scalars
from zo_sweeps_edge import bundle, bundles

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.usefixtures("one_thread", "one_store")]

TRIAL = [
    *("model=random_llama", "model.arch.hidden_size=64", "model.arch.intermediate_size=96"),
    *("model.arch.num_hidden_layers=1", "method=prge", "update.lr=0.01", "evaluation.mode=both", "estimator.q=4"),
    *("train.steps=8", "train.eval_every=4", "device=auto", "device.runtime=executorch"),
]


@pytest.fixture(scope="module")
def by_the_bindings(one_store: None) -> tuple[Outcome, list[Event]]:
    """The trial in Python's runtime."""
    ended, journal = run(make(*TRIAL))
    assert ended.state is TrialState.SUCCEEDED, ended.traceback
    return ended, journal


@pytest.mark.long
def test_a_trial_that_the_light_client_ran_is_the_trial(
    client: Path, tmp_path: Path, by_the_bindings: tuple[Outcome, list[Event]]
) -> None:
    folder, (ended, journal) = tmp_path / "bundle", by_the_bindings
    bundles.write(make(*TRIAL), "", folder)
    subprocess.run([client, folder], check=True)
    subprocess.run([client, folder, "--score", "test", "--at", str(ended.selected_step)], check=True)
    lines = log_of(folder)
    steps = [line for line in lines if line["type"] == "step"]
    coefs, losses = scalars(journal)
    assert [tuple(line["coefs"]) for line in steps] == [tuple(line) for line in coefs]
    assert [sum(line["losses"]) / len(line["losses"]) for line in steps] == losses

    read = make(*TRIAL, f"device.log={folder}")
    assert read.trial_id == make(*TRIAL).trial_id
    assert measured(*run(read)) == measured(ended, journal)

    scores = {line["step"]: line for line in lines if line["type"] == "scores" and line["split"] == "dev"}
    assert scores[8]["theta"] == theta_of(bundle.read(folder), coefs)


def test_a_trial_on_a_phone_is_the_trial(
    client: Path, device: Path, by_the_bindings: tuple[Outcome, list[Event]]
) -> None:
    trial = make(*TRIAL[:-2], "device=oneplus-12", f"device.client={client}")
    ended, journal = run(trial)
    assert ended.state is TrialState.SUCCEEDED, ended.traceback
    assert measured(ended, journal) == measured(*by_the_bindings)
    assert "the light client, which runs the steps" in ended.unmeasured["energy/"]
    assert (device / "data" / "local" / "tmp" / "zo_sweeps" / trial.trial_id / "log.jsonl").is_file()


def theta_of(read: bundle.Bundle, coefs: list[tuple[float, ...]]) -> str:
    """Return the SHA-256 of the engine's theta after the log; LoRA-FA begins at zero."""
    settings, rates, digest = read.manifest.settings, read.training.rates.tolist(), hashlib.sha256()
    for name, shape in settings.parameters:
        theta = torch.zeros(shape)
        for step, line in enumerate(coefs, 1):
            terms = [(NoiseKey(settings.seed, step, i), -rates[step - 1] * (g / len(line))) for i, g in enumerate(line)]
            combine(terms, name, theta.shape, base=theta, out=theta)
        digest.update(theta.numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.long
def test_a_log_is_read_where_initial_values_are_computed_with_other_last_bits(
    client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = [*TRIAL, "space=prefix", "train.steps=2", "train.eval_every=2", "estimator.q=1"]
    folder = tmp_path / "bundle"
    bundles.write(make(*trial), "", folder)
    for more in ([], ["--score", "test", "--at", "0"], ["--score", "test", "--at", "2"]):
        subprocess.run([client, folder, *more], check=True)
    with_other_last_bits(monkeypatch)
    ended, journal = run(make(*trial, f"device.log={folder}"))
    assert ended.state is TrialState.SUCCEEDED, ended.error
    assert ended.metrics["theta_difference"] == 0
    began = bundle.read(folder).initial
    assert began is not None
    (event,) = (event for event in journal if isinstance(event, ComputedInitial))
    assert event.fingerprint == replayed({name: torch.from_numpy(value) for name, value in began.items()})


FOUR_SEEDS = [  # PeZO's pool, sensitive entries, 4-bit weights under 8-bit activations, P-RGE's loops in one forward
    *("model=demo", "method=prge", "evaluation.mode=both", "estimator.q=2", "estimator.eps=0.1", "update.lr=0.03"),
    *("perturbation=pezo_pool", "perturbation.advance=coprime", "precision=w4a8"),
    *("space=sensitive", "space.density=0.001", "space.samples=32"),
    *("train.steps=60", "train.eval_every=30", "split.train=64", "split.dev=64", "split.test=64", "device=auto"),
]


@pytest.mark.long
def test_one_program_of_the_four_seeds_trains_the_demo_model_to_the_engines_accuracy(
    client: Path, tmp_path: Path
) -> None:
    """Losses of w4a8 differ by about 1e-3, estimates by as much over 2 eps, and so do the runs; theta has its bits."""
    folder = tmp_path / "bundle"
    bundles.write(make(*FOUR_SEEDS, "device.runtime=executorch"), "", folder)
    for more in ([], *(["--score", "test", "--at", str(step)] for step in (0, 30, 60))):
        subprocess.run([client, folder, *more], check=True)
    ended, journal = run(make(*FOUR_SEEDS, "device.runtime=executorch", f"device.log={folder}"))
    assert ended.state is TrialState.SUCCEEDED, ended.traceback
    assert ended.metrics["theta_difference"] == 0
    engine, expected = run(make(*FOUR_SEEDS))
    assert ended.trial_id == engine.trial_id
    for key, event in evals(expected).items():
        assert evals(journal)[key].loss == pytest.approx(event.loss, abs=0.01)
    assert evals(journal)["dev", 60].loss < evals(journal)["dev", 30].loss - 0.02, "it trains"
    for name in ("dev/metric", "test/metric"):
        assert abs(ended.metrics[name] - engine.metrics[name]) <= 2 / 64, "two of 64 examples are near the border"
