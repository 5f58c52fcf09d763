"""Trials as exported programs against the same trials in PyTorch: one identity, one log up to rounding, one theta."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("executorch", reason="needs the extra [edge]")

import torch

from tests.run.common import make, measured, run
from zo_sweeps.core.events import Event, Start, Steps
from zo_sweeps.core.place import apart, places
from zo_sweeps.core.trial import TrialState
from zo_sweeps.record.journal import evals, scalars
from zo_sweeps_edge import in_program
from zo_sweeps_edge.program import Apply, Dual, Forward, Program, ThetaVector
from zo_sweeps_edge.session import Method

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess, pytest.mark.usefixtures("one_thread", "one_store")]

UNIT = 2.0**-24  # rounding of fp32
TINY = [  # of one layer: an export takes a third less, and test_program.py has one of two
    *("model=random_llama", "model.arch.hidden_size=64", "model.arch.intermediate_size=96"),
    *("model.arch.num_hidden_layers=1", "method=prge", "update.lr=0.01", "evaluation.mode=both"),
]
GEMMA = ["model.arch.model_type=gemma", "+model.arch.head_dim=16", "+model.arch.initializer_range=0.2"]
PROGRAM = "device.runtime=executorch"
ANYWHERE = "device=auto"  # a device that is named would be part of the trial's identity
THETA, EPS = "theta_difference", 1e-2


@pytest.mark.long
def test_sixty_steps_have_the_losses_of_the_engine() -> None:
    """A loss rounds differently by delta, a gradient by delta / eps, and theta moves apart by lr * that, step by step.

    f then differs by at most delta + (lr delta / eps) sum |grad f . z|, with |grad f . z| at most the largest
    projected gradient G of the run: delta (1 + lr G t / eps) after t steps, in which delta is a few units of the loss.
    """
    options = (*TINY, ANYWHERE, "estimator.q=4", "train.steps=60", "train.eval_every=30", "update.lr=0.001")
    trial, program = make(*options), make(*options, PROGRAM)
    assert trial.trial_id == program.trial_id
    (_, torchs), (ended, programs) = run(trial), run(program)
    assert ended.state is TrialState.SUCCEEDED, ended.traceback
    (coefs, expected), (_, found) = scalars(torchs), scalars(programs)
    largest = max(abs(g) for line in coefs for g in line)
    delta = 16 * UNIT * max(expected)  # a sum over ~2^8 products, each rounded by one unit at random
    for t, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert abs(ours - theirs) <= delta * (1 + 0.001 * largest * t / EPS)
    assert ended.metrics[THETA] == 0
    assert 0 < ended.metrics["noise_to_signal"] < 0.1
    for key, event in evals(torchs).items():
        assert evals(programs)[key].loss == pytest.approx(event.loss, abs=1e-5)
        assert evals(programs)[key].metric == event.metric


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The modules of a program in PyTorch instead of the program: what they compute, without the cost of an export."""
    built: dict[Path, tuple[Method, Method]] = {}

    def stored(key: Any, make: Any, check: Any) -> tuple[Program, Path]:
        model, space, noise, calls, frame, batch, of_scores = make.args
        dual = make.keywords["dual"]
        params = space.params
        theta = ThetaVector(params, calls, noise) if dual is None else Dual(params, calls, noise, dual)
        forward, apply = Forward(model, space, theta, frame, batch, of_scores), Apply(theta)
        file = tmp_path / f"{len(built)}.pte"
        file.touch()
        built[file] = (lambda inputs: forward(*inputs)), (lambda inputs: [apply(*inputs)])
        program = Program(calls, frame, batch, theta.names, theta.shapes, noise.cycles, 0)
        check(program, file)
        return program, file

    monkeypatch.setattr(in_program.store, "stored", stored)
    monkeypatch.setattr(in_program, "load", lambda file: built[file])


@pytest.mark.usefixtures("eager")
def test_a_program_of_another_function_is_refused_with_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact GELU in place of the approximate one, which XNNPACK's delegate leaves out."""
    correct = Forward.forward

    def exact(self: Forward, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (activation,) = (part for part in self.module.modules() if type(part).__name__ == "GELUTanh")
        with monkeypatch.context() as patch:
            patch.setattr(activation, "act", torch.nn.functional.gelu)
            return correct(self, *inputs)

    monkeypatch.setattr(Forward, "forward", exact)
    ended, _ = run(make(*TINY, *GEMMA, "train.steps=2", ANYWHERE, PROGRAM))
    assert ended.state is TrialState.FAILED
    assert re.search(r"another function: a score of the first rows is .*, [\d,]+ units of rounding apart", ended.error)


@pytest.mark.usefixtures("eager")
def test_a_program_of_other_losses_is_refused_in_each_attempt_before_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = Forward.forward

    def larger(self: Forward, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        losses, scores = correct(self, *inputs)
        return losses * 1.01, scores

    monkeypatch.setattr(Forward, "forward", larger)
    trial, journal = make(*TINY, ANYWHERE, "train.steps=2", PROGRAM), list[Event]()
    for attempt in (1, 2):
        ended, journal = run(trial, journal, attempt=attempt)
        assert ended.state is TrialState.FAILED
        assert "another function: a loss of step 1 is" in ended.error
        assert not scalars(journal)[0]


@pytest.mark.usefixtures("eager")
def test_a_program_goes_on_with_the_mean_over_the_directions_that_were_not_dropped() -> None:
    trial = make(*TINY, ANYWHERE, "estimator.q=4", "train.steps=3", PROGRAM)
    steps = Steps(first=1, losses=(1.0,), coefs=((math.nan, 2.0, -1.0, 0.7),), seconds=1, tokens=1)
    ended, _ = run(trial, [steps], attempt=2)
    assert ended.state is TrialState.SUCCEEDED, ended.error
    assert ended.metrics[THETA] == 0


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "overrides",
    [
        ("evaluation.mode=outer", "estimator.q=2"),
        pytest.param(("evaluation.mode=inner", "estimator.q=2"), marks=pytest.mark.long),
        ("evaluation.mode=sequential", "estimator.q=1"),
        ("train.objective=candidates", "estimator.q=1"),
        ("train.batch=5", "estimator.q=1"),  # 24 rows: the last batch of an epoch has 4
        pytest.param(("space=lora", "estimator.q=1"), marks=pytest.mark.long),
        pytest.param(("space=dora", "estimator.q=1"), marks=pytest.mark.long),
        pytest.param(("space=vera", "space.rank=16", "estimator.q=1"), marks=pytest.mark.long),
        ("space=prefix", "estimator.q=1"),
        pytest.param(("space=random_subset", "space.density=0.01", "estimator.q=2"), marks=pytest.mark.long),
        ("perturbation=pezo_pool", "perturbation.k=8", "estimator.q=2"),
        pytest.param(("perturbation=pezo_onthefly", "estimator.q=2"), marks=pytest.mark.long),
    ],
    ids="; ".join,
)
def test_what_a_program_computes_is_the_engines_step(overrides: tuple[str, ...]) -> None:
    """Every mode, space and loss: the losses of the first steps up to rounding, and theta to the bit."""
    ended, journal = run(make(*TINY, ANYWHERE, "train.steps=6", *overrides, PROGRAM))
    assert ended.state is TrialState.SUCCEEDED, ended.traceback
    assert ended.metrics[THETA] == 0
    torchs, expected = run(make(*TINY, ANYWHERE, "train.steps=6", *overrides))
    assert scalars(journal)[1] == pytest.approx(scalars(expected)[1], abs=64 * UNIT)
    for name in ("dev/loss", "test/loss", "dev/metric", "test/metric"):
        assert ended.metrics[name] == pytest.approx(torchs.metrics[name], abs=64 * UNIT)


@pytest.mark.long
def test_a_trial_moves_between_the_runtimes() -> None:
    """It begins in one and ends in the other: one id, one log without a gap, and the devices of its attempts."""
    options = (*TINY, ANYWHERE, "estimator.q=4", "train.steps=8", "train.eval_every=4")
    here, there = make(*options), make(*options, PROGRAM)
    assert here.trial_id == there.trial_id
    whole, expected = run(here)
    for first, second in ((here, there), (there, here)):
        steps = iter(range(100))
        stopped, journal = run(first, stop=lambda steps=steps: next(steps) >= 3)
        assert stopped.state is TrialState.CANCELLED
        ended, journal = run(second, journal, attempt=2)
        assert ended.state is TrialState.SUCCEEDED, ended.traceback
        assert ended.steps_done == 8
        assert scalars(journal)[1] == pytest.approx(scalars(expected)[1], abs=64 * UNIT)
        runtimes = [event.device["runtime"] for event in journal if isinstance(event, Start)]
        assert runtimes == [first.config.device.runtime, second.config.device.runtime]
        (before,) = ended.device["earlier"]
        assert (before["runtime"], ended.device["runtime"]) == tuple(runtimes)
        assert apart(places(ended.device)).count("ExecuTorch") == 1, "its costs are of two places"
    assert ended.metrics["test/metric"] == whole.metrics["test/metric"]


@pytest.mark.long
def test_a_run_that_was_stopped_ends_with_the_same_bits() -> None:
    """The program's log is replayed by the program: theta and every later loss are those of a run without a stop."""
    from executorch.extension.pybindings import portable_lib

    trial = make(*TINY, ANYWHERE, "estimator.q=4", "train.steps=8", "train.eval_every=4", PROGRAM)
    whole = measured(*run(trial))
    assert portable_lib._threadpool_get_thread_count() == torch.get_num_threads() == 1, "and not one per core"
    steps = iter(range(100))
    _, journal = run(trial, stop=lambda: next(steps) >= 4)
    assert measured(*run(trial, journal, attempt=2)) == whole


@pytest.mark.parametrize("computed", ["eager", pytest.param("exported", marks=pytest.mark.long)])
def test_the_dual_form_keeps_theta_up_to_the_rounding_of_its_copies(
    computed: str, request: pytest.FixtureRequest
) -> None:
    """A copy is rounded by u |B| at each of three sums per step; the update divides that of diff by eps.

    |theta - replay| <= sum over steps of u |B| (3 + 2 lr |g| / eps), with |B| the largest value of a copy.
    """
    if computed == "eager":
        request.getfixturevalue("eager")
    options = ("estimator.q=1", "train.steps=50", "train.eval_every=50", "device.form=dual", PROGRAM)
    trial = make(*TINY, ANYWHERE, *options)
    assert trial.trial_id != make(*TINY, ANYWHERE, *options[:3], PROGRAM).trial_id
    ended, journal = run(trial)
    assert ended.state is TrialState.SUCCEEDED, ended.traceback
    coefs, found = scalars(journal)
    mean = [abs(g) for (g,) in coefs]
    largest = EPS * 6.6 + 0.01 * sum(mean) * 6.6  # |z| is at most 6.6
    bound = sum(UNIT * largest * (3 + 2 * 0.01 * g / EPS) for g in mean)
    assert 0 < ended.metrics[THETA] <= bound
    _, expected = run(make(*TINY, ANYWHERE, *options[:3]))
    assert found == pytest.approx(scalars(expected)[1], abs=1e-4)


@pytest.mark.long
def test_a_non_finite_loss_ends_the_trial_as_in_pytorch() -> None:
    ended, _ = run(
        make(*TINY, ANYWHERE, "estimator.q=4", "train.steps=8", "train.eval_every=4", "update.lr=1e30", PROGRAM)
    )
    assert ended.state is TrialState.DIVERGED
    assert "non-finite loss at step" in ended.error
