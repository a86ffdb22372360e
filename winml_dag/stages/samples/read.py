"""Samples from the files that a stage was given, whatever kind of data they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.stages.quality import RANDOM
from winml_dag.stages.ranges import Provenance, Ranges
from winml_dag.stages.samples import SUFFIXES, TABLES, Columns, kind_of
from winml_dag.stages.samples.arrays import npy_samples, npz_samples
from winml_dag.stages.samples.processor import Processor
from winml_dag.stages.samples.samples import Fed, Feed, Samples, random_samples


@dataclass(frozen=True)
class Given:
    """Samples to validate on, and the field of a recipe that they come from.

    ``ranges``: where those come from that the model has; None where nobody says, or where it has none, which is
    ``calibrated``.
    """

    fed: Fed
    source: str
    calibrated: bool = False
    ranges: Provenance | None = None

    @property
    def samples(self) -> Samples:
        return self.fed.samples

    @property
    def held_out(self) -> bool | None:
        """Whether calibration has seen none of the samples, by their contents; None where that is not known. It is as
        soon as they have been read.
        """
        if not self.calibrated or self.samples.kind == RANDOM:
            return True
        if self.ranges is None or (self.ranges.data != RANDOM and not self.ranges.seen):
            return None
        return not {*self.ranges.seen} & {*self.fed.each}

    def __str__(self) -> str:
        return f"{self.samples.count} {self.samples.kind} sample{'s' * (self.samples.count != 1)}"


def samples_of(
    workspace: Workspace, inputs: Sequence[InputSpec], columns: Columns | None, *, slot: str = "data"
) -> Samples:
    """Of the stage's input *slot*, with what its input ``processor`` holds.

    Raises:
        StageError: as :func:`read_samples`.
    """
    processor = workspace.inputs["processor"] if workspace.has("processor") else None
    mapping = {} if columns is None else columns.columns_mapping
    return read_samples(workspace.inputs[slot], inputs, processor, mapping)


def samples_to_validate(
    workspace: Workspace,
    inputs: Sequence[InputSpec],
    columns: Columns | None,
    *,
    count: int | None,
    seed: int | None,
    calibrated: bool,
) -> Given:
    """*count* samples: the first ones of the stage's input ``input_data`` (None: all); without it, those that
    calibration leaves of its input ``data``; without both, random ones from *seed*. *calibrated*: whether the model has
    ranges, which may be those in the stage's input ``ranges``.

    Raises:
        StageError: as :func:`read_samples`.
    """
    if workspace.has("input_data"):
        with _named("validate.input_data"):
            samples = samples_of(workspace, inputs, columns, slot="input_data").first(count)
        samples, source = replace(samples, read=_reading(samples)), "validate.input_data"
    elif workspace.has("data"):
        assert count is not None
        samples, source = samples_of(workspace, inputs, columns).held_out(count), "quant.calibration_data"
    else:
        assert count is not None
        assert seed is not None
        samples, source = random_samples(inputs, count, seed, "uniform", purpose="validate"), "validate.seed"
    ranges = Ranges.read(workspace.input_file("ranges", ".json")) if workspace.has("ranges") else None
    return Given(Fed(samples), source, calibrated, None if ranges is None else ranges.provenance)


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Complaints about data begin with the *field* that it comes from."""
    try:
        yield
    except StageError as error:
        raise StageError(f"{field}: {error.message}", advice=error.advice) from error


def _reading(samples: Samples) -> Callable[[Sequence[int]], Iterator[Feed]]:
    """How *samples* are read, which is when they are run."""

    def read(numbers: Sequence[int]) -> Iterator[Feed]:
        feeds = samples.read(numbers)
        while True:
            with _named("validate.input_data"):
                feed = next(feeds, None)
            if feed is None:
                return
            yield feed

    return read


def read_samples(
    folder: Path, inputs: Sequence[InputSpec], processor: Path | None, mapping: Mapping[str, str] | None = None
) -> Samples:
    """The data in *folder*, which is one of these:

    - one .npz file: arrays by input name, whose first axis counts the samples;
    - several .npz files, in the order of their names: one sample each;
    - .npy files: ``<input>.npy``, whose first axis counts the samples, or a folder ``<input>`` with one file a sample;
    - .txt files: one text a line, for the tokenizer in *processor*;
    - images, for the image processor in *processor*;
    - tables (parquet, Arrow, JSON, CSV), each row a sample, whose columns *mapping* tells apart.

    Raises:
        StageError: when there is no data, or it does not fit the model's inputs.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    kinds = {kind_of(path.name) for path in files}
    if len(kinds) != 1 or None in kinds:
        found = ", ".join(sorted({path.suffix.lower() for path in files}))
        known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
        raise StageError(
            f"Data must be files of one kind ({known}), but there is: {found}."
            if files
            else "There is no file in the data.",
        )
    samples = _samples(kinds.pop() or "", folder, files, inputs, Processor(processor, inputs), mapping or {})
    if not samples.count:
        raise StageError("There is no sample in the data.")
    return samples


def _samples(
    kind: str,
    folder: Path,
    files: Sequence[Path],
    inputs: Sequence[InputSpec],
    processor: Processor,
    mapping: Mapping[str, str],
) -> Samples:
    if kind == "npz":
        return npz_samples(files, inputs)
    if kind == "npy":
        return npy_samples(folder, files, inputs)
    if kind == "text":
        from winml_dag.stages.samples.text import text_samples

        return text_samples(files, inputs, processor)
    if kind == "images":
        from winml_dag.stages.samples.images import image_samples

        return image_samples(folder, files, inputs, processor)
    assert kind in TABLES
    from winml_dag.stages.samples.dataset import dataset_samples

    return dataset_samples(files, inputs, processor, mapping)
