"""Archives that are none, or that claim more than they hold: one line each, before their contents are parsed."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.record import archive
from zo_sweeps.results import exchange

TIB = str(2**40)
PAX = "not an archive of zo_sweeps ('././@PaxHeader' is no file, or stands twice)"
NONE = "not an archive of zo_sweeps ("
AGAIN = "it was changed or damaged since: ask for it again"
JOURNAL = "journal/" + "0" * 16 + ".jsonl"


def tar(*entries: tuple[str, bytes], kind: bytes = tarfile.REGTYPE, **pax: str) -> bytes:
    """A tar of files, the last of them of a type and with pax headers."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made:
        for number, (name, data) in enumerate(entries, start=1):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            if number == len(entries):
                entry.type, entry.pax_headers = kind, {key.replace("__", "."): value for key, value in pax.items()}
            made.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def sparse() -> bytes:
    """A tar of one GNU sparse member of a TiB, which holds nothing."""
    entry = tarfile.TarInfo("plan.json")
    entry.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(entry.tobuf(format=tarfile.GNU_FORMAT))
    header[483:495] = b"\x80" + (2**40).to_bytes(11, "big")  # the size once unpacked
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


def claimed(size: int) -> bytes:
    """A tar of one member that claims a size and holds a kilobyte."""
    entry = tarfile.TarInfo("plan.json")
    entry.size = size
    return entry.tobuf(format=tarfile.GNU_FORMAT) + bytes(1024)


def digits(count: int) -> bytes:
    """A tar of a pax header of digits alone, through which tarfile's expressions go once per digit."""
    entry = tarfile.TarInfo("header")
    entry.type, entry.size = tarfile.XHDTYPE, count
    return entry.tobuf(format=tarfile.USTAR_FORMAT) + b"1" * count + tar(("plan.json", b"{}"))


def large(name: str, data: bytes, times: int) -> Callable[[], bytes]:
    """A tar to be made: up to 90 MB, which only the process that tests it shall hold."""
    return lambda: tar((name, data * times), ("plan.json" if name != "plan.json" else "tables.json", b"{}"))


def manifest(**changes: object) -> bytes:
    about = {"format": 1, "by": "", "grid": "g", "title": "", "files": {}, **changes}
    return json.dumps({key: value for key, value in about.items() if value is not None}).encode()


def described(data: bytes, **wrong: object) -> dict[str, object]:
    return {"plan.json": {"bytes": len(data), "sha256": sha256(data).hexdigest(), **wrong}}


def packed(data: bytes | Callable[[], bytes]) -> bytes:
    return lzma.compress(data if isinstance(data, bytes) else data(), preset=0)


BRACKETS = b"[],"
PACKED = [  # what is inside of xz, the line that it must get
    (b"", f"{NONE}it has no manifest.json)"),
    (b"text", f"{NONE}"),
    (tar(), f"{NONE}it has no manifest.json)"),
    (tar(("plan.json", b"{}")), f"{NONE}it has no manifest.json)"),
    (tar(("../plan.json", b"{}")), f"{NONE}no archive has a file '../plan.json')"),
    (tar(("/etc/passwd", b"{}")), f"{NONE}no archive has a file '/etc/passwd')"),
    (tar(("plan.json", b"{}"), ("plan.json", b"{}")), f"{NONE}'plan.json' is no file, or stands twice)"),
    (tar(("plan.json", b""), kind=tarfile.LNKTYPE), f"{NONE}'plan.json' is no file, or stands twice)"),
    (tar(("plan.json", b""), kind=tarfile.FIFOTYPE), f"{NONE}'plan.json' is no file, or stands twice)"),
    (sparse(), f"{NONE}'plan.json' is no file, or stands twice)"),
    (claimed(2**40), f"{NONE}'plan.json' claims {TIB} bytes, without them)"),
    (claimed(-1024), f"{NONE}'plan.json' claims -1024 bytes, without them)"),
    (digits(512 * 1000), f"{NONE}'header' is no file, or stands twice)"),
    (tar(("plan.json", b"{}"), GNU__sparse__major="1", GNU__sparse__minor="0"), PAX),
    (
        tar(
            ("plan.json", b"1\n0\n0\n" + bytes(506)),
            GNU__sparse__major="1",
            GNU__sparse__minor="0",
            GNU__sparse__realsize=TIB,
        ),
        PAX,
    ),
    (
        tar(("plan.json", b"{}"), GNU__sparse__map="0,0", GNU__sparse__size=TIB),
        PAX,
    ),
    (tar(("plan.json", b"{}"), size=TIB), PAX),
    (tar(("plan.json", b"{}"), size=str(2**80)), PAX),
    (large(archive.MANIFEST, BRACKETS, 30_000_000), f"{NONE}'manifest.json' has more than 4,194,304 values)"),
    (large(archive.MANIFEST, b"[", 30_000_000), f"{NONE}'manifest.json' has more than 4,194,304 values)"),
    (large(archive.PLAN, BRACKETS, 3_000_000), f"{NONE}'plan.json' has more than 4,194,304 values)"),
    (large(archive.TABLES, b"{},", 3_000_000), f"{NONE}'tables.json' has more than 4,194,304 values)"),
    (large(JOURNAL, BRACKETS, 3_000_000), f"{NONE}'{JOURNAL}' has more than 4,194,304 values)"),
    (tar((archive.MANIFEST, b"[" * 100_000)), f"{NONE}its manifest.json cannot be read: maximum recursion depth"),
    (tar((archive.MANIFEST, b"{")), "wrong signature or manifest: Expecting property name"),
    (tar((archive.MANIFEST, b"[]")), f"{NONE}its manifest.json cannot be read: list indices must be integers"),
    (tar((archive.MANIFEST, manifest(files=None))), f"{NONE}its manifest.json cannot be read: 'files')"),
    (
        tar((archive.MANIFEST, manifest(files=described(b"{}", bytes=float("inf"))))),
        f"{NONE}its manifest.json cannot be read: cannot convert float infinity to integer)",
    ),
    (tar((archive.MANIFEST, manifest(format=2))), "format 2, and this version reads 1"),
    (tar((archive.MANIFEST, manifest(files=described(b"{}")))), f"plan.json is missing in PATH; {AGAIN}"),
    (tar((archive.MANIFEST, manifest()), ("plan.json", b"{}")), "plan.json is not the file that was written (SHA-256)"),
    (
        tar((archive.MANIFEST, manifest(files=described(b"{}", bytes=3))), ("plan.json", b"{}")),
        "plan.json is not the file that was written (SHA-256)",
    ),
    (tar((archive.MANIFEST, manifest()), (archive.SIGNATURE, b"{")), "wrong signature or manifest: Expecting property"),
]
RAW = [  # a file that is not even xz
    (b"", f"{NONE}it ends too early)"),
    (gzip.compress(tar(("plan.json", b"{}")), mtime=0), f"{NONE}Input format not supported by decoder)"),
    (lzma.compress(tar(("plan.json", b"{}")))[:-8], f"{NONE}it ends too early)"),
]
ALL = [*((partial(packed, data), line) for data, line in PACKED), *((partial(bytes, data), line) for data, line in RAW)]


@pytest.mark.unit
@pytest.mark.parametrize(("content", "wrong"), ALL, ids=[f"{i}: {line[28:60]}" for i, (_, line) in enumerate(ALL)])
def test_a_bad_archive_is_one_line_and_takes_no_more_memory_than_it_unpacks_to(
    content: Callable[[], bytes], wrong: str, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    path.write_bytes(content())
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            archive.read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    line = str(caught.value)
    assert wrong.replace("PATH", str(path)) in line
    assert str(path) in line
    assert "\n" not in line
    assert peak < 4 * 90_000_000, "the largest unpacks to 90 MB: the whole, and the file by itself"


SUMS = Path(__file__).parents[2] / "docs" / "league" / "sums.tar.xz"


def no_number(plan: Any) -> None:
    plan["extents"][0][2] = "x"


def no_row(tables: Any) -> None:
    tables[0]["cells"]["es"] = None


def infinite(log: Any) -> None:
    log[-1]["outcome"]["metrics"]["rows_truncated"] = float("inf")


@pytest.mark.parametrize(
    ("name", "edit", "wrong"),
    [
        (archive.PLAN, no_number, "TypeError: unsupported operand"),
        (archive.TABLES, no_row, "AttributeError: 'NoneType'"),
        ("journal/b2975914b8d2274e.jsonl", infinite, "OverflowError: cannot convert float infinity"),
    ],
)
def test_a_value_that_no_table_can_show_is_one_line(
    name: str, edit: Callable[[Any], None], wrong: str, tmp_path: Path
) -> None:
    whole = archive.read(SUMS)
    log = name.startswith("journal/")
    lines = whole.files[name].splitlines() if log else [whole.files[name]]
    parsed = [json.loads(line) for line in lines]
    edit(parsed if log else parsed[0])
    content = b"".join(json.dumps(one).encode() + b"\n" for one in parsed)
    with pytest.raises(UserError) as caught:
        exchange.take_in(replace(whole, files={**whole.files, name: content}), tmp_path, Composer([]))
    assert f"the archive cannot be read ({wrong}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [*(tmp_path / "imported").iterdir()]
