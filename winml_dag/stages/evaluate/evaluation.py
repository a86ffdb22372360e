"""The work of the evaluate stage: run both models on the same samples and compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from winml_dag.canonical import JsonObject, canonical_json
from winml_dag.engine.stage import Workspace
from winml_dag.ep.registry import CPU, Target
from winml_dag.ep.session import assigned_nodes, create_session
from winml_dag.errors import StageError
from winml_dag.onnxmodel.compare import class_scores
from winml_dag.onnxmodel.feeds import inputs_of_both, model_inputs
from winml_dag.onnxmodel.inspect import TensorSpec, inspect_model
from winml_dag.stages.evaluate import REPORT_FILE, EvaluateConfig, EvaluateFields
from winml_dag.stages.evaluate.cases import Given, Labels, Task
from winml_dag.stages.evaluate.classes import Classification
from winml_dag.stages.evaluate.metrics import Metric, Outcomes, difference, estimate
from winml_dag.stages.evaluate.rows import FeatureSimilarity, QuestionAnswering, TokenClassification
from winml_dag.stages.figures import OutputFigures
from winml_dag.stages.pair import Batching, Pair
from winml_dag.stages.samples import Columns
from winml_dag.stages.samples.processor import Processor
from winml_dag.stages.samples.read import samples_of
from winml_dag.stages.samples.samples import Feed, chosen_numbers, random_samples

if TYPE_CHECKING:
    import onnxruntime


@dataclass(frozen=True)
class Model:
    """One of the models of an evaluation; ``outputs``: with the shapes in the file."""

    file: Path
    session: onnxruntime.InferenceSession
    batching: Batching
    outputs: tuple[TensorSpec, ...]

    @classmethod
    def load(cls, file: Path, target: Target, options: Mapping[str, str], fields: EvaluateFields) -> Model:
        """Load the model. Raises StageError if that fails, or if its batch size does not fit *fields*."""
        session = create_session(file, target, options)
        batching = Batching.of(session, fields.batch_size, whole=fields.mode == "compare")
        return cls(file, session, batching, tuple(inspect_model(file).outputs))


def compare_models(
    fields: EvaluateFields, workspace: Workspace, candidate: Model, reference: Model, inputs: Sequence[TensorSpec]
) -> JsonObject:
    """Return metrics of every output, over all samples of the stage's input ``data``, or over random ones.

    Raises StageError if the outputs differ in names or shapes, or the data does not fit.
    """
    pair = Pair(reference.session, candidate.session, fields.batch_size, "eval.input_data")
    of = None
    if workspace.has("data"):
        every = samples_of(workspace, inputs, Columns(fields.columns_mapping))
        samples, of = every.choose(chosen_numbers(every.count, fields.samples, fields.seed)), every.count
    else:
        samples = random_samples(inputs, fields.samples, fields.seed or 0, "uniform", purpose="evaluate")
    measured = pair.measure(samples, class_scores(pair.names, classifies=fields.classifies), workspace.progress)
    return {
        "data": samples.kind,
        "samples": samples.count,
        "of": of,
        "outputs": {
            name: {**_output_json(figures), "reference_nan_count": measured.reference[name].nan}
            for name, figures in zip(pair.names, measured.outputs, strict=True)
        },
    }


def _output_json(figures: OutputFigures) -> JsonObject:
    agreements = {"top1": figures.top1, "top5": figures.top5, "exact": figures.exact}
    return {
        "cosine": figures.cosine,
        "cosine_min": figures.lowest_cosine,
        "sqnr_db": figures.sqnr_db,
        "max_abs_error": None if figures.read.inf_count or figures.read.nan_count else figures.max_abs_error,
        "nan_count": figures.whole.nan_count,
        "inf_count": figures.whole.inf_count,
        **{
            name: found if found is None else {"agreed": found.agreed, "of": found.of}
            for name, found in agreements.items()
        },
    }


_TASKS: Mapping[str, type[Task]] = {
    "text-classification": Classification,
    "image-classification": Classification,
    "token-classification": TokenClassification,
    "question-answering": QuestionAnswering,
    "feature-similarity": FeatureSimilarity,
}


def run(config: EvaluateConfig, workspace: Workspace) -> JsonObject:
    """Run ``model`` on its target and ``reference``, if given, on the CPU; write ``evaluation.json``.

    Raises:
        StageError: a model does not load or run, the data does not fit it or lacks a column, or a label is unknown.
    """
    fields = config.eval
    target = config.target.resolve()
    candidate = Model.load(workspace.input_file("model", ".onnx"), target, config.target.provider_options, fields)
    reference = None
    if workspace.has("reference"):
        file = workspace.input_file("reference", ".onnx")
        reference = Model.load(file, Target(CPU, "cpu"), {}, fields)
    inputs = model_inputs(candidate.file) if reference is None else inputs_of_both(reference.file, candidate.file)
    if fields.mode == "compare":
        if reference is None:
            raise StageError("There is no reference to compare with.", advice="Give one (--reference FLOAT.onnx).")
        found = compare_models(fields, workspace, candidate, reference, inputs)
    else:
        found = _evaluate(fields, workspace, candidate, reference, inputs)
    report: JsonObject = {
        "format": 1,
        "mode": fields.mode,
        "execution_provider": target.ep.name,
        "device": target.device,
        # The CPU has nothing to report here, and the names of its fused operators depend on the processor.
        "assigned_nodes": assigned_nodes(candidate.session) if target.ep != CPU else {},
        "seed": fields.seed,
        **found,
    }
    (workspace.outputs["report"] / REPORT_FILE).write_text(
        canonical_json(report) + "\n", encoding="utf-8", newline="\n"
    )
    return report


def _evaluate(
    fields: EvaluateFields,
    workspace: Workspace,
    candidate: Model,
    reference: Model | None,
    inputs: Sequence[TensorSpec],
) -> JsonObject:
    """Return the metrics of a task, of both models on the same samples."""
    models = [candidate] if reference is None else [candidate, reference]
    for model in models:
        inputs = model.batching.of_one(inputs)
    processor = workspace.inputs["processor"] if workspace.has("processor") else None
    labels = Labels.of(fields.label_mapping, processor)
    given = Given(fields, workspace.inputs["data"], Processor(processor, inputs), inputs, candidate.outputs, labels)
    task = _TASKS[str(fields.task)](given)
    of, cases, full = len(task.chosen), task.cases(), 0
    if not of:
        raise StageError("There is no sample in the data.")
    outcomes: list[list[Sequence[float]]] = [[] for _ in models]
    cuts = _cuts_texts(fields, inputs)
    while chunk := list(islice(cases, max(model.batching.size for model in models))):
        workspace.progress(len(outcomes[0]), of, "samples")
        feeds = [feed for case in chunk for feed in case.feeds]
        for model, into in zip(models, outcomes, strict=True):
            results = model.batching.run(model.session, task.outputs, feeds)
            named = (dict(zip(task.outputs, values, strict=True)) for values in results)
            into.extend(case.judge(list(islice(named, len(case.feeds)))) for case in chunk)
        full += sum(_is_full(feed) for feed in feeds) if cuts else 0
    workspace.progress(of, of, "samples")
    return {
        "task": fields.task,
        "data": task.kind,
        "samples": of,
        "of": task.count,
        "full_texts": full,
        "metrics": _judged(task.metrics, [np.asarray(rows, np.float64) for rows in outcomes]),
    }


def _cuts_texts(fields: EvaluateFields, inputs: Sequence[TensorSpec]) -> bool:
    """Return whether texts that are too long are cut; questions are split into windows instead."""
    mask = next((spec for spec in inputs if spec.name == "attention_mask"), None)
    return mask is not None and isinstance(mask.shape[-1], int) and fields.task != "question-answering"


def _is_full(feed: Feed) -> bool:
    """Return whether a text fills the model's input to the last position, and so may have been cut."""
    mask = feed.get("attention_mask")
    return mask is not None and bool((mask != 0).all())


def _judged(metrics: Sequence[Metric], outcomes: Sequence[Outcomes]) -> JsonObject:
    """Return each metric of the candidate, of the reference, and their difference; null without a reference."""
    candidate, *others = outcomes
    reference = others[0] if others else None
    return {
        metric.name: {
            "candidate": estimate(metric, candidate).to_json(),
            "reference": None if reference is None else estimate(metric, reference).to_json(),
            "difference": None if reference is None else asdict(difference(metric, candidate, reference)),
        }
        for metric in metrics
    }
