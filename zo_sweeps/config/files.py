"""The files of configuration, Hydra's and others: each is parsed once per process, by libyaml, until it changes."""

from __future__ import annotations

import copy
from collections.abc import Iterable
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

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import reading

MOST, DEEPEST = 1 << 18, 100  # entries, with every alias written out; the largest packaged file has 1,300


class Files(FileConfigSource):
    """Hydra's own source of files, which would parse each file anew for every composition."""

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        if not path.is_file():
            return super().load_config(config_path)  # which says so
        config, header, _ = loaded(path)
        return ConfigResult(self.provider, f"file://{self.path}", copy.deepcopy(config), dict(header))


def use() -> None:
    """Have Hydra read files in this way from now on. Idempotent."""
    Plugins.instance()  # registers Hydra's own source first
    SourcesRegistry.instance().types[Files.scheme()] = Files


Loaded = tuple[Any, dict[str, str | None], dict[str, Any]]


def loaded(path: Path) -> Loaded:
    """Return (the contents of a file; Hydra's header; the contents as plain dictionaries), not to be changed.

    Raises UserError, with the file, if it cannot be read, is no YAML in UTF-8, no mapping, or larger than MOST.
    """
    with reading():
        found = path.stat()
        return _loaded(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=512)
def _loaded(path: Path, _changed: int, _size: int) -> Loaded:
    try:
        text = path.read_text(encoding="utf-8")
        tree = yaml.load(text, Loader=_loader())
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text ({error.reason})", where=str(path), fix="save it as UTF-8") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        reason = " ".join(str(error).split()).replace(' in "<unicode string>",', " at")
        raise UserError(f"not valid YAML: {reason}", where=str(path)) from None
    except RecursionError:
        raise _nested(path) from None
    if tree is not None and not isinstance(tree, dict):
        raise UserError(f"a {type(tree).__name__} where keys and values were expected", where=str(path))
    entries, level = 0, [tree]
    for _ in range(DEEPEST):
        level = [inner for one in level if isinstance(one, (dict, list)) for inner in _inside(one)]
        entries += len(level)
        if entries > MOST:
            what = f"more than {MOST:,} entries, those that aliases (*name) repeat included"
            raise UserError(what, where=str(path), fix="write out what you mean")
    if level:
        raise _nested(path)
    config = OmegaConf.create(tree or {})
    plain: Any = OmegaConf.to_container(config)
    return config, Files._get_header_dict(text[:512]), {str(key): value for key, value in plain.items()}


def _inside(one: dict[Any, Any] | list[Any]) -> Iterable[Any]:
    return one.values() if isinstance(one, dict) else one


def _nested(path: Path) -> UserError:
    fix = "an alias (*name) inside of its own anchor (&name) never ends"
    return UserError(f"nested more than {DEEPEST} deep", where=str(path), fix=fix)


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
