"""Zeroth-order training over clients that keep their rows and exchange scalars."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zo_sweeps.core.trial import SharedSteps
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.estimator import ClippedDirections, Estimator
from zo_sweeps.methods.evaluation import Restore
from zo_sweeps.methods.kinds.zo import ZerothOrder
from zo_sweeps.methods.perturbation import Reads
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.tasks.data import load_splits
from zo_sweeps.tasks.spec import TaskSpec
from zo_sweeps_federated.client_files import column_of
from zo_sweeps_federated.client_rounds import OfClients
from zo_sweeps_federated.shards import by_source

LOSS_BYTES, COEFFICIENT_BYTES = 4, 8  # fp32, as a loss is computed; fp64, as the log has it


@dataclass(frozen=True)
class Federated(OfClients, ZerothOrder):
    """Training in rounds of K local steps of the clients that are present, each on minibatches of its own rows.

        g_ck = the coefficients at the k-th local step of client c, from theta after its steps 1, ..., k - 1
        shared directions:  ghat_k = (1/q) sum_i (mean_c g_cki) z_ki
        own directions:     ghat_k = (1/M) sum_c g_ck z_kc,  q = M clients present

    A client goes back to the round's theta, and step k of the run is that of ghat_k: the log is that of any run, and
    replay, checkpoints and archives are the same. Whoever missed rounds replays their coefficients. One client with
    K = 1 is MeZO, bit for bit. All clients have the same weight, whatever their rows.

    With `executor.workers` one more than `clients`, each has a process of its own, which reads its own rows alone where
    they are in `files`. With one they are simulated, in turn, with the same result but for noise. The first process
    evaluates a client that is lost or late, and leaves it out where rows are in `files`, or with noise. Of files,
    `rows` has the fingerprints: a client with others is left out.

    With `noise`, clients send coefficients in place of losses, each bounded row by row and noised before it is sent:

        g = sum_r clip(g_r, C) / B + N(0, (noise 2 C / B)^2),  g_r = the coefficient of f of row r alone

    C is estimator.clip and B the minibatch's rows; a g_r that is not a number counts as 0. Private, by the `epsilon`
    that is measured, is one row of one client against its replacement by any other, towards all who see the messages
    or the log, the server included; not the number of rows, and nothing towards the client's own machine. Minibatches
    are public, so that no privacy is claimed for rows that were not drawn. Epsilon is of one trial: further trials,
    seeds or rates with the same rows add theirs. A step has no train loss. Noise is of floating point. DPZero clips
    differences of losses, 2 eps times these, draws minibatches in secret and noises at the server.

    A client in a process of its own draws noise from the operating system, and has one answer to a round. It keeps that
    beside its rows, in NAME.jsonl.answers, before it leaves: killed and returned, or asked by another attempt, it sends
    the same bytes, and epsilon counts each round once. That holds as long as rows and file stay together. Another
    attempt whose journal lost its end, and in which other clients answer, reaches the same rounds at other weights, and
    has the coefficients at the first ones: they cost no privacy, where new ones would, and the log is still the run.
    Without `files` all processes have all rows, and epsilon is for readers of the log; a round in which an attempt
    began may be in it twice, in parts, and counts twice. So it does with simulated clients, whose noise is seeded, for
    study: a resumed trial draws the same again.

    Bytes: a client sends 4 per point and local step (with noise, per coefficient), and receives 8 per coefficient of
    every step of the run before its round. After the last, processes receive the rest, and send the SHA-256 of their
    weights. Source: shared directions, Li et al., Achieving dimension-free communication in federated learning via
    zeroth-order optimization (DeComFL), 2024; own ones, with perturbation=seed_pool, Qin et al., Federated
    full-parameter tuning of billion-sized language models with communication cost under 18 kilobytes (FedKSeed), 2023;
    FedKSeed-Pro with seed_pool_pro; noise, Zhang et al., DPZero: private fine-tuning of language models without
    backpropagation, 2023.
    """

    runner: ClassVar[str] = "zo_sweeps_federated.rounds:Rounds"

    own_directions: bool = option(False, "a direction per client (FedKSeed); false: they share q directions (DeComFL)")
    noise: float = option(
        0.0,
        "deviation of the noise on a client's coefficients, over 2 estimator.clip / rows; 0: none",
        least=0,
        added=True,
    )
    delta: float = option(1e-5, "delta at which epsilon is measured", above=0, most=0.5, added=True)

    def problems(self, config: TrialConfig) -> Iterator[str]:
        """Yield the problems of rows that are divided among clients, and of steps whose coefficients these compute."""
        yield from super().problems(config)
        estimator, update = config.estimator, config.update
        what = f"method.kind={self.name}"
        if self.own_directions and estimator.budget != self.present:
            yield (
                f"method.own_directions gives each of method.present={self.present} clients a direction: "
                f"estimator.q={self.present}, not {estimator.budget}"
            )
        if estimator.curvature is None or estimator.gives or estimator.owns_rows or estimator.coordinates:
            yield f"{what} averages coefficients, which estimator={estimator.name} has no mean of; use estimator=rge"
        elif self.own_directions and estimator.compares:
            one = "method.own_directions gives a client one direction"
            yield f"{one}, and estimator={estimator.name} compares the points of several: use estimator=rge"
        if update.keeps_state or update.evaluations:
            yield f"{what} takes local steps without a state: use update=sgd, not {update.name}"
        perturbation, reads = config.perturbation, config.perturbation.reads
        if reads is Reads.LOG and perturbation.steady != self.local_steps:
            changes = f"directions of perturbation={perturbation.name} change after {perturbation.steady} steps"
            learn = f"clients learn coefficients after method.local_steps={self.local_steps}"
            yield f"{changes}, and {learn}: make them equal"
        elif reads not in (Reads.NOISE, Reads.LOG):
            reason = f"directions of perturbation={perturbation.name} depend on {reads.value}"
            yield f"{what}: {reason}; use perturbation=gaussian"
        if config.space.renewed_every:
            yield f"{what} keeps its parameters: space.refresh must be 0"
        if config.evaluation.restore is Restore.IN_PLACE or config.evaluation.parts:
            yield f"{what} evaluates a client's rows at once, beside theta: leave evaluation.restore and parts out"
        if self.noise and not (isinstance(estimator, ClippedDirections) and estimator.clip):
            yield "method.noise hides what a row adds if that is bounded: set estimator=rge and estimator.clip"
        if self.noise and config.space.needs_gradients and not config.space.of_text:
            yield f"space {config.space.name!r} takes its mask from training rows, which noise hides: use source=text"

    def remarks(self, config: TrialConfig, folder: Path | None) -> list[str]:
        if self.by and folder is not None:
            spec = TaskSpec.of(config.task, config.prompt.name, config.prompt.system)
            sources = column_of(load_splits(spec, config.task, config.data.dir, config.split).train, self.by)
            if self.alpha is None:
                by_source(sources, self.clients)
        if not (self.files and math.isinf(config.estimator.bound)):
            return []
        clips = isinstance(config.estimator, ClippedDirections)
        own = "" if clips else f"estimator={config.estimator.name} has no bound: take estimator=rge, and "
        return [f"nothing bounds how far the losses that one client sends move the weights: {own}set estimator.clip"]

    @property
    def shared_steps(self) -> SharedSteps:
        return SharedSteps(0, clients=self.clients, rows=self.rows)

    def forwards(self, points: int, estimator: Estimator) -> int:
        if self.own_directions:  # each client evaluates theta, where it is a point, and its own direction's
            return points + estimator.at_theta * (self.present - 1)
        return points * self.present

    @property
    def copies(self) -> int:
        return int(self.local_steps > 1)  # of the round's theta

    def traffic(self, seed: int, steps: int, numbers: int, q: int) -> tuple[int, int]:
        """Return the bytes that all clients send and receive in the rounds of so many steps.

        Args:
            numbers: that a client sends per local step. q: coefficients per step of the run.
        """
        sent = received = 0
        known = [0] * self.clients  # steps of the run that a client has
        for first in range(1, steps + 1, self.local_steps):
            for client in self.members(seed, first):
                sent += LOSS_BYTES * numbers * len(self.round_of(first, steps))
                received += COEFFICIENT_BYTES * q * (first - 1 - known[client])
                known[client] = first - 1
        return sent, received
