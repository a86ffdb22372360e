"""The words for how far a stage is: ``64/512 samples, 5.2/s, 1 min 26 s left``."""

from __future__ import annotations

from winml_dag.engine.progress import Progress


def under_way(told: Progress) -> str:
    """Of a stage that runs: count, rate and the time that is left, as far as they are known."""
    return ", ".join([count(told), *_rate(told), *_left(told)])


def counted(told: Progress) -> str:
    """Of a stage that has ended: ``512 samples, 41.6/s``."""
    return ", ".join([f"{told.done} {told.unit}" if told.done == told.total else count(told), *_rate(told)])


def count(told: Progress) -> str:
    return f"{told.done} {told.unit}" if told.total is None else f"{told.done}/{told.total} {told.unit}"


def _rate(told: Progress) -> list[str]:
    rate = told.per_second
    if rate is None:
        return []
    return [f"{rate:.2g}/s" if rate < 1 else f"{rate:.1f}/s" if rate < 100 else f"{rate:.0f}/s"]


def _left(told: Progress) -> list[str]:
    if told.total is None or told.per_second is None or told.done >= told.total:
        return []
    seconds = round((told.total - told.done) / told.per_second)
    minutes = seconds // 60
    if minutes >= 60:
        return [f"{minutes // 60} h {minutes % 60:02d} min left"]
    return [f"{minutes} min {seconds % 60:02d} s left" if minutes else f"{seconds} s left"]
