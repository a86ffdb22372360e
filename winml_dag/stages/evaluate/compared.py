"""A model beside a reference on the same inputs: no labels are needed, and every output counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.onnxmodel.compare import Agreement, class_scores
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.stages.evaluate import EvaluateFields
from winml_dag.stages.evaluate.model import Model
from winml_dag.stages.evaluate.rows import chosen_numbers
from winml_dag.stages.figures import Measuring, OutputFigures
from winml_dag.stages.pair import Odd
from winml_dag.stages.samples import Columns
from winml_dag.stages.samples.read import samples_of
from winml_dag.stages.samples.samples import Feed, Samples, random_samples


def compare_models(
    fields: EvaluateFields, workspace: Workspace, candidate: Model, reference: Model, inputs: Sequence[InputSpec]
) -> JsonObject:
    """Figures of every output, over all samples of the stage's input ``data``, or of as many random ones.

    Raises:
        StageError: when the outputs are not of the same names and shapes, or the data does not fit.
    """
    names = [output.name for output in reference.outputs]
    if set(names) != {output.name for output in candidate.outputs}:
        found = ", ".join(output.name for output in candidate.outputs)
        raise StageError(f"The model has the outputs {found}, but its reference has {', '.join(names)}.")
    samples, of = _samples(fields, workspace, inputs)
    measuring = Measuring(names, class_scores(names, classifies=fields.classifies))
    done, unknown = 0, dict.fromkeys(names, 0)
    for feeds in _chunks(samples, fields.batch_size):
        workspace.progress(done, samples.count, "samples")
        both = zip(reference.run(names, feeds), candidate.run(names, feeds), strict=True)
        for feed, (expected, got) in zip(feeds, both, strict=True):
            for name, *values in zip(names, expected, got, strict=True):
                if not all(isinstance(value, np.ndarray) for value in values):
                    raise StageError(f"Output {name!r} is no tensor, and only tensors can be compared.")
                unknown[name] += Odd.of(values[0]).nan
            measuring.add(feed, expected, got)
        done += len(feeds)
    workspace.progress(done, samples.count, "samples")
    return {
        "data": samples.kind,
        "samples": samples.count,
        "of": of,
        "outputs": {
            figures.read.name: {**_output_json(figures), "reference_nan_count": unknown[figures.read.name]}
            for figures in measuring.figures()
        },
    }


def _samples(fields: EvaluateFields, workspace: Workspace, inputs: Sequence[InputSpec]) -> tuple[Samples, int | None]:
    """Those to run, and of how many they are chosen; None for random ones."""
    if not workspace.has("data"):
        return random_samples(inputs, fields.samples, fields.seed or 0, "uniform", purpose="evaluate"), None
    every = samples_of(workspace, inputs, Columns(fields.columns_mapping))
    chosen = chosen_numbers(every.count, fields.samples, fields.seed)
    return Samples(every.kind, chosen, every.read), every.count


def _chunks(samples: Samples, size: int) -> Iterator[list[Feed]]:
    feeds = iter(samples)
    while chunk := list(islice(feeds, size)):
        yield chunk


def _output_json(figures: OutputFigures) -> JsonObject:
    agreements = {"top1": figures.top1, "top5": figures.top5, "exact": figures.exact}
    return {
        "cosine": figures.cosine,
        "cosine_min": figures.lowest_cosine,
        "sqnr_db": figures.sqnr_db,
        "max_abs_error": None if figures.read.inf_count or figures.read.nan_count else figures.max_abs_error,
        "nan_count": figures.whole.nan_count,
        "inf_count": figures.whole.inf_count,
        **{name: _agreement_json(found) for name, found in agreements.items()},
    }


def _agreement_json(found: Agreement | None) -> JsonObject | None:
    return None if found is None else {"agreed": found.agreed, "of": found.of}
