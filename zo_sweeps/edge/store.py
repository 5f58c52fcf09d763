"""Programs on disk: exported once per machine, by the first trial that needs one, and reused by all with the same key.

<key>/program.pte, and the sizes of the program in <key>/program.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import cache_folder, locked, new_folder
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.edge.program import Calls, Program
from zo_sweeps.edge.rows import Frame
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.evaluation import Mode

PROGRAM, SIZES = "program.pte", "program.json"


def stored(key: Any, make: Callable[[], tuple[Program, bytes]]) -> tuple[Program, Path]:
    """Return a program and its file, exported by `make` if this machine's store does not have it.

    Concurrent trials wait for the one that exports it. Raises UserError if the store cannot be written.

    Args:
        key: everything that the program depends on, as JSON.
    """
    folder = cache_folder() / "programs" / fingerprint(key)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock")):
            if not folder.is_dir():
                program, data = make()
                with new_folder(folder) as part:
                    (part / PROGRAM).write_bytes(data)
                    (part / SIZES).write_text(json.dumps(write(program)), encoding="utf-8")
    except OSError as error:
        fix = "set ZO_SWEEPS_CACHE to a writable folder with room for the program"
        raise UserError(f"cannot store a program ({error.strerror or error})", where=str(folder), fix=fix) from None
    return _program(json.loads((folder / SIZES).read_text(encoding="utf-8"))), folder / PROGRAM


def _program(data: Any) -> Program:
    calls = Calls(data["calls"]["q"], Mode(data["calls"]["mode"]))
    names, shapes = tuple(data["names"]), tuple(tuple(shape) for shape in data["shapes"])
    return Program(calls, Frame(**data["frame"]), data["batch"], names, shapes, data["planned_bytes"])
