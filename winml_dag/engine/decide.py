"""Run or reuse: the one decision of a build system, with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from winml_dag.engine import reason
from winml_dag.engine.change import NOT_KNOWN, Inputs
from winml_dag.engine.keys import cache_key
from winml_dag.engine.reason import Reason
from winml_dag.engine.stage import Node
from winml_dag.errors import StageError
from winml_dag.store.record import Ingredients, Record
from winml_dag.store.store import Store


@dataclass(frozen=True)
class Reuse:
    """*record* says what would come out; nothing needs to run."""

    record: Record
    reason: Reason


@dataclass(frozen=True)
class Run:
    """The stage must run. ``basis``: the last time that it did, under this name or this key."""

    key: str
    ingredients: Ingredients
    reason: Reason
    basis: Record | None

    @property
    def estimate_seconds(self) -> float | None:
        return None if self.basis is None else self.basis.elapsed_seconds


def decide(
    last: Record | None,
    ingredients: Ingredients,
    store: Store,
    *,
    inputs: Inputs = NOT_KNOWN,
    rebuild: bool = False,
) -> Reuse | Run:
    """Reuse the recorded result for *ingredients*, or say why it must run.

    *last* is what the result was before: a reason compares with that. With *inputs*, it can name files.
    """
    key = cache_key(ingredients)
    if rebuild:
        # The store is not asked: each answer could take a round trip to a remote.
        return Run(key, ingredients, reason.REBUILD, last)
    record = last if last is not None and last.cache_key == key else store.record(key)
    basis = record or last
    if record is None:
        why = reason.FIRST_BUILD if last is None else reason.changed(last, ingredients, inputs)
        return Run(key, ingredients, why, basis)
    if gone := store.missing(record.files()):
        return Run(key, ingredients, reason.lost(gone, asked_behind=store.asks_behind), basis)
    if last is not None and last.cache_key == key:
        return Reuse(record, reason.UP_TO_DATE)
    came = store.came_from_behind(key)
    return Reuse(record, reason.found_behind(record) if came else reason.found(record))


def refusal(node: Node, record: Record) -> StageError | None:
    """Why the result in *record* does not do for *node*; None when it does.

    The answer is no part of the key: a result that is refused stays in the store, and whoever asks for less gets it.
    """
    if not node.check:
        return None
    module, _, name = node.check.partition(":")
    try:
        getattr(import_module(module), name)(node.config, record.metrics)
    except StageError as error:
        return error
    return None
