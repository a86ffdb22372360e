"""What a worker reports about itself, and which stages it can run accordingly.

A stage goes only to workers that produce exactly the toolchain in its key. A build computes that from their reports, by
the same rules as for its own toolchains; a worker checks it again right before it runs a stage.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from winml_dag import __version__
from winml_dag.engine.resources import memory_for_runs
from winml_dag.engine.stage import Node
from winml_dag.ep.availability import RemoteEnvironment, installed
from winml_dag.ep.registry import CPU, Target, execution_providers, find_ep, runtime_builds
from winml_dag.errors import UsageError, few
from winml_dag.installed import forget_installed
from winml_dag.pipeline.line import HERE, EpPlace, ep_place
from winml_dag.store.digest import DigestFunction, Fingerprints
from winml_dag.store.quantities import counted
from winml_dag.store.store import Store

_RUNTIME = "onnxruntime"
_MOST_DIFFERENCES = 3


class Installed(BaseModel):
    """An environment of a worker.

    ``distributions`` None: those of the environment in which the worker runs. ``tools`` are by digest function, because
    digests of libraries are in keys.
    """

    model_config = ConfigDict(frozen=True)

    distributions: dict[str, str] | None
    tools: dict[DigestFunction, dict[str, str]]
    pools: tuple[str, ...]


class Report(BaseModel):
    """The report of a worker.

    ``host``: the machine, which several workers may share. ``store``: identity of its cache folder. ``environments``:
    by name; the worker's own has an empty name.
    """

    model_config = ConfigDict(frozen=True)

    version: str
    places: int
    memory_bytes: int
    tags: tuple[str, ...]
    host: str
    store: str
    environments: dict[str, Installed]

    @classmethod
    def here(cls, folder: Path, places: int | None, memory_bytes: int | None, tags: tuple[str, ...] = ()) -> Report:
        """The report of a worker on this machine with the store in *folder*.

        *places* None: as many as there are processors. *memory_bytes* None: the memory of this machine, less a reserve.
        """
        functions: tuple[DigestFunction, ...] = ("xxh3-128", "sha256")
        index = Store(folder).index
        found = {function: _ep_places(Fingerprints(index, function)) for function in functions}
        environments = {
            name: Installed(
                distributions=None if name and place.site_packages is None else dict(place.present()),
                tools={function: dict(places[name].tools) for function, places in found.items()},
                pools=place.pools,
            )
            for name, place in found["sha256"].items()
        }
        own = {f"python:{platform.python_version()}", f"system:{sys.platform}", f"ep:{CPU.alias}"}
        return cls(
            version=__version__,
            places=places or os.cpu_count() or 1,
            memory_bytes=memory_bytes or memory_for_runs(),
            tags=tuple(sorted({*tags, *own, *(f"ep:{alias}" for alias in _aliases(environments))})),
            host=socket.gethostname(),
            store=folder_identity(folder),
            environments=environments,
        )

    @property
    def summary(self) -> str:
        """What it offers, in one line."""
        providers = sorted(_aliases(self.environments))
        return f"{counted(self.places, 'stage')} at a time{', with ' if providers else ''}{', '.join(providers)}"

    def environment(self, name: str, function: DigestFunction) -> RemoteEnvironment | None:
        """The environment *name*; None if it does not exist. *function*: for the digests of libraries."""
        found = self.environments.get(name)
        if found is None:
            return None
        distributions = found.distributions
        if distributions is None:
            distributions = self.environments[""].distributions or {}
        return RemoteEnvironment(distributions, found.tools[function], found.pools)


# For a worker whose own report has another version.
NO_REPORT = Report(version="", places=1, memory_bytes=1, tags=(), host="", store="", environments={})


def _ep_places(fingerprints: Fingerprints) -> Mapping[str, EpPlace]:
    """The environments of this machine, by name."""
    found = {"": HERE}
    for ep in execution_providers():
        # The configuration does not name an environment: this provider is not offered.
        with suppress(UsageError):
            if ep != CPU and installed(ep):
                places = [ep_place(Target(ep, device), fingerprints) for device in ep.devices]
                found |= {place.name: place for place in places}
    return found


def _aliases(environments: Collection[str]) -> set[str]:
    return {name.partition("/")[0] for name in environments if name}


def folder_identity(folder: Path) -> str:
    """A string that identifies a folder on this machine since its last boot."""
    machine = f"{uuid.getnode():x}"
    with suppress(OSError):
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    status = folder.stat()
    return f"{machine}:{status.st_dev}:{status.st_ino}"


def toolchain_here(node: Node, fingerprints: Fingerprints) -> tuple[EpPlace, Mapping[str, str]]:
    """Where this machine does the work of *node*, and the toolchain that it would put into its key now.

    Raises:
        UsageError: when its provider is not installed.
    """
    forget_installed()
    place = HERE
    if node.environment:
        alias, _, device = node.environment.partition("/")
        target = Target(find_ep(alias), device)
        if not installed(target.ep):
            raise UsageError(f"{target.ep.name} is not installed.")
        place = ep_place(target, fingerprints)
    return place, place.toolchain(_packages(node.toolchain, place.tools))


@dataclass(frozen=True)
class Requirement:
    """What a stage needs of a worker: an environment by name, and the toolchain that it must produce."""

    environment: str
    toolchain: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, node: Node) -> Requirement:
        return cls(node.environment, tuple(node.toolchain.items()))


@dataclass(frozen=True, eq=False)
class Worker:
    """A worker as a build sees it.

    ``refusal``: why the build does not use it at all, as the end of a sentence; empty if it does. ``shares_store``:
    whether it uses the build's own cache folder.
    """

    address: str
    report: Report
    function: DigestFunction
    shares_store: bool
    refusal: str = ""

    @property
    def providers(self) -> Mapping[str, RemoteEnvironment]:
        """The environments for execution providers, by name."""
        found = {name: self.report.environment(name, self.function) for name in self.report.environments if name}
        return {name: environment for name, environment in found.items() if environment is not None}

    def differs(self, need: Requirement) -> str:
        """Why it cannot satisfy *need*, as the end of a sentence; empty if it can."""
        if self.refusal:
            return self.refusal
        environment = self.report.environment(need.environment, self.function)
        if environment is None:
            return f"has no {need.environment.partition('/')[0]}"
        toolchain = dict(need.toolchain)
        place = EpPlace(distributions=environment.distributions, tools=environment.tools)
        return difference(toolchain, place.toolchain(_packages(toolchain, environment.tools)))


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """How the toolchain *there* differs from *here*, as the end of a sentence; empty if it does not."""
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if not names:
        return ""
    differences = [f"{name} {_version(there.get(name))}, not {_version(here.get(name))}" for name in names]
    return f"has {few(differences, _MOST_DIFFERENCES, '; ')}"


def _version(value: str | None) -> str:
    if value is None:
        return "none"
    # For a library, shorten the digest.
    function, colon, digest = value.partition(":")
    return f"{function}:{digest[:12]}" if colon and len(digest) > 12 else value


def _packages(toolchain: Mapping[str, str], tools: Collection[str]) -> list[str]:
    """The packages from which *toolchain* was made.

    Builds of onnxruntime under other names are represented by onnxruntime, which adds those that are installed.
    """
    named = [name for name in toolchain if name not in tools and name not in runtime_builds()]
    has_runtime = any(name in runtime_builds() and name not in tools for name in toolchain)
    return [*named, _RUNTIME] if has_runtime and _RUNTIME not in named else named


def environments_of(workers: Collection[Worker]) -> Mapping[str, RemoteEnvironment]:
    """The environment to plan with, by name.

    If workers differ, it is the one with the most slots; ties are broken by its content.
    """
    found: dict[str, dict[str, tuple[int, RemoteEnvironment]]] = {}
    for worker in workers:
        for name, environment in worker.providers.items():
            text = repr((sorted(environment.distributions.items()), sorted(environment.tools.items())))
            places, _ = found.setdefault(name, {}).get(text, (0, environment))
            found[name][text] = places + worker.report.places, environment
    return {
        name: by_text[min(by_text, key=lambda text: (-by_text[text][0], text))][1] for name, by_text in found.items()
    }
