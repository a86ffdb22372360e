"""Keyword arguments of the API functions, and the store that they use."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypedDict, TypeVar, get_args, get_type_hints

from winml_dag.engine.events import Observer
from winml_dag.errors import UsageError, did_you_mean, known_instead
from winml_dag.pipeline.remotes import close_store, open_store
from winml_dag.pipeline.request import RemoteOptions
from winml_dag.pipeline.run import BuildOptions, Driver
from winml_dag.pipeline.sweep.run import Watcher
from winml_dag.recipe.schema import Quant as WinMLQuantizationConfig
from winml_dag.store.remote.settings import Mode
from winml_dag.store.store import Store

P = ParamSpec("P")
R = TypeVar("R")

Config: TypeAlias = str | Path | Mapping[str, Any]


class StoreArguments(TypedDict, total=False):
    """Where results are cached.

    ``cache_dir``: the cache folder, by default the user's. ``remote``: the URL of a shared store, or several, the
    nearest first. ``remote_mode``: ``read``, ``read-write`` or ``off``. When omitted, the environment and the
    configuration decide both.
    """

    cache_dir: str | Path | None
    remote: str | Sequence[str] | None
    remote_mode: str | None


class CommonArguments(StoreArguments, total=False):
    """Arguments of a single build and of a sweep. None, or omitting one, lets the recipe decide.

    ``force_rebuild`` (or ``rebuild``) runs every stage, cached or not. ``validate=False`` skips that stage.
    ``overwrite`` replaces files in the output folder that the tool does not own, if they have the name of a build's
    file. ``link`` writes read-only links into the cache instead of copies. ``final_only`` writes the finished model
    without the intermediate models. ``scheduler`` is the address of a cluster, such as ``tcp://host:8786``, whose
    workers run the stages.
    """

    task: str | None
    ep: str | None
    device: str | None
    precision: str | None
    quant: bool | None
    compile: bool | None
    optimize: bool | None
    analyze: bool | None
    validate: bool | None
    max_optim_iterations: int | None
    allow_unsupported_nodes: bool
    force_rebuild: bool
    rebuild: bool
    overwrite: bool
    link: bool
    final_only: bool
    scheduler: str | None
    jobs: int


class OnnxArguments(CommonArguments, total=False):
    """Arguments of every build.

    ``config`` is a recipe: a file, or a mapping, whose paths are relative to the current folder. ``observer`` receives
    a callback for every stage that starts or ends.
    """

    config: Config | None
    observer: Observer | None


class HfArguments(OnnxArguments, total=False):
    """Additional arguments of a build from PyTorch. ``submodel``: build only this component of a composite model."""

    submodel: str | None
    random_weights: bool
    trust_remote_code: bool


class SweepArguments(CommonArguments, total=False):
    """Additional arguments of :func:`build_sweep`, the same as on the command line.

    ``filters``, ``shard`` and ``retry_failed`` choose cells. ``keep_going`` is true by default.
    ``stage_timeout_seconds`` limits each stage, ``memory_bytes`` the memory of all stages that run at once. ``watcher``
    receives a callback for every stage and cell. All other arguments apply to every cell.
    """

    filters: Sequence[str]
    shard: str | None
    retry_failed: bool
    keep_going: bool
    stage_timeout_seconds: float | None
    memory_bytes: int | None
    watcher: Watcher | None
    random_weights: bool
    trust_remote_code: bool


class FileArguments(StoreArguments, total=False):
    """Arguments of every single-stage function.

    ``overwrite``: replace a file that the tool does not own. The others are the same as for a build.
    """

    overwrite: bool
    force_rebuild: bool
    rebuild: bool
    observer: Observer | None


class QuantizeArguments(FileArguments, total=False):
    """Arguments of :func:`quantize_onnx`. None, or omitting one, lets ``config`` decide.

    ``precision``: one, or several that are applied in order (``["int4", "fp16"]``). ``config``: a
    ``WinMLQuantizationConfig``, or its fields as a mapping; paths are relative to the current folder.
    ``calibration_data``: a file or folder. ``ep``, ``device``: the target whose rules apply, by default the CPU.
    ``export``: sizes of the model's inputs, as fields of that section. ``validate``: compare the result with the float
    model.
    """

    precision: str | Sequence[str] | None
    config: WinMLQuantizationConfig | Mapping[str, Any] | None
    calibration_data: str | Path | None
    task: str | None
    ep: str | None
    device: str | None
    export: Mapping[str, Any] | None
    validate: bool


def only_known(function: Callable[P, R]) -> Callable[P, R]:
    """Make *function* reject keyword arguments that its signature and its ``TypedDict`` do not name.

    Raises:
        TypeError: for any other name, as for a function without ``**arguments``.
    """

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        (named,) = get_args(get_type_hints(function)["arguments"])
        known = inspect.signature(function).parameters.keys() - {"arguments"} | named.__annotations__.keys()
        if unknown := next((name for name in kwargs if name not in known), None):
            meant = did_you_mean(unknown, known)
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {unknown!r}{meant}")
        if "force_rebuild" in kwargs:
            if "rebuild" in kwargs:
                raise TypeError(f"{function.__name__}() got 'rebuild' and 'force_rebuild', two names of one argument")
            kwargs["rebuild"] = kwargs.pop("force_rebuild")
        return function(*args, **kwargs)

    return checked


def remote_of(arguments: Mapping[str, Any], recipe: object = None) -> RemoteOptions:
    """Return the remote options in *arguments*. *recipe*: the recipe, if it is a file.

    Raises:
        UsageError: for an unknown mode.
    """
    urls, mode = arguments.get("remote"), arguments.get("remote_mode")
    if mode not in (None, *Mode):
        raise UsageError(f"remote_mode is {mode!r}{known_instead(mode, map(str, Mode))}.")
    file = Path(recipe) if isinstance(recipe, str | os.PathLike) else None
    return RemoteOptions.of((urls,) if isinstance(urls, str) else tuple(urls or ()), mode, file)


@contextmanager
def store_of(arguments: Mapping[str, Any], remote: RemoteOptions) -> Iterator[Store]:
    """Yield the store that *arguments* name, for the duration of one call."""
    store = open_store(_cache_dir(arguments), remote)
    try:
        yield store
    finally:
        if store.has_remotes:
            close_store(store)


@contextmanager
def driver_of(
    arguments: Mapping[str, Any], remote: RemoteOptions, observer: Observer | None = None
) -> Iterator[Driver]:
    """Yield the driver for one call, with the store and the cluster that *arguments* name.

    Raises:
        UsageError: if jobs is below 1, the cluster does not exist, or its workers cannot access the inputs.
    """
    options = BuildOptions(**{name: arguments[name] for name in _BUILD_OPTIONS & arguments.keys()})
    if options.jobs < 1:  # nothing would ever start
        raise UsageError(f"jobs is {options.jobs}, and must be at least 1.")
    with ExitStack() as open_until:
        if (scheduler := arguments.get("scheduler")) is not None:
            # Lazy import: local builds do not need it.
            from winml_dag.pipeline.cluster.cluster import ClusterOptions, open_cluster

            meant = ClusterOptions(scheduler, 1, (), options.jobs, options.memory_bytes)
            folder = remote.store_folder(_cache_dir(arguments))
            cluster = open_until.enter_context(open_cluster(meant, folder, remote, lambda _: None))
            options = replace(options, cluster=cluster)
        store = open_until.enter_context(store_of(arguments, remote))
        yield Driver(store, options, observer)


_BUILD_OPTIONS = frozenset(field.name for field in fields(BuildOptions))


def _cache_dir(arguments: Mapping[str, Any]) -> Path | None:
    folder = arguments.get("cache_dir")
    return None if folder is None else Path(folder)
