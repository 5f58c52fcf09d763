"""The configuration files that Hydra composes: each is parsed once per process, by libyaml, until it changes."""

from __future__ import annotations

import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader


class Files(FileConfigSource):
    """Hydra's own source of files, which would parse each file anew for every composition."""

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        try:
            config, header = _loaded(path, path.stat().st_mtime_ns, path.stat().st_size)
        except (OSError, ValueError, yaml.YAMLError):
            return super().load_config(config_path)  # which says what is wrong
        return ConfigResult(self.provider, f"file://{self.path}", copy.deepcopy(config), dict(header))


def use() -> None:
    """Have Hydra read files in this way from now on. Idempotent."""
    Plugins.instance()  # registers Hydra's own source first
    SourcesRegistry.instance().types[Files.scheme()] = Files


@lru_cache(maxsize=512)
def _loaded(path: Path, _changed: int, _size: int) -> tuple[Any, dict[str, str | None]]:
    text = path.read_text(encoding="utf-8")
    tree = yaml.load(text, Loader=_loader())
    if not isinstance(tree, dict):
        raise ValueError("not a mapping")
    return OmegaConf.create(tree), Files._get_header_dict(text[:512])


@lru_cache(maxsize=1)
def _loader() -> Any:
    """Return OmegaConf's loader over libyaml's parser, four times as fast; its own where libyaml is absent."""
    own = get_yaml_loader()
    try:
        from yaml.cyaml import CParser  # type: ignore[attr-defined]  # its stubs leave it out
    except ImportError:
        return own

    class Loader(CParser, own):  # type: ignore[misc, valid-type]
        def __init__(self, stream: Any) -> None:
            CParser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return Loader
