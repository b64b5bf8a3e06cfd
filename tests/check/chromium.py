"""A headless Chromium that opens a page from the disk, and what it says of it, over its DevTools pipe."""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND = shutil.which("chromium")
# It reads commands from descriptor 3 and answers on 4.
_START = """
import fcntl, os, sys
taken = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for there, here in zip(taken, (3, 4)):
    os.dup2(there, here)
os.execv(sys.argv[3], sys.argv[3:])
"""
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
)


@dataclass
class Visit:
    """What a page did until it was loaded.

    Attributes:
        requests: URLs that were asked for, the page's own first.
        complaints: everything on the console, and exceptions.
        png: what is seen, from top to bottom.
        values: of the expressions that were asked for.
    """

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    png: bytes = b""
    values: list[Any] = field(default_factory=list)


class Chromium:
    """Talks to a browser, one page at a time."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = os.fdopen(commands, "wb", 0), os.fdopen(answers, "rb", 0)
        self._rest, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []

    def close(self) -> None:
        self._commands.close()
        self._answers.close()

    def visit(self, page: Path, width: int, *, is_dark: bool = False, expressions: tuple[str, ...] = ()) -> Visit:
        """Opens a page in a window of some width, in CSS pixels."""
        self._session, self._events = "", []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Page.setLifecycleEventsEnabled", enabled=True)
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        loader = self._call("Page.navigate", url=page.absolute().as_uri())["loaderId"]
        while not any(_tells_of_load(event, loader) for event in self._events):
            self._events.append(self._receive())
        visit = Visit()
        visit.values = [self._evaluate(expression) for expression in expressions]
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": width, "height": size["height"], "scale": 1}
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        visit.png = base64.b64decode(shot["data"])
        for event in self._events:
            parameters = event["params"]
            if event["method"] == "Network.requestWillBeSent":
                visit.requests.append(parameters["request"]["url"])
            elif event["method"] in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                visit.complaints.append(json.dumps(parameters))
        self._session = ""
        self._call("Target.closeTarget", targetId=target)
        return visit

    def _evaluate(self, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._events.append(answer)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = self._answers.read(1 << 20)
            assert part, "Chromium has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


def _tells_of_load(event: dict[str, Any], loader: str) -> bool:
    """Whether a page has been loaded; that of about:blank may be told late."""
    told = event["params"]
    return event["method"] == "Page.lifecycleEvent" and (told["name"], told["loaderId"]) == ("load", loader)


@contextmanager
def start_chromium(home: Path) -> Iterator[Chromium]:
    """Starts a browser that knows nothing but an empty folder, and ends it afterwards."""
    assert COMMAND is not None
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()
    environ = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    started = [sys.executable, "-c", _START, str(read_commands), str(write_answers), COMMAND, *_FLAGS]
    with (home / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [*started, f"--user-data-dir={home / 'profile'}", "about:blank"],
            pass_fds=(read_commands, write_answers),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )
    os.close(read_commands)
    os.close(write_answers)
    browser = Chromium(commands, answers)
    try:
        yield browser
    finally:
        browser.close()  # It ends with its pipe.
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
