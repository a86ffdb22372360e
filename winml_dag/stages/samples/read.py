"""Samples from the files of a stage's input, whatever kind of data they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError, stage_errors_of
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.quality import RANDOM
from winml_dag.stages.ranges import Provenance, Ranges
from winml_dag.stages.samples import IMAGE_COLUMN, SUFFIXES, TEXT_COLUMNS, Columns, kind_of
from winml_dag.stages.samples.arrays import npy_samples, npz_samples
from winml_dag.stages.samples.processor import Processor
from winml_dag.stages.samples.samples import Fed, Feed, Samples, random_samples
from winml_dag.stages.samples.tables import chosen_rows, read_tables

# Samples from table rows: maps columns to inputs, directly or through the model's processor.

_MAP = "Set columns_mapping, such as {{text: {0}}}: the model's inputs, text, text_pair or image -> a column."


def dataset_samples(files: Sequence[Path], processor: Processor, mapping: Mapping[str, str]) -> Samples:
    """Return a sample for each row; of text files, for each non-blank line.

    Raises:
        StageError: a file cannot be read, columns are missing, or they do not result in the model's inputs.
    """
    table, is_text = read_tables(files), kind_of(files[0].name) == "text"
    if not table.count:
        raise StageError("There is no sample in the data.")
    roles = {"text": "text"} if is_text else _roles(table.columns, processor.inputs, mapping)
    columns = sorted(set(roles.values()))

    def read(numbers: Sequence[int]) -> Iterator[Feed]:
        for number, row in chosen_rows(table, numbers, columns):
            where = f"the text {row['text'][:40]!r}" if is_text else f"row {number}"
            yield processor.feed({role: row[column] for role, column in roles.items()}, where)

    return Samples("text" if is_text else "dataset", range(table.count), read)


def _roles(columns: Sequence[str], inputs: Sequence[TensorSpec], mapping: Mapping[str, str]) -> Mapping[str, str]:
    """Return the columns by role."""
    known = [*(spec.name for spec in inputs), *TEXT_COLUMNS, IMAGE_COLUMN]
    if unknown := sorted(mapping.keys() - set(known)):
        raise StageError(
            f"columns_mapping: {unknown[0]!r} is neither an input of the model nor text, text_pair or image.",
            advice=f"Known are: {', '.join(known)}.",
        )
    if missing := sorted(set(mapping.values()) - set(columns)):
        raise StageError(
            f"columns_mapping: the data has no column {missing[0]!r}.", advice=f"It has: {', '.join(columns)}."
        )
    # text_pair must be requested: a second text is not added only because a column has that name.
    names = [name for name in known if name in columns and name != "text_pair"]
    roles = mapping or {name: name for name in names}
    if not roles:
        raise StageError(
            f"None of the columns of the data ({', '.join(columns)}) is called like an input of the model,"
            " text or image.",
            advice=_MAP.format(columns[0] if columns else "sentence"),
        )
    return roles


@dataclass(frozen=True)
class ValidationSamples:
    """Samples to validate on, and the recipe field that they come from.

    ``calibrated``: whether the model has ranges. ``ranges``: where those come from; None if unknown or if it has none.
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
        """Whether calibration has seen none of the samples, by their contents; None if unknown.

        It is determined once the samples have been read.
        """
        if not self.calibrated or self.samples.kind == RANDOM:
            return True
        if self.ranges is None or (self.ranges.data != RANDOM and not self.ranges.seen):
            return None
        return not {*self.ranges.seen} & {*self.fed.each}

    def __str__(self) -> str:
        return f"{self.samples.count} {self.samples.kind} sample{'s' * (self.samples.count != 1)}"


def samples_of(
    workspace: Workspace, inputs: Sequence[TensorSpec], columns: Columns | None, *, slot: str = "data"
) -> Samples:
    """Call :func:`read_samples` on the stage's input *slot*, with the processor in its input ``processor``."""
    processor = workspace.inputs["processor"] if workspace.has("processor") else None
    mapping = {} if columns is None else columns.columns_mapping
    return read_samples(workspace.inputs[slot], inputs, processor, mapping)


def samples_to_validate(
    workspace: Workspace,
    inputs: Sequence[TensorSpec],
    columns: Columns | None,
    *,
    count: int | None,
    seed: int | None,
    calibrated: bool,
) -> ValidationSamples:
    """Return *count* samples for validation.

    They are the first ones of the stage's input ``input_data`` (None: all); without it, those of its input ``data``
    that calibration does not use; without both, random ones from *seed*. *calibrated*: whether the model has ranges,
    which may be those in the stage's input ``ranges``.

    Raises:
        StageError: as :func:`read_samples`.
    """
    if workspace.has("input_data"):
        source = "validate.input_data"
        with stage_errors_of(source):
            given = samples_of(workspace, inputs, columns, slot="input_data")

        def read(numbers: Sequence[int]) -> Iterator[Feed]:
            with stage_errors_of(source):
                yield from given.read(numbers)

        samples = Samples(given.kind, given.numbers[:count], read)
    elif workspace.has("data"):
        assert count is not None
        samples, source = samples_of(workspace, inputs, columns).held_out(count), "quant.calibration_data"
    else:
        assert count is not None
        assert seed is not None
        samples, source = random_samples(inputs, count, seed, "uniform", purpose="validate"), "validate.seed"
    ranges = Ranges.read(workspace.input_file("ranges", ".json")) if workspace.has("ranges") else None
    return ValidationSamples(Fed(samples), source, calibrated, None if ranges is None else ranges.provenance)


def read_samples(
    folder: Path, inputs: Sequence[TensorSpec], processor: Path | None, mapping: Mapping[str, str] | None = None
) -> Samples:
    """Read the data in *folder*, which is one of these:

    - one .npz file: arrays by input name, whose first axis counts the samples;
    - several .npz files, in the order of their names: one sample each;
    - .npy files: ``<input>.npy``, whose first axis counts the samples, or a folder ``<input>`` with a file for each
      sample;
    - .txt files: one text a line, for the tokenizer in *processor*;
    - images, for the image processor in *processor*;
    - tables (parquet, Arrow, JSON, CSV), each row a sample, whose columns *mapping* assigns.

    Raises:
        StageError: there is no data, or it does not fit the model's inputs.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    kinds = {kind_of(path.name) for path in files}
    if len(kinds) != 1 or None in kinds:
        found = ", ".join(sorted({path.suffix.lower() for path in files}))
        known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
        raise StageError(
            f"Data must be files of one kind ({known}), but there is: {found}."
            if files
            else "There is no file in the data."
        )
    maker = Processor(processor, inputs)
    (kind,) = kinds
    if kind == "npz":
        samples = npz_samples(files, inputs)
    elif kind == "npy":
        samples = npy_samples(folder, files, inputs)
    elif kind == "images":
        names = [f"the file {file.relative_to(folder).as_posix()}" for file in files]
        samples = Samples.one_by_one(kind, len(files), lambda at: maker.feed({IMAGE_COLUMN: files[at]}, names[at]))
    else:
        samples = dataset_samples(files, maker, mapping or {})
    if not samples.count:
        raise StageError("There is no sample in the data.")
    return samples
