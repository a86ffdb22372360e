"""The work of the export stage: load, trace, export, compare with PyTorch on seeded random inputs, write."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import ModelProto
from torch import Tensor
from torch.nn import Module

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.compare import compare
from winml_dag.onnxmodel.facts import MASK_MAGNITUDE
from winml_dag.onnxmodel.feeds import InputSpec, random_feeds, write_io_specs
from winml_dag.onnxmodel.files import load_model, save_model
from winml_dag.onnxmodel.hierarchy import set_tags
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.onnxmodel.metadata import canonicalise
from winml_dag.stages.export import ExportConfig, ExportFields, LoaderFields
from winml_dag.stages.export.architectures import chosen_components
from winml_dag.stages.export.axes import RUNS, Sizes, check_tensors, output_shape, set_shape, shape_at, sizes_by_run
from winml_dag.stages.export.component_modules import DecoderModule
from winml_dag.stages.export.detect import task_named
from winml_dag.stages.export.exporter import DYNAMO, TORCHSCRIPT, ExportOptions, check_export, export_onnx, exporter_for
from winml_dag.stages.export.fitting import fitted
from winml_dag.stages.export.hierarchy import (
    METADATA_FILE,
    TAG_FORMATS,
    Hierarchy,
    ModelFacts,
    ModuleEntry,
    hierarchy_metadata,
    node_tags,
    traced_modules,
)
from winml_dag.stages.export.loading import LoadedModel, load_pytorch_model, refuse_made_up_weights
from winml_dag.stages.export.makers import ModelInput, model_inputs
from winml_dag.stages.export.module import module_subject, parent_loader
from winml_dag.stages.export.outputs import OutputChoice, call_model, choose_outputs
from winml_dag.stages.export.subject import Subject, component_subject, whole_subject

Arrays = Mapping[str, NDArray[np.generic]]

# Correct float32 exports differ by up to 1e-5 of the largest output; a wrong one is off by far more.
LEAST_COSINE = 0.9999
MOST_DIFFERENCE = 1e-3
# A layer norm of nearly constant features amplifies rounding: OWL-ViT with random weights differs by 1.3e-3 of the
# largest output at a few positions, as PyTorch differs from itself in double precision. The SQNR over all positions
# shows that it is rounding: noise 60 dB below the signal.
ROUNDING_SQNR_DB = 60.0
MOST_ROUNDING = 1e-2


@dataclass(frozen=True)
class Agreement:
    """The worst values over all inputs and outputs: absolute difference, and cosine (1.0 for the same direction)."""

    max_abs_difference: float
    cosine: float


def pytorch_outputs(
    model: Module, feeds: Sequence[Arrays], outputs: Sequence[OutputChoice], constants: Mapping[str, torch.Tensor]
) -> tuple[Arrays, ...]:
    """The PyTorch model's outputs for each of *feeds* with *constants*, by the names of the exported outputs.

    Raises:
        StageError: the model cannot run on them.
    """
    answers = []
    for feed in feeds:
        with torch.no_grad():
            tensors = {name: torch.from_numpy(array) for name, array in feed.items()}
            produced = call_model(model, {**tensors, **constants})
        answers.append({choice.name: produced[choice.attribute].numpy() for choice in outputs})
    return tuple(answers)


def onnx_outputs(path: Path, feeds: Sequence[Arrays], names: Sequence[str]) -> tuple[Arrays, ...]:
    """ONNX Runtime's outputs on the CPU for each of *feeds*.

    Raises:
        StageError: the model cannot be loaded or run.
    """
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return tuple(dict(zip(names, session.run(list(names), dict(feed)), strict=True)) for feed in feeds)
    except Exception as error:  # ONNX Runtime's errors share no base class of their own
        raise StageError(f"The exported model does not run: {explanation(error)}.") from error


def agreement(expected: Sequence[Arrays], found: Sequence[Arrays]) -> Agreement:
    """Compare the outputs and return their agreement.

    Raises:
        StageError: an output differs in shape, is NaN, or exceeds :data:`LEAST_COSINE` or :data:`MOST_DIFFERENCE`
            (relative to the largest magnitude in the expected output). The limit is :data:`MOST_ROUNDING` if the noise
            over the whole output is below :data:`ROUNDING_SQNR_DB`.
    """
    difference, cosine = 0.0, 1.0
    for right, ours in zip(expected, found, strict=True):
        for each in compare(list(right.values()), list(ours.values()), list(right)):
            scale = _scale(each.name, right[each.name])
            most = MOST_ROUNDING if each.sqnr_db >= ROUNDING_SQNR_DB else MOST_DIFFERENCE
            if each.max_abs_error > most * scale or each.cosine < LEAST_COSINE:
                raise StageError(
                    f"The exported model differs from PyTorch in {each.name!r}: by up to {each.max_abs_error:.3g} "
                    f"where values reach {scale:.3g}, cosine {each.cosine:.6f}.",
                    advice="Set export.dynamo to choose the other exporter.",
                )
            difference, cosine = max(difference, each.max_abs_error), min(cosine, each.cosine)
    return Agreement(difference, cosine)


def _scale(name: str, values: NDArray[np.generic]) -> float:
    """The largest magnitude of unmasked values."""
    magnitudes = np.abs(values.astype(np.float64))
    if np.isnan(magnitudes).any():
        raise StageError(f"The PyTorch model itself gives NaN in {name!r}, so the export cannot be checked.")
    return float(magnitudes[magnitudes < MASK_MAGNITUDE].max(initial=0.0))


MODEL_FILE = "export.onnx"


@dataclass(frozen=True)
class Exported:
    """What remains of the PyTorch model after the export: numbers and names, so that its memory can be freed.

    Attributes:
        expected: its outputs for ``feeds``, computed before the export so that the exporter cannot affect them.
    """

    path: Path
    options: ExportOptions
    inputs: tuple[ModelInput, ...]
    sizes: tuple[Sizes, ...]
    feeds: tuple[Arrays, ...]
    expected: tuple[Arrays, ...]
    modules: tuple[ModuleEntry, ...]
    facts: ModelFacts


def run(config: ExportConfig, workspace: Workspace) -> JsonObject:
    """Write ``export.onnx`` to output ``model`` and the module hierarchy to output ``hierarchy``.

    Raises:
        StageError: the recipe requests something impossible, or the result differs from the request.
    """
    check_fields(config.export)
    task_named(config.loader.task)  # fails before anything is loaded
    folder = workspace.inputs.get("model")
    script = workspace.inputs.get("script")
    if config.loader.module_path is not None:
        parent = parent_loader(config.loader, script)
        loaded = load_pytorch_model(parent, folder, script, None)
        loaded, subject = module_subject(loaded, config.loader, parent, config.export)
        # A language model needs dynamo because of how it makes its mask; a module receives a mask as an argument.
        fields = replace(config.export, dynamo=bool(config.export.dynamo))
    else:
        loaded = load_pytorch_model(config.loader, folder, script, config.export.input_tensors)
        subject = chosen_subject(loaded, config.loader, folder)
        fields = fitted(config.export, subject, config.loader.random_weights)
    exported = export_subject(loaded, subject, fields, Path("exported"))
    del loaded, subject
    return write_export(exported, fields, workspace.outputs["model"], workspace.outputs["hierarchy"])


def chosen_subject(loaded: LoadedModel, loader: LoaderFields, folder: Path | None) -> Subject:
    """The component that the recipe names, else the whole model."""
    chosen = chosen_components(loaded.model.config.model_type, loader.task, loader.model_class)
    if loaded.whole or len(chosen) != 1:
        return whole_subject(loaded, loader.task, folder)
    return component_subject(loaded, chosen[0], folder)


def write_export(exported: Exported, fields: ExportFields, model_output: Path, hierarchy_output: Path) -> JsonObject:
    """Compare the export with PyTorch, write the final files, and return the metrics.

    Raises:
        StageError: the export differs from what was requested.
    """
    gc.collect()  # modules are in reference cycles, and their weights are no longer needed
    # The weights of a large model stay in the exporter's file until they are copied to the final one.
    model = load_model(exported.path, weights=False)
    check_export(model, exported.options)
    tags = _tags(model, exported, fields)
    embedded = bool(tags) and not fields.clean_onnx
    _describe(model, exported, fields)
    if embedded:
        set_tags(model, tags)
    canonicalise(model)
    written = model_output / MODEL_FILE
    save_model(model, written)
    shutil.rmtree(exported.path.parent)

    names = [choice.name for choice in exported.options.outputs]
    agreed = agreement(exported.expected, onnx_outputs(written, exported.feeds, names))
    nodes = tuple(node.name for node in model.graph.node)
    hierarchy = Hierarchy(exported.modules, nodes, tags, embedded)
    metadata = hierarchy_metadata(hierarchy, exported.facts, written)
    text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
    (hierarchy_output / METADATA_FILE).write_text(text, encoding="utf-8", newline="\n")
    return {
        "exporter": exported.options.exporter,
        "opset_version": exported.options.opset_version,
        "nodes": len(model.graph.node),
        "parameters": exported.facts.parameters,
        "max_abs_difference": agreed.max_abs_difference,
        "cosine": agreed.cosine,
    }


def _tags(model: ModelProto, exported: Exported, fields: ExportFields) -> dict[str, str]:
    return node_tags(model, exported.modules, fields.hierarchy_tag_format) if fields.enable_hierarchy_tags else {}


def check_fields(fields: ExportFields) -> None:
    if not fields.export_params:
        raise StageError(
            "export.export_params is false, but a model without weights can be neither checked nor compiled.",
            advice="Set it to true.",
        )
    if fields.hierarchy_tag_format not in TAG_FORMATS:
        raise StageError(
            f"export.hierarchy_tag_format is {fields.hierarchy_tag_format!r}; it can be {' or '.join(TAG_FORMATS)}."
        )


def export_subject(loaded: LoadedModel, subject: Subject, fields: ExportFields, scratch: Path) -> Exported:
    """Export *subject*, all or part of *loaded*, into the new folder *scratch*.

    Raises:
        StageError: the recipe requests something impossible, or the exporter fails.
    """
    module = subject.module
    inputs = subject.inputs or model_inputs(subject, fields)
    sizes = sizes_by_run(inputs)
    feeds = tuple(_feed(inputs, sizes[run], run) for run in range(RUNS))
    example = _tensors(feeds[0])
    # Gradients show whether an output depends on a weight that the checkpoint does not have.
    with torch.set_grad_enabled(bool(loaded.missing)):
        modules, produced = traced_modules(module, {**example, **subject.constants})
    outputs = choose_outputs(tuple(produced), fields.output_tensors or (), subject.outputs or tuple(produced))
    refuse_made_up_weights(loaded, [produced[choice.attribute] for choice in outputs])
    del produced  # with gradients it keeps every activation
    names = tuple(choice.name for choice in outputs)
    check_tensors(fields.dynamic_axes or {}, [*(each.name for each in inputs), *names])

    options = ExportOptions(
        exporter=exporter_of(fields, subject),
        opset_version=fields.opset_version,
        do_constant_folding=fields.do_constant_folding,
        input_names=tuple(each.name for each in inputs),
        outputs=outputs,
        dynamic_axes={each.name: _dynamic(each) for each in inputs},
        constants=subject.constants,
    )
    expected = pytorch_outputs(module, feeds, outputs, subject.constants)
    scratch.mkdir()
    path = scratch / "model.onnx"
    export_onnx(module, tuple(example.values()), options, path)
    facts = ModelFacts(
        model_type=subject.config.model_type,
        class_name=type(module).__name__,
        task=subject.task,
        exporter=options.exporter,
        opset_version=options.opset_version,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        inputs=options.input_names,
        outputs=names,
    )
    return Exported(path, options, inputs, sizes, feeds, expected, modules, facts)


def exporter_of(fields: ExportFields, subject: Subject) -> str:
    """The requested exporter, else the one that suits *subject*."""
    if fields.dynamo is not None:
        return DYNAMO if fields.dynamo else TORCHSCRIPT
    # dynamo cannot infer the shape of a cache that is written at a position given by an input.
    return TORCHSCRIPT if isinstance(subject.module, DecoderModule) else exporter_for(subject.config.model_type)


def _feed(inputs: Sequence[ModelInput], sizes: Sizes, seed: int) -> Arrays:
    specs = [InputSpec(each.name, each.dtype, shape_at(each.shape, sizes), each.value_range) for each in inputs]
    return next(random_feeds(specs, seed, 1))


def _tensors(feed: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in feed.items()}


def _dynamic(each: ModelInput) -> dict[int, str]:
    return {axis: name for axis, name in enumerate(each.shape) if isinstance(name, str)}


def _describe(model: ModelProto, exported: Exported, fields: ExportFields) -> None:
    """Write the known facts into the graph: shapes of the outputs, ranges of the inputs."""
    # The dynamo exporter leaves wrong shapes of folded initializers here, which break quantization.
    del model.graph.value_info[:]
    outputs = []
    for value in model.graph.output:
        seen = [answer[value.name] for answer in exported.expected]
        shape = output_shape(value.name, [each.shape for each in seen], exported.sizes, fields.dynamic_axes or {})
        set_shape(value, shape)
        outputs.append(TensorSpec(value.name, str(seen[0].dtype), shape))
    for value, each in zip(model.graph.input, exported.inputs, strict=True):
        set_shape(value, each.shape)
    inputs = [InputSpec(each.name, each.dtype, each.shape, each.value_range) for each in exported.inputs]
    write_io_specs(model, inputs, outputs)
