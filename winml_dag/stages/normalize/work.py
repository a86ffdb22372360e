"""The work of the normalize stage: initializers leave the inputs, open dimensions are fixed, the opset is raised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto, ValueInfoProto

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.onnxmodel.facts import standard_opset
from winml_dag.onnxmodel.feeds import INPUTS_KEY, model_inputs, write_io_specs
from winml_dag.onnxmodel.files import load_model, save_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.stages.normalize import FIRST_OPSET, NormalizeConfig
from winml_dag.stages.normalize.dimensions import fix_dimensions
from winml_dag.stages.normalize.opset import Raised, ir_version_for, raise_opset

NORMALIZED_FILE = "normalized.onnx"


def run(config: NormalizeConfig, workspace: Workspace) -> JsonObject:
    """Write the same model in the form that all later stages take. The metrics are ``dimensions_fixed``,
    ``initializers_dropped_from_inputs``, ``opset_before``, ``opset_after``, ``opset_kept_because`` (None unless no
    later opset suits the model) and ``outputs_compared`` (whether the converted model was run beside the one before).

    Peak of memory: the graph and, of weights in the model itself, twice their size; weights in other files stay there.

    Raises:
        StageError: when the model cannot have the sizes that it is given.
        InputError: when it is damaged.
    """
    source = workspace.input_file("model", ".onnx")
    model = load_model(source, weights=False)
    dropped = _drop_listed(model)
    model.ir_version = ir_version_for(model)
    given = config.export.input_tensors
    shapes = {name: each.shape for name, each in given.items() if each.shape is not None}
    ranges = {name: each.value_range for name, each in given.items() if each.value_range is not None}
    model, fixed = fix_dimensions(source, model, shapes)
    before = standard_opset(model)
    raised = raise_opset(model) if config.raise_opset and 0 < before < FIRST_OPSET else Raised(model)
    output = workspace.outputs["model"] / NORMALIZED_FILE
    save_model(raised.model, output)
    if ranges or _states_inputs(raised.model):
        _state_inputs(raised.model, output, ranges)
    return {
        "dimensions_fixed": fixed,
        "initializers_dropped_from_inputs": dropped,
        "opset_before": before,
        "opset_after": standard_opset(raised.model),
        "opset_kept_because": raised.kept or None,
        "outputs_compared": raised.compared,
    }


def _drop_listed(model: ModelProto) -> int:
    """Take initializers out of the inputs: onnxruntime's optimizer merges those that are equal, and leaves the inputs.

    Listed, they are defaults that a caller may replace; no file that we build is for that.
    """
    names = {tensor.name for tensor in model.graph.initializer}
    kept = [
        ValueInfoProto.FromString(value.SerializeToString()) for value in model.graph.input if value.name not in names
    ]
    dropped = len(model.graph.input) - len(kept)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return dropped


def _states_inputs(model: ModelProto) -> bool:
    return any(entry.key == INPUTS_KEY for entry in model.metadata_props)


def _state_inputs(model: ModelProto, path: Path, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Write shapes, as *path* now has them, and *ranges* of values into the model's metadata."""
    inputs = [replace(spec, value_range=ranges.get(spec.name, spec.value_range)) for spec in model_inputs(path)]
    write_io_specs(model, inputs, inspect_model(path).outputs)
    save_model(model, path)
