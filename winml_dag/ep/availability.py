"""Which execution providers can be used: resolve targets, find packages and libraries, and report what is missing.

Only files are checked. onnxruntime is never imported here, because planning must not wait for it. Environments of
remote machines apply to the whole process, as long as those machines are connected.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.configuration import CONFIG_VARIABLE, ENVIRONMENTS_VARIABLE, config_file
from winml_dag.ep.provider import ExecutionProvider, Package, Target
from winml_dag.ep.registry import AUTO, CPU, DEVICES, drivers, execution_providers, find_ep
from winml_dag.errors import UsageError, known_instead
from winml_dag.file_reading import before_reading

if TYPE_CHECKING:
    from winml_dag.ep.environments import Environment

_SHARED_LIBRARY = (".dll", ".so", ".dylib")
_IN_NAME = ".so."  # libtensorrt_rtx.so.1.7.1


def resolve_target(ep: str | None, device: str | None) -> Target:
    """Return the target that a recipe or command line means; if neither is given, the CPU.

    *device* is a device, ``auto`` or None, or an execution provider instead of one (``--device qnn``). For a device
    without a provider, the first provider in the customary order is used that is installed and has the libraries that
    it needs, else an installed one that lacks the fewest. From the catalog of Windows ML only what it has for this
    machine counts. If none is installed, the first is returned, and :func:`require_installed` reports all. Raises
    UsageError if a name is unknown, or the provider cannot drive the device.
    """
    ep = None if ep is None or ep.lower() == AUTO else ep
    device = None if device is None or device.lower() == AUTO else device.lower()
    if device is not None and device not in DEVICES:
        named = None
        with suppress(UsageError):
            named = find_ep(device)
        if named is None:
            names = (AUTO, *DEVICES, *(each.alias for each in execution_providers()))
            raise UsageError(f"There is no device {device!r}{known_instead(device, names)}")
        if ep is not None and find_ep(ep) != named:
            raise UsageError(f"Device {device!r} and execution provider {ep!r} contradict each other.")
        ep, device = named.name, None
    if ep is not None:
        chosen = find_ep(ep)
        if device is not None and device not in chosen.devices:
            raise UsageError(
                f"{chosen.name} cannot drive device {device!r}.",
                advice=f"It drives: {', '.join(chosen.devices)} (or {AUTO}).",
            )
        return Target(chosen, device or chosen.devices[0])
    if device is None:
        return Target(CPU, "cpu")
    candidates = drivers(device)
    found = min(filter(_drives, candidates), key=lambda each: _lacking(each, device), default=None)
    return Target(candidates[0], device, is_open=True) if found is None else Target(found, device)


@dataclass(frozen=True)
class RunTarget:
    """The target on which a stage runs a model.

    ``execution_provider`` is the full name; ``provider_options`` are those of a session. None of the options names a
    file: such options control compilation, and their files would not be among the inputs.
    """

    execution_provider: str
    device: str
    provider_options: Mapping[str, str] = field(default_factory=dict)

    def resolve(self) -> Target:
        return resolve_target(self.execution_provider, self.device)


def _lacking(ep: ExecutionProvider, device: str) -> int:
    """Return how many requirements of *ep* for *device* are missing; 0 for one on another machine."""
    return 0 if is_elsewhere(ep.alias) else ep.lacks(device)


def _drives(ep: ExecutionProvider) -> bool:
    if not ep.packages or is_elsewhere(ep.alias):
        return True
    environment = environment_of(ep)
    package = package_of(ep, environment)
    if package is None or not package.catalog:
        return package is not None
    # One package contains the whole catalog. The catalog of another environment cannot be queried.
    return environment is not None or _library_in_catalog(ep) is not None


def _library_in_catalog(ep: ExecutionProvider) -> Path | None:
    # Imported here: only Windows has the catalog.
    from winml_dag.ep.windowsml import library_in_catalog

    return library_in_catalog(ep.name)


def is_windows() -> bool:
    return sys.platform == "win32"


def environment_of(ep: ExecutionProvider) -> Environment | None:
    """Return the Python environment that the user configured for *ep*; None if it is this one.

    Raises UsageError if the configuration names an unknown provider, or something that is not an environment for *ep*.
    """
    path = config_file()
    before_reading(path)
    if not (any(map(os.environ.get, (ENVIRONMENTS_VARIABLE, CONFIG_VARIABLE))) or path.exists()):
        return None
    # Imported here: most users have one environment.
    from winml_dag.ep.environments import look, named_environments

    chosen = [each for each in dict.fromkeys(named_environments()) if _named_ep(each.ep, each.where) == ep]
    if len(chosen) > 1 and chosen[0].source == chosen[1].source:
        raise UsageError(f"{chosen[0].where} and {chosen[1].where} are both for {ep.name}.", advice="Keep one of them.")
    return look(chosen[0]) if chosen else None


def _named_ep(name: str, where: str) -> ExecutionProvider:
    try:
        ep = find_ep(name)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", advice=error.advice) from error
    if ep == CPU:
        raise UsageError(f"{where}: {CPU.name} is part of every onnxruntime and runs here.", advice="Remove it.")
    return ep


def search_path(environment: Environment | None) -> tuple[Path, ...]:
    """Return the search path for packages in *environment*, or here."""
    if environment is None:
        return _as_paths(tuple(sys.path))
    return environment.site_packages


@cache
def _as_paths(entries: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(Path(entry or ".") for entry in entries)


def package_of(ep: ExecutionProvider, environment: Environment | None) -> Package | None:
    """Return the package that provides *ep* in *environment*, or here; None if it is missing or needs none."""
    path = search_path(environment)
    return next((package for package in ep.packages if _is_there(package, path)), None)


def installed(ep: ExecutionProvider) -> bool:
    """Return whether its environment has *ep*, by files alone; only a session shows whether its device exists.

    Raises UsageError as :func:`environment_of` does.
    """
    return not ep.packages or package_of(ep, environment_of(ep)) is not None


def environments_behind(target: Target) -> Iterator[Environment]:
    """Yield the environments that may affect *target* or whether it is installed, so changes there count.

    If only a device is named, all its providers are checked.
    """
    for ep in dict.fromkeys((target.ep, *drivers(target.device))):
        # An unusable environment affects nothing; using its provider is an error.
        with suppress(UsageError):
            if ep != CPU and (environment := environment_of(ep)) is not None:
                yield environment


def _is_there(package: Package, path: Iterable[Path]) -> bool:
    if package.catalog and not is_windows():
        return False
    if package.plugin:
        return package_folder(package.plugin, path) is not None
    # importlib.metadata would answer this too, but its import takes longer than a whole plan may take.
    metadata = f"{re.sub(r'[-_.]+', '_', package.distribution)}.dist-info"
    return any(metadata in _names_in(folder) for folder in path)


def _names_in(folder: Path) -> frozenset[str]:
    try:
        return _listed(str(folder), folder.stat().st_mtime_ns)
    except OSError:
        return frozenset()


@cache
def _listed(folder: str, changed_ns: int) -> frozenset[str]:  # noqa: ARG001 - what was listed before it changed
    """Return the names in *folder*, metadata without its version: every cell of a sweep asks for some of them."""
    names = os.listdir(folder)  # noqa: PTH208
    return frozenset(f"{name.partition('-')[0]}.dist-info" if name.endswith(".dist-info") else name for name in names)


def package_folder(module: str, path: Iterable[Path]) -> Path | None:
    """Return the folder of the top-level package *module* without importing it (that may load native libraries)."""
    there = (folder / module for folder in path if module in _names_in(folder))
    return next((found for found in there if (found / "__init__.py").is_file()), None)


@dataclass(frozen=True)
class Libraries:
    """``files``: every shared library of a provider, sorted by path relative to the first of ``folders``.

    ``folders`` are all folders in which a library may be added. Keys have the libraries by content, since they compile
    a model: a provider of one version can be built twice, and its libraries are replaced by hand when a driver team
    sends a fix.
    """

    files: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()

    def names(self) -> list[str]:
        """Names include the folder, because there may be one of the same name for each processor."""
        return [path.relative_to(self.folders[0]).as_posix() for path in self.files]


def libraries_of(ep: ExecutionProvider, environment: Environment | None) -> Libraries:
    """Return the libraries of *ep* in *environment*, or here, without importing anything that loads them.

    For a provider that is compiled into onnxruntime, these are all libraries of that build. Empty if it is missing.
    Raises UsageError if only that environment has the information.
    """
    folder = _folder(ep, environment)
    if folder is None or not folder.is_dir():
        return Libraries()
    folders, files = [], []
    for at, inside, names in os.walk(folder):
        inside[:] = sorted(name for name in inside if name != "__pycache__")
        folders.append(Path(at))
        before_reading(at)
        files += [Path(at, name) for name in names if name.endswith(_SHARED_LIBRARY) or _IN_NAME in name]
    return Libraries(tuple(sorted(files, key=lambda path: path.relative_to(folder).as_posix())), tuple(folders))


def _folder(ep: ExecutionProvider, environment: Environment | None) -> Path | None:
    package = package_of(ep, environment)
    if package is None:
        return None
    if package.catalog:
        library = _library_in_catalog(ep)
        if library is None and environment is not None:
            raise UsageError(
                f"{environment.where} has {ep.name} from the catalog of Windows ML, which cannot be queried from here.",
                advice="Install windowsml here as well.",
            )
        return None if library is None else library.parent
    if package.plugin:
        return package_folder(package.plugin, search_path(environment))
    runtime = package_folder("onnxruntime", search_path(environment))
    return None if runtime is None else runtime / "capi"


def is_at_hand(ep: ExecutionProvider) -> bool:
    """Return whether work for *ep* can be done, here or on a remote machine. Raises as :func:`installed` does."""
    return installed(ep) or is_elsewhere(ep.alias)


def can_be_asked(target: Target) -> bool:
    """Return whether sessions of *target* can be made, judging by files alone. Raises as :func:`installed` does."""
    return is_at_hand(target.ep) and not _lacking(target.ep, target.device)


def require_at_hand(target: Target, *, otherwise: str = "") -> None:
    """Call :func:`require_installed`, except for work that a remote machine may do. Raises as that does."""
    if not is_elsewhere(target.ep.alias):
        require_installed(target, otherwise=otherwise)


def require_installed(target: Target, *, otherwise: str = "") -> None:
    """Refuse a target that is available neither here nor in the environment configured for its provider.

    Raises UsageError, with instructions to get the provider, or all that drive the device if only that was named, and
    with what to do *otherwise*; also as :func:`environment_of` does.
    """
    ep = target.ep
    if installed(ep):
        return
    environment = environment_of(ep)
    if environment is not None:
        wanted = " or ".join(package.distribution for package in ep.packages)
        raise UsageError(
            f"{environment.where} names {environment.folder} for {ep.name}, and no package in it brings that provider.",
            advice=f"Install {wanted} there. {otherwise}".rstrip(),
        )
    if target.is_open:
        ways = "; ".join(f"{each.alias}: {each.how_to_get.rstrip('.')}" for each in drivers(target.device))
        advice = f"Install one of these, or name another target with --ep. {ways}."
    else:
        advice = f"{ep.how_to_get} An environment that has it is named with {ENVIRONMENTS_VARIABLE}={ep.alias}=FOLDER."
    raise UsageError(what_is_missing(target), advice=f"{advice} {otherwise}".rstrip())


def what_is_missing(target: Target) -> str:
    """Return the message for a *target* that is not available here."""
    if target.is_open:
        return f"No execution provider that drives the {target.device} is installed here."
    return f"{target.ep.name} is not installed here."


@dataclass(frozen=True)
class RemoteEnvironment:
    """An environment of a remote machine.

    Attributes:
        distributions: installed packages with versions; names are normalized.
        tools: what else is in the keys of work for its target: packages that provide the execution provider, digests of
            its libraries, and possibly the processor or devices.
        pools: devices that it reserves.
    """

    distributions: Mapping[str, str]
    tools: Mapping[str, str] = field(default_factory=dict)
    pools: tuple[str, ...] = ()


_known: dict[str, RemoteEnvironment] = {}


def environment_name(ep: str, device: str) -> str:
    """Return the name of the environment for a target, the same on every machine; *ep* is the alias: ``qnn/npu``."""
    return f"{ep}/{device}"


def environment_elsewhere(name: str) -> RemoteEnvironment | None:
    """Return the environment of that name, if some machine has it."""
    return _known.get(name)


def is_elsewhere(ep: str) -> bool:
    """Return whether some machine has the provider with the alias *ep*, for any device."""
    return any(name.startswith(f"{ep}/") for name in _known)


@contextmanager
def knowing(environments: Mapping[str, RemoteEnvironment]) -> Iterator[None]:
    """Make *environments* available in addition to those of this machine, inside the block."""
    before = dict(_known)
    _known.update(environments)
    try:
        yield
    finally:
        _known.clear()
        _known.update(before)
