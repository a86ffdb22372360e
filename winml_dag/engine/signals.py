"""The signals that end a build, and a block in which they wait: while a process is started, so that none comes between
its start and our knowing of it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
# Those of them that this system has.
ENDING: tuple[signal.Signals, ...] = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Let Python's handlers of these signals run at the end only. Not by a mask: a child would inherit that. Only the
    main thread ever runs handlers, so in others there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handlers = {number: handler for number in ENDING if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda which, frame: came.append((which, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for which, frame in came[:1]:
            handlers[signal.Signals(which)](which, frame)
