"""The light client, written again in Python over the runtime's bindings: the oracle of its log."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zo_sweeps.engine.noise import words_of
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps_edge.bundle import Bundle, SplitRows

NOT_COMPARED = ("seconds", "peak_bytes")


def log_of(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a log that must be the same in every run of a bundle, without the times in them."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in NOT_COMPARED}
        for line in lines
        if line["type"] != "start"
    ]


class Reference:
    """A bundle's run by Python's bindings."""

    def __init__(self, bundle: Bundle) -> None:
        from executorch.runtime import Runtime

        self.bundle, self.settings = bundle, bundle.manifest.settings
        program = Runtime.get().load_program(bundle.folder / "program.pte")
        self.forward, self.apply = program.load_method("forward"), program.load_method("apply")
        self.names = [name for name, _ in self.settings.parameters]
        s = self.settings
        self._apply(1, [0.0] * s.queries, 0.0, fresh=1)

    def run(self) -> list[dict[str, Any]]:
        """Run all steps, each update by `apply`; return the lines of the log."""
        log: list[dict[str, Any]] = []
        for step in range(1, self.settings.steps + 1):
            losses, tokens = self.losses(step)
            if not all(map(math.isfinite, losses)):
                return [*log, {"type": "diverged", "step": step, "losses": losses}]
            eps, most = self.settings.eps, self.settings.clip or math.inf
            grads = [(a - b) / (2 * eps) for a, b in zip(losses[::2], losses[1::2], strict=True)]
            grads = [min(max(g, -most), most) for g in grads]
            log.append({"type": "step", "step": step, "losses": losses, "coefs": grads, "tokens": tokens})
            theta = self.update(step, grads)
            if step in self.settings.evaluations:
                log.append(self.scores("dev", step, theta))
        return log

    def losses(self, step: int) -> tuple[list[float], int]:
        s, training = self.settings, self.bundle.training
        batch, K = training.order[step - 1], s.rows_per_example
        missing = batch == len(training.gold)
        batch = np.where(missing, batch[0], batch)
        rows = [int(b) * K + k for _ in range(s.points) for b in batch for k in range(K)]
        mass = np.where(missing, 0, training.mass[batch])
        share, gold = np.tile(mass / mass.sum(), (s.points, 1)), np.tile(training.gold[batch], (s.points, 1))
        losses, tokens = {}, 0
        both = s.points == 2 * s.directions
        for first in range(0, s.queries, s.directions):
            for sign in (1.0,) if both else (1.0, -1.0):
                words = self._words(step, range(first, first + s.directions))
                out = self._call(self.bundle.splits["train"], rows, share, gold, words, sign * s.eps)
                tokens += len(rows) * self._width(self.bundle.splits["train"], rows)
                for p, loss in enumerate(out[0].tolist()):
                    query = first + (p // 2 if both else p)
                    losses[query, (p % 2 == 0) if both else sign > 0] = loss
        return [losses[query, plus] for query in range(s.queries) for plus in (True, False)], tokens

    def scores(self, split: str, step: int, theta: NDArray[np.float32]) -> dict[str, Any]:
        s, rows = self.settings, self.bundle.splits[split]
        N, scores = s.points * s.batch * s.rows_per_example, {}
        order = sorted(range(len(rows.ids)), key=lambda row: rows.lengths[row])
        nothing = np.zeros((s.points, s.batch))
        for first in range(0, len(order), N):
            chosen = [order[min(first + i, len(order) - 1)] for i in range(N)]
            out = self._call(rows, chosen, nothing, nothing, self._words(step, range(s.directions)), 0.0)
            scores |= dict(zip(chosen, out[1].reshape(N, s.slots).tolist(), strict=True))
        shown = [row for _, row in sorted(scores.items())]
        return {"type": "scores", "split": split, "step": step, "scores": shown, "theta": self._digest(theta)}

    def _digest(self, theta: NDArray[np.float32]) -> str:
        digest, start = hashlib.sha256(), 0
        for _, shape in self.settings.parameters:
            digest.update(theta[start : start + prod(shape)].tobytes())
            start += -(-prod(shape) // 1024) * 1024
        return digest.hexdigest()

    def _words(self, step: int, queries: Sequence[int]) -> NDArray[np.int32]:
        seed, cycles = self.settings.seed, self.settings.cycles
        if cycles:
            drawn = [(step - 1) * self.settings.queries + i for i in queries]
            return np.array([[[t * cycles[0] % length for length in cycles[1:]]] for t in drawn], np.int32)
        return np.array([[words_of(NoiseKey(seed, step, i), name) for name in self.names] for i in queries], np.int32)

    def update(self, step: int, grads: list[float]) -> NDArray[np.float32]:
        """Apply the update of a step; return theta."""
        return self._apply(step, grads, float(self.bundle.training.rates[step - 1]))

    def _apply(self, step: int, grads: list[float], rate: float, fresh: int = 0) -> NDArray[np.float32]:
        past = self._words(step, range(self.settings.queries))
        inputs = [past, np.array(grads), np.array([rate]), np.array([fresh])]
        (theta,) = self.apply.execute([torch.from_numpy(value) for value in inputs])
        return theta.clone().numpy()

    def _width(self, rows: SplitRows, chosen: Sequence[int]) -> int:
        return -(-int(rows.lengths[chosen].max()) // self.settings.multiple) * self.settings.multiple

    def _call(
        self,
        rows: SplitRows,
        chosen: Sequence[int],
        share: NDArray[Any],
        gold: NDArray[Any],
        words: NDArray[Any],
        eps: float,
    ) -> list[NDArray[Any]]:
        q = self.settings.queries
        inputs = [
            rows.ids[chosen, : self._width(rows, chosen)].astype(np.int64),
            rows.columns[chosen].astype(np.int64),
            rows.tokens[chosen].astype(np.int64),
            rows.weights[chosen],
            rows.bias[chosen],
            share.astype(np.float32),
            gold.astype(np.int64),
            words,
            np.array([eps], np.float32),
            self._words(1, range(q)) * 0,
            np.zeros(q),
            np.zeros(1),
        ]
        return [out.clone().numpy() for out in self.forward.execute([torch.from_numpy(value) for value in inputs])]
