"""What the functions of the API take by name, and the cache that they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from winml_dag.engine.events import Observer
from winml_dag.recipe.schema import Quant as WinMLQuantizationConfig
from winml_dag.store.local import LocalStore
from winml_dag.store.location import default_cache_dir

Config: TypeAlias = str | Path | Mapping[str, Any]


class CommonArguments(TypedDict, total=False):
    """What one build and a sweep take. None, or leaving one out, lets the recipe decide.

    ``force_rebuild`` runs every stage, known or not; ``link`` puts read-only links into the cache into the output
    folder, not copies.
    """

    task: str | None
    ep: str | None
    device: str | None
    precision: str | None
    quant: bool | None
    compile: bool | None
    optimize: bool | None
    analyze: bool | None
    max_optim_iterations: int | None
    allow_unsupported_nodes: bool
    force_rebuild: bool
    link: bool
    jobs: int
    cache_dir: str | Path | None


class OnnxArguments(CommonArguments, total=False):
    """What every build takes.

    ``config`` is a recipe: its file, or the same as a mapping, whose paths are then relative to the current folder.
    ``observer`` is told of every stage that starts or ends.
    """

    config: Config | None
    observer: Observer | None


class HfArguments(OnnxArguments, total=False):
    """What a build from PyTorch takes as well. ``submodel``: one component of a composite model alone."""

    submodel: str | None
    random_weights: bool
    trust_remote_code: bool


class FileArguments(TypedDict, total=False):
    """What every function for one stage takes: how to go about it.

    ``overwrite``: replace a file that is not ours. The others are as for a build.
    """

    overwrite: bool
    force_rebuild: bool
    cache_dir: str | Path | None
    observer: Observer | None


class QuantizeArguments(FileArguments, total=False):
    """What :func:`quantize_onnx` takes. None, or leaving one out, lets ``config`` decide.

    ``precision``: one, or several that are applied one after the other (``["int4", "fp16"]``). ``config``: a
    ``WinMLQuantizationConfig``, or its fields as a mapping; paths are relative to the current folder.
    ``calibration_data``: a file or folder. ``ep``, ``device``: whose rules to follow; the CPU's when left out.
    ``validate``: hold the result against the float model.
    """

    precision: str | Sequence[str] | None
    config: WinMLQuantizationConfig | Mapping[str, Any] | None
    calibration_data: str | Path | None
    task: str | None
    ep: str | None
    device: str | None
    validate: bool


def store_at(cache_dir: str | Path | None) -> LocalStore:
    return LocalStore(default_cache_dir() if cache_dir is None else Path(cache_dir))
