"""A setting -> a trial's whole configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zo_sweeps.config.composer import AXES, Composer
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.models import families
from zo_sweeps.plan.compatible import TRAINED
from zo_sweeps.plan.expand import Setting


class Options:
    """The options of axis members (`space.rank`), as their own files list them.

    A value that a grid or the command line gives to every block is passed over where the block's member has no such
    option (rank, in a full space); one that no block has is an error.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._passed: set[str] = set()

    def takes(self, config: Mapping[str, Any], path: str, value: Any) -> bool:
        axis, _, option = path.partition(".")
        if axis not in AXES:
            return True
        member = config[axis]
        if option not in member or option == "name":
            self._passed.add(path)
            return False
        self._taken.add(path)
        default = member[option]
        number = isinstance(default, (int, float)) and not isinstance(default, bool)
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) if number else True
        if number and isinstance(default, int) and not isinstance(value, int):
            fits = False
        if isinstance(default, (str, bool, list)) and not isinstance(value, type(default)):
            fits = False
        if not fits:
            kind = {bool: "true or false", int: "an integer", float: "a number", str: "a name", list: "a list"}[
                type(default)
            ]
            raise UserError(f"{path}={value!r} has the wrong type", fix=f"it must be {kind}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{path}={value!r} is not a finite number")
        return True

    def unknown(self, composer: Composer) -> list[str]:
        """A grid may name what only another member of the axis has (method=mezo, where it lists layers for LoRA)."""
        found = []
        for path in self._passed - self._taken:
            axis = path.partition(".")[0]
            members = {file.stem for folder in composer.folders for file in (folder / axis).glob("*.yaml")}
            options = {f"{axis}.{name}" for member in members for name in composer.option(axis, member)}
            if path not in options or path in composer.forced.values:
                found.append(str(unknown("key", path, options - {f"{axis}.name"})))
        return sorted(found)


def resolve(composer: Composer, setting: Setting, options: Options) -> dict[str, Any]:
    """A trial's whole configuration: presets, then the grid, then the scale, then the command line."""
    scale = composer.base["scale"]
    base = composer.trial_part(setting.choices)
    config = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    for path, value in setting.values.items():
        if options.takes(config, path, value):
            _set(config, path, value)
    train, forced = config["train"], composer.forced.values
    for kind in ("zo", "fo"):
        if config["method"]["kind"] == kind:
            for key, value in scale[kind].items():
                if value is not None and f"train.{key}" not in forced:
                    train[key] = value
    split = config["split"]
    for key, value in scale["split"].items():
        if value is not None and split[key] is not None and f"split.{key}" not in forced:
            split[key] = value
    if split["seed"] is None:
        split["seed"] = config["seed"]
    model = config["model"]
    if scale["layers"] is not None and model["source"] == "random" and "model.arch.num_hidden_layers" not in forced:
        model["arch"] = families.with_layers(model["arch"], scale["layers"])
    if scale["max_length"] is not None and "train.max_length" not in forced:
        train["max_length"] = min(train["max_length"], scale["max_length"])
    if config["method"]["kind"] not in TRAINED:
        train["steps"] = 0
    if config["precision"]["name"] == "auto":
        config["precision"] = {"name": config["model"]["precision"]}
    train["eval_every"] = min(train["eval_every"], max(train["steps"], 1))
    q = config["estimator"].get("q", 1) if config["method"]["kind"] == "zo" else 1
    if train["batch"] is None and q >= 1 and train["effective_batch"] % q == 0:
        train["batch"] = train["effective_batch"] // q
    return config


def _set(config: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    node = config
    for key in parents:
        child = node.get(key)
        node[key] = dict(child) if isinstance(child, Mapping) else {}
        node = node[key]
    node[leaf] = value
