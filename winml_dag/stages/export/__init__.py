"""export: a PyTorch model becomes ``export.onnx``.

This is the declaration; the work, which needs torch and transformers, is in :mod:`winml_dag.stages.export.work`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.canonical import JsonValue
from winml_dag.engine.stage import InputSlot, Stage
from winml_dag.stages import kinds


@dataclass(frozen=True)
class RandomWeights:
    """Weights made from a seed: the architecture comes from ``loader.model_type``, changed by ``config``."""

    seed: int = 0
    config: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class LoaderFields:
    """How the PyTorch model is made. ``random_weights`` is None when the weights come from the ``model`` input."""

    task: str
    model_type: str | None = None
    model_class: str | None = None
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
    """``dynamo`` None means: the exporter that works best for the architecture. ``clean_onnx``: the model's nodes have
    no tags.
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


@dataclass(frozen=True)
class ExportConfig:
    loader: LoaderFields
    export: ExportFields


EXPORT = Stage(
    name="export",
    version=2,
    work="winml_dag.stages.export.work:run",
    config="winml_dag.stages.export:ExportConfig",
    inputs={"model": InputSlot(frozenset({kinds.MODEL_FOLDER}), required=False)},
    outputs={"model": kinds.FLOAT_MODEL, "hierarchy": kinds.HIERARCHY},
    packages=("torch", "transformers", "onnx", "onnxscript", "onnx-ir"),
)
