"""Chromium without a window, driven over the DevTools protocol through a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
QUIET += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]


class Browser:
    """One page of a new browser; as a context, it is closed at the end."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 900) -> None:
        ours, theirs = os.pipe(), os.pipe()  # what we write, and what it writes
        command = [str(CHROMIUM), *QUIET, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        shell = ["bash", "-c", f'exec 3<&{ours[0]} 4>&{theirs[1]}; exec "$@"', "bash", *command]
        self._process = subprocess.Popen(shell, pass_fds=(ours[0], theirs[1]), stderr=subprocess.DEVNULL)
        os.close(ours[0])
        os.close(theirs[1])
        self._write, self._read = os.fdopen(ours[1], "wb", 0), os.fdopen(theirs[0], "rb", 0)
        self._left, self._number, self._session = b"", 0, ""
        self.requests: list[str] = []
        target = next(one for one in self._ask("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        self._ask("Network.enable")
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._ask("Emulation.setDeviceMetricsOverride", **size)

    def open(self, address: str) -> None:
        self._ask("Page.navigate", url=address)

    def value(self, script: str) -> Any:
        """What JavaScript gives."""
        return self._ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    @property
    def text(self) -> str:
        return str(self.value("document.body ? document.body.innerText : ''"))

    def press(self, label: str) -> None:
        """Press the button with this label."""
        found = f"[...document.querySelectorAll('button')].find(b => b.innerText.trim() === {json.dumps(label)})"
        self.until(f"!!{found} && !{found}.disabled")
        self.value(f"{found}.click()")

    def until(self, script: str, seconds: float = 240.0) -> None:
        """Wait until JavaScript gives something true."""
        end = time.monotonic() + seconds
        while not self.value(script):
            assert time.monotonic() < end, f"not within {seconds} s: {script}\n{self.text}"
            time.sleep(0.2)

    def shows(self, text: str, seconds: float = 240.0) -> None:
        """Wait until the page has a text."""
        self.until(f"document.body.innerText.includes({json.dumps(text)})", seconds)

    def picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._write.close()
        self._read.close()

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._message())
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _message(self) -> bytes:
        while b"\0" not in self._left:
            part = self._read.read(1 << 16)
            assert part, "the browser has ended"
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        return message
