"""Which parts of a trial go together, checked before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zo_sweeps.core.errors import unknown
from zo_sweeps.methods.objective import Objective
from zo_sweeps.methods.registry import members
from zo_sweeps.plan.typed import task_of

KINDS = ("zero_shot", "icl", "zo", "fo", "generate")
TRAINED = ("zo", "fo")
MODES = ("sequential", "outer", "inner", "both")
SCHEDULES = ("constant", "linear")
SELECTS = ("loss", "metric")
RESTORES = ("exact", "in_place")
BATCHED_SPACES = ("lora", "lora_fa", "dora", "vera", "prefix", "sensitive", "random_subset", "outliers")
# Options of members with more to them than a type; the engine's members refuse the same.
CHOICES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("pezo_pool", "length"): ("pool", "perturbation"),
    ("pezo_pool", "rounding"): ("none", "linear", "log"),
    ("pezo_onthefly", "length"): ("block", "perturbation"),
    ("pezo_onthefly", "address"): ("fixed", "pointer"),
    ("pezo_onthefly", "rounding"): ("none", "linear", "log"),
    ("sensitive", "scope"): ("per_layer", "global"),
    ("sensitive", "score"): ("fisher", "mean_gradient"),
    ("sensitive", "source"): ("task", "text"),
    ("outliers", "scope"): ("per_layer", "global"),
}
RANGES: Mapping[tuple[str, str], tuple[float, float]] = {
    ("low_rank", "rank"): (1, math.inf),
    ("low_rank", "interval"): (1, math.inf),
    ("pezo_pool", "k"): (2, 24),
    ("pezo_onthefly", "k"): (2, 10),
    ("pezo_onthefly", "bits"): (2, 16),
    ("vera", "rank"): (1, math.inf),
    ("dora", "rank"): (1, math.inf),
    ("prefix", "length"): (1, math.inf),
    ("sensitive", "density"): (1e-9, 1),
    ("sensitive", "samples"): (1, math.inf),
    ("sensitive", "length"): (2, math.inf),
    ("sensitive", "refresh"): (0, math.inf),
    ("random_subset", "density"): (1e-9, 1),
    ("random_subset", "refresh"): (0, math.inf),
    ("outliers", "density"): (1e-9, 1),
}
GENERATING_SPACES = ("full", "random_subset", "outliers")  # what is there without a gradient
ZO_UPDATES = ("sgd", "momentum", "adam", "sign", "conservative", "mezo_compat")
FO_UPDATES = ("adam", "sgd")


def incompatible(config: Mapping[str, Any]) -> list[str]:
    """Why a configuration cannot be run anywhere; empty when it can."""
    kind, mode, space = config["method"]["kind"], config["evaluation"]["mode"], config["space"]["name"]
    train, update, precision = config["train"], config["update"], config["precision"]["name"]
    found = []
    if kind not in KINDS:
        found.append(str(unknown("kind", kind, KINDS, where="method.kind")))
    if mode not in MODES:
        found.append(str(unknown("mode", mode, MODES, where="evaluation.mode")))
    if train["select"] not in SELECTS:
        found.append(str(unknown("select", train["select"], SELECTS, where="train.select")))
    if update["schedule"] not in SCHEDULES:
        found.append(str(unknown("schedule", update["schedule"], SCHEDULES, where="update.schedule")))
    if kind == "zo":
        q, eps = config["estimator"].get("q", 1), config["estimator"]["eps"]
        if q < 1 or eps <= 0:
            found.append(f"estimator.q must be at least 1 and estimator.eps above 0, not {q} and {eps}")
        elif train["batch"] is None:
            found.append(f"effective batch {train['effective_batch']} is not a multiple of q={q}; set train.batch")
        if mode != "sequential" and space not in BATCHED_SPACES:
            found.append(
                f"evaluation.mode={mode} cannot hold several points of space {space!r}; use space=lora_fa or "
                "evaluation.mode=sequential"
            )
        found += _wrong_directions(config["estimator"]["name"], config["perturbation"], mode)
    found += _wrong_objective(config)
    if kind == "icl" and config["method"]["demonstrations"] < 1:
        found.append(f"method.demonstrations must be at least 1, not {config['method']['demonstrations']}")
    if kind == "generate":
        found += _wrong_generation(config)
    if config["gradients"]["samples"]:
        found += _wrong_gradients(config)
    if kind in TRAINED:
        allowed = ZO_UPDATES if kind == "zo" else FO_UPDATES
        if update["name"] not in allowed:
            found.append(f"update {update['name']!r} does not go with method kind {kind!r}; use {' or '.join(allowed)}")
        if train["steps"] < 1:
            found.append(f"train.steps must be at least 1, not {train['steps']}")
        if update["lr"] < 0:
            found.append(f"update.lr must not be negative, not {update['lr']}")
        if config["space"].get("targets") == []:
            found.append(f"space {space!r} names no layers; set space.targets")
        found += _wrong_options("space", config["space"])
        if kind == "fo" and config["space"].get("refresh"):
            found.append("space.refresh must be 0 in backpropagation: its optimizer holds the entries it began with")
    for key in ("batch", "eval_every", "max_length"):
        if train[key] is not None and train[key] < 1:
            found.append(f"train.{key} must be at least 1, not {train[key]}")
    split = config["split"]
    if min(split[name] for name in ("train", "dev", "test")) < 1 or (split["shots"] is not None and split["shots"] < 1):
        found.append("split.train, split.dev, split.test and split.shots must be at least 1")
    if config["device"]["name"] == "cpu" and precision == "fp16" and kind == "fo":
        found.append("backpropagation in fp16 on a CPU is not supported; use precision=fp32 or bf16")
    return found


def _wrong_generation(config: Mapping[str, Any]) -> list[str]:
    space, mode = config["space"]["name"], config["evaluation"]["mode"]
    found = []
    if config["method"]["new_tokens"] < 1 or not config["method"]["text"]:
        found.append("method kind 'generate' needs a method.text and method.new_tokens of at least 1")
    if space not in GENERATING_SPACES:
        found.append(f"generation is timed over space {' or '.join(GENERATING_SPACES)}, not {space}")
    if mode not in ("sequential", "inner") or (mode == "inner" and space == "full"):
        found.append("generation has evaluation.mode=sequential, or inner over a sparse space (a product beside)")
    return found + (_wrong_options("space", config["space"]) if space in GENERATING_SPACES else [])


def _wrong_gradients(config: Mapping[str, Any]) -> list[str]:
    found = []
    if config["method"]["kind"] != "fo" or config["space"]["name"] != "full":
        found.append("gradients.samples is of backpropagation through all parameters (kind fo, space full)")
    wrong = [
        name
        for name, least in (("samples", 1), ("text_samples", 1), ("length", 2))
        if config["gradients"][name] < least
    ]
    return found + [f"gradients.{name} is too small" for name in wrong]


def _wrong_objective(config: Mapping[str, Any]) -> list[str]:
    """Why f cannot be what is asked for, or not be evaluated as is asked for."""
    objective, restore, mode = config["train"]["objective"], *(config["evaluation"][key] for key in ("restore", "mode"))
    task = task_of(config)
    loss = task.wording(config["prompt"]["name"]).loss
    every: dict[str, Objective] = {name: cls() for name, cls in members("objective").items()}  # type: ignore[misc]
    found = []
    if restore not in RESTORES:
        found.append(str(unknown("restore", restore, RESTORES, where="evaluation.restore")))
    elif restore == "in_place" and mode != "sequential":
        found.append(f"evaluation.restore=in_place holds one point: evaluation.mode must be sequential, not {mode}")
    if objective not in ("loss", *every):
        return [*found, str(unknown("objective", objective, ("loss", *every), where="train.objective"))]
    trained = loss if objective == "loss" else every[objective]
    fitting = [name for name, one in every.items() if not one.fits(task) and one.masked == loss.masked]
    if objective not in ("loss", *fitting):
        reason = trained.fits(task) or f"the prompt is {'with' if loss.masked else 'without'} a mask"
        found.append(f"train.objective must be {', '.join(fitting)} or loss for this task, not {objective}: {reason}")
    if not trained.differentiable and config["method"]["kind"] == "fo":
        found.append(f"train.objective={trained.name} is not differentiable: it needs a zeroth-order method")
    if trained.generates and mode != "sequential":
        found.append(
            f"train.objective={trained.name} generates at one point: evaluation.mode must be sequential, not {mode}"
        )
    return found


def _wrong_directions(estimator: str, perturbation: Mapping[str, Any], mode: str) -> list[str]:
    name = perturbation["name"]
    found = []
    if (estimator == "cge") != (name == "coordinate"):
        found.append("estimator=cge and perturbation=coordinate go together, not with others")
    elif estimator == "cge" and mode != "sequential":
        found.append(f"estimator=cge has two points a parameter: evaluation.mode must be sequential, not {mode}")
    return found + _wrong_options("perturbation", perturbation)


def _wrong_options(axis: str, member: Mapping[str, Any]) -> list[str]:
    name, found = member["name"], []
    for option, value in member.items():
        choices, (least, most) = CHOICES.get((name, option)), RANGES.get((name, option), (-math.inf, math.inf))
        if choices and value not in choices:
            found.append(str(unknown(option, value, choices, where=f"{axis}.{option}")))
        elif not choices and (name, option) in RANGES and not least <= value <= most:
            limits = f"at least {least}" if most == math.inf else f"from {least} to {most}"
            found.append(f"{axis}.{option} of {name} must be {limits}, not {value}")
    return found
