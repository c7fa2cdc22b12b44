"""A headless Chromium that is driven over its DevTools pipe: open a page, run JavaScript."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync".split()

# Chromium reads commands from descriptor 3 and writes replies to 4, each message with a zero byte at its end.
LAUNCHER = """
import fcntl, os, sys
commands, replies = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(replies, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page of one browser; use it in a ``with`` block.

    Args:
        profile: folder for the browser's files.
        size: width and height of the window in pixels.
    """

    def __init__(self, profile: Path, size: tuple[int, int] = (1280, 900)):
        assert CHROMIUM is not None
        from_us, self._send = os.pipe()
        self._receive, from_browser = os.pipe()
        window = f"--window-size={size[0]},{size[1]}"
        flags = [*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", window, "about:blank"]
        command = [sys.executable, "-c", LAUNCHER, str(from_us), str(from_browser), CHROMIUM, *flags]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=(from_us, from_browser), stdout=quiet, stderr=quiet)
        os.close(from_us)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None

    def __enter__(self) -> Browser:
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._send)
        os.close(self._receive)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a DevTools command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return dict(reply["result"])

    def _next(self, timeout: float = 120.0) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], timeout)
            data = os.read(self._receive, 1 << 16) if ready else b""
            assert data, "the browser does not answer"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str, timeout: float = 60.0) -> Any:
        """Return the value of a JavaScript expression as soon as it is true."""
        end = time.monotonic() + timeout
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"not true in {timeout:g} s: {script}\n{self.run('document.body.innerText')}"
            time.sleep(0.2)
        return value
