"""Headless Chromium, spoken to over pipes (Chrome DevTools Protocol); no driver and no library."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class Browser:
    """One tab. `events` are what the browser has told since the last `show`."""

    def __init__(self, executable: str, profile: Path) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4, whatever the pipes' numbers are here.
        shell = f'exec 3<&{commands} 4>&{answers}; exec "$@"'
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", executable, *options, f"--user-data-dir={profile}"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._last = 0
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {
            "sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        }
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._last:
            self.events.append(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def show(self, page: Path, width: int, is_phone: bool) -> None:
        """Loads a page into a window of the given width in CSS pixels."""
        self.events.clear()
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": is_phone}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        self.call("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def value(self, expression: str) -> Any:
        """Of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def told(self, *methods: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") in methods]

    def close(self) -> None:
        os.close(self._to)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._from, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(message))
