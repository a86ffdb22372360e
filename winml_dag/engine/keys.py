"""Cache keys: equal keys mean equal work.

A key is made from the *contents* of the inputs, never from how they were made, so that a re-run that gives the same
bytes stops there. Not in a key: verbosity, output folder, number of jobs, time, host name, absolute paths. sha256
because keys are looked up in stores that others write to; the data hashed is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, json_hash

if TYPE_CHECKING:
    from winml_dag.engine.stage import Node
    from winml_dag.store.record import Ingredients

# Raised when the way a key is made changes: old records are then simply never found.
KEY_FORMAT = 1


def config_hash(config: JsonObject) -> str:
    """64 hex digits over the canonical JSON of the fields that a stage reads."""
    return json_hash(config)


def cache_key(ingredients: Ingredients) -> str:
    """64 hex digits over everything that the outputs depend on."""
    return json_hash(
        {
            "key_format": KEY_FORMAT,
            "stage": ingredients.stage,
            "version": ingredients.version,
            "config_hash": ingredients.config_hash,
            "inputs": ingredients.inputs,
            "toolchain": ingredients.toolchain,
        }
    )


def ingredients_of(node: Node, inputs: Mapping[str, str]) -> Ingredients:
    """What the key of *node* is made from, *inputs* being the artifact digest of each of its slots."""
    from winml_dag.store.record import Ingredients

    return Ingredients(node.stage.name, node.stage.version, node.config, inputs, node.toolchain)
