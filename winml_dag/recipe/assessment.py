"""The sections of a recipe that assess its result: validation, and how accuracy and speed are measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from winml_dag.recipe.fields import (
    Count,
    Device,
    MapOf,
    ModelPath,
    OrEmpty,
    PrecisionName,
    Seconds,
    Section,
    Seed,
    Text,
    problem,
)

_SPLIT = "validation"


def _default_split(value: object) -> object:
    """Replace the null that winml-cli's configurations have for a data set with the usual split."""
    return _SPLIT if value is None else value


class Dataset(Section):
    path: Text | None = None
    name: Text | None = None
    split: Annotated[Text, BeforeValidator(_default_split)] = _SPLIT
    samples: Count = 100
    shuffle: bool = True
    seed: Seed = 42
    columns_mapping: MapOf[str] = Field(default_factory=dict)
    label_mapping: Mapping[str, int] | None = None
    label_mapping_file: Text | None = None
    streaming: bool = False
    revision: Text | None = None
    build_script: Text | None = None


class Eval(Section):
    """Accuracy on a data set, or (``mode`` compare) compared with another model: for the eval command, not for builds.

    Not in winml-cli: ``batch_size``, and ``pooling``, of token embeddings; None: suitable for the model.
    """

    runtime: Literal["winml", "pytorch"] = "winml"
    mode: Literal["onnx", "compare"] = "onnx"
    model_id: Text | None = None
    model_path: ModelPath | None = None
    input_data: Text | None = None
    reference_path: Text | None = None
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
    dataset: OrEmpty[Dataset] = Field(default_factory=Dataset.model_construct)
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
    input_data: Text | None = None
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
    input_data: Text | None = None
    loads: Count = 5

    @model_validator(mode="after")
    def _end_once(self) -> Self:
        if self.iterations is not None and self.duration is not None:
            raise problem("perf.duration says when to end as well; keep one of the two", at=("iterations",))
        return self
