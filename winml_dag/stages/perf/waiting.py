"""How long the threads of this process have waited for a processor: what other programs took from a measurement.

The load average would not tell: it counts what we ran ourselves a moment ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_THREADS = Path("/proc/self/task")


def waited_ns() -> Mapping[str, int]:
    """By thread, since it began. Empty where the system does not tell, which only Linux does."""
    found = {}
    with suppress(OSError):
        for thread in _THREADS.iterdir():
            with suppress(OSError, ValueError, IndexError):  # it may have ended
                found[thread.name] = int((thread / "schedstat").read_text(encoding="ascii").split()[1])
    return found


def waited_share(before: Mapping[str, int], after: Mapping[str, int], passed_ns: int) -> float | None:
    """What part of the time *passed_ns* the thread that waited longest has waited: those that work together end
    together. None where the system does not tell.
    """
    waited = [ns - before.get(thread, 0) for thread, ns in after.items()]
    return min(1.0, max(waited) / max(passed_ns, 1)) if waited else None
