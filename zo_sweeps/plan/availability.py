"""What a trial needs of this machine: its model, its data, memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.arch import Arch
from zo_sweeps.plan.compatible import TRAINED

BYTES_A_TOKEN = 4  # of English text as JSON, roughly; for estimates only
MOMENTS = {"adam": 2, "momentum": 1}  # fp32 copies of the trainable state that an update keeps


@cache
def _is_stored(precision: str) -> bool:
    """Whether weights can be stored so."""
    return find_spec(f"zo_sweeps.engine.precisions.{precision}") is not None


def _key(value: Any) -> str:
    """Equal for equal configurations; a fingerprint costs ten times as much."""
    return json.dumps(value, sort_keys=True, default=str)


class Places:
    """Models and data, looked up once each: are they here, which are they, how large."""

    def __init__(self) -> None:
        self._models: dict[str, Any] = {}
        self._data: dict[str, Any] = {}
        self._texts: dict[Path, str] = {}

    def look(self, config: dict[str, Any]) -> tuple[str, int, float]:
        """Fills in the fingerprints; returns (why it cannot run here, peak memory, tokens a sequence)."""
        model, data = self._model(config["model"]), self._task(config)
        config["model"]["fingerprint"] = model.fingerprint
        config["task"]["fingerprint"] = data.fingerprint
        self._goes_with(config, model.arch)
        text = self._text(config)
        precision = config["precision"]["name"]
        stored = _is_stored(precision)
        why = "; ".join(
            reason
            for reason, there in (
                (model.why, model.available),
                (data.why, data.available),
                (text, not text),
                (f"weights cannot be stored as {precision} yet (choose precision=fp16, bf16 or fp32)", stored),
            )
            if not there
        )
        tokens = float(config["train"]["max_length"])
        if data.row_bytes:
            tokens = min(tokens, max(data.row_bytes / BYTES_A_TOKEN, 16) * (1 + config["method"]["demonstrations"]))
        memory, device = self._memory(config, model, tokens), config["device"]
        if not why and device.get("memory_gb") and memory > device["memory_gb"] * 10**9:
            display = device.get("display") or device["name"]
            why = f"needs about {memory / 10**9:.1f} GB, and a {display} has {device['memory_gb']:g}"
        return why, memory, tokens

    @staticmethod
    def _goes_with(config: Mapping[str, Any], arch: Arch | None) -> None:
        """Raises UserError for a model (None: not known) that does not go with the prompt, the method or the space."""
        if arch is None:
            return
        wording, masked = config["task"]["dialects"].get(config["prompt"]["name"]), arch.masked
        if wording and masked != (wording["loss"] == "label_words"):
            kind, other = ("masked", "without") if masked else ("causal", "with")
            raise UserError(
                f"model {config['model']['name']!r} is a {kind} one, and prompt {config['prompt']['name']!r} of task "
                f"{config['task']['name']!r} is {other} a mask"
            )
        if masked and config["method"]["kind"] in ("icl", "generate"):
            what = {"icl": "in-context learning", "generate": "generation"}[config["method"]["kind"]]
            fix = f"leave kind {config['method']['kind']} out for masked models"
            raise UserError(f"{what} needs a causal model", fix=fix)
        if arch.no_prefix and config["space"]["name"] == "prefix" and config["method"]["kind"] in TRAINED:
            raise UserError(arch.no_prefix, fix="use another space")
        evaluation, zeroth = config["evaluation"], config["method"]["kind"] == "zo"
        if arch.no_points and zeroth and evaluation["mode"] != "sequential":
            what = f"one forward of model {config['model']['name']!r} cannot hold several points: {arch.no_points}"
            raise UserError(what, fix="use evaluation.mode=sequential")
        if arch.no_full and zeroth and config["space"]["name"] == "full" and evaluation["restore"] != "in_place":
            what = f"model {config['model']['name']!r} is not evaluated beside its weights: {arch.no_full}"
            raise UserError(what, fix="use evaluation.restore=in_place, or another space")

    def _model(self, model: Mapping[str, Any]) -> Any:
        from zo_sweeps.models.identity import status

        key = _key({k: v for k, v in model.items() if k != "fingerprint"})
        if key not in self._models:
            self._models[key] = status(model)
        return self._models[key]

    def _task(self, config: Mapping[str, Any]) -> Any:
        from zo_sweeps.tasks.data import check
        from zo_sweeps.tasks.spec import TaskSpec

        task = {k: v for k, v in config["task"].items() if k != "fingerprint"}
        dialect, folder = config["prompt"]["name"], config["data"]["dir"]
        key = _key([task, dialect, folder])
        if key not in self._data:
            try:
                self._data[key] = check(TaskSpec.from_config(task, dialect), task, folder)
            except UserError as error:
                self._data[key] = error
        if isinstance(self._data[key], UserError):
            raise self._data[key]
        return self._data[key]

    def _text(self, config: dict[str, Any]) -> str:
        """Fills in the fingerprint of the text that a mask is found on; returns why it cannot be had."""
        space, part = config["space"], "space"
        if config["gradients"]["samples"]:
            part = "gradients"
        elif space.get("source") != "text" or config["method"]["kind"] not in TRAINED:
            return ""
        file = Path(config["data"]["dir"] or ".").expanduser() / config[part]["text"]
        if not file.is_file():
            return f"no text at {file} ({part}.text, under data.dir)"
        if file not in self._texts:
            self._texts[file] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        config[part] = {**config[part], "text_fingerprint": self._texts[file]}
        return ""

    @staticmethod
    def _memory(config: Mapping[str, Any], model: Any, tokens: float) -> int:
        from zo_sweeps.devices.estimate import RUNTIME_BYTES, finding_memory, peak_memory
        from zo_sweeps.models.shapes import BYTES, trainable_parameters

        precision = config["precision"]["name"]
        if model.arch is None or precision not in BYTES:
            return 0
        space = config["space"]
        trainable = model.parameters if space["name"] == "full" else trainable_parameters(model.arch, space)
        kind = config["method"]["kind"]
        finding = 0
        if space["name"] == "sensitive" and kind in TRAINED:
            of_text = space["source"] == "text"
            length = space["length"] if of_text else int(min(config["train"]["max_length"], 2 * tokens))
            entries = model.arch.entries(model.arch.roles(space["targets"]))
            finding = finding_memory(
                model.parameters, model.arch, BYTES[precision], length, length if of_text else 1, entries
            )
        peak = peak_memory(
            model.parameters,
            model.arch,
            BYTES[precision],
            kind if kind in TRAINED else "zero_shot",
            space["name"],
            config["estimator"].get("q", 1),
            config["evaluation"]["mode"],
            config["train"]["batch"] or 1,
            int(min(config["train"]["max_length"], 2 * tokens)),  # the longest row of a batch, not the mean
            model.arch.vocabulary,
            trainable,
            moments=MOMENTS.get(config["update"]["name"], 0) if kind in TRAINED else 0,
        )
        return RUNTIME_BYTES + max(peak, finding)
