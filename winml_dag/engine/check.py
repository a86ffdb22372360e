"""What is asked of a result beyond that the work came to its end: answered from its record, whoever made that.

The answer is no part of the key, so asking runs nothing: a result that is refused stays in the store, and who asks for
less gets it.
"""

from __future__ import annotations

from importlib import import_module

from winml_dag.engine.stage import Node
from winml_dag.errors import StageError
from winml_dag.store.record import Record


def refusal(node: Node, record: Record) -> StageError | None:
    """Why what *record* has does not do for *node*; None when it does."""
    if not node.check:
        return None
    module, _, name = node.check.partition(":")
    try:
        getattr(import_module(module), name)(node.config, record.metrics)
    except StageError as error:
        return error
    return None
