"""Known answers of boards that run the light client: programs of a tiny model, and a log that each goes on from.

A board gets the bundle of a run whose log is written already, with projected gradients that were drawn. Its client
replays them and scores the dev split: the hash of theta then says whether its noise has the engine's bits, and the
scores are losses of a tiny model. `known_answers.compare` compares both, and needs no torch.

    python -m zo_sweeps_agent.known_programs COUNT     prints COUNT challenges with the answers, one per line
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import util
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zo_sweeps_edge
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.fingerprint import file_digests, fingerprint
from zo_sweeps.core.light_client import LOG, log_of, text_of
from zo_sweeps.devices.probe import EDGE
from zo_sweeps.methods import registry
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.precision import Precision
from zo_sweeps.methods.trial_config import common_files
from zo_sweeps_agent import known_answers
from zo_sweeps_agent.protocol import KnownBundle, KnownPrograms
from zo_sweeps_edge.runtime import outside

if TYPE_CHECKING:
    from zo_sweeps_edge import program as edge

ARCH: Mapping[str, Any] = {  # a program is 1 MB
    **known_answers.ARCH,
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1},
}
SEED, TARGETS = 0, ("q_proj",)  # of weights and of trained layers, which are the same in all challenges
ROWS, TOKENS, ANSWER = 8, 24, 16  # a row's score is the mean over its last tokens
QUERIES, BATCH, STEPS, RATE, EPS = 1, 2, 3, 0.1, 1e-3


class KnownProgram:
    """The program of the tiny model in one precision, from this machine's store. Cost: an export if it lacks it."""

    def __init__(self, precision: Precision) -> None:
        from zo_sweeps_edge.store import stored

        self.objective: Any = registry.member("objective", "tokens")()
        versions = [version(package) for package in ("executorch", "torch", "transformers")]
        key = {"known": precision.name, "code": _code(), "versions": versions}
        self.program, self.file = stored(key, partial(self._export, precision))

    def _export(self, precision: Precision) -> tuple[edge.Program, bytes]:
        from zo_sweeps_edge.export import export
        from zo_sweeps_edge.noise import GaussianNoise
        from zo_sweeps_edge.program import Calls
        from zo_sweeps_edge.rows import Frame

        model = known_answers.model(ARCH, SEED, precision, "cpu")
        space: Any = registry.member("space", "lora_fa")
        one = space(targets=TARGETS)
        installed = one.install(model.module, list(model.target_modules(one.layers)), SEED, None)
        frame = Frame(shared=False, slots=1, places=ANSWER, tokens=TOKENS)
        noise = GaussianNoise([param.numel() for param in installed.params.values()])
        return export(model, installed, noise, Calls(QUERIES, Mode.BOTH), frame, BATCH, self.objective.of_scores)

    def bundle(self, seed: int, rows: Sequence[Sequence[int]], coefs: Sequence[Sequence[float]]) -> dict[str, str]:
        """Return the files of a bundle with its log, in base64.

        Args:
            seed: of the noise.
            rows: tokens of each row, TOKENS + 1.
            coefs: projected gradients of each step.
        """
        import numpy as np

        from zo_sweeps_edge import bundle
        from zo_sweeps_edge.bundles import rows_of
        from zo_sweeps_edge.rows import MULTIPLE_OF

        program, arrays = self.program, rows_of(self._rows(rows), self.program)
        settings = bundle.Settings(
            trial_id="known-answers",
            seed=seed,
            steps=STEPS,
            queries=QUERIES,
            points=program.calls.points,
            directions=program.calls.directions,
            batch=BATCH,
            rows_per_example=program.frame.rows_per_example,
            places=program.frame.places,
            slots=program.frame.slots_per_row,
            multiple=MULTIPLE_OF,
            eps=EPS,
            clip=0.0,
            parameters=tuple(zip(program.names, program.shapes, strict=True)),
            evaluations=(),
        )
        order = np.arange(STEPS * BATCH, dtype=np.uint32).reshape(STEPS, BATCH) % ROWS
        training = bundle.Training(np.zeros(ROWS, np.uint32), np.ones(ROWS, np.float32), order, np.full(STEPS, RATE))
        with tempfile.TemporaryDirectory(prefix="zo-known-") as name:
            folder = Path(name) / "bundle"
            splits = dict.fromkeys(bundle.SPLITS, arrays)
            bundle.write(folder, self.file, settings, splits, training, config={}, fingerprints={})
            (folder / LOG).write_text(text_of(log_of(coefs, ())))
            kept = [*bundle.read(folder).needed, LOG]
            return {file: base64.b64encode((folder / file).read_bytes()).decode() for file in kept}

    def losses(self, seed: int, rows: Sequence[Sequence[int]], coefs: Sequence[Sequence[float]]) -> list[float]:
        """Return the score of each row after the steps, by this machine's runtime."""
        from zo_sweeps_edge.session import Session, load

        session = Session(self.program, load(self.file), self.objective, lambda step: (), lambda step: RATE, seed)
        for line in coefs:
            session.tell(line)
        return [row[0] for row in session.scores(self._rows(rows))]

    def theta(self, seed: int, coefs: Sequence[Sequence[float]]) -> str:
        """Return the SHA-256 of the parameters after the steps, by the engine; those of LoRA-FA begin at zero."""
        import torch

        from zo_sweeps.engine.noise import combine

        digest = hashlib.sha256()
        for name, shape in zip(self.program.names, self.program.shapes, strict=True):
            theta = torch.zeros(shape)
            for step, line in enumerate(coefs, 1):
                terms = [(NoiseKey(seed, step, query), -RATE * (g / QUERIES)) for query, g in enumerate(line)]
                combine(terms, name, theta.shape, base=theta, out=theta)
            digest.update(theta.numpy().tobytes())
        return digest.hexdigest()

    @staticmethod
    def _rows(rows: Sequence[Sequence[int]]) -> list[Any]:
        from zo_sweeps_edge.rows import Row

        return [Row(tuple(row[:-1]), (tuple(row[-ANSWER:]),)) for row in rows]


def offered() -> dict[str, Precision]:
    """Return the precisions that programs hold, by name."""
    return {name: one for name, one in known_answers.offered().items() if not outside(one)}


def _code() -> str:
    """Return a digest of the code that programs come from."""
    programs = sorted(Path(zo_sweeps_edge.__file__).parent.glob("*.py"))
    files = [*common_files(), *programs, Path(__file__), Path(known_answers.__file__)]
    return fingerprint(file_digests(files))


def challenge(programs: Mapping[str, KnownProgram], seed: int) -> tuple[KnownPrograms, known_answers.MachineAnswers]:
    """Return what a board has to compute, drawn from a seed, and the answers."""
    drawn = random.Random(seed)
    rows = [[drawn.randrange(known_answers.VOCABULARY) for _ in range(TOKENS + 1)] for _ in range(ROWS)]
    coefs = [[drawn.gauss(0, 1) for _ in range(QUERIES)] for _ in range(STEPS)]
    run = drawn.randrange(2**31), rows, coefs
    asked = KnownPrograms({name: KnownBundle(one.bundle(*run)) for name, one in programs.items()}, STEPS)
    noise = tuple(sorted({one.theta(run[0], coefs) for one in programs.values()}))
    losses = {name: tuple(one.losses(*run)) for name, one in programs.items()}
    return asked, known_answers.MachineAnswers(noise, losses)


def main(count: int) -> None:
    """Print challenges with answers, or why there are none."""
    if util.find_spec("executorch") is None:
        print(json.dumps({"error": f"the head has no ExecuTorch, which makes programs: {EDGE}"}))
        return
    try:
        programs = {precision: KnownProgram(one) for precision, one in offered().items()}
    except UserError as error:
        print(json.dumps({"error": str(error)}))
        return
    for _ in range(count):
        known = challenge(programs, random.SystemRandom().randrange(2**31))
        print(json.dumps([one.to_json() for one in known]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
