"""What printed text promises, read by its words alone, against the configurations that run under it.

The reading knows the papers' words and the files of models and tasks. It knows nothing of how labels are made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from zo_sweeps.config.composer import conf_dir
from zo_sweeps.methods.trial_config import TrialConfig

Configs = Sequence[TrialConfig]
ARROW = " → "


@dataclass(frozen=True)
class Word:
    """A word of a label: the value that it promises, and the value of a configuration, None where it has none.

    Args:
        pattern: of the word; its first group is the value, if it has one.
        promised: a value for words without a group.
        parts: an override of these, named behind the arrow, replaces the word's promise.
    """

    pattern: str
    value: Callable[[TrialConfig], Any]
    parts: tuple[str, ...]
    promised: Any = True

    def read(self, text: str) -> set[Any]:
        return {
            value
            for found in re.finditer(self.pattern, text)
            for value in (found[1].split(",") if found.re.groups else [self.promised])
        }


def estimates(make: Callable[[TrialConfig], Any]) -> Callable[[TrialConfig], Any]:
    return lambda config: make(config) if config.method.kind.estimates else None


def has(part: str, name: str) -> Callable[[TrialConfig], Any]:
    return lambda config: None if part not in config.parts_used else getattr(config, part).name == name


def option(part: str, name: str) -> Callable[[TrialConfig], Any]:
    return lambda config: f"{getattr(getattr(config, part), name):g}" if hasattr(getattr(config, part), name) else None


def percent(config: TrialConfig) -> str | None:
    density = getattr(config.space, "density", None) if "space" in config.parts_used else None
    return None if density is None else f"{100 * density:g}"


KIND, MOVES = ("method",), ("method", "space")
DRAWS, FORWARDS = ("method", "perturbation"), ("method", "evaluation")
WORDS = [  # of rows and columns
    Word(r"\bq ?= ?(\d+(?:,\d+)*)", estimates(lambda c: str(c.estimator.budget)), ("method", "estimator")),
    Word(r"\bq>1", estimates(lambda c: c.estimator.budget > 1), ("method", "estimator")),
    Word(r"\bk=(\d+)", lambda c: str(c.split.shots), ("split",)),
    Word(r"\bT=(\d+)", lambda c: str(c.train.max_length), ("train",)),
    Word(r"\bB=(\d+)", lambda c: str(c.train.batch), ("train", "estimator", "method")),
    Word(
        r"\bE=(\d+)",
        estimates(lambda c: str(2 * c.estimator.budget * (c.train.batch or 0))),
        ("train", "estimator", "method"),
    ),
    Word(r"^(\d+) bit$", option("perturbation", "bits"), DRAWS),
    Word(r"\bb = (\d+)", option("perturbation", "bits"), DRAWS),
    Word(r"^2\^(\d+)$", option("perturbation", "k"), DRAWS),
    Word(r"([\d.]+)%", percent, MOVES),
    Word(
        r"^(1e-\d)$",
        lambda c: None if percent(c) is None else f"1e-{round(2 - math.log10(float(percent(c) or 1)))}",
        MOVES,
    ),
    Word(r"[Rr]ank (\d+)", option("perturbation", "rank"), DRAWS),
    Word(r"held (\d+) steps", option("perturbation", "interval"), DRAWS),
    Word(r"(\d+) examples", lambda c: str(c.method.kind.demonstrations), KIND),
    Word(r"(\d+) tokens", lambda c: str(getattr(c.method.kind, "new_tokens", "")), KIND),
    Word(r"^Zero-shot", lambda c: c.method.kind.name == "zero_shot", KIND),
    Word(r"^ICL", lambda c: c.method.kind.name == "icl", KIND),
    Word(r"\bBP\b|^FO-|, fo-|Backpropagation|backpropagation", lambda c: c.method.kind.backpropagates, KIND),
    Word(
        r"\bZO\b|\bzo-|MeZO\b|P-RGE|Zeroth order|PeZO,",
        lambda c: c.method.kind.estimates if c.method.kind.of_model else None,
        KIND,
    ),
    Word(r"-Full\b|, [Ff]ull\b|zo-full|^Full\b|MeZO,? ?(?:-SGD)?\b(?=.*q)", has("space", "full"), MOVES),
    Word(r"(?i)lora-fa|P-RGE", has("space", "lora_fa"), MOVES),
    Word(r"(?i)\blora$", has("space", "lora"), MOVES),
    Word(r"DoRA", has("space", "dora"), MOVES),
    Word(r"VeRA", has("space", "vera"), MOVES),
    Word(r"Prefix", has("space", "prefix"), MOVES),
    Word(r"[Oo]utliers", has("space", "outliers"), MOVES),
    Word(r"Random\b", has("space", "random_subset"), MOVES),
    Word(r"C4|\(task", lambda c: getattr(c.space, "source", None), MOVES, promised=None),
    Word(r"static|fixed", lambda c: c.space.refresh == 0 if hasattr(c.space, "refresh") else None, MOVES),
    Word(r"dynamic", lambda c: getattr(c.space, "refresh", 0) > 0, MOVES),
    Word(r"SparseAddMM", lambda c: getattr(c.space, "product", None) == "addmm", MOVES),
    Word(r"SparseAdd\b", lambda c: getattr(c.space, "product", None) == "add", MOVES),
    Word(r"(?i)pre-gen", has("perturbation", "pezo_pool"), DRAWS),
    Word(r"(?i)on[- ]the[- ]fly|O-t-F", has("perturbation", "pezo_onthefly"), DRAWS),
    Word(r"Rademacher", has("perturbation", "rademacher"), DRAWS),
    Word(r"Gaussian", has("perturbation", "gaussian"), DRAWS),
    Word(r"^Uniform", has("perturbation", "uniform"), DRAWS),
    Word(r"LOZO|EGGROLL|^Rank", has("perturbation", "low_rank"), DRAWS),
    Word(r"inner|Inner-loop|both points", estimates(lambda c: c.evaluation.mode.value in ("inner", "both")), FORWARDS),
    Word(
        r"sequential|one point per forward|ZO-LoRA-FA$",
        estimates(lambda c: c.evaluation.mode.value),
        FORWARDS,
        "sequential",
    ),
    Word(r"\bours\b(?! of)", lambda c: c.train.logits == "answers", ("train", "method")),
    Word(r"Dual-Forwarding", lambda c: c.device.form == "dual", ("device",)),
    Word(r"Seed form", lambda c: c.device.form == "seed", ("device",)),
    Word(r"PyTorch", lambda c: c.device.runtime == "torch", ("device",)),
    Word(r"ExecuTorch", lambda c: c.device.runtime == "executorch", ("device",)),
]
PRECISIONS = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "nf4": "nf4", "int8": "int8", "squeezellm": "squeezellm"}
BITS = {"4": ("nf4", "squeezellm"), "16": ("fp16", "bf16")}


@cache
def files(group: str) -> dict[str, dict[str, Any]]:
    return {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in (conf_dir() / group).glob("*.yaml")}


def model_of(config: TrialConfig) -> str:
    """The printed name of the weights that run: of the file with their source, path and shape; "" for no such file.

    A folder that is said to hold a hub's model and has its shape is that model, and so is the file that `fetch` left.
    """
    for name, file in files("model").items():
        model, layers = config.model, {"num_hidden_layers", "n_layer"}
        same = (model.source.value, model.path, model.revision) == (file["source"], file["path"], file["revision"])
        same = same or ((model.name, model.source.value) == (name, "local") and dict(model.arch) == file["arch"] != {})
        same = same or Path(model.path or "").name == Path((file.get("wheel") or {}).get("file") or "none").name
        shapes = [{k: v for k, v in dict(arch).items() if k not in layers} for arch in (model.arch, file["arch"])]
        if same and (model.source.value != "random" or shapes[0] == shapes[1]):
            return str(file["display"])
    return ""


def wrong(text: str, configs: Configs, *, title: bool = False, further: str = "") -> Iterator[str]:
    """Yield what a printed text promises of the configurations behind it, and does not hold.

    Args:
        title: whether it heads a table: the names of methods in it are those of papers.
        further: the other text in sight (caveats), where random weights may be named instead.
    """
    base, _, arrow = text.partition(ARROW)
    renamed = dict(pair.split("=", 1) for pair in re.findall(r"[\w.]+=\S+", arrow))
    of_model = [config for config in configs if config.method.kind.of_model]

    def kept(*parts: str) -> bool:
        return not any(key.partition(".")[0] in parts for key in renamed)

    for word in WORDS:
        if (title and word.pattern not in (r"\bq ?= ?(\d+(?:,\d+)*)", r"\bk=(\d+)", r"([\d.]+)%")) or not kept(
            *word.parts
        ):
            continue
        if (promised := word.read(base)) and promised != {None}:
            runs = {value for config in configs if (value := word.value(config)) is not None}
            if runs and runs != promised:
                yield f"{text!r}: {word.pattern} promises {promised}, runs {runs}"
    if (
        kept("precision", "method")
        and (named := {found.lower() for found in re.findall("(?i)" + "|".join(PRECISIONS), base)})
        and "weights and 8-bit Adam" not in base
        and (runs := {config.precision.name for config in of_model}) != named
    ):
        yield f"{text!r}: promises {named}, runs {runs}"
    if kept("precision") and (
        bits := re.search(r"\b(4|16) bits?\b(?!$)|, (16) bits?\b|the same precision, (16) bits", base)
    ):
        allowed = BITS[next(filter(None, bits.groups()))]
        if not re.match(r"^\d+ bit$", base) and any(config.precision.name not in allowed for config in of_model):
            yield f"{text!r}: promises {allowed}, runs { ({config.precision.name for config in of_model}) }"
    said = "(model." in base or "another shape" in base  # the name of a file, and what is not the file's
    yield from _names(text, base, of_model, "model", kept("model") and not said)
    if "task" not in text or kept("task"):
        yield from _names(text, base, of_model, "task", kept("task"))
    if (
        re.search(r"(?<!\()random weights", base)
        and "trained weights" not in base
        and kept("model")
        and any(config.model.source.value != "random" for config in of_model)
    ):
        yield f"{text!r}: the weights are not random"
    if title and any(c.model.source.value == "random" for c in of_model) and "random" not in (text + further).lower():
        yield f"{text!r}: does not say that the weights are random"
    for pattern, held in (("Jetson", "jetson"), ("OnePlus", "phone")):
        if pattern in base and kept("device") and any(config.device.kind != held for config in configs):
            yield f"{text!r}: {pattern}, runs on { ({config.device.name for config in configs}) }"
    for key, value in renamed.items():
        runs = {one for config in configs if config.uses(key) for one in _at(config, key)}
        if runs and not runs <= {*value.split(",")}:
            yield f"{text!r}: names {key}={value}, runs {runs}"


def _names(text: str, base: str, configs: Configs, group: str, kept: bool) -> Iterator[str]:
    """Yield the models or tasks that a text names and that do not run, and those that run beside the named ones."""
    displays = {str(file["display"]).removesuffix(" (random weights)") for file in files(group).values()} - {"Timing"}
    displays = {name for name in displays if name not in ("local model",)}
    named, rest = set(), base
    for name in sorted(displays, key=len, reverse=True):
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w.])", rest, re.I):
            named.add(name)
            rest = re.sub(re.escape(name), "", rest, flags=re.I)
    if not named or not kept:
        return
    if group == "model":
        runs = {model_of(config).removesuffix(" (random weights)") for config in configs}
    else:
        runs = {str(files("task").get(config.task.name, {"display": ""})["display"]) for config in configs}
        if named == {"SST-2"}:
            runs = {"SST-2" if name == "SST-2 (sentences)" else name for name in runs}
    if runs and runs != named:
        yield f"{text!r}: names {named}, runs {runs}"


def _at(config: TrialConfig, key: str) -> Iterable[str]:
    value: Any = config.to_json()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    value = value.get("name") if isinstance(value, dict) else value
    return [] if value is None else [f"{value:g}" if isinstance(value, float) else str(value)]
