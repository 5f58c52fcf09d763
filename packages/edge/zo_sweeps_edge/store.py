"""Programs on disk: exported once per machine, by the first trial that needs one, and reused by all with the same key.

<key>/program.pte, and in <key>/program.json the sizes of the program and what its key was made from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import Cached, cache_folder, locked, new_folder
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps_edge.noise import Cycles
from zo_sweeps_edge.program import Calls, Program
from zo_sweeps_edge.rows import Frame

PROGRAM, SIZES = "program.pte", "program.json"


def stored(
    key: Any, make: Callable[[], tuple[Program, bytes]], check: Callable[[Program, bytes], None] = lambda *_: None
) -> tuple[Program, Path]:
    """Return a program and its file, exported by `make` if this machine's store does not have it.

    Concurrent trials wait for the one that exports it. Raises UserError if the store cannot be written.

    Args:
        key: everything that the program depends on, as JSON.
        check: raises UserError for a program that must not be stored.
    """
    folder = _folder() / fingerprint(key)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock")):
            if not folder.is_dir():
                program, data = make()
                check(program, data)
                with new_folder(folder, alone=True) as part:
                    (part / PROGRAM).write_bytes(data)
                    sizes = {**write(program), "made_from": key}
                    (part / SIZES).write_text(json.dumps(sizes), encoding="utf-8")
    except OSError as error:
        fix = "set ZO_SWEEPS_CACHE to a writable folder with room for the program"
        raise UserError(f"cannot store a program ({error.strerror or error})", where=str(folder), fix=fix) from None
    return _program(json.loads((folder / SIZES).read_text(encoding="utf-8"))), folder / PROGRAM


def programs(mark: Callable[[Any], str]) -> Iterator[Cached]:
    """Iterate over this machine's programs; no program is read. `mark` marks one by what its key was made from."""
    for file in sorted(_folder().glob(f"*/{SIZES}")):
        with suppress(OSError, ValueError, LookupError, TypeError):  # of another version, or of no trial
            made_from = json.loads(file.read_text(encoding="utf-8"))["made_from"]
            here = file.parent.relative_to(cache_folder())
            files = (here / SIZES, here / PROGRAM)
            yield Cached("program", mark(made_from), files, here.with_suffix(".lock"), folder=True)


def _folder() -> Path:
    return cache_folder() / "programs"


def _program(data: Any) -> Program:
    calls = Calls(data["calls"]["q"], Mode(data["calls"]["mode"]))
    names, shapes = tuple(data["names"]), tuple(tuple(shape) for shape in data["shapes"])
    cycles = data["cycles"] and Cycles(data["cycles"]["stride"], tuple(data["cycles"]["lengths"]))
    return Program(calls, Frame(**data["frame"]), data["batch"], names, shapes, cycles, data["planned_bytes"])
