"""The command that writes something for other hardware: package."""

from __future__ import annotations

import time
from collections.abc import Sequence
from os.path import expanduser

from rich.console import Console
from rich.progress import Progress, TaskID

from zo_sweeps.cli.parser import grid_parser, parse
from zo_sweeps.cli.show.text import say
from zo_sweeps.core.units import duration


def package(given: Sequence[str]) -> int:
    """Quantize a model into a folder for boards: codes, tokenizer, and with space=sensitive the mask of a text."""
    parser = grid_parser("package", package.__doc__)
    parser.add_argument("--out", type=expanduser, required=True, metavar="DIR", help="a new or empty folder")
    options = parse(parser, given)
    from zo_sweeps.cli.show.text import console
    from zo_sweeps.session.packaging import package as quantize

    with Stages(console()) as stages:
        made = quantize(options.overrides, options.config_dir, options.out, stages.update)
    print(f"{made.folder}   package:{made.contents.fingerprint}")
    print(f"copy it to the board, and use it there as model=local model.path={made.folder}")
    return 0


class Stages:
    """The progress of a long command: a bar per stage on a terminal; elsewhere a line when one begins, and at times."""

    SECONDS = 10.0  # between lines

    def __init__(self, console: Console) -> None:
        self._console, self._bar = console, Progress(*Progress.get_default_columns(), console=console, transient=True)
        self._stage, self._began, self._said = "", 0.0, 0.0
        self._task: TaskID | None = None

    def __enter__(self) -> Stages:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:  # elsewhere it would print an empty line
            self._bar.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        """Show how many of a stage's parts are done."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began, self._said = stage, now, now - self.SECONDS
            self._task = self._bar.add_task(stage, total=total)
        if self._task is not None:
            self._bar.update(self._task, completed=done)
        if not self._console.is_terminal and now - self._said >= self.SECONDS:
            self._said = now
            left = f", ETA {duration((now - self._began) / done * (total - done))}" if done else ""
            say(self._console, f"{stage}: {done}/{total}{left}")
