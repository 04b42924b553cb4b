"""A headless Chromium, driven through chromedriver by the WebDriver protocol of the W3C."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
DEADLINE_S = 60.0


class Browser:
    """A window of a browser."""

    def __init__(self, session: str) -> None:
        self._session = session

    def call(self, command: str, **body: Any) -> Any:
        """Send a command to the driver."""
        return _post(f"{self._session}/{command}", body)

    def open(self, address: str) -> None:
        self.call("url", url=address)

    def run(self, script: str, *args: Any) -> Any:
        """Run a script in the page; return what it returns."""
        return self.call("execute/sync", script=script, args=list(args))

    def emulate(self, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Show pages as in a window of this width, which below 600 pixels is that of a phone, in light or dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params={"features": [scheme]})
        self.call("goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=size)

    def press(self, *keys: str) -> None:
        """Press keys one after the other, by their characters or codes of WebDriver."""
        pressed = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("actions", actions=[{"type": "key", "id": "keys", "actions": pressed}])

    def text(self) -> str:
        """Return what a reader sees."""
        return str(self.run("return document.body.innerText"))

    def wait_for(self, holds: Callable[[], object], what: str) -> None:
        """Wait until something holds, and fail if it does not for long."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, f"{what}; the page says:\n{self.text()}"
            time.sleep(0.05)

    def errors(self) -> list[str]:
        """Return what the console of the page has complained of."""
        found = self.call("se/log", type="browser")
        return [entry["message"] for entry in found if entry["level"] == "SEVERE"]


@contextmanager
def open_browser(profile: Path, *, width: int = 1440, height: int = 1000, dark: bool = False) -> Iterator[Browser]:
    """Start a browser, and end it. The test is skipped where there is none."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs Chromium and chromedriver")
    arguments = [*ARGUMENTS, f"--window-size={width},{height}", f"--user-data-dir={profile}"]
    arguments += ["--blink-settings=preferredColorScheme=0"] if dark else []
    options = {"goog:chromeOptions": {"binary": chromium, "args": arguments}}
    options |= {"goog:loggingPrefs": {"browser": "ALL"}}
    with subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            started = next(line for line in process.stdout if "successfully on port" in line)
            base = f"http://127.0.0.1:{started.rsplit(' ', 1)[1].strip().rstrip('.')}/session"
            session = f"{base}/{_post(base, {'capabilities': {'alwaysMatch': options}})['sessionId']}"
            browser = Browser(session)
            # A window that has not the focus of its desktop tells its page of no focus that a script moves.
            browser.call("goog/cdp/execute", cmd="Emulation.setFocusEmulationEnabled", params={"enabled": True})
            try:
                yield browser
            finally:
                with urlopen(Request(session, method="DELETE"), timeout=DEADLINE_S):
                    pass
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has started


def _post(address: str, body: Any) -> Any:
    request = Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=DEADLINE_S) as response:
        return json.load(response)["value"]
