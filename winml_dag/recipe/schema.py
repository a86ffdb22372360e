"""The schema of a recipe: winml-cli's ``WinMLBuildConfig`` with additional keys.

A missing section and a null one differ only for ``export`` (default settings, or "the model is already ONNX");
``model_fields_set`` still distinguishes them everywhere. Names and defaults are winml-cli's unless a comment says
otherwise. Paths are kept as written: see :mod:`winml_dag.recipe.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, Field, JsonValue, Strict, model_validator

from winml_dag.recipe.fields import (
    Argument,
    Axis,
    CapabilityName,
    Chip,
    Count,
    Device,
    Dimension,
    IntegerType,
    ListOf,
    MapOf,
    ModelPath,
    Opset,
    OrEmpty,
    PathOrId,
    PathText,
    PrecisionName,
    Seconds,
    Section,
    Seed,
    TensorType,
    Text,
    WeightType,
    problem,
    replacing,
    unset,
)


class Dataset(Section):
    path: PathOrId | None = None
    name: Text | None = None
    # winml-cli's configurations have null here.
    split: Annotated[Text, replacing(None, "validation")] = "validation"
    samples: Count = 100
    shuffle: bool = True
    seed: Seed = 42
    columns_mapping: MapOf[str] = Field(default_factory=dict)
    label_mapping: Mapping[str, int] | None = None
    label_mapping_file: PathText | None = None
    streaming: bool = False
    revision: Text | None = None
    build_script: Text | None = None


class Eval(Section):
    """Accuracy on a data set, or (``mode`` compare) compared with another model: for the eval command, not for builds.

    Not in winml-cli: ``batch_size``, and ``pooling``, of token embeddings; None: suitable for the model.
    """

    runtime: Literal["winml", "pytorch"] = "winml"
    mode: Literal["onnx", "compare"] = "onnx"
    model_id: PathOrId | None = None
    model_path: ModelPath | None = None
    input_data: PathText | None = None
    reference_path: PathText | None = None
    reference_device: Device = "cpu"
    reference_ep: Text | None = None
    task: Text | None = None
    device: Device = "auto"
    precision: PrecisionName = "auto"
    ep: Text | None = None
    quant: bool = True
    optimize: bool = True
    analyze: bool = True
    max_optim_iterations: Annotated[int, Field(ge=0)] | None = None
    shape_config: Mapping[str, JsonValue] | None = None
    export_overrides: Mapping[str, JsonValue] | None = None
    dataset: OrEmpty[Dataset] = unset(Dataset)
    batch_size: Count = 1
    pooling: Literal["mean", "cls"] | None = None
    output_path: Text | None = None
    skip_build: bool = True
    use_cache: bool = True
    rebuild: bool = False
    trust_remote_code: bool = False
    allow_unsupported_nodes: bool = False


class Validate(Section):
    """How to validate the result. Not in winml-cli: it is run on ``samples`` inputs and compared with the float model.

    ``min_cosine`` None: the minimum for the precision. The other thresholds None: not checked. ``input_data`` None:
    what calibration does not use of its data, or random inputs.
    """

    enabled: bool = True
    min_cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    min_sqnr_db: Annotated[float, Field(ge=-1000, le=1000)] | None = None
    max_abs_error: Annotated[float, Field(ge=0, le=1e38)] | None = None
    min_top1_agreement: Annotated[float, Field(ge=0, le=1)] | None = None
    input_data: PathText | None = None
    samples: Count = 3
    seed: Seed = 0


class Perf(Section):
    """How the perf command measures the result; builds do not. Not in winml-cli.

    ``iterations`` None: 100, or what fits into ``duration``. ``threads`` None: onnxruntime's default. ``batch_size``
    None: one sample. ``input_data`` None: random inputs from ``seed``, with ``sizes`` for axes by the model's names for
    them.
    """

    warmup: Annotated[int, Field(ge=0, le=2**31 - 1)] = 10
    iterations: Count | None = None
    duration: Seconds | None = None
    threads: Count | None = None
    batch_size: Count | None = None
    sizes: MapOf[Count] = Field(default_factory=dict)
    seed: Seed = 0
    input_data: PathText | None = None
    loads: Count = 5

    @model_validator(mode="after")
    def _end_once(self) -> Self:
        if self.iterations is not None and self.duration is not None:
            raise problem("perf.duration says when to end as well; keep one of the two", at=("iterations",))
        return self


class RandomWeights(Section):
    """Generate weights from a seed instead of loading them. Not in winml-cli.

    ``config`` overrides the architecture's own settings.
    """

    seed: Seed = 0
    config: MapOf[JsonValue] = Field(default_factory=dict)


class Loader(Section):
    """The source of the PyTorch model.

    Not in winml-cli: ``path`` (a local folder), ``revision``, ``random_weights``.
    """

    task: Text | None = None
    model_class: Text | None = None
    model_type: Text | None = None
    module_path: Text | None = None
    user_script: PathText | None = None
    trust_remote_code: bool = False
    path: PathOrId | None = None
    revision: Text | None = None
    random_weights: Annotated[RandomWeights | None, replacing(True, {}), replacing(False, None)] = None


class InputTensor(Section):
    """An input of the exported model; a text in ``shape`` names a dynamic axis, ``value_range`` excludes its end."""

    name: Text
    dtype: TensorType | None = None
    shape: ListOf[Dimension] | None = None
    value_range: Annotated[tuple[float, float], Strict(False)] | None = None


class OutputTensor(Section):
    name: Text


class Compatibility(Section):
    transformers_attention: Literal["eager"] | None = None


class Export(Section):
    """How the PyTorch model is exported to ONNX.

    ``opset_version`` None: suitable for the target (17 in winml-cli). ``dynamo`` None: the exporter that works best for
    the architecture (false in winml-cli). Not in winml-cli: ``module_arguments``, arguments of a module other than
    tensors; ``shape_config``, sizes of dimensions by name, for inputs without a shape in ``input_tensors``: winml-cli's
    names (:data:`~winml_dag.recipe.fields.InputDimension`) for an export, the model's own for an ONNX model.
    """

    opset_version: Opset | None = None
    batch_size: Count = 1
    input_tensors: ListOf[InputTensor] | None = None
    output_tensors: ListOf[OutputTensor] | None = None
    dynamic_axes: Mapping[str, Mapping[Axis, Text]] | None = None
    export_params: bool = True
    do_constant_folding: bool = True
    verbose: bool = False
    dynamo: bool | None = None
    clean_onnx: bool = False
    enable_hierarchy_tags: bool = True
    hierarchy_tag_format: Literal["full", "module_only"] = "full"
    compatibility: OrEmpty[Compatibility] = unset(Compatibility)
    module_arguments: MapOf[JsonValue] | None = None
    shape_config: Mapping[Text, Count] | None = None


class NodeOverride(Section):
    """The types of some nodes that differ from the default. Not in winml-cli."""

    weight_type: WeightType | None = None
    activation_type: IntegerType | None = None


class Quant(Section):
    """How floats are quantized to integers or float16, for ``quant`` and ``compile.quant_config``.

    Not in winml-cli: ``calibration_data``, the path of data in files; ``dataset_subset``, ``dataset_split`` and
    ``columns_mapping``, which select the data of ``dataset_name``; ``op_types_to_exclude``; ``node_overrides``, by
    names of nodes or patterns; ``equalize``; ``rtn_float_type``, the type of what rtn leaves in floats.
    ``weight_type``, ``activation_type``, ``per_channel``, ``symmetric`` and ``equalize`` None: suitable for the target
    and precision (uint8 and false in winml-cli).
    """

    mode: Annotated[Literal["static", "dynamic", "rtn", "fp16"], replacing("qdq", "static")] = "static"
    samples: Count = Field(default=10, validation_alias=AliasChoices("samples", "calibration_samples"))
    calibration_method: Literal["minmax", "entropy", "percentile"] = "minmax"
    calibration_data: PathText | None = None
    task: Text | None = None
    model_id: PathOrId | None = None
    dataset_name: PathOrId | None = None
    dataset_subset: Text | None = None
    dataset_split: Text = "train"
    columns_mapping: MapOf[Text] = Field(default_factory=dict)
    model_type: Text | None = None
    weight_type: WeightType | None = None
    activation_type: IntegerType | None = None
    per_channel: bool | None = None
    symmetric: bool | None = None
    weight_symmetric: bool | None = None
    activation_symmetric: bool | None = None
    op_types_to_quantize: ListOf[Text] | None = None
    op_types_to_exclude: ListOf[Text] | None = None
    nodes_to_exclude: ListOf[Text] | None = None
    node_overrides: MapOf[NodeOverride] = Field(default_factory=dict)
    equalize: bool | None = None
    rtn_bits: Literal[4, 8] = 4
    rtn_block_size: Count = 128
    rtn_symmetric: bool = True
    rtn_accuracy_level: Annotated[int, Field(ge=0, le=4)] = 0
    rtn_float_type: Literal["float32", "float16"] = "float32"
    reduce_range: bool = False
    fp16_keep_io_types: bool = True
    fp16_op_block_list: ListOf[Text] | None = None
    save_calibration: bool = False
    distribution: Literal["uniform", "normal"] = "uniform"
    seed: Seed | None = None
    calibration_load_path: PathText | None = Field(
        default=None, validation_alias=AliasChoices("calibration_load_path", "load_path")
    )
    calibration_save_path: Text | None = None


class EpDevice(Section):
    ep: Text | None = None
    device: Device | None = None
    source: Text | None = None


class EpSettings(Section):
    """The settings of the execution provider's compiler in both forms of a ``compile`` section.

    Not in winml-cli: ``soc_model`` (a number or the name of a chip), ``htp_arch`` and ``htp_optimization_level``, which
    set QNN's provider options; ``require_full_offload``: nothing may stay on the CPU.
    """

    provider_options: MapOf[str] = Field(default_factory=dict)
    provider_option_file_keys: ListOf[Text] = ()
    enable_ep_context: bool = True
    embed_context: bool = False
    compiler: Literal["ort", "ort_session", "qairt"] = "ort"
    qnn_sdk_root: PathText | None = None
    soc_model: Chip | None = None
    htp_arch: Literal[68, 69, 73, 75, 79, 81] | None = None
    htp_optimization_level: Literal[0, 1, 2, 3] | None = None
    require_full_offload: bool = False
    device: Device = "auto"


class EpConfig(EpSettings):
    """The nested form, as in winml-cli's reference."""

    provider: Text | None = None


class Compile(EpSettings):
    """How the execution provider compiles the model. Both forms are read; the object has the flat one.

    Not in winml-cli: ``quant_config``, a ``quant`` section for this target. ``quantize`` is in files of old versions of
    winml-cli, and is refused unless it matches what happens anyway.
    """

    execution_provider: Text | None = None
    ep_device: EpDevice | None = None
    validation: bool = Field(default=True, alias="validate")
    verbose: bool = False
    quantize: bool | None = None
    quant_config: Quant | None = None
    ep_config: EpConfig | None = None

    @model_validator(mode="after")
    def _flatten(self) -> Self:
        nested = self.ep_config
        for name in sorted(nested.model_fields_set) if nested else ():
            flat_name = "execution_provider" if name == "provider" else name
            value = getattr(nested, name)
            if flat_name in self.model_fields_set and getattr(self, flat_name) != value:
                raise problem(f"differs from compile.{flat_name}; keep one of the two", at=("ep_config", name))
            # A frozen section may change only here, before any other code has seen the object.
            object.__setattr__(self, flat_name, value)
            self.model_fields_set.add(flat_name)
        object.__setattr__(self, "ep_config", None)
        self.model_fields_set.discard("ep_config")
        return self


class StageEntry(Section):
    """A stage of the user, or (only ``inputs``, under the name of a built-in stage) its inputs. Not in winml-cli.

    Consistency is checked when the build is planned, which knows the other stages and files.
    """

    command: ListOf[Argument] | None = None
    run: Text | None = None
    uses: Text | None = None
    inputs: MapOf[Text] = Field(default_factory=dict)
    outputs: MapOf[Text] = Field(default_factory=dict)
    env: MapOf[Argument] = Field(default_factory=dict)
    config: MapOf[JsonValue] | None = None
    timeout: Seconds | None = None


class Component(Section):
    """Settings for one component of a composite model that differ from the recipe's. Not in winml-cli.

    The fields of a section that are set here replace the recipe's. ``quant`` and ``compile`` null skip that stage for
    this component.
    """

    precision: PrecisionName | None = None
    export: Export = unset(Export)
    optim: OrEmpty[Mapping[CapabilityName, bool]] = Field(default_factory=dict)
    quant: Quant | None = None
    compile: Compile | None = None
    validation: Validate = unset(Validate, alias="validate")
    skip_optimize: bool = False


class Recipe(Section):
    """A whole recipe.

    Not in winml-cli: ``model`` (hub id, folder or .onnx file), ``ep``, ``device``, ``precision``, ``output_dir``,
    ``validate``, ``perf``, ``stages``, ``components`` (by name, of a composite model). ``quant``, ``compile`` and
    ``eval`` None: that stage is skipped, whether the section was missing or null. ``export`` None (only if null was
    written): the model is already ONNX.
    """

    model: PathOrId | None = None
    ep: Text | None = None
    device: Device = "auto"
    precision: PrecisionName = "auto"
    output_dir: Text | None = None
    loader: OrEmpty[Loader] = unset(Loader)
    export: Export | None = unset(Export)
    optim: OrEmpty[Mapping[CapabilityName, bool]] = Field(default_factory=dict)
    quant: Quant | None = None
    compile: Compile | None = None
    eval: Eval | None = None
    validation: Validate = unset(Validate, alias="validate")
    perf: OrEmpty[Perf] = unset(Perf)
    auto: bool = True
    max_optim_iterations: Annotated[int, Field(ge=0, le=20)] = 3
    allow_unsupported_nodes: bool = False
    skip_optimize: bool = False
    stages: MapOf[StageEntry] = Field(default_factory=dict)
    components: MapOf[Component] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _quantize_once(self) -> Self:
        if self.quant is not None and self.compile is not None and self.compile.quant_config is not None:
            raise problem("there is a quant section as well; keep one of the two", at=("compile", "quant_config"))
        return self
