"""Hydra's composition of the groups' files and the overrides, without the configuration of Hydra itself.

`hydra.compose` always composes that too (launchers, logs, output folders), and copies the store of all members: more
than half of its time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from zo_sweeps.config.command_line import parsed


class _Files(ConfigRepository):
    """The files and the store, which Hydra would copy, so as to add folders: here they are all there from the start."""

    def __deepcopy__(self, _: object) -> _Files:
        return self


class _Loader(ConfigLoaderImpl):
    """Hydra's loader. What it merges must be its own: a group's part is copied into its place, any other here."""

    @staticmethod
    def _embed_result_config(ret: ConfigResult, package_override: str | None) -> ConfigResult:
        placed = ConfigLoaderImpl._embed_result_config(ret, package_override)
        if placed is ret:
            placed = copy.copy(ret)
            placed.config = copy.deepcopy(ret.config)
        return placed


def compose(folders: Iterable[Path], overrides: Sequence[str]) -> tuple[DictConfig, dict[str, Any]]:
    """Return (the configuration of `config.yaml` and the overrides, group -> the option that is chosen).

    Args:
        folders: those that are searched for a file, in order; the store comes last.

    Raises HydraException or OmegaConfBaseException for what Hydra refuses.
    """
    version.setbase("1.3")
    searched = ConfigSearchPathImpl()
    for folder in folders:
        searched.append("files", f"file://{folder}")
    searched.append("schema", "structured://")
    loader, files = _Loader(searched), CachingConfigRepository(_Files(searched))
    try:
        given = [parsed(text) for text in overrides]
    except HydraException:
        OverridesParser.create().parse_overrides(list(overrides))  # the same error, with the override
        raise
    loader.validate_sweep_overrides_legal(given, RunMode.RUN, from_shell=False)
    chosen = create_defaults_list(files, "config", given, prepend_hydra=False, skip_missing=False)
    config = loader._compose_config_from_defaults_list(chosen.defaults, files)
    OmegaConf.set_struct(config, True)  # a key that no file has needs a +
    loader._apply_overrides_to_config(chosen.config_overrides, config)
    return config, dict(chosen.overrides.known_choices)
