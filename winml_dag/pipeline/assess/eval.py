"""Plan eval (a finished model, data and a reference) as a graph, and read its results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.stage import Source, config_json
from winml_dag.ep.availability import require_installed
from winml_dag.ep.registry import Target, is_emulated
from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.file_reading import read_json
from winml_dag.pipeline.assess.builtmodel import (
    BuiltModel,
    StoredModel,
    float_model,
    measured_on,
    options_on,
    processor_of,
    reference_at,
)
from winml_dag.pipeline.assess.measurement import AssessmentPlan, Measurement, measuring_node, plan_measurement
from winml_dag.pipeline.calibration import packages_of, require_packages
from winml_dag.pipeline.datasets import Asker, find_dataset, has_splits
from winml_dag.pipeline.sources import OnnxFile, calibration_source, data_source
from winml_dag.recipe.paths import is_path_like, resolve_path
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
from winml_dag.stages.target import RunTarget
from winml_dag.stages.validate import CLASSIFYING_TASKS
from winml_dag.store.quantities import counted
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.onnxmodel.compare import Agreement
    from winml_dag.stages.evaluate.metrics import Difference, Estimate

_ASKER = Asker("eval.dataset.path", "eval.dataset.name", "eval.dataset.split", "eval.dataset.path")

# Fields of winml-cli that build a model first or run one with its library; here the model is already finished.
_BUILDS = (
    "quant",
    "optimize",
    "analyze",
    "max_optim_iterations",
    "shape_config",
    "export_overrides",
    "skip_build",
    "use_cache",
    "rebuild",
    "trust_remote_code",
    "allow_unsupported_nodes",
    "precision",
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
# Two ways to give the same setting.
_LABELS = frozenset({"label_mapping", "label_mapping_file"})


@dataclass(frozen=True)
class EvaluationRequest:
    """How to evaluate a model.

    Attributes:
        section: the recipe section, with the overrides of this run.
        base: the folder that its paths are relative to.
        options: provider options that override those the model was built with.
        has_reference: also evaluate a float model, if one is available.
        download: allow fetching a tokenizer or data set from the hub.
    """

    section: Eval
    base: Path
    options: Mapping[str, str]
    has_reference: bool = True
    download: bool = True


@dataclass(frozen=True)
class EvaluationPlan(AssessmentPlan):
    """An evaluation ready to run. ``notices``: what the user should know about it, a sentence each."""

    task: str | None
    reference: OnnxFile | StoredModel | None
    notices: tuple[str, ...]


@dataclass(frozen=True)
class MetricResult:
    """One metric of the model and of its reference, and their difference; None without a reference."""

    candidate: Estimate
    reference: Estimate | None
    difference: Difference | None


@dataclass(frozen=True)
class OutputResult:
    """One output compared with the reference's.

    None means undefined (no noise, NaN, no class scores, no integers). The metrics skip values that are NaN in the
    reference; ``reference_nan_count`` counts these.
    """

    cosine: float
    cosine_min: float | None
    sqnr_db: float | None
    max_abs_error: float | None
    nan_count: int
    inf_count: int
    reference_nan_count: int
    top1: Agreement | None
    top5: Agreement | None
    exact: Agreement | None


@dataclass(frozen=True)
class EvalResult:
    """How good a model is.

    Attributes:
        cached, made_at: whether the result comes from the cache, and when it was evaluated.
        samples, of: how many samples were used, and how many exist; ``of`` is None for random ones.
        metrics: by name, the most important first; empty in mode compare.
        outputs: by name, in mode compare.
        full_texts: how many texts fill the model's input, and may have been truncated.
        notices: what to know before relying on the numbers, one sentence each.
        report: everything found, as in ``evaluation.json``.
    """

    cached: bool
    made_at: str
    mode: str
    task: str | None
    samples: int
    of: int | None
    metrics: Mapping[str, MetricResult]
    outputs: Mapping[str, OutputResult]
    full_texts: int
    notices: tuple[str, ...]
    report: JsonObject


def eval_section(written: Eval | None, said: Mapping[str, JsonValue], dataset: Mapping[str, JsonValue]) -> Eval:
    """Return the recipe section *written*, with its fields overridden by *said* and those of its data set by *dataset*.

    Raises:
        RecipeError: with one line in ``problems`` for each error.
    """
    section = {} if written is None else written.to_dict()
    below = {} if written is None else written.dataset.to_dict()
    if not _LABELS.isdisjoint(dataset):
        below = {name: value for name, value in below.items() if name not in _LABELS}
    return Eval.from_dict({**section, **said, "dataset": {**below, **dataset}})


def plan_evaluation(built: BuiltModel, request: EvaluationRequest, store: Store) -> EvaluationPlan:
    """Plan the evaluation of *built* that *request* describes.

    Raises:
        UsageError: for a target that is not installed or that the model cannot run on, a task or field that does not
            apply, and settings that contradict each other.
        InputError: for missing data, tokenizer or reference.
    """
    section = request.section
    _refuse_unavailable(section)
    target = measured_on(built, section.ep, None if section.device == "auto" else section.device)
    require_installed(target)
    compares = section.mode == "compare"
    task = None if compares else _task(built, section)
    _require_data(section)
    data = _input_data(section, request.base) if compares and section.input_data else _data(request)
    processor = None if data is None else _processor(built, request, data, task)
    reference = _reference(built, request, store)
    config = EvaluateConfig(
        _fields(built, request, task, data),
        RunTarget(target.ep.name, target.device, options_on(built, target, request.options)),
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
    return EvaluationPlan(planned, built, target, task, reference, tuple(_notices(request, target, reference)))


def refuse_unbuilt(section: Eval) -> None:
    """Reject errors that are visible before a recipe is built, since a build may take long.

    Raises:
        RecipeError: for fields that eval does not support.
        UsageError: for a task without data.
    """
    _refuse_unavailable(section)
    _require_data(section)


def _require_data(section: Eval) -> None:
    if section.mode == "onnx" and section.dataset.path is None:
        raise UsageError(
            "There is no labelled data to evaluate on.",
            advice="Give a file, a folder or a data set: --dataset, or eval.dataset.path in the recipe. The mode "
            "compare (--mode, eval.mode) needs none.",
        )


def _refuse_unavailable(section: Eval) -> None:
    """Raise RecipeError for fields that eval does not support: ignoring them would give a wrong result."""
    plain = Eval()
    problems = [
        f"eval.{name}: a model is built first, and evaluated as it is; say this where it is built"
        for name in _BUILDS
        if getattr(section, name) != getattr(plain, name)
    ]
    for path, why in _ELSEWHERE.items():
        given, usual = (_at(one, path) for one in (section, plain))
        if given not in (usual, "cpu" if path.startswith("reference_") else usual, "auto"):
            problems.append(f"eval.{path}: {why}")
    if section.mode == "onnx" and section.input_data is not None:
        problems.append("eval.input_data: inputs without labels are for eval.mode compare")
    if section.dataset.label_mapping is not None and section.dataset.label_mapping_file is not None:
        problems.append("eval.dataset.label_mapping_file: there is a label_mapping as well; keep one of the two")
    if problems:
        raise RecipeError("The evaluation asks for what eval does not do.", problems=tuple(problems))


def _at(section: Eval, path: str) -> object:
    value: object = section
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _task(built: BuiltModel, section: Eval) -> str:
    said = section.task or built.task
    known = ", ".join(TASKS)
    if said is None:
        raise UsageError(
            f"What is {built.name} for? Nobody says.", advice=f"Give --task, one of: {known}; or --mode compare."
        )
    task = EVALUATED_AS.get(said, said)
    if task not in TASKS:
        raise UsageError(
            f"There are no metrics for {said}.", advice=f"Give --task, one of: {known}; or --mode compare."
        )
    return task


def _fields(built: BuiltModel, request: EvaluationRequest, task: str | None, data: Source | None) -> EvaluateFields:
    section, dataset = request.section, request.section.dataset
    said = section.task or built.task or ""
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
        classifies=task is None and said.endswith(CLASSIFYING_TASKS),
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


def _input_data(section: Eval, base: Path) -> Source:
    assert section.input_data is not None
    if section.dataset.path is not None:
        raise RecipeError("eval.input_data and eval.dataset.path name two sets of data. Keep one of them.")
    return calibration_source(resolve_path(base, section.input_data), "eval.input_data")


def _data(request: EvaluationRequest) -> Source | None:
    """Return the files of the data set: a file, a folder of files, a folder with splits, or a data set of the hub."""
    dataset = request.section.dataset
    if dataset.path is None:
        return None
    path = resolve_path(request.base, dataset.path)
    # winml-cli writes the default split, so the default is accepted for data without splits.
    asks_for_split = dataset.name is not None or dataset.split != Dataset().split
    if path.is_file() and asks_for_split:
        field = _ASKER.split if dataset.name is None else _ASKER.subset
        raise UsageError(f"{field}: a file has no splits or subsets, and {path} is one.", advice="Leave it out.")
    if path.is_file() or (path.is_dir() and not asks_for_split and not has_splits(path)):
        source = calibration_source(path, _ASKER.name)
    elif not path.exists() and (is_path_like(dataset.path) or kind_of(dataset.path)):
        raise InputError(f"{_ASKER.name}: {path} does not exist.", advice="Check the path, or give a hub id.")
    else:
        found = find_dataset(
            dataset.path,
            request.base,
            dataset.name,
            dataset.split,
            revision=dataset.revision,
            asker=_ASKER,
            download=request.download,
        )
        source = data_source(found.files, f"{_ASKER.name}: {dataset.path}")
    require_packages(str(kind_of(source.files[0].name)))
    return source


def _processor(built: BuiltModel, request: EvaluationRequest, data: Source, task: str | None) -> Source | None:
    """Return tokenizer, image processor and class names of the named model folder, else of the model's source.

    None if neither is available.
    """
    named = request.section.model_id
    if named is None and task is None and kind_of(data.files[0].name) in ("npz", "npy"):
        return None
    return processor_of(built, named, request.base, download=request.download)


def _reference(built: BuiltModel, request: EvaluationRequest, store: Store) -> OnnxFile | StoredModel | None:
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


def _notices(request: EvaluationRequest, target: Target, reference: OnnxFile | StoredModel | None) -> Iterator[str]:
    if reference is None and request.has_reference:
        yield "No float model is at hand, so nothing says what the precision has cost. Give one with --reference."
    if is_emulated(target):
        yield "QNN's NPU is emulated on this processor: what is measured is the emulator's arithmetic, and slow."


# Metrics of outputs for which larger is better.
_OF_OUTPUTS = ("cosine", "cosine_min", "sqnr_db")
AGREEMENTS = ("top1", "top5", "exact")


def evaluated_json(
    plan: EvaluationPlan, done: Measurement, folder: Path | None, bounds: Mapping[str, float]
) -> JsonObject:
    """Return the full report: what was evaluated, with what, the results, and where the report was written."""
    keeps = kept(bounds, done)
    found = figures(done)
    return {
        "success": all(keeps.values()),
        "model": str(plan.built.model.path),
        "precision": plan.built.precision,
        "reference": None if plan.reference is None else str(plan.reference.path),
        "measured": done.freshness,
        "made_at": done.made_at,
        "elapsed_seconds": round(done.elapsed_seconds, 3),
        **report_of(done),
        "bounds": {
            name: {"at_least": bound, "found": _finite(found[name]), "kept": keeps[name]}
            for name, bound in bounds.items()
        },
        "notices": list(notices_of(plan, done)),
        "toolchain": done.toolchain,
        "report": None if folder is None else str(folder / REPORT_FILE),
    }


def eval_result(plan: EvaluationPlan, done: Measurement) -> EvalResult:
    """Return the result of *done*, the evaluation of *plan*, which succeeded."""
    from winml_dag.onnxmodel.compare import Agreement
    from winml_dag.stages.evaluate.metrics import Difference, Estimate

    def estimate(value: Any) -> Estimate:
        return Estimate(value["value"], value["low"], value["high"], value["interval"])

    def difference(value: Any) -> Difference:
        return Difference(value["value"], value["low"], value["high"], value["significant"], value["p_value"])

    found: Any = report_of(done)
    metrics = {
        name: MetricResult(
            estimate(one["candidate"]),
            None if one["reference"] is None else estimate(one["reference"]),
            None if one["difference"] is None else difference(one["difference"]),
        )
        for name, one in found.get("metrics", {}).items()
    }
    outputs = {
        name: OutputResult(**{**one, **{each: one[each] and Agreement(**one[each]) for each in AGREEMENTS}})
        for name, one in found.get("outputs", {}).items()
    }
    return EvalResult(
        cached=not done.is_live,
        made_at=done.made_at,
        mode=found["mode"],
        task=plan.task,
        samples=found["samples"],
        of=found["of"],
        metrics=metrics,
        outputs=outputs,
        full_texts=found.get("full_texts", 0),
        notices=plan.notices,
        report=done.report,
    )


def kept(bounds: Mapping[str, float], done: Measurement) -> dict[str, bool]:
    """Return whether the model meets each of *bounds*. An undefined value meets none; an infinite ratio meets all."""
    found = figures(done)
    return {name: (value := found[name]) is not None and value >= bound for name, bound in bounds.items()}


def figures(done: Measurement) -> dict[str, float | None]:
    """Return the values that bounds apply to: the metrics of a task, or the worst value over all outputs."""
    found: Any = report_of(done)
    if "metrics" in found:
        return {name: metric["candidate"]["value"] for name, metric in found["metrics"].items()}
    outputs = found["outputs"].values()
    worst: dict[str, float | None] = {}
    for name in _OF_OUTPUTS:
        values = [_ratio(output) if name == "sqnr_db" else output[name] for output in outputs]
        worst[name] = min((value for value in values if value is not None), default=None)
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
    report: JsonObject = found
    return report


def notices_of(plan: EvaluationPlan, done: Measurement) -> Iterator[str]:
    yield from plan.notices
    full: Any = done.metrics.get("full_texts")
    if full:
        yield (
            f"{counted(full, 'text')} {'fills' if full == 1 else 'fill'} the model's input to its last token; what was"
            " longer has been cut."
        )


def _ratio(output: Any) -> float:
    """Return the ratio; without noise it is infinite, which JSON cannot represent."""
    ratio = output["sqnr_db"]
    if ratio is None:
        return float("inf") if output["cosine"] == 1 else float("-inf")
    return float(ratio)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
