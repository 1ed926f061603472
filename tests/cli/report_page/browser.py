"""A headless Chromium, which the tests control by DevTools commands. No Python package is necessary for this.

With ``--remote-debugging-pipe``, the browser reads commands from descriptor 3 and writes replies to descriptor 4. Each
message is JSON with a zero byte at the end.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: The longest wait for one reply of the browser, in seconds.
TIMEOUT_S = 30.0

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

#: A program for ``python -c``: it copies the browser's end of each pipe to descriptor 3 or 4, and executes the browser.
_MOVE_DESCRIPTORS = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """One page of a headless Chromium, with the requests, console messages and exceptions of this page."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="trtbuild-browser-", ignore_cleanup_errors=True)
        read_by_browser, self._commands = os.pipe()
        self._replies, written_by_browser = os.pipe()
        # 10 or more, because otherwise a copy to descriptor 3 could close the descriptor that is copied to 4
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read_by_browser, written_by_browser)]
        command = [program, *_FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _MOVE_DESCRIPTORS, *map(str, ends), *command],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (read_by_browser, written_by_browser, *ends):
            os.close(end)
        self._received, self._number = b"", 0
        self._session: str | None = None
        self._loaded = False
        self.requests: list[str] = []
        self.problems: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol, and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            reply = self._receive(deadline_s)
            if reply.get("id") == self._number:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return reply["result"]

    def open(self, path: Path, *, width: int, height: int, dark: bool, scripts: bool = True) -> None:
        """Open a file in a window of this size, and wait until the file is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._loaded = False
        self.call("Page.navigate", url="about:blank")
        self._wait_until_loaded()
        self.requests.clear()
        self._loaded = False
        self.call("Page.navigate", url=path.as_uri())
        self._wait_until_loaded()

    def run(self, script: str) -> Any:
        """Run a script in the page, and return its value. The test fails if the script raises an exception."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def picture(self, *, whole: bool = False) -> bytes:
        """Return the window as PNG, or the whole page if `whole` is True."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def close(self) -> None:
        os.close(self._commands)
        self._process.terminate()
        try:
            self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(TIMEOUT_S)
        os.close(self._replies)
        self._profile.cleanup()

    def _wait_until_loaded(self) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not self._loaded:
            self._receive(deadline_s)

    def _receive(self, deadline_s: float) -> dict[str, Any]:
        """Return the next message of the browser. If the message is an event, record it."""
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._replies], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, "the browser does not reply"
            data = os.read(self._replies, 1 << 20)
            assert data, "the browser has ended"
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        event: dict[str, Any] = json.loads(message)
        self._note(event.get("method", ""), event.get("params", {}))
        return event

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(str(parameters["args"]))
        elif method == "Log.entryAdded":
            self.problems.append(str(parameters["entry"]))
