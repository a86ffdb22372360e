"""Signals that wait while a process is started, so that no interrupt comes between its start and our knowing of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Those that end a build; some systems have not all of them.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Let Python's handlers of these signals run at the end only. Not by a mask: a child would inherit that. Only the
    main thread ever runs handlers, so in others there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda which, frame: came.append((which, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in came[:1]:
            handlers[signal.Signals(number)](number, frame)
