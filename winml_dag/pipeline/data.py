"""The data that a build is calibrated with and validated on: the user's, random data, or a file of ranges."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.engine.stage import Skip, Source, SourceFile
from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.file_reading import before_reading, before_reading_folders, read_json
from winml_dag.installed import distribution_version
from winml_dag.names import KEPT, is_safe_part
from winml_dag.pipeline.model import Model, ModelFolder, find_processor_folder
from winml_dag.recipe.fields import resolve_path
from winml_dag.recipe.schema import Quant
from winml_dag.stages import artifact_types
from winml_dag.stages.samples import IMAGE_COLUMN, SUFFIXES, TABLES, TEXT_COLUMNS, kind_of

if TYPE_CHECKING:
    from winml_dag.pipeline.decisions import ResolveContext

# Packages that read each kind of data, and the extra that installs them.
_PACKAGES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "text": (("transformers", "tokenizers", "sentencepiece"), "hf"),
    "images": (("transformers", "pillow"), "hf"),
    "parquet": (("pyarrow",), "datasets"),
    "arrow": (("pyarrow",), "datasets"),
}
_OPTIONAL = ("sentencepiece",)
# Tables next to other kinds of data, which describe it.
_ABOUT_OTHERS = ("json", "csv")

# Usual column names of data sets for a task, where they are not text and image.
_COLUMNS_OF_TASKS: Mapping[str, Mapping[str, str]] = {
    "question-answering": {"text": "question", "text_pair": "context"},
}

# These need calibration, so they conflict with ranges from a file. Data does not: it is used for validation.
_OF_CALIBRATION = ("save_calibration", "calibration_save_path")


# Fields that name data or describe how to read it.
_OF_DATA = {
    "calibration_data",
    "dataset_name",
    "dataset_subset",
    "dataset_split",
    "columns_mapping",
    "task",
    "model_id",
}


@dataclass(frozen=True)
class Data:
    """The data of a build; all None for random data.

    Attributes:
        data: arrays, texts, images or tables; ``processor`` converts all except arrays to inputs.
        columns: for tables, the meaning of each column; None for other data.
        ranges: a file of ranges that replaces calibration; data is still used for validation.
        save_path: where to write the ranges, relative to the recipe's folder; None for nowhere.
        looked_at: files and folders that decided the choice of these files.
    """

    data: Source | None = None
    processor: Source | None = None
    columns: Mapping[str, str] | None = None
    ranges: Source | None = None
    save_path: str | None = None
    looked_at: tuple[Path, ...] = ()


def find_calibration(context: ResolveContext, model: Model, quant: Quant, task: str | None) -> Data:
    """Find the files that *quant* names, reading only a data set's card and the head of a file of ranges.

    Raises:
        RecipeError: for settings that contradict each other.
        InputError: for a missing file.
        UsageError: for a missing package.
    """
    static = quant.mode == "static"
    ranges = _ranges(context, quant) if static and quant.calibration_load_path is not None else None
    save_path = _save_path(quant.calibration_save_path) if static and quant.calibration_save_path else None
    data, looked_at = _data(context, quant)
    found = Data() if data is None else _described(context, model, quant, task, data)
    seen = () if ranges is None else tuple(file.path for file in ranges.files)
    return replace(found, ranges=ranges, save_path=save_path, looked_at=(*looked_at, *seen, *found.looked_at))


def find_validation_data(context: ResolveContext, model: Model, quant: Quant | None, task: str | None) -> Data:
    """Find the files that ``validate.input_data`` names, without reading them.

    Raises:
        InputError: for a missing file.
        UsageError: for a missing package or processor.
    """
    wanted = context.recipe.validation
    if wanted.input_data is None or not_validated(context) is not None:
        return Data()
    path = resolve_path(context.base, wanted.input_data)
    data = replace(calibration_source(path, "validate.input_data"), name="validation data")
    # This section names the processor and the columns, even for a model that is not quantized.
    found = _described(context, model, quant or context.recipe.quant or Quant(), task, data)
    return replace(found, looked_at=(*before_reading_folders(path), *found.looked_at))


def not_validated(context: ResolveContext) -> Skip | None:
    """Return why validation is skipped; None if it is not."""
    section = context.recipe.compile
    if context.overrides.validate is not None:
        return None if context.overrides.validate else Skip("--no-validate was given")
    if not context.recipe.validation.enabled:
        return Skip("validate.enabled is false")
    return Skip("compile.validate is false") if section is not None and not section.validation else None


def _described(context: ResolveContext, model: Model, quant: Quant, task: str | None, data: Source) -> Data:
    """Return *data* with what makes inputs of it."""
    kind = str(kind_of(data.files[0].name))
    require_packages(kind)
    columns = columns_of(quant, task) if kind in TABLES else None
    folder = _processor_of(context, model, quant, kind, columns)
    if folder is None:
        return Data(data, columns=columns)
    return Data(data, folder.processor_source(), columns, looked_at=folder.looked_at)


def data_of(section: Quant | None) -> Quant | None:
    """Return the data fields of *section*, for a build that validates but does not quantize; None without data."""
    if section is None or (section.calibration_data is None and section.dataset_name is None):
        return None
    return Quant.from_dict(section.model_dump(mode="json", include=_OF_DATA, exclude_unset=True))


def packages_of(data: Source | None, processor: Source | None) -> Iterator[str]:
    """Yield the packages that convert *data* to numbers, other than those that every calibration needs."""
    if data is None:
        return
    kind = str(kind_of(data.files[0].name))
    kinds_read = (kind, "text", "images") if kind in TABLES and processor is not None else (kind,)
    for name in kinds_read:
        yield from _PACKAGES.get(name, ((), ""))[0]


def require_packages(kind: str) -> None:
    """Raise UsageError when a package that reads data of *kind* is not installed."""
    packages, extra = _PACKAGES.get(kind, ((), ""))
    for name in packages:
        if name not in _OPTIONAL and distribution_version(name) is None:
            raise UsageError(
                f"Data of this kind ({kind}) needs {name}, which is not installed.",
                advice=f"pip install winml_dag[{extra}]",
            )


def _ranges(context: ResolveContext, quant: Quant) -> Source:
    path = resolve_path(context.base, str(quant.calibration_load_path))
    if others := [name for name in _OF_CALIBRATION if getattr(quant, name) not in (None, False)]:
        raise RecipeError(
            f"quant.calibration_load_path and quant.{others[0]} contradict each other: with ranges from a file, nothing"
            " is calibrated. Keep one of them."
        )
    if not path.is_file():
        raise InputError(
            f"quant.calibration_load_path: {path} is not a file.",
            advice="Give a file that calibration_save_path or save_calibration has put there.",
        )
    for name, found in _found_with(path).items():
        value = getattr(quant, name)
        if name in quant.model_fields_set and value not in (None, found):
            raise RecipeError(
                f"quant.{name} is {value}, but the ranges in {path} were found with "
                f"{'data and no seed' if found is None else found}. "
                f"Calibrate again, or remove {name}."
            )
    return Source("activation ranges", artifact_types.RANGES, (SourceFile(artifact_types.RANGES_FILE, path),))


def _found_with(path: Path) -> Mapping[str, object]:
    """Return the settings, by field of ``quant``, that the ranges in the file *path* were made with."""
    before_reading(path)
    try:
        ranges = read_json(path)
        came = ranges["from"]
        found = {"calibration_method": str(ranges["method"]), "seed": came["seed"]}
        # Real data has no distribution, but a fully written recipe still names one.
        return found if came["distribution"] is None else {**found, "distribution": came["distribution"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        from winml_dag.explanation import explanation

        raise InputError(
            f"quant.calibration_load_path: {path} has no activation ranges as calibrate writes them"
            f" ({explanation(error)}).",
            advice="Give a file that calibration_save_path or save_calibration has put there.",
        ) from error


def _save_path(text: str) -> str:
    """Return the normalized path; it must be in the recipe's folder, so that a recipe's files stay together."""
    name = posixpath.normpath(text.replace("\\", "/"))
    problem = None
    if name.startswith(("/", "~", "../")) or name in ("..", ".") or text.endswith("/"):
        problem = "a file in the recipe's folder is meant"
    elif unsafe := next((part for part in name.split("/") if not is_safe_part(part)), None):
        problem = f"{unsafe!r} is a name that not every system can have"
    elif name.casefold().split("/", 1)[0] == KEPT:
        problem = f"{KEPT} is where manifests are kept"
    if problem is not None:
        advice = "Give a path such as calibration/ranges.json."
        raise RecipeError(f"quant.calibration_save_path: {text}: {problem}. {advice}")
    return name


def _data(context: ResolveContext, quant: Quant) -> tuple[Source | None, tuple[Path, ...]]:
    if quant.dataset_name is not None:
        if quant.calibration_data is not None:
            raise RecipeError("quant.calibration_data and quant.dataset_name name two sets of data. Keep one of them.")
        from winml_dag.pipeline.hub import WantedData, find_dataset

        wanted = WantedData(quant.dataset_name, quant.dataset_subset, quant.dataset_split)
        found = find_dataset(wanted, context.base, download=context.download)
        return data_source(found.files, f"quant.dataset_name: {quant.dataset_name}"), found.looked_at
    if quant.calibration_data is None:
        return None, ()
    path = resolve_path(context.base, quant.calibration_data)
    return calibration_source(path), tuple(before_reading_folders(path))


def columns_of(quant: Quant, task: str | None) -> Mapping[str, str]:
    """Return the meaning of a table's columns: from *quant*, else the usual names of data sets for *task*."""
    return dict(quant.columns_mapping) or dict(_COLUMNS_OF_TASKS.get(quant.task or task or "", {}))


def _processor_of(
    context: ResolveContext, model: Model, quant: Quant, kind: str, columns: Mapping[str, str] | None
) -> ModelFolder | None:
    """Return the folder whose tokenizer and image processor are used for data of *kind*; None if none is needed.

    Raises:
        UsageError: when one is required and the model has none.
        InputError: when it is missing.
    """
    needed = kind in ("text", "images") or bool({*TEXT_COLUMNS, IMAGE_COLUMN} & (columns or {}).keys())
    if not needed and kind not in TABLES:
        return None
    if quant.model_id is not None:
        return find_processor_folder(quant.model_id, context.base, download=context.download)
    if model.folder is None and needed:
        what = "an image processor" if kind == "images" else "a tokenizer"
        raise UsageError(
            f"This data ({kind}) needs {what}, and the model comes without.",
            advice="Set quant.model_id to a model folder or hub id that has one, or give arrays (.npz).",
        )
    return model.folder


# --- The files of data that a user names.


def calibration_source(path: Path, field: str = "quant.calibration_data") -> Source:
    """Return a data file, or every data file in a folder; *field* is the setting that names it.

    Raises:
        InputError: when there is none.
    """
    before_reading_folders(path)  # log these reads before the entries are listed
    files = tuple(_data_files(path))
    if not files:
        what = "has no data files" if path.is_dir() else "is not a data file" if path.exists() else "does not exist"
        known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
        raise InputError(f"{field}: {path} {what} ({known}).")
    return data_source(files, f"{field}: {path}")


def data_source(files: Sequence[SourceFile], named: str) -> Source:
    """Return *files*, which must be of one kind, as data; *named* identifies them in errors.

    JSON and CSV tables next to other kinds of data describe that data (``metadata.csv``), and are skipped.

    Raises:
        InputError: when they are of several kinds.
    """
    found = {file: str(kind_of(file.name)) for file in files}
    chosen = set(found.values()) - set(_ABOUT_OTHERS) or set(found.values())
    if len(chosen) > 1:
        raise InputError(
            f"{named} has files of several kinds: {', '.join(sorted(chosen))}.",
            advice="Put those of one kind into a folder of their own.",
        )
    kept = tuple(file for file, kind in found.items() if kind in chosen)
    return Source("calibration data", artifact_types.CALIBRATION_DATA, kept)


def _data_files(path: Path) -> Iterator[SourceFile]:
    if path.is_dir():
        inside = sorted(entry for entry in path.rglob("*") if kind_of(entry.name) is not None and entry.is_file())
        yield from (SourceFile(entry.relative_to(path).as_posix(), entry) for entry in inside)
    elif path.is_file() and kind_of(path.name) is not None:
        # The name of a single file has no meaning: with a fixed name, renaming it changes no key. But an array has the
        # name of its input.
        suffix = path.suffix.lower()
        yield SourceFile(path.name if suffix == ".npy" else f"data{suffix}", path)
