"""Data sets of the Hugging Face hub: which files of a folder form a subset and a split.

The choice depends only on file names and the data set's card. So the key has the content of the files that are read,
the hub's cache works offline, and no code of a data set runs: one that needs its own script is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winml_dag.engine.stage import SourceFile
from winml_dag.errors import InputError
from winml_dag.file_reading import before_reading, before_reading_folders
from winml_dag.pipeline import hub
from winml_dag.recipe.load import is_path_like, resolve_path
from winml_dag.stages.samples import kind_of

CARD = "README.md"

# Files next to the data that have the same suffixes.
_NO_DATA = re.compile(r"(.*/)?(dataset_infos?|dataset_dict|state|config|metadata)\.(json|jsonl|csv)|(.*/)?\..*")
# Words in file and folder names that identify a split if the card does not: the hub's own rules.
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"(?:.*/)?(?P<split>[\w.]+?)-(?P<number>\d{5})-of-(?P<count>\d{5})[-.\w]*")


@dataclass(frozen=True)
class Asker:
    """The fields that request a data set, for error messages; ``of_files`` is the field for files."""

    name: str = "quant.dataset_name"
    subset: str = "quant.dataset_subset"
    split: str = "quant.dataset_split"
    of_files: str = "quant.calibration_data"


CALIBRATION = Asker()


@dataclass(frozen=True)
class Dataset:
    """The files to read, and the paths that influenced the choice."""

    files: tuple[SourceFile, ...]
    looked_at: tuple[Path, ...]


def find_dataset(
    name: str,
    base: Path,
    subset: str | None,
    split: str,
    *,
    revision: str | None = None,
    asker: Asker = CALIBRATION,
    download: bool,
) -> Dataset:
    """Find the data set *name*: a folder (relative to *base*), else a hub id; *revision* is a branch, tag or commit.

    Raises:
        InputError: when it is neither local nor available on the hub, or lacks the subset or split.
    """
    path = resolve_path(base, name)
    before_reading(path)
    if path.is_dir():
        return _in_folder(name, path, subset, split, (), asker)
    if path.exists():
        raise InputError(f"{asker.name}: {path} is a file, not a data set.", advice=f"Give it as {asker.of_files}.")
    if is_path_like(name):
        raise InputError(
            f"{asker.name}: {path} does not exist.", advice="Check the path, or give a hub id such as org/name."
        )
    # A local folder of this name would take precedence over the hub, and the cached reference may move to another
    # commit.
    before = (path, hub.reference(name, revision, hub.DATASETS))
    found = hub.cached_snapshot(name, revision or "main", hub.DATASETS)
    if found is not None:
        try:
            return _in_folder(name, found, subset, split, before, asker)
        except InputError:
            if not download or hub.is_offline():
                raise
    folder = hub.dataset_snapshot(
        name,
        CARD,
        lambda names, card: choose_files(name, names, card, subset, split, asker),
        revision=revision,
        download=download,
    )
    return _in_folder(name, folder, subset, split, before, asker)


def has_splits(folder: Path) -> bool:
    """Whether *folder* has splits, according to its card or the names of its files."""
    names, card = _content(folder)
    return bool(_subsets(folder.name, card, CALIBRATION)) or len(_by_name(_data(names))) > 1


def _in_folder(
    name: str, folder: Path, subset: str | None, split: str, before: tuple[Path, ...], asker: Asker
) -> Dataset:
    folders = before_reading_folders(folder)
    names, text = _content(folder)
    files = tuple(SourceFile(file, folder / file) for file in choose_files(name, names, text, subset, split, asker))
    card = folder / CARD
    return Dataset(files, (*before, *folders, *((card,) if card.is_file() else ())))


def _content(folder: Path) -> tuple[list[str], str]:
    """Return the names of all files in *folder*, and the text of its card."""
    names = [entry.relative_to(folder).as_posix() for entry in sorted(folder.rglob("*")) if entry.is_file()]
    card = folder / CARD
    before_reading(card)
    return names, card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""


def choose_files(
    name: str, names: Iterable[str], card: str, subset: str | None, split: str, asker: Asker = CALIBRATION
) -> list[str]:
    """Return those of the files *names* that belong to a subset and split of data set *name*.

    The *card* decides, or else the file names.

    Raises:
        InputError: when there are none, or some are missing.
    """
    every = sorted(names)
    data = _data(every)
    if not data:
        script = any(file.endswith(".py") for file in every)
        raise InputError(
            f"{asker.name}: {name} has no data files"
            + (", only a script that makes them, and the scripts of data sets are never run." if script else "."),
            advice="Give a data set in parquet, JSON, CSV, text or image files.",
        )
    chosen_subset = _subset(name, _subsets(name, card, asker), subset, asker)
    if chosen_subset is None:
        by_split = _by_name(_in_subfolder(name, data, subset, asker))
    else:
        by_split = {at: _matching(data, patterns) for at, patterns in chosen_subset.items()}
    found = by_split.get(split)
    if not found:
        known = ", ".join(sorted(at for at, files in by_split.items() if files)) or "none"
        raise InputError(
            f"{asker.split}: {name} has no files of the split {split!r}.", advice=f"Its splits are: {known}."
        )
    _require_all_shards(name, found, asker)
    return found


def _data(names: Iterable[str]) -> list[str]:
    return [file for file in names if kind_of(file) is not None and not _NO_DATA.fullmatch(file)]


def _subsets(name: str, card: str, asker: Asker) -> Mapping[str, tuple[bool, Mapping[str, Sequence[str]]]]:
    """Return each subset by name: whether it is the default, and the patterns of file names by split."""
    match = re.match(r"---\s*\n(.*?\n)---\s*(\n|$)", card, re.DOTALL)
    if match is None:
        return {}
    import yaml

    try:
        header = yaml.safe_load(match[1])
        configs = header.get("configs") if isinstance(header, dict) else None
        return {
            str(config.get("config_name", "default")): (bool(config.get("default")), dict(_patterns(config)))
            for config in configs or ()
            if "data_files" in config
        }
    except (yaml.YAMLError, AttributeError, TypeError, KeyError) as error:
        raise InputError(f"{asker.name}: the card of {name} ({CARD}) cannot be read: {error}") from error


def _patterns(config: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    files, folder = config["data_files"], config.get("data_dir")
    entries = files if isinstance(files, list) else [files]
    by_split: dict[str, list[str]] = {}
    for entry in entries:
        split, paths = (entry["split"], entry["path"]) if isinstance(entry, Mapping) else ("train", entry)
        listed = [paths] if isinstance(paths, str) else list(paths)
        by_split.setdefault(str(split), []).extend(f"{folder}/{path}" if folder else path for path in listed)
    yield from by_split.items()


def _subset(
    name: str, subsets: Mapping[str, tuple[bool, Mapping[str, Sequence[str]]]], wanted: str | None, asker: Asker
) -> Mapping[str, Sequence[str]] | None:
    """Return the patterns of the subset *wanted*; None if the card lists no subsets."""
    if not subsets:
        return None
    defaults = [at for at, (is_default, _) in subsets.items() if is_default or at == "default" or len(subsets) == 1]
    chosen = wanted or next(iter(defaults), None)
    if chosen not in subsets:
        what = "has several subsets" if wanted is None else f"has no subset {wanted!r}"
        raise InputError(f"{asker.subset}: {name} {what}.", advice=f"Choose one of: {', '.join(sorted(subsets))}.")
    return subsets[str(chosen)][1]


def _in_subfolder(name: str, data: Sequence[str], subset: str | None, asker: Asker) -> Sequence[str]:
    if subset is None:
        return data
    inside = [file for file in data if file.startswith(f"{subset}/")]
    if not inside:
        folders = sorted({file.split("/")[0] for file in data if "/" in file})
        raise InputError(
            f"{asker.subset}: {name} has no card that describes {subset!r}, and no folder of that name.",
            advice=f"Its folders are: {', '.join(folders)}." if folders else "Remove it.",
        )
    return inside


def _matching(data: Sequence[str], patterns: Sequence[str]) -> list[str]:
    rules = [re.compile(_regular(pattern)) for pattern in patterns]
    return [file for file in data if any(rule.fullmatch(file) for rule in rules)]


def _regular(pattern: str) -> str:
    """Return the regular expression of a hub glob, where only ``**`` matches folders."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.removeprefix("./"))
    return "".join(parts.get(token, re.escape(token)) for token in tokens)


def _by_name(data: Sequence[str]) -> Mapping[str, list[str]]:
    """Return files by split, identified by their names; without any such name, all are for training."""
    found: dict[str, list[str]] = {}
    for file in data:
        found.setdefault(_split_of(file) or "", []).append(file)
    if set(found) == {""}:
        return {"train": found[""]}
    return {split: files for split, files in found.items() if split}


def _split_of(file: str) -> str | None:
    shard = _SHARD.fullmatch(file)
    if shard and shard["split"] != "data":  # the name that `datasets` gives the shards of any split, one folder each
        return _split_called(shard["split"].casefold()) or shard["split"]
    words = re.split(r"[-._ 0-9/]+", file.casefold())
    return next((split for word in words if (split := _split_called(word))), None)


def _split_called(word: str) -> str | None:
    return next((split for split, words in _WORDS.items() if word in words), None)


def _require_all_shards(name: str, files: Sequence[str], asker: Asker) -> None:
    """Raise InputError when a shard is missing: a half-downloaded split is not used."""
    groups: dict[tuple[str, str], set[str]] = {}
    for file in files:
        if shard := _SHARD.fullmatch(file):
            groups.setdefault((shard["split"], shard["count"]), set()).add(shard["number"])
    for (split, count), numbers in groups.items():
        if len(numbers) < int(count):
            raise InputError(
                f"{asker.name}: of {name} only {len(numbers)} of the {int(count)} files of {split} are here.",
                advice="Download the rest: `winml-dag build` does when the hub may be asked.",
            )
