"""Cache keys: equal keys mean equal work.

A key is made from the *contents* of the inputs, not from how they were made, so a re-run with identical output stops
there. Not in a key: verbosity, output folder, number of jobs, time, host name, absolute paths. Keys use sha256 because
they are looked up in stores that others write to; the hashed data is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, json_hash

if TYPE_CHECKING:
    from winml_dag.engine.stage import Node
    from winml_dag.store.record import KeyInputs

# Increased when the key format changes: old records are then never found.
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
    """The key inputs of *node*; *inputs* has the artifact digest of each of its slots."""
    from winml_dag.store.record import KeyInputs

    return KeyInputs(node.stage.name, node.stage.version, node.config, inputs, node.toolchain)
