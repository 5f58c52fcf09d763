"""The files of configuration: each parsed once per process, until it changes; what they may refer to."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NoReturn

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.conf import JobConf, OverridesConf, RuntimeConf
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.resolvers import oc

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import reading

MOST, DEEPEST = 1 << 18, 100  # entries, with every alias written out; the largest packaged file has 1,300


class ParsedFiles(FileConfigSource):
    """Hydra's own source of files, which would parse each file anew for every composition."""

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        if not path.is_file():
            return super().load_config(config_path)  # which says so
        config, header, _ = loaded(path)
        return ConfigResult(self.provider, f"file://{self.path}", copy.deepcopy(config), dict(header))


def use() -> None:
    """Have Hydra read files in this way from now on, and not copy its store for each composition. Idempotent."""
    Plugins.instance()  # registers Hydra's own source first
    SourcesRegistry.instance().types[ParsedFiles.scheme()] = ParsedFiles
    ConfigStore.__deepcopy__ = lambda store, _: store  # type: ignore[attr-defined]  # what is copied only reads it


@cache
def _filled_by_hydra() -> ConfigNode:
    parts = {"searchpath": [], "job": JobConf, "overrides": OverridesConf, "runtime": RuntimeConf}
    return ConfigNode("config.yaml", OmegaConf.create(parts), "hydra", None, "hydra")


@contextmanager
def light() -> Iterator[None]:
    """Leave out while the block runs what Hydra composes for launchers and logs, which are not used here.

    Of its own configuration it then has only what it fills in itself.
    """
    of_hydra = ConfigStore.instance().repo["hydra"]
    whole, of_hydra["config.yaml"] = of_hydra["config.yaml"], _filled_by_hydra()
    try:
        yield
    finally:  # an application of the user's, in this process, may be Hydra's as well
        of_hydra["config.yaml"] = whole


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
    fix = "an alias (*name) inside of its own anchor (&name) never ends"
    nested = UserError(f"nested more than {DEEPEST} deep", where=str(path), fix=fix)
    try:
        text = path.read_text(encoding="utf-8-sig")
        tree = yaml.load(text, Loader=_loader())
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text ({error.reason})", where=str(path), fix="save it as UTF-8") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        reason = " ".join(str(error).split()).replace(' in "<unicode string>",', " at")
        raise UserError(f"not valid YAML: {reason}", where=str(path)) from None
    except RecursionError:
        raise nested from None
    if tree is not None and not isinstance(tree, dict):
        raise UserError(f"a {type(tree).__name__} where keys and values were expected", where=str(path))
    entries = 0
    level: list[Any] = [tree]
    for _ in range(DEEPEST):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level = [inner for one in inside for inner in one]
        entries += len(level)
        if entries > MOST:
            what = f"more than {MOST:,} entries, those that aliases (*name) repeat included"
            raise UserError(what, where=str(path), fix="write out what you mean")
    if level:
        raise nested
    config = OmegaConf.create(tree or {})
    plain: Any = OmegaConf.to_container(config)
    comments = itertools.takewhile(lambda line: line.startswith("#"), text[:512].splitlines())
    header = next((line for line in comments if "@package" in line), "")  # Hydra reads no further than another comment
    return config, ParsedFiles._get_header_dict(header), {str(key): value for key, value in plain.items()}


@cache
def _loader() -> Any:
    """Return OmegaConf's loader over libyaml's parser, four times as fast; its own where libyaml is absent."""
    own = get_yaml_loader()
    try:
        from yaml.cyaml import CParser  # type: ignore[attr-defined]  # its stubs leave it out
    except ImportError:
        return own

    class Loader(CParser, own):  # type: ignore[misc, valid-type]  # `own` is made by a call
        def __init__(self, stream: Any) -> None:
            CParser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return Loader


OUTSIDE = ("oc.env", "now", "python_version", "hydra")  # the environment, the clock, this Python, Hydra's own state


@contextmanager
def closed() -> Iterator[None]:
    """Refuse `${oc.env:NAME}` and its kind while the block runs: a value read there would be printed and stored."""
    for name in OUTSIDE:
        OmegaConf.register_new_resolver(name, partial(_refuse, name), replace=True)
    try:
        yield
    finally:  # the resolvers belong to the whole process
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
        setup_globals()


def _refuse(name: str, *arguments: object) -> NoReturn:
    what = f"${{{name}:{','.join(map(str, arguments))}}} reads something outside of the configuration"
    raise UserError(what, fix="write the value itself, or give it on the command line")
