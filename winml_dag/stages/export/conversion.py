"""The work of the export stage: load, trace, export, compare with PyTorch on seeded random inputs, write.

Several components of one model are exported from one load of it.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from onnx import ModelProto
from torch.overrides import TorchFunctionMode

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError, did_you_mean
from winml_dag.onnxmodel.feeds import write_io_specs
from winml_dag.onnxmodel.files import load_model, save_model
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.onnxmodel.metadata import canonicalise, set_tags
from winml_dag.stages.export import (
    MODEL_SOURCE,
    ComponentFields,
    ComponentsConfig,
    ExportConfig,
    ExportFields,
    SignatureConfig,
)
from winml_dag.stages.export.comparison import (
    Arrays,
    Sizes,
    agreement,
    onnx_outputs,
    output_shape,
    pytorch_outputs,
    random_feed,
    set_shape,
    sizes_by_run,
    tensors_of,
)
from winml_dag.stages.export.detect import task_named
from winml_dag.stages.export.exporter import ExportOptions, check_export, export_onnx, exporter_of
from winml_dag.stages.export.fitting import fitted
from winml_dag.stages.export.hierarchy import METADATA_FILE, ModelFacts, hierarchy_metadata, node_tags, traced_modules
from winml_dag.stages.export.inputs import ModelInput, model_inputs
from winml_dag.stages.export.loading import (
    LoadedModel,
    load_pytorch_model,
    model_without_weights,
    refuse_made_up_weights,
)
from winml_dag.stages.export.module import module_subject, parent_loader
from winml_dag.stages.export.subject import Subject, call_model, chosen_subject

MODEL_FILE = "export.onnx"


def run(config: ExportConfig, workspace: Workspace) -> JsonObject:
    """Write ``export.onnx`` to output ``model`` and the module hierarchy to output ``hierarchy``.

    Raises:
        StageError: the recipe requests something impossible, or the result differs from the request.
    """
    _check_fields(config.export)
    task_named(config.loader.task)  # fails before anything is loaded
    folder, script = workspace.inputs.get("model"), workspace.inputs.get("script")
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
    exported = _export(loaded, subject, fields, Path("exported"))
    del loaded, subject
    return _write(exported, workspace.outputs["model"], workspace.outputs["hierarchy"])


def run_components(config: ComponentsConfig, workspace: Workspace) -> JsonObject:
    """Export every component and return metrics by component.

    Writes ``export.onnx`` to output ``<name>_model``, and the module hierarchy to output ``<name>_hierarchy``.

    Raises:
        StageError: the recipe requests something impossible, or the result differs from the request.
    """
    for asked in config.components.values():
        _check_fields(asked.export)
    folder, script = workspace.inputs.get("model"), workspace.inputs.get("script")
    tensors = [tensor for asked in config.components.values() for tensor in asked.export.input_tensors or ()]
    loaded = load_pytorch_model(config.loader, folder, script, tensors)
    subjects = {
        name: chosen_subject(loaded, replace(config.loader, task=asked.task, model_class=asked.model_class), folder)
        for name, asked in config.components.items()
    }
    _refuse_unknown_tensors(config.components.values(), subjects.values())
    exported: dict[str, Exported] = {}
    for done, (name, subject) in enumerate(subjects.items()):
        workspace.progress(done, len(subjects), "components")
        fields = own_fields(config.components[name], subject)
        fields = fitted(fields, subject, config.loader.random_weights)
        exported[name] = _export(loaded, subject, fields, Path(f"exported-{name}"))
        gc.collect()
    workspace.progress(len(subjects), len(subjects), "components")
    # The rest uses only the exporter's files, so this frees the memory of the model.
    del loaded, subjects, subject
    outputs = workspace.outputs
    return {
        "components": {
            name: _write(exported.pop(name), outputs[f"{name}_model"], outputs[f"{name}_hierarchy"])
            for name in config.components
        }
    }


def own_fields(asked: ComponentFields, subject: Subject) -> ExportFields:
    """The export fields of *asked*, without shared tensors that belong to another component.

    Outputs are still unknown, so a name in ``dynamic_axes`` that some component takes is not an output.
    """
    fields = asked.export
    left_out = {*asked.shared_tensors} - {*subject.takes}
    tensors = tuple(tensor for tensor in fields.input_tensors or () if tensor.name not in left_out)
    axes = {name: axes for name, axes in (fields.dynamic_axes or {}).items() if name not in left_out}
    return replace(fields, input_tensors=tensors or None, dynamic_axes=axes or None)


def _refuse_unknown_tensors(asked: Iterable[ComponentFields], subjects: Iterable[Subject]) -> None:
    """Raise StageError for a shared tensor that no component takes."""
    taken = {name for each in subjects for name in each.takes}
    for name in sorted({name for each in asked for name in each.shared_tensors} - taken):
        raise StageError(
            f"export names {name!r}, which no component takes{did_you_mean(name, taken)}",
            advice="They take: " + ", ".join(sorted(taken)) + ". What is about an output belongs to its component.",
        )


def _check_fields(fields: ExportFields) -> None:
    if not fields.export_params:
        raise StageError(
            "export.export_params is false, but a model without weights can be neither checked nor compiled.",
            advice="Set it to true.",
        )


@dataclass(frozen=True)
class Exported:
    """What remains of the PyTorch model after the export: numbers and names, so that its memory can be freed.

    Attributes:
        expected: its outputs for ``feeds``, computed before the export so that the exporter cannot affect them.
    """

    path: Path
    fields: ExportFields
    options: ExportOptions
    inputs: tuple[ModelInput, ...]
    sizes: tuple[Sizes, ...]
    feeds: tuple[Arrays, ...]
    expected: tuple[Arrays, ...]
    facts: ModelFacts


def _export(loaded: LoadedModel, subject: Subject, fields: ExportFields, scratch: Path) -> Exported:
    """Export *subject*, all or part of *loaded*, into the new folder *scratch*.

    Raises:
        StageError: the recipe requests something impossible, or the exporter fails.
    """
    module = subject.module
    inputs = subject.inputs or model_inputs(subject, fields)
    sizes = sizes_by_run(inputs)
    feeds = tuple(random_feed(inputs, each, run) for run, each in enumerate(sizes))
    example = tensors_of(feeds[0])
    # Gradients show whether an output depends on a weight that the checkpoint does not have.
    with torch.set_grad_enabled(bool(loaded.missing)):
        modules, produced = traced_modules(module, {**example, **subject.constants})
    outputs = choose_outputs(tuple(produced), fields.output_tensors or (), subject.outputs or tuple(produced))
    refuse_made_up_weights(loaded, [produced[own] for own in outputs.values()])
    first = {name: produced[own].detach().numpy() for name, own in outputs.items()}
    del produced  # with gradients it keeps every activation
    tensors = [*example, *outputs]
    for tensor in fields.dynamic_axes or ():
        if tensor not in tensors:
            raise StageError(f"export.dynamic_axes names {tensor!r}, but the exported model has: {', '.join(tensors)}.")

    options = ExportOptions(
        exporter=exporter_of(fields, subject),
        opset_version=fields.opset_version,
        do_constant_folding=fields.do_constant_folding,
        input_names=tuple(example),
        outputs=outputs,
        dynamic_axes={
            each.name: {axis: name for axis, name in enumerate(each.shape) if isinstance(name, str)} for each in inputs
        },
        constants=subject.constants,
    )
    expected = (first, *pytorch_outputs(module, feeds[1:], outputs, subject.constants))
    scratch.mkdir()
    path = scratch / "model.onnx"
    options = export_onnx(module, tuple(example.values()), options, path, any_exporter=fields.dynamo is None)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    facts = ModelFacts(subject.config.model_type, type(module).__name__, subject.task, parameters, modules)
    return Exported(path, fields, options, inputs, sizes, feeds, expected, facts)


def _write(exported: Exported, model_output: Path, hierarchy_output: Path) -> JsonObject:
    """Compare the export with PyTorch, write the final files, and return the metrics.

    Raises:
        StageError: the export differs from what was requested.
    """
    gc.collect()  # modules are in reference cycles, and their weights are no longer needed
    fields, options, facts = exported.fields, exported.options, exported.facts
    # The weights of a large model stay in the exporter's file until they are copied to the final one.
    model = load_model(exported.path, weights=False)
    check_export(model, options)
    tags = node_tags(model, facts.modules, fields.hierarchy_tag_format) if fields.enable_hierarchy_tags else {}
    embedded = bool(tags) and not fields.clean_onnx
    _describe(model, exported)
    if embedded:
        set_tags(model, tags)
    canonicalise(model)
    written = model_output / MODEL_FILE
    save_model(model, written)
    shutil.rmtree(exported.path.parent)

    difference, cosine = agreement(exported.expected, onnx_outputs(written, exported.feeds, list(options.outputs)))
    nodes = [node.name for node in model.graph.node]
    metadata = hierarchy_metadata(facts, options, nodes, tags, written, embedded=embedded)
    text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
    (hierarchy_output / METADATA_FILE).write_text(text, encoding="utf-8", newline="\n")
    return {
        "exporter": options.exporter,
        "opset_version": options.opset_version,
        "nodes": len(nodes),
        "parameters": facts.parameters,
        "max_abs_difference": difference,
        "cosine": cosine,
    }


def _describe(model: ModelProto, exported: Exported) -> None:
    """Write the known facts into the graph: shapes of the outputs, ranges of the inputs."""
    # The dynamo exporter leaves wrong shapes of folded initializers here, which break quantization.
    del model.graph.value_info[:]
    axes = exported.fields.dynamic_axes or {}
    outputs = []
    for value in model.graph.output:
        seen = [answer[value.name] for answer in exported.expected]
        shape = output_shape(value.name, [each.shape for each in seen], exported.sizes, axes)
        set_shape(value, shape)
        outputs.append(TensorSpec(value.name, str(seen[0].dtype), shape))
    for value, each in zip(model.graph.input, exported.inputs, strict=True):
        set_shape(value, each.shape)
    write_io_specs(model, exported.inputs, outputs)


# Signature: what `config` asks a model, in no build.


class _EveryCheckHolds(TorchFunctionMode):  # type: ignore[misc]
    """Makes every check of tensor values true, such as whether a mask hides nothing.

    A model without values cannot evaluate such a check.
    """

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return True if func is torch.Tensor.__bool__ else func(*args, **(kwargs or {}))


@contextmanager
def _without_values() -> Iterator[None]:
    with torch.no_grad(), torch.device("meta"), _EveryCheckHolds():
        yield


def run_signature(config: SignatureConfig, workspace: Workspace) -> JsonObject:
    """Return ``input_tensors`` and, if they can be inferred without values, ``output_tensors``, as in a recipe.

    The architecture is made without weights, so this takes only as long as its imports, whatever the size of the model.

    Raises:
        StageError: no such architecture exists, or nothing is known about its inputs.
    """
    folder = Path(named) if (named := workspace.machine_facts.get(MODEL_SOURCE)) else None
    loaded = model_without_weights(config.loader, folder, config.export.input_tensors)
    subject = chosen_subject(loaded, config.loader, folder)
    fields = config.export if config.component is None else own_fields(config.component, subject)
    with _without_values():  # the length of an encoder's states is known only after running it
        inputs = model_inputs(subject, fields)
    outputs: list[JsonValue] = []
    # A model that counts by values (the number of tokens in a text) cannot run without values.
    with suppress(StageError), _without_values():
        example = {each.name: torch.empty(each.sizes, dtype=getattr(torch, each.dtype)) for each in inputs}
        produced = tuple(call_model(subject.module, {**example, **subject.constants}))
        chosen = choose_outputs(produced, config.export.output_tensors or (), subject.outputs or produced)
        outputs = [{"name": name} for name in chosen]
    return {"input_tensors": [each.to_json() for each in inputs], "output_tensors": outputs}


def choose_outputs(produced: Sequence[str], asked: Sequence[str], usual: Sequence[str]) -> dict[str, str]:
    """The outputs to export, those in *asked*, else those of the *usual* ones that the model has: its own names of
    them, by the exported model's.

    Names that the model has refer to its outputs. If it has none of the names, they are new names for its first
    outputs, in order; a mixture would be a guess.

    Raises:
        StageError: there are more names than outputs, a name is used twice, only some names are known, or there is
            nothing to export.
    """
    has = ", ".join(produced) or "none"
    if not asked:
        choices = {name: name for name in usual if name in produced}
        if not choices:
            raise StageError(
                f"The model has none of the outputs that its task is about ({', '.join(usual)}); it has: {has}.",
                advice="Name the outputs in export.output_tensors, or choose another task.",
            )
        return choices
    if len(set(asked)) != len(asked):
        raise StageError(f"export.output_tensors names an output twice: {', '.join(asked)}.")
    if len(asked) > len(produced):
        raise StageError(f"export.output_tensors names {len(asked)} outputs, but the model has {len(produced)}: {has}.")
    unknown = [name for name in asked if name not in produced]
    if not unknown:
        return {name: name for name in asked}
    if len(unknown) < len(asked):
        raise StageError(f"export.output_tensors names {', '.join(unknown)}, but the model's outputs are: {has}.")
    return dict(zip(asked, produced, strict=False))
