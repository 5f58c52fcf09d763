"""What the packaged configuration files compose to, kept in the user's cache folder between processes.

Hydra takes a tenth of a second for one composition, and a grid needs up to twenty. They depend on the files, the schema
and the members' options alone, and what was kept is used only if all of these are the same, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from zo_sweeps.core.files import cache_folder, replace_text

Choices = tuple[tuple[str, str], ...]
ROOMS = ("config", "methods")  # whose code defines the schema and reads the files


@dataclass
class Compositions:
    """A cache of what the files of some folders compose to.

    Args:
        composed: choices of a method and its axes -> their composition.
        chosen: the same -> the option that it has of every group.
        alone: (group of OWN_TREE, option) -> its part.
        file: where they are kept; None: for this process only.
        key: of everything that they depend on.
    """

    composed: dict[Choices, dict[str, Any]] = field(default_factory=dict)
    chosen: dict[Choices, dict[str, str]] = field(default_factory=dict)
    alone: dict[tuple[str, str], Any] = field(default_factory=dict)
    file: Path | None = None
    key: str = ""

    @classmethod
    def kept(cls, conf: Path, members: Mapping[str, Any]) -> Compositions:
        """Return the compositions of the packaged files that earlier processes have kept.

        Args:
            conf: the packaged files.
            members: the options of every member, as they are registered with Hydra.

        Cost: reads all configuration files, and the kept compositions: 10 to 20 ms.
        """
        own = cls(file=cache_folder() / "compositions.json", key=_key(conf, members))
        assert own.file is not None
        try:
            stored = json.loads(own.file.read_text(encoding="utf-8"))
            if stored["key"] == own.key:
                for choices, tree, chosen in stored["composed"]:
                    key = tuple((str(group), str(option)) for group, option in choices)
                    own.composed[key], own.chosen[key] = dict(tree), dict(chosen)
                own.alone.update({(group, option): part for group, option, part in stored["alone"]})
        except (OSError, ValueError, TypeError, LookupError):
            return cls(file=own.file, key=own.key)  # absent or damaged
        return own

    def keep(self) -> None:
        """Keep what there is now for later processes; without a writable cache folder, nothing is kept."""
        if self.file is None:
            return
        composed = [[key, tree, self.chosen[key]] for key, tree in self.composed.items()]
        alone = [[*key, part] for key, part in self.alone.items()]
        survives = lambda entry: _as_json(entry[-2:]) == entry[-2:]  # not with numbers as keys
        content = {
            "key": self.key,
            "composed": list(filter(survives, composed)),
            "alone": [entry for entry in alone if _as_json(entry[2]) == entry[2]],
        }
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self.file, json.dumps(content))


def _as_json(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return None


def _key(conf: Path, members: Mapping[str, Any]) -> str:
    """Return a digest of the files, the code of ROOMS, the members' options, and the versions of what composes."""
    digest = hashlib.sha256(json.dumps(members, sort_keys=True, default=repr).encode())
    digest.update(repr([platform.python_version(), *map(metadata.version, ("hydra-core", "omegaconf"))]).encode())
    package = Path(__file__).parents[1]
    files = sorted(conf.rglob("*.yaml")) + [file for room in ROOMS for file in sorted((package / room).rglob("*.py"))]
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name} {file.parent.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
