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
    from winml_dag.store.record import KeyInputs

# Raised when the way a key is made changes: old records are then simply never found.
KEY_FORMAT = 1


def config_hash(config: JsonObject) -> str:
    """64 hex digits over the canonical JSON of the fields that a stage reads."""
    return json_hash(config)


def cache_key(key_inputs: KeyInputs) -> str:
    """64 hex digits over everything that the outputs depend on."""
    return json_hash(
        {
            "key_format": KEY_FORMAT,
            "stage": key_inputs.stage,
            "version": key_inputs.version,
            "config_hash": key_inputs.config_hash,
            "inputs": key_inputs.inputs,
            "toolchain": key_inputs.toolchain,
        }
    )


def key_inputs_of(node: Node, inputs: Mapping[str, str]) -> KeyInputs:
    """What the key of *node* is made from, *inputs* being the artifact digest of each of its slots."""
    from winml_dag.store.record import KeyInputs

    return KeyInputs(node.stage.name, node.stage.version, node.config, inputs, node.toolchain)
