"""The work of exporting several components of one model, which is loaded once for all of them."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.stages.export import ComponentFields, ComponentsConfig, ExportFields
from winml_dag.stages.export.architectures import Component, chosen_components
from winml_dag.stages.export.configuration import did_you_mean
from winml_dag.stages.export.conversion import Exported, check_fields, export_subject, write_export
from winml_dag.stages.export.fitting import fitted
from winml_dag.stages.export.loading import LoadedModel, load_pytorch_model
from winml_dag.stages.export.subject import Subject, component_subject


@dataclass(frozen=True)
class _Component:
    """A component of the loaded model, and its export fields: of the shared fields, only those for its tensors."""

    subject: Subject
    fields: ExportFields


def run(config: ComponentsConfig, workspace: Workspace) -> JsonObject:
    """Export every component and return metrics by component.

    Writes ``export.onnx`` to output ``<name>_model``, and the module hierarchy to output ``<name>_hierarchy``.

    Raises:
        StageError: the recipe requests something impossible, or the result differs from the request.
    """
    for asked in config.components.values():
        check_fields(asked.export)
    loaded = _load(config, workspace)
    folder = workspace.inputs.get("model")
    components = {name: _component(loaded, asked, config, folder) for name, asked in config.components.items()}
    _refuse_unknown_tensors(config.components.values(), components.values())
    exported: dict[str, Exported] = {}
    for done, (name, each) in enumerate(components.items()):
        workspace.progress(done, len(components), "components")
        exported[name] = export_subject(loaded, each.subject, each.fields, Path(f"exported-{name}"))
        gc.collect()
    workspace.progress(len(components), len(components), "components")
    fields = {name: each.fields for name, each in components.items()}
    # The rest uses only the exporter's files, so this frees the memory of the model.
    del loaded, components, each
    return {"components": {name: _write(name, exported.pop(name), fields[name], workspace) for name in fields}}


def _load(config: ComponentsConfig, workspace: Workspace) -> LoadedModel:
    tensors = [tensor for asked in config.components.values() for tensor in asked.export.input_tensors or ()]
    return load_pytorch_model(config.loader, workspace.inputs.get("model"), workspace.inputs.get("script"), tensors)


def _component(
    loaded: LoadedModel, asked: ComponentFields, config: ComponentsConfig, folder: Path | None
) -> _Component:
    subject = component_subject(loaded, _declared(loaded, asked), folder)
    taken = own_fields(asked, subject.takes)
    return _Component(subject, fitted(taken, subject, config.loader.random_weights))


def _declared(loaded: LoadedModel, asked: ComponentFields) -> Component:
    model_type = loaded.model.config.model_type
    found = chosen_components(model_type, asked.task, asked.model_class)
    if len(found) != 1:
        raise StageError(f"A {model_type} model has no component {asked.model_class}.")
    return found[0]


def own_fields(asked: ComponentFields, takes: tuple[str, ...]) -> ExportFields:
    """The export fields of *asked*, without shared tensors that belong to another component.

    Outputs are not known yet, so a name in ``dynamic_axes`` that some component takes is not an output.
    """
    fields = asked.export
    left_out = {*asked.shared_tensors} - {*takes}
    tensors = tuple(tensor for tensor in fields.input_tensors or () if tensor.name not in left_out)
    axes = {name: axes for name, axes in (fields.dynamic_axes or {}).items() if name not in left_out}
    return replace(fields, input_tensors=tensors or None, dynamic_axes=axes or None)


def _refuse_unknown_tensors(asked: Iterable[ComponentFields], components: Iterable[_Component]) -> None:
    """Raise StageError for a shared tensor that no component takes."""
    taken = {name for each in components for name in each.subject.takes}
    for name in sorted({name for each in asked for name in each.shared_tensors} - taken):
        raise StageError(
            f"export names {name!r}, which no component takes.{did_you_mean(name, taken)}",
            advice="They take: " + ", ".join(sorted(taken)) + ". What is about an output is said of its component.",
        )


def _write(name: str, exported: Exported, fields: ExportFields, workspace: Workspace) -> JsonObject:
    outputs: Mapping[str, Path] = workspace.outputs
    return write_export(exported, fields, outputs[f"{name}_model"], outputs[f"{name}_hierarchy"])
