"""Work that worker processes import: reproducible and irreproducible stages."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError

# Set by the tests between a build and the run that should give the same result.
SAYS = "REPRODUCE_TESTS_SAY"


@dataclass(frozen=True)
class Config:
    pass


def same(config: Config, workspace: Workspace) -> JsonObject:  # noqa: ARG001
    texts = [path.read_bytes().hex() for slot in sorted(workspace.inputs) for path in workspace.inputs[slot].iterdir()]
    (workspace.outputs["out"] / "same.txt").write_text(f"made from ({','.join(texts)})")
    return {}


def random_tensor(config: Config, workspace: Workspace) -> JsonObject:  # noqa: ARG001
    """Write a model with an unseeded random second weight."""
    fixed = numpy_helper.from_array(np.arange(6, dtype=np.float32), "fixed")
    drawn = numpy_helper.from_array(np.random.default_rng().standard_normal((4, 8)).astype(np.float32), "drawn")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])
    node = helper.make_node("Identity", ["drawn"], ["y"])
    model = helper.make_model(helper.make_graph([node], "drawn", [], [y], [fixed, drawn]))
    (workspace.outputs["out"] / "drawn.onnx").write_bytes(model.SerializeToString())
    return {}


def random_bytes(config: Config, workspace: Workspace) -> JsonObject:  # noqa: ARG001
    (workspace.outputs["out"] / "noise.bin").write_bytes(b"\0" * 100 + os.urandom(32))
    return {}


def process_number(config: Config, workspace: Workspace) -> JsonObject:  # noqa: ARG001
    (workspace.outputs["out"] / "who.json").write_text(json.dumps({"version": 1, "process": {"id": os.getpid()}}))
    return {}


def what_it_is_told(config: Config, workspace: Workspace) -> JsonObject:  # noqa: ARG001
    """Depend on something that is not in its key."""
    (workspace.outputs["out"] / "told.txt").write_text(f"it was {os.environ.get(SAYS)}")
    return {}


def fails_when_told(config: Config, workspace: Workspace) -> JsonObject:
    if SAYS in os.environ:
        print("now it cannot")
        raise StageError("The device has gone.", advice="Plug it in.")
    return same(config, workspace)
