"""What the functions of the API take by name, and the store that they use."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypedDict, TypeVar, get_args, get_type_hints

from winml_dag.engine.events import Observer
from winml_dag.errors import UsageError
from winml_dag.pipeline.opened import let_go, open_store
from winml_dag.pipeline.request import RemoteOptions
from winml_dag.pipeline.run import BuildOptions, Driver
from winml_dag.recipe.document import did_you_mean, known_instead
from winml_dag.recipe.schema import Quant as WinMLQuantizationConfig
from winml_dag.store.remote.settings import Mode
from winml_dag.store.store import Store

# Arguments of builds and sweeps that say how to go about it; all others say what to build.
HOW = ("force_rebuild", "overwrite", "link", "final_only", "scheduler", "jobs", "cache_dir", "remote", "remote_mode")

P = ParamSpec("P")
R = TypeVar("R")

Config: TypeAlias = str | Path | Mapping[str, Any]


class StoreArguments(TypedDict, total=False):
    """Where results are looked for, and kept.

    ``cache_dir``: the folder, by default the user's. ``remote``: the URL of a store that several machines share, or
    several, the nearest first; ``remote_mode``: what may be done there, ``read``, ``read-write`` or ``off``. Left out,
    both are as the environment and the configuration say.
    """

    cache_dir: str | Path | None
    remote: str | Sequence[str] | None
    remote_mode: str | None


class CommonArguments(StoreArguments, total=False):
    """What one build and a sweep take. None, or leaving one out, lets the recipe decide.

    ``force_rebuild``, or ``rebuild``, runs every stage, known or not; ``validate`` false leaves that stage out;
    ``overwrite`` replaces files in the output folder that are not ours, where the build has files of their names;
    ``link`` puts read-only links into the cache there, not copies; ``final_only`` puts the finished model there, and
    none of those that it was made from. ``scheduler`` is the address of a cluster, such as ``tcp://host:8786``, on
    whose workers stages run.
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


class FileArguments(StoreArguments, total=False):
    """What every function for one stage takes: how to go about it.

    ``overwrite``: replace a file that is not ours. The others are as for a build.
    """

    overwrite: bool
    force_rebuild: bool
    rebuild: bool
    observer: Observer | None


class QuantizeArguments(FileArguments, total=False):
    """What :func:`quantize_onnx` takes. None, or leaving one out, lets ``config`` decide.

    ``precision``: one, or several that are applied one after the other (``["int4", "fp16"]``). ``config``: a
    ``WinMLQuantizationConfig``, or its fields as a mapping; paths are relative to the current folder.
    ``calibration_data``: a file or folder. ``ep``, ``device``: whose rules to follow; the CPU's when left out.
    ``export``: sizes of the model's inputs, as fields of that section. ``validate``: hold the result against the float
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
    """*function*, which takes nothing but what its signature and the ``TypedDict`` of its ``arguments`` name.

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
        if "rebuild" in kwargs:
            if "force_rebuild" in kwargs:
                raise TypeError(f"{function.__name__}() got 'rebuild' and 'force_rebuild', two names of one argument")
            kwargs["force_rebuild"] = kwargs.pop("rebuild")
        return function(*args, **kwargs)

    return checked


def remote_of(arguments: StoreArguments, recipe: object = None) -> RemoteOptions:
    """What *arguments* say of remotes; *recipe*: what is built, if that is in a file.

    Raises:
        UsageError: for a mode that there is not.
    """
    urls, mode = arguments.get("remote"), arguments.get("remote_mode")
    if mode not in (None, *Mode):
        raise UsageError(f"remote_mode is {mode!r}{known_instead(mode, map(str, Mode))}.")
    folder = None
    if isinstance(recipe, str | os.PathLike):
        folder = Path(recipe) if Path(recipe).is_dir() else Path(recipe).parent
    return RemoteOptions((urls,) if isinstance(urls, str) else tuple(urls or ()), mode, folder)


@contextmanager
def driver_of(
    arguments: Mapping[str, Any], remote: RemoteOptions, observer: Observer | None = None
) -> Iterator[Driver]:
    """What carries out builds as *arguments* say, in the store and on the cluster that they name, for as long as one
    call needs it.

    Raises:
        UsageError: when there is no such cluster, or its workers could not get at inputs.
    """
    options = BuildOptions(
        arguments.get("jobs", 1),
        keep_going=arguments.get("keep_going", False),
        rebuild=arguments.get("force_rebuild", False),
        stage_timeout_seconds=arguments.get("stage_timeout_seconds"),
        memory_bytes=arguments.get("memory_bytes"),
        link=arguments.get("link", False),
        overwrite=arguments.get("overwrite", False),
    )
    cache_dir = arguments.get("cache_dir")
    folder = remote.store_folder(None if cache_dir is None else Path(cache_dir))
    with ExitStack() as open_until:
        if (scheduler := arguments.get("scheduler")) is not None:
            # Imported here: builds on this machine need none of it.
            from winml_dag.pipeline.cluster.cluster import ClusterOptions, open_cluster

            meant = ClusterOptions(scheduler, 1, (), options.jobs, options.memory_bytes)
            cluster = open_until.enter_context(open_cluster(meant, folder, remote, lambda _: None))
            options = replace(options, cluster=cluster)
        store = open_until.enter_context(store_of(arguments, remote))
        yield Driver(store, options, observer)


@contextmanager
def store_of(arguments: Mapping[str, Any], remote: RemoteOptions) -> Iterator[Store]:
    """The store that *arguments* mean, for as long as one call needs it."""
    cache_dir = arguments.get("cache_dir")
    store = open_store(None if cache_dir is None else Path(cache_dir), remote)
    try:
        yield store
    finally:
        if store.has_remotes:
            let_go(store)
