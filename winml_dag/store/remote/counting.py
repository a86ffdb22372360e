"""Traffic while it goes: what several threads count together."""

from __future__ import annotations

import threading

from winml_dag.store.remote.traffic import Traffic


class Counting:
    """Adds up. Each part is counted by who moves it, when it has moved."""

    def __init__(self) -> None:
        self._traffic = Traffic()
        self._lock = threading.Lock()

    def add(self, more: Traffic) -> None:
        with self._lock:
            self._traffic += more

    @property
    def traffic(self) -> Traffic:
        return self._traffic
