"""Models and data sets by hub id or folder: their paths in the local Hugging Face cache, and which files are read.

The cache's folder layout (``models--org--name/{refs,snapshots}``, ``datasets--...``) is a documented interface; reading
it here avoids the import of huggingface_hub, 0.3 s, for every model that is already cached. See
https://huggingface.co/docs/huggingface_hub/guides/manage-cache.

Which files of a data set form a subset and a split depends only on file names and the data set's card. So the key has
the content of the files that are read, the hub's cache works offline, and no code of a data set runs: one that needs
its own script is rejected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winml_dag.engine.stage import SourceFile
from winml_dag.errors import InputError
from winml_dag.explanation import explanation
from winml_dag.file_reading import before_reading, before_reading_folders, read_text
from winml_dag.recipe.fields import is_path_like, resolve_path
from winml_dag.stages.samples import kind_of

# Files of a repository that stages read, and the card, which names the license. Anything else (weights of other
# frameworks, pictures) is not downloaded.
_WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.py", "README.md")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")

# The cache's names for kinds of repositories.
MODELS, DATASETS = "models", "datasets"


def hub_cache() -> Path:
    """Return the cache folder, by the same variables as huggingface_hub."""
    if folder := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(folder).expanduser()
    home = os.environ.get("HF_HOME")
    base = Path(home).expanduser() if home else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return (base if home else base / "huggingface") / "hub"


def reference(name: str, revision: str | None, kind: str = MODELS) -> Path:
    """Return the file in the cache with the commit of a branch or tag."""
    return _repository(name, kind) / "refs" / (revision or "main")


def _repository(name: str, kind: str) -> Path:
    return hub_cache() / f"{kind}--{name.replace('/', '--')}"


def cached_snapshot(name: str, revision: str = "main", kind: str = MODELS) -> Path | None:
    """Return the folder of *revision* (a branch, tag or commit) in the local cache, or None."""
    before_reading(reference(name, revision, kind))
    try:
        commit = read_text(reference(name, revision, kind)).strip()
    except OSError:
        commit = revision
    snapshot = _repository(name, kind) / "snapshots" / commit
    there = (snapshot / "config.json").is_file() if kind == MODELS else snapshot.is_dir()
    return snapshot if commit and there else None


def snapshot(model_id: str, revision: str | None, *, download: bool) -> Path:
    """Return the folder of a model by hub id; downloaded if *download* allows it and offline mode is off.

    Raises:
        InputError: when it is neither local nor available on the hub.
    """
    wanted = revision or "main"
    found = cached_snapshot(model_id, wanted)
    if found is not None:
        return found
    where = f"{model_id!r} (revision {wanted}) is not in the local hub cache {hub_cache()}"
    return _fetched(where, lambda: _download(model_id, wanted), _ADVICE, download=download)


def _fetched(where: str, ask: Callable[[], Path], advice: str, *, download: bool) -> Path:
    if is_offline():
        raise InputError(f"{where} and HF_HUB_OFFLINE forbids asking the hub.", advice=advice)
    if not download:
        raise InputError(f"{where}.", advice="`winml-dag build` downloads it; a plan does not. " + advice)
    try:
        return ask()
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f"{where}, and huggingface_hub is not installed.", advice="pip install winml_dag[hf]"
        ) from error
    except Exception as error:  # errors of hub, HTTP, file system: for the user, all mean "not available"
        raise InputError(f"{where} and could not be downloaded: {explanation(error)}.", advice=advice) from error


_ADVICE = (
    "Check the name, give a local folder instead, or use loader.random_weights (--random-weights) to build the "
    "architecture without its weights."
)
_DATASET_ADVICE = "Check the name, or give a local folder or files."


def is_offline() -> bool:
    """Whether the user has enabled offline mode."""
    truth = {"1", "on", "yes", "true"}
    return any(os.environ.get(name, "").lower() in truth for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def _download(model_id: str, revision: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    names = [file.rfilename for file in HfApi().model_info(model_id, revision=revision).siblings or []]
    # Safetensors if there are any, since the other format needs unpickling.
    weights = _WEIGHTS[0] if any(name.endswith(".safetensors") for name in names) else _WEIGHTS[1]
    return Path(snapshot_download(model_id, revision=revision, allow_patterns=[*_WANTED, weights]))


def _download_dataset(wanted: WantedData) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    name, revision = wanted.name, wanted.revision
    names = [file.rfilename for file in HfApi().dataset_info(name, revision=revision).siblings or []]
    text = ""
    if CARD in names:
        found = hf_hub_download(name, CARD, repo_type="dataset", revision=revision)
        text = Path(found).read_text(encoding="utf-8", errors="replace")
    chosen = [CARD, *wanted.files(names, text)]
    return Path(snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=chosen))


# --- The files of a data set.

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


@dataclass(frozen=True)
class Dataset:
    """The files to read, and the paths that influenced the choice."""

    files: tuple[SourceFile, ...]
    looked_at: tuple[Path, ...]


def find_dataset(wanted: WantedData, base: Path, *, download: bool) -> Dataset:
    """Find *wanted*: a folder (relative to *base*), else a hub id.

    Raises:
        InputError: when it is neither local nor available on the hub, or lacks the subset or split.
    """
    name, asker = wanted.name, wanted.asker
    path = resolve_path(base, name)
    before_reading(path)
    if path.is_dir():
        return _in_folder(wanted, path)
    if path.exists():
        raise InputError(f"{asker.name}: {path} is a file, not a data set.", advice=f"Give it as {asker.of_files}.")
    if is_path_like(name):
        raise InputError(
            f"{asker.name}: {path} does not exist.", advice="Check the path, or give a hub id such as org/name."
        )
    # A local folder of this name would take precedence over the hub, and the cached reference may move to another
    # commit.
    before = (path, reference(name, wanted.revision, DATASETS))
    found = cached_snapshot(name, wanted.revision or "main", DATASETS)
    if found is not None:
        try:
            return _in_folder(wanted, found, before)
        except InputError:
            if not download or is_offline():
                raise
    where = f"The data set {name!r} is not, or not whole, in the local hub cache {hub_cache()}"
    folder = _fetched(where, lambda: _download_dataset(wanted), _DATASET_ADVICE, download=download)
    return _in_folder(wanted, folder, before)


def has_splits(folder: Path) -> bool:
    """Whether *folder* has splits, according to its card or the names of its files."""
    names, card = _content(folder)
    return bool(WantedData(folder.name).subsets(card)) or len(_by_name(_data(names))) > 1


def _in_folder(wanted: WantedData, folder: Path, before: tuple[Path, ...] = ()) -> Dataset:
    folders = before_reading_folders(folder)
    names, text = _content(folder)
    files = tuple(SourceFile(file, folder / file) for file in wanted.files(names, text))
    card = folder / CARD
    return Dataset(files, (*before, *folders, *((card,) if card.is_file() else ())))


def _content(folder: Path) -> tuple[list[str], str]:
    """Return the names of all files in *folder*, and the text of its card."""
    names = [entry.relative_to(folder).as_posix() for entry in sorted(folder.rglob("*")) if entry.is_file()]
    card = folder / CARD
    before_reading(card)
    return names, card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""


@dataclass(frozen=True)
class WantedData:
    """A data set, of which a subset and a split are read. ``revision``: a branch, tag or commit."""

    name: str
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    asker: Asker = Asker()

    def files(self, names: Iterable[str], card: str) -> list[str]:
        """Return those of the files *names* that belong to the subset and split: the *card* decides, or else the names.

        Raises:
            InputError: when there are none, or some are missing.
        """
        every = sorted(names)
        data = _data(every)
        if not data:
            script = any(file.endswith(".py") for file in every)
            raise InputError(
                f"{self.asker.name}: {self.name} has no data files"
                + (", only a script that makes them, and the scripts of data sets are never run." if script else "."),
                advice="Give a data set in parquet, JSON, CSV, text or image files.",
            )
        patterns = self._patterns(card)
        if patterns is None:
            by_split = _by_name(self._in_subfolder(data))
        else:
            by_split = {at: _matching(data, each) for at, each in patterns.items()}
        found = by_split.get(self.split)
        if not found:
            known = ", ".join(sorted(at for at, files in by_split.items() if files)) or "none"
            raise InputError(
                f"{self.asker.split}: {self.name} has no files of the split {self.split!r}.",
                advice=f"Its splits are: {known}.",
            )
        self._require_all_shards(found)
        return found

    def subsets(self, card: str) -> Mapping[str, tuple[bool, Mapping[str, Sequence[str]]]]:
        """Return each subset by name: whether it is the default, and the patterns of file names by split."""
        match = re.match(r"---\s*\n(.*?\n)---\s*(\n|$)", card, re.DOTALL)
        if match is None:
            return {}
        import yaml

        try:
            header = yaml.safe_load(match[1])
            configs = header.get("configs") if isinstance(header, dict) else None
            return {
                str(config.get("config_name", "default")): (bool(config.get("default")), _patterns(config))
                for config in configs or ()
                if "data_files" in config
            }
        except (yaml.YAMLError, AttributeError, TypeError, KeyError) as error:
            raise InputError(f"{self.asker.name}: the card of {self.name} ({CARD}) cannot be read: {error}") from error

    def _patterns(self, card: str) -> Mapping[str, Sequence[str]] | None:
        """Return the patterns of the wanted subset; None if the card lists no subsets."""
        subsets = self.subsets(card)
        if not subsets:
            return None
        defaults = [at for at, (is_default, _) in subsets.items() if is_default or at == "default" or len(subsets) == 1]
        chosen = self.subset or next(iter(defaults), None)
        if chosen not in subsets:
            what = "has several subsets" if self.subset is None else f"has no subset {self.subset!r}"
            advice = f"Choose one of: {', '.join(sorted(subsets))}."
            raise InputError(f"{self.asker.subset}: {self.name} {what}.", advice=advice)
        return subsets[str(chosen)][1]

    def _in_subfolder(self, data: Sequence[str]) -> Sequence[str]:
        if self.subset is None:
            return data
        inside = [file for file in data if file.startswith(f"{self.subset}/")]
        if not inside:
            folders = sorted({file.split("/")[0] for file in data if "/" in file})
            raise InputError(
                f"{self.asker.subset}: {self.name} has no card that describes {self.subset!r}, and no folder of that"
                " name.",
                advice=f"Its folders are: {', '.join(folders)}." if folders else "Remove it.",
            )
        return inside

    def _require_all_shards(self, files: Sequence[str]) -> None:
        """Raise InputError when a shard is missing: a half-downloaded split is not used."""
        groups: dict[tuple[str, str], set[str]] = {}
        for file in files:
            if shard := _SHARD.fullmatch(file):
                groups.setdefault((shard["split"], shard["count"]), set()).add(shard["number"])
        for (split, count), numbers in groups.items():
            if len(numbers) < int(count):
                raise InputError(
                    f"{self.asker.name}: of {self.name} only {len(numbers)} of the {int(count)} files of {split} are"
                    " here.",
                    advice="Download the rest: `winml-dag build` does when the hub may be asked.",
                )


def _data(names: Iterable[str]) -> list[str]:
    return [file for file in names if kind_of(file) is not None and not _NO_DATA.fullmatch(file)]


def _patterns(config: Mapping[str, Any]) -> Mapping[str, list[str]]:
    files, folder = config["data_files"], config.get("data_dir")
    entries = files if isinstance(files, list) else [files]
    by_split: dict[str, list[str]] = {}
    for entry in entries:
        split, paths = (entry["split"], entry["path"]) if isinstance(entry, Mapping) else ("train", entry)
        listed = [paths] if isinstance(paths, str) else list(paths)
        by_split.setdefault(str(split), []).extend(f"{folder}/{path}" if folder else path for path in listed)
    return by_split


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
