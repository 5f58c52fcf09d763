"""The configuration files as Hydra gets them: parsed once, but never out of date, and as OmegaConf reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.plan.common import write_grid
from zo_sweeps.config import composer, parsed_files
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError

GRID = {"name": "one", "blocks": {"zo": {"label": "ZO", "fixed": {"method": "mezo"}}}, "seeds": [0]}
SCALARS = """\
# @package _global_
float: [1e-3, 1e3, 1_0.5, .5, -.inf, 12e03]
text: [2020-01-01, "1e-3", ~a, a b, 1e, 08:30:15, null, '']
truth: [yes, no, on, Off, y, n]
number: [0x1F, 0o17, 010, 1_000, 3:25]
nested: {a: {b: [c, {d: !!str 5}]}, e: "${float}"}
shared: &one {x: 1}
again: *one
"""


def test_a_file_has_the_values_that_omegaconf_reads(tmp_path: Path) -> None:
    (tmp_path / "scalars.yaml").write_text(SCALARS)
    found = parsed_files.ParsedFiles("main", f"file://{tmp_path}").load_config("scalars")
    expected = OmegaConf.load(tmp_path / "scalars.yaml")
    assert found.header["package"] == "_global_"
    plain = [repr(OmegaConf.to_container(one, resolve=False)) for one in (found.config, expected)]
    assert plain[0] == plain[1], "the types too"


def test_what_is_done_to_a_configuration_does_not_reach_the_next(tmp_path: Path) -> None:
    (tmp_path / "scalars.yaml").write_text(SCALARS)
    source = parsed_files.ParsedFiles("main", f"file://{tmp_path}")
    first = source.load_config("scalars")
    first.config.nested.a.b.append("more")
    first.header["package"] = "other"
    second = source.load_config("scalars")
    assert len(second.config.nested.a.b) == 2
    assert second.header["package"] == "_global_"


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, GRID, "one")
    composed = lambda: Composer(["+grid=one"], [str(folder)]).run.grid
    assert composed().seeds == [0]
    write_grid(tmp_path, {**GRID, "seeds": [7]}, "one")
    assert composed().seeds == [7]
    (folder / "grid" / "one.yaml").write_text("blocks: {a: {label: A}, a: {label: B}}\n")
    with pytest.raises(UserError, match="found duplicate key a"):
        composed()


def test_a_process_composes_only_what_it_has_not_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    composed, parts = [], []
    compose = Composer._compose
    noted = lambda self, words, *part: composed.append(words) or compose(self, words, *part)
    monkeypatch.setattr(Composer, "_compose", noted)
    monkeypatch.setattr(composer, "PACKAGED", composer.Compositions())
    for count in (3, 1):
        composed.clear()
        one = Composer(["+grid=quickstart"])
        parts.append([one.trial_part({"method": "prge", "task": "rte"}), one.locate({"method": "prge"})("space.rank")])
        assert len(composed) == count, composed
    assert parts[0] == parts[1]


PROMPT = (
    '# @package _global_\ndefaults: [mezo, {override /update: adam}]\nprompt: {name: prge}\nupdate: {lr: "${seed}"}\n'
)


def test_what_is_composed_apart_is_as_in_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of presets, groups and grids; of a preset that sets its prompt, and of a grid that reads another part."""
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "own.yaml").write_text(PROMPT)
    folder = str(write_grid(tmp_path, {**GRID, "title": "of ${train.steps}"}, "one"))
    choices = [{"method": name} for name in ("zero_shot", "prge", "fo_full", "sensitive", "own", "mezo")]
    choices += [{"method": "mezo", "update": "adam"}, {"model": "opt_1b3", "task": "rte", "device": "cpu"}]
    first = Composer([], [folder])
    made = [first.trial_part(choice) for choice in choices]
    assert made[4]["prompt"]["name"] == "prge"
    grids = ["+grid=quickstart", "+grid=llama2_superglue", "+grid=one"]
    apart = [Composer([grid, "grid.seeds=[5]"], [folder], first._compositions) for grid in grids]
    assert apart[2].run.grid.title == "of 20000"
    whole = lambda self, part, pairs: self._compose([f"{group}={option}" for group, option in pairs])
    monkeypatch.setattr(Composer, "_apart", whole)
    fresh = Composer([], [folder])
    assert made == [fresh.trial_part(choice) for choice in choices]
    for one, grid in zip(apart, grids, strict=True):
        other = Composer([grid, "grid.seeds=[5]"], [folder])
        assert (one.run, one.trial, one.left_out) == (other.run, other.trial, other.left_out)
