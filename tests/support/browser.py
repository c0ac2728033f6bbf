"""A headless Chromium, driven by the Chrome DevTools Protocol: a page, its keyboard and its console."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.tasks import HANG_S
from websockets.sync.client import ClientConnection, connect

PROGRAM = shutil.which("chromium")
FLAGS = [
    "--headless=new",
    "--no-sandbox",  # a sandbox needs rights that containers lack; all pages are our own
    "--remote-debugging-port=0",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
]
# Codes of keys that are not characters, by name.
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Home": 36, "End": 35, "ArrowUp": 38, "ArrowDown": 40, "ArrowRight": 39}
CONTROL, SHIFT = 2, 8


class Page:
    """A browser's only tab. Errors of scripts and of the console are collected in `errors`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._last_id = 0
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol; returns its result. Raises RuntimeError for an error result."""
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(HANG_S))
            if message.get("id") == self._last_id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return dict(message["result"])
            self._note(message)

    def _note(self, event: Mapping[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in {"error", "assert"}:
            self.errors.append(str(parameters["args"]))

    def open(self, url: str) -> None:
        """Opens a page and returns when it has loaded. Clears `errors`."""
        self.errors.clear()
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise. Raises RuntimeError if it throws."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", script))
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Waits until an expression is true. Raises TimeoutError if it never is."""
        deadline = time.monotonic() + HANG_S
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {condition}; errors: {self.errors}")
            time.sleep(0.02)

    def press(self, key: str, modifiers: int = 0) -> None:
        facts: dict[str, Any] = {"key": key, "code": key, "modifiers": modifiers}
        facts["windowsVirtualKeyCode"] = KEYS.get(key, ord(key[0].upper()))
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 and not modifiers else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **facts, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **facts)

    def tab_to(self, condition: str) -> None:
        """Presses Tab until the focused element, `it`, meets the condition. Raises TimeoutError otherwise."""
        for _ in range(60):
            self.press("Tab")
            if self.run(f"(it => Boolean({condition}))(document.activeElement)"):
                return
        raise TimeoutError(f"no Tab led to: {condition}")

    def type(self, text: str) -> None:
        """Replaces the focused field's content by typing."""
        self.press("a", CONTROL)
        self.run("document.activeElement.select?.()")
        self.send("Input.insertText", text=text)

    def look(self, *, width: int, dark: bool = False) -> None:
        """Sets the size of the window and the preferred colour scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.send("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, file: Path) -> None:
        """Saves a picture of the whole page."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(picture["data"]))


@contextmanager
def browser_page(folder: Path) -> Iterator[Page]:
    """Starts a browser with a new profile in `folder`, and yields its only page."""
    if PROGRAM is None:
        pytest.skip("chromium is not installed")
    profile = folder / "profile"
    command = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with connect(_target(process, profile), max_size=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()


def _target(process: subprocess.Popen[bytes], profile: Path) -> str:
    """Waits for the browser and returns its page's protocol address. Raises RuntimeError if it does not start."""
    announced = profile / "DevToolsActivePort"
    deadline = time.monotonic() + HANG_S
    while not (announced.exists() and announced.read_text(encoding="ascii").count("\n") >= 1):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the browser did not start")
        time.sleep(0.05)
    port, path = announced.read_text(encoding="ascii").split("\n")[:2]
    with connect(f"ws://127.0.0.1:{port}{path}") as browser:
        browser.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
        while (message := json.loads(browser.recv(HANG_S))).get("id") != 1:
            pass
    [page] = [each for each in message["result"]["targetInfos"] if each["type"] == "page"]
    return f"ws://127.0.0.1:{port}/devtools/page/{page['targetId']}"
