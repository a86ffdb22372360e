"""Time as the guard of a remote takes it: waiting can be told apart from having waited, so tests need no real time."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since some moment, and two ways to let them pass."""

    def now(self) -> float:
        """Never goes back."""

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        """Wait for *changed*, which is held, to be notified, for *seconds* at most. May come back earlier."""

    def pause(self, changed: threading.Condition, seconds: float) -> None:
        """As :meth:`wait`, before something is tried again: time that nobody else has to take part in."""


class SystemClock:
    """The real one. See ``Clock``."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        changed.wait(seconds)

    def pause(self, changed: threading.Condition, seconds: float) -> None:
        changed.wait(seconds)
