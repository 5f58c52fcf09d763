"""Federated trials: the runners, with clients in processes of their own or simulated here, and a client."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Hashable, Iterator
from functools import partial

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import PeerLost, PeersReady
from zo_sweeps.engine.batch import indices
from zo_sweeps.engine.evaluate import StepObjective
from zo_sweeps.engine.first_order import GradientSteps
from zo_sweeps.engine.replay import digest
from zo_sweeps.engine.step import Method, RunState
from zo_sweeps.engine.train import Evaluated, StepDone, of_batch
from zo_sweeps.engine.types import Peers
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.run.training import Backpropagation, ZerothOrderRunner
from zo_sweeps.run.workbench import Workbench, encode_rows
from zo_sweeps.tasks.data import load_splits, read_rows
from zo_sweeps.tasks.encode import EncodedExample
from zo_sweeps.tasks.spec import TaskSpec
from zo_sweeps_federated.averaging import train_averaged
from zo_sweeps_federated.client_files import column_of, paths_of_clients
from zo_sweeps_federated.client_rounds import OfClients
from zo_sweeps_federated.clients import Client, ClientTeam, LocalSteps, declined, received, train_in_rounds
from zo_sweeps_federated.fedavg import FederatedAveraging
from zo_sweeps_federated.federated import Federated
from zo_sweeps_federated.privacy import epsilon, once, uses
from zo_sweeps_federated.shards import by_source, shards

SEEDED = " seeded"  # how the names of remarks on epsilon end where an attempt's clients were simulated


class ClientRows:
    """The rows of clients, each read when it is first asked for; `tokens` counts those of their minibatches."""

    def __init__(self, bench: Workbench, kind: OfClients, space: InstalledSpace) -> None:
        self._bench, self._kind, self._space = bench, kind, space
        self._rows: dict[int, list[EncodedExample]] = {}
        self.tokens = 0

    def of(self, client: int) -> list[EncodedExample]:
        """Return a client's rows. Raises UserError if its file cannot be read, or there are too few rows to divide."""
        bench, config, kind = self._bench, self._bench.config, self._kind
        spec = TaskSpec.of(config.task, config.prompt.name, config.prompt.system)
        if client not in self._rows and kind.files:
            rows = read_rows(spec, config.task, config.data.dir, f"{kind.files}{client}", kind.rows[client])
            self._rows[client] = encode_rows(config, bench.model, spec, rows)
        elif client not in self._rows:
            train = bench.splits.train
            groups: list[Hashable] = [example.gold for example in train]
            if kind.by:
                rows = load_splits(spec, config.task, config.data.dir, config.split).train
                groups = [*column_of(rows, kind.by)]
            whole = kind.by and kind.alpha is None
            divided = (
                by_source(groups, kind.clients) if whole else shards(groups, kind.clients, kind.alpha, config.seed)
            )
            self._rows = {number: [train[row] for row in own] for number, own in enumerate(divided)}
        return self._rows[client]

    def drawn(self, client: int, step: int) -> list[EncodedExample]:
        """Return the rows of a client's minibatch at a step of the run."""
        own, config = self.of(client), self._bench.config
        assert config.train.batch is not None
        return [own[i] for i in indices(config.seed, step, len(own), config.train.batch)]

    def objective(self, kind: Federated, client: int, step: int) -> StepObjective:
        """Return f of a client's minibatch at a step of the run; with noise, of each of its rows."""
        bench, rows = self._bench, self.drawn(client, step)
        batches = [bench.collated(some) for some in ([[row] for row in rows] if kind.noise else [rows])]
        self.tokens += sum(batch.tokens for batch in batches)
        each = [of_batch(bench.model, batch, bench.objective.loss, self._space) for batch in batches]
        return each if kind.noise else each[0]


def traffic(kind: OfClients, steps: int, up: int, down: int) -> dict[str, float]:
    """Return the metrics of a run's rounds, of the bytes that all clients send and receive."""
    return {
        "rounds": float(kind.rounds(steps)),
        "client_bytes_up": float(up),
        "client_bytes_down": float(down),
        "client_bytes": (up + down) / (kind.rounds(steps) * kind.present),
    }


def local_steps(bench: Workbench, kind: Federated, method: Method, space: InstalledSpace) -> LocalSteps:
    """Return what a client of the trial computes over an installed space."""
    config, bound = bench.config, method.bind(space.params)
    return LocalSteps(kind, bound, bench.model.module, space, bench.rates(), config.seed, config.train.steps)


class Rounds(ZerothOrderRunner):
    """A federated trial: with a process for each client, or simulated, with theta the same for all in a round."""

    _clients: ClientTeam | None = None
    _left_out = 0

    @classmethod
    def follower(cls, bench: Workbench) -> tuple[InstalledSpace, Callable[[bytes], bytes]]:
        kind = bench.config.method.kind
        assert isinstance(kind, Federated)
        if kind.files:
            bench.load_without_rows()
        else:
            bench.load()
        space = bench.install()
        return space, ClientProcess(bench, space, kind).answer

    def _gather(self, space: InstalledSpace) -> None:
        """Wait for the clients' processes, if they have any."""
        if self.sharing is None:
            return

        def on_loss(why: str) -> None:
            self.recorder.emit(PeerLost(reason=why))

        agreed, patience = self.bench.agreed(space), self.sharing.patience
        self._clients = ClientTeam(self.sharing.peers, agreed=agreed, patience=patience, on_loss=on_loss)
        self.recorder.measured["workers"] = 1.0 + self._clients.begin(self.should_stop)
        self.recorder.emit(PeersReady(names=tuple(self.sharing.names)))

    def _release(self) -> None:
        if self._clients is not None:
            exchanged = self._clients.up + self._clients.down
            self.recorder.measured["peers_lost"] = float(self._clients.lost)
            self.recorder.measured["exchanged_bytes_per_step"] = exchanged / max(1, self.recorder.steps_run)
            self.recorder.measured["clients_left_out"] = float(self._left_out)

    def _steps(self, method: Method, space: InstalledSpace, peers: Peers | None) -> Iterator[StepDone | Evaluated]:
        bench, config, kind, recorder = self.bench, self.config, self.config.method.kind, self.recorder
        assert isinstance(kind, Federated)
        local, rows = local_steps(bench, kind, method, space), ClientRows(bench, kind, space)
        of_client = len(local.points(1, 0))
        if kind.noise:
            self._measure_privacy(kind, rows)

        def simulated(first: int, state: RunState, place: int, client: int) -> list[float]:
            draw = random.Random(f"noise/{config.seed}/{first}/{client}") if kind.noise else None
            return local.losses(partial(rows.objective, kind, client), first, place, state, draw)

        def gather(first: int, state: RunState) -> tuple[list[list[float] | None], int]:
            rows.tokens = 0
            members = [*enumerate(kind.members(config.seed, first))]
            losses: list[list[float] | None]
            if self._clients is None:
                losses = [simulated(first, state, *one) for one in members]
            else:
                answers = self._clients.answers([client for _, client in members], recorder.coefs[: first - 1])
                losses = [self._checked(local, first, *one) for one in zip(members, answers, strict=True)]
                # Nobody speaks for one whose rows, or whose noise, nobody else has.
                left_out = kind.files or kind.noise or (self.sharing is not None and self.sharing.drop)
                if losses.count(None) == len(losses) and left_out:
                    raise UserError(
                        f"no client of the round of step {first} has answered", fix="see what each of them said"
                    )
                if left_out:
                    self._left_out += losses.count(None)
                else:
                    of = partial(simulated, first, state)
                    losses = [of(*one) if own is None else own for one, own in zip(members, losses, strict=True)]
            return losses, rows.tokens * of_client

        directions = local.method.estimator.directions(local.method.d)
        up, down = kind.traffic(config.seed, config.train.steps, local.width, directions)
        recorder.measured |= traffic(kind, config.train.steps, up, down)
        yield from train_in_rounds(
            local,
            gather,
            bench.score_dev,
            eval_every=config.train.eval_every,
            log=list(recorder.coefs),
            evaluated=set(recorder.evaluations),
            joules=recorder.energy.joules,
        )
        if self._clients is not None:
            ours, theirs = digest(space.params), self._clients.weights(recorder.coefs)
            recorder.measured["clients_equal"] = float(sum(one == ours for one in theirs.values()))
            for client, one in theirs.items():
                if one != ours:
                    self._clients.expel(
                        client, f"the SHA-256 of its weights is {one[:32]}, and the server's {ours[:32]}"
                    )

    def _measure_privacy(self, kind: Federated, rows: ClientRows) -> None:
        """Record and report epsilon of all steps of the run.

        Rounds in which an attempt began count twice, as steps of both may be in the log, unless clients answer once.
        """
        config, recorder, done = self.config, self.recorder, kind.local_steps
        assert config.train.batch is not None
        apart = kind.files and self._clients is not None
        seeded = self._clients is None or any(name.endswith(SEEDED) for name in recorder.warned)
        again = [step - step % done + 1 for step in recorder.resumed if step < config.train.steps]
        used = uses(
            kind, config.seed, config.train.steps, config.train.batch,
            lambda client: None if apart else len(rows.of(client)), again if seeded or not apart else (),
        )  # fmt: skip
        mu = math.sqrt(used * (1 if kind.own_directions else config.estimator.budget)) / kind.noise
        value = epsilon(mu, kind.delta)
        recorder.measured |= {"epsilon": value, "delta": kind.delta}
        text = f"a row of a client is in {used:,} minibatches at most: epsilon = {value:.4g} at delta = {kind.delta:g}"
        if seeded:
            recorder.measured["noise_seeded"] = 1.0
            text += "; noise of simulated clients is seeded, and hides nothing from those who know the seed"
        elif not apart:
            text += ", for readers of the log alone, as the processes of all clients have all rows"
        recorder.say(f"epsilon {value:.4g}{SEEDED * seeded}", text)

    def _checked(
        self, local: LocalSteps, first: int, member: tuple[int, int], answer: bytes | None
    ) -> list[float] | None:
        """Return the losses of an answer; None if it is none. Names a client whose losses cannot be of its rows."""
        place, client = member
        assert self._clients is not None
        if answer is None:
            return None
        try:
            losses = received(answer)
            estimates = local.of_client(first, place, losses)
        except ValueError as error:
            self._clients.expel(client, str(error))
            return None
        if not all(math.isfinite(value) for value in losses):
            self._clients.expel(client, f"a loss is not finite at step {first}")
            return None
        bound = local.bound
        if bound and any(abs(g) >= bound for one in estimates for g in one.coefs):
            limit = f"{bound:g}, which noise makes unlikely" if local.protocol.noise else f"estimator.clip={bound:g}"
            what = f"client {client} sent losses at step {first} whose coefficient is beyond {limit}"
            self.recorder.say(f"client {client}", f"{what}, which bounds it")
        return losses


class AveragedRounds(Backpropagation):
    """A trial of FedAvg, with clients simulated here."""

    def _events(self, space: InstalledSpace) -> Iterator[StepDone | Evaluated]:
        bench, config, kind = self.bench, self.config, self.config.method.kind
        assert isinstance(kind, FederatedAveraging)
        rows, steps = ClientRows(bench, kind, space), config.train.steps
        weights = sum(param.nbytes for param in space.params.values())
        each_way = kind.rounds(steps) * kind.present * weights
        self.recorder.measured |= traffic(kind, steps, each_way, each_way)
        with self._backward() as options:
            begin = partial(
                GradientSteps,
                bench.model,
                space,
                bench.objective.loss,
                config.update,
                steps=steps,
                seed=config.seed,
                **options,
            )
            yield from train_averaged(
                kind,
                space,
                begin,
                lambda client, step: bench.collated(rows.drawn(client, step)),
                bench.score_dev,
                steps=steps,
                eval_every=config.train.eval_every,
                seed=config.seed,
            )


class ClientProcess:
    """A client in a process of its own, whose number is the beginning of the first message to it."""

    def __init__(self, bench: Workbench, space: InstalledSpace, kind: Federated) -> None:
        self._local, self._rows = local_steps(bench, kind, bench.method(), space), ClientRows(bench, kind, space)
        self._bench, self._kind = bench, kind
        self._client: Client | None = None

    def answer(self, question: bytes) -> bytes:
        """Answer a question of `ClientTeam`; with noise, as before if it has answered for the round."""
        try:
            if self._client is None:
                (number,), question = struct.unpack_from("<I", question), question[4:]
                self._client = self._begin(number)
            return self._client.answer(question)
        except UserError as error:
            return declined(str(error.errors[0]))

    def _begin(self, number: int) -> Client:
        self._rows.of(number)
        kind, config, objective = self._kind, self._bench.config, partial(self._rows.objective, self._kind, number)
        if not (kind.noise and kind.files):
            return Client(self._local, number, objective)
        file = paths_of_clients(config.task, config.data.dir, kind.files, kind.clients)[number]
        kept = file.with_name(f"{file.name}.answers")
        return Client(self._local, number, objective, partial(once, kept, self._bench.recorder.trial.trial_id))
