"""What makes a trial the same trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NUMERICS = 1  # raised whenever the engine's results change: old results are then not taken for new ones


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """What changes a trial's result, and nothing else: its fingerprint is the trial_id.

    Names, paths and places are out; contents are in, as the fingerprints of model and data. A zero-shot row has no
    optimiser, seed or step in it; a first-order row no estimator. A device is in only when the grid pins one, as the
    tables of a device do.
    """
    kind, task = config["method"]["kind"], config["task"]
    dialect = task["dialects"][config["prompt"]["name"]]
    described = ("dialects", "display", "hub", "local", "source", "name")
    result: dict[str, Any] = {
        "numerics": NUMERICS,
        "model": config["model"].get("fingerprint") or {k: config["model"][k] for k in ("source", "path", "revision")},
        "task": {**{k: v for k, v in task.items() if k not in described}, "dialect": dialect},
        "precision": config["precision"]["name"],
        "split": _split_identity(config["split"]),
        "max_length": config["train"]["max_length"],
        "kind": kind,
    }
    if not task.get("fingerprint"):
        result["data"] = task["name"]
    elif task["fingerprint"].startswith("hf:"):  # of a whole data set: which parts of it are used is in the task
        result["data"] = {k: v for k, v in task["hub"].items() if k not in ("path", "name")}
    if config["device"]["name"] != "auto":
        result["device"] = config["device"]["name"]
    if kind == "zero_shot":
        return result
    if kind == "icl":
        return {**result, "demonstrations": config["method"]["demonstrations"], "seed": config["seed"]}
    result["space"] = {key: value for key, value in config["space"].items() if key != "text"}  # a path
    if kind == "generate":
        told = {key: config["method"][key] for key in ("text", "new_tokens")}
        return {**result, **told, "mode": config["evaluation"]["mode"], "seed": config["seed"]}
    result["update"] = config["update"]
    result["train"] = {key: config["train"][key] for key in ("steps", "batch", "eval_every")}
    if config["train"]["select"] != "loss":
        result["train"]["select"] = config["train"]["select"]
    if config["train"]["flops"]:
        result["train"]["flops"] = True
    if config["gradients"]["samples"]:
        result["gradients"] = {key: value for key, value in config["gradients"].items() if key != "text"}  # a path
    result["seed"] = config["seed"]
    if config["train"]["objective"] != "loss":
        result["objective"] = config["train"]["objective"]
    if kind == "zo":
        result["estimator"] = config["estimator"]
        result["perturbation"] = config["perturbation"]
        result["mode"] = config["evaluation"]["mode"]
        if config["evaluation"]["restore"] != "exact":
            result["restore"] = config["evaluation"]["restore"]
    return result


def _split_identity(split: Mapping[str, Any]) -> dict[str, Any]:
    unused = ("train", "dev") if split["shots"] else ("shots",)
    return {name: value for name, value in split.items() if name not in unused}
