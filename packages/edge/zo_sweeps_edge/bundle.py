"""The bundle of a trial: a folder with everything that the light client (edge/client) needs to run it.

    program.pte      the exported program (see program.py)
    manifest.json    what the bundle is, and size and SHA-256 of every other file
    settings.txt     the facts that the client needs, one `key value` per line, so that it needs no JSON parser
    *.bin            flat little-endian arrays: the rows of each split, the batches, the learning rates
    README.md        how to run it
    initial.bin      theta before the first step, if it was computed; the program has it, too
    tokenizer.json   the model's tokenizer, for texts of one's own
    log.jsonl        written by the client, the only state of a run; not part of the bundle

Letters: N rows of a split, W tokens that they are padded to, A places per row, S slots per row, B examples per point.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import new_folder, sha256_of
from zo_sweeps.core.light_client import LOG

FORMAT = 1
FP32 = 4  # bytes
MANIFEST, SETTINGS, PROGRAM = "manifest.json", "settings.txt", "program.pte"
README, TOKENIZER, INITIAL = "README.md", "tokenizer.json", "initial.bin"
SPLITS = ("train", "dev", "test")
LARGEST_MANIFEST = 2**24  # bytes
LARGEST_PART = 2**16  # of everything that one call or row consists of; the client's limit
_ROWS = {"ids": "<i4", "lengths": "<u4", "columns": "<i4", "tokens": "<i4", "weights": "<f4", "bias": "<f4"}
_TRAINING = {"train.gold": "<u4", "train.mass": "<f4", "order": "<u4", "rates": "<f8"}


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split; see rows.py.

    Args:
        ids: [N, W] tokens, padded on the right; W is a multiple of `Settings.multiple`.
        lengths: [N] tokens without the padding.
        columns: [N, A] tokens whose next token is an answer token.
        tokens: [N, A, S] answer tokens.
        weights: [N, A, S] weight of each answer token's log-probability in its slot's score.
        bias: [N, S] 0, or -inf for an empty slot.
    """

    ids: NDArray[np.int32]
    lengths: NDArray[np.uint32]
    columns: NDArray[np.int32]
    tokens: NDArray[np.int32]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]


@dataclass(frozen=True)
class Training:
    """The examples of the steps.

    Args:
        gold: [examples] slot of each gold candidate.
        mass: [examples] example b's share of a step's loss is mass_b / sum of the batch's masses: 1 for a mean over
            examples, the tokens of its gold answer for a mean over tokens.
        order: [steps, B] examples of each step, by their place in the train split; the number of examples, at the end
            of a batch that is too small, for none.
        rates: [steps] learning rate of each step.
    """

    gold: NDArray[np.uint32]
    mass: NDArray[np.float32]
    order: NDArray[np.uint32]
    rates: NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """The facts that the client needs, besides the arrays.

    Args:
        trial_id: the trial.
        seed: seed of the noise addresses.
        steps: optimization steps.
        queries: q, directions per step.
        points, directions: P and D, per call of the program.
        batch: B, examples per point.
        rows_per_example: rows of an example in a step.
        places, slots: A and S.
        multiple: T of a call is its longest row, rounded up to a multiple of this.
        eps: perturbation scale.
        clip: largest |projected_grad|; 0: any.
        parameters: (name, shape) of the trained parameters, in the space's order.
        evaluations: steps after which the dev split is scored.
        cycles: stride and lengths of `noise.Cycles`; (): parameters have addresses of their own.
    """

    trial_id: str
    seed: int
    steps: int
    queries: int
    points: int
    directions: int
    batch: int
    rows_per_example: int
    places: int
    slots: int
    multiple: int
    eps: float
    clip: float
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    evaluations: tuple[int, ...]
    cycles: tuple[int, ...] = ()

    def lines(self) -> list[str]:
        """Return the lines of settings.txt. Python prints floats so that they are read back to the bit."""
        single = {
            name: value for name, value in vars(self).items() if name not in ("parameters", "evaluations", "cycles")
        }
        return [
            *(f"{name} {value}" for name, value in single.items()),
            *(f"parameter {name} {prod(shape)}" for name, shape in self.parameters),
            *([f"cycles {' '.join(map(str, self.cycles))}"] if self.cycles else []),
            *(f"evaluate {step}" for step in self.evaluations),
        ]


@dataclass(frozen=True)
class File:
    """Size and content of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The contents of manifest.json.

    Args:
        settings: the same facts as in settings.txt.
        config: `trial`, from which and a log the server rebuilds the weights; `command`, which reads a log back;
            `planned_bytes` of the program.
        fingerprints: name -> fingerprint of what the program was exported from (model, tokenizer, program, ...).
        splits: (rows, W) of each split.
        files: size and SHA-256 of every other file, by name.
    """

    settings: Settings
    config: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    splits: Mapping[str, tuple[int, int]]
    files: Mapping[str, File]

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """Read a manifest. Raises ValueError with the reason, or TypeError or KeyError, if it is malformed."""
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r} is not {FORMAT}, which this version of zo_sweeps reads")
        raw = dict(data["settings"])
        raw["parameters"] = tuple((str(name), tuple(map(int, shape))) for name, shape in raw["parameters"])
        raw |= {name: tuple(map(int, raw.get(name, ()))) for name in ("evaluations", "cycles")}
        settings = Settings(**raw)
        kinds: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str}
        for field in fields(Settings):
            value = getattr(settings, field.name)
            if isinstance(value, bool) or not isinstance(value, kinds.get(str(field.type), tuple)):
                raise ValueError(f"settings.{field.name} is no {field.type}: {value!r}")
        return cls(
            settings,
            dict(data["config"]),
            {str(name): str(value) for name, value in data["fingerprints"].items()},
            {name: (int(data["splits"][name][0]), int(data["splits"][name][1])) for name in SPLITS},
            {str(name): File(int(file["bytes"]), str(file["sha256"])) for name, file in data["files"].items()},
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every array, by its file's name without the suffix."""
        A, S, B, steps = self.settings.places, self.settings.slots, self.settings.batch, self.settings.steps
        shapes: dict[str, tuple[int, ...]] = {"order": (steps, B), "rates": (steps,)}
        for split, (N, W) in self.splits.items():
            of_rows = {"ids": (N, W), "lengths": (N,), "columns": (N, A), "tokens": (N, A, S), "weights": (N, A, S)}
            shapes |= {f"{split}.{name}": shape for name, shape in of_rows.items()} | {f"{split}.bias": (N, S)}
        examples = self.splits["train"][0] // self.settings.rows_per_example
        return shapes | {"train.gold": (examples,), "train.mass": (examples,)}


@dataclass(frozen=True)
class Bundle:
    """A bundle in a folder, verified."""

    folder: Path
    manifest: Manifest
    splits: Mapping[str, SplitRows]
    training: Training

    @property
    def log(self) -> Path:
        """The client's log; absent before its first run."""
        return self.folder / LOG

    @property
    def needed(self) -> dict[str, File]:
        """The files that the client reads."""
        return {name: file for name, file in self.manifest.files.items() if name not in (README, TOKENIZER, INITIAL)}

    @property
    def initial(self) -> dict[str, NDArray[np.float32]] | None:
        """Theta before the first step, by parameter; None if the bundle does not hold it."""
        if INITIAL not in self.manifest.files:
            return None
        shapes = dict(self.manifest.settings.parameters)
        ends = np.cumsum([prod(shape) for shape in shapes.values()])
        each = np.split(np.fromfile(self.folder / INITIAL, "<f4"), ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), each, strict=True)}


def write(
    folder: Path,
    program: Path,
    settings: Settings,
    splits: Mapping[str, SplitRows],
    training: Training,
    *,
    config: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    tokenizer: str = "",
    initial: NDArray[np.float32] | None = None,
) -> Manifest:
    """Write a bundle into a folder that is absent or empty, whole or not at all.

    Args:
        program: the .pte file; it is copied.
        splits: the rows of train, dev and test. An example of train has `settings.rows_per_example` rows, in order.
        config, fingerprints: see `Manifest`.
        tokenizer: content of tokenizer.json, for texts of one's own; "" writes none.
        initial: theta before the first step as one vector, where it is computed: other CPUs compute other last bits.

    Raises ValueError for arrays, names or numbers that do not fit together.
    """
    sizes = {name: (rows.ids.shape[0], rows.ids.shape[1]) for name, rows in splits.items()}
    manifest = Manifest(settings, config, fingerprints, sizes, {})
    arrays = _arrays(splits, training)
    if wrong := _contradiction(manifest, arrays):
        raise ValueError(wrong)
    with new_folder(folder) as part:
        shutil.copyfile(program, part / PROGRAM)
        for name, array in arrays.items():
            array.tofile(part / f"{name}.bin")
        described = {path.name: _file(path) for path in sorted(part.iterdir())}
        lines = [f"format {FORMAT}", *settings.lines()]
        lines += [f"{name} {rows} {width}" for name, (rows, width) in sizes.items()]
        lines += [f"file {name} {file.bytes} {file.sha256}" for name, file in described.items()]
        (part / SETTINGS).write_text("\n".join(lines) + "\n", encoding="ascii")
        (part / README).write_text(_readme(settings), encoding="utf-8")
        if tokenizer:
            (part / TOKENIZER).write_text(tokenizer, encoding="utf-8")
        if initial is not None:
            initial.astype("<f4").tofile(part / INITIAL)
        others = (SETTINGS, README, TOKENIZER, INITIAL)
        described |= {name: _file(part / name) for name in others if (part / name).exists()}
        manifest = Manifest(settings, config, fingerprints, sizes, described)
        (part / MANIFEST).write_text(json.dumps(manifest.to_json(), indent=2) + "\n", encoding="utf-8")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read what a bundle says of itself. Raises UserError if that is malformed; the other files are not verified."""
    try:
        with (folder / MANIFEST).open("rb") as file:
            text = file.read(LARGEST_MANIFEST)
        return Manifest.from_json(json.loads(text))
    except OSError as error:
        raise UserError(f"no bundle: {error.strerror}", where=str(folder / MANIFEST)) from None
    except KeyError as error:
        raise _damaged(folder, f"{MANIFEST} has no {error}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(folder, f"{MANIFEST} cannot be read ({error})") from None


def read(folder: Path) -> Bundle:
    """Read a bundle and verify every file. Raises UserError if it is malformed or damaged.

    Cost: reads all files once to verify them, and the arrays again; never more bytes than the manifest names.
    """
    manifest = read_manifest(folder)
    for name, expected in manifest.files.items():
        path = folder / name
        if path.name != name or not path.is_file() or path.stat().st_size != expected.bytes or _file(path) != expected:
            raise _damaged(folder, f"{name} is not the file that was written")
    arrays: dict[str, NDArray[Any]] = {}
    for name, shape in manifest.shapes().items():
        dtype = np.dtype(_TRAINING.get(name) or _ROWS[name.rpartition(".")[2]])
        size = manifest.files.get(f"{name}.bin", File(-1, "")).bytes
        if min(shape) < 0 or size != prod(shape) * dtype.itemsize:
            raise _damaged(folder, f"{name}.bin has {size} bytes instead of those of {list(shape)} {dtype.name}")
        arrays[name] = np.fromfile(folder / f"{name}.bin", dtype).reshape(shape)
    if wrong := _contradiction(manifest, arrays):
        raise _damaged(folder, wrong)
    length = FP32 * sum(prod(shape) for _, shape in manifest.settings.parameters)
    if INITIAL in manifest.files and manifest.files[INITIAL].bytes != length:
        raise _damaged(folder, f"{INITIAL} has {manifest.files[INITIAL].bytes} bytes instead of {length}")
    splits = {split: SplitRows(**{name: arrays[f"{split}.{name}"] for name in _ROWS}) for split in SPLITS}
    return Bundle(folder, manifest, splits, Training(*(arrays[name] for name in _TRAINING)))


def _arrays(splits: Mapping[str, SplitRows], training: Training) -> dict[str, NDArray[Any]]:
    """Return all arrays as their files hold them, by the file's name without the suffix."""
    arrays = {
        f"{split}.{name}": (getattr(rows, name), dtype)
        for split, rows in splits.items()
        for name, dtype in _ROWS.items()
    }
    for name, dtype in _TRAINING.items():
        arrays[name] = (getattr(training, name.rpartition(".")[2]), dtype)
    return {name: np.ascontiguousarray(array, dtype) for name, (array, dtype) in arrays.items()}


def _contradiction(manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return what does not fit together, or ""."""
    s = manifest.settings
    parts = (s.queries, s.points, s.directions, s.batch, s.rows_per_example, s.places, s.slots, s.multiple)
    if (
        min(parts) < 1
        or max(parts) > LARGEST_PART
        or s.steps < 1
        or not (isfinite(s.eps) and s.eps > 0)
        or not (isfinite(s.clip) and s.clip >= 0)
    ):
        return "a number of the settings is out of range"
    if s.queries % s.directions or s.points not in (s.directions, 2 * s.directions):
        return f"{s.queries} queries cannot be divided into calls of {s.points} points and {s.directions} directions"
    if s.cycles and (len(s.cycles) != 3 or min(s.cycles) < 1 or max(s.cycles) >= 2**31):
        return f"cycles {s.cycles} are no stride and two lengths"
    if not re.fullmatch(r"[\w.-]+", s.trial_id, re.ASCII):  # it names a folder on the device
        return f"the trial_id {s.trial_id!r} has other characters than letters, digits, '.', '_' and '-'"
    if any(not re.fullmatch(r"[!-~]+", name) for name, _ in s.parameters):
        return "a parameter's name has a space, or a character that is not ASCII"
    if set(manifest.splits) != set(SPLITS):
        return f"the splits are {sorted(manifest.splits)} instead of {list(SPLITS)}"
    for name, shape in manifest.shapes().items():
        if arrays[name].shape != shape:
            return f"{name} has shape {list(arrays[name].shape)} instead of {list(shape)}"
    for split, (N, W) in manifest.splits.items():
        lengths, columns = arrays[f"{split}.lengths"], arrays[f"{split}.columns"]
        if W % s.multiple or (N and (lengths.min() < 1 or lengths.max() > W)):
            return f"the lengths of {split} are not from 1 to {W}, a multiple of {s.multiple}"
        if N and ((columns < 0).any() or (columns >= lengths[:, None]).any()):
            return f"a column of {split} is not in its row"
    examples = len(arrays["train.gold"])
    if manifest.splits["train"][0] != examples * s.rows_per_example:
        return f"the rows of train are no multiple of {s.rows_per_example} per example"
    order = arrays["order"]
    if order.max() > examples or order[:, 0].max() == examples:
        return "order names an example that train does not have"
    if examples and arrays["train.gold"].max() >= s.rows_per_example * s.slots:
        return "gold names a slot that no example has"
    return ""


def _readme(settings: Settings) -> str:
    return f"""# Trial {settings.trial_id}

The bundle of one trial of zo_sweeps: {settings.steps} steps of a program for ExecuTorch, and the data that they need.
The light client runs it where there is no Python; its sources, and how they are built for another
device, are in packages/edge of zo_sweeps.

    zo_client FOLDER                            # run, or continue; FOLDER is this one
    zo_client FOLDER --score test --at STEP     # score the test split with the weights after STEP steps

It appends the scalars of the run to log.jsonl here. Copy the folder back with that log: with device.log=FOLDER added to
the command in manifest.json (`config.command`), zo_sweeps takes the log in place of a run.
"""


def _file(path: Path) -> File:
    return File(path.stat().st_size, sha256_of(path))


def _damaged(folder: Path, what: str) -> UserError:
    return UserError(what, where=str(folder), fix="copy the bundle again, or export it again")
