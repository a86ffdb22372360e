"""Models and data sets by hub id: their paths in the local Hugging Face cache, and the download of missing ones.

The cache's folder layout (``models--org--name/{refs,snapshots}``, ``datasets--...``) is a documented interface; reading
it here avoids the import of huggingface_hub, 0.3 s, for every model that is already cached. See
https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from winml_dag.errors import InputError
from winml_dag.explanation import explanation
from winml_dag.file_reading import before_reading, read_text

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


def dataset_snapshot(
    name: str, card: str, choose: Callable[[Sequence[str], str], Sequence[str]], *, revision: str | None, download: bool
) -> Path:
    """Return the folder of a data set by hub id; downloaded if *download* allows it and offline mode is off.

    *choose* selects the files to fetch from all file names and the text of its *card*.

    Raises:
        InputError: when it is not available.
    """
    where = f"The data set {name!r} is not, or not whole, in the local hub cache {hub_cache()}"
    return _fetched(where, lambda: _download_dataset(name, card, choose, revision), _DATASET_ADVICE, download=download)


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
    return Path(snapshot_download(model_id, revision=revision, allow_patterns=[*_WANTED, _weights_of(names)]))


def _download_dataset(
    name: str, card: str, choose: Callable[[Sequence[str], str], Sequence[str]], revision: str | None
) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    names = [file.rfilename for file in HfApi().dataset_info(name, revision=revision).siblings or []]
    text = ""
    if card in names:
        found = hf_hub_download(name, card, repo_type="dataset", revision=revision)
        text = Path(found).read_text(encoding="utf-8", errors="replace")
    chosen = [card, *choose(names, text)]
    return Path(snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=chosen))


def _weights_of(names: Sequence[str]) -> str:
    """Return the weights' pattern: safetensors if there are any, since the other format needs unpickling."""
    return _WEIGHTS[0] if any(name.endswith(".safetensors") for name in names) else _WEIGHTS[1]
