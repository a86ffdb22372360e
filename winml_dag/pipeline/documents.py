"""``build_manifest.json`` and the reports of perf and eval as typed values.

These files may come from elsewhere, or from other versions of this program: a value of an unexpected type counts as
missing, and affects nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Annotated, Any, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    OnErrorOmit,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from winml_dag.errors import StoreError
from winml_dag.pipeline.buildgraph import prefixed
from winml_dag.stages.evaluate import METRICS
from winml_dag.store.artifact import Artifact, FileEntry


def _files(value: Any) -> tuple[FileEntry, ...]:
    try:
        return Artifact.from_json(value).files
    except StoreError as error:
        raise ValueError(error) from None


Count: TypeAlias = Annotated[int, Field(ge=0)]
_Texts: TypeAlias = list[OnErrorOmit[str]]
_Words: TypeAlias = dict[str, OnErrorOmit[str]]
_Counts: TypeAlias = dict[str, OnErrorOmit[Count]]
_Files: TypeAlias = Annotated[tuple[FileEntry, ...], PlainValidator(_files)]


class _Lenient(BaseModel):
    """Accepts any object: a missing field or one of another type gets its default, and unknown fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="wrap")
    @classmethod
    def _default_for_other_kinds(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        try:
            return handler(value)
        except ValidationError:
            assert info.field_name is not None
            return cls.model_fields[info.field_name].get_default(call_default_factory=True)


class Output(_Lenient):
    digest: str = ""
    files: _Files = ()


class Input(_Lenient):
    """``maker``: the id of the stage that output it, or ``source``."""

    maker: str = Field(default="", validation_alias="from")
    name: str = ""
    digest: str | None = None


class Figures(_Lenient):
    """How far outputs are from those of the float model."""

    cosine: float | None = None
    cosine_min: float | None = None
    sqnr_db: float | None = None
    max_abs_error: float | None = None
    samples: Count = 0
    data: str = ""

    @classmethod
    def worst(cls, figures: Iterable[Figures]) -> Figures:
        """Return the worst value of each measure over several outputs or components; None if none has it."""
        found = list(figures)

        def pick(choose: Callable[[Iterable[float]], float], name: str) -> float | None:
            values = [value for one in found if (value := getattr(one, name)) is not None]
            return choose(values) if values else None

        return cls(
            cosine=pick(min, "cosine"),
            cosine_min=pick(min, "cosine_min"),
            sqnr_db=pick(min, "sqnr_db"),
            max_abs_error=pick(max, "max_abs_error"),
        )


class Metrics(_Lenient):
    peak_memory_bytes: Count | None = None
    quality: Figures | None = None
    min_cosine: float | None = None
    assigned_nodes: dict[str, OnErrorOmit[_Counts]] = {}


class _Loader(_Lenient):
    module_path: str = ""


class _Compile(_Lenient):
    embed_context: bool = False


class Config(_Lenient):
    """The part of a stage's config that reports read."""

    loader: _Loader = _Loader()
    compile: _Compile = _Compile()


class _Log(_Lenient):
    digest: str = ""
    size: Count | None = None


class Stage(_Lenient):
    """A stage of a build. ``settings`` is the part of ``config`` that reports read."""

    id: str = ""
    name: str = ""
    status: str = ""
    reason: str = ""
    cached: bool = False
    elapsed_seconds: float | None = None
    cache_key: str | None = None
    version: int = 0
    config: dict[str, JsonValue] = {}
    config_hash: str = ""
    settings: Config = Field(default=Config(), validation_alias="config")
    toolchain: _Words = {}
    inputs: dict[str, OnErrorOmit[Input]] = {}
    outputs: dict[str, OnErrorOmit[Output]] = {}
    placed: _Files | None = None
    metrics: Metrics = Metrics()
    made_at: str = ""
    made_by: str = ""
    log: _Log = _Log()
    filename: str = ""
    filenames: _Texts = []
    nodes_quantized: Count | None = None
    nodes_skipped: Count | None = None
    nodes_skipped_reasons: dict[str, OnErrorOmit[_Counts]] = {}
    ep_context_partitions: Count | None = None
    nodes_on_cpu: _Counts = {}
    ep_sdk_version: str = ""

    @property
    def files(self) -> list[FileEntry]:
        return [file for output in self.outputs.values() for file in output.files]

    @property
    def is_done(self) -> bool:
        """Whether it has a result: it was not skipped."""
        return self.status == "completed"


class Hub(_Lenient):
    kind: str = ""
    name: str = ""
    revision: str = ""


class Origin(_Lenient):
    """The location of a source. ``package``: set if it is part of this program."""

    kind: str = ""
    folder: str = ""
    package: str = ""
    hub: Hub | None = None
    names: _Words = {}
    license: str = ""


class RecipeFile(_Lenient):
    file: str = ""
    digest: str = ""


class Asked(_Lenient):
    """What was requested; ``recipe_file`` identifies the file of ``recipe``."""

    recipe: JsonValue = None
    recipe_file: RecipeFile = Field(default=RecipeFile(), validation_alias="recipe")
    options: JsonValue = None


class Ci(_Lenient):
    builder: str = ""
    run: str = ""
    repository: str = ""
    revision: str = ""


class Run(_Lenient):
    made_by: str = ""
    python: str = ""
    ci: Ci = Ci()
    asked: Asked = Asked()
    sources: dict[str, OnErrorOmit[Origin]] = {}
    wheels: _Words = {}


class OneModel(_Lenient):
    """A model to ship: that of a build, or of one of its components."""

    model_id: str = ""
    task: str | None = None
    precision: str = ""
    execution_provider: str = ""
    device: str = ""
    cache_key: str = ""
    quality: dict[str, JsonValue] | None = None
    final_artifact: str | None = None


class BuildManifest(OneModel):
    config_hash: str = ""
    timestamp: str = ""
    elapsed_seconds: float | None = None
    notices: _Texts = []
    sources: dict[str, JsonValue] = {}
    components: dict[str, OnErrorOmit[OneModel]] = {}
    stages: list[OnErrorOmit[Stage]] = []
    run: Run = Run()

    @cached_property
    def final_artifacts(self) -> tuple[str, ...]:
        """The names of the models to ship."""
        found = (one.final_artifact for one in (self, *self.components.values()))
        return tuple(name for name in found if name is not None)

    def done(self, name: str) -> list[Stage]:
        """Return the stages called *name* that have a result: one for each component, or for each model quantized."""
        return [stage for stage in self.stages if stage.name == name and stage.is_done]

    @property
    def shipped(self) -> dict[str, FileEntry]:
        """The files to ship by their digests: equal content counts once."""
        return {file.digest: file for stage in self.done("finalize") for file in stage.files}

    def component_of_file(self, name: str) -> str:
        """Return the component of the file *name* next to the manifest; empty if it belongs to none."""
        return next((each for each in self.components if name.startswith(prefixed("", each))), "")

    def component_of(self, stage: Stage) -> str:
        """Return the component of *stage*; empty if it belongs to all, or there are none."""
        first = stage.id.partition(".")[0]
        return first if first in self.components else ""

    def of(self, file: str) -> OneModel:
        """Return what the manifest says about *file*: fields of its component override those of the build."""
        own = self.components.get(self.component_of_file(file))
        if own is None:
            return self
        return self.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


class _Latencies(_Lenient):
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    inferences: Count = 0


class _Load(_Lenient):
    seconds: float | None = None


class _Memory(_Lenient):
    peak: Count | None = None


class PerfReport(_Lenient):
    latency_ms: _Latencies = _Latencies()
    warmup: Count = 0
    load: _Load = _Load()
    memory_bytes: _Memory = _Memory()
    notices: _Texts = []
    host: _Words = {}
    waited_share: float | None = None


class _Estimate(_Lenient):
    value: float | None = None
    low: float | None = None
    high: float | None = None


class _Difference(_Lenient):
    significant: bool | None = None


class MetricReport(_Lenient):
    candidate: _Estimate = _Estimate()
    reference: _Estimate = _Estimate()
    difference: _Difference = _Difference()

    @property
    def drop(self) -> float | None:
        """How much worse than the reference; for all metrics of eval, higher is better."""
        value, reference = self.candidate.value, self.reference.value
        return None if value is None or reference is None else reference - value


class EvalReport(_Lenient):
    task: str = ""
    samples: Count = 0
    data: str = ""
    metrics: dict[str, OnErrorOmit[MetricReport]] = {}
    outputs: dict[str, OnErrorOmit[Figures]] = {}

    @property
    def main_metric(self) -> str | None:
        """The most significant metric of the task; None without one."""
        return next((name for name in METRICS.get(self.task, ()) if name in self.metrics), None)
