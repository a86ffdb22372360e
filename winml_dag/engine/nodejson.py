"""Declarations of stages, and nodes, as JSON: for whoever keeps a graph, or hands a node to another machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Command, InputSlot, Memory, Node, Stage


def stage_json(stage: Stage) -> JsonObject:
    slots = {
        slot: [None if declared.accepts is None else sorted(declared.accepts), declared.required, declared.refusals]
        for slot, declared in stage.inputs.items()
    }
    return {**asdict(stage), "inputs": slots, "packages": list(stage.packages), "usually": list(stage.usually)}


def stage_of(value: Any) -> Stage:
    """The declaration that *value* was made from. Raises KeyError, TypeError or ValueError for anything else."""
    slots = {
        slot: InputSlot(None if accepts is None else frozenset(accepts), required, refusals)
        for slot, (accepts, required, refusals) in value["inputs"].items()
    }
    packages, usually = tuple(value["packages"]), tuple(value["usually"])
    memory = Memory(**value["memory"])
    return Stage(**{**value, "inputs": slots, "packages": packages, "usually": usually, "memory": memory})


def node_json(node: Node) -> JsonObject:
    """*node* without its stage, which many nodes share."""
    return {
        "id": node.id,
        "config": node.config,
        "inputs": node.inputs,
        "outputs": node.outputs,
        "kinds": node.kinds,
        "toolchain": node.toolchain,
        "tools": {name: str(path) for name, path in node.tools.items()},
        "command": None
        if node.command is None
        else {"arguments": list(node.command.arguments), "environment": node.command.environment},
        "folder": None if node.folder is None else str(node.folder),
        "paths": node.paths,
        "interpreter": None if node.interpreter is None else str(node.interpreter),
        "surroundings": node.surroundings,
        "check": node.check,
        "pools": list(node.pools),
        "environment": node.environment,
    }


def node_of(value: Mapping[str, Any], stage: Stage) -> Node:
    """The node that *value* was made from. Raises KeyError or TypeError for anything else."""
    command, folder, interpreter = value["command"], value["folder"], value["interpreter"]
    return Node(
        id=value["id"],
        stage=stage,
        config=value["config"],
        inputs=value["inputs"],
        outputs=value["outputs"],
        kinds=value["kinds"],
        toolchain=value["toolchain"],
        tools={name: Path(path) for name, path in value["tools"].items()},
        command=None if command is None else Command(tuple(command["arguments"]), command["environment"]),
        folder=None if folder is None else Path(folder),
        paths=value["paths"],
        interpreter=None if interpreter is None else Path(interpreter),
        surroundings=value["surroundings"],
        check=value["check"],
        pools=tuple(value["pools"]),
        environment=value["environment"],
    )
