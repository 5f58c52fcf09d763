"""A stand-in for adb: a folder is the phone, and its shell is this machine's.

PHONE is the folder; the phone's /data and /sys are below it. While PHONE/unplugged exists, there is no phone; with
PHONE/second, there is another one. Every call is a line of PHONE/calls.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SERIAL = "FAKE0123"
phone = Path(os.environ["PHONE"])
arguments = sys.argv[1:]
with (phone / "calls").open("a") as calls:
    print(*arguments, file=calls)


def fail(message: str) -> None:
    print(message, file=sys.stderr)
    raise SystemExit(1)


def local(text: str) -> str:
    return text.replace("/data/", f"{phone}/data/").replace("/sys/", f"{phone}/sys/")


serial = os.environ.get("ANDROID_SERIAL", "")
plugged = [] if (phone / "unplugged").exists() else [SERIAL]
plugged += ["SECOND"] if (phone / "second").exists() else []
if arguments == ["devices"]:
    print("List of devices attached", *(f"{name}\tdevice" for name in plugged), "", sep="\n")
    raise SystemExit
if serial and serial not in plugged:
    fail(f"adb: device '{serial}' not found")
if not plugged:
    fail("adb: no devices/emulators found")
if not serial and len(plugged) > 1:
    fail("adb: more than one device/emulator")

if arguments[0] == "push":
    *sources, target = arguments[1:]
    for source in sources:
        shutil.copyfile(
            source, Path(local(target)) / Path(source).name if Path(local(target)).is_dir() else local(target)
        )
elif arguments[0] == "shell":
    environment = {**os.environ, "PATH": f"{Path(__file__).parent}/phone_bin:{os.environ['PATH']}"}
    (command,) = arguments[1:]
    raise SystemExit(subprocess.run(["sh", "-c", local(command)], env=environment).returncode)
else:
    fail(f"adb: unknown command {arguments[0]}")
