"""The trained weights of a finished trial, rebuilt from its journal: as tensors, as an adapter, as a whole model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event
from zo_sweeps.core.files import folder_at, new_folder
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.engine.layers.low_rank import Wrapped
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.engine.replay import Data, rebuild
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.points import Theta
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models import adapters
from zo_sweeps.models.checkpoint import writing
from zo_sweeps.models.identity import fingerprint_model, folder_of, repo_of
from zo_sweeps.models.load import quiet
from zo_sweeps.models.projection import is_transposed
from zo_sweeps.record.journal import JournalStore, last_step, outcome
from zo_sweeps.record.sweep_book import find_trial
from zo_sweeps.run import packages, workbench
from zo_sweeps.run.recorder import Nowhere, Recorder
from zo_sweeps.run.workbench import Workbench
from zo_sweeps.schedule.ledger import read_standing


def weights(trial_id: str, state_dir: str | Path = "zo_runs") -> dict[str, Tensor]:
    """Return the trained values of a trial at its selected step, by parameter name, on the CPU.

    See `rebuilt` for the arguments, the cost and the errors.
    """
    with rebuilt(trial_id, state_dir) as (_, space):
        return {name: param.detach().to("cpu", copy=True) for name, param in space.params.items()}


def save_adapter(trial_id: str, folder: str | Path, state_dir: str | Path = "zo_runs", *, merge: bool = False) -> Path:
    """Write the trained weights of a trial at its selected step; return the folder.

    Args:
        folder: new or empty; receives an adapter in PEFT format. Of a space without one it receives the whole model: a
            package where weights are stored as codes (scales, codes, sparse), otherwise as with `merge` (full, sparse).
        merge: write the whole model in Hugging Face format instead, with the trained values merged into its weights.
            Codes are decoded, and the sums rounded, to the dtype in which they are multiplied (`precision.compute`).

    Raises UserError if the folder is not empty or not writable, or the space cannot be saved in this form; and as
    `rebuilt` does.
    """
    found = finished(trial_id, state_dir)
    config = TrialConfig.of(found[0].config)
    whole = merge or config.space.adapter is None
    if whole and config.space.positions:
        what = f"space {config.space.name!r} cannot be merged: its trained values precede the text and change no weight"
        raise UserError(what, where=trial_id, fix="do not merge: save it as an adapter")
    target = new_or_empty(Path(folder).expanduser())
    with replayed(*found) as (bench, space):
        try:
            if whole:
                _save_whole(bench, space, target, as_package=config.precision.coded and not merge)
            else:
                base, revision = _base(config.model, bench.model.commit)
                adapters.save(space, config.space, target, module=bench.model.module, base=base, revision=revision)
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror or error}") from None
    return target


def other_than_scored(trial_id: str, state_dir: str | Path, merge: bool) -> str:
    """Return how what `save_adapter` writes differs from the model that the trial scored; "" if it does not."""
    config = TrialConfig.of(find_trial(folder_at(state_dir, "state_dir"), trial_id).config)
    precision, whole = config.precision, merge or config.space.adapter is None
    if precision.coded and not whole:
        over = f"trained and scored over {precision.name} codes, and another model on the plain weights that it names"
        return f"{over}; --merge writes the whole"
    if merge and precision.rounds_activations:
        return f"{precision.name} rounds activations before each product, and the merged model does not"
    return ""


def rebuilt(
    trial_id: str, state_dir: str | Path = "zo_runs"
) -> AbstractContextManager[tuple[Workbench, InstalledSpace]]:
    """Return the workbench of a trial, and its space with the weights of the selected step, which were tested.

    On the same kind of device they equal the weights of the run bit for bit.

    Args:
        trial_id: the id, or the start of it, of a zeroth-order trial that has succeeded.
        state_dir: the state folder of its sweep.

    Raises UserError if the trial is unknown, has not succeeded or was not trained by zeroth-order estimates, if its
    journal is damaged, or if its model or data is not available here. Cost: loads the model and the task's rows; then q
    noise passes over the space per step, and one forward if directions read the minibatches. The process keeps the base
    model for the next trial that uses it.
    """
    return replayed(*finished(trial_id, state_dir))


@contextmanager
def replayed(trial: Trial, journal: list[Event], step: int) -> Iterator[tuple[Workbench, InstalledSpace]]:
    """Yield the workbench of a trial, and its space with the weights that its journal gives after a step.

    Raises UserError and costs as `rebuilt`.
    """
    config = TrialConfig.of(trial.config)
    recorder = Recorder(trial, Nowhere(), journal)
    if len(recorder.coefs) < step:
        raise UserError(f"the journal ends before the selected step {step}", where=trial.trial_id)
    if (here := fingerprint_model(config.model)) != config.model.fingerprint:
        what = f"the trial's model was {config.model.fingerprint}, and the one here is {here}"
        raise UserError(what, where=trial.trial_id, fix=f"put its weights back in {config.model.path or 'its place'}")
    bench = Workbench(config, trial.warm_key, recorder)
    bench.load()
    space = bench.install()
    try:
        log, data = recorder.coefs[:step], Data(bench.model.module, space, bench.losses(space))
        rebuild(bench.method(), space, log, bench.rates(), seed=config.seed, data=data)
        yield bench, space
    finally:
        space.uninstall()


def finished(name: str, state_dir: str | Path) -> tuple[Trial, list[Event], int]:
    """Return a trial, its journal and its selected step. Raises UserError if it has no weights to rebuild."""
    folder = folder_at(state_dir, "state_dir")
    trial = find_trial(folder, name)
    kind = TrialConfig.of(trial.config).method.kind
    where = f"trial {trial.trial_id} ({trial.label})"
    if kind.backpropagates:
        what = "weights trained by backpropagation are not kept, and cannot be rebuilt from the journal"
        raise UserError(what, where=where, fix="run a zeroth-order method, whose weights are rebuilt from its journal")
    if not kind.estimates:
        raise UserError("nothing was trained: its weights are the base model's", where=where)
    finished = read_standing(folder).has_result(trial.trial_id)
    journal = JournalStore(folder).read(trial.trial_id, ended=finished)
    ended = outcome(journal)
    if ended is None or ended.state in (TrialState.CANCELLED, TrialState.FAILED, TrialState.LOST):
        done = f"step {last_step(journal)} of {trial.steps}"
        raise UserError(f"not finished: {done}", where=where, fix="run the sweep's command again to finish it")
    if ended.state is not TrialState.SUCCEEDED:
        raise UserError(f"no step was selected: it ended as {ended.state.value.lower()}", where=where)
    return trial, journal, ended.selected_step


def _save_whole(bench: Workbench, space: InstalledSpace, target: Path, *, as_package: bool) -> None:
    """Write the whole model with the trained values, as a package of its codes, or merged into its weights."""
    config = bench.config
    wrapped = isinstance(space, Wrapped)
    if isinstance(space, Sparse):
        space.write()  # `uninstall` takes them out again
    elif not (wrapped or config.space.moves_base or config.space.theta is Theta.SCALES):
        raise UserError(f"space {config.space.name!r} can be saved neither as an adapter nor merged")
    assert workbench.warm is not None
    workbench.warm.dirty = workbench.warm.dirty or wrapped or config.precision.coded
    if as_package:
        packages.write_trained(config, bench.model, target)
        return
    if config.precision.coded:
        packages.decode(bench.model.module)
    if isinstance(space, Wrapped):
        for layer in space.layers.values():
            merge(layer, layer.base)
        space.uninstall()
    module: Any = bench.model.module
    with quiet(), new_folder(target) as part, writing():
        module.save_pretrained(str(part), safe_serialization=True)
        bench.model.tokenizer.save_pretrained(str(part))


def _base(model: Model, commit: str) -> tuple[str, str]:
    """Return the hub repository or folder of a base model, and the hub commit; both "" for random weights."""
    if model.source == ModelSource.RANDOM:
        return "", ""
    return (repo_of(model), commit) if model.source == ModelSource.HUB else (str(folder_of(model).resolve()), "")


def new_or_empty(folder: Path) -> Path:
    """Return the folder. Raises UserError unless it is absent or empty: two models must not share one."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty", fix="name a new folder")
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}") from None
    return folder


@torch.no_grad()
def merge(layer: nn.Module, base: nn.Module) -> None:
    """Merge `layer`, a linear module that wraps `base`, into the weight of `base`.

        W' = layer(I)^T, without the bias

    No formula of the layer's kind is needed. W' is computed in fp32 and rounded once, to the dtype of the weight.
    Cost: a forward of [in, in] through the layer.
    """
    weight: Tensor = base.get_parameter("weight")
    bias: Tensor | None = getattr(base, "bias", None)
    stored, kept = weight.data, None if bias is None else bias.data
    into = stored.shape[0] if is_transposed(base) else stored.shape[1]
    try:
        weight.data = stored.float()
        if bias is not None and kept is not None:
            bias.data = torch.zeros_like(kept, dtype=torch.float32)
        product: Tensor = layer(torch.eye(into, device=stored.device))  # [in, out]
    finally:
        weight.data = stored
        if bias is not None and kept is not None:
            bias.data = kept
    stored.copy_(product if is_transposed(base) else product.t())
