"""Step functions of the authors' releases, cut out of clones that the user has in $ZO_PEERS.

No line of a release is stored here: a file is read from the clone at the commit named, its functions are cut out by
`ast`, and bound to a `Trainer` that has what they read of their own.
"""

from __future__ import annotations
import __future__

import ast
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Trainer:
    """What the cut functions use of a trainer besides each other; `options` are its arguments' and attributes."""

    def __init__(self, model: Any, options: Mapping[str, Any]) -> None:
        self.model, self.weight_decay = model, 0.0
        self.args = SimpleNamespace(weight_decay=0.0, gradient_accumulation_steps=1, **options)
        self.params, self.lr_scheduler = [*model.named_parameters()], SimpleNamespace(step=lambda: None)
        self.state = SimpleNamespace(learning_rate=1e-6, global_training_steps=0, time=[], query=[])
        vars(self).update(options)

    def zo_forward(self, model: Any, inputs: object = None) -> Any:
        return model()

    zo_forward_memory_eff = zo_forward

    def _get_learning_rate(self) -> float:
        return float(self.args.learning_rate)

    def configure_params(self) -> None:
        """Has been done above; LOREN's own extends it."""


@dataclass(frozen=True)
class Clone:
    """A repository, one of its commits, and the functions that are cut out of each file."""

    repository: str
    commit: str
    functions: Mapping[str, Sequence[str]]

    def trainer(self, names: Mapping[str, Any], base: type[Trainer] = Trainer) -> Any:
        """Return a subclass of `base` with the functions, which know `names` as globals; None without the clone."""
        released = ast.parse("class Released(Base): pass")
        body: list[ast.stmt] = []
        for file, functions in self.functions.items():
            if (text := source(self.repository, self.commit, file)) is None:
                return None
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef) and node.name in functions:
                    is_method = bool(node.args.args) and node.args.args[0].arg == "self"
                    (body if is_method else released.body).append(node)
        assert isinstance(released.body[0], ast.ClassDef)
        released.body[0].body = body
        code = compile(released, self.repository, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
        known = {**names, "Base": base}
        exec(code, known)
        return known["Released"]


MEZO = Clone(
    "princeton-nlp/MeZO",
    "552cb1b",
    {"large_models/trainer.py": ["zo_perturb_parameters", "zo_step", "zo_update"]},
)
LOZO = Clone(
    "optsuite/LOZO",
    "5d1ade5",
    {
        "large_models/LOZOtrainer.py": [
            "lowrank_zo_perturb_parameters",
            "lowrank_zo_step",
            "lowrank_zo_update",
            "random_gaussian_matrix",
        ]
    },
)


def source(repository: str, commit: str, file: str) -> str | None:
    """Return a file of a clone in $ZO_PEERS at a commit, whatever is checked out there; None without the clone.

    Raises OSError if git does not show it.
    """
    folder = Path(os.environ.get("ZO_PEERS", "")) / repository.rpartition("/")[2]
    if "ZO_PEERS" not in os.environ or not folder.is_dir():
        return None
    shown = subprocess.run(["git", "-C", str(folder), "show", f"{commit}:{file}"], capture_output=True, text=True)
    if shown.returncode:
        raise OSError(f"{folder}: {shown.stderr.strip()}")
    return shown.stdout
