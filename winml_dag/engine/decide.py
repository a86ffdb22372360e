"""Run or reuse: the one decision of a build system, with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from winml_dag.engine import reason
from winml_dag.engine.change import NOT_KNOWN, Inputs
from winml_dag.engine.keys import cache_key
from winml_dag.engine.reason import Reason
from winml_dag.store.record import Ingredients, Record
from winml_dag.store.store import Store


@dataclass(frozen=True)
class Reuse:
    """*record* says what would come out; nothing needs to run."""

    record: Record
    reason: Reason


@dataclass(frozen=True)
class Run:
    """The stage must run. ``estimate_seconds`` is how long it took the last time, under this key or this name."""

    key: str
    ingredients: Ingredients
    reason: Reason
    estimate_seconds: float | None


def decide(
    name: str,
    ingredients: Ingredients,
    store: Store,
    *,
    inputs: Inputs = NOT_KNOWN,
    rebuild: bool = False,
) -> Reuse | Run:
    """Reuse the recorded result for *ingredients*, or say why it must run.

    *name* is what the result is remembered under: a reason compares with what stood there before. With *inputs*, it
    can name files.
    """
    key = cache_key(ingredients)
    last = store.latest(name)
    record = last if last is not None and last.cache_key == key else store.record(key)
    basis = record or last
    estimate = None if basis is None else basis.elapsed_seconds
    if rebuild:
        return Run(key, ingredients, reason.REBUILD, estimate)
    if record is None:
        why = reason.FIRST_BUILD if last is None else reason.changed(last, ingredients, inputs)
        return Run(key, ingredients, why, estimate)
    if gone := store.missing(record.files()):
        return Run(key, ingredients, reason.lost(gone), estimate)
    if last is not None and last.cache_key == key:
        return Reuse(record, reason.UP_TO_DATE)
    return Reuse(record, reason.found(record.made_at))
