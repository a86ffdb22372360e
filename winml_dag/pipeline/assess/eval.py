"""Plan eval (a finished model, data and a reference) as a graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.stage import Source, config_json
from winml_dag.ep.availability import require_installed
from winml_dag.ep.registry import is_emulated
from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.file_reading import read_json
from winml_dag.pipeline.assess.builtmodel import (
    BuiltModel,
    StoredModel,
    float_model,
    measured_on,
    processor_of,
    reference_at,
    run_target,
)
from winml_dag.pipeline.assess.measurement import (
    AssessmentPlan,
    AssessmentRequest,
    Measurement,
    measuring_node,
    plan_measurement,
)
from winml_dag.pipeline.data import calibration_source, data_source, packages_of, require_packages
from winml_dag.pipeline.hub import Asker, WantedData, find_dataset, has_splits
from winml_dag.pipeline.model import OnnxFile
from winml_dag.recipe.fields import is_path_like, resolve_path
from winml_dag.recipe.schema import Dataset, Eval
from winml_dag.stages.evaluate import (
    EVALUATE,
    EVALUATED_AS,
    METRICS,
    REPORT_FILE,
    TASKS,
    EvaluateConfig,
    EvaluateFields,
)
from winml_dag.stages.samples import TABLES, kind_of
from winml_dag.stages.validate import CLASSIFYING_TASKS
from winml_dag.store.quantities import counted
from winml_dag.store.store import Store

_ASKER = Asker("eval.dataset.path", "eval.dataset.name", "eval.dataset.split", "eval.dataset.path")

# Fields of winml-cli that build a model first or run one with its library; here the model is already finished.
_BUILDS = (
    *("quant", "optimize", "analyze", "max_optim_iterations", "shape_config", "export_overrides", "skip_build"),
    *("use_cache", "rebuild", "trust_remote_code", "allow_unsupported_nodes", "precision"),
)
_ELSEWHERE: Mapping[str, str] = {
    "runtime": "the ONNX model is run, by onnxruntime; give the float ONNX model as the reference",
    "model_path": "the model is what the recipe builds; without a recipe, give its path to `winml-dag eval`",
    "reference_ep": "the reference runs on the CPU",
    "reference_device": "the reference runs on the CPU",
    "output_path": "give the folder for the report as -o",
    "dataset.streaming": "data sets are files here, read from front to back",
    "dataset.build_script": "scripts are not run; make files of the data, and give those as eval.dataset.path",
}
AGREEMENTS = ("top1", "top5", "exact")
# Two ways to give the same setting.
_LABELS = frozenset({"label_mapping", "label_mapping_file"})


@dataclass(frozen=True)
class EvaluationPlan(AssessmentPlan):
    """An evaluation ready to run.

    ``bounds``: the smallest values, by names of figures. ``notices``: what the user should know about it, a sentence
    each.
    """

    task: str | None
    notices: tuple[str, ...]
    bounds: Mapping[str, float]

    def kept(self, done: Measurement) -> dict[str, bool]:
        """Return whether the model meets each bound. An undefined value meets none; an infinite ratio meets all."""
        found = figures(done)
        return {name: (value := found[name]) is not None and value >= bound for name, bound in self.bounds.items()}

    def all_notices(self, done: Measurement) -> Iterator[str]:
        """Yield ``notices``, and what was noticed while it ran."""
        yield from self.notices
        full: Any = done.metrics.get("full_texts")
        if full:
            fill = "fills" if full == 1 else "fill"
            yield f"{counted(full, 'text')} {fill} the model's input to its last token; what was longer has been cut."

    def report(self, done: Measurement, folder: Path | None = None) -> JsonObject:
        keeps, found = self.kept(done), figures(done)
        reference = None if self.reference is None else str(self.reference.path)
        finite = {name: value for name, value in found.items() if value is not None and math.isfinite(value)}
        return {
            **self.head(done, precision=self.precision, reference=reference),
            "success": all(keeps.values()),
            **report_of(done),
            "bounds": {
                name: {"at_least": bound, "found": finite.get(name), "kept": keeps[name]}
                for name, bound in self.bounds.items()
            },
            "notices": list(self.all_notices(done)),
            "toolchain": done.toolchain,
            "report": None if folder is None else str(folder / REPORT_FILE),
        }


def figures(done: Measurement) -> dict[str, float | None]:
    """Return the values that bounds apply to: the metrics of a task, or the worst value over all outputs."""
    found: Any = report_of(done)
    if "metrics" in found:
        return {name: metric["candidate"]["value"] for name, metric in found["metrics"].items()}
    outputs = found["outputs"].values()
    # Without noise the ratio is infinite, which JSON cannot represent.
    infinite = {True: math.inf, False: -math.inf}
    ratios = [infinite[each["cosine"] == 1] if each["sqnr_db"] is None else each["sqnr_db"] for each in outputs]
    worst: dict[str, float | None] = {
        name: min((each[name] for each in outputs if each[name] is not None), default=None)
        for name in ("cosine", "cosine_min")
    }
    worst["sqnr_db"] = min(ratios, default=None)
    for name in AGREEMENTS:
        known = [output[name] for output in outputs if output[name] is not None]
        if known:
            worst[name] = min(one["agreed"] / one["of"] if one["of"] else 1.0 for one in known)
    return worst


def report_of(done: Measurement) -> JsonObject:
    """Return the report of the stage, with metrics in the task's order, because records sort names."""
    found: Any = dict(done.report)
    if "metrics" in found:
        metrics = found["metrics"]
        found["metrics"] = {name: metrics[name] for name in METRICS[found["task"]] if name in metrics}
    return cast(JsonObject, found)


def eval_section(written: Eval | None, given: Mapping[str, JsonValue], dataset: Mapping[str, JsonValue]) -> Eval:
    """Return the recipe section *written*, with its fields overridden by *given*, those of its data set by *dataset*.

    Raises:
        RecipeError: with one line in ``problems`` for each error.
    """
    section = {} if written is None else written.to_dict()
    below = {} if written is None else written.dataset.to_dict()
    if not _LABELS.isdisjoint(dataset):
        below = {name: value for name, value in below.items() if name not in _LABELS}
    return Eval.from_dict({**section, **given, "dataset": {**below, **dataset}})


def plan_evaluation(
    built: BuiltModel, request: AssessmentRequest[Eval], store: Store, *, bounds: Mapping[str, float] | None = None
) -> EvaluationPlan:
    """Plan the evaluation of *built* that *request* describes; its section has the target, the task and the reference.

    *bounds*: the smallest values, by names of figures.

    Raises:
        UsageError: for a target that is not installed or that the model cannot run on, a task or field that does not
            apply, and settings that contradict each other.
        InputError: for missing data, tokenizer or reference.
    """
    section = request.section
    refuse_unbuilt(section)
    target = measured_on(built, section.ep, None if section.device == "auto" else section.device)
    require_installed(target)
    task = None if section.mode == "compare" else _task(built, section)
    data = _data(request)
    processor = None if data is None else _processor(built, request, data, task)
    reference = _reference(built, request, store)
    config = EvaluateConfig(
        _fields(built, request, task, data),
        run_target(built, target, request.options),
    )
    inputs = {
        "model": built.model.source(),
        "reference": None if reference is None else reference.source(),
        "data": data,
        "processor": processor,
    }
    packages = packages_of(data, processor)
    node = measuring_node(EVALUATE, config_json(config), inputs, target, store.fingerprints, packages)
    scope = f"eval {section.mode} {built.model.path.resolve()}"
    planned = plan_measurement([node], inputs.values(), store.fingerprints, scope)
    notices = []
    if reference is None and request.has_reference:
        notices.append(
            "No float model is at hand, so nothing says what the precision has cost. Give one with --reference."
        )
    if is_emulated(target):
        notices.append(
            "QNN's NPU is emulated on this processor: what is measured is the emulator's arithmetic, and slow."
        )
    return EvaluationPlan(planned, built, target, reference, built.precision, task, tuple(notices), bounds or {})


def refuse_unbuilt(section: Eval) -> None:
    """Reject errors that are visible before a recipe is built, since a build may take long.

    Raises:
        RecipeError: for fields that eval does not support: ignoring them would give a wrong result.
        UsageError: for a task without data.
    """
    plain = Eval()
    problems = [
        f"eval.{name}: a model is built first, and evaluated as it is; say this where it is built"
        for name in _BUILDS
        if getattr(section, name) != getattr(plain, name)
    ]
    for path, why in _ELSEWHERE.items():
        given, usual = map(attrgetter(path), (section, plain))
        if given not in (usual, "cpu" if path.startswith("reference_") else usual, "auto"):
            problems.append(f"eval.{path}: {why}")
    if section.mode == "onnx" and section.input_data is not None:
        problems.append("eval.input_data: inputs without labels are for eval.mode compare")
    if section.dataset.label_mapping is not None and section.dataset.label_mapping_file is not None:
        problems.append("eval.dataset.label_mapping_file: there is a label_mapping as well; keep one of the two")
    if problems:
        raise RecipeError("The evaluation asks for what eval does not do.", problems=tuple(problems))
    if section.mode == "onnx" and section.dataset.path is None:
        raise UsageError(
            "There is no labelled data to evaluate on.",
            advice="Give a file, a folder or a data set: --dataset, or eval.dataset.path in the recipe. The mode "
            "compare (--mode, eval.mode) needs none.",
        )


def _task(built: BuiltModel, section: Eval) -> str:
    named = section.task or built.task or ""
    task = EVALUATED_AS.get(named, named)
    if task not in TASKS:
        raise UsageError(
            f"There are no metrics for {named}." if named else f"The task of {built.name} is unknown.",
            advice=f"Give --task, one of: {', '.join(TASKS)}; or --mode compare.",
        )
    return task


def _fields(
    built: BuiltModel, request: AssessmentRequest[Eval], task: str | None, data: Source | None
) -> EvaluateFields:
    section, dataset = request.section, request.section.dataset
    named = section.task or built.task or ""
    has_columns = data is not None and kind_of(data.files[0].name) in (*TABLES, "npz")
    return EvaluateFields(
        mode=section.mode,
        task=task,
        samples=dataset.samples,
        seed=dataset.seed if dataset.shuffle or data is None else None,
        columns_mapping=dict(dataset.columns_mapping) if has_columns else {},
        label_mapping=None if task is None else _label_mapping(dataset, request.base),
        batch_size=section.batch_size,
        pooling=section.pooling if task == "feature-similarity" else None,
        classifies=task is None and named.endswith(CLASSIFYING_TASKS),
    )


def _label_mapping(dataset: Dataset, base: Path) -> Mapping[str, int] | None:
    if dataset.label_mapping_file is None:
        return dataset.label_mapping
    path = resolve_path(base, dataset.label_mapping_file)
    try:
        value = read_json(path, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"eval.dataset.label_mapping_file: {path} cannot be read: {error}.") from error
    if not isinstance(value, dict) or not all(type(number) is int for number in value.values()):
        raise InputError(
            f"eval.dataset.label_mapping_file: {path} is not an object of labels and the numbers of their classes.",
            advice='Write it as {"negative": 0, "positive": 1}.',
        )
    return value


def _data(request: AssessmentRequest[Eval]) -> Source | None:
    """Return the inputs to compare on, or the files of the data set: a file, a folder, or a data set of the hub."""
    dataset, inputs = request.section.dataset, request.section.input_data
    if inputs is not None:
        if dataset.path is not None:
            raise RecipeError("eval.input_data and eval.dataset.path name two sets of data. Keep one of them.")
        return calibration_source(resolve_path(request.base, inputs), "eval.input_data")
    if dataset.path is None:
        return None
    path = resolve_path(request.base, dataset.path)
    # winml-cli writes the default split, so the default is accepted for data without splits.
    asks_for_split = dataset.name is not None or dataset.split != Dataset().split
    if path.is_file() and asks_for_split:
        field = _ASKER.split if dataset.name is None else _ASKER.subset
        raise UsageError(f"{field}: a file has no splits or subsets, and {path} is one.", advice="Remove it.")
    if path.is_file() or (path.is_dir() and not asks_for_split and not has_splits(path)):
        source = calibration_source(path, _ASKER.name)
    elif not path.exists() and (is_path_like(dataset.path) or kind_of(dataset.path)):
        raise InputError(f"{_ASKER.name}: {path} does not exist.", advice="Check the path, or give a hub id.")
    else:
        wanted = WantedData(dataset.path, dataset.name, dataset.split, dataset.revision, _ASKER)
        found = find_dataset(wanted, request.base, download=request.download)
        source = data_source(found.files, f"{_ASKER.name}: {dataset.path}")
    require_packages(str(kind_of(source.files[0].name)))
    return source


def _processor(built: BuiltModel, request: AssessmentRequest[Eval], data: Source, task: str | None) -> Source | None:
    """Return tokenizer, image processor and class names of the named model folder, else of the model's source.

    None if neither is available.
    """
    named = request.section.model_id
    if named is None and task is None and kind_of(data.files[0].name) in ("npz", "npy"):
        return None
    return processor_of(built, named, request.base, download=request.download)


def _reference(built: BuiltModel, request: AssessmentRequest[Eval], store: Store) -> OnnxFile | StoredModel | None:
    """Return the float model: the one the user names, else the one the build made."""
    named = request.section.reference_path
    if named is not None:
        return reference_at(resolve_path(request.base, named))
    found = float_model(built, store) if request.has_reference else None
    if found is None and request.section.mode == "compare":
        if not request.has_reference:
            raise UsageError("--mode compare needs the reference that --no-reference excludes.")
        raise UsageError(
            f"There is nothing to compare {built.name} with: no float model of a build is beside it or in the cache.",
            advice="Give one with --reference.",
        )
    return found
