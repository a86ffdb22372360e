"""export: a PyTorch model becomes ``export.onnx``.

It also declares two stages that inspect the model for it. Their work needs torch and transformers, so it is elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from winml_dag.canonical import JsonValue
from winml_dag.engine.stage import InputSlot, Memory, Stage
from winml_dag.stages import artifact_types

# Capture: which modules of a class a model has, and the arguments of each. It is not a stage of a build: `config
# --module` runs it in a separate process and discards the result.

# Names in the environment of the node: the folders of the saved model and of the user's script.
MODEL_SOURCE, SCRIPT_SOURCE = "model", "script"


@dataclass(frozen=True)
class CaptureConfig:
    """The same ``loader`` and ``export`` as for the whole model; ``module_class`` names a class of PyTorch modules."""

    loader: LoaderFields
    export: ExportFields
    module_class: str


CAPTURE = Stage(
    name="capture",
    version=1,
    work="winml_dag.stages.export.module:run_capture",
    config="winml_dag.stages.export:CaptureConfig",
    inputs={},
    outputs={},
    memory=Memory(450 << 20, 2.6),
)


# Signature: the input and output tensors of a model, inferred from its configuration alone. It is not a stage of a
# build: `config` runs it in a separate process and discards the result.


@dataclass(frozen=True)
class SignatureConfig:
    """The same ``loader`` and ``export`` as for the export itself; ``component`` selects one component, if any."""

    loader: LoaderFields
    export: ExportFields
    component: ComponentFields | None = None


SIGNATURE = Stage(
    name="signature",
    version=1,
    work="winml_dag.stages.export.conversion:run_signature",
    config="winml_dag.stages.export:SignatureConfig",
    inputs={},
    outputs={},
)


@dataclass(frozen=True)
class RandomWeights:
    """Random weights from a seed. The architecture is ``loader.model_type``, changed by ``config``."""

    seed: int = 0
    config: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class LoaderFields:
    """How to make the PyTorch model.

    Attributes:
        module_path: the one module to export; None for the whole model.
        random_weights: None if the weights come from the ``model`` input.
    """

    task: str
    model_type: str | None = None
    model_class: str | None = None
    module_path: str | None = None
    trust_remote_code: bool = False
    random_weights: RandomWeights | None = None


@dataclass(frozen=True)
class InputTensor:
    """An input of the exported model; a text in ``shape`` names a dynamic axis."""

    name: str
    dtype: str | None = None
    shape: tuple[int | str, ...] | None = None
    value_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class ExportFields:
    """How to export the model.

    Attributes:
        dynamo: None selects the exporter that works best for the architecture.
        clean_onnx: the nodes of the model have no tags.
        module_arguments: arguments of a module other than tensors.
        shape_config: sizes by their names in recipes: ``sequence_length``, ``height``.
    """

    opset_version: int = 21
    batch_size: int = 1
    dynamo: bool | None = None
    export_params: bool = True
    do_constant_folding: bool = True
    enable_hierarchy_tags: bool = True
    hierarchy_tag_format: str = "full"
    clean_onnx: bool = False
    input_tensors: tuple[InputTensor, ...] | None = None
    output_tensors: tuple[str, ...] | None = None
    dynamic_axes: Mapping[str, Mapping[str, str]] | None = None
    module_arguments: Mapping[str, JsonValue] | None = None
    shape_config: Mapping[str, int] | None = None


@dataclass(frozen=True)
class ExportConfig:
    loader: LoaderFields
    export: ExportFields


EXPORT = Stage(
    name="export",
    version=4,
    work="winml_dag.stages.export.conversion:run",
    config="winml_dag.stages.export:ExportConfig",
    inputs={
        "model": InputSlot(frozenset({artifact_types.MODEL_FOLDER}), required=False),
        "script": InputSlot(frozenset({artifact_types.USER_SCRIPT}), required=False),
    },
    outputs={"model": artifact_types.FLOAT_MODEL, "hierarchy": artifact_types.HIERARCHY},
    published={"model": "export.onnx", "hierarchy": "export_htp_metadata.json"},
    packages=("torch", "transformers", "onnx", "onnxscript", "onnx-ir"),
    memory=Memory(450 << 20, 2.6),
)


@dataclass(frozen=True)
class ComponentFields:
    """One component: its class, and how it is exported.

    ``shared_tensors``: names in ``export.input_tensors`` and ``export.dynamic_axes`` that the recipe sets for all
    components. Those that this component does not take belong to another.
    """

    model_class: str
    task: str
    export: ExportFields
    shared_tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComponentsConfig:
    """Components of a model, by name. ``loader`` describes the whole model, which is loaded once."""

    loader: LoaderFields
    components: Mapping[str, ComponentFields]


def export_stage(components: Collection[str]) -> Stage:
    """The declaration of a node that exports these components; name, version and toolchain are as for one model."""
    return replace(
        EXPORT,
        work="winml_dag.stages.export.conversion:run_components",
        config="winml_dag.stages.export:ComponentsConfig",
        outputs={f"{name}_{slot}": kind for name in components for slot, kind in EXPORT.outputs.items()},
        published={f"{name}_{slot}": file for name in components for slot, file in EXPORT.published.items()},
    )
